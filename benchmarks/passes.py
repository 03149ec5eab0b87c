"""What an analysis adds to a plain forward pass over texts, and whether its memory grows with them.

    python benchmarks/passes.py                                                   # all five, 32 texts of minilm-l6
    OMP_NUM_THREADS=1 python benchmarks/passes.py observe --model mpnet-base --texts 192 --memory-texts 1024
    python benchmarks/passes.py attention --data wikitext.parquet --min-words 70 --texts 256 --keep --memory-texts 256
    OMP_NUM_THREADS=1 python benchmarks/passes.py range losses --model smollm2-135m

Each way reads the same texts (made-up ones without --data) in the same process, batches, precision (float32) and threads, in
rounds of alternating order; ratios are taken round by round. `observe` and `range` stand beside the bare pass, `frequency`
(texts to result, 200 draws) beside the pass with its tokeniser, `attention` beside eager attention whose weights
transformers collects, and `losses`, what `report` does most, beside PyTorch's own products. --keep has the others keep the
memory that they free, as ours does. --memory-texts: the peak of a fresh process that measures N texts, and of one that
measures four times as many. Exit code 1 where a text's loss differs by 1e-4 nats, a peak is over its bound or, with --bounds,
a cost is: bounds are meant for 256 texts and more.
"""

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from timing import Way, asked, compare, largest_memory, load, made_up, own_products, peak, rounds, table

from outlierlens.ablation.modes import Switch
from outlierlens.analyses.attention_maps import KeyKinds, KeyPass
from outlierlens.analyses.frequency import FrequencyOptions, frequency
from outlierlens.analyses.observe import observe
from outlierlens.analyses.range_pass import RangePass
from outlierlens.data.texts import Texts, batches, read_texts
from outlierlens.data.token_counts import TokenCounts, read_counts
from outlierlens.detection.activations import ObserveOptions, Observer
from outlierlens.models.devices import fast_products, memory_kept
from outlierlens.models.forward import TextForward
from outlierlens.models.inputs import TextReading
from outlierlens.tasks.choice import make_task
from outlierlens.vectors.read import ReadOptions, text_stack, tokenise

BATCH = 32


@dataclass(frozen=True)
class Comparison:
    """Ways to read the same texts, ours the last, and what may not be exceeded.

    Attributes:
        most: processor time of ours over that of the way before it. apart: largest difference of what these two return.
        whole: the analysis, of whose memory --memory-texts asks; `bound` is that of four times the texts.
    """

    ways: list[Way]
    most: float = math.inf
    apart: float = math.inf
    whole: Callable[[], Any] | None = None
    bound: Callable[[float], float] = field(default=lambda few: 1.05 * few)


def observed(loaded: Any, texts: Texts, given: Any) -> Comparison:
    """All statistics of `observe`."""
    options = ObserveOptions(max_length=given.max_length, batch_size=BATCH)
    observer = Observer(loaded, options)
    prepared = list(observer.reading.batches(texts, batch_size=BATCH))

    def plain() -> None:
        with own_products():
            bare()

    def bare() -> None:
        for batch in prepared:
            observer.reading(batch)

    ours = Way("observe", lambda: [observer.consume(batch) for batch in prepared])
    ways = [Way("PyTorch's own pass", plain), Way("bare pass", bare), ours]
    return Comparison(ways, 1.15, whole=lambda: observe(loaded, texts, options))


def ranged(loaded: Any, texts: Texts, given: Any) -> Comparison:
    """Largest values of every tensor, beside the pass with its head."""
    reading = TextReading(loaded, given.max_length)
    measured, prepared = RangePass(loaded, reading), list(reading.batches(texts, batch_size=BATCH))

    def bare() -> None:
        with torch.inference_mode(), fast_products():
            for batch in prepared:
                loaded.model(**reading.arguments(batch))

    return Comparison([Way("bare pass, head", bare), Way("range", lambda: [measured.consume(one) for one in prepared])])


def correlated(loaded: Any, texts: Texts, given: Any) -> Comparison:
    """Correlations of every dimension of every layer with token frequency: of --counts, or of the texts themselves."""
    counts = read_counts(given.counts, loaded.tokenizer) if given.counts else own_counts(loaded.tokenizer, texts.texts)
    options = FrequencyOptions(read=ReadOptions(batch_size=BATCH), max_length=given.max_length, dims=(0, 1))

    def ours() -> None:
        frequency(loaded, texts, counts, options)

    return Comparison([Way("pass", lambda: forward(loaded, texts, given)), Way("frequency", ours)], 1.2, whole=ours)


def own_counts(tokenizer: Any, texts: tuple[str, ...]) -> TokenCounts:
    """Counts of the texts themselves."""
    size = len(tokenizer)
    ids = np.concatenate([np.array(one) for one in tokenizer(list(texts), add_special_tokens=False)["input_ids"]])
    special = np.zeros(size, dtype=np.int64)
    for number in {*tokenizer("a")["input_ids"]} & {*tokenizer.all_special_ids}:
        special[number] = len(texts)
    tokens = tuple(tokenizer.convert_ids_to_tokens(range(size)))
    return TokenCounts(np.bincount(ids, minlength=size), special, tokens, len(texts), "the texts themselves")


def forward(loaded: Any, texts: Texts, given: Any, **more: Any) -> None:
    """The plain pass, texts to states."""
    run, lengths = (
        TextForward(loaded, [text_stack(loaded, None)]),
        {"max_length": given.max_length, "batch_size": BATCH},
    )
    for batch in batches(loaded.tokenizer, texts, device=loaded.device, **lengths):
        with torch.inference_mode(), fast_products():
            run.reader(**run.arguments(batch), **more)


def attended(loaded: Any, texts: Texts, given: Any) -> Comparison:
    """Weights and states of every layer: columns, shares, entropies, correlations, intervals."""
    stack, tokens = text_stack(loaded, None), tokenise(loaded, texts, max_length=given.max_length)
    kinds = KeyKinds(loaded.tokenizer, tokens)
    reading = KeyPass(loaded, stack, tokens, tokens.lengths, kinds, named=(0, 1), batch_size=BATCH)

    def plain(attention: str, **more: Any) -> None:
        loaded.model.set_attn_implementation(attention)
        forward(loaded, texts, given, **more)

    def ours() -> None:
        loaded.model.set_attn_implementation("eager")
        reading.measure(Switch(loaded, stack))

    ways = [
        Way("sdpa", lambda: plain("sdpa")), Way("eager", lambda: plain("eager")),
        Way("eager, weights collected", lambda: plain("eager", output_attentions=True)), Way("attention", ours),
    ]  # fmt: skip
    return Comparison(ways, 1.3, whole=ours, bound=lambda few: few + 64)


def lost(loaded: Any, texts: Texts, given: Any) -> Comparison:
    """The loss of every text, with `fast_products` and with PyTorch's own."""
    task = make_task(loaded, texts)

    def plain() -> np.ndarray:
        with own_products():
            return task.per_text()[0]

    return Comparison([Way("PyTorch's own products", plain), Way("losses", lambda: task.per_text()[0])], apart=1e-4)


PASSES = {"observe": observed, "range": ranged, "frequency": correlated, "attention": attended, "losses": lost}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print tables, and say by the exit code whether the bounds hold."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = asked(
        __doc__, {"passes": list(PASSES)}, arguments, model="minilm-l6", data=str, counts=str, min_words=0, texts=32,
        rounds=3, max_length=128, threads=1, device="cpu", keep=False, memory_texts=0, bounds=False, alone=False,
    )  # fmt: skip
    loaded = load(given.model, given.device, attention="eager")
    read = read_texts(given.data).texts if given.data else made_up(given.texts, 20, 160)
    some = [text for text in read if len(text.split()) > given.min_words]
    texts = Texts(given.data or "made-up texts", tuple(some * -(-given.texts // len(some)))[: given.texts])
    good = True
    for name in given.passes:
        found = PASSES[name](loaded, texts, given)
        *others, ours = found.ways
        if given.alone and found.whole:
            found.whole()
            print(largest_memory())
            return 0
        with memory_kept() if given.keep or name == "frequency" else nullcontext():
            returned = rounds(found.ways, given.rounds)
        print(f"{name} of {loaded.name}, {texts.source}: {len(texts):,} texts, {loaded.device}, "
              f"{torch.get_num_threads()} threads, float32")  # fmt: skip
        table(found.ways, len(texts), "texts")
        costs = [compare(f"{name} over {other.name}:", ours, other) for other in others]
        good &= costs[-1] <= found.most or not given.bounds
        if found.apart < math.inf:
            apart = float(np.abs(returned[ours.name] - returned[others[-1].name]).max())
            print(f"  largest difference: {apart:.1e} nats per token")
            good &= apart <= found.apart
        if (n := given.memory_texts) and found.whole:
            more = [word for word in arguments if word not in PASSES]
            few, many = (peak(__file__, name, *more, "--texts", str(times * n), "--alone") for times in (1, 4))
            print(f"  peak of memory: {few:,.0f} MB with {n:,} texts, {many:,.0f} MB with four times as many")
            good &= many <= found.bound(few)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
