"""What is said of activation statistics, for every surface: `sections(found)`."""

from collections.abc import Iterator

import numpy as np

from outlierlens.detection.observe.result import Observation, StackObservation
from outlierlens.view.section import Cell, FineShare, Rows, Section, cell_text
from outlierlens.view.words import these

LAYERS = (
    *("layer", "argmin dim", "share", "argmax dim", "share"),
    *("max |h| dim", "max |h|", "token", "position", "median |h|"),
)
FAR = ("layer", "dimension", "of the tokens", "of the inputs")
NEURONS = ("neuron", "max |x|", "× median neuron", "mean", "std", "token", "position", "massive")
SHOWN = 10  # neurons
OUTLIERS = ("rule", "dimension", "layers", "strongest")


def sections(found: Observation, *, verbose: bool = False, view: str = "all") -> Iterator[Section]:
    """Who is smallest, largest and extreme in every layer, of tokens of `view`; with `verbose` who is far from the mean."""
    tables: list[Rows] = []
    for stack in found.stacks:
        if stack.by_neuron:
            tables += _neurons(stack, view, verbose)
            continue
        shown = f"stream {stack.stack}, {'all tokens' if view == 'all' else view.replace('_', ' ') + ' tokens'}"
        tables.append(Rows(f"Extremes by layer: {shown}", LAYERS, tuple(_layers(stack, view))))
        if verbose:
            title = f"Most often more than {found.n_sigma:g} standard deviations from the vector's own mean: {shown}"
            tables.append(Rows(title, FAR, tuple(_far(stack, view))))
        if stack.outliers:
            tables.append(Rows(f"Found by rules: stream {stack.stack}, all tokens", OUTLIERS, tuple(_outliers(stack))))
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
        for end, shares in stack.pooled_shares(view).items():
            if shares.size and shares.max() > 0:
                dim, most = stack.dims[shares.argmax()], cell_text(FineShare(shares.max()))
                yield f"Stream {stack.stack}, {end} in all blocks pooled: most often dimension {dim}, {most}."
        yield from (f"Stream {stack.stack}: {note}" for note in stack.notes)
    if verbose:
        yield f"SHA-256 of the {found.inputs}: {found.data_digest}"


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
    for row, layer in enumerate(stack.layers):
        ends = (_most(stack, shares[row]) for shares in (statistics.argmin_share, statistics.argmax_share))
        big = int(statistics.abs_max[row].argmax())
        token, position = repr(statistics.abs_max_token[row][big]), int(statistics.abs_max_position[row, big])
        largest, median = float(statistics.abs_max[row, big]), float(statistics.median_abs[row])
        yield layer, *(cell for end in ends for cell in end), stack.dims[big], largest, token, position, median


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
        yield one.rule, one.dim, layers, max(one.strength)
