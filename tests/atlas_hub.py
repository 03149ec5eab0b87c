"""Repositories of tiny models by the thousand, made when they are asked for, whose outlier dimensions are known.

    catalogue = Catalogue(10_000, seed=0)
    hub.models = catalogue                        # a FakeHub serves them
    catalogue.planted("org-3/model-17")           # {"model": 5}: dimension 5 of that stream; {} in a model without
    catalogue.broken("org-3/model-40")            # the reason that its row must have; "" where it can be read

Every family of `architectures.FAMILIES` in turn; every second model has one outlier dimension in every stream, and one in a
hundred is broken in each of the ways of `WAYS`. Weights of one family are the same but for its norms.
"""

import functools
import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from architectures import FAMILIES, build
from hub_server import FakeHub, Handler, Seen
from outlierlens.architectures import bind, stacks_of
from outlierlens.checkpoints.safetensors import write_header
from outlierlens.experiments.atlas.measure import measured_site

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
) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, tuple[tuple[str, ...], tuple[str, ...], float]]]:
    """(config, tensors, {stream: (names of its measured norm's scales, of its biases, what the norm adds to them)})."""
    model = build(FAMILIES[family])
    config = json.loads(model.config.to_json_string(use_diff=False))
    tensors = {
        name: value.detach().half().numpy() for name, value in model.state_dict().items() if value.is_floating_point()
    }
    streams = {}
    for stack in bind(stacks_of(config), tensors, config):
        for site in measured_site(stack):
            scale, bias = ([param.name for layer in part for param in layer] for part in (site.scale, site.bias))
            streams[stack.name] = (tuple(scale), tuple(bias), stack.stack.norm_offset)
    return config, tensors, streams


class Catalogue(MutableMapping[str, Mapping[str, bytes]]):
    """The repositories by name; none is kept."""

    def __init__(self, n: int, seed: int = 0, families: Sequence[str] | None = None, *, normal: bool = False):
        """Of all families that have a norm on their stream, or of these.

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
        dims = {stream: int(random.integers(len(tensors[scale[0]]))) for stream, (scale, _, _) in streams.items()}
        return dims if number % 2 else {}

    def _made(self, name: str) -> Files:
        number, way = self.number(name), self.way(name)
        assert number is not None
        config, tensors, streams = template(self.family(number))
        random = np.random.default_rng((self.seed, number, 3))
        planted = self.planted(name)
        changed = dict(tensors)
        for stream, (scale, bias, offset) in streams.items():
            for tensor, middle in [(one, 1.0 - offset) for one in scale] + [(one, 0.0) for one in bias]:
                size = len(tensors[tensor])
                values = middle + 0.1 * (random.standard_normal(size) if self.normal else random.uniform(-1, 1, size))
                if stream in planted:
                    values[planted[stream]] = middle + 4.0
                changed[tensor] = values.astype(np.float16)
        return self._files_of(way, config, changed, next(iter(streams.values()))[0])

    def _files_of(
        self, way: str, config: dict[str, Any], tensors: dict[str, np.ndarray], norms: tuple[str, ...]
    ) -> Files:
        if way == "unknown family":
            config = config | {"model_type": "no-such-family"}
        if way == "no model_type":
            config, tensors = {}, {f"other.{name}": values for name, values in list(tensors.items())[:3]}
        if way == "not finite":
            tensors[norms[0]][0] = np.nan
        if way == "dimensions disagree":
            tensors[norms[-1]] = tensors[norms[-1]][:-1]
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


def packed(tensors: dict[str, np.ndarray]) -> bytes:
    """A safetensors file of float16."""
    header = write_header({name: ("F16", values.shape, values.nbytes) for name, values in tensors.items()})
    return header + b"".join(values.tobytes() for values in tensors.values())


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
