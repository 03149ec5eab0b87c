"""A model on a hub, read by byte ranges: the header, then only the bytes of the tensors that are asked for.

    with open_hub("sentence-transformers/all-mpnet-base-v2") as checkpoint:
        values = dict(checkpoint.read(["encoder.layer.0.output.LayerNorm.weight"]))
        checkpoint.bytes_read, checkpoint.requests        # a few thousandths of the file

A model that lies whole in the local hub cache is read from there, and nothing else is when offline. The first answer that names
the revision's commit pins every later request to it. HF_ENDPOINT, HF_TOKEN, HF_HUB_CACHE and HF_HUB_OFFLINE are honoured at the
time of the call; the token goes to the endpoint and to no other host.
"""

import difflib
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import numpy as np

from outlierlens.checkpoints import formats
from outlierlens.checkpoints.adapter import CONFIG
from outlierlens.checkpoints.base import (
    INDEX,
    ITEM_BYTES,
    MAX_CONFIG_BYTES,
    Checkpoint,
    LazyTensors,
    PlacedCheckpoint,
    TensorSpan,
    parse_config,
    room_for,
)
from outlierlens.checkpoints.formats import MAX_INDEX_BYTES, SAFETENSORS
from outlierlens.checkpoints.ranges import RemoteFile, Run, Wire, merge, refused
from outlierlens.checkpoints.samples import network_is_off
from outlierlens.errors import (
    BadFile,
    BadInput,
    NoSafetensors,
    Offline,
    OutlierlensError,
    RemoteError,
    UnknownModel,
    shell,
)

COMMIT, _SHA256 = re.compile(r"[0-9a-f]{40}\Z"), re.compile(r"[0-9a-f]{64}\Z")
PARALLEL = 8
HEADER_GUESS = 65_536  # bytes; the header of BERT-base is 20 kB
MAX_HEADER_GUESS = 4 * 2**20
ENTRY_BYTES = 100  # of a header for each tensor, beside its name
_COMPLETE = (SAFETENSORS.file, SAFETENSORS.index)
_UNSOUND = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f\\:*?\[^~]")  # empty, "." or ".." parts; no git name has these

_T = TypeVar("_T")
_U = TypeVar("_U")


class Repository:
    """Where the files of one model at one revision are.

    Attributes:
        revision: as asked for, "main" by default.
        commit: its full hash, once known, else "".
        folder: the subfolder, without slashes at its ends.
        confirmed: whether the hub has named a commit, so that model and revision exist.
        wire: what requests go over, and their count.
    """

    def __init__(self, model: str, wire: Wire, *, revision: str | None = None, subfolder: str = ""):
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        try:
            validate_repo_id(model)
        except HFValidationError:
            raise UnknownModel(f"{model!r}: not a hub id; ids look like 'organisation/name'") from None
        self.model, self.revision, self.folder, self.wire = model, revision or "main", subfolder.strip("/"), wire
        for what, value in (("revision", self.revision), ("subfolder", self.folder or "x")):
            if _UNSOUND.search(value):
                raise BadInput(f"{model}: the {what} {value!r} is not a plain name; see the model's page for its files")
        self.commit = self.revision if COMMIT.match(self.revision) else ""
        self.confirmed = False
        # A cached_property of Python 3.11 holds one lock for all instances, and many models are asked for at once.
        self.config, self.listing = cache(self._config), cache(self._listing)

    def url(self, file_name: str) -> str:
        """The address of a file, at the commit where it is known."""
        path = quote(f"{self.folder}/{file_name}" if self.folder else file_name)
        return f"{self.wire.endpoint}/{self.model}/resolve/{quote(self.commit or self.revision, safe='')}/{path}"

    def pin(self, commit: str) -> None:
        """Name `commit` in all later requests, unless one is named already."""
        if COMMIT.match(commit):
            self.commit, self.confirmed = self.commit or commit, True

    def resolved(self) -> str:
        """The full hash of the revision, asked for where it is not known; "" where the hub does not tell."""
        if not self.commit:
            self.config()  # any answer about a file names the commit
        return self.commit

    def _config(self) -> bytes | None:
        """The whole config.json, or None where there is none; the commit is known once it was asked for."""
        return self.small("config.json", MAX_CONFIG_BYTES)

    def small(self, file_name: str, limit: int) -> bytes | None:
        """The whole of a file of at most `limit` bytes, or None where the model has no such file.

        Raises:
            UnknownModel: the hub knows no such model or revision.
            RemoteError: any other refusal.
        """
        answer = self.wire.get(self.url(file_name), limit=limit)
        self.pin(answer.commit)
        code, said = answer.headers.get("x-error-code"), answer.headers.get("x-error-message", "")
        if code == "RevisionNotFound":
            raise UnknownModel(
                f"{self.model}: the hub knows no revision {self.revision!r}; pass a branch, a tag or a full commit "
                f"hash, as listed at {self.wire.endpoint}/{self.model}/commits/main"
            )
        # The hub answers 401, not 404, to a stranger who asks for a model that does not exist.
        if code == "RepoNotFound" or (answer.status == 401 and code != "GatedRepo" and "credentials" not in said):
            raise self._unknown()
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise refused(answer, self.wire.endpoint)
        return bytes(answer.body)

    def _listing(self) -> list[str]:
        """Plain names of the files in our folder and its onnx/, as the hub lists them; [] where it lists none."""
        revision = quote(self.commit or self.revision, safe="")
        url = f"{self.wire.endpoint}/api/models/{self.model}/revision/{revision}"
        answer = self.wire.get(url, limit=MAX_CONFIG_BYTES)
        if answer.status != 200:
            return []
        siblings = parse_config(bytes(answer.body), f"{self.model} (file list)").get("siblings")
        entries = siblings if isinstance(siblings, list) else []
        names = [entry.get("rfilename") for entry in entries if isinstance(entry, dict)]
        root = f"{self.folder}/" if self.folder else ""
        inside = [name[len(root) :] for name in names if isinstance(name, str) and name.startswith(root)]
        return sorted(name for name in inside if re.fullmatch(r"(onnx/)?\w[\w.+-]{0,250}", name))

    def cached(self, patterns: Iterable[str]) -> Checkpoint | None:
        """The model in the hub library's cache, at the commit or as the revision was last seen; None without whole weights.

        `patterns` are names of the files that may be taken.
        """
        home = _hub_cache() / ("models--" + self.model.replace("/", "--"))
        commit, reference = self.commit, home / "refs" / self.revision
        if not commit and reference.is_file() and reference.stat().st_size < 100:
            commit = reference.read_text(encoding="utf-8", errors="replace").strip()
        folder = home / "snapshots" / commit / self.folder
        if not COMMIT.match(commit):
            return None
        found = [path for pattern in patterns for path in folder.glob(pattern) if not formats.is_part(path)]
        if not found or not all(file.is_file() for path in found for file in formats.files_of(path)[0]):
            return None
        local = formats.open_directory(folder, str(home / "snapshots" / commit))
        local.name, local.kind, local.commit, local.requests = self.model, "hub", commit, self.wire.requests
        local.bytes_read += self.wire.received
        local.notes = (*local.notes, f"read from the local hub cache, commit {commit}")
        return local

    @property
    def download(self) -> str:
        """The command that fetches the whole model into the local cache."""
        return shell("hf", "download", self.model, *(() if self.revision == "main" else ("--revision", self.revision)))

    def no_weights(self) -> OutlierlensError:
        """The error for a model without safetensors."""
        listing = self.listing()
        names = [name for row in formats.FORMATS if row is not SAFETENSORS for name in row.names]
        endings = tuple(Path(name.removesuffix(INDEX)).suffix or name for name in names)
        others = [name for name in listing if name.removesuffix(INDEX).endswith(endings)]
        if others:
            return NoSafetensors(
                f"{self.model}: holds {', '.join(others[:3])} but no safetensors, and only those can be read by byte "
                f"ranges; run `{self.download}` and then the same command again"
            )
        if listing or self.config() or self.confirmed:
            place = f"the folder {self.folder!r}" if self.folder else "its root"
            return BadFile(
                f"{self.model}: holds no weight file in {place}; pass the right --model-args subfolder=FOLDER"
            )
        return self._unknown()

    def _unknown(self) -> UnknownModel:
        from outlierlens.checkpoints import samples

        near = difflib.get_close_matches(self.model.rpartition("/")[2], list(samples.SAMPLES), n=1)
        return UnknownModel(
            f"{self.model}: {urlsplit(self.wire.endpoint).netloc} shows no such model at {self.revision!r}; check the "
            "spelling, or run `hf auth login` (or set HF_TOKEN) if it is private"
            + (f"; near: the sample {near[0]!r}" if near else "")
        )


def open_hub(
    model: str, *, revision: str | None = None, subfolder: str = "", token: str | None = None, offline: bool = False
) -> Checkpoint:
    """Open a model by its id; see `open_repository` for further errors.

    Raises:
        Offline: the network is off and the local hub cache lacks the model.
    """
    repository = Repository(model, Wire(token), revision=revision, subfolder=subfolder)
    if not (offline or network_is_off()):
        return open_repository(repository)
    if cached := repository.cached(_any_weights()):
        return cached
    raise Offline(
        f"{model}: offline mode is on and the local hub cache holds no complete copy of its weights at "
        f"{repository.revision!r}; go online (drop offline from --model-args, unset HF_HUB_OFFLINE) or run "
        f"`{repository.download}` first"
    )


def open_repository(repository: Repository) -> Checkpoint:
    """The weights of a model, from the local cache where that holds this very commit, else by ranges.

    Raises:
        UnknownModel: no such model or revision.
        RemoteError: the hub cannot be reached, refuses, or answers with anything but the bytes asked for.
        BadFile: the weights are malformed, or in a format that cannot be read by ranges.
    """
    if repository.resolved() and (cached := repository.cached(_COMPLETE)):
        return cached
    remote = HubCheckpoint(repository)
    if remote.is_found:
        return remote
    if repository.commit and (cached := repository.cached(_any_weights())):
        return cached
    raise repository.no_weights()


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE).expanduser()


def _any_weights() -> tuple[str, ...]:
    """Patterns of a model's weights in the cache."""
    return tuple(name for row in formats.FORMATS for name in row.names)


class HubCheckpoint(PlacedCheckpoint):
    """Tensors of safetensors files that stay on a hub.

    Attributes (beside those of `Checkpoint`):
        is_found: whether the hub has such files.
        in_shards: whether the weights lie in several files, whose headers are read one by one when they are needed.
    """

    kind = "hub"

    def __init__(self, repository: Repository):
        """Read the header, or the index of a model in shards; raises as `open_repository` does."""
        self.name, self._repository, self._wire = repository.model, repository, repository.wire
        self._shards: dict[str, _Shard] = {}  # by file name
        self._shard_of: dict[str, str] = {}  # file name by tensor
        self._index_digest, self._claimed = "", 0
        raw = repository.config()
        self.config = parse_config(raw, f"{self.name}/config.json") if raw is not None else {}
        self.tensors = {}
        self.is_found = self._open_single(SAFETENSORS.file) or self._open_index() or self._open_listed()
        self.notes = (f"read from the hub at commit {self.commit}",) if self.commit else ()

    @property
    def commit(self) -> str:  # type: ignore[override]
        """The full hash of the revision, or "" where the hub does not tell."""
        return self._repository.commit

    @cached_property
    def adapter_config(self) -> dict[str, Any]:  # type: ignore[override]
        """The content of its adapter_config.json; {} where there is none."""
        raw = self._repository.small(CONFIG, MAX_CONFIG_BYTES)
        return {} if raw is None else parse_config(raw, f"{self.name}/{CONFIG}")

    @property
    def requests(self) -> int:  # type: ignore[override]
        """Requests sent so far, redirects and retries included."""
        return self._wire.requests

    @property
    def bytes_read(self) -> int:  # type: ignore[override]
        """Bytes of answers received so far."""
        return self._wire.received

    @property
    def total_bytes(self) -> int:  # type: ignore[override]
        """Size of the weight files; what the index claims, until every shard was opened."""
        sizes = [shard.file.size for shard in self._shards.values()]
        return sum(sizes) if all(sizes) else self._claimed

    @property
    def in_shards(self) -> bool:
        return bool(self._index_digest)

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        by_shard: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            if name not in self.tensors:
                raise BadInput(f"{self.name}: has no tensor {name!r}; `tensors` lists what it has")
            by_shard.setdefault(self._shard_of[name], []).append(name)
        jobs: list[tuple[_Shard, Run]] = []
        for shard, mine in zip(_in_parallel(self._opened, list(by_shard)), by_shard.values(), strict=True):
            spans = [(place.start, place.end, name) for name in mine for place in [self._place(name)[1]]]
            for name in (name for start, end, name in spans if start == end):
                yield name, self._values(name, np.empty(0, np.uint8), self.tensors[name].shape)
            jobs += [(shard, run) for run in merge(spans)]
        bodies = _in_parallel(lambda job: job[0].file.read(job[1].start, job[1].end), jobs)
        for (shard, run), body in zip(jobs, bodies, strict=True):
            raw = np.frombuffer(body, np.uint8)
            for name in run.names:
                place = shard.placed[name]
                yield name, self._values(name, raw[place.start - run.start : place.end - run.start], place.info.shape)

    def _parts(self, name: str, spans: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
        file, start = self._shards[self._shard_of[name]].file, self._place(name)[1].start
        for body in _in_parallel(lambda span: file.read(start + span[0], start + span[1]), spans):
            yield np.frombuffer(body, np.uint8)

    def kept(self, notice: Callable[[str], None]) -> Checkpoint:
        """The same tensors from the hub library's cache, into which it downloads the files first; `notice` is told.

        Raises:
            RemoteError: a download fails.
            BadFile: a file is not the one whose SHA-256 the hub names.
        """
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        repository = self._repository
        notice(f"{self.name}: {self.total_bytes / 1e9:,.3g} GB of weights go into the hub's cache on this disk")
        for name in (*self._shards, *([SAFETENSORS.index] if self.in_shards else [])):
            try:
                path = Path(hf_hub_download(
                    self.name, name, subfolder=repository.folder or None, revision=self.commit, cache_dir=_hub_cache(),
                    token=self._wire.token or False, endpoint=self._wire.endpoint,
                )).resolve()  # fmt: skip
            except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
                raise RemoteError(
                    f"{self.name}/{name}: cannot be kept ({type(error).__name__}); run it without --keep-weights"
                ) from error
            if _SHA256.match(path.name):  # the cache names a large file by what the hub says it is
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != path.name:
                        path.unlink()
                        raise BadFile(f"{self.name}/{name}: what came is not the file that the hub names; run again")
        found = repository.cached(_any_weights())
        assert found is not None  # its files were written just now
        return found

    def header_digest(self) -> str:
        """SHA-256 of names, types and shapes; for shards, of the index and the commit, which costs no request."""
        return self._index_digest or super().header_digest()

    def _open_single(self, file_name: str) -> bool:
        shard = self._shard(file_name)
        if not shard.open():
            return False
        self._repository.pin(shard.file.commit)
        self._shards, self._shard_of = {file_name: shard}, dict.fromkeys(shard.placed, file_name)
        self.tensors = {name: place.info for name, place in shard.placed.items()}
        return True

    def _open_index(self) -> bool:
        raw = self._repository.small(SAFETENSORS.index, MAX_INDEX_BYTES)
        if raw is None:
            return False
        where = f"{self.name}/{SAFETENSORS.index}"
        index = parse_config(raw, where)
        self._shard_of = formats.shard_names(index, where)
        metadata = index.get("metadata")
        claimed = metadata.get("total_size") if isinstance(metadata, dict) else None
        self._claimed = claimed if type(claimed) is int and claimed > 0 else 0
        members: dict[str, list[str]] = {}
        for name, file_name in self._shard_of.items():
            members.setdefault(file_name, []).append(name)
        self._shards = {file_name: self._shard(file_name, names) for file_name, names in members.items()}
        layout = json.dumps(self._shard_of, sort_keys=True)
        self._index_digest = hashlib.sha256(f"{layout}\0{self.commit}".encode()).hexdigest()
        self.tensors = LazyTensors(self._shard_of, lambda name: self._opened(self._shard_of[name]).placed[name].info)
        return True

    def _open_listed(self) -> bool:
        """Open the only safetensors file that the hub lists, whatever its name, as for a local directory."""
        found = [
            name for name in self._repository.listing() if "/" not in name and Path(name).suffix in SAFETENSORS.suffixes
        ]
        if len(found) > 1:
            raise BadFile(
                f"{self.name}: {len(found)} safetensors files and no index ({', '.join(found[:4])}); "
                f"run `{self._repository.download}` and pass one of the files"
            )
        return bool(found) and self._open_single(found[0])

    def _shard(self, file_name: str, names: Sequence[str] = ()) -> "_Shard":
        file = RemoteFile(self._wire, self._repository.url(file_name))
        guess = min(max(sum(len(name) + ENTRY_BYTES for name in names), HEADER_GUESS), MAX_HEADER_GUESS)
        return _Shard(f"{self.name}/{file_name}", file, names, guess)

    def _opened(self, file_name: str) -> "_Shard":
        shard = self._shards[file_name]
        if not shard.open():
            raise BadFile(
                f"{shard.where}: this shard is named by the index but missing; choose another --model-args revision=NAME"
            )
        return shard

    def _file(self, name: str) -> tuple[str, Callable[[int, int], memoryview], TensorSpan]:
        place, shard = self._place(name)[1], self._shards[self._shard_of[name]]

        def read(first: int, end: int) -> memoryview:
            room = room_for(first, end)
            room[:] = shard.file.read(first, end)
            return room

        return shard.where, read, place

    def _place(self, name: str) -> tuple[str, TensorSpan]:
        info, shard = self.tensors[name], self._shards[self._shard_of[name]]
        if info.dtype not in ITEM_BYTES:  # before anything of it is asked for
            raise BadFile(f"{shard.where}: cannot read values of type {info.dtype} ({name})")
        return f"{shard.where}: {name}", shard.placed[name]


class _Shard:
    """One weight file; its header is read by the first `open`, once, also when several threads call it."""

    def __init__(self, where: str, file: RemoteFile, wanted: Sequence[str], guess: int):
        self.where, self.file = where, file
        self.placed: dict[str, TensorSpan] = {}
        self._wanted, self._guess, self._open = wanted, guess, False
        self._lock = threading.Lock()

    def open(self) -> bool:
        """Read and check the header; False where there is no such file."""
        with self._lock:
            if self._open:
                return True
            first = self.file.head(self._guess)
            if first is None:
                return False
            end = 8 + formats.header_length(bytes(first[:8]), self.file.size, self.where)
            if end > len(first):
                first += self.file.read(len(first), end)
            self.placed = formats.parse_header(bytes(first[8:end]), self.file.size, self.where)
            for name in self._wanted:
                if name not in self.placed:
                    raise BadFile(f"{self.where}: the index places {name!r} here, but the file does not hold it")
            self._open = True
            return True


def _in_parallel(call: Callable[[_T], _U], items: Sequence[_T]) -> Iterator[_U]:
    """`call(item)` for all items in order, at most `PARALLEL` at a time or waiting to be taken."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        for start in range(0, len(items), PARALLEL):
            yield from pool.map(call, items[start : start + PARALLEL])
