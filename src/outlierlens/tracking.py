"""Outlier dimensions over training steps: which norm of a stream is followed.

site = tracked_site(bound)                   # the norm vectors to read, of a checkpoint or of a live model
"""

from outlierlens.arch import BoundStack
from outlierlens.errors import BadInput
from outlierlens.weights import Site, View, sites_of


def default_view(stack: BoundStack) -> View:
    """The view that needs norm vectors alone: "last" where blocks end in a norm, "reading" where they do not."""
    return "last" if stack.ends_in_norm else "reading"


def tracked_site(stack: BoundStack, name: str | None = None) -> Site:
    """The norm of a stream that is followed: the block's last operation, or the reading norm `name` (else the first).

    Raises:
        BadInput: the stream has no norm that every layer shares, or none called `name`.
    """
    found = sites_of(stack, default_view(stack))
    if not found:
        raise BadInput(f"stream {stack.name!r}: no norm is there in every layer, so there is nothing to follow")
    chosen = found[:1] if name is None else [site for site in found if site.name == name]
    if not chosen:
        raise BadInput(f"stream {stack.name!r}: no norm {name!r}; there are {', '.join(site.name for site in found)}")
    return chosen[0]
