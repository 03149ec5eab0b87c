"""One model's folder on a hub, and the copy of it that the hub library may keep on this machine.

    repository = Repository("sentence-transformers/all-mpnet-base-v2", revision=None, subfolder="", token=None)
    repository.small("config.json", limit=2**24)      # bytes, or None where there is no such file
    repository.file("model.safetensors")              # LocalFile from the cache, or RemoteFile
    repository.snapshot()                             # the cache's folder for the revision, or None

The first answer that names the revision's commit pins every later request to it. HF_ENDPOINT, HF_TOKEN,
HF_HUB_CACHE and HF_HUB_OFFLINE are honoured at the time of the call.
"""

import difflib
import os
import re
from functools import cache, cached_property
from pathlib import Path
from urllib.parse import quote, urlsplit

from outlierlens.checkpoints.base import MAX_CONFIG_BYTES, parse_config
from outlierlens.checkpoints.pace import Courtesy
from outlierlens.checkpoints.ranges import LocalFile, RemoteFile, Wire, refused
from outlierlens.errors import BadInput, UnknownModel, shell

COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_UNSOUND = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f\\:*?\[^~]")  # empty, "." or ".." parts; no git name has these


class Repository:
    """Where the files of one model at one revision are.

    Attributes:
        revision: as asked for, "main" by default.
        commit: its full hash, once known, else "".
        folder: the subfolder, without slashes at its ends.
        confirmed: whether the hub has named a commit, so that model and revision exist.
    """

    def __init__(
        self, model: str, *, revision: str | None, subfolder: str, token: str | None, courtesy: Courtesy | None = None
    ):
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        try:
            validate_repo_id(model)
        except HFValidationError:
            raise UnknownModel(f"{model!r}: not a hub id; ids look like 'organisation/name'") from None
        self.model, self.revision, self.folder = model, revision or "main", subfolder.strip("/")
        for what, value in (("revision", self.revision), ("subfolder", self.folder or "x")):
            if _UNSOUND.search(value):
                raise BadInput(f"{model}: the {what} {value!r} is not a plain name; see the model's page for its files")
        self.commit = self.revision if COMMIT.match(self.revision) else ""
        self.confirmed = False
        self._token, self._courtesy = token, courtesy
        # A cached_property of Python 3.11 holds one lock for all instances, and many models are asked for at once.
        self._config, self._listing = cache(self._read_config), cache(self._read_listing)

    @cached_property
    def endpoint(self) -> str:
        """The hub's address without a slash at its end."""
        return hub_endpoint()

    @cached_property
    def wire(self) -> Wire:
        """The connection, made at the first request."""
        return Wire(self.endpoint, self._token, self._courtesy)

    @property
    def requests(self) -> int:
        """Requests sent so far."""
        return self.wire.requests if "wire" in self.__dict__ else 0

    @property
    def received(self) -> int:
        """Bytes of answers received so far."""
        return self.wire.received if "wire" in self.__dict__ else 0

    def url(self, file_name: str) -> str:
        """The address of a file, at the commit where it is known."""
        path = quote(f"{self.folder}/{file_name}" if self.folder else file_name)
        return f"{self.endpoint}/{self.model}/resolve/{quote(self.commit or self.revision, safe='')}/{path}"

    def pin(self, commit: str) -> None:
        """Name `commit` in all later requests, unless one is named already."""
        if COMMIT.match(commit):
            self.commit, self.confirmed = self.commit or commit, True

    @property
    def config(self) -> bytes | None:
        """The whole config.json, or None where there is none; the commit is known once it was asked for."""
        return self._config()

    def _read_config(self) -> bytes | None:
        return self.small("config.json", MAX_CONFIG_BYTES)

    def resolved(self) -> str:
        """The full hash of the revision, asked for where it is not known; "" where the hub does not tell."""
        if not self.commit:
            _ = self.config  # any answer about a file names the commit
        return self.commit

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
                f"hash, as listed at {self.endpoint}/{self.model}/commits/main"
            )
        # The hub answers 401, not 404, to a stranger who asks for a model that does not exist.
        if code == "RepoNotFound" or (answer.status == 401 and code != "GatedRepo" and "credentials" not in said):
            raise self.unknown()
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise refused(answer, self.endpoint)
        return bytes(answer.body)

    def file(self, file_name: str) -> LocalFile | RemoteFile:
        """A weight file: from the local cache where it holds this very commit, else by ranges."""
        cached = self.snapshot() if self.commit else None
        path = cached / self.folder / file_name if cached else None
        if path and path.is_file():
            return LocalFile(path)
        return RemoteFile(self.wire, self.url(file_name))

    @property
    def listing(self) -> list[str]:
        """Plain names of the files in our folder and its onnx/, as the hub lists them; [] where it lists none."""
        return self._listing()

    def _read_listing(self) -> list[str]:
        revision = quote(self.commit or self.revision, safe="")
        answer = self.wire.get(f"{self.endpoint}/api/models/{self.model}/revision/{revision}", limit=MAX_CONFIG_BYTES)
        if answer.status != 200:
            return []
        siblings = parse_config(bytes(answer.body), f"{self.model} (file list)").get("siblings")
        entries = siblings if isinstance(siblings, list) else []
        names = [entry.get("rfilename") for entry in entries if isinstance(entry, dict)]
        root = f"{self.folder}/" if self.folder else ""
        inside = [name[len(root) :] for name in names if isinstance(name, str) and name.startswith(root)]
        return sorted(name for name in inside if re.fullmatch(r"(onnx/)?\w[\w.+-]{0,250}", name))

    def snapshot(self) -> Path | None:
        """The folder that the hub library keeps for the commit, or for the revision as it last saw it."""
        from huggingface_hub import constants

        cache = Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE).expanduser()
        home = cache / ("models--" + self.model.replace("/", "--"))
        commit, reference = self.commit, home / "refs" / self.revision
        if not commit and reference.is_file() and reference.stat().st_size < 100:
            commit = reference.read_text(encoding="utf-8", errors="replace").strip()
        folder = home / "snapshots" / commit
        return folder if COMMIT.match(commit) and folder.is_dir() else None

    @property
    def download(self) -> str:
        """The command that fetches the whole model into the local cache."""
        return shell("hf", "download", self.model, *(() if self.revision == "main" else ("--revision", self.revision)))

    def unknown(self) -> UnknownModel:
        """The error for a model that the hub does not know."""
        from outlierlens.checkpoints import samples

        near = difflib.get_close_matches(self.model.rpartition("/")[2], list(samples.SAMPLES), n=1)
        return UnknownModel(
            f"{self.model}: {urlsplit(self.endpoint).netloc} shows no such model at {self.revision!r}; check the "
            "spelling, or run `hf auth login` (or set HF_TOKEN) if it is private"
            + (f"; near: the sample {near[0]!r}" if near else "")
        )


def hub_endpoint() -> str:
    """The hub's address by HF_ENDPOINT, without a slash at its end; raises BadInput where that is no address."""
    from huggingface_hub import constants

    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    try:
        sound = urlsplit(endpoint).scheme in ("http", "https") and bool(urlsplit(endpoint).hostname)
    except ValueError:
        sound = False
    if not sound:
        raise BadInput(f"HF_ENDPOINT is {endpoint!r}; set it to an address such as https://huggingface.co")
    return endpoint


def offline_by_environment() -> bool:
    """Whether HF_HUB_OFFLINE says that nothing may be fetched, now or when the hub library was imported."""
    from huggingface_hub import constants

    return os.environ.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES or constants.HF_HUB_OFFLINE
