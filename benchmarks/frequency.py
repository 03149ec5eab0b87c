"""What correlations of every dimension of every layer with token frequency cost beside a plain forward pass.

    python benchmarks/frequency.py --data test.parquet --counts wiki.parquet,books.parquet --limit 1000 --threads 2
    python benchmarks/frequency.py mpnet-base --rounds 5         # without data: made-up texts, and their own counts

Cost: a plain pass over the texts (batches of 32), beside the whole of ours: texts to result, 200 draws, both views, rank
correlations, types, clouds. Same process, texts, precision (float32) and threads, in rounds of alternating order; both keep the
memory that they free; ratios are taken round by round. Memory: the peak of a fresh process that measures N texts, and of one
that measures four times as many. Exit code 1 where the cost is over 1.2, or the peak grows by more than 5 %.
"""

import argparse
import logging
import resource
import statistics
import subprocess
import sys
from typing import Any

import numpy as np
from timing import Way, ratios, rounds, say

MOST, GROWS = 1.2, 1.05
BATCH = 32
WORDS = 2000


def made_up(n: int) -> tuple[str, ...]:
    """Texts of 20 to 90 common letters' words, some words much more frequent than others."""
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlu"))
    words = ["".join(random.choice(letters, size=random.integers(2, 6))) for _ in range(WORDS)]
    chance = 1 / np.arange(1, WORDS + 1)
    return tuple(
        " ".join(random.choice(words, size=random.integers(20, 90), p=chance / chance.sum())) for _ in range(n)
    )


def own_counts(tokenizer: Any, texts: tuple[str, ...]) -> Any:
    """Counts of the texts themselves."""
    from outlierlens.data.token_counts import TokenCounts

    size = len(tokenizer)
    ids = np.concatenate([np.array(one) for one in tokenizer(list(texts), add_special_tokens=False)["input_ids"]])
    special = np.zeros(size, dtype=np.int64)
    for number in {*tokenizer("a")["input_ids"]} & {*tokenizer.all_special_ids}:
        special[number] = len(texts)
    tokens = tuple(tokenizer.convert_ids_to_tokens(range(size)))
    return TokenCounts(np.bincount(ids, minlength=size), special, tokens, len(texts), "the texts themselves")


def ways(loaded: Any, texts: Any, counts: Any, max_length: int) -> list[Way]:
    """The plain pass, and ours."""
    from outlierlens.analyses.frequency import FrequencyOptions, frequency
    from outlierlens.data.texts import batches
    from outlierlens.models.forward import TextForward
    from outlierlens.vectors.read import ReadOptions, text_stack

    run = TextForward(loaded, [text_stack(loaded, None)])
    options = FrequencyOptions(read=ReadOptions(batch_size=BATCH), max_length=max_length, dims=(0, 1))

    def plain() -> None:
        for batch in batches(
            loaded.tokenizer, texts.texts, max_length=max_length, batch_size=BATCH, device=loaded.device
        ):
            run(batch)

    return [
        Way("plain forward pass", plain),
        Way("all dimensions x layers", lambda: frequency(loaded, texts, counts, options)),
    ]


def peak(arguments: list[str], n: int) -> float:
    """Megabytes at most of a fresh process that measures `n` texts."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments, "--limit", str(n), "--alone"], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def main(arguments: list[str] | None = None) -> int:
    """Measure, print tables, and say by the exit code whether the bounds hold."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="minilm-l6", help="sample or folder of a model")
    parser.add_argument("--data", help="texts; without it they are made up")
    parser.add_argument("--counts", help="token counts; without it those of the texts themselves")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=1000, help="texts")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, help="of PyTorch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory-texts", type=int, default=512, help="N; 0 leaves memory out")
    parser.add_argument("--alone", action="store_true", help="measure once and print the peak of memory in megabytes")
    options = parser.parse_args(arguments)

    import torch

    from outlierlens.data.texts import Texts, read_texts
    from outlierlens.data.token_counts import read_counts
    from outlierlens.errors import OutlierlensError
    from outlierlens.models.devices import memory_kept
    from outlierlens.models.load import LoadOptions, load_model

    if options.threads:
        torch.set_num_threads(options.threads)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        loaded = load_model(options.model, LoadOptions(dtype="float32", device=options.device, notice=lambda _: None))
        texts = (
            read_texts(options.data, limit=options.limit)
            if options.data
            else Texts("made-up texts", made_up(options.limit))
        )
        counts = (
            read_counts(options.counts, loaded.tokenizer)
            if options.counts
            else own_counts(loaded.tokenizer, texts.texts)
        )
    except OutlierlensError as error:
        print(error, file=sys.stderr)
        return 2
    if options.alone and len(texts) < options.limit:  # the same texts again: memory is asked for, not what they say
        times = -(-options.limit // len(texts))
        texts = Texts(texts.source, (texts.texts * times)[: options.limit])
    both = ways(loaded, texts, counts, options.max_length)
    if options.alone:
        both[1].work()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return 0
    with memory_kept():  # as ours does
        rounds(both, options.rounds)
    print(
        f"{loaded.name}, {texts.source}: {len(texts):,} texts, {loaded.device}, {torch.get_num_threads()} threads, float32"
    )
    for way in both:
        seconds, busy = statistics.median(way.seconds), statistics.median(way.busy)
        print(f"  {way.name:24} {seconds:8.3f} s  {len(texts) / seconds:8,.0f} texts/s  {busy:8.3f} s processor")
    plain, ours = both
    cost = ratios(ours, plain, busy=False)
    say("ours over the plain pass:", cost)
    say("of processor seconds:", ratios(ours, plain, busy=True))
    good = statistics.median(cost) <= MOST
    if options.memory_texts:
        few, many = (peak(arguments, options.memory_texts * times) for times in (1, 4))
        print(
            f"  peak of memory: {few:,.0f} MB with {options.memory_texts:,} texts, {many:,.0f} MB with four times as many"
        )
        good = good and many <= GROWS * few
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
