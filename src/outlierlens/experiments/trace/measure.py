"""How the life of a dimension is found out: where it is largest, what adds up to it there, what goes without, who reads it.

    found = trace(load_model("smollm2-135m"), read_texts("excerpt", limit=32))

A value has few writers where it stands out, at least ten times the median |value| of its layer, where as few as `FEW` parts
leave at most 5 % of it, and where what is left is small part by part: its root sum of squares is at most a fifth of the value.
A sum of many parts fails that, whatever its largest ones are; Gaussian values reach seven times their median among a million.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.ablation.position_means import first_tokens
from outlierlens.architectures import BoundStack, live_parameters
from outlierlens.data.texts import Batch, Data
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.experiments.trace.account import Account, Entry, account, refuse
from outlierlens.experiments.trace.options import TraceOptions
from outlierlens.experiments.trace.readers import Carried, Model, Readers, read_by
from outlierlens.experiments.trace.result import BlockValue, Part, Trace, Weight, Writer
from outlierlens.experiments.trace.trials import Restored, run_trials
from outlierlens.models.attention_maps import check_eager, eagerly
from outlierlens.models.hooks import EMBEDDINGS, edited_calls, layer_name, tapped
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.models.passes import Reading, reading_of
from outlierlens.session import Session
from outlierlens.tasks.choice import make_task

if TYPE_CHECKING:
    from torch import Tensor

FEW, LEFT, ROUGH = 8, 0.05, 0.2
STANDS_OUT = 10.0  # times the median |value| of the layer
LARGEST = 1  # the group of the largest token among `result.GROUPS`
CHANNELS = 64  # of a head, that are named as single weights at most
Progress = Callable[[str, int, int], None]


@dataclass
class _Seen:
    """What one pass over all texts shows of every dimension.

    Attributes:
        largest: |value| [layer + 1, dim]. squares: sum of squares [layer + 1]. medians: sum over
            tokens of each one's median |value| [layer + 1]. others: sum over tokens that are not first
            [layer + 1, dim].
    """

    largest: dict[int, np.ndarray] = field(default_factory=dict)
    squares: dict[int, float] = field(default_factory=dict)
    medians: dict[int, float] = field(default_factory=dict)
    others: dict[int, np.ndarray] = field(default_factory=dict)
    n_tokens: int = 0
    n_others: int = 0

    def stacked(self) -> tuple[np.ndarray, np.ndarray]:
        """(largest, mean of the others), both [layer + 1, dim]."""
        layers = sorted(self.largest)
        means = np.stack([self.others[layer] for layer in layers]) / max(1, self.n_others)
        return np.stack([self.largest[layer] for layer in layers]), means


@eagerly
def trace(
    loaded: LoadedModel, texts: Data, options: TraceOptions | None = None, *,
    command: str = "", progress: Progress | None = None,
) -> Trace:  # fmt: skip
    """The life of one dimension of `loaded`, on `texts`, which may be pictures or recordings (`media.Items`).

    Raises:
        BadInput: an unknown dimension or stream, one that the data do not reach, no text with two tokens, a model of which a
            writer cannot be seen, or one in which something writes that its row does not declare.
    """
    options = options or TraceOptions()
    reading = reading_of(loaded, texts, options.task.max_length)
    stack = reading.stacks[0] if options.stack is None else loaded.stack(options.stack)
    if stack not in reading.stacks:
        raise BadInput(
            f"{loaded.name}: {reading.inputs} do not reach stream {stack.name!r}, only "
            f"{', '.join(one.name for one in reading.stacks)}; name one of these, or give other data"
        )
    refuse(loaded, stack)
    width = stream_width(loaded.model, stack)
    if options.dim is not None and options.dim >= width:
        raise BadInput(f"dimension {options.dim} does not exist; stream {stack.name} has dimensions 0 to {width - 1}")
    batches = [b for b in reading.batches(texts, batch_size=options.task.batch_size) if int(b.valid.sum(1).max()) > 1]
    if not batches:
        raise BadInput(f"{texts.source}: no text has two tokens, so there is nothing to follow a dimension through")
    seen = _see(stack, loaded, reading, batches)
    largest, means = seen.stacked()
    if not np.isfinite(largest).all():
        raise BadInput(f"{loaded.name}: a hidden state is NaN or infinite; {USE_FLOAT32}")
    dim = options.dim if options.dim is not None else _default(seen, largest, width)
    peak, places, (text, position, token) = _places(loaded, stack, reading, batches, dim)
    weigh = _groups(batches, text, position)
    at = next(batch for batch in batches if text in batch.texts)
    found = account(loaded, stack, dim, reading, batches, weigh)
    lifts, falls = _turns(found.values[:, LARGEST], peak)
    lift, writers = _writers(found, stack, (lifts, peak), STANDS_OUT * seen.medians[peak] / seen.n_tokens)
    weights = tuple(_weights(loaded, dim, reading, at, (at.texts.index(text), position), writers, lift))
    task = make_task(loaded, texts, options.task)
    layers = tuple(sorted({entry.layer for _, entry in writers}))
    back = Restored(loaded, stack, dim, layers, peak)
    trials = run_trials(task, weights, back, n_random=options.n_random, seed=options.seed, progress=progress)
    notes: tuple[str, ...] = (*loaded.notes, *dict.fromkeys((*reading.notes, *task.notes)))
    read = Readers()
    try:
        check_eager(loaded, stack)
    except BadInput as error:
        notes += (f"which heads read it is not known: {error}",)
    else:
        read = read_by(
            Model(loaded, stack, reading), batches, Carried(dim, places, means), threshold=options.threshold,
            n_random=options.n_random, seed=options.seed, progress=progress,
        )  # fmt: skip
    return Trace(
        provenance=loaded.provenance(command=command, seed=options.seed),
        data=texts.source, data_digest=texts.digest, stack=stack.name, dim=dim,
        n_texts=len({one for batch in batches for one in batch.texts}), n_tokens=seen.n_tokens,
        text=text, position=position, token=token,
        post_norm=stack.stack.norm_site == "stream", error=found.error,
        blocks=tuple(
            BlockValue(layer_name(layer), *map(float, found.values[layer + 1]), *map(float, found.shares[layer + 1]))
            for layer in (EMBEDDINGS, *range(stack.n_layers))
        ),
        parts=tuple(_parts(found, options.n_neurons)),
        lifts=layer_name(lifts), lift=lift, peak=layer_name(peak), falls="" if falls is None else layer_name(falls),
        writers=tuple(
            Writer(layer_name(one.layer), one.kind, one.name, one.index, value, value / lift) for value, one in writers
        ),
        explained=sum(value for value, _ in writers) / lift if writers else 0.0,
        weights=weights, passed=sum(one.share for one in weights),
        task=task.name, unit=task.unit, trials=trials,
        threshold=options.threshold, **read._asdict(), notes=notes,
    )  # fmt: skip


def _see(stack: BoundStack, loaded: LoadedModel, run: Callable[[Batch], None], batches: Sequence[Batch]) -> _Seen:
    seen = _Seen()
    for batch in batches:
        rest = batch.valid & ~first_tokens(batch.valid)

        def look(_: BoundStack, layer: int, states: "Tensor", batch: Batch = batch, rest: "Tensor" = rest) -> None:
            kept = states[batch.valid].double()
            top = kept.abs().amax(0).cpu().numpy()
            seen.largest[layer] = np.maximum(seen.largest.get(layer, top), top)
            seen.squares[layer] = seen.squares.get(layer, 0.0) + float(kept.square().sum())
            seen.medians[layer] = seen.medians.get(layer, 0.0) + float(kept.abs().median(-1).values.sum())
            seen.others[layer] = seen.others.get(layer, 0.0) + states[rest].double().sum(0).cpu().numpy()

        with tapped(loaded.model, [stack], look):
            run(batch)
        seen.n_tokens += int(batch.valid.sum())
        seen.n_others += int(rest.sum())
    return seen


def _default(seen: _Seen, largest: np.ndarray, width: int) -> int:
    """The dimension whose largest |value| is largest beside its layer's root mean square."""
    mean = np.array([seen.squares[layer] for layer in sorted(seen.squares)]) / (seen.n_tokens * width)
    return int((largest / np.sqrt(np.maximum(mean, 1e-300))[:, None]).max(0).argmax())


def _places(
    loaded: LoadedModel, stack: BoundStack, reading: Reading, batches: Sequence[Batch], dim: int
) -> tuple[int, dict[int, int], tuple[int, int, str]]:
    """(layer after which the dimension is largest, token of each text that carries it there, the largest of these)."""
    import torch

    values: dict[int, list[Tensor]] = {}  # by layer, of each batch [batch, token]

    def look(_: BoundStack, layer: int, states: "Tensor") -> None:
        values.setdefault(layer, []).append(states[..., dim].abs())

    with tapped(loaded.model, [stack], look):
        for batch in batches:
            reading(batch)
    tops = {
        layer: max(float((one * b.valid).max()) for one, b in zip(of, batches, strict=True))
        for layer, of in values.items()
    }
    peak = max(tops, key=lambda layer: (tops[layer], -layer))
    places: dict[int, int] = {}
    best = (-1.0, 0, 0, "")
    for batch, of in zip(batches, values[peak], strict=True):
        masked = torch.where(batch.valid, of, torch.full_like(of, -1.0))
        for row, text in enumerate(batch.texts):
            places[text] = int(masked[row].argmax())
            top = float(masked[row, places[text]])
            if top > best[0]:
                ids = reading.sides(batch)[stack.name][0]
                best = (top, text, places[text], reading.words([int(ids[row, places[text]])])[0])
    return peak, places, (best[1], best[2], best[3])


def _groups(batches: Sequence[Batch], text: int, position: int) -> Callable[[Batch], "Tensor"]:
    """Weights of tokens that make `result.GROUPS` means [group, batch, token]."""
    import torch

    def raw(batch: Batch) -> "Tensor":
        first = first_tokens(batch.valid)
        largest = torch.zeros_like(batch.valid)
        if text in batch.texts:
            largest[batch.texts.index(text), position] = True
        return torch.stack((first, largest, batch.valid & ~first & ~largest)).double()

    counts = sum(raw(batch).sum((1, 2)).cpu() for batch in batches)
    assert not isinstance(counts, int)  # there is a batch
    return lambda batch: raw(batch) / counts.clamp(min=1).to(batch.valid.device)[:, None, None]


def _writers(
    found: Account, stack: BoundStack, turn: tuple[int, int], least: float
) -> tuple[float, list[tuple[float, Entry]]]:
    """The fewest parts that carry the lift of the largest token, [] where no few do or its peak is below `least`.

    `turn` is (layer that lifts it, layer of its peak). Where the stream is a sum, the lift is the value at the peak, made by
    all parts before it. Where blocks end in a norm of it, the lift is what one block changes, from norm to norm; what its
    norms make of the value that it was given counts as theirs.
    """
    lifts, peak = turn
    values = found.values[:, LARGEST]
    post_norm = stack.stack.norm_site == "stream"
    before = float(values[lifts]) if post_norm and lifts > EMBEDDINGS else 0.0
    total = float(values[lifts + 1]) - before if post_norm else float(values[peak + 1])
    parts = []
    for entry in found.entries:
        value = float(entry.values[LARGEST]) - before * (entry.kind == "carried")
        if entry.layer == lifts if post_norm else entry.layer <= peak and entry.kind != "carried":
            parts.append((value, replace(entry, kind="norm scale") if entry.kind == "carried" else entry))
    parts.sort(key=lambda one: -abs(one[0]))
    sizes = np.array([value for value, _ in parts])
    if abs(values[peak + 1]) >= least:
        for n in range(1, min(FEW, len(parts)) + 1):
            rest = sizes[n:]
            if abs(rest.sum()) <= LEFT * abs(total) and np.sqrt(np.square(rest).sum()) <= ROUGH * abs(total):
                return total, parts[:n]
    return total, []


def _weights(
    loaded: LoadedModel, dim: int, run: Callable[[Batch], None], batch: Batch, at: tuple[int, int],
    writers: Sequence[tuple[float, Entry]], lift: float,
) -> Iterator[Weight]:  # fmt: skip
    """The single weights that the writers write through; of a head the fewest channels that make 95 % of what it writes."""
    parameters = live_parameters(loaded.model)
    for value, entry in writers:
        if not entry.parameter or entry.parameter not in parameters:
            continue
        chosen: list[tuple[float, tuple[int, ...]]]
        if entry.kind == "embedding":
            row = _row(loaded, run, batch, at, entry.name)
            chosen = [(value, (row, dim))] if row >= 0 else []
        elif entry.columns is None:
            chosen = [(value, entry.places[0])]
        else:
            channels = entry.columns[LARGEST]
            order = np.argsort(-channels * np.sign(value))[:CHANNELS]
            n = int(np.argmax(np.cumsum(channels[order]) * np.sign(value) >= (1 - LEFT) * abs(value))) + 1
            chosen = [(float(channels[k]), entry.places[k]) for k in order[:n]]
        for share, place in chosen:
            held = float(parameters[entry.parameter].detach()[place])
            yield Weight(layer_name(entry.layer), entry.parameter, place, held, share / lift)


def _row(loaded: LoadedModel, run: Callable[[Batch], None], batch: Batch, at: tuple[int, int], path: str) -> int:
    """The row that the table at `path` gives the token `at` (row, place) of a batch; -1 where it is no table."""
    from torch import nn

    module = loaded.model.get_submodule(path)
    if not isinstance(module, nn.Embedding):
        return -1
    given: list[Tensor] = []

    def keep(values: "Tensor") -> "Tensor":
        given.append(values.expand(*batch.valid.shape, values.shape[-1])[at])
        return values

    with edited_calls(loaded.model, {}, {module: keep}):
        run(batch)
    weight = module.weight.detach()
    # Some tables multiply their rows by a constant, so the direction tells.
    return int(((weight @ given[0]) / weight.norm(dim=1).clamp(min=1e-30)).argmax())


def _turns(values: np.ndarray, peak: int) -> tuple[int, int | None]:
    """(layer that takes the value furthest towards its peak, layer after it that takes most away) of [layer + 1]."""
    steps = np.diff(values, prepend=0.0) * np.sign(values[peak + 1])
    lifts = int(steps[: peak + 2].argmax()) + EMBEDDINGS
    later = steps[peak + 2 :]
    falls = int(later.argmin()) + peak + 1 if len(later) and later.min() < 0 else None
    return lifts, falls


def _parts(found: Account, n_neurons: int) -> Iterator[Part]:
    """The account's entries, of each MLP the largest neurons by themselves and the others added up."""
    by_mlp: dict[tuple[int, str], list[Entry]] = {}
    for entry in found.entries:
        if entry.kind == "neuron":
            by_mlp.setdefault((entry.layer, entry.name), []).append(entry)
        else:
            yield _part(entry)
    for (layer, name), neurons in by_mlp.items():
        neurons.sort(key=lambda one: -float(np.abs(one.values).max()))
        yield from map(_part, neurons[:n_neurons])
        if others := neurons[n_neurons:]:
            yield _part(
                Entry(layer, "neuron", name, -1, np.sum([one.values for one in others], axis=0)), "other neurons"
            )


def _part(entry: Entry, kind: str = "") -> Part:
    return Part(layer_name(entry.layer), kind or entry.kind, entry.name, entry.index, *map(float, entry.values))


def run(session: Session, options: TraceOptions) -> Trace:
    """What the command finds."""
    data = session.task_reading.read(offline=session.loading.offline)
    return trace(session.loaded, data, options, command=session.command, progress=session.progress)
