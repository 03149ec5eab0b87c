"""What the definitions of an outlier dimension rest on: one streaming pass over the texts, in one basis or two, and nulls.

    own, rotated = gathered(loaded, texts, stack, options, turn=rotation(width, seed=0))
    own.measured, own.variances, own.contributions              # plain arrays [layer, dim]
    for name, pairs, dims in judged(own, options): ...          # by layer the numbers of dimensions, and the pooled ones

Every recorded state is counted as `observe` counts it, with more sums beside, and once more in the rotated basis. All sums
are float64, in memory that does not grow with the texts; a text must come whole, since kurtosis is taken of each.

What a definition should find next to nothing in: other weights for the same architecture (`randomly_initialised`,
`shuffled`), another basis for the same states (`rotation`).
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.study import Progress
from outlierlens.analyses.super_weights import tapped_mlps
from outlierlens.architectures import BoundStack, LastLinear, live_parameters, mlp_axis, refuse_offloaded
from outlierlens.checkpoints import Checkpoint
from outlierlens.data.texts import Batch, Data
from outlierlens.detection.activations import Observer, StreamTally, every_statistic, rule_inputs, taps
from outlierlens.detection.rules import LastOperation, Outlier, Rule, activation_outliers, find
from outlierlens.detection.running_statistics import LayerStats, Moments, rows_of
from outlierlens.detection.weights import Site, measure, sites_of
from outlierlens.errors import BadInput
from outlierlens.models.experts import ExpertCall
from outlierlens.models.forward import check_padding
from outlierlens.models.hooks import layer_name, tapped, tapped_reads
from outlierlens.models.inputs import reading_of
from outlierlens.models.load import LoadedModel
from outlierlens.statistics.ranks import ratio
from outlierlens.vectors.cosines import contributions_of
from outlierlens.vectors.read import final_norm

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.analyses.definitions import DefinitionOptions

Pairs = dict[str, dict[int, float]]  # by layer, then dimension: the number that a rule compares
FINAL = "final norm"  # the row behind the last block: what the model's final norm makes of its output


# --- rules -----------------------------------------------------------------------------------------------------------


def judged(seen: "Basis", options: "DefinitionOptions") -> Iterator[tuple[str, Pairs, tuple[int, ...]]]:
    """Definitions on activations: its name, {layer: {dimension: the number it compares}} and the pooled dimensions."""
    pooled: dict[str, Pairs] = {"luo": {}, "llm.int8": {}, "massive": {}}
    for one in activation_outliers(seen.measured, options.observing.rules):
        for layer, strength in zip(one.layers, one.strength, strict=True):
            pooled[one.rule].setdefault(layer, {})[one.dim] = strength
    for name, pairs in pooled.items():
        dims = {dim for some in pairs.values() for dim in some}
        yield "luo-share" if name == "luo" else name, pairs, tuple(sorted(dims))
    inside = len(seen.measured.layers)  # without the final norm
    rows = {"blocks": slice(seen.layers.count("embeddings"), inside), "last": slice(-1, None), "all": slice(None)}
    for name, where, holds, compared in flags(seen, options.limits):
        pairs = {
            seen.layers[row]: {dim: float(compared[row, dim]) for dim in np.flatnonzero(here).tolist()}
            for row, here in enumerate(holds)
        }
        yield name, pairs, tuple(np.flatnonzero(holds[rows[where]].any(axis=0)).tolist())


def judged_weights(
    checkpoint: Checkpoint, stack: BoundStack, limits: Mapping[str, float], digest: Any
) -> Iterator[tuple[str, Pairs, str]]:
    """Definitions on weights: its name, |z| (luo-rank: ranks) by layer and dimension, and why it says nothing."""
    layers, (site,) = stack.weight_layers, sites_of(stack, "last")
    measured, _ = measure(checkpoint, site, digest)
    kovaleva = Rule("kovaleva", limits["n_sigma"], limits["min_layer_fraction"])
    for rule in (kovaleva, Rule("puccetti", limits["n_sigma"], top_k=int(limits["puccetti_top"]))):
        past: Pairs = {}
        for one, layer, sizes in _past(measured, rule, layers, "z"):
            past.setdefault(layer, {})[one.dim] = max(map(abs, sizes))
        no_bias = f"{site.name} has no bias, and the rule needs both lists"
        yield rule.name, past, no_bias if rule.name == "puccetti" and measured.bias is None else ""
    norms = {one: [layer for layer in layers if some[layer]] for one, some in stack.norms.items()}
    norms = {one: present for one, present in norms.items() if len(present) > 1}
    rule, best = Rule("luo", top_k=int(limits["luo_rank"])), Pairs()
    for module, present in norms.items():
        params = [stack.norms[module][layer] for layer in present]
        site = Site(stack, module, tuple(one[:1] for one in params), tuple(one[1:] for one in params), True)
        for one, layer, ranks in _past(measure(checkpoint, site, digest)[0], rule, present, "rank"):
            if one.p_holm <= limits["luo_rank_p"] / len(norms):
                here = best.setdefault(layer, {})
                here[one.dim] = min(*ranks, here.get(one.dim, rule.top_k))
    alone = "ranks over layers cannot agree: fewer than two blocks, each counted once, have a norm"
    yield "luo-rank", best, "" if norms else alone if stack.norms else "the blocks declare no norm"


def _past(
    measured: LastOperation, rule: Rule, layers: Sequence[int], what: str
) -> Iterator[tuple[Outlier, str, list[float]]]:
    """Each outlier in each layer where it passes, with its "z" or "rank" there, of scale and bias."""
    for one in find(measured, rule):
        for place in sorted({*one.layers_scale, *one.layers_bias}):
            values = (getattr(one, f"{what}_{part}") for part in ("scale", "bias"))
            yield one, str(layers[place]), [some[place] for some in values if some]


def flags(seen: "Basis", limits: dict[str, float]) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """The rules that only live here: name, which layers are pooled, where it holds, and what it compares [layer, dim]."""
    times = ratio(seen.measured.abs_max, seen.mean_abs[: len(seen.measured.layers), None])
    yield "systematic", "all", times > limits["systematic_ratio"], times
    times = ratio(seen.variances, seen.variances.mean(axis=1, keepdims=True))
    yield "rudman", "last", times >= limits["rudman_factor"], times
    cosine = seen.contributions.sum(axis=1, keepdims=True)  # below timkey_cosine there is no anisotropy to share
    part = ratio(seen.contributions, cosine)
    yield "timkey", "blocks", (part >= limits["timkey_share"]) & (cosine >= limits["timkey_cosine"]), part
    times = ratio(seen.medians, seen.high[:, None])
    yield "macocco", "last", times > 1, times  # never of a NaN median
    parts, share = he_parts(seen.energy), limits["carrier_share"]
    larger = np.where(seen.energy > seen.energy.mean(axis=1, keepdims=True), parts, 0)  # others add 1 / width at most
    high = parts.sum(axis=1, keepdims=True) + 1 >= limits["he_kurtosis"]
    yield "he-kurtosis", "blocks", carriers(larger, share, parts.sum(axis=1)) & high, parts
    for name, fourth in (("bondarenko-out", seen.fourth), ("bondarenko-ffn", seen.written)):
        total = np.nan_to_num(fourth).sum(axis=1)
        high = total[:, None] >= limits["bondarenko_kurtosis"]
        yield name, "blocks", carriers(np.nan_to_num(fourth), share, total) & high, fourth


def he_parts(energy: np.ndarray) -> np.ndarray:
    """What every dimension adds to He's kurtosis − 1 [layer, dim], of sums of squares `energy` [layer, dim].

    s_j = energy_j / mean(energy); the parts (s_j − 1)² / width sum to the variance of s (He et al. 2024).
    """
    return np.asarray((ratio(energy, energy.mean(axis=1, keepdims=True)) - 1) ** 2 / energy.shape[1])


def carriers(parts: np.ndarray, share: float, total: np.ndarray) -> np.ndarray:
    """The fewest dimensions whose `parts` [layer, dim] come to `share` of `total` [layer], as bool [layer, dim]."""
    order = np.argsort(-parts, axis=1, kind="stable")
    ordered = np.take_along_axis(parts, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    found = np.zeros(parts.shape, dtype=bool)
    np.put_along_axis(found, order, (before < share * total[:, None]) & (ordered > 0), axis=1)
    return found


# --- sums ------------------------------------------------------------------------------------------------------------


class SequenceKurtosis:
    """Kurtosis mu_4 / s⁴ of all entries of each sequence, and what every dimension adds to it (Bondarenko et al. 2023).

    Sequences that do not vary have none.
    """

    def __init__(self, width: int, device: Any = "cpu"):
        import torch

        self.fourth = torch.zeros(width, dtype=torch.float64, device=device)
        self.n, self.size = 0, 0.0

    def add(self, values: "Tensor") -> None:
        """Take in one sequence, float64 [token, dim]."""
        if not values.numel():
            return
        square = (values - values.mean()).square()
        variance = square.mean()
        if not float(variance) > 0:
            return
        self.fourth += square.square().sum(0) / (values.numel() * variance * variance)
        self.n += 1
        self.size += float(values.abs().max())

    def parts(self) -> np.ndarray:
        """Parts [dim] of the kurtosis, mean over sequences: they sum to it; NaN without a sequence that varies."""
        return np.asarray(self.fourth.cpu().numpy() / self.n) if self.n else np.full(len(self.fourth), np.nan)

    @property
    def inf_norm(self) -> float:
        """Mean over sequences of the largest |entry|."""
        return self.size / self.n if self.n else math.nan


class LayerSums:
    """What systematic, rudman, timkey, he and bondarenko need of the `n` token vectors of one layer."""

    def __init__(self, width: int, device: Any = "cpu"):
        import torch

        none = torch.zeros(width, dtype=torch.float64, device=device)
        self.n, self.size = 0, 0.0
        self.energy, self.unit, self.unit_square = none.clone(), none.clone(), none.clone()
        self.kurtosis = SequenceKurtosis(width, device)
        self.sentences = Moments(0, none, none, none, none)

    def add(self, vectors: "Tensor", sentence: "Tensor") -> None:
        """Take in the counted tokens of one text, float64 [token, dim], and the vector that stands for it [dim]."""
        square = vectors.square()
        self.n += len(vectors)
        self.size += float(vectors.abs().sum())
        self.energy += square.sum(0)
        # A vector of length 0 has no direction and adds nothing.
        unit = vectors / square.sum(1, keepdim=True).sqrt().clamp_min(1e-300)
        self.unit += unit.sum(0)
        self.unit_square += unit.square().sum(0)
        self.kurtosis.add(vectors)
        self.sentences = self.sentences.merged(Moments.of(sentence[None].clone()))

    @property
    def mean_abs(self) -> float:
        """Mean |h| over tokens and dimensions."""
        return self.size / (self.n * len(self.energy)) if self.n else math.nan

    def contributions(self) -> np.ndarray:
        """What every dimension adds to the mean cosine of all pairs of token vectors [dim]."""
        return contributions_of(self.unit.cpu().numpy(), self.unit_square.cpu().numpy(), self.n)

    def variances(self) -> np.ndarray:
        """Variance of every dimension over the texts' own vectors [dim]."""
        return np.asarray((self.sentences.m2 / max(self.sentences.count, 1)).cpu().numpy())


# --- the pass --------------------------------------------------------------------------------------------------------


def gathered(
    loaded: LoadedModel, texts: Data, stack: BoundStack, options: "DefinitionOptions", *,
    turn: "Tensor | None" = None, progress: Progress | None = None,
) -> "list[Basis]":  # fmt: skip
    """One pass over `texts`: what it gathers in the model's own basis, and in that of `turn` [dim, dim] if one is given.

    Raises:
        BadInput: texts that the model cannot read, a state that is not finite, or fewer than two tokens that count.
    """
    import torch

    observing = replace(options.observing, stack=stack.name if stack.reads else None, progress=progress)
    observer = Observer(loaded, observing, reading_of(loaded, texts, options.max_length))
    if stack.name not in observer.streams:
        raise BadInput(f"{loaded.name}: these data do not reach stream {stack.name!r}")
    turns = [None] if turn is None else [None, turn.to(observer.streams[stack.name].device)]
    bases = [Basis(loaded, stack, observer, options, one) for one in turns]
    for batch in observer.batches(texts):
        with torch.inference_mode(), ExitStack() as inside:
            for basis in bases:
                basis.take_in(batch, inside)
            observer.reading(batch)
    for basis in bases:
        basis.finish()
    return bases


def _unwritten(loaded: LoadedModel, stack: BoundStack) -> str:
    """Why what the last linears write is not seen as one; "" where it is."""
    if stack.reads:
        return "of neurons, which are what the last linear reads"
    try:
        mlp_axis(stack, live_parameters(loaded.model))
    except BadInput as error:
        return str(error)
    return ""


class Basis:
    """Sums in one basis, the model's own or that of `turn` [dim, dim]; once finished, float64 arrays.

    Attributes:
        layers: "embeddings", the blocks, and "final norm" where there is one; of an MLP axis the blocks alone.
        measured: for `detection.rules`, over the layers without the final norm.
        energy, variances, contributions: sums of h², variance of the texts' own vectors, parts of the mean cosine [layer, dim].
        fourth, written: parts of the kurtosis of states, and of what the last linear writes [layer, dim]; NaN without a tap.
        unwritten: why there is none, "" where there is.
        medians: of |h| [layer, dim], NaN where memory did not reach; high: the quantile of all |h| [layer].
        mean_abs: of |h| [layer]. numbers: further ones [layer] by name. n_tokens, n_special: read, padding not counted.
    """

    def __init__(
        self, loaded: LoadedModel, stack: BoundStack, observer: Observer, options: "DefinitionOptions", turn: "Tensor | None"
    ):  # fmt: skip
        self.loaded, self.stack, self.observer, self.options, self.turn = loaded, stack, observer, options, turn
        self.device = observer.streams[stack.name].device
        self.stats = StreamTally(stack, options.observing, self.device)
        self.sums: dict[int, LayerSums] = {}
        self.linears: dict[int, SequenceKurtosis] = {}
        self.norm, self.n_tokens, self.n_special = final_norm(loaded, stack), 0, 0
        self.unwritten = _unwritten(loaded, stack)
        self.last = loaded.head == "causal" or stack.name.startswith(
            "decoder"
        )  # this token stands for a text, else the first

    def take_in(self, batch: Batch, inside: ExitStack) -> None:
        """Count what the next forward pass, on `batch`, shows; hooks are left to `inside`."""
        self.n_tokens += int(batch.valid.sum())
        self.n_special += int(batch.special.sum())
        side = self.observer.reading.sides(batch)[self.observer.sides[self.stack.name]]
        tokens, marked, valid = (part.to(self.device) for part in side)
        parts = [valid & ~marked, valid & marked]
        ordinary, special = (rows_of(part, valid, tokens, batch.texts) for part in parts)
        self.observer.groups = 2 if bool(marked.any()) else self.observer.groups
        room = self.observer.groups, self.observer.columns_per_layer()
        counted = valid if self.options.special else parts[0]
        places = valid.long().argmax(1)
        if self.last:
            places = valid.shape[1] - 1 - valid.flip(1).long().argmax(1)

        def add(layer: int, states: "Tensor") -> None:
            states = self.turned(states)
            self.stats.add(layer, states, ordinary, special, *room)
            sums = self.sums.setdefault(layer, LayerSums(states.shape[-1], self.device))
            for vectors, kept, place in zip(states.double(), counted, places, strict=True):
                if len(own := vectors[kept]):
                    sums.add(own, vectors[place])

        def look(stack: BoundStack, layer: int, states: "Tensor") -> None:
            check_padding(stack, layer, states, valid)
            add(layer, states)
            if self.norm is not None and layer == stack.n_layers - 1:
                add(stack.n_layers, self.norm(states))

        def look_at_read(_: BoundStack, layer: int, part: int, read: "Tensor") -> None:
            self.stats.add_read(layer, part, self.turned(read), (ordinary, special))

        def look_at_linear(one: LastLinear, call: ExpertCall) -> None:
            values = self.turned(call.given.reshape(*valid.shape, -1)).double()
            kurtosis = self.linears.setdefault(one.layer, SequenceKurtosis(values.shape[-1], self.device))
            for row, kept in zip(values, counted, strict=True):
                kurtosis.add(row[kept])

        inside.enter_context(tapped(self.loaded.model, [self.stack], look))
        inside.enter_context(tapped_reads(self.loaded.model, [self.stack], look_at_read))
        if not self.unwritten:
            inside.enter_context(tapped_mlps(self.loaded, self.stack, look_at_linear))

    def turned(self, values: "Tensor") -> "Tensor":
        """`values` [..., dim] on the device of the counters, in this basis, float32."""
        values = values.to(self.device).float()
        return values if self.turn is None else values @ self.turn

    def finish(self) -> None:
        """Make arrays of what was counted."""
        stats, n_layers = self.stats.layers, self.stack.n_layers
        expected = [*taps(self.stack), *([n_layers] if n_layers in stats else [])]
        if sorted(stats) != expected:
            raise BadInput(f"stream {self.stack.name}: only {len(stats)} of {len(expected)} layers ran on these texts")
        sums = [self.sums[layer] for layer in expected if layer in self.sums]
        if len(sums) < len(expected) or not all(one.n > 1 for one in sums):
            raise BadInput("fewer than two tokens count; give more text, or count special tokens")
        self.layers = tuple(FINAL if layer == n_layers else layer_name(layer) for layer in expected)
        self.mean_abs = np.array([one.mean_abs for one in sums])
        self.energy = np.stack([one.energy.cpu().numpy() for one in sums])
        self.fourth = np.stack([one.kurtosis.parts() for one in sums])
        self.variances = np.stack([one.variances() for one in sums])
        self.contributions = np.stack([one.contributions() for one in sums])
        self.written = np.full(self.energy.shape, np.nan)
        for layer, linear in self.linears.items():
            self.written[layer + 1] = linear.parts()
        view, width = "all" if self.options.special else "without_special", self.energy.shape[1]
        inside = {layer: stats[layer] for layer in expected if layer < n_layers}
        large = np.stack([self.stats.large_share(layer) for layer in inside])
        self.measured = rule_inputs(list(map(layer_name, inside)), every_statistic(inside, view), large)
        share = self.options.limits["macocco_quantile"]
        medians, high, gamma = zip(*(_summary(stats[layer], view, share, width) for layer in expected), strict=True)
        self.medians, self.high = np.stack(medians), np.array(high)
        self.numbers = {
            "mean_cosine": self.contributions.sum(1), "he_kurtosis": he_parts(self.energy).sum(1) + 1,
            "bondarenko_out": self.fourth.sum(1), "bondarenko_ffn": self.written.sum(1), "gamma": np.array(gamma),
            "inf_norm": np.array([one.kurtosis.inf_norm for one in sums]),
        }  # fmt: skip


def _summary(stats: LayerStats, view: str, share: float, width: int) -> tuple[np.ndarray, float, float]:
    """(median |h| of each dimension [dim], the `share` quantile of all |h|, ‖mean‖ / ‖standard deviation‖) of one layer."""
    group, _ = stats.view(view)
    spread, medians, high = float(group.moments.std().norm()), np.full(width, np.nan), math.nan
    if (histogram := group.histogram) is not None:
        kept = slice(None) if histogram.columns is None else histogram.columns.cpu().numpy()
        medians[kept] = histogram.magnitude_quantiles(0.5).cpu().numpy()
        high = histogram.magnitude_quantile(share)
    return medians, high, float(group.moments.mean.norm()) / spread if spread else math.nan


# --- nulls -----------------------------------------------------------------------------------------------------------


def randomly_initialised(loaded: LoadedModel, *, seed: int) -> LoadedModel:
    """A model of the same class and config with the values that training starts from, drawn with `seed`.

    Raises:
        BadInput: the model carries no config that its class can be made from.
    """
    import torch

    model: Any = loaded.model
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise BadInput(
            f"{loaded.name}: a random initialisation is made from a transformers config, which this model lacks"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(config))
    return replace(loaded, model=fresh.to(device=loaded.device, dtype=model.dtype).eval())


def shuffled(loaded: LoadedModel, *, seed: int) -> LoadedModel:
    """A copy of the model with the entries of every parameter permuted within it, drawn with `seed`.

    Parameters that are shared (tied embeddings) stay shared; buffers stay as they are.
    """
    import torch

    refuse_offloaded(loaded.model, "shuffling weights")
    model = copy.deepcopy(loaded.model)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            order = torch.randperm(parameter.numel(), generator=random).to(parameter.device)
            parameter.copy_(parameter.reshape(-1)[order].view_as(parameter))
    return replace(loaded, model=model.eval())


def rotation(width: int, *, seed: int) -> "Tensor":
    """A random orthogonal matrix [dim, dim], float32: Q of a Gaussian matrix, signs made uniform (Mezzadri 2007)."""
    import torch

    random = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(torch.randn(width, width, generator=random, dtype=torch.float64))
    return (q * r.diagonal().sign()).float()
