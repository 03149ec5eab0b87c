"""Where the data sets of Luo et al. (2021) are: one folder with a folder a data set, or the hub's own copies.

data = LuoData("data/")                 # data/sst2 or data/glue/sst2, data/sts/stsb or data/stsb, data/wic, …
data.sentences(limit=20_000)            # SST-2's training sentences
data.folder("imdb")                     # None: not there, so that part is left out
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

from outlierlens.data.labelled import find_task
from outlierlens.data.labelled.examples import split_table
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.experiments.similarity.table import TASKS

INSIDE = ("", "glue", "sts", "superglue", "super_glue")  # folders that hold folders of data sets
SENTENCES, PAIRS = "sst2", "sts"


@dataclass(frozen=True)
class LuoData:
    """Data sets by name in `root`, or from the hub where it is None."""

    root: str | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        if self.root is not None and not Path(self.root).is_dir():
            raise BadInput(
                f"{self.root}: no such folder; --data takes a folder with one folder a data set (sst2, wic, …)"
            )

    def folder(self, name: str) -> str | None:
        """The folder of a data set; None where there is none, or where the hub's copy is meant."""
        for inside in INSIDE if self.root is not None else ():
            place = Path(str(self.root)) / inside / name
            if place.is_dir():
                return str(place)
        return None

    def has(self, name: str) -> bool:
        """Whether the data set is at hand, or to be had; "sts" is any of semantic textual similarity."""
        return self.root is None or (self.pairs_root() if name == PAIRS else self.folder(name)) is not None

    def sentences(self, split: str = "train", limit: int | None = None) -> Texts:
        """The sentences of a split of SST-2, in file order.

        Raises:
            BadInput: no such folder or file.
        """
        if self.root is not None and self.folder(SENTENCES) is None:
            there = sorted(path.name for path in Path(self.root).iterdir() if path.is_dir())
            raise BadInput(
                f"{self.root}: no folder {SENTENCES} with the sentences that most parts read; it has "
                f"{', '.join(there) or 'none'}"
            )
        table = split_table(find_task("glue:sst2"), self.folder(SENTENCES), split, self.offline)
        texts = (text.strip() for (text,) in table.rows(("sentence",)) if isinstance(text, str) and text.strip())
        return Texts(table.source, tuple(itertools.islice(texts, limit)), "sentence")

    def pairs_root(self) -> Path | None:
        """The folder that holds the folders of semantic textual similarity; None is the hub."""
        for name in TASKS:
            # Not below glue/, whose test split of STS-B has no scores.
            for inside in (PAIRS, "") if self.root is not None else ():
                place = Path(str(self.root)) / inside / name
                if place.is_dir():
                    return place.parent
        return None

    def contents(self, names: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
        """(path, bytes) of every file of these data sets, to tell when one has changed; () for the hub's copies."""
        folders = [self.pairs_root() if name == PAIRS else self.folder(name) for name in names]
        files = [path for folder in folders if folder for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        return tuple((str(path), path.stat().st_size) for path in files)

    def lacking_pairs(self) -> tuple[str, ...]:
        """Titles of the data sets of semantic textual similarity that are not there; none where the hub's are read."""
        folder = self.pairs_root()
        return () if folder is None else tuple(one.title for one in TASKS.values() if not (folder / one.name).is_dir())
