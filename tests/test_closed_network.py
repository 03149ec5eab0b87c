"""No command, page or report needs the network, or asks it for anything: every command runs with it closed.

The whole suite runs so (`closed/sitecustomize.py`, put in force by conftest.py); here are the proof that the door shuts,
and every command once, at its cheapest. A new command without a line in `RUNS` fails.
"""

import json
import re
import socket
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from closed import sitecustomize as network

M = "mini-planted"  # eight outlier dimensions; it comes with the package
FEW = ("--data", "texts.txt", "--limit", "4", "--max-length", "16", "--dims", "8,24")
QUIET = ("--device", "cpu", "--dtype", "float32", "--no-progress")
LABELLED = ("--task", "classify", "--data", "labelled", "--max-length", "16", "--device", "cpu")
SMALL = (
    "tokenizer.vocabulary=150", "model.layers=2", "model.width=16", "data.length=16", "training.batch=4",
    "data.source=['texts.txt']", "data.validation=0.3", "training.log_every=1", "training.save_every=1",
)  # fmt: skip
# In the order in which one reads what another wrote.
RUNS: dict[str, tuple[str, ...]] = {
    "scan": (M,),
    "compare": (M, M, "--values"),
    "fingerprint": (M, "-o", "print.json"),
    "verify": (M, "--baseline", "print.json"),
    "observe": (M, *FEW[:6], *QUIET),
    "disable": (M, *FEW, "--random", "1", "--matched", "1", "--save", "off", *QUIET),
    "sweep": (M, *FEW[:6], "--dims", "8", "--random", "2", "--matched", "0", "--windows", "single", "--gradients", "0",
              "--chart", "sweep.html", "-o", "swept", *QUIET),
    "beyond-zero": (M, *FEW, "--random", "1", "--chart", "beyond.html", "-o", "beyond.json", *QUIET),
    "prune-check": (M, "off", "--dims", "8"),
    "protect": (M, "--for", "awq"),
    "prune-experiment": (M, *FEW[:6], "--dims", "8", "--random", "1", "--scattered", "0", "--matched", "0", *QUIET),
    "pretrain": ("mini-short", *(word for one in SMALL for word in ("--set", one)), "--steps", "2", "-o", "run",
                 "--no-progress", "--device", "cpu"),
    "track": ("run", "-o", "tracked", "--no-progress"),
    "outcomes": ("run",),
    "finetune": (M, *LABELLED, "--epochs", "1", "--batch-size", "8", "-o", "tuned", "--precision", "float32"),
    "survival": (M, "tuned/seed-42/model", "--chart", "survival.html"),
    "recover": ("tuned/seed-42/model", *LABELLED, "--epochs", "1", "--batch-size", "8", "--random", "0", "-o", "recovered"),
    "one-dimension": ("tuned/seed-42/model", *LABELLED, "--dims", "8", "--limit", "8", *QUIET[2:]),
    "replicate kovaleva-glue": (M, "--tasks", "sst2", "--tuned", "sst2=tuned/seed-42/model", "--data", "paper/glue",
                                "--labels", "negative,positive", "--random", "1", "--matched", "0", "--windows-task", "none",
                                "-o", "kovaleva", *QUIET),
    "replicate puccetti-glue": (M, "--tasks", "sst2", "--tuned", "sst2=tuned/seed-42/model", "--data", "paper/glue",
                                "--labels", "negative,positive", "--random", "1", "--matched", "0", "--windows-task", "none",
                                "-o", "puccetti-glue", *QUIET),
    "replicate luo": (M, "--data", "paper", "--parts", "origin", "-o", "luo", *QUIET),
    "replicate puccetti": (M, *FEW[:4], "--parts", "attention", "-o", "puccetti", *QUIET),
    "sts": (M, "--data", "paper/sts", "--tasks", "sickr", "--fixes", "clip", "--clip", "8", "--chart", "sts.html", *QUIET),
    "wic": (M, "--data", "paper/wic", "--fixes", "clip", "--clip", "8", *QUIET),
    "origin": (M, "--chart", "origin.html"),
    "detectors": (M, *FEW[:6], "--nulls", "none", "--trial-texts", "1", "--chart", "detectors.html", *QUIET),
    "geometry": (M, *FEW[:2], "--limit", "8", "--pairs", "8", "--words", "0", "--tokens", "40", "--bootstrap", "20",
                 "--fixes", "raw", "--dims", "8", "--chart", "geometry.html", *QUIET),
    "count": ("--tokenizer", M, "--data", "texts.txt", "-o", "counts.parquet", "--no-progress"),
    "frequency": (M, "--counts", "counts.parquet", *FEW[:2], "--dims", "8", "--bootstrap", "50", "--sample", "200",
                  "--types", "200", "--max-length", "16", "-o", "frequency.json", *QUIET),
    "frequency-geometry": (M, "--counts", "counts.parquet", *FEW[:2], "--bands", "2", "--tokens-per-band", "8", "--dims",
                           "8", "--random", "1", "--bootstrap", "20", "--max-length", "16", *QUIET),
    "predictions": (M, "--counts", "counts.parquet", *FEW, "--random", "1", "--bootstrap", "20", *QUIET),
    "attention": (M, *FEW, "--random", "1", "--bootstrap", "20", "--chart", "attention.html", *QUIET),
    "probe": (M, *FEW[:2], "--limit", "8", "--max-length", "16", "--no-retrain", "--clip", "8", *QUIET),
    "quant": (M, *FEW, "--schemes", "int8-tensor/none", "--calibrate", "0", "--smooth", "none", "--random", "1", *QUIET),
    "frozen": (M, *LABELLED, "--limit", "8", "--epochs", "1", "--fixes", "raw", "--clip", "none", *QUIET[2:]),
    "export-embedder": (M, "--fix", "centre", "-o", "embedder", "--max-length", "16", "--no-progress"),
    "layer-story": ("swept/sweep.json", "--frequency", "frequency.json", "--chart", "story.html"),
    "attack": (M, *FEW, "--budget", "1", "--kinds", "zero", "--tries", "2", "--sets", "1", "--random", "1",
               "--search-texts", "2", *QUIET),
    "update-check": (M, "off", "--dims", "8", "--draws", "19"),
    "report": (M, *FEW, "--random", "1", "--matched", "1", "--result", "beyond.json", "--sweep", "swept/sweep.json",
               "--card", "card.md", "-o", "report", *QUIET),
    "explore": (M, "--text", "A film worth seeing.", "--show", "loss", *QUIET[:4]),
    "doctor": (),
    "samples": (),
    "fetch": (M,),
}  # fmt: skip
FOUND = {"verify": 0, "prune-check": 3, "update-check": 3, "doctor": 0}  # exit codes that say what was found; else 0


def registered() -> set[str]:
    import typer

    from outlierlens.cli.app import app

    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    inner = {name: getattr(one, "commands", None) for name, one in commands.items()}
    return {f"{name} {sub}" for name, subs in inner.items() for sub in subs or ()} | {
        n for n, s in inner.items() if not s
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a little of all data that commands read."""
    folder = tmp_path_factory.mktemp("closed")
    kinds = ("film", "book", "song", "play")
    said = [f"The {kinds[i % 4]} was {'good' if i % 3 else 'bad'}, and number {i} of it was better." for i in range(24)]
    (folder / "texts.txt").write_text("\n".join(said) + "\n")

    def rows(path: str, made: list[dict[str, Any]]) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("".join(json.dumps(row) + "\n" for row in made))

    labelled = [{"sentence": text, "text": text, "label": int("good" in text)} for text in said]
    pairs = [{"sentence1": a, "sentence2": b, "score": 1 + i % 5} for i, (a, b) in enumerate(pairwise(said))]
    same = [
        {"word": "was", "sentence1": a, "sentence2": b, "index1": 2, "index2": 2, "label": bool(i % 2)}
        for i, (a, b) in enumerate(pairwise(said))
    ]
    for number, split in enumerate(("train", "validation")):
        rows(f"labelled/{split}.jsonl", labelled[number::2])
        rows(f"paper/glue/sst2/{split}.jsonl", labelled[number::2])
        rows(f"paper/wic/{split}.jsonl", same)
    for split in ("train", "validation", "test"):
        rows(f"paper/sts/sickr/{split}.jsonl", pairs)
        rows(f"paper/sts/stsb/{split}.jsonl", pairs)
    return folder


@pytest.mark.usefixtures("no_picture_files")
def test_every_command_runs_and_its_pages_load_nothing(place: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(RUNS) == registered()
    monkeypatch.chdir(place)
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(place / "cache"))
    wrong = {}
    for command, words in RUNS.items():
        code, out, err = run(*command.split(), *words)
        if code != FOUND.get(command, 0) or not out + err:
            wrong[command] = (code, err)
    assert wrong == {}
    pages = {str(path.relative_to(place)): path.read_text("utf-8") for path in place.rglob("*.html")}
    assert {"report/report.html", "luo/report.html", "tracked/report.html", "story.html"} <= set(pages)
    assert {name: found for name, page in pages.items() if (found := external(page))} == {}


def test_every_command_refuses_to_fetch_a_sample_offline_and_says_how(
    place: Path, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in place.iterdir():
        if path.name in ("texts.txt", "labelled", "paper"):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    earlier = {"--sweep", "--result"}  # results of other commands, which are not there
    wrong = {}
    for command, words in RUNS.items():
        if M not in words or command == "fetch":
            continue
        kept = [word for before, word in pairwise(["", *words]) if not {before, word} & earlier]
        if command == "verify":
            assert run("fingerprint", M, "-o", "print.json")[0] == 0
        code, _, err = run(
            *command.split(), *(re.sub(rf"^{M}$|tuned/seed-42/model", "minilm-l6", word) for word in kept)
        )
        if not code or "run: outlierlens fetch minilm-l6" not in err:
            wrong[command] = (code, err)
    assert wrong == {}
    assert not (tmp_path / "cache").exists()


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


def external(page: str) -> list[str]:
    """What `page` loads from anywhere but itself; a page without a policy that forbids the rest counts too."""
    parser = _Loads()
    parser.feed(page)
    closed = [one for one in parser.policies if "default-src 'none'" in one and "connect-src 'none'" in one]
    return parser.found + ([] if closed else ["no Content-Security-Policy that forbids everything"])


def test_what_a_page_loads_is_seen() -> None:
    policy = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; connect-src 'none'\">"
    assert external(policy + "<a href='https://a.example'>paper</a><img src='data:image/png;base64,'>") == []
    assert external(policy + "<link href=https://a.example/x.css rel=stylesheet><img src=x.png>") == [
        "link https://a.example/x.css",
        "img x.png",
    ]
    assert external("<p>") == ["no Content-Security-Policy that forbids everything"]


TRIES = """
import socket, urllib.request
for attempt in (
    lambda: socket.getaddrinfo("pypi.example", 443),
    lambda: socket.create_connection(("203.0.113.1", 443), 1),
    lambda: urllib.request.urlopen("http://203.0.113.2/", timeout=1),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"?", ("203.0.113.3", 53)),
    lambda: socket.socket(socket.AF_INET6).connect(("2001:db8::1", 443)),
):
    try:
        attempt()
    except OSError as error:
        print(error)
"""


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_door_is_shut_here_and_in_processes_and_says_who_knocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv(network.LOG, str(log))
    exec(TRIES, {})
    here = capsys.readouterr().out
    knocked = log.read_text().splitlines()
    assert len(knocked) == 5
    assert all(f"closed network: {one}" in line for one, line in zip(knocked, here.splitlines(), strict=True))
    log.unlink()
    there = subprocess.run([sys.executable, "-W", "ignore", "-c", TRIES], capture_output=True, text=True, check=True)
    assert (there.stdout, log.read_text().splitlines()) == (here, knocked)
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1])).close()
