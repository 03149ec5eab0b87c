"""Repositories of tiny models by the thousand, made when they are asked for, whose outlier dimensions are known.

    catalogue = Catalogue(10_000, seed=0)
    hub.models = catalogue                        # a FakeHub serves them
    catalogue.planted("org-3/model-17")           # {"model": 5}: dimension 5 of that stream; {} in a model without
    catalogue.broken("org-3/model-40")            # the reason that its row must have; "" where it can be read

Every family of `architectures.FAMILIES` in turn; every second model has one outlier dimension in every stream, and one in a
hundred is broken in each of the ways of `WAYS`. Weights of one family are the same but for its blocks' last operations.
"""

import functools
import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from architectures import FAMILIES, build
from hub_server import FakeHub, Handler, Seen
from outlierlens.architectures import Param, bind, stacks_of
from outlierlens.checkpoints.formats import write_header
from outlierlens.detection.weights import sites_of

# What is wrong with a broken model, and the reason that its row must have.
WAYS = {
    "gated": "gated",
    "missing": "missing",
    "pickled": "no safetensors",
    "gguf": "no safetensors",
    "unknown family": "unknown family",
    "no model_type": "unknown family",
    "config is no JSON": "malformed",
    "header is no JSON": "malformed",
    "cut short": "malformed",
    "not finite": "malformed",
    "no weights": "malformed",
    "dimensions disagree": "malformed",
}
Files = dict[str, bytes]


@functools.cache
def template(
    family: str,
) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, tuple[tuple[Param, ...], tuple[Param, ...], float]]]:
    """(config, tensors, {stream: (the scales that `scan` measures, their biases, what the norm adds to its scales)})."""
    model = build(FAMILIES[family])
    config = json.loads(model.config.to_json_string(use_diff=False))
    tensors = {
        name: value.detach().half().numpy() for name, value in model.state_dict().items() if value.is_floating_point()
    }
    streams = {}
    for stack in bind(stacks_of(config), tensors, config):
        for site in sites_of(stack, "last"):
            scale, bias = ([param for layer in part for param in layer] for part in (site.scale, site.bias))
            streams[stack.name] = (tuple(scale), tuple(bias), stack.stack.norm_offset)
    return config, tensors, streams


class Catalogue(MutableMapping[str, Mapping[str, bytes]]):
    """The repositories by name; none is kept."""

    def __init__(self, n: int, seed: int = 0, families: Sequence[str] | None = None, *, normal: bool = False):
        """Of all families, or of these.

        What is not planted is uniform, which never passes 3 sigma, or `normal`, which does at the rule's own level.
        """
        self.normal = normal
        for name in families or FAMILIES:
            template(name)  # now: a request for the first of a family would wait until torch is imported
        self.n, self.seed, self.families = n, seed, families or tuple(name for name in FAMILIES if template(name)[2])
        self._files = functools.lru_cache(256)(self._made)

    def name(self, number: int) -> str:
        return f"org-{number % 100}/model-{number}"

    def number(self, name: str) -> int | None:
        stem = name.rpartition("-")[2]
        return int(stem) if stem.isdecimal() and int(stem) < self.n and self.name(int(stem)) == name else None

    def family(self, number: int) -> str:
        return self.families[number % len(self.families)]

    def way(self, name: str) -> str:
        """What is wrong with it, "" for nothing."""
        number = self.number(name)
        assert number is not None
        place = np.random.default_rng((self.seed, number, 1)).integers(100)
        return [*WAYS, *[""] * 100][place]

    def broken(self, name: str) -> str:
        return WAYS.get(self.way(name), "")

    def planted(self, name: str) -> dict[str, int]:
        number = self.number(name)
        assert number is not None
        _, tensors, streams = template(self.family(number))
        random = np.random.default_rng((self.seed, number, 2))
        dims = {
            stream: int(random.integers(tensors[scale[0].name].shape[scale[0].axis]))
            for stream, (scale, _, _) in streams.items()
        }
        return dims if number % 2 else {}

    def _made(self, name: str) -> Files:
        number, way = self.number(name), self.way(name)
        assert number is not None
        config, tensors, streams = template(self.family(number))
        random = np.random.default_rng((self.seed, number, 3))
        planted = self.planted(name)
        changed = dict(tensors)
        for stream, (scale, bias, offset) in streams.items():
            for one, middle in [(one, 1.0 - offset) for one in scale] + [(one, 0.0) for one in bias]:
                shape = tensors[one.name].shape
                size, at = shape[one.axis], middle if len(shape) == 1 else 1.0
                values = at + 0.1 * (random.standard_normal(size) if self.normal else random.uniform(-1, 1, size))
                if stream in planted:
                    values[planted[stream]] = at + 4.0
                if len(shape) > 1:  # the L2 norms of what is written to each dimension
                    values = spread(values, shape, one.axis, random)
                changed[one.name] = values.astype(np.float16)
        return self._files_of(way, config, changed, next(iter(streams.values()))[0])

    def _files_of(
        self, way: str, config: dict[str, Any], tensors: dict[str, np.ndarray], measured: tuple[Param, ...]
    ) -> Files:
        if way == "unknown family":
            config = config | {"model_type": "no-such-family"}
        if way == "no model_type":
            config, tensors = {}, {f"other.{name}": values for name, values in list(tensors.items())[:3]}
        if way == "not finite":
            tensors[measured[0].name][0] = np.nan
        if way == "dimensions disagree":
            whole, axis = tensors[measured[-1].name], measured[-1].axis
            tensors[measured[-1].name] = np.delete(whole, -1, axis)
        raw = packed(tensors)
        if way == "header is no JSON":
            raw = raw[:8] + b"\x00" * (len(raw) - 8)
        if way == "cut short":
            raw = raw[: len(raw) // 2]
        files = {"config.json": json.dumps(config).encode(), "model.safetensors": raw}
        if way == "config is no JSON":
            files["config.json"] = b"{"
        if way in ("pickled", "gguf", "no weights"):
            del files["model.safetensors"]
        if way in ("pickled", "gguf"):
            files[{"pickled": "pytorch_model.bin", "gguf": "model-q4.gguf"}[way]] = b"x"
        return files

    def __getitem__(self, name: str) -> Files:
        if self.number(name) is None or self.way(name) == "missing":
            raise KeyError(name)
        return self._files(name)

    def __iter__(self) -> Iterator[str]:
        return (self.name(number) for number in range(self.n))

    def __len__(self) -> int:
        return self.n

    def __setitem__(self, name: str, files: Mapping[str, bytes]) -> None:
        raise TypeError("a catalogue is what it is")

    def __delitem__(self, name: str) -> None:
        raise TypeError("a catalogue is what it is")


def spread(norms: np.ndarray, shape: Sequence[int], axis: int, random: np.random.Generator) -> np.ndarray:
    """Weights of this shape whose L2 norms along `axis` are these."""
    moved = random.standard_normal(np.moveaxis(np.empty(shape, np.uint8), axis, 0).shape)
    rows = moved.reshape(len(norms), -1)
    rows *= (norms / np.linalg.norm(rows, axis=1))[:, None]
    return np.moveaxis(moved, 0, axis)


def packed(tensors: dict[str, np.ndarray]) -> bytes:
    """A safetensors file of float16."""
    header = write_header({name: ("F16", values.shape, values.nbytes) for name, values in tensors.items()})
    return header + b"".join(values.tobytes() for values in tensors.values())


# Real shapes: family, layers, width, inner width, vocabulary.
SIZES = {
    "bert-base": ("bert", 12, 768, 3072, 30_522),
    "bert-large": ("bert", 24, 1024, 4096, 30_522),
    "llama-2-7b": ("llama", 32, 4096, 11_008, 32_000),
}


def real_size(path: Path, name: str, planted: int) -> tuple[bytes, Path]:
    """(config.json, a file of the size of the real model in float32, of which only the norms are written).

    The dimension `planted` stands out in every norm; all other weights are holes in the file, which read as zeros.
    """
    family, layers, width, inner, vocabulary = SIZES[name]
    shapes: dict[str, tuple[int, ...]] = {}
    if family == "bert":
        shapes["embeddings.word_embeddings.weight"] = (vocabulary, width)
        for layer in range(layers):
            at = f"encoder.layer.{layer}"
            for linear, size in (
                ("attention.self.query", (width, width)), ("attention.self.key", (width, width)),
                ("attention.self.value", (width, width)), ("attention.output.dense", (width, width)),
                ("intermediate.dense", (inner, width)), ("output.dense", (width, inner)),
            ):  # fmt: skip
                shapes |= {f"{at}.{linear}.bias": size[:1], f"{at}.{linear}.weight": size}
            for norm in ("attention.output.LayerNorm", "output.LayerNorm"):
                shapes |= {f"{at}.{norm}.bias": (width,), f"{at}.{norm}.weight": (width,)}
    else:
        shapes["model.embed_tokens.weight"] = (vocabulary, width)
        for layer in range(layers):
            at = f"model.layers.{layer}"
            shapes |= {f"{at}.{norm}.weight": (width,) for norm in ("input_layernorm", "post_attention_layernorm")}
            shapes |= {f"{at}.self_attn.{one}_proj.weight": (width, width) for one in "qkvo"}
            shapes |= {f"{at}.mlp.{one}_proj.weight": (inner, width) for one in ("gate", "up")}
            shapes[f"{at}.mlp.down_proj.weight"] = (width, inner)
        shapes |= {"model.norm.weight": (width,), "lm_head.weight": (vocabulary, width)}
    # As it is saved: in the order of names.
    sizes = {one: ("F32", shapes[one], 4 * int(np.prod(shapes[one]))) for one in sorted(shapes)}
    header, random = write_header(sizes), np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(header)
        at_byte = len(header)
        for one, (_, shape, size) in sizes.items():
            if "norm" in one.lower():
                values = random.normal(float(one.endswith("weight")), 0.02, shape)
                values[planted] += 1
                file.seek(at_byte)
                file.write(values.astype(np.float32).tobytes())
            at_byte += size
        file.truncate(at_byte)
    return json.dumps({"model_type": family, "num_hidden_layers": layers}).encode(), path


class Faults:
    """What goes wrong on the way: gated models, and of every thousand requests some busy, failing and cut off.

    Of a request only the first attempt is spoilt, so that what is asked again is had.
    """

    def __init__(self, catalogue: Catalogue, per_thousand: int = 5, seed: int = 0):
        self.catalogue, self.per_thousand = catalogue, per_thousand
        self.random = np.random.default_rng(seed)
        self.spoilt = {"busy": 0, "failing": 0, "cut": 0}

    def __call__(self, handler: Handler, seen: Seen) -> bool:
        model = "/".join(seen.path[1:].split("/")[:2])
        fake: FakeHub = handler.server.fake
        if seen.server == "hub" and self.catalogue.number(model) is not None and self.catalogue.way(model) == "gated":
            handler.reply(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
            return True
        with fake.lock:
            drawn = int(self.random.integers(1000)) // max(1, self.per_thousand) if self.per_thousand else 3
            how = ("busy", "failing", "cut", "")[min(drawn, 3)]
            if how:
                self.spoilt[how] += 1
        if how == "busy":
            handler.reply(429, b"slow down", {"Retry-After": "1"})
        elif how == "failing":
            handler.reply(503, b"not now")
        elif how == "cut":
            start, end = seen.span or (0, 1000)
            part = {"Content-Range": f"bytes {start}-{end - 1}/{end}"} if seen.span else {}
            handler.reply(206 if part else 200, b"{", {"Content-Length": str(end - start)} | part)
            handler.close_connection = True
        return bool(how)
