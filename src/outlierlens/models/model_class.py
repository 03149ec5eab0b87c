"""Which configuration a model has, which class of transformers it is loaded as, and its head for labels.

    config = config_of("runs/old-bert", None, common, print)       # by the tensors where config.json names no family
    refuse_claims(BertModel, "runs/bert", config, {"subfolder": ""})     # its promises held against the files beside it
    model = load_class("runs/old-bert", config, torch.float32, common)

A head is the stored one where it means the same labels, else a new one.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import outlierlens.architectures as arch
from outlierlens.architectures import family_of, live_parameters
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.adapter import Adapter
from outlierlens.checkpoints.formats import native
from outlierlens.data.labelled.labels import GENERIC, in_order_of_outputs, plain_label
from outlierlens.errors import BadFile, BadInput, UnknownArchitecture, need
from outlierlens.models import variants

if TYPE_CHECKING:
    from torch import nn

    from outlierlens.models.block_weights import BlockReader

SPARE = 20_000_000  # parameters that files may lack altogether: 80 MB
MAX_DEPTH = 2000  # layers; the deepest Transformer that was published has 1,000
MAX_LABELS = 250_000  # classes of a head; the largest that was published tells 200,000 landmarks apart
_LABELS = re.compile(r"^_?num_labels$")
_DEPTH = re.compile(r"(^|_)(layers?|n_layer|depth|blocks)$")


def refuse_claims(cls: Any, source: str, config: Any, options: dict[str, Any]) -> None:
    """Raise BadFile where a config makes a far larger model than the files can hold: it would be built, and filled, first."""
    torch = need("torch", "models", "running a model")
    deepest = max(_numbers(config.to_dict(), _DEPTH), default=0)
    if deepest > MAX_DEPTH:
        raise BadFile(f"{source}: config.json says {deepest:,.6g} layers, more than {MAX_DEPTH:,}; fetch it again")
    folder = Path(source) / options["subfolder"]
    if not folder.is_dir():
        return
    held = sum(file.stat().st_size for row in native() for file in folder.glob(f"*{row.ending}") if file.is_file())
    try:
        with torch.device("meta"):
            trusted = {"trust_remote_code": options["trust_remote_code"]}  # not said, transformers would ask
            model = cls(config) if hasattr(cls, "config_class") else cls.from_config(config, **trusted)
    except Exception:
        return  # loading says what is wrong
    wanted = sum(parameter.numel() for parameter in model.parameters())
    if wanted > SPARE + 8 * held:  # no format has more than a weight a bit
        raise BadFile(
            f"{source}: config.json asks for {wanted:,} parameters, and the weight files have {held:,} bytes; use the "
            f"config.json that belongs to these weights"
        )


def refuse_labels(source: str, given: Any) -> None:
    """Raise BadFile where a config.json names more labels than any head has: each gets a name before a model is made."""
    most = max(_numbers(given, _LABELS), default=0)
    if most > MAX_LABELS:
        raise BadFile(f"{source}: config.json says {most:,} labels, more than {MAX_LABELS:,}; fetch it again")


def _numbers(config: Any, keys: re.Pattern[str]) -> Iterator[int]:
    """Every whole number under such a key of a config, in those of its parts too."""
    if isinstance(config, dict):
        for key, value in config.items():
            if isinstance(value, int) and keys.search(str(key)):
                yield value
            yield from _numbers(value, keys)


# --- heads for labels ------------------------------------------------------------------------------------------------

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
        stored = [plain_label(name) for name in in_order_of_outputs(id2label)]
        unnamed = not self.labels and len(stored) == 1 and GENERIC.fullmatch(stored[0]) is not None
        return unnamed or stored == [plain_label(name) for name in self.names]


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
        lost = [key for key in info["missing_keys"] if not key.endswith(BUFFERS) and not is_unused(key)]
        if lost := sorted(key for key in (*lost, *mismatched) if key.startswith(body)):
            raise BadFile(
                f"{source}: its weights lack {len(lost)} parameters of {type(model).__name__} ({_first(lost)}); fetch or save "
                f"the whole model"
            )
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


def spread_out(
    device_map: str | Mapping[str, Any] | None, beside: Mapping[str, Any]
) -> "tuple[dict[str, Any], TemporaryDirectory[str] | None]":
    """What from_pretrained is given to spread weights out, and a folder for those that accelerate writes in another form.

    Raises:
        BadInput: something is given `beside` it that needs weights in other places.
    """
    if device_map is None:
        return {}, None
    if others := ", ".join(name for name, given in beside.items() if given):
        raise BadInput(f"device_map spreads the weights of a model as stored, and goes with no {others}; leave one out")
    folder = TemporaryDirectory(prefix="outlierlens-")
    return {"device_map": device_map, "offload_folder": folder.name}, folder


def check_values(name: str, model: "nn.Module", dtype: str) -> None:
    """Raise BadFile where a parameter holds NaN or infinity: every number of such a model would be none."""
    import torch

    for parameter, values in live_parameters(model).items():
        if values.is_meta or not values.numel() or values.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            continue
        if not torch.stack(torch.aminmax(values.detach())).isfinite().all():  # both are NaN where a value is
            damaged = "the weights are damaged; fetch or train them again"
            what = f"beyond float16, or {damaged}; try --dtype float32" if dtype == "float16" else damaged
            raise BadFile(f"{name}: {parameter} holds NaN or infinity: {what}")


def put_on(model: "nn.Module", adapter: Adapter) -> str:
    """Add an adapter to the weights of a model in memory, in float32 and rounded once; what results say of it.

    A parameter that several modules share becomes one of their own in the module that is changed, as it is where peft runs it.

    Raises:
        BadFile: the adapter does not fit; a weight holds a quantizer's codes; or it brings a module that the model lacks.
    """
    import torch

    live = live_parameters(model)
    shapes = {name: tuple(values.shape) for name, values in live.items()}
    changes = adapter.changes(shapes, shapes.__getitem__)
    if lacking := sorted(changes.keys() - live.keys()):
        raise BadFile(
            f"{adapter.folder}: brings {_first(lacking)}, which {type(model).__name__} does not have; name the model with the "
            f"head that the adapter was trained on"
        )
    for name, change in changes.items():
        old, (module, _, leaf) = live[name], name.rpartition(".")
        if not old.is_floating_point():
            raise BadFile(f"{adapter.folder}: {name} is stored as {old.dtype}; name the model in full precision")
        wide = old.detach().cpu().to(torch.promote_types(old.dtype, torch.float32))
        values = torch.from_numpy(change.made(wide.numpy())).to(old)
        setattr(model.get_submodule(module), leaf, torch.nn.Parameter(values, requires_grad=old.requires_grad))
    now, config = live_parameters(model), getattr(model, "config", None)
    if config is not None and any(live[a] is live[b] and now[a] is not now[b] for a in changes for b in live):
        config.tie_word_embeddings = False
    return adapter.note(changes, len({id(values) for values in live.values()}))


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


# --- configuration and class -----------------------------------------------------------------------------------------

OF_LABELS = {"SEQ_CLS": "SEQUENCE", "TOKEN_CLS": "TOKEN"}  # peft's words for tasks -> transformers' for classes
LANGUAGE_MODELS = ("AutoModelForMaskedLM", "AutoModelForCausalLM")
NOT_OF_A_FAMILY = ("auto_map", "torch_dtype", "quantization_config")


def config_of(source: str, family: str | None, common: dict[str, Any], notice: Callable[[str], None]) -> Any:
    """The model's configuration: the one that config.json names, whatever `family` is asked for.

    Where it names none, or one that transformers does not have, it is that of the `family`, or of the one that the tensors
    fit; `notice` is told, and which settings of config.json that family does not have.

    Raises:
        UnknownArchitecture: the tensors fit no family, or several.
    """
    transformers = need("transformers", "models", "running a model")
    local = Path(source).exists()
    given = transformers.PretrainedConfig.get_config_dict(source, **common)[0] if local or family else {}
    refuse_labels(source, given)
    own = given.get("model_type")
    theirs = "AutoConfig" in (given.get("auto_map") or {}) and common["trust_remote_code"]
    if family is not None and isinstance(own, str) and (own in transformers.CONFIG_MAPPING or theirs):
        if own != family:
            notice(
                f"{source}: its config says {own}; the row of {family} says where streams are, and what runs is {own}"
            )
        family = None
    if family is None and (not given or isinstance(own, str)):
        return transformers.AutoConfig.from_pretrained(source, **common)
    if family is None:
        with open_checkpoint(source, offline=True) as checkpoint:
            found = arch.families(checkpoint.tensors, given, source)
        # Several families share their streams, and compute differently: word pieces are BERT's, of those that share its.
        folder, files = Path(source) / common["subfolder"], {one: arch.ARCHITECTURES[one].vocabulary for one in found}
        if len(found) > 1:
            found = tuple(one for one in found if files[one] and (folder / files[one]).is_file()) or found
        if len(found) > 1:
            raise UnknownArchitecture(
                f"{source}: no model_type in its config, and its tensors could be of {', '.join(found)}; say which, such as "
                f"--model-args family={found[0]}"
            )
        (family,) = found
        notice(f"{source}: {arch.no_model_type(found)}")
    else:
        notice(
            f"{source}: its config says {own or 'no model_type'}; what runs is the model of {family} in transformers"
        )
    plain_label = transformers.CONFIG_MAPPING[family]()
    left = sorted(key for key in given if key not in NOT_OF_A_FAMILY and not hasattr(plain_label, key))
    if left:
        notice(
            f"{source}: {family} has no setting {', '.join(left)}, so what config.json says there is not in the model"
        )
    used = {key: one for key, one in given.items() if key not in left and key != "model_type"}
    return transformers.AutoConfig.for_model(family, **used)


def load_class(
    source: str,
    config: Any,
    dtype: Any,
    options: dict[str, Any],
    adapter: Adapter | None = None,
    reader: "BlockReader | None" = None,
) -> "nn.Module":
    """The model in `source`, as the first class of `config` whose head is stored, or bare; see `models.load_model`.

    With an `adapter` it is the class of the head that this brings, whose values are random until it is `put_on`. With a
    `reader` no weights of blocks are read.

    Raises:
        BadFile: weights that are missing, or of another shape than the config says.
    """
    transformers = need("transformers", "models", "running a model")
    library: Any = transformers
    if getattr(config, "model_type", None) in variants.MODEL_TYPES:
        variants.register()
        from outlierlens.models.variants import model as library
    brought = {} if adapter is None else _with_head(config, adapter)
    theirs = {str(place).rpartition(".")[2]: auto for auto, place in (getattr(config, "auto_map", None) or {}).items()}
    for named in _classes(config):
        with_head = getattr(library, named, None)
        if with_head is None and named in theirs and options["trust_remote_code"]:
            with_head = getattr(transformers, theirs[named], None)  # the automatic class runs the code beside the model
        elif not isinstance(with_head, type) or not issubclass(with_head, transformers.PreTrainedModel):
            with_head = None
        if with_head is not None:
            model, lacking = _read(with_head, source, config, dtype, options, reader)
            # A head that is not stored would be random: its outputs would mean nothing.
            if brought.keys() >= {*lacking}:
                return model
    model, lacking = _read(transformers.AutoModel, source, config, dtype, options, reader)
    unused = [key for key in lacking if is_unused(key)]
    lacking = [key for key in lacking if key not in unused]
    if lacking:
        raise BadFile(
            f"{source}: its weights lack {len(lacking)} parameters of {type(model).__name__} ({_first(lacking)}), which "
            f"would be random; fetch or save the whole model, or correct config.json if it promises too much"
        )
    for key in unused:
        model.state_dict()[key].zero_()
    return model


def _with_head(config: Any, adapter: Adapter) -> dict[str, tuple[int, ...]]:
    """The parameters of the head that an adapter for labels brings, which `config` then names, with a label for each output."""
    kind, heads = OF_LABELS.get(adapter.task, ""), adapter.heads
    auto: Any = need("transformers.models.auto.modeling_auto", "models", "running a model")
    named = getattr(auto, f"MODEL_FOR_{kind}_CLASSIFICATION_MAPPING_NAMES", {}).get(config.model_type)
    outputs = [shape[0] for shape in heads.values() if len(shape) == 2]
    if named is None or not outputs:
        return {}
    config.architectures, config.num_labels = [named], min(outputs)
    return heads


def _classes(config: Any) -> tuple[str, ...]:
    """Names of classes with a head to try; where the config names none, those of the family's language models."""
    if named := getattr(config, "architectures", None):
        # A pre-training class adds a head of its own (next sentence, replaced tokens) to the masked-LM head.
        return (str(named[0]).replace("ForPreTraining", "ForMaskedLM"),)
    if getattr(config, "is_encoder_decoder", False):
        return ()
    places = getattr(config, "auto_map", None) or {}
    if found := tuple(places[auto].rpartition(".")[2] for auto in LANGUAGE_MODELS if auto in places):
        return found
    auto = need("transformers.models.auto.modeling_auto", "models", "running a model")
    tables = (auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    return tuple(table[config.model_type] for table in tables if config.model_type in table)


def _read(
    cls: Any, source: str, config: Any, dtype: Any, options: dict[str, Any], reader: "BlockReader | None"
) -> tuple["nn.Module", list[str]]:
    """The model as class `cls` and the names of the parameters that the files lack; raises BadFile for wrong shapes."""
    refuse_claims(cls, source, config, options)
    if reader is not None:
        model, info = reader(cls, config, dtype, options)
    else:
        model, info = cls.from_pretrained(
            source, config=config, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    wrong = [f"{key} {tuple(stored)} for {tuple(wanted)}" for key, stored, wanted in sorted(info["mismatched_keys"])]
    if wrong:
        raise BadFile(
            f"{source}: {len(wrong)} weights have another shape than config.json says (stored for expected: "
            f"{_first(wrong)}); use the config.json that belongs to these weights"
        )
    return model, sorted(key for key in info["missing_keys"] if not key.endswith(BUFFERS))


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def takes_alone(module: "nn.Module", argument: str) -> bool:
    """Whether a module can be called with this argument and nothing else."""
    parameters = inspect.signature(module.forward).parameters
    needed = (
        name for name, one in parameters.items() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    )
    return argument in parameters and not {*needed} - {argument}
