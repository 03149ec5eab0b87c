"""What each paper did and published, read from `data_files/papers.toml`, for the checkpoint it was measured on.

    find_protocol("kovaleva-glue").rule
    which = checkpoint_of("google-bert/bert-base-uncased", config)         # "bert-base-uncased", or ""
    published_for("kovaleva-glue", which)                                  # PublishedNumber rows, () for another checkpoint

A checkpoint is the one of a paper when its name is the hub id, or it lies in a local folder whose config names the hub id, and
its shape is that checkpoint's. Models that merely look alike have other outlier dimensions: those differ between training runs.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from outlierlens.detection.rules import Rule
from outlierlens.errors import pick
from outlierlens.results.rows import Row
from outlierlens.view.section import Change


@dataclass(frozen=True)
class Protocol:
    """Numbers of a table on GLUE: the rule that names the outliers, and the paper's number of random sets.

    `select` says whether outliers must also cost at least 5 times what random dimensions cost (Puccetti et al. 2022).
    """

    name: str
    title: str
    rule: Rule
    n_random: int
    select: bool


@dataclass(frozen=True, kw_only=True)
class PublishedNumber(Row):
    """A number of a paper for one checkpoint."""

    data: str
    """data: "glue:mnli", "stsb\""""
    off: tuple[int, ...] = ()
    """ablated: the dimensions"""
    metric: str = ""
    """metric: none where it was not seen stated"""
    before: float | None
    """intact: of Luo et al. raw vectors; a metric in [−1, 1]"""
    after: float | None
    """after: with the dimensions ablated; of Luo et al. clipped"""
    change: Annotated[float, Change]
    source: str
    """stands in"""
    evidence: str
    """evidence: "second-hand" is quoted by others, the passage itself not seen; of Luo et al. how sure the checkpoint is"""


@functools.cache
def facts() -> dict[str, Any]:
    """The file as it stands."""
    return tomllib.loads(resources.files("outlierlens").joinpath("data_files", "papers.toml").read_text("utf-8"))


def find_protocol(name: str) -> Protocol:
    """The protocol called `name`; raises BadInput with the choices."""
    every = [Protocol(**one | {"rule": Rule(**one["rule"])}) for one in facts()["protocols"]]
    return pick(every, f"unknown paper {name!r}", name=name)


def checkpoint_of(name: str, config: Mapping[str, Any]) -> str:
    """The known checkpoint that the model called `name` with this configuration is, or ""."""
    said = str(config.get("_name_or_path") or "") if Path(name).is_dir() else name
    for known, (family, *sizes) in facts()["checkpoints"].items():
        shape = ("n_layers", "dim") if family == "distilbert" else ("num_hidden_layers", "hidden_size")
        found = [config.get(key) for key in ("model_type", *shape, "vocab_size")]
        short = known.rpartition("/")[2]
        if said in (short, known) and found == [family, *sizes]:
            return str(short)
    return ""


def published_for(paper: str, checkpoint: str) -> tuple[PublishedNumber, ...]:
    """The numbers of "kovaleva-glue", "puccetti-glue" or "luo" for this checkpoint, by `checkpoint_of`; () for another."""
    found = []
    for block in facts()["published"]:
        if block["paper"] == paper and checkpoint in block["checkpoints"]:
            shared = {name: block[name] for name in ("source", "evidence") if name in block}
            for one in block["numbers"]:
                before, after = one.get("before"), one.get("after")
                change = one["change"] if before is None else round(after - before, 4)
                numbers = {"before": before, "after": after, "change": change, "off": tuple(block.get("off", ()))}
                found.append(PublishedNumber(**shared | one | numbers))
    return tuple(found)


def published_extremes(checkpoint: str) -> dict[tuple[str, int], float]:
    """{(end, dimension): share of token vectors} of Luo et al., section 2; {} for another checkpoint."""
    return {(one["end"], one["dim"]): one["share"] for one in facts()["extremes"] if one["checkpoint"] == checkpoint}
