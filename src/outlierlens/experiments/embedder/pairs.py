"""Scored sentence pairs in one file, to check an embedder with: columns sentence1, sentence2, score."""

from pathlib import Path

import numpy as np

from outlierlens.data.labelled import LabelledTask, read_examples
from outlierlens.errors import BadInput
from outlierlens.experiments.similarity.table import TEST, StsPairs, StsTask


def read_pairs(path: Path) -> StsPairs:
    """The pairs of `path`, scores on whatever scale.

    Raises:
        BadInput: no such file or column, a score that is no number, or fewer than 2 pairs.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file; --check-data takes one with columns sentence1, sentence2 and score")
    asked = LabelledTask("sts:pairs", "sentence1", "sentence2", (), ("spearman",), label="score", regression=True)
    read = read_examples(asked, path)
    gold = np.array(read.labels, dtype=np.float64)
    if len(gold) < 2:
        raise BadInput(f"{path}: {len(gold)} pair has no rank correlation; give at least 2")
    task = StsTask(path.stem, path.name, "", float(gold.min()), float(gold.max()), (TEST,), len(gold), (), path.name)
    return StsPairs(task, str(path), TEST, read.texts, read.pairs, gold)
