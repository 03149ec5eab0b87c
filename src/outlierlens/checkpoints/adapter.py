"""A LoRA adapter of PEFT: what it adds to the weights of its base, or puts in their place, by the names of the base.

    adapter = open_adapter("runs/lora")     # of `checkpoints`: its adapter_config.json and adapter_model.safetensors
    adapter.changes(names, shape_of)        # {name: Change} of the parameters of its base, in files or in memory
    with AdaptedCheckpoint(checkpoint, adapter) as changed: ...     # base + scaling · B A, as it is read; nothing is written

The weight of a linear [out, in] gets scaling · B A, with A [r, in] and B [out, r]; that of a table [token, dim], or of GPT-2's
Conv1D [in, out], the transpose. scaling is α / r, or α / √r with `use_rslora` (Hu et al. 2021; Kalajdzievski 2023).
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.checkpoints.base import Checkpoint, LazyTensors, TensorInfo
from outlierlens.errors import BadFile, command, operand, shell

CONFIG = "adapter_config.json"
FILES = ("adapter_model.safetensors", "adapter_model.bin")
# What PEFT puts around the names of the base; behind `modules_to_save` and the sides of a LoRA stands the adapter's own name.
_AROUND = re.compile(r"\Abase_model\.model\.|(?<=\.)base_layer\.|(?<=\.)modules_to_save\.[^.]+\.")
_SIDE = re.compile(
    r"(?P<module>.+)\.lora_(?P<table>embedding_)?(?P<side>[AB])(\.(?!weight\Z|bias\Z)(?P<name>[^.]+))?(\.(?P<leaf>weight|bias))?"
)
_NAMED = re.compile(r"\.(?:lora_(?:embedding_)?[AB]|modules_to_save)\.(?!weight\Z|bias\Z)([^.]+)")
_MERGE = "merge it with peft: merge_and_unload(), then save_pretrained()"
# Settings that say nothing of what is added, or that are read below; any other that is on is more than plain LoRA.
_PLAIN = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "enable_lora", "ensure_weight_tying",
    "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "loftq_config", "lora_alpha", "lora_bias", "lora_dropout", "lora_ga_config", "megatron_config",
    "megatron_core", "merge_weights", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r",
    "rank_pattern", "revision", "runtime_config", "target_modules", "task_type", "use_rslora",
}  # fmt: skip
LARGEST = 1e12  # rank or alpha; a float holds it exactly
Key = tuple[str, str]  # a module, and "weight" or "bias"
_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")  # others change the base before the training


def no_model(name: str, config: Mapping[str, Any], folder: str, hub: str = "") -> BadFile:
    """The error for what holds an adapter in place of a model: what looks at both, once a `hub`'s was fetched to the folder."""
    base, said = config.get("base_model_name_or_path"), f"{name}: holds an adapter"
    fetched = f"fetch it with `{shell('hf', 'download', hub, '--local-dir', folder)}`, and " if hub else ""
    if not isinstance(base, str) or not base:
        return BadFile(f"{said}, and no model; {fetched}name its base, with --model-args adapter={folder}")
    both = command("scan", operand(base), "--model-args", f"adapter={folder}")
    return BadFile(f"{said} of {base}, and no model; {fetched}look at both with: {both}")


@dataclass(frozen=True)
class AdapterChange:
    """What becomes of one parameter, by names of the adapter's tensors.

    Attributes:
        whole: what takes its place; "" where its own values stay.
        sides: (A, B) of what is added, () for nothing; of a bias its increment alone. scaling: the factor before B A.
        turned: whether the parameter is laid out [in, out], as tables are.
    """

    source: Checkpoint
    whole: str = ""
    sides: tuple[str, ...] = ()
    scaling: float = 1.0
    turned: bool = False

    def made(self, values: np.ndarray | None, rows: Sequence[int] | slice = slice(None)) -> np.ndarray:
        """The adapted parameter, in the shape and type of `values`; of some `rows` alone where these are some [row, column]."""
        held = dict(self.source.read([*filter(None, (self.whole, *self.sides))]))
        if self.whole:
            whole = held[self.whole]
            values = whole if isinstance(rows, slice) else whole.reshape(-1, whole.shape[-1])[rows]
        assert values is not None
        if not self.sides:
            return values
        if len(self.sides) == 1:
            added = self.scaling * held[self.sides[0]]
        else:
            down, up = (held[name] for name in self.sides)
            left, right = (down.T, up.T) if self.turned else (up, down)
            added = np.float32(self.scaling) * (left[rows] @ right)
        return (values + added).astype(values.dtype)


class Adapter:
    """A LoRA of linears and tables, with parameters that were trained whole.

    Attributes:
        folder: where it is, as it was named. base: the model that its config names; "" for none.
    """

    def __init__(self, source: Checkpoint, config: Mapping[str, Any], folder: str, names: Iterable[str]):
        """`names` of the source's tensors are the adapter's.

        Raises:
            BadFile: it is more than plain LoRA, its settings and tensors contradict each other, or there are several.
        """
        self.source, self.folder, self._config = source, folder, config
        self.base = str(config.get("base_model_name_or_path") or "")
        self._own: Any = config.get("modules_to_save") or []  # modules that it brings whole
        self._refuse_others()
        self._sides: dict[Key, dict[str, str]] = {}  # {side: tensor}
        self._whole: dict[str, str] = {}  # parameter: tensor
        self._tables: set[str] = set()
        several: set[str] = set()
        for stored in names:
            several |= set(_NAMED.findall(stored))
            name = _AROUND.sub("", stored)
            if found := _SIDE.fullmatch(name):
                leaf = found["leaf"] or "weight"
                self._sides.setdefault((found["module"], leaf), {})[found["side"]] = stored
                self._tables |= {found["module"]} if found["table"] else set()
            elif "lora_" in name:
                raise self._bad(f"{stored} is not a part of plain LoRA")
            else:
                self._whole[name] = stored
        if len(several) > 1:
            raise BadFile(f"{folder}: holds several adapters ({', '.join(sorted(several))}); save one of them alone")
        if not self._sides and not self._whole:
            raise BadFile(f"{folder}: its {CONFIG} names an adapter, and its weights hold none; save it again")
        self._scalings = {key: self._scaling(*key, sides) for key, sides in self._sides.items()}

    @property
    def heads(self) -> dict[str, tuple[int, ...]]:
        """{parameter: its shape} of the modules that it brings whole, such as a classifier, as they are called in its model."""
        own = {name: stored for name, stored in self._whole.items() if self._own & {*name.split(".")}}
        return {name: self.source.tensors[stored].shape for name, stored in own.items()}

    @property
    def task(self) -> str:
        """What it was trained for, as peft calls it: "SEQ_CLS"; "" where its config does not say."""
        return str(self._config.get("task_type") or "")

    def _bad(self, what: str) -> BadFile:
        return BadFile(f"{self.folder}: {what}; {_MERGE}")

    def _refuse_others(self) -> None:
        """Raise BadFile where the settings say that it is not base + scaling · B A."""
        kind = str(self._config.get("peft_type") or "unknown").upper()
        if kind != "LORA":
            raise self._bad(f"its peft_type is {kind}, and adapters of LORA alone are read")
        if more := sorted(name for name, value in self._config.items() if value and name not in _PLAIN):
            raise self._bad(f"{CONFIG} sets {', '.join(more)}, which is more than plain LoRA")
        start = self._config.get("init_lora_weights")
        if start not in _STARTS:
            raise self._bad(f"init_lora_weights is {start!r}, by which peft changes the base before the training")
        patterns = [self._config.get(name) or {} for name in ("rank_pattern", "alpha_pattern")]
        if not all(isinstance(one, Mapping) for one in patterns) or not isinstance(self._own, list):
            what = f"the patterns or modules_to_save of its {CONFIG} are malformed"
            raise BadFile(f"{self.folder}: {what}; save it again")
        if odd := [key for one in patterns for key in one if not re.fullmatch(r"\^?[\w.]+", key)]:
            raise self._bad(f"{CONFIG} names modules by the pattern {odd[0]!r}, and plain names alone are read")
        self._own = {str(one) for one in self._own}

    def _setting(self, name: str, pattern: str, module: str) -> float:
        """`r` or `lora_alpha` of a module, which a pattern may name."""
        found = self._config.get(name, 8)  # peft's own default of both
        for key, value in (self._config.get(pattern) or {}).items():
            plain = key.removeprefix("^")
            if module == plain or (module.endswith(f".{plain}") and plain == key):
                found = value
                break
        if type(found) not in (int, float) or not abs(found) < LARGEST or (name == "r" and found <= 0):
            raise BadFile(f"{self.folder}: {CONFIG} gives {module} the {name} {found!r:.40}; save it again")
        return float(found)

    def _scaling(self, module: str, leaf: str, sides: Mapping[str, str]) -> float:
        """The factor before B A of a module, whose tensors are held against the settings."""
        r = self._setting("r", "rank_pattern", module)
        if leaf == "weight":
            if sides.keys() != {"A", "B"}:
                raise BadFile(f"{self.folder}: {module} has only side {', '.join(sides)} of its LoRA; save it again")
            down, up = (self.source.tensors[sides[side]].shape for side in "AB")
            if len(down) != 2 or len(up) != 2:
                raise self._bad(f"the LoRA of {module} has {max(len(down), len(up))} axes, so {module} is not a linear")
            if (down[0], up[1]) != (r, r):
                raise BadFile(
                    f"{self.folder}: {CONFIG} gives {module} r = {r:g}, and its tensors are {list(down)} and {list(up)}; "
                    f"use the {CONFIG} that belongs to them"
                )
        root = math.sqrt(r) if self._config.get("use_rslora") else r
        return self._setting("lora_alpha", "alpha_pattern", module) / root

    def changes(self, known: Collection[str], shape_of: Callable[[str], tuple[int, ...]]) -> dict[str, AdapterChange]:
        """{parameter of the base: what becomes of it}, of a base that has the `known` parameters.

        A module that the adapter brings itself (a head, of `modules_to_save`) may be absent from the base.

        Raises:
            BadFile: a tensor meets no parameter, or one of another shape.
        """
        named = {(module, leaf): f"{module}.{leaf}" for module, leaf in self._sides}
        met = _meet({*named.values(), *self._whole}, known)
        new = self.heads.keys() - met.keys()
        absent = {name for name in {*named.values(), *self._whole} - met.keys() - new if not self._repeats(name, met)}
        if absent:
            raise BadFile(
                f"{self.folder}: {len(absent)} of its {len(named) + len(self._whole)} changes meet no single parameter of the "
                f"base ({', '.join(sorted(absent)[:3])}); name the model that it was trained on{self._named}"
            )
        whole = {met.get(name, name): stored for name, stored in self._whole.items() if name in met or name in new}
        found = {name: AdapterChange(self.source, whole=stored) for name, stored in whole.items()}
        for name in found.keys() & {*met.values()}:
            self._check(found[name].whole, self.source.tensors[found[name].whole].shape, name, shape_of(name))
        turned = self._turned({key: shape_of(met[name]) for key, name in named.items()})
        for key, name in named.items():
            made = tuple(self._sides[key][side] for side in "AB" if side in self._sides[key])
            shape = self._shape(key)
            self._check(made[-1], shape[::-1] if turned[key] else shape, met[name], shape_of(met[name]))
            found[met[name]] = AdapterChange(
                self.source, whole.get(met[name], ""), made, self._scalings[key], turned[key]
            )
        return found

    def _repeats(self, name: str, met: Collection[str]) -> bool:
        """Whether a parameter that was trained whole is another one too, as the bias of BERT's head, which files hold once."""
        if name not in self._whole:
            return False
        stored, tensors = self._whole[name], self.source.tensors
        others = [one for key, one in self._whole.items() if key in met and tensors[one].shape == tensors[stored].shape]
        values = dict(self.source.read([stored, *others]))
        return any(np.array_equal(values[stored], values[one]) for one in others)

    def _shape(self, key: Key) -> tuple[int, ...]:
        """Of B A, or of a bias's increment."""
        sides = {side: self.source.tensors[stored].shape for side, stored in self._sides[key].items()}
        return (*sides["B"][:1], *sides.get("A", ())[1:])

    @property
    def _named(self) -> str:
        return f", {self.base}" if self.base else ""

    def _check(self, tensor: str, made: tuple[int, ...], name: str, wanted: tuple[int, ...]) -> None:
        if made != wanted:
            raise BadFile(
                f"{self.folder}: {tensor} is for a parameter of shape {list(made)}, and {name} of the base is "
                f"{list(wanted)}; name the model that it was trained on{self._named}, or, where its vocabulary grew, "
                f"{_MERGE}"
            )

    def _turned(self, wanted: Mapping[Key, tuple[int, ...]]) -> dict[Key, bool]:
        """Whether each weight is laid out [in, out]; of square ones the others tell, or `fan_in_fan_out`."""
        made = {key: self._shape(key) for key in wanted}
        other = {key for key in wanted if key[0] not in self._tables and made[key] != wanted[key] == made[key][::-1]}
        square = bool(other or self._config.get("fan_in_fan_out"))
        like = {key for key in wanted if square and len(made[key]) == 2 and made[key] == made[key][::-1]}
        return {key: key[0] in self._tables or key in other | like for key in wanted}

    def digest(self) -> str:
        """SHA-256 over what the settings make of it and all its tensors."""
        turned = bool(self._config.get("fan_in_fan_out"))
        digest = hashlib.sha256(repr((sorted(self._scalings.items()), turned)).encode())
        stored = {*self._whole.values(), *(one for sides in self._sides.values() for one in sides.values())}
        for name, values in self.source.read(sorted(stored)):
            digest.update(name.encode() + values.tobytes())
        return digest.hexdigest()

    def note(self, changes: Collection[str], n_parameters: int) -> str:
        """What results say of it."""
        of = f", of {self.base}" if self.base else ""
        n = f"{len(changes):,} of {n_parameters:,}"
        return f"with the adapter {self.folder} (LoRA{of}), which changes {n} parameters"


def _meet(names: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """{name of an adapter: that of the base's parameter}; none where no one, or no single one, is meant.

    What stands before the list of blocks differs between classes and files of a model ("bert.encoder.layer.0.…"), so the one
    is meant that shares most words of it.
    """
    by_end: dict[str, list[str]] = {}
    for name in known:
        by_end.setdefault(_end(name), []).append(name)
    found = {}
    for name in names:
        words = Counter(name.split("."))
        shared = {one: (words & Counter(one.split("."))).total() for one in by_end.get(_end(name), ())}
        best = [one for one, n in shared.items() if n == max(shared.values())]
        if name in best or len(best) == 1:
            found[name] = name if name in best else best[0]
    meant = Counter(found.values())
    return {name: one for name, one in found.items() if meant[one] == 1}


def _end(name: str) -> str:
    """A name from the list of blocks on, or its last two words."""
    words = name.split(".")
    first = next((place for place, word in enumerate(words) if word.isdecimal()), len(words) - 1)
    return ".".join(words[max(first - 1, 0) :])


class AdaptedCheckpoint(Checkpoint):
    """Another checkpoint with an adapter on it, under the names of that checkpoint.

    Attributes:
        base: that checkpoint; what is not found here is asked of it.
    """

    def __init__(self, base: Checkpoint, adapter: Adapter):
        """Raises BadFile where the adapter does not fit."""
        self.base, self.name, self.kind, self.config = base, base.name, base.kind, base.config
        self.outside, self.remedy, self._adapter = base.outside, base.remedy, adapter
        self.adapter = adapter.folder if adapter.source is not getattr(base, "source", None) else ""
        self._changes = adapter.changes(base.tensors, lambda name: base.tensors[name].shape)
        self._new = {name: change for name, change in self._changes.items() if name not in base.tensors}
        self.tensors = LazyTensors(dict.fromkeys((*base.tensors, *self._new), ""), self._info)
        self._note = adapter.note(self._changes, len(base.tensors))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["base"], name)

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the base, some of which only a look tells, and of the adapter."""
        return (self._note, *self.base.notes)

    def _info(self, name: str) -> TensorInfo:
        return self._adapter.source.tensors[self._new[name].whole] if name in self._new else self.base.tensors[name]

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        wanted = dict.fromkeys(names)
        for name, values in self.base.read(name for name in wanted if name not in self._new):
            yield name, self._changes[name].made(values) if name in self._changes else values
        for name in (name for name in wanted if name in self._new):
            yield name, self._new[name].made(None)

    def read_rows(self, name: str, n_rows: int) -> Iterator[np.ndarray]:
        if name in self._new:
            yield from super().read_rows(name, n_rows)
            return
        start = 0
        for values in self.base.read_rows(name, n_rows):
            yield self._some(name, values, range(start, start + len(values)))
            start += len(values)

    def take_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        if name in self._new:
            return super().take_rows(name, rows)
        return self._some(name, self.base.take_rows(name, rows), rows)

    def _some(self, name: str, values: np.ndarray, rows: Sequence[int]) -> np.ndarray:
        return self._changes[name].made(values, list(rows)) if name in self._changes else values

    def holds_floats(self, name: str) -> bool:
        return name in self._new or self.base.holds_floats(name)

    def packed_by(self, name: str) -> str:
        return "" if name in self._new else self.base.packed_by(name)

    def close(self) -> None:
        self.base.close()
        self._adapter.source.close()

    def header_digest(self) -> str:
        return hashlib.sha256(f"{self.base.header_digest()}{self._adapter.digest()}".encode()).hexdigest()
