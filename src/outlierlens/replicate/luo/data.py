"""Data sets of Luo et al. (2021), in one folder with a folder per data set or the hub's own copies; and the paper's numbers.

data = LuoData("data/")                 # data/sst2 or data/glue/sst2, data/sts/stsb or data/stsb, data/wic, …
data.sentences(limit=20_000)            # SST-2's training sentences
data.folder("imdb")                     # None: not there, so that part is left out
published_for("roberta-base")           # tuple of Published, () for a checkpoint that is none of the paper's
shares_for("roberta-base")              # {("largest entry", 588): 1.0, …}

The paper names its models BERT, RoBERTa, DistilBERT, … without casing. That BERT and DistilBERT are the cased ones is an
inference: dimension 557, which it reports, is an outlier of theirs.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

from outlierlens.data.labelled import find_task
from outlierlens.data.labelled.examples import split_table
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.experiments.similarity.table import TASKS
from outlierlens.replicate.luo.result import Published

INSIDE = ("", "glue", "sts", "superglue", "super_glue")  # folders that hold folders of data sets
SENTENCES, PAIRS = "sst2", "sts"
_SAME = "the paper's checkpoint"
_CASED = "the paper does not say which casing; inferred from dimension 557"
_OPEN = "the paper does not say which casing"
_WIC, _STS, _CLASSES = (
    "Luo et al. 2021, tables 1 and 5",
    "Luo et al. 2021, tables 2, 6 and 7",
    "Luo et al. 2021, table 3",
)
# checkpoint: (evidence, {data: (raw, clipped) × 100})
_NUMBERS: dict[str, tuple[str, dict[str, tuple[float, float]]]] = {
    "bert-base-cased": (
        _CASED,
        {"wic": (67.5, 68.4), "stsb": (58.61, 63.06), "sst2": (85.9, 85.4), "imdb": (86.8, 86.4), "sst5": (46.2, 46.1)},
    ),
    "roberta-base": (
        _SAME,
        {"wic": (69.0, 69.9), "stsb": (56.60, 60.61), "sst2": (88.4, 88.7), "imdb": (91.5, 91.6), "sst5": (46.9, 47.0)},
    ),
    "bert-large-cased": (_OPEN, {"wic": (70.2, 70.3), "stsb": (62.56, 66.43)}),
    "bert-large-uncased": (_OPEN, {"wic": (70.2, 70.3), "stsb": (62.56, 66.43)}),
    "roberta-large": (_SAME, {"wic": (70.4, 71.3), "stsb": (59.71, 62.01)}),
    "distilbert-base-cased": (_CASED, {"wic": (66.5, 67.3), "stsb": (59.65, 56.62)}),
    "distilroberta-base": (_SAME, {"wic": (63.7, 66.7)}),
}
# checkpoint: {(end, dimension): share of token vectors}, section 2 (10,000 sentences of SST-2 and of QQP each, all blocks)
_SHARES: dict[str, dict[tuple[str, int], float]] = {
    "bert-base-cased": {("smallest entry", 557): 0.9660},
    "roberta-base": {("smallest entry", 77): 0.8819, ("largest entry", 588): 1.0},
}
# where the best scores of table 1 lie, for the checkpoints it says it of
_LAYERS = {"bert-base-cased": ", raw at layer 7 > 0.7, clipped at layer 10 > 0.5"}


@dataclass(frozen=True)
class LuoData:
    """Data sets by name in `root`, or from the hub where it is None."""

    root: str | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        if self.root is not None and not Path(self.root).is_dir():
            raise BadInput(
                f"{self.root}: no such folder; --data takes a folder with one folder per data set (sst2, wic, …)"
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


def shares_for(checkpoint: str | None) -> dict[tuple[str, int], float]:
    """{("smallest entry" or "largest entry", dimension): the paper's share of token vectors} of this checkpoint."""
    return dict(_SHARES.get(checkpoint or "", {}))


def published_for(checkpoint: str | None) -> tuple[Published, ...]:
    """The paper's best scores, layer chosen on the test data, of this checkpoint (`references.checkpoint_of`)."""
    if checkpoint not in _NUMBERS:
        return ()
    evidence, numbers = _NUMBERS[checkpoint]
    sources = {"wic": _WIC + _LAYERS.get(checkpoint, ""), "stsb": _STS}
    return tuple(
        Published(data, raw / 100, clipped / 100, sources.get(data, _CLASSES), evidence)
        for data, (raw, clipped) in numbers.items()
    )
