"""`scripts/floors.py`: the lowest versions that the package allows have none of the holes that are listed beside it."""

import tomllib

import floors
import pytest


def test_no_floor_has_a_known_hole(capsys: pytest.CaptureFixture[str]) -> None:
    assert floors.main() == 0, capsys.readouterr().out


HOLES = {"Torch": {"fixed": "2.10.0", "hole": "x"}, "pillow": {"fixed": "13", "held": "12.3", "hole": "y"}}


@pytest.mark.parametrize(
    ("torch", "pillow", "pin", "found"),
    [
        ("torch>=2.10", "pillow>=12.3", "2.10.0", []),
        ("torch>=2.9.1", "pillow>=12.3", "2.10.0", ["pyproject.toml: torch 2.9.1 is below 2.10.0: x"]),
        ("torch", "pillow>=13", "2.13.0", ["pyproject.toml: torch 0 is below 2.10.0: x"]),
        ("torch>=2.10", "Pillow>=12.2.9", "2.10.0", ["pyproject.toml: pillow 12.2.9 is below 12.3: y"]),
        ("torch>=2.10", "pillow>=12.3", "2.9", ["constraints.txt: torch 2.9 is below 2.10.0: x"]),
        ("torch>=2.10", "numpy", "2.10", ["known_holes.toml: pillow is asked for by nothing; remove it"]),
    ],
)
def test_findings(torch: str, pillow: str, pin: str, found: list[str]) -> None:
    project = {"dependencies": ["numpy>=1"], "optional-dependencies": {"a": [torch], "b": [pillow]}}
    holes = {name.lower(): hole for name, hole in HOLES.items()}
    assert floors.findings(project, f"numpy==2\ntorch=={pin}\n", holes) == found


def test_a_floor_that_another_package_holds_down_is_told() -> None:
    holes = tomllib.loads(floors.HOLES.read_text("utf-8"))
    security = " ".join((floors.ROOT / "SECURITY.md").read_text("utf-8").split())
    held = {name: hole for name, hole in holes.items() if "held" in hole}
    assert held
    for name, hole in held.items():
        assert hole["because"]
        assert f"{name} below {hole['fixed'].partition('.')[0]}" in security
