"""A config made smaller without changing its kind: fewer layers, narrower, fewer words and experts.

    config = config_object(table)                      # as transformers holds it
    shallow, unseen = fewer_layers(config, made)       # as few as have every kind of block of a `made` model
    for words, narrower in smaller_configs(shallow): ...   # the smallest first

What the whole model looks like is seen without memory, on the meta device.
"""

import copy
import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from outlierlens.architectures.stack import BY_HAND, WIDTHS, Config
from outlierlens.errors import UnknownArchitecture

if TYPE_CHECKING:
    from torch import nn

LAYERS = 3  # the fewest that have a first, a middle and a last
MAX_LAYERS = 16  # of kinds of blocks that begin later nothing is seen
WIDTH = 64
PATCHES = 64  # of a picture, or of a video
PICTURES = "smaller pictures"  # of what was changed
LEAST = 16  # dimensions of a stream
# Of layers, heads, experts: a config that asks for more is not believed, for a module would be built for each.
MAX_COUNT, MAX_LAYERS_BELIEVED = 65_536, 4096
_COUNTED = ("layer", "depth", "block", "expert", "stage", "head", "group", "codebook", "level")
_NO_COUNT = ("size", "dim", "length", "capacity", "position", "token", "vocab", "_id")

_WIDTH_KEYS = {*WIDTHS, "embedding_size", "word_embed_proj_dim", "embed_dim"}
_KEY_HEAD_KEYS = {"num_key_value_heads", "num_kv_heads"}
_HEAD_KEYS = {"num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", *_KEY_HEAD_KEYS}
_HEAD_KEYS |= {"decoder_attention_heads"}
_HEAD_WIDTH_KEYS = {"head_dim", "d_kv", "d_head"}
_INNER_KEYS = {"intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim"}
_INNER_KEYS |= {"moe_intermediate_size", "ffn_hidden_size", "d_inner", "shared_expert_intermediate_size"}
_FEW = dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4)
_FEW |= dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k"), 2)
_FEW |= {
    "n_group": 2,
    "num_expert_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "zero_expert_num": 2,
}
_FEW |= {"linear_num_heads": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2}  # of attention that is linear
_FEW |= dict.fromkeys(("linear_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 16)
_FEW |= {"max_source_positions": 16, "mamba_chunk_size": 8, "chunk_size": 8}
_MANY = 4096  # words, positions: as many as this are cut to `_WORDS`
_WORDS = 512
# What says where a model came from or how it is stored, and lists that name its layers one by one.
_DROPPED = {"auto_map", "quantization_config", "torch_dtype", "dtype", "_name_or_path", "transformers_version"}
_BY_LAYER = {"out_features", "out_indices", "stage_names"}
_DROPPED |= _BY_LAYER


def config_object(config: Config) -> Any:
    """`config` as transformers holds it.

    Raises:
        UnknownArchitecture: transformers does not know the family, or refuses a value.
    """
    import transformers

    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise UnknownArchitecture(
            f"transformers {transformers.__version__} has no model_type {model_type!r}, so no model can be built from "
            f"this config; upgrade transformers, or {BY_HAND}"
        )
    _check_counts(dict(config))  # before a list is made of so many
    kind: Any = transformers.CONFIG_MAPPING[model_type]
    values = {key: _number(value) for key, value in config.items() if key not in _DROPPED}
    try:
        return kind.from_dict(copy.deepcopy(values))
    except Exception as error:
        first = error
    # A file may hold what transformers wrote and does not take back: endless limits, tuples that JSON made lists.
    try:
        default = values_of(kind())
        kept = {key: value for key, value in values.items() if default.get(key) != value}
        return kind.from_dict(copy.deepcopy(kept))
    except Exception:
        raise UnknownArchitecture(
            f"transformers {transformers.__version__} takes no such {model_type} config ({first_line(first)})"
        ) from first


def _number(value: Any) -> Any:
    """A value of a config file with the endless numbers that transformers writes as tables."""
    if isinstance(value, dict):
        return (
            float(value["__float__"])
            if value.keys() == {"__float__"}
            else {key: _number(one) for key, one in value.items()}
        )
    return [_number(one) for one in value] if isinstance(value, list) else value


def values_of(config: Any) -> dict[str, Any]:
    """The values of a config as JSON has them."""
    values: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return values


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2]) or 'no message'}"[:240]


def bare_model(made: Any, config: Any) -> "nn.Module":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: nn.Module = made._from_config(copy.deepcopy(config), attn_implementation="eager")
    return model


# --- fewer layers ----------------------------------------------------------------------------------------------------


def fewer_layers(full: Any, made: Any) -> tuple[Any, tuple[str, ...]]:
    """(`full` with the fewest layers that hold every kind of block of a `made` model, names of the other kinds)."""
    lists = block_lists(made, full)
    config, unseen = full, []
    for path, kinds in lists.items():
        needed = max(LAYERS, max(kinds.index(kind) for kind in kinds) + 1)
        if needed > MAX_LAYERS:
            unseen.append(
                f"{path} has kinds of blocks that begin after block {MAX_LAYERS - 1}; nothing was seen of them"
            )
            needed = MAX_LAYERS
        now = len(block_lists(made, config).get(path, ())) if config is not full else len(kinds)
        if now > needed:
            config, _ = with_fewer(made, config, path, now, needed)
    return config, tuple(unseen)


def _check_counts(config: Any) -> None:
    """Raise UnknownArchitecture for more of what is counted than any model has."""
    for node in nodes(config):
        for key, value in items(node):
            name = str(key)
            if not any(word in name for word in _COUNTED) or any(word in name for word in _NO_COUNT):
                continue
            most = MAX_LAYERS_BELIEVED if "layer" in name else MAX_COUNT
            each = value if isinstance(value, list | tuple) else (value,)
            if len(each) > most or any(type(one) is int and one > most for one in each):
                raise UnknownArchitecture(f"{key} is over {most:,}, more than any model has; correct the config")


def block_lists(made: Any, config: Any, least: int = 2) -> dict[str, list[frozenset[str]]]:
    """{path of a list of blocks: the kind of each, which is the names of its parameters}, built without memory.

    Of lists that have `least` blocks.
    """
    import torch
    from torch import nn

    with torch.device("meta"):
        model = bare_model(made, config)
    found: dict[str, list[frozenset[str]]] = {}
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or any(path.startswith(f"{outer}.") for outer in found):
            continue
        kinds = [frozenset(name for name, _ in child.named_parameters()) for child in module]
        if len(kinds) >= least and any(len(kind) > 2 for kind in kinds):
            found[path] = kinds
    return found


def with_fewer(made: Any, config: Any, path: str, n: int, few: int) -> tuple[Any, str]:
    """(`config` with `few` blocks in the list `path` in place of `n`, the key that sets them), both as before without one."""
    places = [(node, key) for node, key, value in numbers(config) if value == n]
    places.sort(key=lambda place: not any(word in str(place[1]) for word in ("layer", "depth", "block")))
    if _of_number(
        made, config, path, n, few, None
    ):  # lists of layers alone set it: another number is no number of layers
        places = [place for place in places if any(word in str(place[1]) for word in ("layer", "depth", "block"))]
    for place in (*places, None):
        if found := _of_number(made, config, path, n, few, place):
            return _of_few(found, few), dotted(config, *place) if place else ""
    return config, ""


def _of_number(made: Any, config: Any, path: str, n: int, few: int, place: tuple[Any, Any] | None) -> Any:
    """`config` with lists of `n` cut to `few`, and the number at `place` set to that; None if that is not their number."""
    trial = copy.deepcopy(config)
    try:
        inside = list(nodes(trial))
        if place:
            inside = [same_node(config, trial, place[0])]
            put(inside[0], place[1], few)
        for node in inside:
            for name, value in items(node):
                if (shorter := _shortened(name, value, n, few)) is not value:
                    put(node, name, shorter)
        return trial if len(block_lists(made, trial, few).get(path, ())) == few else None
    except Exception:  # of the family's own code: another number
        return None


def _of_few(config: Any, few: int) -> Any:
    """`config` without the settings of single layers that it no longer has, which transformers keeps beside its values."""

    def shorter(table: dict[str, Any]) -> dict[str, Any]:
        inner = {key: shorter(value) if isinstance(value, dict) else value for key, value in table.items()}
        return {
            key: _shortened(key, value, few + 1, few) if key == "per_layer_config" else value
            for key, value in inner.items()
        }

    values = config.to_dict()
    kept = {key: value for key, value in shorter(values).items() if key not in _BY_LAYER}
    return config if kept == values else type(config).from_dict(kept)


def dotted(config: Any, node: Any, key: Any) -> str:
    """Where a config file has the value `key` of a config or table inside `config`."""
    if config is node:
        return str(key)
    inner = [(name, value) for name, value in items(config) if isinstance(value, dict) or hasattr(value, "to_dict")]
    found = next((name, value) for name, value in inner if any(one is node for one in nodes(value)))
    return f"{found[0]}.{dotted(found[1], node, key)}"


def _shortened(name: Any, value: Any, n: int, few: int) -> Any:
    """A setting of `n` layers for the first `few`: lists and strings of that length, numbers of layers, settings by number."""
    if isinstance(value, list | tuple) and len(value) == n:
        return value[:few]
    if isinstance(value, str) and len(value) == n and "pattern" in str(name):
        return value[:few]
    numbered = isinstance(value, list | tuple) and value and all(type(one) is int and 0 <= one < n for one in value)
    if (
        numbered
        and list(value) == sorted(set(value))
        and any(word in str(name) for word in ("layer", "ind", "idx", "ids"))
    ):
        return type(value)(one for one in value if one < few)
    if isinstance(value, dict) and value and all(str(key).isdecimal() for key in value):
        return {key: one for key, one in value.items() if int(key) < few}
    return value


def nodes(config: Any) -> Iterator[Any]:
    """A config and every config or table inside."""
    yield config
    for _, value in items(config):
        if isinstance(value, dict) or hasattr(value, "to_dict"):
            yield from nodes(value)


def items(node: Any) -> list[tuple[Any, Any]]:
    values = node if isinstance(node, dict) else vars(node)
    return [(key, value) for key, value in values.items() if not str(key).startswith("_")]


def put(node: Any, key: Any, value: Any) -> None:
    if isinstance(node, dict):
        node[key] = value
    else:
        setattr(node, key, value)


def numbers(config: Any) -> list[tuple[Any, Any, int]]:
    """(config or table, key, value) of every whole number."""
    return [(node, key, value) for node in nodes(config) for key, value in items(node) if type(value) is int]


def same_node(config: Any, copied: Any, node: Any) -> Any:
    """The part of `copied` that is `node` in `config`."""
    return next(two for one, two in zip(nodes(config), nodes(copied), strict=True) if one is node)


# --- narrower --------------------------------------------------------------------------------------------------------


def smaller_configs(config: Any) -> Iterator[tuple[str, Any]]:
    """(change, config), the smallest first."""
    ways: tuple[tuple[str, Callable[[Any], None]], ...] = (
        ("narrower", lambda node: _narrow(node, WIDTH)),
        ("fewer heads", lambda node: _narrow(node, None)),
        *((f"narrower heads by {factor}", partial(_divide, factor=factor)) for factor in (64, 32, 16, 8, 4)),
        ("fewer words and experts", _fewer),
    )
    has_pictures = any(_patches(node) > PATCHES for node in nodes(config))
    for (words, change), pictures in product(ways, (True, False) if has_pictures else (False,)):
        smaller = copy.deepcopy(config)
        try:
            for node in nodes(smaller):
                if pictures:
                    _smaller_pictures(node)
                change(node)
                _fewer(node)
            for node in nodes(smaller):
                _known_words(node)
        except Exception:  # a config that checks what is set
            continue
        if values_of(smaller) != values_of(config):
            yield f"{words}, {PICTURES}" if pictures else words, smaller
    yield "", config


def _cut(node: Any) -> tuple[list[int], int, float]:
    """(sides of the pictures that a config or table is for, side of a patch, frames for each patch of a video)."""
    values = dict(items(node))
    side, tube, patch = (values.get(key) for key in ("image_size", "tubelet_size", "patch_size"))
    depth: Any = 1 if tube is None else tube
    if isinstance(depth, list | tuple):
        depth, patch = depth[0], depth[-1]
    patch = patch[-1] if isinstance(patch, list | tuple) else patch or 1
    sides: list[Any] = list(side) if isinstance(side, list | tuple) else [side]
    return (sides if all(type(one) is int for one in (*sides, patch)) else []), patch, depth


def _patches(node: Any) -> float:
    """Patches of the pictures, or videos, that a config or table is for; 0 where it does not say."""
    sides, patch, depth = _cut(node)
    frames = dict(items(node)).get("num_frames") or 1
    return (sides[-1] / patch) ** 2 * max(1, frames / depth) if sides else 0


def _smaller_pictures(node: Any) -> None:
    """Fewer patches: sides are halved while they are even and whole patches are left, then of eight patches."""
    while _patches(node) > PATCHES:
        frames, side = (dict(items(node)).get(key) for key in ("num_frames", "image_size"))
        sides, patch, _ = _cut(node)
        if isinstance(frames, int) and frames > 4 and frames % 2 == 0:
            put(node, "num_frames", frames // 2)
            continue
        halved = all(one % 2 == 0 and one // 2 % patch == 0 for one in sides)
        if not halved and max(sides) <= 8 * patch:
            break
        new = [one // 2 if halved else min(one, 8 * patch) for one in sides]
        put(node, "image_size", type(side)(new) if isinstance(side, list | tuple) else new[0])


def _width(node: Any) -> int:
    values = dict(items(node))
    width = next((values[key] for key in (*WIDTHS, "embed_dim") if values.get(key)), 0)
    return width if isinstance(width, int) else 0


def _narrow(node: Any, new_width: int | None) -> None:
    """Fewer heads in a stream of `new_width`; None leaves heads as wide as they are."""
    values, width = dict(items(node)), _width(node)
    heads = next((values[key] for key in sorted(_HEAD_KEYS - _KEY_HEAD_KEYS) if values.get(key)), None)
    if not width and new_width and {"num_heads", "head_dim"} <= values.keys():  # heads of a kind of their own
        put(node, "num_heads", 4)
        put(node, "head_dim", new_width // 4)
    if not isinstance(heads, int) or width <= WIDTH:
        return
    target = new_width or 4 * int(values.get("head_dim") or width // heads)
    for key, value in values.items():
        if isinstance(value, list) and key in _INNER_KEYS:
            put(node, key, [target * 3 // 2 for _ in value])
        if type(value) is not int:
            continue
        if key in _WIDTH_KEYS:
            put(node, key, max(16, target * value // width))
        elif key in _HEAD_KEYS:
            put(node, key, 4 if value == heads else 1 if value == 1 else 2)
        elif key in _HEAD_WIDTH_KEYS and new_width:
            put(node, key, new_width // 4)
        elif key in _INNER_KEYS:
            put(node, key, target * 3 // 2)


_WIDE = ("size", "dim", "rank", "width", "channels", "d_", "hidden", "intermediate", "inner")
_NOT_WIDE = (
    "num",
    "patch",
    "image",
    "window",
    "kernel",
    "vocab",
    "conv",
    "chunk",
    "position",
    "type",
    "layers",
    "tile",
)


def _divide(node: Any, factor: int) -> None:
    """Every width by the same number where all can be, counts as they are."""
    values = dict(items(node))
    widths = [values[key] for key in _WIDTH_KEYS if type(values.get(key)) is int]
    if 0 < min(widths, default=0) < LEAST * factor:
        raise ValueError(f"a stream of {min(widths)} would become too narrow")
    for key, value in items(node):
        name = str(key)
        counted = name.startswith("n_") or any(word in name for word in _NOT_WIDE)
        wide = any(word in name for word in _WIDE) and not counted
        if type(value) is int and wide and value > 1:
            if value % factor or value // factor < 2:
                raise ValueError(f"{key} = {value} cannot be divided by {factor}")
            put(node, key, value // factor)


def _fewer(node: Any) -> None:
    """Fewer experts, words and positions."""
    for key, value in items(node):
        if type(value) is not int or str(key).endswith(("_id", "_index")):
            continue
        if key in _FEW:
            put(node, key, min(value, _FEW[key]))
        elif value > _MANY and any(
            word in str(key) for word in ("vocab", "position", "num_embeddings", "codebook", "n_words")
        ):
            put(node, key, _WORDS)


def _known_words(node: Any) -> None:
    """Numbers of tokens that the fewer words do not have are those of the last ones."""
    words = dict(items(node)).get("vocab_size")
    last = words if isinstance(words, int) else _WORDS
    for key, value in items(node):
        if str(key).endswith(("_token_id", "_token_index")) and type(value) is int and value >= last:
            last -= 1
            put(node, key, last)
