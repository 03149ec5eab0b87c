"""A model whose residual stream is turned by an orthogonal matrix: its logits are the same, its outlier dimensions are gone.

    rotate_(loaded, seed=0)                 # in place; logits equal within `TOLERANCE`, or BadInput and the model as it was

RMS norms do not notice a turn of what they read, once their weights have moved into the linears behind them (Ashkboos et al.
2024, QuaRot, arXiv:2404.00456; the invariance is SliceGPT's, arXiv:2401.15024). What writes to the stream is turned with it,
what reads it is turned back. A norm that subtracts the mean does notice, and so does one that stands behind a write: such
families are refused.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.analyses.range_pass import packed_kinds
from outlierlens.architectures import BoundStack
from outlierlens.errors import BadInput
from outlierlens.experiments.repair.rewriting import untie
from outlierlens.models.changes import Settable, temporary
from outlierlens.models.hooks import readers_of
from outlierlens.models.load import LoadedModel, stream_width

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

MATRIX = "a random orthogonal matrix times a Hadamard matrix (Kronecker), rows with random signs"
TOLERANCE = 2e-4  # of the largest logit's size: turning rounds each weight once, and every sum in another order


def rotation(width: int, seed: int = 0) -> np.ndarray:
    """An orthogonal matrix [width, width] of which every row is spread over all columns.

    The Kronecker product of a random orthogonal matrix and a Hadamard matrix of the largest power of two that divides
    `width`, with random signs of the rows: for 576 a random 9 × 9 and a Hadamard 64 × 64 matrix.
    """
    random = np.random.default_rng(seed)
    power = width & -width
    hadamard = np.ones((1, 1))
    while len(hadamard) < power:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    rest, upper = np.linalg.qr(random.normal(size=(width // power, width // power)))
    rest *= np.sign(np.diag(upper))  # without it QR's own signs are no even choice
    signs = random.choice((-1.0, 1.0), size=(width, 1))
    return np.asarray(signs * np.kron(rest, hadamard / np.sqrt(power)))


@temporary
def rotated(loaded: LoadedModel, run: Callable[[], Any], *, seed: int = 0) -> "Iterator[None]":
    """The model with every stream turned, while the context lasts; afterwards every value is what it was, bit for bit.

    Args:
        run: a forward pass of the model, in which the readers of each norm are seen.

    Raises:
        BadInput: a stream that cannot be turned, with the reason.
    """
    with ExitStack() as undo:
        _turn(loaded, run, seed, undo)
        yield


def rotate_(loaded: LoadedModel, run: Callable[[], "Tensor"], *, seed: int = 0) -> float:
    """Turn every stream for good; returns the largest difference of what `run` gives, as a share of its largest |value|.

    The head gets weights of its own where it shared them with the embeddings (`tie_word_embeddings` is false then).

    Raises:
        BadInput: a stream that cannot be turned, or outputs that differ by more than `TOLERANCE`; the model is as it was.
    """
    before = run()
    with ExitStack() as undo:
        _turn(loaded, run, seed, undo)
        off = float((run() - before).abs().max() / before.abs().max())
        if not off <= TOLERANCE:
            raise BadInput(
                f"{loaded.name}: turned, its outputs differ by {off:.2g} of the largest, above {TOLERANCE:g}: something reads "
                "the stream that is not known here; nothing was changed"
            )
        undo.pop_all()  # it stays
    return off


def _check(loaded: LoadedModel) -> None:
    """Look at the norms; raises BadInput for a stream that cannot be turned."""
    modules = dict(loaded.model.named_modules())
    for stack in loaded.stacks:
        where = f"{loaded.name}, stream {stack.name!r}"
        if stack.stack.norm_site != "read":
            raise BadInput(f"{where}: its norms stand on the stream or on writes; only pre-norm families are turned")
        if stack.stack.write_scales or stack.embedding_norm:
            raise BadInput(f"{where}: a scale of single dimensions stands on what is written; it cannot be turned")
        if packed := packed_kinds(loaded, stack):
            raise BadInput(
                f"{where}: the weights of its experts are one parameter ({next(iter(packed))}); they cannot be turned"
            )
        for name in _norms(stack):
            if _subtracts_mean(modules[name]):
                raise BadInput(f"{where}: {name} subtracts the mean (LayerNorm); only streams of RMS norms are turned")


def _norms(stack: BoundStack) -> list[str]:
    """Module paths of the norms that read the stream, the one after the last block last."""
    params = [norm for norms in stack.reading for norm in norms] + list(stack.final_norm[:1])
    return list(dict.fromkeys(param.name.rpartition(".")[0] for param in params))


def _subtracts_mean(norm: "nn.Module") -> bool:
    """Whether a norm gives the same for x and x + 1."""
    import torch

    weight: Any = norm.weight
    x = torch.randn(1, 1, len(weight), generator=torch.Generator().manual_seed(0)).to(weight)
    with torch.no_grad():
        return bool(torch.allclose(norm(x), norm(x + 1), atol=1e-3))


def _turn(loaded: LoadedModel, run: Callable[[], Any], seed: int, undo: ExitStack) -> None:
    """Turn what writes to the streams and what reads them, and move the norms' weights into their readers."""
    import torch

    _check(loaded)
    model: Any = loaded.model
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    if head is not None and head.weight is model.get_input_embeddings().weight:
        untie(undo, model)
    settable, modules = Settable(undo, model), dict(model.named_modules())
    live = settable.parameters
    head_name = next((name for name, module in modules.items() if module is head), "")
    readers = readers_of(model, [norm for stack in loaded.stacks for norm in _norms(stack)], run)
    if head_name and (last := loaded.stacks[-1]).final_norm:
        norm = _norms(last)[-1]
        readers[norm] = tuple(dict.fromkeys((*readers[norm], head_name)))  # behind a factor it is not seen
    turned: set[int] = set()  # tables that two streams share are turned once

    def along(name: str, axis: int, matrix: "Tensor", factor: "Tensor | None" = None) -> None:
        """Multiply a parameter's `axis` by a factor of each dimension, then by the matrix."""
        if id(live[name]) in turned:
            return
        turned.add(id(live[name]))
        values = live[name].detach().double().movedim(axis, -1)
        values = values if factor is None else values * factor
        settable.set_values(name, ..., (values @ matrix).movedim(-1, axis).to(live[name]))

    for stack in loaded.stacks:
        matrix = torch.as_tensor(rotation(stream_width(model, stack), seed), device=live[stack.scale[0][0].name].device)
        linears = [param for layers in stack.linears.values() for layer in layers for param in layer]
        for param in (*stack.embeddings, *linears):
            along(param.name, param.axis, matrix)
        for norm in _norms(stack):
            weight = live[f"{norm}.weight"]
            factor = weight.detach().double() + stack.stack.norm_offset
            for name in readers[norm]:
                along(f"{name}.weight", 0 if type(modules[name]).__name__ == "Conv1D" else 1, matrix, factor)
            settable.set_values(f"{norm}.weight", ..., torch.full_like(weight, 1 - stack.stack.norm_offset))
