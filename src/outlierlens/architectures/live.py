"""Declared stacks against the parameters of a live model, also where accelerate keeps these elsewhere between passes.

    bound = bind_live(stacks_of(config), model)
    live = live_parameters(model)["layers.0.mlp.weight"]     # shape and type at hand; values are read when they are used
    values = weight_of(module, "weight")                     # those of one module's parameter, read now
    values, put_back = held(live)                            # a tensor that passes use: set values there
    refuse_offloaded(model, "training")                      # for work that needs weights in their places

Models whose weights are no parameters that can be set are refused. accelerate's hooks (`device_map`, `disk_offload`) place a
module's weights before it runs and put shapes without values in their place afterwards: what stands in the module between
passes has no values, and after a pass that failed it has old ones.
"""

import importlib
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterator
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from outlierlens.architectures.bind import BoundStack, bind
from outlierlens.architectures.stack import Stack
from outlierlens.errors import BadFile, BadInput, UnknownArchitecture

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


_SHARDING = {"FullyShardedDataParallel", "FSDPModule"}


def live_parameters(model: "nn.Module") -> dict[str, Any]:
    """{name: parameter} of a live model, every name of a shared parameter included, also of those kept elsewhere."""
    return dict(model.named_parameters(remove_duplicate=False)) | offloaded(model) | multiplied_out(model)


def own_parameters(model: "nn.Module") -> dict[str, Any]:
    """The same, a shared parameter under its first name alone."""
    live = live_parameters(model)
    first = {id(one): name for name, one in reversed(live.items())}
    return {name: one for name, one in live.items() if first[id(one)] == name}


def in_memory(parameter: "Tensor") -> "Tensor":
    """A parameter with its values; of one that is away (`models.block_weights`) these, from its file."""
    from_file: Callable[[], Tensor] = getattr(parameter, "from_file", lambda: parameter)
    return from_file()


def bind_live(stacks: tuple[Stack, ...], model: "nn.Module") -> list[BoundStack]:
    """`bind` to the parameters of a live model.

    Raises:
        BadInput: the weights that the stacks name are no parameters, see `refuse_packed`. UnknownArchitecture, BadFile: see
            `bind`.
    """
    try:
        return bind(stacks, live_parameters(model))
    except (UnknownArchitecture, BadFile):
        refuse_packed(model)
        raise


def refuse_packed(model: "nn.Module", inside: Collection[str] = ("",)) -> None:
    """Raise BadInput where linears inside the modules at these paths have no weight to set.

    They hold packed integers in place of it, or compute it at every pass from parameters of other names.
    """
    for name, _ in model.named_parameters():
        if name.startswith(tuple(inside)) and (name.endswith(("_orig", "weight_g")) or ".parametrizations." in name):
            raise BadInput(
                f"{name}: this weight is computed from others at every pass (torch.nn.utils.prune, or a parametrization), so "
                f"it cannot be set; make it permanent first (prune.remove, remove_parametrizations)"
            )
    for name, module in model.named_modules():
        # A quantized module gives its weight by a method; plain ones have a parameter.
        if callable(getattr(module, "weight", None)) and name.startswith(tuple(inside)):
            raise BadInput(
                f"{name} holds its weights packed as integers (quantize_dynamic), which can neither be read nor set as "
                "parameters; use the model as it was before it was quantized"
            )


def sharded_part(model: "nn.Module") -> str:
    """A module or parameter of which this process holds only its part (FSDP, fully_shard, ZeRO-3); "" where there is none.

    Between passes, fully_shard may leave parameters whole for a while: the module still is one that will part with them.
    """
    modules = (
        type(one).__name__ for one in model.modules() if _SHARDING & {base.__name__ for base in type(one).__mro__}
    )
    values = model.named_parameters()
    parameters = (name for name, value in values if type(value).__name__ == "DTensor" or hasattr(value, "ds_id"))
    return next(chain(modules, parameters), "")


def refuse_sharded(model: "nn.Module") -> None:
    """Raise BadInput for a model of which this process holds only its part."""
    if part := sharded_part(model):
        raise BadInput(
            f"this model is sharded over processes ({part}), so none of them holds whole vectors; load it in one process, "
            "without FSDP, fully_shard or ZeRO-3"
        )


WHOLE = "load the model whole, without device_map (--device-map)"
# Of a tensor, what accelerate leaves in the module: nothing of it depends on values.
_FORM = ("shape", "dtype", "ndim", "nbytes", "itemsize", "requires_grad", "layout")
_FORM_CALLS = ("numel", "size", "dim", "is_floating_point", "element_size", "__len__", "__hash__")


class _Overlay(ChainMap[str, Any]):
    """Values that stand before those of a hook's own map while they are changed, and how many changes hold each."""

    def __init__(self, *maps: Any):
        super().__init__(*maps)
        self.holders: Counter[str] = Counter()


def _hooks(module: "nn.Module") -> Iterator[Any]:
    """The hooks of accelerate on a module."""
    hook: Any = getattr(module, "_hf_hook", None)
    yield from getattr(hook, "hooks", () if hook is None else (hook,))


def _offloading(module: "nn.Module") -> Iterator[Any]:
    """Those that keep weights elsewhere."""
    return (one for one in _hooks(module) if getattr(one, "offload", False) and one.weights_map is not None)


def offloaded(model: "nn.Module") -> dict[str, Any]:
    """{name: parameter} of those that accelerate keeps elsewhere, one object for all names of a shared one."""
    shared: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    found: dict[str, Any] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for hook in _offloading(module):
            for key, _ in module.named_parameters(recurse=hook.place_submodules, remove_duplicate=False):
                found[f"{path}.{key}" if path else key] = _made(module, key, hook)
    for source in {*shared.values()} if found else ():
        names = [source, *(name for name, one in shared.items() if one == source)]
        if kept := [found[name] for name in names if name in found]:  # others of its names may have it in its place
            kept[0].homes = [home for one in kept for home in one.homes]
            found |= dict.fromkeys(names, kept[0])
    return found


def offloaded_values(model: "nn.Module") -> "dict[str, Tensor]":
    """{name: values} of the parameters that accelerate keeps elsewhere, all in memory; names of a shared one share them."""
    found = offloaded(model)
    read = {id(one): one.read() for one in found.values()}
    return {name: read[id(one)] for name, one in found.items()}


def weight_of(module: "nn.Module", name: str = "weight") -> Any:
    """A parameter of a module, or None; its values, where accelerate keeps them elsewhere."""
    hook, found = next(_offloading(module), None), getattr(module, name, None)
    if found is not None and hook is not None:
        return _made(module, name, hook).read()
    return multiplied_out(module)["weight"].read() if type(found).__name__ in _FLOATS else found


def input_device(model: "nn.Module") -> "torch.device":
    """Where the inputs of a model go, and its states are.

    Raises:
        BadInput: accelerate has its modules run on several devices.
    """
    import torch

    hooks = [one for module in model.modules() for one in _hooks(module)]
    run_on = {torch.device(one.execution_device) for one in hooks if getattr(one, "execution_device", None) is not None}
    if len(run_on) > 1:
        names = sorted(map(str, run_on))
        raise BadInput(
            f"the modules of this model run on several devices ({', '.join(names)}), and states are looked at on one; use one "
            "GPU and let accelerate keep the rest on the CPU: CUDA_VISIBLE_DEVICES=0 with device_map (--device-map auto)"
        )
    return run_on.pop() if run_on else next(model.parameters()).device


def held(given: "Tensor") -> "tuple[Tensor, Callable[[], None] | None]":
    """A tensor with the values of an offloaded parameter that passes use from now on, and what lets go of it; None for nothing.

    What is kept in memory is that tensor itself. What is kept on disk is read, and stands before the file until all let go.
    """
    one: Any = given
    first, key = one.homes[0]
    if not (isinstance(first.weights_map, _Overlay) and key in first.weights_map.maps[0]):
        values, again = first.weights_map[key], first.weights_map[key]
        if values.dtype is given.dtype and _address(values) == _address(again):
            return values, None
        values = values.to("cpu", given.dtype, copy=True)
        for hook, own in one.homes:
            if not isinstance(hook.weights_map, _Overlay):
                hook.weights_map = _Overlay({}, hook.weights_map)
            hook.weights_map.maps[0][own] = values
    first.weights_map.holders[key] += 1

    def let_go() -> None:
        first.weights_map.holders[key] -= 1
        for hook, own in one.homes if not first.weights_map.holders[key] else ():
            changed, kept = hook.weights_map.maps
            del changed[own]
            hook.weights_map = hook.weights_map if changed else kept

    return first.weights_map[key], let_go


def _address(values: "Tensor") -> int:
    return values.untyped_storage().data_ptr()


def is_offloaded(value: Any) -> bool:
    """Whether a parameter is one that accelerate keeps elsewhere."""
    return bool(getattr(value, "homes", ()))


def is_multiplied_out(value: Any) -> bool:
    """Whether a parameter stands for codes, which cannot be set."""
    return hasattr(value, "homes") and not value.homes


def refuse_offloaded(model: "nn.Module", what: str) -> None:
    """Raise BadInput, where accelerate keeps weights elsewhere, for work that needs them in their places."""
    if name := next(iter(offloaded(model)), ""):
        raise BadInput(
            f"{what} is not possible while accelerate keeps weights elsewhere between passes ({name}); {WHOLE}"
        )


def _made(module: "nn.Module", key: str, hook: Any) -> Any:
    """The parameter of an offloading hook at `key` below `module`."""
    import torch

    form = module.get_parameter(key)
    found = _lazy(form.shape, form.dtype, torch.device(hook.execution_device), lambda: hook.weights_map[key])
    found.homes = [(hook, key)]
    return found


def multiplied_out(model: "nn.Module") -> dict[str, Any]:
    """{name: weight} of bitsandbytes' linears in eight and four bits: the floats that they multiply by."""
    found = {}
    for path, module in model.named_modules(remove_duplicate=False):
        codes: Any = module._parameters.get("weight")
        read = _FLOATS.get(type(codes).__name__)
        if read is not None and not codes.is_meta:
            shape, kind, source = read(module, codes)
            found[f"{path}.weight".removeprefix(".")] = _lazy(shape, kind, codes.device, source)
    return found


def _of_eight_bits(module: Any, codes: Any) -> "tuple[Any, Any, Callable[[], Tensor]]":
    import torch

    # Before the first pass the largest |w| of each row is with the weight, afterwards with its module.
    return (
        codes.shape,
        torch.float32,
        lambda: codes.data * ((codes.SCB if codes.SCB is not None else module.state.SCB) / 127)[:, None],
    )


def _of_four_bits(_: Any, codes: Any) -> "tuple[Any, Any, Callable[[], Tensor]]":
    # What made these codes is installed.
    state, library = codes.quant_state, importlib.import_module("bitsandbytes.functional")
    return state.shape, state.dtype, lambda: library.dequantize_4bit(codes.data, state)


_FLOATS: dict[str, Callable[[Any, Any], Any]] = {"Int8Params": _of_eight_bits, "Params4bit": _of_four_bits}


def _lazy(shape: Any, dtype: Any, device: Any, source: "Callable[[], Tensor]") -> Any:
    import torch

    with torch.inference_mode(False):
        made: Any = torch.empty(tuple(shape), dtype=dtype, device="meta").as_subclass(_kind())
    made.homes, made.source, made.on = [], source, device
    return made


@cache
def _kind() -> Any:
    """The class of offloaded parameters: a tensor whose form is at hand and whose values are read for all else."""
    import torch

    forms = {getattr(torch.Tensor, name).__get__ for name in _FORM} | {
        getattr(torch.Tensor, one) for one in _FORM_CALLS
    }

    device, is_meta = torch.Tensor.device.__get__, torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]

    class Lazy(torch.Tensor):
        homes: list[tuple[Any, str]]  # (hook, its key) of each of its names
        source: Any
        on: Any

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if func is device:
                return args[0].on
            if func is is_meta:
                return False
            if func in forms:
                return super().__torch_function__(func, types, args, kwargs)
            name = getattr(func, "__name__", "")
            if isinstance(args[:1] and args[0], cls) and (
                name in ("__set__", "__setitem__") or (name.endswith("_") and not name.endswith("__"))
            ):
                raise BadInput(f"weights that accelerate keeps elsewhere cannot be set in place ({name}); {WHOLE}")
            from torch.utils._pytree import tree_map_only

            return func(*tree_map_only(cls, cls.read, args), **tree_map_only(cls, cls.read, kwargs or {}))

        def read(self) -> "Tensor":
            """Its values, on the device that its module runs on."""
            return self.source().detach().to(self.on, self.dtype)

    return Lazy
