"""What `verify` costs as a whole process, and that it catches every single-value edit of a sensitive value.

    python benchmarks/verify.py                              # the sample mpnet-base (fetch it first): bytes and seconds
    python benchmarks/verify.py MODEL --runs 5 --edits 1000  # and so many random edits of the model's own values
    python benchmarks/verify.py --families --edits 1000      # the edits spread over tiny models of several families

An edit changes one sensitive value by a random sign and a random size, from one unit in the last place up to eight
times the value, in memory, under the reader; nothing is written.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.analyses.fingerprint import FingerprintOptions, fingerprint_checkpoint, load_fingerprint
from outlierlens.analyses.fingerprint_values import list_sensitive, read_entry
from outlierlens.analyses.fingerprint_verify import verify_checkpoint
from outlierlens.architectures import bound_stacks
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.results.document import save

FAMILIES = ("bert", "mpnet", "roberta", "gpt2", "llama", "gemma2", "mixtral", "t5", "vit", "xlnet")


class Edited(Checkpoint):
    """Another checkpoint with one value changed as it is read; tensors read before are remembered."""

    def __init__(self, source: Checkpoint):
        self.source, self.name, self.kind = source, source.name, source.kind
        self.tensors, self.config = source.tensors, source.config
        self.total_bytes, self.bytes_read = source.total_bytes, 0
        self.edit: tuple[str, tuple[int, ...], float] | None = None
        self._read: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        yield from self.source.read(names)

    def take_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        key = (name, tuple(rows))
        if key not in self._read:
            self._read[key] = self.source.take_rows(name, rows)
        if self.edit is None or self.edit[0] != name:
            return self._read[key]
        values = self._read[key].copy()
        flat = int(np.ravel_multi_index(self.edit[1], self.tensors[name].shape))
        row, column = divmod(flat, values.shape[-1])
        if row in key[1]:
            values[key[1].index(row), column] = self.edit[2]
        return values


def edits(source: Checkpoint, n: int, seed: int) -> tuple[int, int, int]:
    """(edits, caught, caught with the right value named and nothing else) of `n` random single-value edits."""
    random = np.random.default_rng(seed)
    baseline = fingerprint_checkpoint(source, FingerprintOptions())
    dims = {stream.name: stream.dims for stream in baseline.streams}
    entries = list_sensitive(source, bound_stacks(source), dims)
    sizes = np.array([np.prod(entry.size) for entry in entries])
    checkpoint = Edited(source)
    caught = named = 0
    for _ in range(n):
        # Half of the edits by value, half by tensor: otherwise nearly all would hit the long rows.
        by_value = random.random() < 0.5
        entry = entries[random.choice(len(entries), p=sizes / sizes.sum() if by_value else None)]
        row, column = (int(random.integers(size)) for size in entry.size)
        before = np.float32(read_entry(source, entry)[row, column])
        sign = np.float32(random.choice([-1, 1]))
        change = sign * max(abs(before), np.float32(1e-6)) * np.float32(2.0 ** random.uniform(-23, 3))
        after = before + change
        if after == before:
            after = np.nextafter(before, sign * np.float32(np.inf))
        checkpoint.edit = (entry.stored, entry.index(row, column), float(after))
        found = verify_checkpoint(checkpoint, baseline)
        caught += not found.matches
        named += [one.index for one in found.moved] == [entry.index(row, column)]
    return n, caught, named


def families(n: int, seed: int) -> None:
    """The edits spread over tiny random models."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from memory_checkpoint import of_model

    total = np.zeros(3, dtype=int)
    for place, family in enumerate(FAMILIES):
        share = n // len(FAMILIES) + (place < n % len(FAMILIES))
        done = edits(of_model(family), share, seed + place)
        print(f"{family:10} {done[1]} of {done[0]} edits caught, {done[2]} named exactly", flush=True)
        total += done
    print(f"all        {total[1]} of {total[0]} edits caught, {total[2]} named exactly")


def run(command: list[str]) -> tuple[float, float]:
    """(seconds of wall clock, seconds of processor) of one process."""
    start = time.perf_counter()
    actions: Any = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    process = os.posix_spawn(command[0], command, os.environ | {"HF_HUB_OFFLINE": "1"}, file_actions=actions)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{command[0]} failed with status {status}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="mpnet-base")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--edits", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", action="store_true")
    options = parser.parse_args()
    if options.families:
        families(options.edits or 1000, options.seed)
        return
    with tempfile.TemporaryDirectory() as folder, open_checkpoint(options.model) as checkpoint:
        file = Path(folder) / "f.json"
        save(fingerprint_checkpoint(checkpoint, FingerprintOptions()), file)
        if options.edits:
            done = edits(checkpoint, options.edits, options.seed)
            print(f"{done[1]} of {done[0]} random single-value edits caught, {done[2]} named exactly")
        command = [str(Path(sys.executable).parent / "outlierlens"), "verify", options.model, "--baseline", str(file)]
        if options.runs:
            run(command)  # the file is read once before it counts
            pairs = [run(command) for _ in range(options.runs)]
            for figure, name in ((0, "wall clock"), (1, "processor")):
                values = [pair[figure] for pair in pairs]
                print(
                    f"whole process, {name}: median {statistics.median(values):.2f} s "
                    f"({min(values):.2f} to {max(values):.2f})"
                )
        baseline = load_fingerprint(file)
    with open_checkpoint(options.model) as fresh:  # counts from nothing
        found = verify_checkpoint(fresh, baseline)
        share = found.bytes_read / found.total_bytes
        print(f"{found.verdict}; read {found.bytes_read:,} of {found.total_bytes:,} bytes ({share:.2%})")


if __name__ == "__main__":
    main()
