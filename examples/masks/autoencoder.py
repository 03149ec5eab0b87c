"""Does a mask help a sparse autoencoder? TopK autoencoders of hidden states, with and without it, beside random masks.

    python examples/masks/autoencoder.py smollm2-135m:15,27 mpnet-base:6,9 --data texts.parquet -o sae.jsonl

Of each block, the hidden states of texts train one autoencoder per seed and condition:

- "all tokens"; "mask", without what `mask` names; "random mask", without as many random tokens;
- "dimensions", as "mask", and each dimension that stands out is scaled to the median standard deviation;
  "random dimensions", the same for as many others.

Where the mask names no token or no dimension, the conditions that need it are left out. All are judged alike, on held-out
texts, at tokens that are no sinks, in the model's own scale: the share of latents that never fire; the share of the variance
that is explained in the dimensions that do not stand out; and what is recovered of the loss of a decoder, or of the mean
vector of a text at the end of an encoder (1: as without the autoencoder; 0: as with the mean state in its place).

The autoencoder: Gao et al. 2024 (arXiv:2406.04093) without their auxiliary loss, which hides what is asked here: how many
latents die by themselves. A line is appended for each one, and a rerun goes on; then the table of the whole file is printed.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

import outlierlens as ol
from outlierlens.commands import activation_mask
from outlierlens.data.texts import Texts
from outlierlens.models.hooks import edited
from outlierlens.options import MaskOptions
from outlierlens.vectors.read import ReadOptions, text_stack, token_batches, tokenise

CONDITIONS = ("all tokens", "mask", "random mask", "dimensions", "random dimensions")


class TopK(torch.nn.Module):
    """Latents = the k largest of an affine map of x, reconstruction = an affine map of them.

    x is a state whose dimensions are multiplied by `factors` [dim], scaled to a mean length of √width.
    """

    def __init__(self, states: torch.Tensor, factors: torch.Tensor, n_latents: int, k: int):
        super().__init__()
        width = states.shape[1]
        self.k, self.scale = k, factors * width**0.5 / float((states * factors).norm(dim=1).mean())
        rows = torch.nn.functional.normalize(torch.randn(n_latents, width), dim=1)
        self.decoder = torch.nn.Parameter(rows)
        self.encoder = torch.nn.Parameter(rows.clone().T)
        self.bias = torch.nn.Parameter(torch.zeros(n_latents))
        self.centre = torch.nn.Parameter(states.mean(0) * self.scale)  # [dim], as x

    def latents(self, scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(values, numbers) [token, k] of each token's largest latents; a value of 0 has not fired."""
        before = scaled @ self.encoder + (self.bias - self.centre @ self.encoder)
        values, numbers = before.topk(self.k, dim=1)
        return values.relu(), numbers

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """The reconstruction of states [token, dim], in their scale."""
        values, numbers = self.latents(states * self.scale)
        made = torch.nn.functional.embedding_bag(numbers, self.decoder, per_sample_weights=values, mode="sum")
        return (made + self.centre) / self.scale


def trained(states: torch.Tensor, factors: torch.Tensor, seed: int, how: argparse.Namespace) -> TopK:
    """An autoencoder of states [token, dim]."""
    torch.manual_seed(seed)
    model = TopK(states, factors, how.latents * states.shape[1], how.k)
    optimiser = torch.optim.Adam(model.parameters(), lr=how.lr, fused=True)
    for _ in range(how.steps):
        batch = states[torch.randint(len(states), (how.batch,))]
        error = ((model(batch) - batch) * model.scale).square().sum(1).mean()
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
        with torch.no_grad():
            model.decoder /= model.decoder.norm(dim=1, keepdim=True)
    return model


def read(loaded: Any, texts: Texts, masks: dict[int, Any]) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """(states [token, dim], whether the mask keeps them) of each block, padding left out."""
    found: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {layer: [] for layer in masks}
    for batch in token_batches(loaded, tokenise(loaded, texts, max_length=128), ReadOptions(layers=tuple(masks))):
        for layer, states in zip(masks, batch.states, strict=True):
            kept = activation_mask(masks[layer])(states, batch.ids).kept
            found[layer].append((states[batch.valid].clone(), kept[batch.valid]))
    return {layer: tuple(map(torch.cat, zip(*parts, strict=True))) for layer, parts in found.items()}


def outcome(loaded: Any, texts: Texts, layer: int, mask: Any, change: Callable[[Any], Any]) -> torch.Tensor:
    """With `change(states)` at every token the mask keeps: the loss of each token, or the mean final state of each text."""
    stack, keep, found = text_stack(loaded, None), activation_mask(mask), []
    for ids in tokenise(loaded, texts, max_length=128).encoded["input_ids"]:
        given, last = torch.tensor([ids]), []

        def edit(at: int, states: torch.Tensor, given: Any = given, last: list[Any] = last) -> torch.Tensor:
            if at == layer:
                rows = keep(states, given).kept
                states = states.clone()
                states[rows] = change(states[rows])
            last[:] = [states]
            return states

        with torch.no_grad(), edited(loaded.model, stack, edit, layers=sorted({layer, stack.n_layers - 1})):
            made = loaded.model(input_ids=given)
        if loaded.head == "causal":
            found.append(torch.nn.functional.cross_entropy(made.logits[0, :-1], given[0, 1:], reduction="none"))
        else:
            found.append(last[0].mean(1))
    return torch.cat(found)


def measured(loaded: Any, name: str, layers: list[int], parts: list[Texts], how: argparse.Namespace) -> Iterator[Any]:
    """Rows of a model's blocks, one autoencoder after another."""
    fit, held = parts
    masks = {layer: ol.mask(loaded, fit.first(how.masking), MaskOptions(layer=layer)) for layer in layers}
    training, judging = read(loaded, fit, masks), read(loaded, held, masks)
    judges = held.first(how.judged)
    for layer, mask in masks.items():
        (states, kept), (other, other_kept) = training[layer], judging[layer]
        other, dims = other[other_kept], list(mask.dims)
        rest = np.setdiff1d(np.arange(states.shape[1]), dims)
        mean = states[kept].mean(0)
        intact, empty = (outcome(loaded, judges, layer, mask, one) for one in (lambda x: x, mean.expand_as))
        n_masked = int((~kept).sum())
        wanted = [*CONDITIONS[:1], *(CONDITIONS[1:3] if n_masked else ()), *(CONDITIONS[3:] if dims else ())]
        for seed in range(how.seeds):
            random = torch.randperm(len(states), generator=torch.Generator().manual_seed(seed))[n_masked:]
            chosen = {"all tokens": states, "random mask": states[random]}
            levelled = {
                "dimensions": dims,
                "random dimensions": np.random.default_rng(seed).choice(rest, len(dims), False),
            }
            for condition in wanted:
                key = {"model": name, "layer": layer, "condition": condition, "seed": seed}
                if key in how.done:
                    continue
                factors, at = torch.ones(states.shape[1]), levelled.get(condition, [])
                factors[at] = torch.from_numpy(np.median(mask.scale) / mask.scale)[at]
                used = chosen.get(condition, states[kept])
                model = trained(used, factors, seed, how)
                with torch.no_grad():
                    values, numbers = model.latents(other * model.scale)
                    n_fired = len(numbers[values > 0].unique())
                    left = (model(other) - other)[:, rest].double().square().sum()
                    all_of_it = (other - other.mean(0))[:, rest].double().square().sum()
                made = outcome(loaded, judges, layer, mask, model)
                off, far = ((one - intact).double() for one in (made, empty))
                recovered = 1 - (off.sum() / far.sum() if loaded.head == "causal" else off.norm() / far.norm())
                spread, centre = ((used * factors).double().std(0), (used * factors).double().mean(0))
                yield key | {
                    "masked": n_masked,
                    "dims": dims,
                    "tokens": len(states),
                    "gamma": float(centre.norm() / spread.norm()),
                    "dead": 1 - n_fired / len(model.decoder),
                    "explained": 1 - float(left / all_of_it),
                    "recovered": float(recovered),
                }


def table(rows: list[Any]) -> str:
    """Mean and range over seeds of each block and condition, and the rank correlation of γ with the dead share."""
    lines = ["| model, block | states | γ | dead latents, % | explained | recovered |", "|---|---|---:|---:|---:|---:|"]
    places = list(dict.fromkeys((row["model"], row["layer"], row["condition"]) for row in rows))
    means: dict[str, list[tuple[float, float]]] = {}
    for place in sorted(places, key=lambda one: (*one[:2], CONDITIONS.index(one[2]))):
        some = [row for row in rows if (row["model"], row["layer"], row["condition"]) == place]
        gamma, dead = (float(np.mean([row[name] for row in some])) for name in ("gamma", "dead"))
        means.setdefault(place[2], []).append((gamma, dead))
        cells = []
        for name, times, digits in (("dead", 100, 1), ("explained", 1, 3), ("recovered", 1, 3)):
            values = [times * row[name] for row in some]
            cells.append(f"{np.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})")
        lines.append(f"| {place[0]}, {place[1]} | {place[2]} | {gamma:.2f} | {' | '.join(cells)} |")
    for condition in ("all tokens", "every state"):
        pairs = means.get(condition) or [pair for one in means.values() for pair in one]
        if all(len(set(values)) > 1 for values in zip(*pairs, strict=True)):
            rank = spearmanr(*zip(*pairs, strict=True))
            said = f"rank correlation {rank.statistic:.2f} of {len(pairs)}, p = {rank.pvalue:.2f}"
            lines.append(f"γ against dead latents, {condition}: {said}")
    return "\n".join(lines)


def main() -> None:
    """Train and judge every autoencoder that is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("blocks", nargs="+", help="MODEL:BLOCK,BLOCK")
    parser.add_argument("--data", default="excerpt", help="texts: a file or a hub id")
    parser.add_argument("--limit", type=int, default=600, help="texts, of which a fifth judges")
    parser.add_argument("--masking", type=int, default=32, help="texts of which the mask is made")
    parser.add_argument("--judged", type=int, default=8, help="texts of what is recovered")
    parser.add_argument("--latents", type=int, default=2, help="latents per dimension")
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, default=Path("autoencoders.jsonl"))
    how = parser.parse_args()
    before = how.output.read_text().splitlines() if how.output.exists() else []
    how.done = [{one: json.loads(line)[one] for one in ("model", "layer", "condition", "seed")} for line in before]
    texts = ol.read_texts(how.data, limit=how.limit)
    n_held = max(4, len(texts) // 5)
    parts = [texts.some(range(n_held, len(texts))), texts.first(n_held)]
    for given in how.blocks:
        name, _, blocks = given.rpartition(":")
        for row in measured(ol.load_model(name), name, [int(one) for one in blocks.split(",")], parts, how):
            with how.output.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    print(table([json.loads(line) for line in how.output.read_text().splitlines()]))


if __name__ == "__main__":
    main()
