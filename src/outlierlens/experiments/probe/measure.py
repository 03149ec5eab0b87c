"""The measure itself: texts in, one probe per layer trained and evaluated, a `PositionProbe` out.

found = probe_positions(loaded, split, clipping, ProbeOptions(epochs=1))

How positions get into a model, seen from its states rather than from its name.

in_embeddings(loaded, tokens, reading)         # do the embeddings of one token differ by where it stands?
left_only(loaded, tokens, reading)             # does a token see what stands before it alone?
"""

from dataclasses import dataclass, replace

import numpy as np

from outlierlens.data.labelled.labels import apart
from outlierlens.data.texts import Texts, read_texts
from outlierlens.errors import BadInput
from outlierlens.experiments.probe.flow import Flow, FlowOptions, Split, counted, split_texts
from outlierlens.experiments.probe.judge import Judged, JudgeOptions, Plan, Probes, Variants, judge, scales_of
from outlierlens.experiments.probe.options import ProbeCall, ProbeOptions
from outlierlens.experiments.probe.result import Contribution, LayerProbe, PositionProbe
from outlierlens.models.hooks import EMBEDDINGS, layer_name
from outlierlens.models.load import LoadedModel
from outlierlens.session import Session
from outlierlens.statistics.bootstrap import poisson_times
from outlierlens.statistics.ranks import ranks_from_top
from outlierlens.vectors.clip import Clipping
from outlierlens.vectors.options import Fitting
from outlierlens.vectors.read import ReadOptions, Tokens, final_norm, text_stack, token_batches, tokenise, wanted_layers

FEW = 32  # texts that are looked at
SAME = 1e-3  # of a vector's length: a smaller difference is rounding
TRAIN_TOKENS = 100_000
DEV_TOKENS = 40_000
MOST_TEXTS = 50_000  # that are tokenised to find so many tokens
CLIP_TEXTS = 500  # that --clip auto observes where no --fit-data is named: argmin shares settle long before
FEWEST = 10  # texts that say how another training set could differ
HEAT_DIMS = 12  # largest contributors that a heat map shows beside the named dimensions


def in_embeddings(loaded: LoadedModel, tokens: Tokens, reading: ReadOptions) -> bool | None:
    """Whether the embeddings of one token differ by its position; None where no token stands at two positions."""
    options = replace(reading, layers=(EMBEDDINGS,), final_norm=False, progress=None)
    seen: dict[int, tuple[int, np.ndarray]] = {}
    found = None
    texts = [int(i) for i in np.argsort(-tokens.lengths, kind="stable")[:FEW]]
    for batch in token_batches(loaded, tokens, options, order=texts):
        states = batch.states[0].float().cpu().numpy()
        ids, ordinary = batch.ids.cpu().numpy(), batch.ordinary.cpu().numpy()
        for row, column in zip(*np.nonzero(ordinary), strict=True):
            where, vector = seen.setdefault(int(ids[row, column]), (int(column), states[row, column]))
            if where != column:
                if _differ(vector, states[row, column]):
                    return True
                found = False
    return found


def left_only(loaded: LoadedModel, tokens: Tokens, reading: ReadOptions) -> bool | None:
    """Whether the first token's state stays the same without the text's last token; None without a text of three tokens.

    The shortest such text is taken, so that the last token is within reach of the first where attention is local.
    """
    lengths = tokens.lengths
    long_enough = [int(i) for i in np.argsort(lengths, kind="stable") if lengths[i] >= 3]
    if not long_enough:
        return None
    options = replace(
        reading, layers=(text_stack(loaded, reading.stack).n_layers - 1,), final_norm=False, progress=None
    )
    first = []
    for one in (_text(tokens, long_enough[0], less) for less in (0, 1)):
        (batch,) = token_batches(loaded, one, options)
        first.append(batch.states[0][0, 0].float().cpu().numpy())
    return not _differ(*first)


def _text(tokens: Tokens, text: int, less: int) -> Tokens:
    """One text alone, without its last `less` tokens."""
    end = int(tokens.lengths[text]) - less
    encoded = {key: [values[text][:end]] for key, values in tokens.encoded.items()}
    return Tokens((tokens.texts[text],), encoded, (tokens.special[text][:end],), None, tokens.max_length)


def _differ(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.linalg.norm(one - other) > SAME * np.linalg.norm(one))


def probe_positions(
    loaded: LoadedModel, split: Split, clipping: Clipping, options: ProbeOptions | None = None, *, command: str = ""
) -> PositionProbe:
    """One linear probe without bias a layer, trained on `split.train`, evaluated on `split.dev` (Luo et al. 2021, section 3).

    All layers are trained by one forward pass an epoch and evaluated by one more. Contributions are |w · v| of single
    tokens, absolute first and averaged over all evaluated tokens then; the paper leaves both the row and the order open.

    Raises:
        BadInput: no token that counts, no second position, a clipped dimension that the vectors do not have, or what the
            forward pass raises.
    """
    options = options or ProbeOptions()
    reading = options.read
    stack = text_stack(loaded, reading.stack)
    names = tuple(layer_name(layer) for layer in wanted_layers(stack, reading.layers))
    whole = options.whole or options.limit is not None
    train = _tokens(loaded, split.train.texts[: options.limit], options, None if whole else TRAIN_TOKENS)
    dev = _tokens(loaded, split.dev.texts, options, None if options.whole else DEV_TOKENS)
    places = [counted(loaded, one, reading.stack, special=options.special) for one in (train, dev)]
    n_positions, left_out = _positions(places, options)
    trained_at = np.bincount(np.concatenate(places[0]), minlength=n_positions)[:n_positions]

    probes, flow = _train(loaded, train, clipping, names, n_positions, options)
    variants, clipped, retrained = _variants(probes, clipping, names)
    told = reading.told("evaluating")
    judged = judge(loaded, dev, variants, JudgeOptions(told, options.row, options.special))
    few = _few(flow, options)
    if few:
        judged = replace(judged, redrawn=np.full_like(judged.redrawn, np.nan))
    majority = int(trained_at.argmax())
    named = clipping.every
    layers = tuple(
        _layer(
            _One(name, place, clipped.get(place), retrained.get(place), clipping.at(name)),
            float(probes.scale[place]), judged, named, options.seed,
        )
        for place, name in enumerate(names)
    )  # fmt: skip
    return PositionProbe(
        provenance=loaded.provenance(command=command, seed=options.seed),
        stack=stack.name,
        train=split.train.source,
        dev=split.dev.source,
        n_train=len(train.texts),
        n_train_tokens=int(trained_at.sum()),
        n_dev=int((judged.n > 0).sum()),
        n_dev_tokens=int(judged.n.sum()),
        n_positions=n_positions,
        n_trained_at=trained_at,
        n_at=judged.n_at,
        majority=majority,
        majority_accuracy=float(judged.n_at[majority] / judged.n.sum()),
        epochs=options.passes,
        learning_rate=options.learning_rate,
        batch=options.batch,
        row=options.row,
        special=options.special,
        max_length=train.max_length,
        final_norm=bool(reading.final_norm and final_norm(loaded, stack)),
        clip=clipping.name,
        clip_source=clipping.source,
        cached=flow.options.cache,
        in_embeddings=in_embeddings(loaded, dev, reading),
        left_only=left_only(loaded, dev, reading),
        layers=layers,
        notes=(*loaded.notes, *split.notes, *_notes(split, train, dev, flow, left_out), *few),
        n_redraws=options.redraws,
    )


def _tokens(loaded: LoadedModel, texts: tuple[str, ...], options: ProbeOptions, budget: int | None) -> Tokens:
    """Of `texts` the first that have `budget` tokens together; None takes all."""
    tokens = tokenise(loaded, texts if budget is None else texts[:MOST_TEXTS], max_length=options.max_length)
    if budget is None:
        return tokens
    n = max(1, int(np.searchsorted(np.cumsum(tokens.lengths), budget, side="right")))
    encoded = {key: values[:n] for key, values in tokens.encoded.items()}
    offsets = None if tokens.offsets is None else tokens.offsets[:n]
    return Tokens(tokens.texts[:n], encoded, tokens.special[:n], offsets, tokens.max_length)


def _positions(places: list[list[np.ndarray]], options: ProbeOptions) -> tuple[int, int]:
    """(classes, tokens behind the last of them) of the counted positions [side][text][token]."""
    sides = [np.concatenate(side) for side in places]
    longest = 1 + max((int(side.max()) for side in sides if len(side)), default=0)
    n_positions = min(longest, options.positions or longest)
    for side, what in zip(sides, ("train on", "evaluate"), strict=True):
        if not (side < n_positions).any():
            raise BadInput(f"there is no token to {what} in these texts; give longer ones, or count special tokens too")
    if n_positions < 2:
        raise BadInput("all tokens stand at the first position, so there is nothing to predict; give longer texts")
    return n_positions, int(sum((side >= n_positions).sum() for side in sides))


def _train(
    loaded: LoadedModel,
    train: Tokens,
    clipping: Clipping,
    names: tuple[str, ...],
    n_positions: int,
    options: ProbeOptions,
) -> tuple[Probes, Flow]:
    """All probes, trained: one a layer, then one a layer that is clipped."""
    import torch

    from outlierlens.models.load import stream_width

    width = stream_width(loaded.model, text_stack(loaded, options.read.stack))
    beyond = [dim for dim in clipping.every if dim >= width]
    if beyond:
        raise BadInput(f"dimension {beyond[0]} cannot be clipped; the vectors have dimensions 0 to {width - 1}")
    again = [place for place, name in enumerate(names) if options.retrain and clipping.at(name)]
    of = (*range(len(names)), *again)
    without = (*(() for _ in names), *(clipping.at(names[place]) for place in again))
    plan = Plan(of, without, width, n_positions, options.redraws)
    dealt = FlowOptions(
        options.read, n_positions, options.special, options.batch, options.seed, options.passes, cache=False
    )
    flow = Flow(loaded, train, dealt, width)
    if options.passes > 1 and flow.cache_bytes <= options.read.budget.cache_gb * 1e9:
        flow = Flow(loaded, train, replace(dealt, cache=True), width)
    probes = None
    times = torch.from_numpy(poisson_times(len(train.texts), options.redraws, seed=options.seed)).to(loaded.device)
    for epoch in range(options.passes):
        for states, positions, texts in flow.steps(epoch):
            if probes is None:
                probes = Probes(plan, scales_of(states), learning_rate=options.learning_rate)
            probes.step(states, positions, times[texts])
    assert probes is not None  # `_positions` found tokens to train on
    return probes, flow


def _variants(
    probes: Probes, clipping: Clipping, names: tuple[str, ...]
) -> tuple[Variants, dict[int, int], dict[int, int]]:
    """(what is evaluated, {layer: its probe on clipped vectors}, {layer: its probe that was trained on them})."""
    import torch

    weights = [probes.weight[: len(names)]]
    redrawn = list(probes.redrawn[: len(names)])
    of = list(range(len(names)))
    clipped: dict[int, int] = {}
    for place, name in enumerate(names):
        if clipping.at(name):
            # Zero in the vector and zero in the weight give the same logit.
            one, copies = probes.weight[place].clone(), probes.redrawn[place].clone()
            for weight in (one, copies):
                weight[list(clipping.at(name))] = 0
            clipped[place] = len(of)
            of.append(place)
            weights.append(one[None])
            redrawn.append(copies)
    again = probes.plan.of[len(names) :]
    retrained = {place: len(of) + number for number, place in enumerate(again)}
    weights.append(probes.weight[len(names) :])
    redrawn += probes.redrawn[len(names) :]
    copies_of = tuple(redrawn) if probes.plan.n_redraws else ()
    return Variants((*of, *again), torch.cat(weights), probes.scale, copies_of), clipped, retrained


@dataclass(frozen=True)
class _One:
    """A layer: its name, its row, the variants of it, and what is clipped there."""

    name: str
    place: int
    clipped: int | None
    retrained: int | None
    dims: tuple[int, ...]


def _layer(one: _One, scale: float, judged: Judged, named: tuple[int, ...], seed: int) -> LayerProbe:
    at_position = judged.contribution[one.place].astype(np.float64)  # [position, dim]
    value = at_position.sum(0) / judged.n.sum()
    order, ranks = np.argsort(-value, kind="stable"), ranks_from_top(value)

    def contribution(dim: int) -> Contribution:
        return Contribution(dim, float(value[dim]), int(ranks[dim]))

    others = [int(dim) for dim in order if int(dim) not in named] or [int(order[0])]
    heat_dims = tuple(dict.fromkeys((*named, *others[:HEAT_DIMS])))
    return LayerProbe(
        layer=one.name,
        scale=scale,
        raw=judged.score(one.place, seed=seed),
        clipped_dims=one.dims,
        clipped=None if one.clipped is None else judged.score(one.clipped, seed=seed),
        clipped_change=None if one.clipped is None else judged.change(one.clipped, one.place, seed=seed),
        retrained=None if one.retrained is None else judged.score(one.retrained, seed=seed),
        retrained_change=None if one.retrained is None else judged.change(one.retrained, one.place, seed=seed),
        contribution=value,
        mean=float(value.mean()),
        weight=judged.weight[one.place] / scale,
        named=tuple(contribution(dim) for dim in named),
        other=contribution(others[0]),
        heat_dims=heat_dims,
        heat=at_position[:, list(heat_dims)] / np.maximum(judged.n_at, 1)[:, None],
    )


def _few(flow: Flow, options: ProbeOptions) -> tuple[str, ...]:
    """What is said where too few texts are trained on to draw them again."""
    if not options.redraws or len(flow.texts) >= FEWEST:
        return ()
    return (
        f"{len(flow.texts)} texts were trained on, and fewer than {FEWEST} do not say how another training set would differ: "
        f"no interval is settled (--redraws 0 gives those over the evaluated texts alone)",
    )


def _notes(split: Split, train: Tokens, dev: Tokens, flow: Flow, left_out: int) -> list[str]:
    said = []
    for tokens, texts, verb in ((train, split.train, "trained on"), (dev, split.dev, "evaluated")):
        if len(tokens.texts) < len(texts):
            said.append(
                f"{len(tokens.texts):,} of {len(texts):,} texts of {texts.source} were {verb}, drawn by the seed"
            )
        cut = tokens.n_full
        if cut:
            said.append(
                f"{cut:,} texts of {texts.source} reach the limit of {tokens.max_length} tokens and may be cut there"
            )
    if left_out:
        said.append(f"{left_out:,} tokens at later positions than the {flow.options.n_positions} probed were left out")
    if flow.options.n_epochs > 1 and not flow.options.cache:
        said.append(
            f"the vectors of all tokens take {flow.cache_bytes / 1e9:.1f} GB and the budget is "
            f"{flow.options.read.budget.cache_gb:g} GB, so every epoch ran the model again (--cache-gb)"
        )
    return said


def run(session: Session, options: ProbeCall) -> PositionProbe:
    """What `probe` finds in the texts that the command line names."""
    reads, fits, offline = session.vectors, session.fitting, session.loading.offline
    texts, _ = session.texts()
    dev = options.dev_data and read_texts(options.dev_data, column=session.reading.text_column, offline=offline)
    split = split_texts(texts, dev or None, seed=options.seed)
    how = reads.into(options, session.loaded, progress=session.progress)
    seen = _to_observe(fits, split, options.seed, offline) if fits.clip == "auto" else None
    return probe_positions(session.loaded, split, fits.clipping(session.loaded, seen, reads.stack), how)


def _to_observe(fits: Fitting, split: Split, seed: int, offline: bool) -> Texts:
    """What `--clip auto` observes: --fit-data without the evaluated texts, or some of the training texts."""
    fit = fits.texts(offline=offline)
    if fit is None:
        return split.train.first(min(CLIP_TEXTS, fits.fit_limit))
    return apart(fit, split.dev.texts, limit=fits.fit_limit, seed=seed)[0]
