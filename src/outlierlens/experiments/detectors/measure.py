"""Every definition on one model, beside what each finds under its nulls: `detectors(loaded, texts, options)`.

found = detectors(load_model("minilm-l6"), read_texts("excerpt", limit=32))
found.agreement(); found.of("massive").dims; found.of("timkey", "rotated basis").dims

One streaming pass over the texts serves all definitions on activations, in the model's basis and in a rotated one; a null
with other weights is one more pass each. Definitions on weights need no text, and no rotation: their basis is the model's.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.architectures.bind import NO_LINEAR, is_mlp, linear_paths, neurons_of
from outlierlens.data.texts import Data, Texts
from outlierlens.detection.rules import activation_outliers
from outlierlens.errors import BadInput
from outlierlens.experiments.detectors import rules
from outlierlens.experiments.detectors.collection import Collected, collect, sentence_token
from outlierlens.experiments.detectors.from_weights import (
    found_of,
    randomly_initialised,
    rotation,
    shuffled,
    weight_found,
)
from outlierlens.experiments.detectors.options import Asked, DetectorOptions, PassOptions, Settings
from outlierlens.experiments.detectors.result import (
    FINAL,
    MODEL,
    RANDOM,
    ROTATED,
    SHUFFLED,
    Detectors,
    Found,
    LayerValues,
    SuperWeights,
)
from outlierlens.experiments.detectors.super_weights import super_weights, with_trials
from outlierlens.experiments.detectors.table import NAMES, NOT_OF_NEURONS, ON_WEIGHTS, definitions
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.vectors.read import text_stack

if TYPE_CHECKING:
    from outlierlens.session import Session

CONDITION = {"random": RANDOM, "shuffled": SHUFFLED, "rotated": ROTATED}
NO_BASIS = "rests on weights, whose basis is the model's own"
NAMED = {"luo": "luo-share"}  # where `activation_rules` says it otherwise


def detectors(loaded: LoadedModel, texts: Data, options: DetectorOptions | None = None) -> Detectors:
    """What every published definition of an outlier dimension finds, in the model and under nulls.

    Raises:
        BadInput: no such stream or MLP axis, texts that the model cannot read, a state that is not finite, or too few tokens.
    """
    options = options or DetectorOptions()
    if isinstance(texts, Texts) and not is_mlp(options.stack):
        stack = text_stack(loaded, options.stack)
    else:
        stack = loaded.axis(options.stack)
    stream = next(one for one in loaded.stacks if one.blocks == stack.blocks)
    settings, notes = options.reading.settings, []
    turn = rotation(stream_width(loaded.model, stack), seed=options.seed) if "rotated" in options.nulls else None
    own, rotated = collect(loaded, texts, stack, _told(options, MODEL), turn=turn)
    searched = _searched(loaded, texts, stream, options)
    found = [*_found(loaded, stack, own, options, MODEL), _super_found(searched, stack, MODEL)]
    values = [_values(own, MODEL)]
    for null, make in (("random", randomly_initialised), ("shuffled", shuffled)):
        if null not in options.nulls:
            continue
        condition = CONDITION[null]
        try:
            other = make(loaded, seed=options.seed)
            seen, _ = collect(other, texts, stack, _told(options, condition))
            found += _found(other, stack, seen, options, condition)
            found.append(_super_found(_searched(other, texts, stream, options), stack, condition))
            values.append(_values(seen, condition))
        except BadInput as error:
            found = [one for one in found if one.condition != condition]
            found += [Found(name, condition, why_not=str(error)) for name in NAMES]
            notes.append(f"{condition}: not measured: {error}")
    if rotated is not None:
        found += [Found(name, ROTATED, why_not=NO_BASIS) for name in ON_WEIGHTS]
        found += _activation_found(rotated, options, ROTATED)
        values.append(_values(rotated, ROTATED))
    if stack.reads:
        found = [_of_neurons(one) for one in found]
    if isinstance(searched, SuperWeights) and options.trial_texts and isinstance(texts, Texts):
        task = make_task(loaded, texts.first(options.trial_texts), TaskOptions(max_length=options.reading.max_length))
        trials = replace(options.trials, seed=options.seed, progress=options.reading.progress)
        searched = with_trials(loaded, stream, searched, task, trials)
        notes += task.notes
    named = {dim for one in found if one.condition == MODEL for dim in one.named}
    return Detectors(
        provenance=loaded.provenance(seed=options.seed),
        data=texts.source,
        data_digest=texts.digest,
        n_texts=len(texts),
        n_tokens=own.n_tokens,
        n_special=own.n_special,
        max_length=options.reading.max_length,
        special=options.reading.special,
        sentence=sentence_token(loaded, stack, options.reading.sentence),
        stack=stack.name,
        hidden_size=own.energy.shape[1],
        layers=own.layers,
        definitions=definitions(settings, stack),
        found=tuple(sorted(found, key=lambda one: NAMES.index(one.definition))),
        values=tuple(values),
        sizes={dim: size for dim, size in own.sizes.items() if dim in named},
        super_weights=searched if isinstance(searched, SuperWeights) else None,
        notes=(*loaded.notes, *notes, *_notes(own, stack, options)),
    )


def _told(options: DetectorOptions, condition: str) -> PassOptions:
    """The options of the pass, which reports its progress as `condition`."""
    tell = options.reading.progress
    if tell is None:
        return options.reading
    told: Callable[[str, int, int], None] = lambda _, done, total: tell(f"reading: {condition}", done, total)  # noqa: E731
    return replace(options.reading, progress=told)


def _searched(loaded: LoadedModel, texts: Data, stack: BoundStack, options: DetectorOptions) -> SuperWeights | str:
    """The super weights, or why there can be none."""
    if not isinstance(texts, Texts):
        return "searched on a prompt, and these data are no texts"
    if linear_paths(stack) is None:
        return NO_LINEAR
    prompt = texts.texts[0] if options.prompt is None else options.prompt
    return super_weights(loaded, stack, prompt, options.reading.settings, max_length=options.reading.max_length)


def _found(
    loaded: LoadedModel, stack: BoundStack, seen: Collected, options: DetectorOptions, condition: str
) -> Iterator[Found]:
    """What every definition but super weights finds in weights and in one pass; those on weights are of dimensions alone."""
    if stack.reads:
        yield from (Found(name, condition) for name in ON_WEIGHTS if name != "super-weight")
    else:
        yield from weight_found(loaded, stack, options.reading.settings, condition)
    yield from _activation_found(seen, options, condition)


def _of_neurons(found: Found) -> Found:
    """The same with each layer's numbers as names of neurons; or why the definition says nothing of neurons."""
    if found.definition in NOT_OF_NEURONS:
        return Found(found.definition, found.condition, why_not=NOT_OF_NEURONS[found.definition])
    by_block = {int(layer): numbers for layer, numbers in (found.layers or {}).items()}
    return replace(found, dims=(), neurons=tuple(map(str, neurons_of(by_block))))


def _super_found(searched: SuperWeights | str, stack: BoundStack, condition: str) -> Found:
    """The dimensions that super weights write; of an MLP axis the neurons that they read."""
    if isinstance(searched, str):
        return Found("super-weight", condition, why_not=searched)
    layers: dict[str, list[tuple[int, float]]] = {}
    for one in sorted(searched.weights, key=lambda one: one.layer):
        rows = layers.setdefault(str(one.layer), [])
        place = one.column if stack.reads else one.row
        if place not in [known for known, _ in rows]:
            rows.append((place, abs(one.written)))
    return found_of("super-weight", condition, layers, largest_first=True)


def _activation_found(seen: Collected, options: DetectorOptions, condition: str) -> Iterator[Found]:
    """What every definition on activations finds in one pass."""
    settings = options.reading.settings
    outliers = activation_outliers(seen.measured, settings.rules)
    for rule in ("luo", "llm.int8", "massive"):
        layers: dict[str, list[tuple[int, float]]] = {layer: [] for layer in seen.layers}
        for one in outliers:
            if one.rule == rule:
                for layer, strength in zip(one.layers, one.strength, strict=True):
                    layers[layer].append((one.dim, strength))
        yield found_of(NAMED.get(rule, rule), condition, layers, largest_first=True)
    inside = len(seen.measured.layers)  # without the final norm
    blocks, last = tuple(range(seen.layers.count("embeddings"), inside)), (len(seen.layers) - 1,)
    largest = rules.systematic(seen.measured.abs_max, seen.mean_abs[:inside], settings.systematic_ratio)
    flags: dict[str, tuple[rules.Flags, tuple[int, ...]]] = {
        "systematic": (largest, tuple(range(inside))),
        "rudman": (rules.rudman(seen.variances, settings.rudman_factor), last),
        "timkey": (rules.timkey(seen.contributions, settings.timkey_share, settings.timkey_cosine), blocks),
        "macocco": (rules.macocco(seen.medians, seen.high), last),
        "he-kurtosis": (rules.he(seen.energy, settings.he_kurtosis, settings.carrier_share), blocks),
        "bondarenko-out": (rules.bondarenko(seen.fourth, settings.bondarenko_kurtosis, settings.carrier_share), blocks),
        "bondarenko-ffn": (
            rules.bondarenko(seen.written, settings.bondarenko_kurtosis, settings.carrier_share),
            blocks,
        ),
    }
    for name, (flag, pooled) in flags.items():
        if name == "bondarenko-ffn" and np.isnan(seen.written).all():
            yield Found(name, condition, why_not=NO_LINEAR)
        else:
            yield _of_flags(name, condition, flag, pooled, seen.layers)


def _of_flags(name: str, condition: str, flag: rules.Flags, pooled: tuple[int, ...], layers: tuple[str, ...]) -> Found:
    """A rule's flags as `Found`; dimensions of the rows `pooled` are those found, and every row has its own."""
    pairs = {
        layers[row]: [(dim, float(flag.strength[row, dim])) for dim in np.flatnonzero(holds).tolist()]
        for row, holds in enumerate(flag.holds)
    }
    dims = np.flatnonzero(flag.holds[list(pooled)].any(axis=0)).tolist()
    return found_of(name, condition, pairs, dims, largest_first=True)


def _values(seen: Collected, condition: str) -> LayerValues:
    return LayerValues(condition, seen.layers, he_kurtosis=rules.he_parts(seen.energy).sum(1) + 1, **seen.values)


def _notes(own: Collected, stack: BoundStack, options: DetectorOptions) -> Iterator[str]:
    """What a reader of the result should know."""
    yield from stack.stack.notes
    judged = int(np.isfinite(own.medians).all(0).sum())
    if judged < own.medians.shape[1]:
        yield (
            f"macocco judged {judged} of {own.medians.shape[1]} dimensions, those with the largest |h| when memory was set "
            f"aside (limit {options.reading.histogram_bytes:,} bytes)"
        )
    if FINAL in own.layers:
        yield (
            "the last layer is what the final norm makes of the last block's output: rudman and macocco are judged there, and "
            "no definition that pools blocks counts it"
        )
    if not options.reading.special and own.n_special:
        yield "llm.int8 counts special tokens all the same"


def run(session: "Session", options: Asked) -> Detectors:
    """What the command finds, and which layer's agreement it shows beside the pooled one."""
    settings = Settings.parse(options.thresholds)
    reading = replace(options.reading, settings=settings, progress=session.progress)
    texts, _ = session.texts()
    found = detectors(session.loaded, texts, replace(options, reading=reading))
    found.agreement(options.layer)  # an unknown layer is told before anything is shown
    session.show = {"layer": options.layer}
    return found
