"""Which values an attack may change: those that a fingerprint holds, or, ranked by gradient × change, any of the model.

dims, values = sensitive_values(loaded)          # outlier dimensions, and every value that `verify` reads
values = widest(target, slopes, "zero", n=48)    # the values of the whole model whose change promises most
random = drawn(values, moves, n=48, seed=0)      # moves drawn at random, none touching a value twice
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.checkpoints.live import LiveCheckpoint
from outlierlens.detection.scan.measure import ScanOptions, scan_live
from outlierlens.errors import BadInput
from outlierlens.experiments.attack.edits import Moves, Values, flips, gather, moves_of
from outlierlens.experiments.attack.losses import Target
from outlierlens.experiments.integrity.rounding import half_step
from outlierlens.experiments.integrity.sensitive import Found, Sensitive, bound_stacks, dims_of, list_sensitive
from outlierlens.models.load import LoadedModel
from outlierlens.options import FIND, Find

if TYPE_CHECKING:
    from torch import Tensor

PART = 1 << 22  # values of a large tensor that are looked at at once
SAMPLE = 4096  # values of each tensor that random draws from anywhere come from


def live_source(loaded: LoadedModel) -> LiveCheckpoint:
    """The model in memory, read as a checkpoint is."""
    return LiveCheckpoint(loaded.model, name=loaded.name, config=loaded.config)


def found_dims(loaded: LoadedModel, dims: Sequence[int] | Find = FIND) -> dict[str, Found]:
    """{stream: dimensions whose values are the dangerous ones}: those given, else what the scan finds, else its strongest."""
    found = dims_of(scan_live(loaded, ScanOptions()))
    return found if dims == FIND else {name: Found(tuple(sorted(set(dims))), "given") for name in found}


def entries_of(loaded: LoadedModel, found: Mapping[str, Found]) -> list[Sensitive]:
    """What a fingerprint holds of the model in memory."""
    source = live_source(loaded)
    return list_sensitive(source, loaded.stacks or bound_stacks(source), found)


def sensitive_values(loaded: LoadedModel, parameters: Mapping[str, Any], entries: Sequence[Sensitive]) -> Values:
    """Every value of the entries, each once, with its dimension and the change below which it counts as a copy's rounding.

    Raises:
        BadInput: there is none, or the model is held in a format that cannot be edited.
    """
    flats: dict[str, dict[int, int]] = {}
    first: dict[int, str] = {}  # a tensor that two names share is edited by one
    for entry in entries:
        name = first.setdefault(id(parameters[entry.stored]), entry.stored)
        mine = flats.setdefault(name, {})
        for flat, dim in _places(entry):
            mine.setdefault(flat, dim)
    if not flats:
        raise BadInput(f"{loaded.name}: no sensitive value is listed, so there is nothing to attack; name --dims")
    places = [(name, np.fromiter(mine, dtype=np.int64)) for name, mine in flats.items()]
    values = gather(parameters, places, off=_offs(loaded))
    dims = np.concatenate([np.fromiter(mine.values(), dtype=np.int64) for mine in flats.values()])
    return replace(values, dim=dims, tolerance=tolerances(values.before))


def tolerances(before: np.ndarray) -> np.ndarray:
    """What a copy in half precision may change of each value, up and down: an edit must exceed it to be one."""
    return 2 * np.maximum(half_step(before, "bfloat16"), half_step(before, "float16"))


def _places(entry: Sensitive) -> Iterator[tuple[int, int]]:
    """(flat place, dimension or −1) of every value of an entry."""
    rows, columns = entry.size
    width = entry.shape[-1]
    for row in range(rows):
        start = (row if entry.rows is None else entry.rows[row]) * width
        for column in range(columns):
            dim = entry.dim(row, column)
            yield start + (column if entry.columns is None else entry.columns[column]), -1 if dim is None else dim


def _offs(loaded: LoadedModel) -> dict[str, float]:
    """{norm parameter: the value that switches a dimension off}, where that is not 0."""
    offs: dict[str, float] = {}
    for stack in loaded.stacks:
        layers = [layer for norm in stack.norms.values() for layer in norm]
        for params in (*layers, stack.embedding_norm, stack.final_norm):
            offs |= {param.name: param.off for param in params if param.off}
    return offs


def widest(target: Target, slopes: Mapping[str, "Tensor"], kind: str, *, n: int, bound: float) -> Values:
    """The `n` values of each tensor whose change promises most, of all tensors that have slopes; dimensions are not told."""
    import torch

    places = []
    for name, slope in slopes.items():
        tensor = target.parameters[name].detach().reshape(-1)
        steep = slope.reshape(len(slope), -1)
        top = float(tensor.abs().max())
        best: list[tuple[np.ndarray, np.ndarray]] = []
        for start in range(0, tensor.numel(), PART):
            part, here = tensor[start : start + PART], steep[:, start : start + PART]
            for step in _steps(part, kind, bound * top):
                score = _promise(target, here, step)
                top_score, at = torch.topk(score, min(n, len(score)))
                best.append((top_score.cpu().numpy(), at.cpu().numpy() + start))
        scores, flat = (np.concatenate(side) for side in zip(*best, strict=True))
        flat = flat[np.argsort(-scores, kind="stable")][np.sort(-scores, kind="stable") < np.inf]
        kept = np.fromiter(dict.fromkeys(flat.tolist()), dtype=np.int64)[:n]
        if len(kept):
            places.append((name, kept))
    values = gather(target.parameters, places, off=_offs(target.loaded))
    return replace(values, tolerance=tolerances(values.before))


def _promise(target: Target, slope: "Tensor", step: "Tensor") -> "Tensor":
    """`Target.effects` of a step of each value [value], −inf where the step is no number."""
    product = slope.float() * step.float()
    estimate = product[0] if target.task.is_loss else 0.5 * product.square().mean(0)
    return estimate.nan_to_num(nan=-float("inf"), posinf=-float("inf"), neginf=-float("inf"))


def _steps(part: "Tensor", kind: str, limit: float) -> Iterator["Tensor"]:
    """Changes of the values of a part of a tensor [value], NaN where a value has none."""
    import torch

    if kind == "zero":
        yield -part
    elif kind == "sign flip":
        yield -2 * part
    elif kind == "swap":  # half of it: towards the other end of the tensor's range
        yield part.max() - part
        yield part.min() - part
    else:
        nothing = torch.tensor(float("nan"), device=part.device)
        for _, flipped in flips(part):
            good = flipped.isfinite() & (flipped.abs() <= limit)
            yield torch.where(good, flipped.float() - part.float(), nothing)


def anywhere(parameters: Mapping[str, Any], seed: int) -> Values:
    """Values drawn at random from all of the model's, every one as likely as any other."""
    random = np.random.default_rng(seed)
    names = list({id(tensor): name for name, tensor in parameters.items() if tensor.is_floating_point()}.values())
    sizes = np.array([parameters[name].numel() for name in names], dtype=np.float64)
    counts = random.multinomial(SAMPLE, sizes / sizes.sum())
    places = [
        (name, np.unique(random.integers(0, parameters[name].numel(), size=int(count))))
        for name, count in zip(names, counts, strict=True)
        if count
    ]
    values = gather(parameters, places)
    return replace(values, tolerance=tolerances(values.before))


def drawn(values: Values, kind: str, *, n: int, bound: float, seed: int) -> tuple[Moves, tuple[int, ...]]:
    """(moves of a kind, `n` of them at random, or as many as there are): values alike likely, each changed once.

    Of a value with several moves (bits, partners) one is drawn.
    """
    random = np.random.default_rng(seed)
    moves = moves_of(kind, values, bound=bound)
    if kind == "swap":
        moves = _random_swaps(values, random)
    order = random.permutation(len(moves))
    touched: set[int] = set()
    chosen: list[int] = []
    # The first move of each value in random order is one of its moves at random; values are then drawn alike.
    first = order[np.unique(moves.place[order], return_index=True)[1]]
    for move in random.permutation(first).tolist():
        ends = {int(moves.place[move]), int(moves.partner[move])} - {-1}
        if len(chosen) < n and not ends & touched:
            chosen.append(move)
            touched |= ends
    return moves, tuple(chosen)


def _random_swaps(values: Values, random: np.random.Generator) -> Moves:
    """Each value with another of its tensor, drawn at random, where they differ by more than a copy may."""
    places, partners = [], []
    for number in range(len(values.names)):
        here = random.permutation(np.flatnonzero(values.tensor == number))
        half = len(here) // 2
        places.append(here[:half])
        partners.append(here[half : 2 * half])
    place, partner = np.concatenate(places), np.concatenate(partners)
    least = np.maximum(values.tolerance[place], values.tolerance[partner])
    keep = np.abs(values.before[partner] - values.before[place]) > least
    none = np.full(int(keep.sum()), -1)
    return Moves("swap", place[keep], values.before[partner[keep]], partner[keep], none)
