"""Which results are of one model; those of another never join."""

from collections.abc import Sequence
from typing import Any

from outlierlens.errors import BadInput
from outlierlens.results.document import Provenance


def refuse_other_model(what: str, found: Any, known: Sequence[Provenance], remedy: str) -> None:
    """Raise BadInput where a result is of another model than `known`, by name of both.

    Fingerprints of all parameters decide where a model ran in the precision of one of `known`. Those of files are of what
    was read, so there the last part of a name decides: of the model, or of one that the result names `before` or `base`.
    """
    own = getattr(found, "provenance", None)
    if own is None or not known or own.fingerprint in [one.fingerprint for one in known]:
        return
    ran = own.dtype and own.dtype in [one.dtype for one in known]
    names = [own.model, *(getattr(found, name, None) for name in ("before", "base"))]
    if not ran and {_last_part(name) for name in names if isinstance(name, str)} & {
        _last_part(one.model) for one in known
    }:
        return
    other = known[0]
    raise BadInput(
        f"{what} is of {own.model} (fingerprint {own.fingerprint[:12]}), not of {other.model} "
        f"({next((one.fingerprint for one in known if one.dtype == own.dtype), other.fingerprint)[:12]}); {remedy}"
    )


def _last_part(name: str) -> str:
    return name.replace("\\", "/").rstrip("/").rpartition("/")[2]
