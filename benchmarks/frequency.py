"""What correlations of every dimension of every layer with token frequency cost beside a plain forward pass.

    python benchmarks/frequency.py --data test.parquet --counts wiki.parquet,books.parquet --limit 1000 --threads 2
    python benchmarks/frequency.py mpnet-base --rounds 5         # without data: made-up texts, and their own counts

Cost: a plain pass over the texts (batches of 32), beside the whole of ours: texts to result, 200 draws, both views, rank
correlations, types, clouds. Same process, texts, precision (float32) and threads, in rounds of alternating order; both keep the
memory that they free; ratios are taken round by round. Memory: the peak of a fresh process that measures --memory-texts texts
(0 leaves it out), and of one that measures four times as many. Exit code 1 where the cost is over 1.2, or the peak grows by
more than 5 %.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from timing import Way, asked, compare, largest_memory, load, made_up, peak, rounds, table

from outlierlens.analyses.frequency import FrequencyOptions, frequency
from outlierlens.data.texts import Texts, batches, read_texts
from outlierlens.data.token_counts import TokenCounts, read_counts
from outlierlens.models.devices import memory_kept
from outlierlens.models.forward import TextForward
from outlierlens.vectors.read import ReadOptions, text_stack

MOST, GROWS = 1.2, 1.05
BATCH = 32


def own_counts(tokenizer: Any, texts: tuple[str, ...]) -> TokenCounts:
    """Counts of the texts themselves."""
    size = len(tokenizer)
    ids = np.concatenate([np.array(one) for one in tokenizer(list(texts), add_special_tokens=False)["input_ids"]])
    special = np.zeros(size, dtype=np.int64)
    for number in {*tokenizer("a")["input_ids"]} & {*tokenizer.all_special_ids}:
        special[number] = len(texts)
    tokens = tuple(tokenizer.convert_ids_to_tokens(range(size)))
    return TokenCounts(np.bincount(ids, minlength=size), special, tokens, len(texts), "the texts themselves")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print tables, and say by the exit code whether the bounds hold."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = asked(
        __doc__, {"model": "minilm-l6"}, arguments, data=str, counts=str, rounds=5, limit=1000, max_length=128, threads=int,
        device="cpu", memory_texts=512, alone=False,
    )  # fmt: skip
    loaded = load(given.model, given.device)
    texts = read_texts(given.data, limit=given.limit) if given.data else Texts("made-up texts", made_up(given.limit))
    own = not given.counts
    counts = own_counts(loaded.tokenizer, texts.texts) if own else read_counts(given.counts, loaded.tokenizer)
    if given.alone:  # the same texts again where there are fewer: memory is asked for, not what they say
        texts = Texts(texts.source, (texts.texts * -(-given.limit // len(texts)))[: given.limit])
    options = FrequencyOptions(read=ReadOptions(batch_size=BATCH), max_length=given.max_length, dims=(0, 1))
    run = TextForward(loaded, [text_stack(loaded, None)])

    def bare() -> None:
        kinds = {"max_length": given.max_length, "batch_size": BATCH, "device": loaded.device}
        for batch in batches(loaded.tokenizer, texts.texts, **kinds):
            run(batch)

    plain = Way("plain forward pass", bare)
    ours = Way("all dimensions x layers", lambda: frequency(loaded, texts, counts, options))
    if given.alone:
        ours.work()
        print(largest_memory())
        return 0
    with memory_kept():  # as ours does
        rounds([plain, ours], given.rounds)
    print(
        f"{loaded.name}, {texts.source}: {len(texts):,} texts, {loaded.device}, {torch.get_num_threads()} threads, float32"
    )
    table([plain, ours], len(texts), "texts")
    good = compare("ours over the plain pass:", ours, plain) <= MOST
    if n := given.memory_texts:
        few, many = (peak(__file__, *arguments, "--limit", str(times * n), "--alone") for times in (1, 4))
        print(f"  peak of memory: {few:,.0f} MB with {n:,} texts, {many:,.0f} MB with four times as many")
        good &= many <= GROWS * few
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
