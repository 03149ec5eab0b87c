"""What the benchmarks share: the command line, calls and processes that are timed in turn, made-up texts and models.

given = asked(__doc__, {"model": "minilm-l6"}, rounds=5, threads=int)
rounds([plain := Way("plain", run), ours := Way("ours", mine)], given.rounds)
cost = compare("ours over plain:", ours, plain)
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np


def asked(
    doc: str, words: Mapping[str, Any] | None = None, arguments: Sequence[str] | None = None, **options: Any
) -> argparse.Namespace:
    """What the command line says: `words` by place, `options` as --name.

    A value is the default, a type has none, False is a flag, and a list takes several.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in [*(words or {}).items(), *((f"--{name.replace('_', '-')}", options[name]) for name in options)]:
        by_place, one = not name.startswith("-"), value[0] if isinstance(value, list) else value
        names = (name, "-o") if name == "--output" else (name,)
        if value is False:
            parser.add_argument(*names, action="store_true")
        elif isinstance(one, type):
            parser.add_argument(*names, type=one, **({"nargs": "+"} if isinstance(value, list) else {}))
        else:
            several = {"nargs": "*"} if isinstance(value, list) else {"nargs": "?"} if by_place else {}
            parser.add_argument(*names, type=type(one), default=value, help="default: %(default)s", **several)
    given = parser.parse_args(arguments)
    if getattr(given, "threads", None):
        import torch

        torch.set_num_threads(given.threads)
    return given


# --- calls -------------------------------------------------------------------------------------------------------


@dataclass
class Way:
    """A call, and its seconds round by round; `busy` are the processor's, which others' load does not lengthen."""

    name: str
    work: Callable[[], Any]
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    def timed(self, *, counts: bool = True) -> Any:
        """What the call returns; its seconds are kept where it counts."""
        start, busy = time.perf_counter(), time.process_time()
        found = self.work()
        if counts:
            self.seconds.append(time.perf_counter() - start)
            self.busy.append(time.process_time() - busy)
        return found


def rounds(ways: Sequence[Way], n: int) -> dict[str, Any]:
    """Time `n` rounds of alternating order after one that is not timed, and return what each call returned last."""
    found = {}
    for number in range(n + 1):
        for way in ways[:: 1 if number % 2 == 0 else -1]:
            found[way.name] = way.timed(counts=bool(number))
    return found


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Median and range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """`one` over `other`, round by round."""
    return [a / b for a, b in zip(one, other, strict=True)]


def compare(what: str, one: Way, other: Way) -> float:
    """Print `one` over `other` by the clock and by the processor; the median by the processor."""
    print(f"  {what} {spread(ratios(one.seconds, other.seconds))} in {len(one.seconds)} rounds")
    print(f"  of processor seconds: {spread(ratios(one.busy, other.busy))}")
    return statistics.median(ratios(one.busy, other.busy))


def table(ways: Sequence[Way], n: int, unit: str) -> None:
    """Print median seconds, and `n` of a unit a second."""
    for way in ways:
        seconds, busy = statistics.median(way.seconds), statistics.median(way.busy)
        print(f"  {way.name:28} {seconds:8.3f} s  {n / seconds:9,.0f} {unit}/s  {busy:8.3f} s processor")


def own_products() -> AbstractContextManager[object]:
    """Inside, `fast_products` is PyTorch's own."""
    return patch("outlierlens.models.devices._there", lambda: False)


# --- processes ---------------------------------------------------------------------------------------------------

PROGRAM = str(Path(sys.executable).parent / "outlierlens")


class Usage(NamedTuple):
    """What a process took: seconds of processor and of wall clock, and its largest memory in MiB."""

    busy: float
    seconds: float
    megabytes: float


def process(*command: str) -> Usage:
    """Run a command to its end, modules read as bytecode, as installed packages are."""
    start = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    silent: Any = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(command[0], command, {"HF_HUB_OFFLINE": "1"} | environment, file_actions=silent)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{command[0]} failed with status {status}")
    return Usage(usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss / 1024)


def processes(commands: Mapping[str, Sequence[str]], n: int) -> dict[str, list[Usage]]:
    """{name: what each of `n` runs took}, one of each in turn, after a first that fills caches."""
    runs = [{name: process(*command) for name, command in commands.items()} for _ in range(n + 1)]
    return {name: [one[name] for one in runs[1:]] for name in commands}


def peak(script: str, *words: str) -> float:
    """Largest memory in MiB of a fresh process of a script that prints it last."""
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def largest_memory() -> float:
    """Of this process, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would start at the size of the process that started this one
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


# --- texts and models --------------------------------------------------------------------------------------------

N_WORDS = 2000


def made_up(n: int, shortest: int = 20, longest: int = 90) -> tuple[str, ...]:
    """Texts of words of common letters, some words much more frequent than others."""
    random = np.random.default_rng(0)
    letters, chance = np.array(list("etaoinshrdlu")), 1 / np.arange(1, N_WORDS + 1)
    words = ["".join(random.choice(letters, size=random.integers(2, 6))) for _ in range(N_WORDS)]
    sizes = random.integers(shortest, longest + 1, n)
    return tuple(" ".join(random.choice(words, size=size, p=chance / chance.sum())) for size in sizes)


def load(name: str, device: str = "cpu", **more: Any) -> Any:
    """A model in float32, from this machine."""
    from outlierlens.models.load import LoadOptions, load_model

    return load_model(name, LoadOptions(device=device, dtype="float32", offline=True, notice=lambda _: None, **more))


def random_llama(n_layers: int, vocabulary: int = 49152) -> Any:
    """A model of SmolLM2-135M's shape, whose tokenizer is not its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=576, intermediate_size=1536, num_hidden_layers=n_layers, num_attention_heads=9,
            num_key_value_heads=3, tie_word_embeddings=True,
        )
    ).eval()  # fmt: skip
