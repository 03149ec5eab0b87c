"""What is released: a wheel of the whole package and nothing else, a lean sdist, a description that stands alone."""

import email
import email.message
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "outlierlens"
MAX_BYTES = 15_000_000


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel, made from the sdist as `python -m build` does, without an environment of its own."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(files.read(name))


def test_the_wheel_is_the_package_with_its_licences(wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_BYTES
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    wanted = {
        f"outlierlens/{path.relative_to(PACKAGE).as_posix()}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "outlierlens/py.typed" in wanted
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == wanted
    licences = {name.rpartition("/")[2] for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "vega.LICENSES.txt"}


def test_the_sdist_holds_what_builds_and_documents_the_package(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    assert sdist.stat().st_size < MAX_BYTES
    with tarfile.open(sdist) as files:
        names = [name.partition("/")[2] for name in files.getnames()]
    beside = {name for name in names if not name.startswith("src/outlierlens/")}
    assert beside == {
        ".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml",
    }  # fmt: skip


def test_the_description_stands_without_the_files_beside_it(metadata: email.message.Message) -> None:
    text = str(metadata.get_payload())
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# outlierlens")
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "](docs/" in readme
    assert not re.search(r"\]\((?!https?:)", text)
    assert len(text) > 0.8 * len(readme)
    for line in ("| question | command |", "damage = ol.ablate(loaded, texts, found"):
        assert line in text


def test_what_an_index_shows_of_it(metadata: email.message.Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    python = {c.rpartition(" ")[2] for c in metadata.get_all("Classifier", []) if c.startswith("Programming Language")}
    assert {"3.11", "3.12", "3.13"} <= python
    plain = [one for one in metadata.get_all("Requires-Dist", []) if "extra ==" not in one]
    assert not [one for one in plain if one.startswith(("torch", "transformers"))]


def test_every_address_of_the_project_is_that_of_its_urls(metadata: email.message.Message) -> None:
    urls = dict(one.split(", ") for one in metadata.get_all("Project-URL", []))
    assert urls.keys() == {"Homepage", "Documentation", "Changelog", "Issues"}
    home = urls["Homepage"]
    for place in (url.removeprefix(f"{home}/blob/main/") for url in urls.values() if "/blob/" in url):
        assert (ROOT / place).is_file()
    assert all(url.startswith(home) for url in urls.values())
    assert f"repository-code: {home}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    owned = home.removeprefix("https://github.com/")
    assert f"/{owned}/blob/main/examples/notebooks/quickstart.ipynb)" in (ROOT / "README.md").read_text("utf-8")
    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        text = path.read_text("utf-8")
        place = path.relative_to(ROOT).as_posix()
        assert f"https://colab.research.google.com/github/{owned}/blob/main/{place})" in text
        assert f"https://colab.research.google.com/github/{owned}/blob/main/{place})" in (
            ROOT / "examples" / "README.md"
        ).read_text("utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_what_a_notebook_installs_is_the_wheel(path: Path, dist: Path) -> None:
    (wanted,) = re.findall(r'%pip install --quiet \\"(.*?)\\"', path.read_text("utf-8"))
    name, extra = re.fullmatch(r"(\w+)\[(\w+)\]", wanted).groups()  # type: ignore[union-attr]
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    index = ["--no-index", "--find-links", str(dist), "--only-binary", ":all:"]
    install = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", *index, name]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Would install {name}-" in done.stdout


def test_a_report_installs_what_a_user_needs_and_the_tests_need_more(tmp_path: Path) -> None:
    def installed(target: str) -> list[str]:
        make = ["make", "-n", target, f"VENV={tmp_path}"]
        done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
        return re.findall(r"-e '\.\[([\w,]+)\]'", done.stdout)

    assert installed("report") == ["models,explore"]
    for target in ("test", "quick", "check", "site", "build", "benchmarks"):
        assert installed(target)[:2] == ["models,explore", "dev"]


def test_what_the_image_copies_builds_the_package_and_what_it_installs_is_declared(tmp_path: Path) -> None:
    words = [line.split() for line in (ROOT / "Dockerfile").read_text("utf-8").splitlines() if line[:1].isupper()]
    for one in (name for line in words if line[0] == "COPY" for name in line[1:-1]):
        copy = shutil.copytree if (ROOT / one).is_dir() else shutil.copy
        copy(ROOT / one, tmp_path / one)
    build = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path / "dist"),
        str(tmp_path),
    ]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]
    runs = [" ".join(line[1:]) for line in words if line[0] == "RUN"]
    extras = re.findall(r"'\.\[([\w,]+)\]'", "\n".join(runs))
    assert extras
    assert set(extras[0].split(",")) <= set(project["optional-dependencies"])
    (entry,) = [line for line in words if line[0] == "ENTRYPOINT"]
    assert json.loads(entry[1])[0] in project["scripts"]
    (image,) = [line[1] for line in words if line[0] == "FROM"]
    assert image == f"python:{project['requires-python'].removeprefix('>=')}-slim"
    torch = re.search(r'"(\$\(sed .*\))"', runs[0])
    assert torch is not None
    named = subprocess.run(["sh", "-c", f"echo {torch[1]}"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"torch==[\d.]+\n", named.stdout)


def test_it_runs_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    inherited = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if "closed" in one]
    place = os.pathsep.join([str(tmp_path), *inherited])
    done = subprocess.run(
        [sys.executable, "-m", "outlierlens", "scan", "mini-planted", "--json"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": place}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"dim": 8' in done.stdout
