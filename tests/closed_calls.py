"""What a page or a program would load from outside."""

from html.parser import HTMLParser


def external(page: str) -> list[str]:
    """What `page` loads from anywhere but itself; a page without a policy that forbids the rest counts too."""
    parser = _Loads()
    parser.feed(page)
    closed = [one for one in parser.policies if "default-src 'none'" in one and "connect-src 'none'" in one]
    return parser.found + ([] if closed else ["no Content-Security-Policy that forbids everything"])


class _Loads(HTMLParser):
    """What a browser would fetch for a page: everything but links that a reader has to press."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.policies: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "meta" and given.get("http-equiv", "").lower() == "content-security-policy":
            self.policies.append(given["content"])
        elif tag == "meta" and given.get("http-equiv", "").lower() == "refresh":
            self.found.append(given.get("content", ""))
        loading = {"src", "srcset", "poster", "data", "background", "action", "formaction", "ping", "manifest"}
        if tag in ("link", "base", "use", "image"):
            loading |= {"href", "xlink:href"}
        self.found += [
            f"{tag} {given[name]}" for name in loading & set(given) if not given[name].startswith(("#", "data:"))
        ]
