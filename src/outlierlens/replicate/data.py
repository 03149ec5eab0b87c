"""Data sets of the papers in one folder with a folder per data set, or the hub's own copies.

data = PaperData("data/")               # data/sst2 or data/glue/sst2, data/sts/stsb or data/stsb, data/wic, …
data.sentences()                        # SST-2's training sentences
data.examples(find_task("rte"), "validation")
data.folder("imdb")                     # None: not there
"""

from dataclasses import dataclass
from pathlib import Path

from outlierlens.analyses.embed_pairs import TASKS
from outlierlens.data.labelled import Examples, LabelledTask, find_task, read_examples
from outlierlens.data.labelled.examples import split_table
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput

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
