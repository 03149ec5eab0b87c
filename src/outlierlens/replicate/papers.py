"""What each paper did, as data, and its published numbers, each with its source, for the checkpoint they were measured on.

find_paper("kovaleva-glue").rule
which = checkpoint_of("google-bert/bert-base-uncased", config)         # "bert-base-uncased", or None
reference_for(which, "kovaleva-glue", "glue:mnli", "accuracy", (308, 381))

A checkpoint is the one of a paper when its name is the hub id, or it lies in a local folder whose config names the hub id, and
its shape is that checkpoint's. Models that merely look alike have other outlier dimensions: those differ between training runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlierlens.detection.rules import Rule
from outlierlens.errors import BadInput
from outlierlens.replicate.glue.result import Reference


@dataclass(frozen=True)
class Paper:
    """A protocol.

    Attributes:
        name: as commands take it. title: for reading.
        rule: that names the outliers.
        n_random: random sets of the paper.
        select: whether outliers must also cost at least 5 times what random dimensions cost (Puccetti et al. 2022).
        seed: of fine-tuning and of control sets.
    """

    name: str
    title: str
    rule: Rule
    n_random: int
    select: bool
    seed: int = 42


PAPERS = {
    paper.name: paper
    for paper in (
        Paper("kovaleva-glue", "Kovaleva et al. 2021, GLUE with outliers off", Rule("kovaleva", 3.0), 1000, False),
        # The released code has no random control; the number of sets is Kovaleva et al.'s.
        Paper("puccetti-glue", "Puccetti et al. 2022, GLUE with outliers off", Rule("puccetti", 2.5), 1000, True),
    )
}


def find_paper(name: str) -> Paper:
    """The protocol called `name`; raises BadInput with the choices."""
    if name not in PAPERS:
        raise BadInput(f"unknown paper {name!r}; replicate takes {', '.join(PAPERS)}")
    return PAPERS[name]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint by its hub ids, and what its config must say."""

    name: str
    ids: tuple[str, ...]
    config: dict[str, Any]


def _checkpoint(owner: str, name: str, family: str, shape: tuple[int, int], vocabulary: int) -> Checkpoint:
    keys = {"model_type": family, "vocab_size": vocabulary}
    names = ("n_layers", "dim") if family == "distilbert" else ("num_hidden_layers", "hidden_size")
    return Checkpoint(name, (name, f"{owner}/{name}"), keys | dict(zip(names, shape, strict=True)))


CHECKPOINTS = (
    _checkpoint("google-bert", "bert-base-uncased", "bert", (12, 768), 30522),
    _checkpoint("google-bert", "bert-base-cased", "bert", (12, 768), 28996),
    _checkpoint("google-bert", "bert-large-uncased", "bert", (24, 1024), 30522),
    _checkpoint("google-bert", "bert-large-cased", "bert", (24, 1024), 28996),
    _checkpoint("distilbert", "distilbert-base-cased", "distilbert", (6, 768), 28996),
    _checkpoint("FacebookAI", "roberta-base", "roberta", (12, 768), 50265),
    _checkpoint("FacebookAI", "roberta-large", "roberta", (24, 1024), 50265),
    _checkpoint("distilbert", "distilroberta-base", "roberta", (6, 768), 50265),
)


_BOTH = (308, 381)


_KOVALEVA = "Table 3, as quoted by later papers; the passage itself was not seen"


_PUCCETTI = "GLUE results, as quoted by later papers; the passage itself was not seen"


REFERENCES: dict[str, tuple[Reference, ...]] = {
    "kovaleva-glue": (
        Reference(
            "Kovaleva et al. 2021", "bert-base-uncased", _BOTH, "glue:stsb", "", None, None, 0.441, _KOVALEVA,
            "second-hand",
        ),
        Reference(
            "Kovaleva et al. 2021", "bert-base-uncased", _BOTH, "glue:mnli", "accuracy", None, None, 0.279, _KOVALEVA,
            "second-hand",
        ),
    ),
    "puccetti-glue": (
        Reference(
            "Puccetti et al. 2022", "bert-base-uncased", _BOTH, "glue:mnli", "accuracy", 0.845, 0.584, 0.261, _PUCCETTI,
            "second-hand",
        ),
        Reference(
            "Puccetti et al. 2022", "bert-base-uncased", _BOTH, "glue:cola", "mcc", 0.569, 0.159, 0.41, _PUCCETTI,
            "second-hand",
        ),
    ),
}  # fmt: skip


def checkpoint_of(name: str, config: Mapping[str, Any]) -> str | None:
    """The known checkpoint that the model called `name` with this configuration is, or None."""
    said = str(config.get("_name_or_path") or "") if Path(name).is_dir() else name
    for one in CHECKPOINTS:
        if said in one.ids and all(config.get(key) == value for key, value in one.config.items()):
            return one.name
    return None


def reference_for(
    checkpoint: str | None, paper: str, task: str, metric: str, dims: tuple[int, ...]
) -> Reference | None:
    """The paper's number for these dimensions off in that checkpoint, or None."""
    for one in REFERENCES.get(paper, ()):
        same = (one.checkpoint, one.task, set(one.dims)) == (checkpoint, task, set(dims))
        if same and one.metric in ("", metric):
            return one
    return None
