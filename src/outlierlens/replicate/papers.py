"""What each paper did and published, read from `data_files/papers.toml`, for the checkpoint it was measured on.

    find_protocol("kovaleva-glue").rule
    which = checkpoint_of("google-bert/bert-base-uncased", config)         # "bert-base-uncased", or ""
    published_for("kovaleva-glue", which)                                  # PublishedNumber rows, () for another checkpoint

A checkpoint is the one of a paper when its name is the hub id, or it lies in a local folder whose config names the hub id, and
its shape is that checkpoint's. Models that merely look alike have other outlier dimensions: those differ between training runs.

Data sets of the papers in one folder with a folder per data set, or the hub's own copies.

data = PaperData("data/")               # data/sst2 or data/glue/sst2, data/sts/stsb or data/stsb, data/wic, …
data.sentences()                        # SST-2's training sentences
data.examples(find_task("rte"), "validation")
data.folder("imdb")                     # None: not there
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from outlierlens.analyses.embed_pairs import TASKS
from outlierlens.data.labelled import Examples, LabelledTask, find_task, read_examples
from outlierlens.data.labelled.examples import split_table
from outlierlens.data.texts import Texts
from outlierlens.detection.rules import Rule
from outlierlens.errors import BadInput, pick
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


# --- data ------------------------------------------------------------------------------------------------------------


INSIDE = ("", "glue", "sts", "superglue", "super_glue")  # folders that hold folders of data sets
PAIRS = "sts"  # any data set of semantic textual similarity


def shortened(task: str) -> str:
    """ "glue:rte" as "rte"."""
    return task.rpartition(":")[2]


@dataclass(frozen=True)
class PaperData:
    """Data sets by name in the folder `root`, or from the hub where it is None."""

    root: str | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        if self.root is not None and not Path(self.root).is_dir():
            raise BadInput(
                f"{self.root}: no such folder; --data takes a folder with one folder per data set, such as {self.root}/sst2"
            )

    def folder(self, *names: str, what: str = "") -> str | None:
        """The folder of a data set, by the first of its names; of "sts" the one that holds its data sets' folders.

        None where the hub's copy is meant, or where there is none; BadInput then where `what` is needed.
        """
        if self.root is None:
            return None
        root, pairs = Path(self.root), PAIRS in names
        # Pairs not below glue/, whose test split of STS-B has no scores.
        for name in TASKS if pairs else (*names, *map(str.upper, names)):
            for inside in (PAIRS, "") if pairs else INSIDE:
                if (place := root / inside / name).is_dir():
                    return str(place.parent if pairs else place)
        if what:
            there = ", ".join(sorted(path.name for path in root.iterdir() if path.is_dir()))
            raise BadInput(f"{root}: no folder {names[0]} with {what}; it has {there or 'none'}")
        return None

    def has(self, name: str) -> bool:
        """Whether the data set is at hand, or to be had; "sts" is any of semantic textual similarity."""
        return self.root is None or self.folder(name) is not None

    def examples(self, task: LabelledTask, split: str, limit: int | None = None) -> Examples:
        """The labelled examples of a task's split, in file order; raises BadInput as `folder` and `read_examples`."""
        names = [shortened(name) for name in (task.name, task.trained_on) if name]
        place = self.folder(*names, what=f"the examples of {task.name}")
        return read_examples(task, place, split=split, limit=limit, offline=self.offline)

    def sentences(self, split: str = "train") -> Texts:
        """The sentences of a split of SST-2, in file order; raises BadInput where there are none."""
        place = self.folder("sst2", what="the sentences that most parts read")
        table = split_table(find_task("glue:sst2"), place, split, self.offline)
        texts = (text.strip() for (text,) in table.rows(("sentence",)) if isinstance(text, str) and text.strip())
        return Texts(table.source, tuple(texts), "sentence")

    def lacking_pairs(self) -> tuple[str, ...]:
        """Names of the data sets of semantic textual similarity that are not there; none where the hub's are read."""
        folder = self.folder(PAIRS)
        return tuple(one.name for one in TASKS.values() if folder and not Path(folder, one.name).is_dir())
