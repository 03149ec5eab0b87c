"""The bare model up to a layer: heads and the blocks behind it are dropped, its final norm stays.

cut = cut_model(loaded, "2")             # blocks 0, 1 and 2
cut.model.save_pretrained("folder")      # its output is final_norm(output of block 2)

The model shares its parameters with `loaded` and is there to be saved, not run: buffers that no file holds have no values.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import outlierlens.architectures as arch
from outlierlens.architectures import BoundStack
from outlierlens.errors import BadInput, OutlierlensError, UnknownArchitecture
from outlierlens.models.hooks import EMBEDDINGS, layer_name
from outlierlens.models.load import LoadedModel
from outlierlens.vectors.read import text_stack

if TYPE_CHECKING:
    from torch import nn

LAST = "last"


@dataclass(frozen=True)
class Cut:
    """A truncated model.

    Attributes:
        model: bare, float32. layer: whose output it ends with. n_blocks: kept, of `of_blocks`.
        final_norm: whether a final norm stands behind that block.
    """

    model: "nn.Module"
    layer: int
    n_blocks: int
    of_blocks: int
    final_norm: bool

    @property
    def name(self) -> str:
        """ "embeddings", "0", "1", …"""
        return layer_name(self.layer)


def layer_number(stack: BoundStack, asked: str) -> int:
    """ "last", "embeddings" or "2" as a number; raises BadInput for what the stream does not have."""
    if asked == LAST:
        return stack.n_layers - 1
    if asked == "embeddings":
        return EMBEDDINGS
    if not asked.isdecimal() or len(asked) > 9 or int(asked) >= stack.n_layers:
        raise BadInput(f"--layer {asked}: use last, embeddings or a block from 0 to {stack.n_layers - 1}")
    return int(asked)


def cut_model(loaded: LoadedModel, asked: str = LAST) -> Cut:
    """The bare model that ends with layer `asked`, in float32.

    Raises:
        BadInput: no such layer; an encoder-decoder, a model of several streams or one that only this package knows; or a
            family whose first blocks do not make a model of their own.
    """
    import torch
    import transformers

    base = _bare(loaded)
    stack = text_stack(loaded, None)
    layer = layer_number(stack, asked)
    config = _cut_config(base.config, loaded, stack, layer)
    try:
        with torch.device("meta"):
            model = transformers.AutoModel.from_config(config, trust_remote_code=False)
    except Exception as error:  # each family checks its own config, with its own errors
        raise _no_model(loaded, layer, f"{type(error).__name__}: {error}") from error
    if type(model) is not type(base):
        raise BadInput(
            f"{loaded.name}: AutoModel makes a {type(model).__name__} of its config, and this is a "
            f"{type(base).__name__}; sentence-transformers could not read it back"
        )
    state = _kept(loaded, base, model, stack, layer)
    model.load_state_dict(state, assign=True)
    return Cut(model.eval(), layer, layer + 1, stack.n_layers, bool(stack.final_norm))


def _bare(loaded: LoadedModel) -> Any:
    """The model without its head, of a kind that sentence-transformers reads."""
    import transformers

    model: Any = loaded.model
    if not isinstance(model, transformers.PreTrainedModel):
        raise BadInput(f"{loaded.name}: a {type(model).__name__} is no transformers model, so it cannot be exported")
    if loaded.config.get("is_encoder_decoder"):
        raise BadInput(
            f"{loaded.name}: an encoder-decoder has no single output to pool; export an encoder or a decoder alone"
        )
    names = list(dict.fromkeys(stack.name for stack in loaded.stacks))
    if len(names) > 1:
        raise BadInput(f"{loaded.name}: has several streams ({', '.join(names)}); export a model that reads text alone")
    base: Any = model.base_model
    if not type(base).__module__.startswith("transformers."):
        raise BadInput(
            f"{loaded.name}: {type(base).__name__} is no class of transformers, so sentence-transformers cannot read it; "
            f"export a model of a family that transformers has"
        )
    return base


def _cut_config(config: Any, loaded: LoadedModel, stack: BoundStack, layer: int) -> Any:
    """A copy of `config` with `layer` + 1 blocks."""
    values = config.to_dict()
    key, n_blocks = stack.stack.layers, layer + 1
    declared = values.get(key, getattr(config, key, None))
    if not isinstance(declared, int) or declared < 1 or stack.n_layers % declared:
        raise BadInput(f"{loaded.name}: its config does not say how many blocks there are ({key} is {declared!r})")
    each = stack.n_layers // declared  # ALBERT may run several blocks a counted layer
    if n_blocks % each:
        raise BadInput(
            f"{loaded.name}: its blocks come {each} at a time, so it cannot end with layer {layer_name(layer)}; choose a "
            f"layer such as {each - 1} or {2 * each - 1}"
        )
    values[key] = n_blocks // each
    for name, value in values.items():
        # Lists that say something of each layer in turn: layer_types, no_rope_layers, …
        if "layer" in name and isinstance(value, list) and len(value) == declared:
            values[name] = value[: n_blocks // each]
    if shorten := arch.family_of(values).shorten:
        shorten(values, n_blocks)
    values["architectures"] = [type(_bare(loaded)).__name__]
    values["dtype"] = "float32"
    values.pop("torch_dtype", None)
    try:
        made = type(config).from_dict(values)
    except Exception as error:  # as above
        raise _no_model(loaded, layer, f"{type(error).__name__}: {error}") from error
    _same_blocks(made, loaded, stack, layer)
    return made


def _same_blocks(config: Any, loaded: LoadedModel, stack: BoundStack, layer: int) -> None:
    """Raises BadInput where the shorter model would run other blocks first (ALBERT's groups are shares of all layers)."""
    if layer == EMBEDDINGS or not stack.stack.shared_blocks:
        return
    try:
        (short,) = arch.stacks_of(config.to_dict(), loaded.name)
    except (UnknownArchitecture, ValueError):  # of a row of the user's own
        return
    if short.layer_blocks != stack.stack.layer_blocks[: layer + 1]:
        raise BadInput(
            f"{loaded.name}: which group of blocks a layer runs depends on how many layers there are, so a shorter model "
            f"would run others; export the last layer"
        )


def _kept(loaded: LoadedModel, base: Any, model: Any, stack: BoundStack, layer: int) -> dict[str, Any]:
    """What `model` needs of `base`, in float32 and by name."""
    import torch

    have, wanted = base.state_dict(), model.state_dict()
    dropped = {f"{stack.stack.block(later)}." for later in range(layer + 1, stack.n_layers)}
    dropped -= {f"{stack.stack.block(kept)}." for kept in range(layer + 1)}
    left = [key for key in have if key not in wanted and not key.startswith(tuple(dropped))]
    lacking = [key for key in wanted if key not in have and "pooler" not in key]
    wrong = [key for key in wanted if key in have and have[key].shape != wanted[key].shape]
    if left or lacking or wrong:
        raise _no_model(loaded, layer, f"what becomes of {', '.join((left + lacking + wrong)[:3])} is not known")
    state = {}
    for key, value in wanted.items():
        # A pooler is not used by mean pooling; zeros, so that nothing in the file is random.
        tensor = have[key].detach().cpu() if key in have else torch.zeros(value.shape)
        state[key] = (tensor.float() if tensor.is_floating_point() else tensor).contiguous()
    return state


def _no_model(loaded: LoadedModel, layer: int, why: str) -> OutlierlensError:
    family = loaded.config.get("model_type")
    text = " ".join(why.split())[:300]
    if layer == EMBEDDINGS:
        return BadInput(f"{loaded.name}: a {family} without blocks is no model ({text}); choose --layer 0 or later")
    return BadInput(
        f"{loaded.name}: a {family} cannot be cut behind layer {layer_name(layer)} ({text}); use --layer last"
    )
