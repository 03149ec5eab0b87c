"""Hold the floors of pyproject.toml, and the versions of constraints.txt, against holes that are known in packages.

    python scripts/floors.py                 # one line per finding; exit code 1 if there is any

`known_holes.toml` beside it lists the holes.
"""

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
HOLES = Path(__file__).with_name("known_holes.toml")


def floors(project: Mapping[str, Any]) -> Iterator[tuple[str, Version]]:
    """(package, lowest version allowed) of every requirement in the table [project]; 0 where none is stated."""
    for line in (
        *project.get("dependencies", ()),
        *(one for many in project["optional-dependencies"].values() for one in many),
    ):
        requirement = Requirement(line)
        stated = [Version(one.version) for one in requirement.specifier if one.operator in (">=", "==", "~=")]
        yield canonicalize_name(requirement.name), max(stated, default=Version("0"))


def pinned(constraints: str) -> Iterator[tuple[str, Version]]:
    """(package, version) of every line name==version."""
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", constraints, re.MULTILINE):
        yield canonicalize_name(name), Version(version)


def findings(project: Mapping[str, Any], constraints: str, holes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A line for each floor or pinned version below the first that is mended, and for each package that nothing asks for."""
    found, asked = [], dict.fromkeys(holes, False)
    for where, pairs in (("pyproject.toml", floors(project)), ("constraints.txt", pinned(constraints))):
        for name, version in pairs:
            hole = holes.get(name)
            if hole is None:
                continue
            asked[name] |= where == "pyproject.toml"
            least = hole.get("held", hole["fixed"])
            if version < Version(least):
                found.append(f"{where}: {name} {version} is below {least}: {hole['hole']}")
    return found + [
        f"{HOLES.name}: {name} is asked for by nothing; remove it" for name, is_asked in asked.items() if not is_asked
    ]


def main() -> int:
    """Print what is found; the exit code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    holes = tomllib.loads(HOLES.read_text("utf-8"))
    found = findings(project, (ROOT / "constraints.txt").read_text("utf-8"), holes)
    print(
        "\n".join(found or [f"floors: {len(holes)} packages with known holes, none allowed below its mended version"])
    )
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
