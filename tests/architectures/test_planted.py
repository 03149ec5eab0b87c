"""Planted needles: heights solved so that the resulting z is known, in every family of the architecture table."""

import math
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES, config_of
from outlierlens import architectures as arch
from outlierlens.analyses.scan import scan_checkpoint
from outlierlens.architectures import BoundStack, Param
from outlierlens.checkpoints.base import Checkpoint, TensorInfo
from outlierlens.detection.weights import ScanOptions

WIDTH, LAYERS = 64, 4
WIDTH_KEYS = {"hidden_size", "d_model", "n_embd", "dim"}
LAYER_KEYS = {
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers",
}  # fmt: skip


class Arrays(Checkpoint):
    """A checkpoint of arrays in memory."""

    kind = "arrays"

    def __init__(self, arrays: dict[str, np.ndarray], config: dict[str, Any]):
        self.name, self.config, self.arrays = "planted", config, arrays
        self.tensors = {name: TensorInfo("F32", values.shape, values.nbytes) for name, values in arrays.items()}
        self.total_bytes, self.bytes_read = sum(values.nbytes for values in arrays.values()), 0

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            yield name, self.arrays[name]


def widened(config: Any) -> Any:
    """The family's config with 64 dimensions and 4 layers."""
    if isinstance(config, dict):
        return {
            key: WIDTH if key in WIDTH_KEYS else LAYERS if key in LAYER_KEYS else _fitted(key, value)
            for key, value in config.items()
        }
    return config


def _fitted(key: str, value: Any) -> Any:
    # Lists with an entry per layer (GPT-Neo's attention pattern, layer types) must grow with the layers.
    if key == "attention_types":
        return [[["global", "local"], LAYERS // 2]]
    if key == "layer_types" and isinstance(value, list):
        return (value * LAYERS)[:LAYERS]
    return widened(value)


@cache
def shapes(name: str) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """({parameter: shape}, config) of the widened family, without any weight."""
    import transformers

    family = FAMILIES[name]
    small = config_of(family)
    config = type(small).from_dict(widened(family.config))
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    names = {key: tuple(value.shape) for key, value in model.named_parameters(remove_duplicate=False)}
    return names, model.config.to_dict()


def needle_height(noise: np.ndarray, n_needles: int, z: float) -> float:
    """Height above the noise's mean at which `n_needles` equal needles have exactly this z.

    With n noise values of sum of squares S about their mean, d = n + k: z = h (n/d) / sqrt((S + h² n k / d) / d).
    """
    n, d = len(noise), len(noise) + n_needles
    spread = ((noise - noise.mean()) ** 2).sum()
    return z * math.sqrt(spread * d / (n * n - z * z * n * n_needles))


def planted_vector(random: np.random.Generator, dims: tuple[int, ...], z: float | None) -> np.ndarray:
    """Uniform noise about 10 with needles at `dims` whose resulting |z| is `z` (None: no needles)."""
    vector = 10 + random.uniform(-1, 1, WIDTH)
    if z is not None and dims:
        rest = np.setdiff1d(np.arange(WIDTH), dims)
        sign = random.choice([-1, 1])
        vector[list(dims)] = vector[rest].mean() + sign * needle_height(vector[rest], len(dims), z)
    return vector


def plant(
    arrays: dict[str, np.ndarray],
    stack: BoundStack,
    random: np.random.Generator,
    dims: tuple[int, ...],
    layers: set[int],
    z: float,
) -> None:
    """Write vectors with needles at `dims` in `layers` into the parameters of the stack's last operation."""
    for layer in stack.weight_layers:
        at = z if layer in layers else None
        _write(arrays, stack.scale[layer], planted_vector(random, dims, at), random, norm=stack.ends_in_norm)
        if stack.bias[layer]:
            _write(arrays, stack.bias[layer], planted_vector(random, dims, at), random, norm=True)


def _write(
    arrays: dict[str, np.ndarray],
    params: tuple[Param, ...],
    target: np.ndarray,
    random: np.random.Generator,
    *,
    norm: bool,
) -> None:
    if norm or arrays[params[0].name].ndim == 1:
        share = target / len(params)
        for param in params:
            if arrays[param.name].ndim == 1:
                arrays[param.name] = share + param.off
            else:  # biases of several experts: their norm counts, see below
                _scale_rows(arrays, [param], np.abs(target) / math.sqrt(len(params)), random)
        return
    _scale_rows(arrays, list(params), target, random)


def _scale_rows(
    arrays: dict[str, np.ndarray], params: list[Param], target: np.ndarray, random: np.random.Generator
) -> None:
    drawn = {param.name: random.normal(size=arrays[param.name].shape) for param in params}
    moved = {p.name: np.moveaxis(drawn[p.name], p.axis, 0).reshape(WIDTH, -1) for p in params}
    norms = np.sqrt(sum((values**2).sum(1) for values in moved.values()))
    for param in params:
        factor = (target / norms).reshape(
            [WIDTH if axis == param.axis % drawn[param.name].ndim else 1 for axis in range(drawn[param.name].ndim)]
        )
        arrays[param.name] = drawn[param.name] * factor


@pytest.mark.parametrize("name", FAMILIES)
def test_needles_at_the_threshold(name: str) -> None:
    names, config = shapes(name)
    bound = arch.bind(arch.stacks_of(config), names)
    arrays = {key: np.zeros(shape) for key, shape in names.items()}
    for factors in {param.times for stack in bound for layer in stack.writes for param in layer if param.times}:
        arrays[factors] += 1.0
    for stack in bound:
        n_layers = len(stack.weight_layers)
        assert n_layers == LAYERS or stack.stack.shared_blocks
    for seed in range(50):
        random = np.random.default_rng(seed)
        dims = tuple(sorted(random.choice(WIDTH, size=1 + seed % 2, replace=False).tolist()))
        for z, expected in ((3.1, dims), (2.9, ())):
            for stack in bound:
                layers = stack.weight_layers
                half = set(random.choice(layers, size=-(-len(layers) // 2), replace=False).tolist())
                plant(arrays, stack, random, dims, half, z)
            found = scan_checkpoint(Arrays(arrays, config), ScanOptions(max_read=10**12))
            assert {stack.stack: stack.dims for stack in found.stacks} == dict.fromkeys(
                (stack.name for stack in bound), expected
            ), f"seed {seed}, z {z}"


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_one_layer_short_of_half_is_not_found(name: str) -> None:
    names, config = shapes(name)
    bound = arch.bind(arch.stacks_of(config), names)
    arrays = {key: np.zeros(shape) for key, shape in names.items()}
    random = np.random.default_rng(0)
    for stack in bound:
        plant(arrays, stack, random, (5,), {0}, 3.5)
    found = scan_checkpoint(Arrays(arrays, config), ScanOptions(max_read=10**12))
    assert [stack.dims for stack in found.stacks] == [()] * len(bound)


@pytest.mark.parametrize("name", FAMILIES)
def test_constant_weights_yield_nothing_and_no_warning(name: str) -> None:
    names, config = shapes(name)
    arrays = {key: np.full(shape, 0.1, dtype=np.float32) for key, shape in names.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = scan_checkpoint(Arrays(arrays, config), ScanOptions(max_read=10**12))
    assert all(stack.dims == () and not stack.z_scale.any() for stack in found.stacks)


def test_needle_height_by_hand() -> None:
    # Noise −1, +1 (S = 2) and one needle: z = h (2/3) / sqrt((2 + 2h²/3) / 3); h = 3 gives 2 / sqrt(8/3).
    noise = np.array([-1.0, 1.0])
    z = 2 / math.sqrt(8 / 3)
    assert needle_height(noise, 1, z) == pytest.approx(3.0)
    vector = np.array([-1.0, 1.0, 3.0])
    assert (vector[2] - vector.mean()) / vector.std() == pytest.approx(z)
