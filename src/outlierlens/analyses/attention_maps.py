"""One pass over the texts with some dimensions off: attention that keys receive, beside |h|, and where attention goes.

reading = KeyPass(loaded, stack, tokens, lengths, KeyKinds(tokenizer, tokens), named=(308, 381))
sums = reading.measure(Switch(loaded, stack), (308, 381))
sums.figures((308, 381))                         # plain data: shares, entropies and correlations by layer

read_maps(weights, lengths, visible).columns["seen"]     # [batch, token, head]: mean attention a key receives

Padding is no query and no key, except for the mean "padded" of the released code, in which padding is a query. All memory is
flat in the number of texts. Replicates are a Poisson bootstrap over texts: each text's weight is drawn from its own seed, so
every layer, condition and batch size sees the same draws.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from outlierlens.ablation.modes import Switch
from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch
from outlierlens.data.token_texts import token_words
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.models.attention_maps import tapped_attention
from outlierlens.models.inputs import Progress
from outlierlens.models.load import LoadedModel
from outlierlens.statistics.bootstrap import percentile_interval, poisson_weights
from outlierlens.vectors.read import ReadOptions, TokenBatch, Tokens, token_batches

if TYPE_CHECKING:
    from torch import Tensor

CLASSES = ("first", "special", "delimiter", "punctuation")
METRICS = (*CLASSES, "mass", "entropy", "relative_entropy")
SHOWN = 30  # delimiters
SEEN, ALL, PADDED = "seen", "all", "padded"  # what attention received is the mean over
REST, FIRST, SPECIAL = "rest", "first", "special"  # kinds of keys; a first token that is special is special
Keys = Literal["all", "without_special", "without_first"]
KEYS: dict[Keys, tuple[str, ...]] = {
    "all": (REST, FIRST, SPECIAL),
    "without_special": (REST, FIRST),
    "without_first": (REST,),
}
CONSTANT = 1e-12  # of the mean square: a variance below is rounding


class KeyKinds:
    """The kinds of keys.

    A delimiter is a token of punctuation alone (Unicode categories P*), of line breaks alone, or the tokenizer's separator or
    end token; punctuation is a delimiter that is not special. Patches and frames are neither. A token may be of several kinds:
    [CLS] is first and special, [SEP] special and a delimiter.

    Attributes:
        delimiters: those among the texts' tokens, the commonest first, `SHOWN` at most.
    """

    def __init__(self, tokenizer: Any, tokens: Tokens):
        import torch

        counts = Counter(token for ids in tokens.encoded["input_ids"] for token in ids if tokenizer is not None)
        ends = set() if tokenizer is None else {tokenizer.sep_token_id, tokenizer.eos_token_id} - {None}
        found = [token for token, _ in counts.most_common() if token in ends or is_delimiter(tokenizer.decode([token]))]
        self.delimiters = token_words(tokenizer, found[:SHOWN])
        self._ids = torch.tensor(sorted(found), dtype=torch.long)

    def of(self, batch: TokenBatch) -> "Tensor":
        """bool [class, batch, token], the order of `CLASSES`; padding is of no kind."""
        import torch

        first = torch.zeros_like(batch.valid)
        first[:, 0] = True
        delimiter = torch.isin(batch.ids, self._ids.to(batch.ids.device))
        kinds = torch.stack((first, ~batch.ordinary, delimiter, delimiter & batch.ordinary))
        return kinds & batch.valid


def is_delimiter(text: str) -> bool:
    """Whether a decoded token is punctuation alone or line breaks alone; word-piece marks do not count."""
    bare = text.strip()
    bare = bare[2:] if bare.startswith("##") and len(bare) > 2 else bare
    if not bare:
        return "\n" in text
    return all(unicodedata.category(letter).startswith("P") for letter in bare)


def padded(tokens: Tokens, pad_id: int) -> Tokens:
    """The texts padded to `tokens.max_length`, padding masked: `lengths` are then those of the padded texts."""
    length = tokens.max_length
    encoded = {}
    for name, rows in tokens.encoded.items():
        fill = pad_id if name == "input_ids" else 0
        encoded[name] = [[*row, *[fill] * (length - len(row))] for row in rows]
    encoded["attention_mask"] = [[1] * n + [0] * (length - n) for n in tokens.lengths.tolist()]
    special = tuple(np.concatenate([one, np.zeros(length - len(one), dtype=bool)]) for one in tokens.special)
    return replace(tokens, encoded=encoded, special=special, offsets=None)


# --- one layer's maps of one batch -------------------------------------------------------------------------------


@dataclass(frozen=True)
class MapSums:
    """Sums over a layer's maps of a batch.

    Attributes:
        columns: attention that each key receives, by mean, float64 [batch, token, head]; 0 at padding.
        uniform: float64 [batch, token], what a key would receive in all from queries that attend to all keys alike.
        total: float64 [batch, token, head], what a key receives in all.
        mass, entropy, relative: sums over queries, float64 [batch, head].
        n_entropy, n_relative: queries in those sums [batch, head].
        hides: whether a key is hidden from a query, padding apart.
    """

    columns: dict[str, "Tensor"]
    uniform: "Tensor"
    total: "Tensor"
    mass: "Tensor"
    entropy: "Tensor"
    relative: "Tensor"
    n_entropy: "Tensor"
    n_relative: "Tensor"
    hides: bool


def read_maps(
    weights: "Tensor", lengths: Sequence[int], visible: "Tensor | None", *, with_padded: bool = False
) -> MapSums:
    """Columns, masses and entropies of `weights` [batch, head, query, key], whose texts have `lengths` tokens, padding last.

    `visible` is bool [batch or 1, 1, query or 1, key], None where every key is seen.

    Raises:
        BadInput: a weight is NaN or infinite, or there are fewer queries than tokens.
    """
    import torch

    n_texts, heads, n_queries, n_keys = weights.shape
    if len(lengths) != n_texts or max(lengths) > min(n_queries, n_keys):
        raise BadInput(
            f"attention weights are {list(weights.shape)} for {len(lengths)} texts of up to {max(lengths)} tokens; load the "
            "model with attention 'eager', which keeps padding in place"
        )
    wide: Any = {"dtype": torch.float64, "device": weights.device}
    total, seen, padded = (torch.zeros((n_texts, n_keys, heads), **wide) for _ in range(3))
    uniform = torch.zeros((n_texts, n_keys), **wide)
    sums = torch.zeros((5, n_texts, heads), **wide)  # mass, entropy, relative, n_entropy, n_relative
    hides = False
    for text, n in enumerate(lengths):
        if not n:
            continue
        maps = weights[text, :, :n, :n].float()  # [head, query, key]
        received = maps.sum(1).double().T  # [key, head]
        shown = _shown(visible, text, n)
        if shown is None:
            log_keys = torch.full((n,), math.log(n), **wide)
            uniform[text, :n] = 1.0
            seen[text, :n] = received / n
        else:
            by_query, by_key = shown.sum(1).double(), shown.sum(0).double()
            hides = hides or bool((by_key < n).any())
            uniform[text, :n] = (shown.double() / by_query.clamp(min=1)[:, None]).sum(0)
            seen[text, :n] = received / by_key.clamp(min=1)[:, None]
            log_keys = by_query.clamp(min=1).log()
        total[text, :n] = received
        if with_padded:
            padded[text, :n] = weights[text, :, :, :n].float().mean(1).double().T
        mass = maps.sum(2)  # [head, query]
        # 0 · log 0 is 0: the smallest number's logarithm is finite.
        self_information = maps.clamp(min=torch.finfo(maps.dtype).tiny).log_().mul_(maps).sum(2)
        there = mass > 0
        entropy = torch.where(
            there, mass.clamp(min=1e-30).log() - self_information / mass.clamp(min=1e-30), 0.0
        ).double()
        several = there & (log_keys > 0)
        relative = torch.where(several, entropy / torch.where(log_keys > 0, log_keys, 1.0), 0.0)
        sums[:, text] = torch.stack([part.double().sum(1) for part in (mass, entropy, relative, there, several)])
    if not bool(torch.isfinite(sums).all()):
        raise BadInput(f"an attention weight is NaN or infinite; {USE_FLOAT32}")
    columns = {SEEN: seen, ALL: total / torch.tensor(lengths, **wide).clamp(min=1)[:, None, None]}
    if with_padded:
        columns[PADDED] = padded
    return MapSums(columns, uniform, total, *sums, hides=hides)  # type: ignore[misc]


def _shown(visible: "Tensor | None", text: int, n: int) -> "Tensor | None":
    """bool [query, key] of a text; None where all see all."""
    if visible is None:
        return None
    one = visible[text if len(visible) > 1 else 0, 0]
    shown = (one[:n] if len(one) > 1 else one)[:, :n].expand(n, n)
    return None if bool(shown.all()) else shown


# --- sums that correlations are made of --------------------------------------------------------------------------


@dataclass
class KeySums:
    """Numbers of keys, sums, sums of squares and of products; leading axes are replicates.

    Attributes:
        n: [...]; a, aa: [..., column]; x, xx: [..., dim]; ax: [..., column, dim].
    """

    n: np.ndarray
    a: np.ndarray
    aa: np.ndarray
    x: np.ndarray
    xx: np.ndarray
    ax: np.ndarray

    def __add__(self, other: "KeySums") -> "KeySums":
        return KeySums(*(getattr(self, name) + getattr(other, name) for name in ("n", "a", "aa", "x", "xx", "ax")))


def correlation(sums: KeySums) -> np.ndarray:
    """Pearson's r [..., column, dim]; NaN where one of both never varies."""
    n = np.asarray(sums.n, dtype=np.float64)[..., None]
    with np.errstate(invalid="ignore", divide="ignore"):
        of_a = _spread(n, sums.a, sums.aa)
        of_x = _spread(n, sums.x, sums.xx)
        both = n[..., None] * sums.ax - sums.a[..., :, None] * sums.x[..., None, :]
        r = both / np.sqrt(of_a[..., :, None] * of_x[..., None, :])
    return np.clip(r, -1.0, 1.0)


def _spread(n: np.ndarray, total: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """n² times the variance; NaN where that is nothing but rounding."""
    found = n * squares - total**2
    return np.where(found > CONSTANT * n * squares, found, np.nan)


class PairSums:
    """Sums over keys of [key, column] with [key, dim]."""

    def __init__(self, n_columns: int, width: int, device: Any = "cpu"):
        import torch

        shapes: tuple[Any, ...] = (n_columns, n_columns, width, width, (n_columns, width))
        self.n = 0
        self.a, self.aa, self.x, self.xx, self.ax = (
            torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes
        )

    def add(self, columns: "Tensor", sizes: "Tensor") -> None:
        """Add float64 `columns` [key, column] and `sizes` [key, dim]."""
        self.n += len(columns)
        self.a += columns.sum(0)
        self.aa += columns.square().sum(0)
        self.x += sizes.sum(0)
        self.xx += sizes.square().sum(0)
        self.ax.addmm_(columns.T, sizes)

    def sums(self) -> KeySums:
        """As arrays."""
        return KeySums(
            np.array(float(self.n)), *(one.cpu().numpy() for one in (self.a, self.aa, self.x, self.xx, self.ax))
        )


class ReplicateSums:
    """Sums of each replicate, the first of which is all texts once: [replicate, feature]."""

    def __init__(self, n_replicates: int, n_columns: int, n_named: int, device: Any = "cpu"):
        import torch

        self.shape = (n_columns, n_named)
        n_features = 1 + 2 * n_columns + 2 * n_named + n_columns * n_named
        self.total = torch.zeros((n_replicates, n_features), dtype=torch.float64, device=device)

    def add(self, weights: "Tensor", columns: "Tensor", sizes: "Tensor", counted: "Tensor") -> None:
        """Add `columns` [batch, token, column] and `sizes` [batch, token, named] of `counted` keys, weighted by text."""
        import torch

        mask = counted.double()[..., None]
        a, x = columns * mask, sizes * mask
        features = (
            mask.sum(1), a.sum(1), (a * columns).sum(1), x.sum(1), (x * sizes).sum(1),
            torch.bmm(a.transpose(1, 2), x).flatten(1),
        )  # fmt: skip
        self.total.addmm_(weights, torch.cat(features, dim=1))

    def sums(self) -> KeySums:
        """As arrays with replicates in front."""
        columns, named = self.shape
        ends = np.cumsum([1, columns, columns, named, named])
        n, a, aa, x, xx, ax = np.split(self.total.cpu().numpy(), ends, axis=1)
        return KeySums(n[:, 0], a, aa, x, xx, ax.reshape(-1, columns, named))


def finite_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Mean of the finite values along an axis; NaN where none is."""
    there = np.isfinite(values)
    count = there.sum(axis=axis)
    total = np.where(there, values, 0.0).sum(axis=axis)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


# --- a pass ------------------------------------------------------------------------------------------------------


@dataclass
class LayerAttention:
    """Sums of one layer.

    Attributes:
        pairs: by kind of key, of every dimension; with dimensions off, of the named ones.
        drawn: of texts drawn again, by kind of key, of the named dimensions; none with dimensions off.
        places: of `METRICS`, queries of the two entropies, and queries [replicate, feature].
        uniform: attention of queries that attend to all keys alike [class].
    """

    pairs: dict[str, PairSums]
    drawn: dict[str, ReplicateSums]
    places: "Tensor"
    uniform: np.ndarray

    def rates(self, heads: int) -> np.ndarray:
        """[replicate, metric, head], `METRICS`; NaN where no query counts."""
        total = self.places.cpu().numpy()
        sums = total[:, :-1].reshape(len(total), -1, heads)
        queries = np.broadcast_to(total[:, -1, None, None], (len(total), len(CLASSES) + 1, heads))
        with np.errstate(invalid="ignore", divide="ignore"):
            found: np.ndarray = sums[:, : len(METRICS)] / np.concatenate([queries, sums[:, len(METRICS) :]], axis=1)
        return found


@dataclass
class PassSums:
    """Sums of one pass.

    Attributes:
        means: how attention is averaged; columns of a layer's pairs are [mean, head], flattened.
        hides: whether some layer hides keys from queries, beside padding. n_set: weights that were set.
        n_keys: by kind.
    """

    means: tuple[str, ...] = ()
    heads: int = 0
    hides: bool = False
    n_set: int = 0
    n_keys: dict[str, int] = field(default_factory=lambda: dict.fromkeys((REST, FIRST, SPECIAL), 0))
    layers: list[LayerAttention] = field(default_factory=list)

    def figures(self, named: Sequence[int], control: Sequence[int] = ()) -> dict[str, Any]:
        """Plain data: "heads" [metric][layer][head], their means "drawn" [replicate][metric][layer], and those of `_of_keys`.

        Of the intact model also what was read, and "uniform" [class][layer].
        """
        rates = np.stack([layer.rates(self.heads) for layer in self.layers], axis=2)
        found = {"n_set": self.n_set, "heads": rates[0].tolist(), "drawn": finite_mean(rates, axis=3).tolist()}
        parts = [[self._of_keys(i, keys, list(named), list(control)) for keys in KEYS] for i in range(len(self.means))]
        found |= {name: [[one[name] for one in row] for row in parts] for name in parts[0][0]}
        if self.layers[0].drawn:
            uniform = np.stack([layer.uniform for layer in self.layers], axis=1) / sum(self.n_keys.values())
            kinds = {keys: sum(self.n_keys[kind] for kind in kinds) for keys, kinds in KEYS.items()}
            found |= {"means": self.means, "hides": self.hides, "n_keys": kinds, "uniform": uniform.tolist()}
        return found

    def _of_keys(self, mean: int, keys: Keys, named: list[int], control: list[int]) -> dict[str, list[Any]]:
        """ "r" [layer][dim] of the dimensions that were read, mean over heads.

        Of the intact model also intervals of it, "ends" [end][layer][named] and "overall_ends" [end][named] of the mean over
        layers of |r|; "r_heads" [layer][head][named]; and "control" [layer][head], the mean r of the `control` dimensions.
        """
        columns = slice(mean * self.heads, (mean + 1) * self.heads)
        pairs = [reduce(add, [layer.pairs[kind].sums() for kind in KEYS[keys]]) for layer in self.layers]
        heads = [correlation(one)[columns] for one in pairs]  # [head, dim] of each layer
        found = {"r": [finite_mean(one).tolist() for one in heads]}
        if self.layers[0].drawn:
            texts = [reduce(add, [layer.drawn[kind].sums() for kind in KEYS[keys]]) for layer in self.layers]
            drawn = np.stack([finite_mean(correlation(one)[1:, columns], axis=1) for one in texts], axis=1)
            overall = percentile_interval(finite_mean(np.abs(drawn), axis=1))
            found |= {
                "ends": [end.tolist() for end in percentile_interval(drawn)],
                "overall_ends": [end.tolist() for end in overall],
                "r_heads": [one[:, named].tolist() for one in heads],
                "control": [finite_mean(one[:, control], axis=1).tolist() for one in heads],
            }
        return found


@dataclass(frozen=True)
class KeyPass:
    """What every pass has in common.

    Attributes:
        tokens: the texts, padded where `paper_compat` is set. lengths: tokens of each text, padding not counted.
        named: dimensions with intervals.
    """

    loaded: LoadedModel
    stack: BoundStack
    tokens: Tokens
    lengths: np.ndarray
    kinds: KeyKinds
    named: tuple[int, ...]
    batch_size: int = 32
    n_bootstrap: int = 200
    seed: int = 0
    paper_compat: bool = False
    progress: Progress | None = None

    def measure(self, switch: Switch, dims: Sequence[int] = (), label: str = "intact") -> PassSums:
        """One pass over all texts with `dims` off in every layer, the longest texts first.

        Raises:
            BadInput: weights cannot be had or do not fit the tokens, or a state is not finite.
        """
        found = PassSums()
        with switch.off(dict.fromkeys(range(self.stack.n_layers), tuple(dims)) if dims else None) as n_set:
            found.n_set = n_set
            for batch, maps in self._batches(label):
                self._add(found, batch, maps, intact=not dims)
        return found

    def _batches(self, label: str) -> Iterator[tuple[TokenBatch, dict[int, MapSums]]]:
        """(states, what is kept of the maps by layer) of each batch."""
        order = [i for i in np.argsort(-self.lengths, kind="stable").tolist() if self.lengths[i]]
        if not order:
            raise BadInput("there is no token in these texts, so there is no attention")
        layers = tuple(range(self.stack.n_layers))
        read = ReadOptions(batch_size=self.batch_size, stack=self.stack.name, layers=layers)

        @contextmanager
        def watched(batch: Batch) -> Iterator[dict[int, MapSums]]:
            maps: dict[int, MapSums] = {}
            lengths = self.lengths[list(batch.texts)].tolist()

            def look(layer: int, weights: "Tensor", visible: "Tensor | None") -> None:
                maps[layer] = read_maps(weights, lengths, visible, with_padded=self.paper_compat)

            with tapped_attention(self.loaded, self.stack, look):
                yield maps

        done = 0
        for some in self.tokens.apart(order):
            for batch in token_batches(self.loaded, self.tokens, read, order=some, inside=watched):
                yield batch, batch.inside
                done += len(batch.texts)
                if self.progress:
                    self.progress(label, done, len(order))

    def _add(self, found: PassSums, batch: TokenBatch, maps: dict[int, MapSums], *, intact: bool) -> None:
        """Add one batch to the sums."""
        import torch

        if set(maps) != set(range(self.stack.n_layers)):
            raise BadInput(f"{self.loaded.name}: only {len(maps)} of {self.stack.n_layers} layers ran attention")
        device = batch.valid.device
        if not found.means:
            # Texts come longest first: what hides a key from a query of any text does so in this batch.
            found.hides = any(one.hides for one in maps.values())
            found.means = (PADDED,) if self.paper_compat else (SEEN, ALL) if found.hides else (ALL,)
            found.heads = maps[0].mass.shape[1]
        weights = torch.from_numpy(poisson_weights(batch.texts, self.n_bootstrap, self.seed)).to(device)
        kinds, ordinary = self.kinds.of(batch), batch.valid & batch.ordinary
        first, kinds = kinds[0], kinds.double()  # [class, batch, token]
        counted = {REST: ordinary & ~first, FIRST: ordinary & first, SPECIAL: batch.valid & ~ordinary}
        for kind, mask in counted.items():
            found.n_keys[kind] += int(mask.sum())
        queries = batch.valid.sum(1).double()[:, None]
        for layer, states in enumerate(batch.states):
            one = maps[layer]
            columns = torch.cat([one.columns[mean] for mean in found.means], dim=2)  # [batch, token, mean * head]
            sizes = states.double().abs()
            if not bool(torch.isfinite(sizes[batch.valid]).all()):
                raise BadInput(f"layer {layer}: a state is NaN or infinite; {USE_FLOAT32}")
            named = sizes[..., list(self.named)]
            sizes = sizes if intact else named
            if layer == len(found.layers):
                found.layers.append(self._empty(found, sizes.shape[2], device, intact=intact))
            sums = found.layers[layer]
            for kind, mask in counted.items():
                sums.pairs[kind].add(columns[mask], sizes[mask])
                if intact:
                    sums.drawn[kind].add(weights, columns, named, mask)
            falls = torch.einsum("cbt,bth->bch", kinds, one.total)
            parts = (one.mass, one.entropy, one.relative, one.n_entropy, one.n_relative, queries)
            sums.places.addmm_(weights, torch.cat((falls.flatten(1), *parts), dim=1))
            sums.uniform += torch.einsum("cbt,bt->c", kinds, one.uniform).cpu().numpy()

    def _empty(self, found: PassSums, width: int, device: Any, *, intact: bool) -> LayerAttention:
        import torch

        replicates, n_columns = 1 + self.n_bootstrap, len(found.means) * found.heads
        return LayerAttention(
            {kind: PairSums(n_columns, width, device) for kind in found.n_keys},
            {kind: ReplicateSums(replicates, n_columns, len(self.named), device) for kind in found.n_keys if intact},
            torch.zeros((replicates, (len(METRICS) + 2) * found.heads + 1), dtype=torch.float64, device=device),
            np.zeros(len(CLASSES)),
        )
