"""How long the main job takes on this machine, said before it begins: from one forward pass over its first texts.

expected(loaded, texts, options)             # "64 texts, read 27 times: about 5 min"
"""

import time
from typing import Any

from outlierlens.data.texts import Texts
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import TextReading
from outlierlens.report.options import ReportOptions
from outlierlens.view.words import duration

TIMED = 4  # texts


def expected(loaded: LoadedModel, texts: Texts, options: ReportOptions) -> str:
    """What is read how often, and about how long that takes; what is done once beside it (charts, say) is not counted.

    Raises:
        BadInput: the model has no tokenizer, or reads no text.
    """
    reading, some = TextReading(loaded, options.max_length), texts.first(TIMED)
    n_times = 1 + len(reading.stacks) * (2 + options.n_random + options.n_matched)
    said = f"{len(texts):,} texts, read {n_times} times"
    batch = next(reading.batches(some, batch_size=TIMED, max_length=options.max_length), None)
    if batch is None:  # no token
        return said
    for _ in range(2):  # the first pass also sets things up
        begun = time.perf_counter()
        reading(batch)
        int(batch.valid.sum())  # waits for a GPU
    seconds = (time.perf_counter() - begun) * _letters(texts) / max(1, _letters(some)) * (1 + _head(loaded))
    return f"{said}: about {duration(n_times * seconds)}"


def _letters(texts: Texts) -> int:
    return sum(map(len, texts.texts))


def _head(loaded: LoadedModel) -> float:
    """What the vocabulary head multiplies by, as a part of what the pass without it does."""
    model: Any = loaded.model
    if loaded.head not in ("causal", "masked") or (head := model.get_output_embeddings()) is None:
        return 0.0
    tables = {id(one.weight): one.weight.numel() for one in (model.get_input_embeddings(), head)}
    inside = sum(one.numel() for one in model.parameters()) - sum(tables.values())
    return float(head.weight.numel() / max(1, inside))
