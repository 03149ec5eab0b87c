"""A head for labels on any model: the stored one where it means the same labels, else a new one.

    head = NewHead(("negative", "positive"), seed=42)
    model = load_with_head(source, head, config=config, dtype=dtype, options=options)
    agree_on_padding(model, tokenizer)

`load_model(name, options, head)` does all of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import family_of
from outlierlens.data.labelled.labels import GENERIC, in_order_of_outputs, plain
from outlierlens.errors import BadFile, BadInput, need
from outlierlens.models.claims import refuse_claims

if TYPE_CHECKING:
    from torch import nn

# What no state depends on, so that it may be absent from a file: buffers, and in a bare model its pooler and the token that
# stands for masked patches while it is trained.
BUFFERS = ("position_ids", "token_type_ids", "inv_freq")
UNUSED = ("pooler", "mask_token")
CLASSIFIERS = ("Classification", "ForMultipleChoice")  # endings of classes whose heads may bear one another's names
VALUE = "value"  # the one output of a regression


def is_unused(parameter: str) -> bool:
    """Whether no state of a bare model depends on this parameter."""
    return any(name in parameter for name in UNUSED)


@dataclass(frozen=True)
class NewHead:
    """A head for `labels` (none: one output, a regression) of texts or of tokens, with first weights drawn by `seed`."""

    labels: tuple[str, ...]
    tokens: bool = False
    seed: int = 0

    @property
    def kind(self) -> str:
        """ "Token" or "Sequence", as in the names of transformers' classes."""
        return "Token" if self.tokens else "Sequence"

    @property
    def names(self) -> tuple[str, ...]:
        """What the outputs mean."""
        return self.labels or (VALUE,)

    def settings(self) -> dict[str, Any]:
        """What the config says about the labels."""
        names = dict(enumerate(self.names))
        return {
            "num_labels": len(names),
            "id2label": names,
            "label2id": {name: place for place, name in names.items()},
            "problem_type": "single_label_classification" if self.labels else "regression",
        }

    def means(self, id2label: Mapping[Any, str]) -> bool:
        """Whether outputs with these names are this head's, in its order; one output without a name is a regression's."""
        stored = [plain(name) for name in in_order_of_outputs(id2label)]
        unnamed = not self.labels and len(stored) == 1 and GENERIC.fullmatch(stored[0]) is not None
        return unnamed or stored == [plain(name) for name in self.names]


def load_with_head(
    source: str, head: NewHead, *, config: Any, dtype: Any, options: dict[str, Any], notice: Callable[[str], None]
) -> "nn.Module":
    """The model in `source` with `head`; `config` is the stored one, `options` go to from_pretrained.

    A stored head is kept where it is of the same class and its outputs bear the same names in the same order; a new one
    takes the place of any other, and `notice` is told. What a masked-LM head shares with a classifier is kept (ModernBERT).

    Raises:
        BadInput: the family has no such head. BadFile: the file lacks more than a head.
    """
    import torch

    transformers = need("transformers", "models", "running a model")
    automatic = getattr(transformers, f"AutoModelFor{head.kind}Classification")
    known = getattr(transformers, f"MODEL_FOR_{head.kind.upper()}_CLASSIFICATION_MAPPING")
    if type(config) not in known and automatic.__name__ not in (getattr(config, "auto_map", None) or {}):
        raise BadInput(
            f"{source}: model_type {config.model_type!r} has no {head.kind.lower()} classification head in transformers, so "
            f"it cannot be fine-tuned on this task; use another model"
        )
    named = str((getattr(config, "architectures", None) or [""])[0])
    same = head.means(config.id2label)
    hub = {key: value for key, value in options.items() if key != "attn_implementation"}
    wanted = transformers.AutoConfig.from_pretrained(source, **hub, **head.settings())
    refuse_claims(automatic, source, wanted, options)
    with torch.random.fork_rng():
        torch.manual_seed(head.seed)
        model, info = automatic.from_pretrained(
            source, config=wanted, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
        body = f"{model.base_model_prefix}."
        mismatched = {key for key, *_ in info["mismatched_keys"]}
        _check_body(source, model, info["missing_keys"], mismatched)
        absent = {*info["missing_keys"], *mismatched}
        stored = [key for key in model.state_dict() if not key.startswith(body) and key not in absent]
        if stored and (not named or named.endswith(CLASSIFIERS)):
            said = ", ".join(in_order_of_outputs(config.id2label)[:6])
            if same and named == type(model).__name__:
                notice(f"{source}: goes on with its stored head for {said}")
            else:
                notice(f"{source}: its head for {said} gives way to a new one for {', '.join(head.names[:6])}")
                fresh = automatic.from_config(wanted, trust_remote_code=options["trust_remote_code"]).state_dict()
                values = model.state_dict()
                for key in stored:
                    values[key].copy_(fresh[key])
    return model


def _check_body(source: str, model: "nn.Module", missing: Any, mismatched: set[str]) -> None:
    body = f"{model.base_model_prefix}."
    lost = [key for key in missing if not key.endswith(BUFFERS) and not is_unused(key) and key.startswith(body)]
    lost = sorted([*lost, *(key for key in mismatched if key.startswith(body))])
    if lost:
        raise BadFile(
            f"{source}: its weights lack {len(lost)} parameters of {type(model).__name__} ({', '.join(lost[:3])}"
            f"{', …' if len(lost) > 3 else ''}); fetch or save the whole model"
        )


def check_values(name: str, model: "nn.Module", dtype: str) -> None:
    """Raise BadFile where a parameter holds NaN or infinity: every number of such a model would be none."""
    import torch

    for parameter, values in model.named_parameters():
        if values.is_meta or not values.numel() or values.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            continue
        if not torch.stack(torch.aminmax(values.detach())).isfinite().all():  # both are NaN where a value is
            damaged = "the weights are damaged; fetch or train them again"
            what = f"beyond float16, or {damaged}; try --dtype float32" if dtype == "float16" else damaged
            raise BadFile(f"{name}: {parameter} holds NaN or infinity: {what}")


def agree_on_padding(model: Any, tokenizer: Any) -> None:
    """Have the model's config name the tokenizer's padding, where a sequence head finds the last token by it.

    GPT-2-like heads read the last token that is no padding: without a padding token they refuse batches, with another one
    than the tokenizer's they read a padded place. Encoders find their tokens by the mask or by place.
    """
    if tokenizer is None or not type(model).__name__.endswith("ForSequenceClassification"):
        return
    text = model.config.get_text_config()
    if getattr(text, "pad_token_id", None) is None or hasattr(model, "score"):  # so the last-token heads are called
        text.pad_token_id = tokenizer.pad_token_id


def padding_side(model: Any) -> str:
    """Where batches for `model` are padded, "right" or "left", so that padding changes no prediction.

    On the left, absolute positions would shift; on the right, a head that reads the last position would read padding.
    """
    row = family_of({"model_type": getattr(model.config, "model_type", "")})
    return "left" if row.head_reads_last else "right"
