"""What is said of activation statistics, for every surface: `sections(found)`."""

import math
from collections.abc import Iterator

import numpy as np

from outlierlens.detection.observe.result import (
    LARGE,
    Observation,
    SecondMoments,
    Size,
    StackObservation,
)
from outlierlens.view.charts.base import place
from outlierlens.view.section import Cell, FineShare, Rows, Section, cell_text, number, these

LAYERS = (
    *("layer", "argmin dim", "share", "argmax dim", "share"),
    *("max |h| dim", "max |h|", "token", "position", "median |h|", "γ"),
)
FAR = ("layer", "dimension", "of the tokens", "of the inputs")
SIZES = ("× median", "of the tokens")
OUTLIERS = ("rule", "dimension", "layers", "strongest", *SIZES)
NOTE = "γ: length of the mean hidden state over the length of the standard deviations."
SIZES_NOTE = (
    "In the layer where the dimension is largest: its max |h| over the layer's median |h|, and the share of tokens whose |h| "
    f"there is above {LARGE:g} times that median."
)
MOMENTS = ("layer", "linear", "largest x²", "input", "median x²", "root of largest / median", "found")
NEURONS = ("neuron", "max |x|", "× median neuron", "mean", "std", "token", "position", "massive")
SHOWN = 10  # neurons
NAMED = 3  # dimensions with a sentence of their own


def sections(found: Observation, *, verbose: bool = False, view: str = "all") -> Iterator[Section]:
    """Who is smallest, largest and extreme in every layer, of tokens of `view`; with `verbose` who is far from the mean."""
    if found.moments:
        yield Section(
            "observation", "What each linear reads", tuple(_moments_said(found)), (), (_moments(found, verbose),)
        )
        return
    tables: list[Rows] = []
    for stack in found.stacks:
        if stack.by_neuron:
            tables += _neurons(stack, view, verbose)
            continue
        shown = f"stream {stack.stack}, {'all tokens' if view == 'all' else view.replace('_', ' ') + ' tokens'}"
        tables.append(Rows(f"Extremes by layer: {shown}", LAYERS, tuple(_layers(stack, view)), NOTE))
        if verbose:
            title = f"Most often more than {found.n_sigma:g} standard deviations from the vector's own mean: {shown}"
            tables.append(Rows(title, FAR, tuple(_far(stack, view))))
        if stack.outliers:
            title = f"Found by rules: stream {stack.stack}, all tokens"
            tables.append(Rows(title, OUTLIERS, tuple(_outliers(stack)), SIZES_NOTE))
    yield Section("observation", "Activations", tuple(_sentences(found, verbose, view)), (), tuple(tables))


def _sentences(found: Observation, verbose: bool, view: str) -> Iterator[str]:
    yield (
        f"{found.provenance.model} on {found.data}: {found.n_texts:,} {found.inputs}, {found.n_tokens:,} tokens "
        f"({found.n_special:,} special)."
    )
    for stack in found.stacks:
        if stack.by_neuron:
            yield _largest_neuron(stack, view)
            continue
        dims = tuple(dict.fromkeys(one.dim for one in stack.outliers))
        finds = f"rules on activations find {these(dims)}" if dims else "no rule on activations finds a dimension"
        yield f"Stream {stack.stack}: {finds}."
        for dim in dims[:NAMED]:
            if (size := stack.size_of(dim)) is not None:
                yield f"Stream {stack.stack}: {how_large(dim, size)}"
        for end, shares in stack.pooled_shares(view).items():
            if shares.size and shares.max() > 0:
                dim, most = stack.dims[shares.argmax()], cell_text(FineShare(shares.max()))
                yield f"Stream {stack.stack}, {end} in all blocks pooled: most often dimension {dim}, {most}."
        yield from (f"Stream {stack.stack}: {note}" for note in stack.notes)
    if verbose:
        yield f"SHA-256 of the {found.inputs}: {found.data_digest}"


def how_large(dim: int, size: Size) -> str:
    """How large a dimension is and on which share of the tokens, in a sentence."""
    share = f", and above {LARGE:g} times the median on {size.tokens} of the tokens" if size.tokens else ""
    return (
        f"dimension {dim} is largest in {place(size.layer)}: |h| {number(size.largest)}, {number(size.times)} times the "
        f"median{share}."
    )


def size_cells(size: Size | None) -> tuple[Cell, ...]:
    """The cells under `SIZES`."""
    return (size.times, size.tokens) if size is not None else (None, None)


def _largest_neuron(stack: StackObservation, view: str) -> str:
    (neuron, row, column), *_ = stack.strongest(1, view)
    statistics = stack.view(view)
    largest, ratio = float(statistics.abs_max[row, column]), float(stack.times_median[row, column])
    return (
        f"Stream {stack.stack}: the largest neuron is {neuron}, |x| {cell_text(largest)} at "
        f"{statistics.abs_max_token[row][column]!r}, {cell_text(ratio)} times the largest of its block's median neuron."
    )


def _neurons(stack: StackObservation, view: str, verbose: bool) -> Iterator[Rows]:
    """The largest neurons, and what the rule on massive activations finds among them."""
    statistics, massive = stack.view(view), {(one.layers[0], one.dim) for one in stack.outliers}
    rows = []
    for neuron, row, column in stack.strongest(50 if verbose else SHOWN, view):
        numbers = (float(value[row, column]) for value in (statistics.abs_max, stack.times_median))
        moments = (float(value[row, column]) for value in (statistics.mean, statistics.std))
        place = repr(statistics.abs_max_token[row][column]), int(statistics.abs_max_position[row, column])
        held = "yes" if (stack.layers[row], neuron.neuron) in massive else "no"
        rows.append((str(neuron), *numbers, *moments, *place, held))
    yield Rows(f"Largest neurons: stream {stack.stack}, {view.replace('_', ' ')} tokens", NEURONS, tuple(rows))


def _layers(stack: StackObservation, view: str) -> Iterator[tuple[Cell, ...]]:
    statistics = stack.view(view)
    gamma = stack.gamma(view)
    for row, layer in enumerate(stack.layers):
        ends = (_most(stack, shares[row]) for shares in (statistics.argmin_share, statistics.argmax_share))
        big = int(statistics.abs_max[row].argmax())
        token, position = repr(statistics.abs_max_token[row][big]), int(statistics.abs_max_position[row, big])
        largest, median = float(statistics.abs_max[row, big]), float(statistics.median_abs[row])
        sizes = (largest, token, position, median, float(gamma[row]))
        yield layer, *(cell for end in ends for cell in end), stack.dims[big], *sizes


def _far(stack: StackObservation, view: str) -> Iterator[tuple[Cell, ...]]:
    statistics = stack.view(view)
    for row, layer in enumerate(stack.layers):
        dim, share = _most(stack, statistics.sigma_token_share[row])
        of_inputs = statistics.sigma_input_share[row, statistics.sigma_token_share[row].argmax()]
        yield layer, dim, share, FineShare(of_inputs)


def _most(stack: StackObservation, shares: np.ndarray) -> tuple[int | None, FineShare]:
    """(the dimension of the largest share [column], that share); no dimension where all are 0."""
    place = int(shares.argmax())
    return stack.dims[place] if shares[place] else None, FineShare(shares[place])


def _outliers(stack: StackObservation) -> Iterator[tuple[Cell, ...]]:
    for one in stack.outliers:
        layers = f"{one.layers[0]}–{one.layers[-1]}" if one.layers else "all layers pooled"
        yield one.rule, one.dim, layers, max(one.strength), *size_cells(stack.size_of(one.dim))


def _moments_said(found: Observation) -> Iterator[str]:
    read = f"{found.n_texts:,} {found.inputs}" if found.n_texts else f"an unknown number of {found.inputs}"
    tokens = f", {found.n_tokens:,} vectors at most" if found.n_tokens else ""
    yield (
        f"{found.provenance.model}, second moments from {found.data}: {read}{tokens}, {len(found.moments):,} linears; nothing "
        "was run."
    )
    names = tuple(dict.fromkeys(name for one in found.moments for name in one.names))
    if not names:
        yield 'No root of a second moment passes the rule "massive"; what is large at few tokens alone does not show in it.'
        return
    neurons = [name for name in names if ":" in name]
    dims = tuple(int(name) for name in names if ":" not in name)
    if dims:
        yield f'The rule "massive", held against roots of second moments, finds {these(dims)}.'
    if neurons:
        more = f" and {len(neurons) - 12} more" if len(neurons) > 12 else ""
        yield f'The rule "massive", held against roots of second moments, finds neurons {", ".join(neurons[:12])}{more}.'


def _moments(found: Observation, verbose: bool) -> Rows:
    """Of each kind of linear the layer with the largest moment over median; with `verbose` all."""
    parts = dict.fromkeys(one.part for one in found.moments)
    top = [max((one for one in found.moments if one.part == part), key=_standing) for part in parts]
    shown = found.moments if verbose else top
    left = "" if verbose else " Of each kind the layer where the largest stands out most; --verbose shows all."
    note = f"x²: mean over what was read. Found: root above 100 and above 1,000 times the median root.{left}"
    return Rows("Second moments of what linears read", MOMENTS, tuple(map(_moment, shown)), note)


def _standing(one: SecondMoments) -> float:
    return one.largest / one.median if one.median else one.largest


def _moment(one: SecondMoments) -> tuple[Cell, ...]:
    layer = one.layer if one.layer >= 0 else None
    ratio = math.sqrt(one.largest / one.median) if one.median else math.nan
    return layer, one.part, one.largest, one.dim, one.median, ratio, ", ".join(one.names[:5]) or None
