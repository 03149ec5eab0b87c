"""A small random model with the structure that a config describes, and inputs that it takes.

tiny = tiny_model(config)        # fewer layers, narrower, random weights; needs transformers, no weights, no network
tiny.run()                       # one forward pass
"""

import inspect
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.architectures.stack import Config
from outlierlens.errors import UnknownArchitecture

if TYPE_CHECKING:
    from torch import nn

LAYERS = 3  # the fewest that have a first, a middle and a last
WIDTH = 64
N_INPUTS = 2
N_TOKENS = 7
MAX_PARAMETERS = 100_000_000  # 400 MB

MAX_LAYERS_AS_IS = 256
_LAYER_KEYS = {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers"}
_LAYER_KEYS |= {"decoder_layers"}
_WIDTH_KEYS = {"hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"}
_HEAD_KEYS = {"num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"}
_KEY_HEAD_KEYS = {"num_key_value_heads", "num_kv_heads"}
_HEAD_KEYS |= {"decoder_attention_heads", *_KEY_HEAD_KEYS}
_HEAD_WIDTH_KEYS = {"head_dim", "d_kv"}
_INNER_KEYS = {"intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim"}
_INNER_KEYS |= {"moe_intermediate_size", "ffn_hidden_size", "d_inner", "shared_expert_intermediate_size"}
_COUNT_KEYS = {"num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}
_COUNT_KEYS |= {"vocab_size": 512, "max_source_positions": 16}
# What says where a model came from or how it is stored, and lists that name its layers one by one.
_DROPPED = {"auto_map", "quantization_config", "torch_dtype", "dtype", "_name_or_path", "architectures"}
_DROPPED |= {"out_features", "out_indices", "stage_names"}


@dataclass(frozen=True)
class TinyModel:
    """A running stand-in for the model of the config `whole`: `changes` says in words what was made smaller."""

    model: "nn.Module"
    inputs: dict[str, Any]
    config: dict[str, Any]
    changes: str
    whole: Config

    def run(self) -> None:
        """One forward pass."""
        import torch

        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model(**self.inputs)


def tiny_model(config: Config) -> TinyModel:
    """The model of `config`, as small as it can be made without changing its kind, that runs on made-up inputs.

    Code that comes with a model is never run: `model_type` must be one that transformers itself has.

    Raises:
        UnknownArchitecture: transformers does not know the family, or no small version of it runs.
    """
    import transformers

    from outlierlens.models import variants

    variants.register()
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise UnknownArchitecture(
            f"transformers {transformers.__version__} has no model_type {model_type!r}, so no model can be built from "
            "this config; write the row by hand as TOML, or upgrade transformers"
        )
    reasons = []
    for changes, smaller in _smaller(config):
        try:
            model = _build(smaller)
        except Exception as error:
            reasons.append(f"{changes}: {_first_line(error)}")
            continue
        for inputs in _inputs(model):
            tiny = TinyModel(model, inputs, smaller, changes, config)
            try:
                tiny.run()
            except Exception as error:
                reasons.append(f"{changes}, given {' and '.join(inputs)}: {_first_line(error)}")
                continue
            return tiny
    raise UnknownArchitecture(
        f"no small version of this {model_type} config runs ({'; '.join(reasons[:3])}); write the row by hand as TOML"
    )


def count_blocks(config: Config, path: str) -> int | None:
    """How many blocks the list `path` has in the model of `config`, built without memory; None when it cannot be."""
    import torch

    try:
        with torch.device("meta"):
            model = _bare(config)
        return len(list(model.get_submodule(path).children()))
    except Exception:
        return None


def full_names(config: Config) -> list[str] | None:
    """Parameter names of the whole model, built without memory; None when that is not possible."""
    import torch

    if not _few_layers(config):
        return None
    try:
        with torch.device("meta"):
            return [name for name, _ in _bare(config).named_parameters()]
    except Exception:
        return None


def _build(config: Config) -> "nn.Module":
    import torch

    with torch.device("meta"):
        n_parameters = sum(parameter.numel() for parameter in _bare(config).parameters())
    if n_parameters > MAX_PARAMETERS:
        raise UnknownArchitecture(f"{n_parameters:,} parameters are more than {MAX_PARAMETERS:,}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _bare(config).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                # Initial scales of 1 and biases of 0 would hide what they do.
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def _bare(config: Config) -> "nn.Module":
    from transformers import AutoConfig, AutoModel

    values = json.loads(json.dumps(dict(config)))
    for key in _DROPPED:
        values.pop(key, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = AutoConfig.for_model(values.pop("model_type"), **values)
        model: nn.Module = AutoModel.from_config(made, attn_implementation="eager", trust_remote_code=False)
    return model


def _smaller(config: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what was changed, config), the smallest first."""
    # A config file may leave out what has the family's default value.
    from transformers import AutoConfig

    values = {key: value for key, value in config.items() if key not in ("model_type", "auto_map")}
    try:
        full = AutoConfig.for_model(config["model_type"], **json.loads(json.dumps(values))).to_dict()
    except Exception:
        full = dict(config)
    for width, words in ((WIDTH, "fewer layers, narrower"), (None, "fewer layers, fewer heads")):
        smaller = _shrink(full, width)
        if smaller != full:
            yield words, smaller
    if _shrink_layers(full) != full:
        yield "fewer layers", _shrink_layers(full)
    if _few_layers(full):
        yield "as it is", full


def _few_layers(config: Config) -> bool:
    """Whether a model may be built with the number of layers that the config says."""
    return not any(isinstance(config.get(key), int) and config[key] > MAX_LAYERS_AS_IS for key in _LAYER_KEYS)


def _shrink_layers(config: dict[str, Any]) -> dict[str, Any]:
    counts = {config[key] for key in _LAYER_KEYS & config.keys() if isinstance(config[key], int)}
    smaller: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            smaller[key] = _shrink_layers(value)
        elif key in _LAYER_KEYS and isinstance(value, int):
            smaller[key] = min(value, LAYERS)
        elif isinstance(value, list) and len(value) in counts and len(value) > LAYERS and "layer" in key:
            smaller[key] = value[:LAYERS]
        else:
            smaller[key] = value
    return smaller


def _shrink(config: dict[str, Any], new_width: int | None) -> dict[str, Any]:
    """Fewer layers, heads and experts in a stream of `new_width`; None leaves heads as wide as they are."""
    smaller = _shrink_layers(config)
    smaller |= {key: _shrink(value, new_width) for key, value in config.items() if isinstance(value, dict)}
    width = next((config[key] for key in ("hidden_size", "d_model", "n_embd", "dim") if config.get(key)), None)
    heads = next((config[key] for key in sorted(_HEAD_KEYS - _KEY_HEAD_KEYS) if config.get(key)), None)
    if not isinstance(width, int) or not isinstance(heads, int) or width <= WIDTH:
        return smaller
    target = new_width or 4 * int(config.get("head_dim") or width // heads)
    for key, value in smaller.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if key in _WIDTH_KEYS:
            smaller[key] = max(16, target * value // width)
        elif key in _HEAD_KEYS:
            smaller[key] = 4 if value == heads else 1 if value == 1 else 2
        elif key in _HEAD_WIDTH_KEYS and new_width:
            smaller[key] = new_width // 4
        elif key in _INNER_KEYS:
            smaller[key] = target * 3 // 2
        elif key in _COUNT_KEYS:
            smaller[key] = min(value, _COUNT_KEYS[key])
    vocabulary = smaller.get("vocab_size")
    for key, value in smaller.items():
        if key.endswith("_token_id") and isinstance(value, int) and isinstance(vocabulary, int) and value >= vocabulary:
            smaller[key] = 0
    return smaller


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from logging and drawing progress bars about a model that is not the user's."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _inputs(model: "nn.Module") -> Iterator[dict[str, Any]]:
    """Inputs that the model may take, the likeliest first."""
    import torch

    random = torch.Generator().manual_seed(0)
    config: Any = model.config
    text, vision = (getattr(config, f"{part}_config", None) or config for part in ("text", "vision"))
    takes = inspect.signature(model.forward).parameters
    n_words = getattr(text, "vocab_size", 0) or 100
    ids = torch.randint(min(5, n_words // 2), n_words, (N_INPUTS, N_TOKENS), generator=random)
    decoder = {"decoder_input_ids": ids[:, :5]} if "decoder_input_ids" in takes else {}

    def image() -> dict[str, Any]:
        size = getattr(vision, "image_size", 32)
        height, breadth = size if isinstance(size, list | tuple) else (size, size)
        shape = (N_INPUTS, getattr(vision, "num_channels", 3), height, breadth)
        return {"pixel_values": torch.randn(shape, generator=random)}

    def features() -> dict[str, Any]:
        n_frames = 2 * getattr(config, "max_source_positions", 50)
        shape = (N_INPUTS, getattr(config, "num_mel_bins", 80), n_frames)
        return {"input_features": torch.randn(shape, generator=random), **decoder}

    makers: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("input_values", lambda: {"input_values": torch.randn(N_INPUTS, 1200, generator=random)}),
        ("input_features", features),
        ("pixel_values", lambda: {**image(), "input_ids": ids} if "input_ids" in takes else image()),
        ("input_ids", lambda: {"input_ids": ids, "attention_mask": torch.ones_like(ids), **decoder}),
    ]
    cache = {"use_cache": False} if "use_cache" in takes else {}
    for name, make in makers:
        if name in takes:
            yield {**make(), **cache}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"[:200]
