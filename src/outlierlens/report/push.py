"""The report in a repository of the hub: `open_repository` before the work, `push` after it.

repository = open_repository("me/mpnet-report", token=None)     # None: as huggingface_hub finds it
print(push(repository, page.parent, card(data)))                # the address of the folder
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlierlens.checkpoints.ranges import transport_errors
from outlierlens.checkpoints.repository import hub_endpoint, offline_by_environment
from outlierlens.errors import BadInput, Offline, RemoteError, one_line

if TYPE_CHECKING:
    from huggingface_hub import HfApi

FOLDER = "outlierlens"  # of the repository: its other files stay as they are
PUSHED = ("report.html", "results.json")
METADATA = "---\ntags: [outlier-dimensions, outlierlens]\n---\n\n"


@dataclass(frozen=True)
class Target:
    """A repository that takes the report, and whether it has a README.md of its own."""

    name: str
    hub: "HfApi"
    has_readme: bool


def open_repository(name: str, token: str | None, *, offline: bool = False) -> Target:
    """The repository `name` on the hub at HF_ENDPOINT; where there is none it is made, private.

    Raises:
        BadInput: no such name can be, or there is no token.
        Offline: the network is off.
        RemoteError: the hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise BadInput(f"--push {name}: no name of a repository; they look like NAME/REPO") from None
    if offline or offline_by_environment():
        raise Offline(f"--push {name} needs the network; leave out --offline and HF_HUB_OFFLINE, or leave out --push")
    if not (token or get_token()):
        raise BadInput(f"--push {name} needs a token that may write; run: hf auth login, or set HF_TOKEN")
    hub = HfApi(endpoint=hub_endpoint(), token=token)
    with _told(name):
        hub.create_repo(name, private=True, exist_ok=True)
        files = [file.rfilename for file in hub.model_info(name).siblings or ()]
    return Target(name, hub, "README.md" in files)


def push(target: Target, directory: Path, card: str) -> str:
    """Put the page, its results and the card into the repository in one commit; returns the address of their folder.

    The card is `outlierlens/README.md`, and the README.md of a repository that has none.
    """
    from huggingface_hub import CommitOperationAdd

    texts = {f"{FOLDER}/README.md": card} | ({} if target.has_readme else {"README.md": METADATA + card})
    added = [CommitOperationAdd(path, text.encode()) for path, text in texts.items()]
    added += [CommitOperationAdd(f"{FOLDER}/{file}", directory / file) for file in PUSHED]
    with _told(target.name):
        target.hub.create_commit(target.name, added, commit_message="outlierlens: report on outlier dimensions")
    return f"{target.hub.endpoint}/{target.name}/tree/main/{FOLDER}"


@contextmanager
def _told(name: str) -> Iterator[None]:
    from huggingface_hub.errors import HfHubHTTPError

    refusals: tuple[type[Exception], ...] = (HfHubHTTPError, *transport_errors())
    try:
        yield
    except refusals as error:
        raise RemoteError(
            f"--push {name}: the hub refused ({one_line(str(error))[:300]}); the token must be allowed to write there"
        ) from error
