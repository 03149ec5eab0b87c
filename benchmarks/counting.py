"""What counting token ids costs beside tokenising alone, and whether its memory depends on the corpus.

    python benchmarks/counting.py --data wiki.txt                        # minilm-l6, all cores
    python benchmarks/counting.py smollm2-135m --megabytes 200           # a made-up corpus of that size
    python benchmarks/counting.py --megabytes 4 --processes 2 --rounds 1 # a look, in seconds

Cost: `count_tokens` (processes started, files read, ids counted, sums kept on disk) beside the tokenizers library's batch
encoding of the same texts with their ids taken, in the two ways there are to use all cores: its own threads in one process,
and as many processes as ours with its threads off. Each way runs in a fresh process, in rounds of alternating order, the
tokenizer being loaded beforehand; the ratio is to the faster of the two, round by round, and its median counts.

Memory: the sum of the peaks of all processes, with the whole corpus beside a quarter of it.

Exit code 1 where the median ratio is over 1.10, memory grows by more than 10 %, or the ways find another number of ids.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST, GROWTH = 1.10, 1.10
WAYS = ("threads", "processes", "counting")
SYLLABLES = ("ba", "der", "in", "gro", "ta", "ly", "ment", "the", "o", "ver", "si", "er", "con", "a", "tion", "ru")


def made_up(path: Path, megabytes: float) -> None:
    """Lines of 5 to 40 made-up words, whose frequencies fall as those of words do (rank by rank, as 1/rank)."""
    chance = random.Random(0)
    words = ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 4))) for _ in range(30_000)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    with path.open("w") as file:
        while file.tell() < megabytes * 1e6:
            file.writelines(
                " ".join(chance.choices(words, cum_weights=weights, k=chance.randint(5, 40))) + ".\n"
                for _ in range(1000)
            )


def shards(data: list[str], column: str | None, limit: int | None) -> Iterator[list[str]]:
    """The texts as ours are cut."""
    from outlierlens.experiments.count.tally import Position, expand
    from outlierlens.experiments.count.tally import shards as cut

    return (shard.texts for shard in cut(expand(data), Position(), column=column, limit=limit))


def backend(text: str) -> Any:
    """The fast tokenizer alone, neither cutting nor padding."""
    from tokenizers import Tokenizer

    inner = Tokenizer.from_str(text)
    inner.no_truncation()
    inner.no_padding()
    return inner


def taken(inner: Any, texts: list[str]) -> int:
    """Encode, take every text's ids; how many there are."""
    return sum(len(ids) for ids in [one.ids for one in inner.encode_batch_fast(texts, add_special_tokens=False)])


def _open(text: str) -> None:
    global _inner  # noqa: PLW0603, a process of a pool has no other place
    _inner = backend(text)


def _taken(texts: list[str]) -> int:
    return taken(_inner, texts)


def by_threads(text: str, arguments: argparse.Namespace) -> int:
    """Batches on the library's own threads."""
    inner = backend(text)
    return sum(taken(inner, texts) for texts in shards(arguments.data, arguments.text_column, arguments.limit))


def by_processes(text: str, arguments: argparse.Namespace) -> int:
    """The same in a pool."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(arguments.processes, _open, (text,)) as pool:
        return sum(pool.imap(_taken, shards(arguments.data, arguments.text_column, arguments.limit)))


def by_counting(tokenizer: Any, arguments: argparse.Namespace) -> int:
    """Ours, with the output written."""
    from outlierlens.experiments.count.measure import count_tokens
    from outlierlens.experiments.count.options import CountOptions

    options = CountOptions(text_column=arguments.text_column, limit=arguments.limit, workers=arguments.processes)
    with tempfile.TemporaryDirectory() as folder:
        return count_tokens(tokenizer, arguments.data, options, output=Path(folder, "counts.parquet")).n_tokens


class Peak:
    """The highest sum of the memory peaks of this process and its children, in MiB, looked at every quarter of a second."""

    def __enter__(self) -> "Peak":
        self.most, self._done = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        import psutil

        while not self._done.wait(0.25):
            pids = [os.getpid(), *(child.pid for child in psutil.Process().children())]
            self.most = max(self.most, sum(map(high_water, pids)))

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def high_water(pid: int) -> float:
    """The memory peak of a process in MiB; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def busy() -> float:
    """Seconds of processors that this process and its ended children took, which others' load does not lengthen."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def one_way(arguments: argparse.Namespace) -> None:
    """Run one way in this process and print what it took."""
    from outlierlens.models.load import load_tokenizer

    tokenizer = load_tokenizer(arguments.tokenizer)
    text = tokenizer.backend_tokenizer.to_str()
    work = {
        "threads": lambda: by_threads(text, arguments),
        "processes": lambda: by_processes(text, arguments),
        "counting": lambda: by_counting(tokenizer, arguments),
    }[arguments.one]
    before = busy()
    with Peak() as peak:
        start = time.perf_counter()
        n = work()
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "busy": busy() - before, "tokens": n, "peak": peak.most}))


def run(arguments: argparse.Namespace, way: str, limit: int | None) -> dict[str, Any]:
    """`one_way` in a fresh process."""
    words = [sys.executable, __file__, arguments.tokenizer, "--one", way, "--processes", str(arguments.processes)]
    words += [word for name in arguments.data for word in ("--data", name)]
    words += ["--text-column", arguments.text_column] if arguments.text_column else []
    words += ["--limit", str(limit)] if limit else []
    threads = {"RAYON_NUM_THREADS": str(arguments.processes), "TOKENIZERS_PARALLELISM": "true"}
    single = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(threads if way == "threads" else single)}
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(arguments: argparse.Namespace) -> bool:
    """Print the table; whether both ratios hold."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(arguments.rounds):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            found[way].append(run(arguments, way, arguments.limit))
            last = found[way][-1]
            print(
                f"round {number + 1} {way:>9}: {last['seconds']:8.2f} s, {last['busy']:6.2f} busy, {last['peak']:6.0f} MiB",
                file=sys.stderr,
            )
    tokens = {row["tokens"] for rows in found.values() for row in rows}
    seconds = {way: [row["seconds"] for row in rows] for way, rows in found.items()}
    print(f"{arguments.tokenizer}, {arguments.processes} cores, {max(tokens):,} tokens, {arguments.rounds} rounds")
    for way in WAYS:
        print(
            f"{way:>9}: {statistics.median(seconds[way]):8.2f} s, {max(tokens) / min(seconds[way]):,.0f} tokens/s at best"
        )
    ratios = [
        ours / min(threads, processes) for threads, processes, ours in zip(*(seconds[way] for way in WAYS), strict=True)
    ]
    ratio = statistics.median(ratios)
    print(f"counting / the faster of the two: {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}), at most {MOST}")
    busiest = [statistics.median(row["busy"] for row in found[way]) for way in WAYS]
    print(f"processors' seconds, counting / the lesser of the two: {busiest[2] / min(busiest[:2]):.3f}")
    n_texts = sum(len(texts) for texts in shards(arguments.data, arguments.text_column, arguments.limit))
    part = run(arguments, "counting", max(1, n_texts // 4))
    growth = statistics.median(row["peak"] for row in found["counting"]) / part["peak"]
    print(
        f"memory, {n_texts:,} texts / a quarter of them: {growth:.3f}, at most {GROWTH} (peak {part['peak']:.0f} MiB)"
    )
    if len(tokens) > 1:
        print(f"the ways find different numbers of ids: {sorted(tokens)}")
    return ratio <= MOST and growth <= GROWTH and len(tokens) == 1


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", nargs="?", default="minilm-l6")
    parser.add_argument("--data", action="append", help="files, folders, globs; without, a corpus is made up")
    parser.add_argument("--text-column")
    parser.add_argument("--limit", type=int, help="the first N texts")
    parser.add_argument("--megabytes", type=float, default=64, help="of the made-up corpus")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one_way(arguments)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.data:
            arguments.data = [str(Path(folder, "made-up.txt"))]
            made_up(Path(arguments.data[0]), arguments.megabytes)
        return 0 if measure(arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
