"""Inputs that a small model may take: texts, pictures, videos, sounds, made of random numbers."""

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from outlierlens.architectures.experiment.shrink import items, nodes

if TYPE_CHECKING:
    import torch
    from torch import nn

N_INPUTS = 2
N_TOKENS = 7


def made_inputs(model: "nn.Module") -> Iterator[dict[str, Any]]:
    """Inputs that the model may take, the likeliest first."""
    import torch

    random = torch.Generator().manual_seed(0)
    config: Any = model.config
    text, vision = (getattr(config, f"{part}_config", None) or config for part in ("text", "vision"))
    takes = inspect.signature(model.forward).parameters
    n_words = getattr(text, "vocab_size", 0) or 100
    ids = torch.randint(min(5, n_words // 2), max(6, n_words * 3 // 4), (N_INPUTS, N_TOKENS), generator=random)
    decoder = {"decoder_input_ids": ids[:, :5]} if "decoder_input_ids" in takes else {}

    def noise(*shape: int) -> "torch.Tensor":
        return torch.randn((N_INPUTS, *shape), generator=random)

    def images() -> Iterator[dict[str, Any]]:
        size = _setting(vision, "image_size", 0) or _setting(config, "image_size", 32)
        picture = (_setting(vision, "num_channels", 3), *(size if isinstance(size, list | tuple) else (size, size)))
        words = {"input_ids": ids} if "input_ids" in takes else {}
        yield {"pixel_values": noise(*picture), **words, **decoder}
        yield {"pixel_values": noise(_setting(config, "num_frames", 2), *picture)}
        if "spatial_shapes" in takes:  # pictures that are cut into patches
            side = int(_setting(vision, "num_patches", 16) ** 0.5)
            patches = noise(side * side, picture[0] * _setting(vision, "patch_size", 16) ** 2)
            shapes = torch.tensor([[side, side]] * N_INPUTS)
            given = {"pixel_values": patches, "spatial_shapes": shapes}
            for name in ("pixel_attention_mask", "attention_mask"):
                if name in takes:
                    yield {**given, name: torch.ones(N_INPUTS, side * side, dtype=torch.long), **words}

    def sounds(name: str) -> Iterator[dict[str, Any]]:
        if name == "input_values":
            yield {name: noise(1200), **decoder}
        n_mel = next(filter(None, (_setting(config, key, 0) for key in _MEL_KEYS)), 80)
        n_frames = 2 * (getattr(config, "max_source_positions", 0) or 50)
        yield {name: noise(n_mel, n_frames), **decoder}
        yield {
            name: noise(_setting(config, "max_length", n_frames) if name == "input_values" else n_frames, n_mel),
            **decoder,
        }

    def texts() -> Iterator[dict[str, Any]]:
        words: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **decoder}
        if getattr(config, "add_cross_attention", False):
            words["encoder_hidden_states"] = noise(5, config.hidden_size)
        yield {key: value for key, value in words.items() if key in takes}

    makers: tuple[tuple[str, Callable[[], Iterator[dict[str, Any]]]], ...] = (
        ("input_values", lambda: sounds("input_values")),
        ("input_features", lambda: sounds("input_features")),
        ("pixel_values", images),
        ("input_ids", texts),
    )
    cache = {"use_cache": False} if "use_cache" in takes else {}
    for name, make in makers:
        if name in takes:
            for inputs in make():
                yield {**inputs, **cache}


_MEL_KEYS = ("num_mel_bins", "input_feat_per_channel", "n_mels", "mel_bins", "feature_size")


def _setting(config: Any, key: str, otherwise: Any) -> Any:
    """The first value of `key` that is set in a config, or in one inside."""
    return next((value for node in nodes(config) for name, value in items(node) if name == key and value), otherwise)
