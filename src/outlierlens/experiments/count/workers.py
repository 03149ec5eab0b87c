"""Hand shards to processes and take their counts back in order.

    with Workers(tally, 8) as workers:
        for shard, ids, times in workers.counted(shards): ...

Processes, not threads: what is left to Python (taking ids over, counting) is one core's work for all threads together, and
slow tokenizers are nothing else. A worker imports NumPy and the tokenizers library alone.
"""

import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np

import outlierlens
from outlierlens.errors import BadInput, OutlierlensError
from outlierlens.experiments.count.tally import Shard, Tally, packed_texts, plain, receive, send

AHEAD = 2  # shards a worker that are read before they are asked for
Counted = tuple[Shard, np.ndarray, np.ndarray]


def here(tally: Tally, shards: Iterable[Shard]) -> Iterator[Counted]:
    """Shards with their counts, made in this process."""
    for shard in shards:
        try:
            yield shard, *tally(_unicode(shard.texts))
        except OutlierlensError:
            raise
        except Exception as error:
            raise _failed(shard, f"{type(error).__name__}: {error}") from error


class Workers:
    """Processes that count; `counted` keeps a bounded number of shards in memory, whatever the corpus."""

    def __init__(self, tally: Tally, n: int) -> None:
        assert tally.portable is not None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(n)
        self._n = n
        kind, content = tally.portable
        try:
            for _ in range(n):
                self._processes.append(_started())
            for process in self._processes:
                _ask(process, kind.encode(), content, tally.settings())
                self._free.put(process)
        except BaseException:
            self.close()
            raise

    @classmethod
    def started(cls, tally: Tally, n: int) -> "Workers | None":
        """`n` workers; None for a tokenizer that no other process can have (its class stands in a script, say)."""
        if tally.portable is None:
            return None
        try:
            return cls(tally, n)
        except BadInput:
            return None

    def counted(self, shards: Iterable[Shard]) -> Iterator[Counted]:
        """Shards with their counts, in order."""
        waiting: deque[tuple[Shard, Future[tuple[np.ndarray, np.ndarray]]]] = deque()
        for shard in shards:
            waiting.append((shard, self._threads.submit(self._count, shard)))
            if len(waiting) >= AHEAD * self._n:
                first, counts = waiting.popleft()
                yield first, *counts.result()
        while waiting:
            first, counts = waiting.popleft()
            yield first, *counts.result()

    def _count(self, shard: Shard) -> tuple[np.ndarray, np.ndarray]:
        process = self._free.get()
        try:
            ids, times = _ask(process, *packed_texts(_unicode(shard.texts)))
        except BadInput as error:
            raise _failed(shard, str(error)) from None
        finally:
            self._free.put(process)
        return np.frombuffer(ids, dtype=np.int64), np.frombuffer(times, dtype=np.int64)

    def close(self) -> None:
        """End the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._threads.shutdown(wait=True)
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    # What a killed worker did not read any more is of no use to anybody.
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        continue
            process.wait()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _started() -> "subprocess.Popen[bytes]":
    root = str(Path(outlierlens.__file__).parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    # One core a worker: the libraries below would otherwise each take them all.
    single = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", "from outlierlens.experiments.count.tally import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **single, "PYTHONPATH": os.pathsep.join(paths)},
        process_group=0,  # Ctrl-C is for the process that hands out the shards
    )


def _ask(process: "subprocess.Popen[bytes]", *parts: bytes) -> list[bytes]:
    """The answer of a worker; raises BadInput with what went wrong there."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        send(process.stdin, *parts)
        told, *answer = receive(process.stdout)
    except (EOFError, BrokenPipeError, ValueError):
        raise OutlierlensError(
            f"a counting process ended (exit code {process.poll()}), perhaps for want of memory; the same command continues "
            f"where it stopped, --workers 1 takes the least memory"
        ) from None
    if told == b"error":
        raise BadInput(answer[0].decode())
    return answer


def _unicode(texts: list[str]) -> list[str]:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return plain(texts)
    return texts


def _failed(shard: Shard, why: str) -> BadInput:
    last = shard.end.texts
    return BadInput(f"the tokenizer fails on a text between {last - len(shard.texts) + 1:,} and {last:,}: {why[:300]}")
