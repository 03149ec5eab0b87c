"""What `verify` costs as a whole process, and that it catches every single-value edit of a sensitive value.

    python benchmarks/verify.py                              # the sample mpnet-base (fetch it first): bytes and seconds
    python benchmarks/verify.py MODEL --runs 5 --edits 1000  # and so many random edits of the model's own values
    python benchmarks/verify.py --families --edits 1000      # the edits spread over tiny models of several families

An edit changes one sensitive value by a random sign and a random size, from one unit in the last place up to eight
times the value, in memory, under the reader; nothing is written.
"""

import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from timing import PROGRAM, asked, processes, spread

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


def main() -> None:
    given = asked(__doc__, {"model": "mpnet-base"}, runs=5, edits=0, seed=0, families=False)
    if given.families:
        families(given.edits or 1000, given.seed)
        return
    with tempfile.TemporaryDirectory() as folder, open_checkpoint(given.model) as checkpoint:
        file = Path(folder) / "f.json"
        save(fingerprint_checkpoint(checkpoint, FingerprintOptions()), file)
        if given.edits:
            done = edits(checkpoint, given.edits, given.seed)
            print(f"{done[1]} of {done[0]} random single-value edits caught, {done[2]} named exactly")
        if given.runs:
            command = [PROGRAM, "verify", given.model, "--baseline", str(file)]
            taken = processes({"verify": command}, given.runs)["verify"]
            print(f"whole process: {spread([one.seconds for one in taken])} s by the clock")
            print(f"whole process: {spread([one.busy for one in taken])} s of the processor")
        baseline = load_fingerprint(file)
    with open_checkpoint(given.model) as fresh:  # counts from nothing
        found = verify_checkpoint(fresh, baseline)
        share = found.bytes_read / found.total_bytes
        print(f"{found.verdict}; read {found.bytes_read:,} of {found.total_bytes:,} bytes ({share:.2%})")


if __name__ == "__main__":
    main()
