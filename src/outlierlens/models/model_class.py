"""Which configuration a model has and which class of transformers it is loaded as.

config = config_of("runs/old-bert", None, common, print)       # by the tensors where config.json names no family
model = load_class("runs/old-bert", config, torch.float32, common)
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlierlens import architectures as arch
from outlierlens.checkpoints import open_checkpoint
from outlierlens.errors import BadFile, UnknownArchitecture, need
from outlierlens.models import variants
from outlierlens.models.claims import refuse_claims, refuse_labels
from outlierlens.models.heads import BUFFERS, is_unused

if TYPE_CHECKING:
    from torch import nn

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
                f"--family {found[0]}"
            )
        (family,) = found
        notice(f"{source}: {arch.no_model_type(found)}")
    else:
        notice(
            f"{source}: its config says {own or 'no model_type'}; what runs is the model of {family} in transformers"
        )
    plain = transformers.CONFIG_MAPPING[family]()
    left = sorted(key for key in given if key not in NOT_OF_A_FAMILY and not hasattr(plain, key))
    if left:
        notice(
            f"{source}: {family} has no setting {', '.join(left)}, so what config.json says there is not in the model"
        )
    used = {key: one for key, one in given.items() if key not in left and key != "model_type"}
    return transformers.AutoConfig.for_model(family, **used)


def load_class(source: str, config: Any, dtype: Any, options: dict[str, Any]) -> "nn.Module":
    """The model in `source`, as the first class of `config` whose head is stored, or bare; see `models.load_model`.

    Raises:
        BadFile: weights that are missing, or of another shape than the config says.
    """
    transformers = need("transformers", "models", "running a model")
    library = transformers
    if getattr(config, "model_type", None) == variants.MODEL_TYPE:
        variants.register()
        library = variants
    theirs = {str(place).rpartition(".")[2]: auto for auto, place in (getattr(config, "auto_map", None) or {}).items()}
    for named in _classes(config):
        with_head = getattr(library, named, None)
        if with_head is None and named in theirs and options["trust_remote_code"]:
            with_head = getattr(transformers, theirs[named], None)  # the automatic class runs the code beside the model
        elif not isinstance(with_head, type) or not issubclass(with_head, transformers.PreTrainedModel):
            with_head = None
        if with_head is not None:
            model, lacking = _read(with_head, source, config, dtype, options)
            # A head that is not stored would be random: its outputs would mean nothing.
            if not lacking:
                return model
    model, lacking = _read(transformers.AutoModel, source, config, dtype, options)
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


def _read(cls: Any, source: str, config: Any, dtype: Any, options: dict[str, Any]) -> tuple["nn.Module", list[str]]:
    """The model as class `cls` and the names of the parameters that the files lack; raises BadFile for wrong shapes."""
    refuse_claims(cls, source, config, options)
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
