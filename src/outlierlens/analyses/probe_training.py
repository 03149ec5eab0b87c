"""The training and the evaluation of position probes: one forward pass an epoch, in a memory that does not grow with the texts.

    flow = Flow(loaded, tokens, FlowOptions(reading, n_positions=66, seed=0), width)
    for states, positions, texts in flow.steps(epoch): …        # [layer, token, dim], [token], [token]; 128 tokens a time

Texts come in an order drawn anew each epoch, in pools of a few thousand tokens: within a pool they are sorted by length, so
that little is padding, and its tokens are shuffled before they are dealt out.

    probes = Probes(Plan(of, without, width, n_positions, n_redraws=7), scales_of(states), learning_rate=0.003)
    probes.step(states, positions, times)               # [layer, token, dim], [token], [token, redraw]
    judged = judge(loaded, tokens, variants, reading)
    judged.contribution[3].sum(0) / judged.n_at.sum()   # mean |w · v| of layer 3 [dim]

Linear probes without bias, of all layers at once, by Adam on the cross-entropy. The sum of their losses has no term with two
probes in it, and Adam works number by number: trained together they are what they would be alone. All begin at zero (the loss
is convex, so nothing is lost by that), which leaves no trace of a random start in what a dimension contributes. Beside each
probe stand its redraws: the same probe where tokens count as often as their text was drawn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.data.labelled.labels import apart, once
from outlierlens.data.texts import Texts
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.results.rows import Estimate
from outlierlens.statistics.bootstrap import bca, deviation, mean_value, poisson_times, with_training
from outlierlens.statistics.means import NORMAL
from outlierlens.vectors.read import (
    ReadOptions,
    TokenBatch,
    Tokens,
    text_forward,
    text_stack,
    token_batches,
    wanted_layers,
)

if TYPE_CHECKING:
    from torch import Tensor

    Dealt = tuple[Tensor, Tensor, Tensor]  # states [layer, token, dim], positions [token], texts [token]

HELD_OUT = 5  # one text in so many, where one data set is all there is
LEAST = 10  # texts that can be split, and texts that say how another training set could differ
POOL_BYTES = 128 * 2**20  # vectors of all layers that are shuffled together
POOL_TOKENS = 4096
N_DRAWS = 2000


# --- texts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Texts to train on and to evaluate, both in an order drawn by the seed, and notes about them."""

    train: Texts
    dev: Texts
    notes: tuple[str, ...] = ()


def split_texts(data: Texts, dev: Texts | None, *, seed: int) -> Split:
    """`data` to train on and `dev` to evaluate; without `dev` a fifth of the texts of `data`, drawn by `seed`.

    A text counts once, however often it stands in `data`; one that is evaluated is not trained on.

    Raises:
        BadInput: both are the same, too few texts are left, or fewer than ten are to be split.
    """
    if dev is not None:
        if dev.digest == data.digest:
            raise BadInput(
                f"{data.source} and {dev.source} hold the same texts; evaluate on others (--dev-data), or leave --dev-data "
                f"out and a fifth of the texts is held out"
            )
        train, dropped = apart(data, dev.texts)
        gone = f"{dropped:,} texts of {data.source} are evaluated, so they were not trained on"
        return Split(_drawn(train, seed), _drawn(dev, seed), (gone,) if dropped else ())
    different = list(once(data.keys).values())
    if len(different) < LEAST:
        raise BadInput(
            f"{data.source} holds {len(different)} different texts, and {LEAST} are needed to train on some and evaluate on "
            f"others; give more, or name others with --dev-data"
        )
    drawn = _drawn(data.some(different), seed)
    n = len(drawn) // HELD_OUT
    note = f"{n:,} of {len(drawn):,} texts of {data.source} were held out for evaluation, drawn by the seed"
    return Split(replace(drawn, texts=drawn.texts[n:]), drawn.first(n), (note,))


def _drawn(texts: Texts, seed: int) -> Texts:
    order = np.random.default_rng([seed, 13]).permutation(len(texts))
    return replace(texts, texts=tuple(texts.texts[i] for i in order.tolist()))


# --- tokens, shuffled --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FlowOptions:
    """How tokens are read and dealt out.

    Attributes:
        read: of the forward pass; its `progress` is told of each epoch.
        n_positions: tokens at later positions are left out.
        special: count special tokens too.
        batch: tokens of a step.
        seed: of the order. n_epochs: said in the progress.
        n_pooled: layers that share a pool, which decides the order; None is those that are read.
    """

    read: ReadOptions
    n_positions: int
    special: bool = False
    batch: int = 128
    seed: int = 0
    n_epochs: int = 1
    n_pooled: int | None = None


class Flow:
    """The tokens of some texts.

    Attributes:
        texts: rows of `tokens` with a token that counts. positions: of their counted tokens [text][token].
    """

    def __init__(self, loaded: LoadedModel, tokens: Tokens, options: FlowOptions, width: int):
        self.loaded, self.tokens, self.options = loaded, tokens, options
        self.positions = counted(
            loaded, tokens, options.read.stack, special=options.special, n_positions=options.n_positions
        )
        self.texts = [text for text, places in enumerate(self.positions) if len(places)]
        n_layers = len(wanted_layers(text_stack(loaded, options.read.stack), options.read.layers))
        pooled = 4 * width * (options.n_pooled or n_layers)
        self.pool = max(options.batch, min(POOL_TOKENS, POOL_BYTES // pooled))

    def steps(self, epoch: int) -> "Iterator[Dealt]":
        """(states [layer, token, dim], positions [token], texts [token]), `batch` tokens at a time, and what is left."""
        random = np.random.default_rng([self.options.seed, 17, epoch])
        size, held = self.options.batch, list["Dealt"]()
        for some in self._read(epoch, self._order(random)):
            held.append(some)
            if sum(len(positions) for _, positions, _ in held) < self.pool:
                continue
            dealt, held = _shuffled(held, random, size), []
            if len(dealt[-1][1]) < size:
                held.append(dealt.pop())
            yield from dealt
        if held:
            yield from _shuffled(held, random, size)

    def _order(self, random: np.random.Generator) -> list[int]:
        """Texts in random order, sorted by length within a pool."""
        order: list[int] = []
        pool: list[int] = []
        held = 0
        for text in (self.texts[i] for i in random.permutation(len(self.texts)).tolist()):
            pool.append(text)
            held += len(self.positions[text])
            if held >= self.pool:
                order += self._by_length(pool)
                pool, held = [], 0
        return order + self._by_length(pool)

    def _by_length(self, pool: list[int]) -> list[int]:
        return sorted(pool, key=lambda text: -len(self.tokens.encoded["input_ids"][text]))

    def _read(self, epoch: int, order: list[int]) -> "Iterator[Dealt]":
        """A few texts at a time, in `order`."""
        import torch

        options = self.options
        told = options.read.told(f"training, epoch {epoch + 1} of {options.n_epochs}")
        for batch in token_batches(self.loaded, self.tokens, told, order=order):
            states, positions, rows = taken(batch, options.special, options.n_positions)
            yield states, positions, torch.tensor(batch.texts, device=rows.device)[rows]


def _shuffled(held: "list[Dealt]", random: np.random.Generator, size: int) -> "list[Dealt]":
    """All tokens that are held in random order, `size` at a time."""
    import torch

    states, positions, texts = (torch.cat(parts, dim=int(i == 0)) for i, parts in enumerate(zip(*held, strict=True)))
    order = torch.from_numpy(random.permutation(len(positions))).to(positions.device)
    return [(states[:, some], positions[some], texts[some]) for some in order.split(size)]


def counted(
    loaded: LoadedModel, tokens: Tokens, stack: str | None, *, special: bool, n_positions: int | None = None
) -> list[np.ndarray]:
    """Positions, in the stream, of the tokens of each text that count [text][token]: those that `taken` takes."""
    bound = text_stack(loaded, stack)
    shifted = text_forward(loaded, bound).shifted == bound.name
    found = []
    for of_text in tokens.special:
        ordinary = ~of_text
        if shifted and len(ordinary):  # the decoder begins with its start token
            ordinary = np.concatenate([[False], ordinary[:-1]])
        found.append(np.arange(len(ordinary)) if special else np.flatnonzero(ordinary))
    return [places if n_positions is None else places[places < n_positions] for places in found]


def taken(batch: TokenBatch, special: bool, n_positions: int) -> "Dealt":
    """Tokens per batch that count, text after text: (states [layer, token, dim] float32, positions [token], row [token]).

    Raises:
        BadInput: a state is not finite.
    """
    import torch

    kept = (batch.valid if special else batch.ordinary).clone()
    kept[:, n_positions:] = False
    rows, positions = kept.nonzero(as_tuple=True)
    states = torch.stack([one[rows, positions].float() for one in batch.states])
    for layer, one in zip(batch.layers, states, strict=True):
        if not bool(torch.isfinite(one).all()):
            raise BadInput(f"layer {layer}: a state is NaN or infinite; {USE_FLOAT32}")
    return states, positions, rows


# --- probes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Which probes are trained.

    Attributes:
        of: row of the states that each probe reads [probe].
        without: dimensions that it does not see [probe][…]: trained on clipped vectors.
        width: dimensions. n_positions: classes. n_redraws: copies of each probe, each on a redraw of the texts.
    """

    of: tuple[int, ...]
    without: tuple[tuple[int, ...], ...]
    width: int
    n_positions: int
    n_redraws: int = 0


class Probes:
    """Probes in training.

    Attributes:
        plan: what they read.
        scale: of each row of the states [layer]; they read states / scale.
        weight: [probe, dim, position]. redrawn: of the redraws [probe, dim, redraw, position].
    """

    def __init__(self, plan: Plan, scale: "Tensor", *, learning_rate: float):
        import torch

        self.plan, self.scale = plan, scale
        self.weight = torch.zeros(len(plan.of), plan.width, plan.n_positions, device=scale.device)
        self.redrawn = torch.zeros(len(plan.of), plan.width, plan.n_redraws, plan.n_positions, device=scale.device)
        self._of = torch.tensor(plan.of, device=scale.device)
        self._seen = torch.ones(len(plan.of), plan.width, 1, device=scale.device)
        for probe, dims in enumerate(plan.without):
            self._seen[probe, list(dims)] = 0
        self._adam = torch.optim.Adam([self.weight, self.redrawn][: 1 + bool(plan.n_redraws)], lr=learning_rate)

    def step(self, states: "Tensor", positions: "Tensor", times: "Tensor | None" = None) -> None:
        """One step of all probes on the tokens of `states` [layer, token, dim] at `positions` [token].

        `times` [token, redraw] is how often a token counts in each redraw; where there are redraws it must be given.
        """
        import torch

        with torch.no_grad():
            read = (states / self.scale[:, None, None])[self._of]  # [probe, token, dim]
            away = torch.bmm(read, self.weight).softmax(-1)  # [probe, token, position]
            tokens = torch.arange(len(positions), device=away.device)
            away[:, tokens, positions] -= 1
            # A weight that begins at zero and gets no gradient stays zero: the probe does not see that dimension.
            self.weight.grad = torch.bmm(read.transpose(1, 2), away) / len(positions) * self._seen
            if times is not None and self.plan.n_redraws:
                # A weighted mean, as the mean above: what a text adds, and not how many tokens were drawn, makes the spread.
                share = times / times.sum(0).clamp(min=1)
                shape = self.redrawn.shape[2:]
                away = torch.bmm(read, self.redrawn.flatten(2)).unflatten(2, shape).softmax(-1)
                away[:, tokens, :, positions] -= 1
                away *= share[:, :, None]
                gradient = torch.bmm(read.transpose(1, 2), away.flatten(2)) * self._seen
                self.redrawn.grad = gradient.unflatten(2, shape)
            self._adam.step()


def scales_of(states: "Tensor") -> "Tensor":
    """Median over tokens of a vector's root mean square, of states [layer, token, dim]: [layer]; 1 where that is 0.

    One number per layer brings all layers to the size that a learning rate is made for, and |w · v| stays what it is, for w
    grows as v shrinks. A median, because single tokens may be a thousand times as large as the others.
    """
    import torch

    size = states.square().mean(-1).sqrt().median(-1).values
    return torch.where(size > 0, size, torch.ones_like(size))


def train_probes(flow: Flow, plan: Plan, *, learning_rate: float) -> Probes:
    """The probes of a plan, and their redraws, trained on all tokens of the flow, epoch after epoch."""
    import torch

    drawn = poisson_times(len(flow.tokens.texts), plan.n_redraws, seed=flow.options.seed)
    times, probes = torch.from_numpy(drawn).to(flow.loaded.device), None
    for epoch in range(flow.options.n_epochs):
        for states, positions, texts in flow.steps(epoch):
            probes = probes or Probes(plan, scales_of(states), learning_rate=learning_rate)
            probes.step(states, positions, times[texts])
    if probes is None:
        raise BadInput("there is no token to train on in these texts; give longer ones")
    return probes


@dataclass(frozen=True)
class Variants:
    """Weights to evaluate: those of the vectors as they are, one a layer, then others.

    Attributes:
        of: row of the states that each reads [variant]; the first are 0, 1, 2, … for each layer.
        weight: [variant, dim, position].
        scale: of each layer's vectors [layer].
        redrawn: weights of each variant where training was drawn again [variant] of [dim, redraw, position]; () if it was not.
    """

    of: tuple[int, ...]
    weight: "Tensor"
    scale: "Tensor"
    redrawn: tuple["Tensor", ...] = ()

    @classmethod
    def of_probes(cls, probes: Probes, clipped: Sequence[tuple[int, ...]]) -> "Variants":
        """The probes of the layers, the same with `clipped` dimensions [layer] zero, where there are any, then the others."""
        import torch

        n = len(clipped)
        weights, copies = [*probes.weight[:n]], [*probes.redrawn[:n]]
        of = [*range(n), *(layer for layer, dims in enumerate(clipped) if dims)]
        for layer in of[n:]:
            # Zero in the vector and zero in the weight give the same logit.
            for kept in (weights, copies):
                kept.append(kept[layer].clone())
                kept[-1][list(clipped[layer])] = 0
        weights += probes.weight[n:]
        redrawn = (*copies, *probes.redrawn[n:]) if probes.plan.n_redraws else ()
        return cls((*of, *probes.plan.of[n:]), torch.stack(weights), probes.scale, redrawn)


@dataclass(frozen=True)
class JudgedProbes:
    """Sums over the evaluated tokens.

    Attributes:
        n: tokens [text]. right, near: of them named exactly, or missed by one at most [variant, text].
        n_at: tokens [position]. right_at: [variant, position].
        loss: mean cross-entropy in nats [variant].
        contribution: sum of |w · v| over the tokens of each position [layer, position, dim].
        weight: mean of |w| over the same tokens [layer, dim], w of vectors that are divided by their layer's scale.
        redrawn: accuracy of each variant where training was drawn again [redraw, variant].
    """

    n: np.ndarray
    right: np.ndarray
    near: np.ndarray
    n_at: np.ndarray
    right_at: np.ndarray
    loss: np.ndarray
    contribution: np.ndarray
    weight: np.ndarray
    redrawn: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def accuracy(self, variant: int, *, seed: int) -> "ProbeEstimate":
        """Of one variant, with its interval: evaluated texts drawn with replacement (BCa), and the spread over
        redraws of training (see `resampling.with_training`)."""
        low, high = self._interval(2 * self._share(variant) - 1, seed)  # in [−1, 1], where a difference of shares lies
        value = float(self.right[variant].sum() / self.n.sum())
        return ProbeEstimate.of(value, ((low + 1) / 2, (high + 1) / 2), self._redrawn(variant), (0, 1))

    def change(self, variant: int, layer: int, *, seed: int) -> "ProbeEstimate":
        """Accuracy of a variant minus that of `layer`'s vectors as they are, with its paired interval: on the same texts, and
        in the same redraw of training."""
        ends = self._interval(self._share(variant) - self._share(layer), seed)
        value = float((self.right[variant].sum() - self.right[layer].sum()) / self.n.sum())
        return ProbeEstimate.of(value, ends, self._redrawn(variant) - self._redrawn(layer), (-1, 1))

    def _redrawn(self, variant: int) -> np.ndarray:
        return self.redrawn[:, variant] if len(self.redrawn) else np.zeros(0)

    def _share(self, variant: int) -> np.ndarray:
        """Accuracy in each text that has a token."""
        return self.right[variant][self.n > 0] / self.n[self.n > 0]

    def _interval(self, values: np.ndarray, seed: int) -> tuple[float, float]:
        value = mean_value(values, self.n[self.n > 0].astype(np.float64), shares=True)
        return bca(value, seed=seed, level=0.95, n_draws=N_DRAWS)


@dataclass(frozen=True)
class ProbeEstimate(Estimate):
    """An accuracy, or a change of it, with its interval and the parts of that.

    Attributes:
        se_texts: standard error over evaluated texts: their interval's width / 3.92. sd_training: standard deviation over
            redraws of the training texts; None where they were not drawn again.
    """

    se_texts: float | None = None
    sd_training: float | None = None

    @classmethod
    def of(
        cls, value: float, ends: tuple[float, float], redrawn: np.ndarray, bounds: tuple[int, int]
    ) -> "ProbeEstimate":
        """From the `ends` of the interval over texts and the values where training was `redrawn` [redraw]."""
        low, high = np.clip(with_training(value, ends, redrawn), *bounds).tolist()
        return cls(value, low, high, (ends[1] - ends[0]) / 2 / NORMAL, deviation(redrawn))


def judge(
    loaded: LoadedModel,
    tokens: Tokens,
    variants: Variants,
    read: ReadOptions,
    *,
    special: bool = False,
) -> JudgedProbes:
    """Evaluate `variants` on the texts of `tokens`, all of them on every batch of one forward pass.

    A token's contribution in dimension i is |w_i · v_i|, with w the row of W of its own position. Tokens at positions that the
    probes do not know are left out, and special ones unless `special`.

    Raises:
        BadInput: what `token_batches` raises, or a state that is not finite.
    """
    import torch

    of, n_positions = list(variants.of), variants.weight.shape[2]
    n_variants, device = len(of), variants.weight.device
    rows = variants.weight[: len(variants.scale)].transpose(1, 2).contiguous()  # [layer, position, dim]
    contribution, used = torch.zeros_like(rows), torch.zeros(rows.shape[:2], device=device)
    n = np.zeros(len(tokens.texts), dtype=np.int64)
    right, near = (np.zeros((n_variants, len(tokens.texts)), dtype=np.int64) for _ in range(2))
    n_at = torch.zeros(n_positions, dtype=torch.int64, device=device)
    right_at = torch.zeros(n_variants, n_positions, dtype=torch.int64, device=device)
    loss = torch.zeros(n_variants, dtype=torch.float64)
    n_redraws = variants.redrawn[0].shape[1] if variants.redrawn else 0
    redrawn = torch.zeros(n_redraws, n_variants, dtype=torch.int64, device=device)
    for batch in token_batches(loaded, tokens, read):
        states, positions, rows_of = taken(batch, special, n_positions)
        states = states / variants.scale[:, None, None]
        text = np.array(batch.texts, dtype=np.int64)[rows_of.cpu().numpy()]
        n += np.bincount(text, minlength=len(n))
        n_at += torch.bincount(positions, minlength=n_positions)
        for variant, layer in enumerate(of):
            logits = states[layer] @ variants.weight[variant]  # [token, position]
            said = logits.argmax(-1)
            hit, close = said == positions, (said - positions).abs() <= 1
            right[variant] += np.bincount(text[hit.cpu().numpy()], minlength=len(n))
            near[variant] += np.bincount(text[close.cpu().numpy()], minlength=len(n))
            right_at[variant] += torch.bincount(positions[hit], minlength=n_positions)
            loss[variant] += torch.nn.functional.cross_entropy(logits, positions, reduction="sum").cpu().double()
            if n_redraws:
                weight = variants.redrawn[variant]  # [dim, redraw, position]
                logits = (states[layer] @ weight.flatten(1)).unflatten(1, weight.shape[1:])
                redrawn[:, variant] += (logits.argmax(-1) == positions[:, None]).sum(0)
            if variant < len(variants.scale):
                contribution[layer].index_add_(0, positions, (states[layer] * rows[layer][positions]).abs())
                used[layer] += torch.bincount(positions, minlength=n_positions)
    total = max(1, n.sum())
    return JudgedProbes(
        n=n, right=right, near=near, n_at=n_at.cpu().numpy(), right_at=right_at.cpu().numpy(),
        loss=(loss / total).numpy(), contribution=contribution.cpu().numpy(),
        weight=(torch.einsum("lp,lpd->ld", used, rows.abs()) / total).cpu().numpy(),
        redrawn=redrawn.cpu().numpy() / total,
    )  # fmt: skip
