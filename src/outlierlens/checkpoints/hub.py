"""A model on a hub, read by byte ranges: the header, then only the bytes of the tensors that are asked for.

    with HubCheckpoint("sentence-transformers/all-mpnet-base-v2") as checkpoint:
        values = dict(checkpoint.read(["encoder.layer.0.output.LayerNorm.weight"]))
        checkpoint.bytes_read, checkpoint.requests        # a few thousandths of the file

Files that already lie in the local hub cache are read from there, and nothing else is when offline. HF_ENDPOINT,
HF_TOKEN, HF_HUB_CACHE and HF_HUB_OFFLINE are honoured; the token goes to the endpoint and to no other host.
"""

import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from outlierlens.checkpoints import formats
from outlierlens.checkpoints.base import (
    ITEM_BYTES,
    Checkpoint,
    LazyTensors,
    TensorInfo,
    parse_config,
    row_spans,
    runs_of,
    widen,
)
from outlierlens.checkpoints.formats import (
    MAX_INDEX_BYTES,
    SAFETENSORS,
    Placed,
    files_of,
    header_length,
    is_part,
    open_directory,
    parse_header,
    shard_names,
)
from outlierlens.checkpoints.ranges import PARALLEL, LocalFile, RemoteFile, Run, merge
from outlierlens.checkpoints.repository import Repository, offline_by_environment
from outlierlens.errors import BadFile, BadInput, NoSafetensors, Offline, OutlierlensError

HEADER_GUESS = 65_536  # bytes; the header of BERT-base is 20 kB
MAX_HEADER_GUESS = 4 * 2**20
ENTRY_BYTES = 100  # of a header for each tensor, beside its name

_T = TypeVar("_T")
_U = TypeVar("_U")


class HubCheckpoint(Checkpoint):
    """A model on a hub by its id.

    Attributes (beside those of `Checkpoint`):
        commit: the revision's full hash once the hub has told it; every later request names it.
        requests: requests sent so far, redirects and retries included; 0 where nothing was fetched.
        total_bytes: size of the weight files; what the index claims, until every shard was opened.

    Raises:
        UnknownModel: no such model or revision.
        Offline: the network is off and the local hub cache lacks the model.
        RemoteError: the hub cannot be reached, refuses, or answers with anything but the bytes asked for.
        BadFile: the weights are malformed, or in a format that cannot be read by ranges.
    """

    kind = "hub"

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        subfolder: str = "",
        token: str | None = None,
        offline: bool = False,
        repository: Repository | None = None,
    ):
        """Open `model`; `repository`, where it was looked at before, says where it is in place of the other arguments."""
        self.name = model
        self.bytes_read = self.total_bytes = self.requests = 0
        self.config, self.tensors = {}, {}
        self._repository = repository or Repository(model, revision=revision, subfolder=subfolder, token=token)
        self._local: Checkpoint | None = None  # where the cache holds everything, the local readers do the rest
        self._shards: dict[str, _Shard] = {}  # by file name
        self._shard_of: dict[str, str] = {}  # file name by tensor, from the index
        self._index_digest = ""
        if offline or offline_by_environment():
            if not self._open_cached(_any_weights()):
                raise Offline(
                    f"{model}: offline mode is on and the local hub cache holds no complete copy of its weights at "
                    f"{self._repository.revision!r}; go online (drop --offline, unset HF_HUB_OFFLINE) or run "
                    f"`{self._repository.download}` first"
                )
        else:
            self._open_remote()
        self._tally()

    @property
    def commit(self) -> str:
        """The full hash of the revision, or "" where the hub does not tell."""
        return self._repository.commit

    @property
    def in_shards(self) -> bool:
        """Whether the weights lie in several files, whose headers are read one by one when they are needed."""
        return bool(self._shard_of)

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        wanted = list(dict.fromkeys(names))
        if self._local:
            for name, values in self._local.read(wanted):
                self._tally()
                yield name, values
            return
        missing = [name for name in wanted if name not in self.tensors]
        if missing:
            raise BadInput(f"{self.name}: has no tensor {missing[0]!r}; `tensors` lists what it has")
        by_shard: dict[str, list[str]] = {}
        for name in wanted:
            by_shard.setdefault(self._file_of(name), []).append(name)
        for _ in _in_parallel(_Shard.need, [self._shards[file_name] for file_name in by_shard]):
            self._tally()
        jobs: list[tuple[_Shard, Run]] = []
        for file_name, mine in by_shard.items():
            shard = self._shards[file_name]
            places = {name: self._place(name)[1] for name in mine}
            for name, place in places.items():
                if not place.info.nbytes:
                    yield name, widen(np.empty(0, np.uint8), place.info.dtype, place.info.shape, name)
            jobs += [(shard, run) for run in merge((place.start, place.end, name) for name, place in places.items())]
        for (shard, run), body in _in_parallel(lambda job: (job, job[0].file.read(job[1].start, job[1].end)), jobs):
            self._tally()
            raw = np.frombuffer(body, np.uint8)
            for name in run.names:
                place = shard.placed[name]
                part = np.array(raw[place.start - run.start : place.end - run.start])  # a copy, aligned for the view
                yield name, widen(part, place.info.dtype, place.info.shape, f"{shard.where}: {name}")

    def read_rows(self, name: str, n_rows: int) -> Iterator[np.ndarray]:
        if self._local:
            for rows in self._local.read_rows(name, n_rows):
                self._tally()
                yield rows
            return
        shard, place = self._place(name)
        info, start = place.info, place.start
        spans = list(row_spans(info, n_rows))
        blocks = _in_parallel(lambda span: shard.file.read(start + span[0], start + span[1]), spans)
        for (_, _, shape), body in zip(spans, blocks, strict=True):
            self._tally()
            yield widen(np.frombuffer(body, np.uint8), info.dtype, shape, f"{shard.where}: {name}")

    def take_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        if self._local:
            values = self._local.take_rows(name, rows)
            self._tally()
            return values
        shard, place = self._place(name)
        info, start, width = place.info, place.start, place.info.shape[-1]
        row_bytes = width * ITEM_BYTES[info.dtype]
        spans = [(start + first * row_bytes, start + end * row_bytes) for first, end in runs_of(rows)]
        raw = b"".join(_in_parallel(lambda span: bytes(shard.file.read(*span)), spans))
        self._tally()
        return widen(np.frombuffer(raw, np.uint8), info.dtype, (len(rows), width), f"{shard.where}: {name}")

    def close(self) -> None:
        # The connections belong to the hub library's shared session, which lives as long as the process.
        if self._local:
            self._local.close()

    def header_digest(self) -> str:
        """SHA-256 of names, types and shapes; for shards, of the index and the commit, which costs no request."""
        if self._local:
            return self._local.header_digest()
        return self._index_digest or super().header_digest()

    def _open_cached(self, patterns: Sequence[str]) -> bool:
        """Read everything from the local cache; False where it holds no complete weights of these file names."""
        snapshot = self._repository.snapshot()
        if snapshot is None:
            return False
        folder = snapshot / self._repository.folder
        found = [path for pattern in patterns for path in folder.glob(pattern) if not is_part(path)]
        if not found or not all(file.is_file() for path in found for file in files_of(path)[0]):
            return False
        self._local = open_directory(folder, str(snapshot))
        self._repository.pin(snapshot.name)
        self.tensors, self.config = self._local.tensors, self._local.config
        self.total_bytes = self._local.total_bytes
        self.notes = (*self._local.notes, f"read from the local hub cache, commit {snapshot.name}")
        return True

    def _open_remote(self) -> None:
        complete = (SAFETENSORS.file, SAFETENSORS.index)
        if self.commit and self._open_cached(complete):
            return
        raw = self._repository.config
        if self.commit and self._open_cached(complete):
            return
        self.config = parse_config(raw, f"{self.name}/config.json") if raw is not None else {}
        opened = self._open_single(SAFETENSORS.file) or self._open_index() or self._open_listed()
        if opened and self.commit:
            self.notes = (f"read from the hub at commit {self.commit}",)
        if not opened and not (self.commit and self._open_cached(_any_weights())):
            raise self._no_weights()

    def _open_single(self, file_name: str) -> bool:
        shard = self._shard(file_name, (), HEADER_GUESS)
        if not shard.open():
            return False
        if isinstance(shard.file, RemoteFile):
            self._repository.pin(shard.file.commit)
        self._shards = {file_name: shard}
        self.tensors = {name: place.info for name, place in shard.placed.items()}
        return True

    def _open_index(self) -> bool:
        raw = self._repository.small(SAFETENSORS.index, MAX_INDEX_BYTES)
        if raw is None:
            return False
        where = f"{self.name}/{SAFETENSORS.index}"
        index = parse_config(raw, where)
        self._shard_of = shard_names(index, where)
        metadata = index.get("metadata")
        claimed = metadata.get("total_size") if isinstance(metadata, dict) else None
        self.total_bytes = claimed if type(claimed) is int and claimed > 0 else 0
        members: dict[str, list[str]] = {}
        for name, file_name in self._shard_of.items():
            members.setdefault(file_name, []).append(name)
        for file_name, names in members.items():
            guess = sum(len(name) + ENTRY_BYTES for name in names)
            guess = min(max(guess, HEADER_GUESS), MAX_HEADER_GUESS)
            self._shards[file_name] = self._shard(file_name, names, guess)
        layout = json.dumps(self._shard_of, sort_keys=True)
        self._index_digest = hashlib.sha256(f"{layout}\0{self.commit}".encode()).hexdigest()
        self.tensors = LazyTensors(self._shard_of, self._info)
        return True

    def _open_listed(self) -> bool:
        """Open the only safetensors file that the hub lists, whatever its name, as for a local directory."""
        found = [
            name for name in self._repository.listing if "/" not in name and Path(name).suffix in SAFETENSORS.suffixes
        ]
        if len(found) > 1:
            raise BadFile(
                f"{self.name}: {len(found)} safetensors files and no index ({', '.join(found[:4])}); "
                f"run `{self._repository.download}` and pass one of the files"
            )
        return bool(found) and self._open_single(found[0])

    def _no_weights(self) -> OutlierlensError:
        listing = self._repository.listing
        endings = tuple(ending for row in formats.FORMATS if row is not SAFETENSORS for ending in row.endings)
        others = [name for name in listing if name.endswith(endings)]
        if others:
            return NoSafetensors(
                f"{self.name}: holds {', '.join(others[:3])} but no safetensors, and only those can be read by byte "
                f"ranges; run `{self._repository.download}` and then the same command again"
            )
        if listing or self.config or self._repository.confirmed:
            folder = self._repository.folder
            inside = sorted({name.rpartition("/")[0] for name in listing if name.endswith(SAFETENSORS.suffixes)})
            return BadFile(
                f"{self.name}: holds no weight file in {f'the folder {folder!r}' if folder else 'its root'}; "
                f"pass {f'--subfolder {inside[0]}' if inside else 'the right --subfolder'}"
            )
        return self._repository.unknown()

    def _shard(self, file_name: str, names: Sequence[str], guess: int) -> "_Shard":
        return _Shard(f"{self.name}/{file_name}", self._repository.file(file_name), names, guess)

    def _file_of(self, name: str) -> str:
        return self._shard_of[name] if self._shard_of else next(iter(self._shards))

    def _place(self, name: str) -> tuple["_Shard", Placed]:
        """Where the bytes of a tensor are; raises BadFile where its values are of a type that cannot be read."""
        info, shard = self.tensors[name], self._shards[self._file_of(name)]
        if info.dtype not in ITEM_BYTES:
            raise BadFile(f"{shard.where}: cannot read values of type {info.dtype} ({name})")
        return shard, shard.placed[name]

    def _info(self, name: str) -> TensorInfo:
        shard = self._shards[self._shard_of[name]]
        shard.need()
        self._tally()
        return shard.placed[name].info

    def _tally(self) -> None:
        files = [shard.file for shard in self._shards.values()]
        from_disk = sum(file.bytes for file in files if isinstance(file, LocalFile))
        self.requests = self._repository.requests
        self.bytes_read = self._repository.received + from_disk + (self._local.bytes_read if self._local else 0)
        if files and all(file.size for file in files):
            self.total_bytes = sum(file.size for file in files)


def _any_weights() -> tuple[str, ...]:
    """Patterns of a model's weights in the cache."""
    return tuple(name for row in formats.FORMATS for name in row.names)


class _Shard:
    """One weight file; its header is read by the first `open`, once, also when several threads call it."""

    def __init__(self, where: str, file: LocalFile | RemoteFile, wanted: Sequence[str], guess: int):
        self.where, self.file = where, file
        self.placed: dict[str, Placed] = {}
        self._wanted, self._guess, self._open = wanted, guess, False
        self._lock = threading.Lock()

    def need(self) -> None:
        """`open`, where the index promises that there is such a file."""
        if not self.open():
            raise BadFile(f"{self.where}: this shard is named by the index but missing; choose another --revision")

    def open(self) -> bool:
        """Read and check the header; False where there is no such file."""
        with self._lock:
            if self._open:
                return True
            first = self.file.head(self._guess)
            if first is None:
                return False
            end = 8 + header_length(bytes(first[:8]), self.file.size, self.where)
            if end > len(first):
                first += self.file.read(len(first), end)
            placed = parse_header(bytes(first[8:end]), self.file.size, self.where)
            for name in self._wanted:
                if name not in placed:
                    raise BadFile(f"{self.where}: the index places {name!r} here, but the file does not hold it")
            self.placed, self._open = placed, True
            return True


def _in_parallel(call: Callable[[_T], _U], items: Sequence[_T]) -> Iterator[_U]:
    """`call(item)` for all items in order, at most `PARALLEL` at a time or waiting to be taken."""
    waiting: deque[Future[_U]] = deque()
    pool = ThreadPoolExecutor(PARALLEL)
    try:
        for item in items:
            if len(waiting) == PARALLEL:
                yield waiting.popleft().result()
            waiting.append(pool.submit(call, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
