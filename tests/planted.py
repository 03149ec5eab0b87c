"""Texts and models that several tests share, and an oracle that reads hidden states with hooks of its own."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from architectures import FAMILIES, Family, build
from conftest import Words
from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts
from outlierlens.detection.observed import QUANTILES
from outlierlens.models.load import LoadedModel, from_objects

TEXT_FAMILIES = [family for family in FAMILIES.values() if family.inputs in ("text", "pair", "cross", "image and text")]


def some_texts(n: int, seed: int = 0, longest: int = 9, *, shortest: int = 1, n_words: int = 33) -> Texts:
    """Random word texts of different lengths."""
    random = np.random.default_rng(seed)
    sizes = (random.integers(shortest, longest + 1) for _ in range(n))
    made = [" ".join(f"w{i}" for i in random.integers(0, n_words, size)) for size in sizes]
    return Texts("made", tuple(made))


def turning_texts(lengths: Iterable[int]) -> Texts:
    """Texts of these many words, each a run of neighbouring words that begins elsewhere."""
    return Texts("made", tuple(" ".join(f"w{(7 * i + j) % 35}" for j in range(n)) for i, n in enumerate(lengths)))


def tiny(family: str, head: str = "", kind: str = "masked") -> LoadedModel:
    """The family's tiny model as it is built, with a tokenizer of `Words`."""
    return from_objects(build(FAMILIES[family], head), Words.build(kind=kind), name=family)


def wrap(family: Family, tokenizer: Any, *, double: bool = True) -> LoadedModel:
    """The family's tiny model; in float64, so that batching changes nothing above float32's precision."""
    model = build(family)
    double = double and "num_local_experts" not in family.config  # grouped matrix products have no float64
    return from_objects(model.double() if double else model, tokenizer, name=family.name)


class Oracle:
    """Hidden states of each text on its own, with hooks of the test's own: [layer][text] -> [token, dim]."""

    def __init__(self, loaded: LoadedModel, texts: Texts, max_length: int):
        self.ids = [loaded.tokenizer(t, truncation=True, max_length=max_length)["input_ids"] for t in texts.texts]
        self.loaded = loaded
        self.by_text: dict[str, list[list[np.ndarray]]] = {}
        for ids in self.ids:
            for stack, layers in self.run(ids).items():
                self.by_text.setdefault(stack, []).append(layers)

    def run(self, ids: list[int]) -> dict[str, list[np.ndarray]]:
        """Embeddings and each block's output, by stream."""
        seen: dict[str, list[np.ndarray]] = {}
        hooks = []
        for stack in self.loaded.stacks:
            keep = seen.setdefault(stack.name, [])
            modules = {path: self.loaded.model.get_submodule(path) for path in dict.fromkeys(stack.blocks)}

            def first(module: Any, args: Any, kwargs: Any, keep: list = keep) -> None:
                if not keep:
                    keep.append(self.plain(args[0] if args else kwargs["hidden_states"]))

            hooks.append(modules[stack.blocks[0]].register_forward_pre_hook(first, with_kwargs=True))
            for module in modules.values():
                hooks.append(
                    module.register_forward_hook(
                        lambda m, a, out, keep=keep: keep.append(self.plain(out[0] if isinstance(out, tuple) else out))
                    )
                )
        inputs = {"input_ids": torch.tensor([ids])}
        if "decoder" in seen:
            inputs["decoder_input_ids"] = torch.tensor([self.shifted(ids)])
        with torch.no_grad():
            self.loaded.model(**inputs)
        for hook in hooks:
            hook.remove()
        return {name: layers for name, layers in seen.items() if layers}

    @staticmethod
    def plain(states: torch.Tensor) -> np.ndarray:
        return states.reshape(-1, states.shape[-1]).float().numpy().astype(np.float64)

    def shifted(self, ids: list[int]) -> list[int]:
        return [self.loaded.config["decoder_start_token_id"], *ids[:-1]]

    def tokens(self, stack: str) -> list[tuple[int, int, int, bool]]:
        """(id, text, position, special) of every token of a stream."""
        found = []
        for text, ids in enumerate(self.ids):
            for position, token in enumerate(self.shifted(ids) if stack == "decoder" else ids):
                special = token in SPECIAL or (stack == "decoder" and position == 0)
                found.append((token, text, position, special))
        return found

    def expected(self, stack: str, layer: int, view: str, n_sigma: float = 3.0) -> dict[str, np.ndarray]:
        """Every statistic by its definition, over the concatenated states."""
        kept = [at for at in self.tokens(stack) if view == "all" or not at[3]]
        states = np.concatenate([text[layer] for text in self.by_text[stack]])
        states = states[[view == "all" or not at[3] for at in self.tokens(stack)]]
        n, dim = states.shape
        centred = states - states.mean(0)
        second = (centred**2).mean(0)
        beyond = np.abs(states - states.mean(1, keepdims=True)) >= n_sigma * states.std(1, keepdims=True)
        where = np.abs(states).argmax(0)
        owner = np.array([at[1] for at in kept])
        ranks = np.maximum(np.ceil(np.array(QUANTILES) * n).astype(int) - 1, 0)
        return {
            "tokens": n,
            "mean": states.mean(0),
            "std": np.sqrt(second),
            "skewness": (centred**3).mean(0) / second**1.5,
            "kurtosis": (centred**4).mean(0) / second**2,
            "min": states.min(0),
            "max": states.max(0),
            "abs_max": np.abs(states).max(0),
            "place": np.array([[kept[i][k] for i in where] for k in (0, 1, 2)]),
            "argmin_share": np.bincount(states.argmin(1), minlength=dim) / n,
            "argmax_share": np.bincount(states.argmax(1), minlength=dim) / n,
            "sigma_token_share": beyond.mean(0),
            "sigma_input_share": np.mean([beyond[owner == text].any(0) for text in np.unique(owner)], axis=0),
            "quantiles": np.sort(states, axis=0)[ranks].T,
            "median_abs": np.sort(np.abs(states), axis=None)[(n * dim + 1) // 2 - 1],
        }


def random_counts(n: int = 40) -> TokenCounts:
    drawn = np.random.default_rng(0).integers(0, 50, n)
    return TokenCounts(drawn, np.zeros(n, dtype=np.int64), tuple(f"t{i}" for i in range(n)), 1, "drawn")


def model_of(family: str, head: str, words: Any, **tokenizer: Any) -> LoadedModel:
    torch.manual_seed(3)
    loaded = from_objects(build(FAMILIES[family], head), name=family)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(
                torch.randn_like(parameter) * 0.1
            )  # biases and scales that differ, so that switching off shows
    return LoadedModel(family, loaded.model, words(**tokenizer), loaded.head, loaded.stacks, loaded.config)


SPECIAL = range(5)  # the tokenizer's first five ids
