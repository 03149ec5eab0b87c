"""Does a mask help a sparse autoencoder? TopK autoencoders of hidden states, with and without it, beside a random mask.

    python examples/masks/autoencoder.py smollm2-135m:15 mpnet-base:6 --data texts.parquet -o sae.jsonl

Of each block, the hidden states of texts train one autoencoder per seed and condition: "all tokens"; "mask", without
what `mask` names; "random mask", without as many random tokens; where the mask is empty, all three are one. Judged on
held-out texts at tokens that are no sinks: the share of latents that never fire, the share of the variance that is
explained, and for decoders the loss recovered (1: as without the autoencoder; 0: as with the mean state in its
place).

The autoencoder: Gao et al. 2024 (arXiv:2406.04093) without their auxiliary loss, which hides what is asked here: how many
latents die by themselves. A line is appended for each one, and a rerun goes on.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import outlierlens as ol
from outlierlens.data.texts import Texts
from outlierlens.models.hooks import edited
from outlierlens.vectors.read import ReadOptions, text_stack, token_batches, tokenise

CONDITIONS = ("all tokens", "mask", "random mask")


class TopK(torch.nn.Module):
    """Latents = the k largest of an affine map of x, reconstruction = an affine map of them; x is scaled to length √width."""

    def __init__(self, states: torch.Tensor, n_latents: int, k: int):
        super().__init__()
        width = states.shape[1]
        self.k, self.scale = k, width**0.5 / float(states.norm(dim=1).mean())
        rows = torch.nn.functional.normalize(torch.randn(n_latents, width), dim=1)
        self.decoder = torch.nn.Parameter(rows)
        self.encoder = torch.nn.Parameter(rows.clone().T)
        self.bias = torch.nn.Parameter(torch.zeros(n_latents))
        self.centre = torch.nn.Parameter(states.mean(0) * self.scale)

    def latents(self, scaled: torch.Tensor) -> torch.Tensor:
        """[token, latent], at most k of each token above 0."""
        before = torch.relu((scaled - self.centre) @ self.encoder + self.bias)
        top = before.topk(self.k, dim=1)
        return torch.zeros_like(before).scatter(1, top.indices, top.values)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """The reconstruction of states [token, dim], as long as they are."""
        return (self.latents(states * self.scale) @ self.decoder + self.centre) / self.scale


def trained(states: torch.Tensor, seed: int, how: argparse.Namespace) -> TopK:
    """An autoencoder of states [token, dim]."""
    torch.manual_seed(seed)
    model = TopK(states, how.latents * states.shape[1], how.k)
    optimiser = torch.optim.Adam(model.parameters(), lr=how.lr)
    for _ in range(how.steps):
        batch = states[torch.randint(len(states), (how.batch,))]
        error = ((model(batch) - batch) * model.scale).square().sum(1).mean()
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
        with torch.no_grad():
            model.decoder /= model.decoder.norm(dim=1, keepdim=True)
    return model


def read(loaded: Any, texts: Texts, layer: int, keep: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(states [token, dim], whether the mask keeps them) of one block, padding left out."""
    tokens = tokenise(loaded, texts, max_length=128)
    states, kept = [], []
    for batch in token_batches(loaded, tokens, ReadOptions(layers=(layer,))):
        states.append(batch.states[0][batch.valid].clone())
        kept.append(keep(batch.states[0], batch.ids).kept[batch.valid])
    return torch.cat(states), torch.cat(kept)


def losses(loaded: Any, texts: Texts, layer: int, keep: Any, model: TopK) -> dict[str, float]:
    """Mean next-token loss intact, with the autoencoder's output, and with the mean, at every token the mask keeps."""
    stack, found = text_stack(loaded, None), {}
    mean = model.centre / model.scale
    changes = {"intact": torch.nn.Identity(), "autoencoder": model, "mean": mean.expand_as}
    for name, change in changes.items():
        total = n = 0.0
        for text in texts.texts:
            ids = torch.tensor([loaded.tokenizer(text, truncation=True, max_length=128)["input_ids"]])
            if ids.shape[1] < 2:
                continue

            def edit(_: int, states: torch.Tensor, ids: Any = ids, change: Any = change) -> torch.Tensor:
                rows = keep(states, ids).kept
                states = states.clone()
                states[rows] = change(states[rows])
                return states

            with torch.no_grad(), edited(loaded.model, stack, edit, layers=(layer,)):
                logits = loaded.model(input_ids=ids).logits[0, :-1]
            total += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
            n += ids.shape[1] - 1
        found[name] = total / n
    return found


def measured(loaded: Any, name: str, layer: int, parts: list[Texts], how: argparse.Namespace) -> Any:
    """Rows of one block, one autoencoder after another."""
    fit, held = parts
    found = ol.mask(loaded, fit, ol.MaskOptions(layer=layer))
    keep = ol.activation_mask(found)
    states, kept = read(loaded, fit, layer, keep)
    other, other_kept = read(loaded, held, layer, keep)
    other = other[other_kept]
    n_masked = int((~kept).sum())
    for seed in range(how.seeds):
        random = torch.randperm(len(states), generator=torch.Generator().manual_seed(seed))[n_masked:]
        chosen = {"all tokens": states, "mask": states[kept], "random mask": states[random]}
        for condition in CONDITIONS if n_masked else CONDITIONS[:1]:
            key = {"model": name, "layer": layer, "condition": condition, "seed": seed}
            if key in how.done:
                continue
            model = trained(chosen[condition], seed, how)
            with torch.no_grad():
                fired = (model.latents(other * model.scale) > 0).any(0)
                left = (model(other) - other).double().square().sum() / (other - other.mean(0)).double().square().sum()
            row = key | {
                "masked": n_masked,
                "tokens": len(states),
                "gamma": found.here.gamma,
                "gamma_kept": found.here.gamma_kept,
            }
            row |= {"dead": 1 - float(fired.double().mean()), "explained": 1 - float(left)}
            if loaded.head == "causal":
                loss = losses(loaded, held.first(how.judged), layer, keep, model)
                row["recovered"] = (loss["mean"] - loss["autoencoder"]) / (loss["mean"] - loss["intact"])
                row |= {f"loss_{which}": value for which, value in loss.items()}
            yield row


def main() -> None:
    """Train and judge every autoencoder that is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("blocks", nargs="+", help="MODEL:BLOCK")
    parser.add_argument("--data", default="excerpt", help="texts: a file or a hub id")
    parser.add_argument("--limit", type=int, default=600, help="texts, of which a fifth judges")
    parser.add_argument("--judged", type=int, default=32, help="texts of the loss")
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
    for block in how.blocks:
        name, _, layer = block.rpartition(":")
        for row in measured(ol.load_model(name), name, int(layer), parts, how):
            with how.output.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
