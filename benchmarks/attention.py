"""What eager attention costs beside sdpa, what our pass adds to it, and that its memory does not grow with the texts.

    python benchmarks/attention.py --data wikitext.parquet --threads 2         # minilm-l6, 256 texts
    python benchmarks/attention.py mpnet-base --texts 64 --rounds 7            # without data: made-up texts
    python benchmarks/attention.py --keep                                      # the others keep freed memory too

Four ways over the same texts in the same batches: the plain forward pass with sdpa and with eager attention, eager attention
whose weights transformers collects (output_attentions=True), and ours, which reads every layer's weights and states: columns,
shares, entropies, correlations of all dimensions, and intervals. Same process, precision (float32) and threads, in rounds of
alternating order; ratios are taken round by round. The others give memory back as PyTorch does, ours keeps it for the next
pass, unless --keep has all do so. Then the largest memory of a process of its own that reads so many texts,
and four times as many. Exit code 1 where ours costs more than 1.3 times eager attention with weights, or four times the
texts take more than 64 MB over.
"""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from timing import Way, asked, compare, largest_memory, load, made_up, peak, rounds, table

from outlierlens.ablation.modes import Switch
from outlierlens.analyses.attention_maps import KeyKinds, KeyPass
from outlierlens.data.texts import Texts, batches, read_texts
from outlierlens.models.devices import fast_products, memory_kept
from outlierlens.models.forward import TextForward
from outlierlens.vectors.read import text_stack, tokenise

MOST, MORE = 1.3, 64.0  # times; MB
BATCH = 32
LEAST = 4 * BATCH  # texts whose memory is looked at: fewer do not fill the batches that take most


def texts_of(data: str | None, n: int) -> Texts:
    """The first `n` texts of `data` with more than 70 words, or made-up ones; again from the start where there are fewer."""
    if data is None:
        return Texts("made-up texts", made_up(n, 20, 160))
    found = tuple(text for text in read_texts(data).texts if len(text.split()) > 70)
    return Texts(data, (found * (1 + n // max(1, len(found))))[:n])


def reading_of(loaded: Any, texts: Texts, max_length: int) -> KeyPass:
    """What our intact pass reads, two dimensions named."""
    stack, tokens = text_stack(loaded, None), tokenise(loaded, texts, max_length=max_length)
    kinds = KeyKinds(loaded.tokenizer, tokens)
    return KeyPass(loaded, stack, tokens, tokens.lengths, kinds, named=(0, 1), batch_size=BATCH)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether the bounds hold."""
    given = asked(
        __doc__, {"model": "minilm-l6"}, arguments, data=str, texts=256, rounds=5, max_length=128, threads=int, device="cpu",
        keep=False, memory_only=False,
    )  # fmt: skip
    loaded = load(given.model, given.device, attention="eager")
    texts = texts_of(given.data, given.texts)
    reading = reading_of(loaded, texts, given.max_length)
    run = TextForward(loaded, [text_stack(loaded, None)])

    def forward(attention: str, **more: Any) -> None:
        loaded.model.set_attn_implementation(attention)
        kinds = {"max_length": given.max_length, "batch_size": BATCH, "device": loaded.device}
        for batch in batches(loaded.tokenizer, texts, **kinds):
            with torch.inference_mode(), fast_products():
                run.reader(**run.arguments(batch), **more)

    def our_pass() -> None:
        loaded.model.set_attn_implementation("eager")
        reading.measure(Switch(loaded, reading.stack))

    if given.memory_only:
        our_pass()
        print(largest_memory())
        return 0
    collected = Way("eager, weights collected", lambda: forward("eager", output_attentions=True))
    ours, sdpa = Way("ours", our_pass), Way("sdpa", lambda: forward("sdpa"))
    eager = Way("eager", lambda: forward("eager"))
    with memory_kept() if given.keep else nullcontext():
        rounds(ways := [collected, ours, sdpa, eager], given.rounds)
    n_tokens = int(reading.lengths.sum())
    print(
        f"{loaded.name}, {texts.source}: {len(texts):,} texts, {n_tokens:,} tokens, {loaded.device}, "
        f"{torch.get_num_threads()} threads, float32"
    )
    table(ways, n_tokens, "tokens")
    compare("eager over sdpa:", eager, sdpa)
    cost = compare("ours over eager with weights:", ours, collected)
    few = max(given.texts, LEAST)
    same = [word for word in sys.argv[1:] if word != "--keep"] if arguments is None else list(arguments)
    small, large = (peak(__file__, *same, "--texts", str(n), "--memory-only") for n in (few, 4 * few))
    print(f"  largest memory: {small:,.0f} MB with {few:,} texts, {large:,.0f} MB with {4 * few:,}")
    return 0 if cost <= MOST and large - small <= MORE else 1


if __name__ == "__main__":
    sys.exit(main())
