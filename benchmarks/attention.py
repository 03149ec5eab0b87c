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

import argparse
import resource
import statistics
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
from timing import Way, ratios, rounds, say

MOST, MORE = 1.3, 64.0  # times; MB
BATCH = 32
LEAST = 4 * BATCH  # texts whose memory is looked at: fewer do not fill the batches that take most
WORDS = (
    "the",
    "film",
    "was",
    "not",
    "as",
    "good",
    ",",
    "they",
    "said",
    ".",
    "(",
    "1998",
    ")",
    "river",
    "north",
    "of",
    "war",
)


def made_up(n: int) -> tuple[str, ...]:
    """Texts of 20 to 160 words."""
    random = np.random.default_rng(0)
    return tuple(" ".join(random.choice(WORDS, size=int(random.integers(20, 160)))) for _ in range(n))


def texts_of(data: str | None, n: int) -> Any:
    """The first `n` texts of `data` with more than 70 words, or made-up ones; again from the start where there are fewer."""
    from outlierlens.data.texts import Texts, read_texts

    if data is None:
        return Texts("made-up texts", made_up(n))
    found = tuple(text for text in read_texts(data).texts if len(text.split()) > 70)
    return Texts(data, (found * (1 + n // max(1, len(found))))[:n])


def reading_of(loaded: Any, texts: Any, max_length: int) -> Any:
    """What our intact pass reads, two dimensions named."""
    from outlierlens.analyses.attention_maps import KeyKinds, KeyPass
    from outlierlens.vectors.read import text_stack, tokenise

    stack, tokens = text_stack(loaded, None), tokenise(loaded, texts, max_length=max_length)
    kinds = KeyKinds(loaded.tokenizer, tokens)
    return KeyPass(loaded, stack, tokens, tokens.lengths, kinds, named=(0, 1), batch_size=BATCH)


def ways_of(loaded: Any, texts: Any, max_length: int) -> list[Way]:
    """The four ways."""
    import torch

    from outlierlens.ablation.modes import Switch
    from outlierlens.data.texts import batches
    from outlierlens.models.devices import fast_products
    from outlierlens.models.forward import TextForward
    from outlierlens.vectors.read import text_stack

    run = TextForward(loaded, [text_stack(loaded, None)])
    reading = reading_of(loaded, texts, max_length)

    def forward(attention: str, **more: Any) -> None:
        loaded.model.set_attn_implementation(attention)
        kinds = {"max_length": max_length, "batch_size": BATCH, "device": loaded.device}
        for batch in batches(loaded.tokenizer, texts, **kinds):
            with torch.inference_mode(), fast_products():
                run.reader(**run.arguments(batch), **more)

    def ours() -> None:
        loaded.model.set_attn_implementation("eager")
        reading.measure(Switch(loaded, reading.stack))

    return [
        Way("eager, weights collected", lambda: forward("eager", output_attentions=True)),
        Way("ours", ours),
        Way("sdpa", lambda: forward("sdpa")),
        Way("eager", lambda: forward("eager")),
    ]


def peak(arguments: list[str], n: int) -> float:
    """Largest memory in MB of a process that reads `n` texts."""
    call = [sys.executable, __file__, *arguments, "--texts", str(n), "--memory-only"]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether the bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="minilm-l6", help="sample or folder of a model")
    parser.add_argument("--data", help="texts; without it they are made up")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, help="of PyTorch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", action="store_true", help="all ways keep freed memory, as ours does")
    parser.add_argument("--memory-only", action="store_true", help="read once and print the largest memory in MB")
    options = parser.parse_args(arguments)

    import torch

    from outlierlens.ablation.modes import Switch
    from outlierlens.errors import OutlierlensError
    from outlierlens.models.devices import memory_kept
    from outlierlens.models.load import LoadOptions, load_model

    if options.threads:
        torch.set_num_threads(options.threads)
    load = LoadOptions(dtype="float32", device=options.device, attention="eager", notice=lambda _: None)
    try:
        loaded = load_model(options.model, load)
        texts = texts_of(options.data, options.texts)
    except OutlierlensError as error:
        print(error, file=sys.stderr)
        return 2
    if options.memory_only:
        reading = reading_of(loaded, texts, options.max_length)
        reading.measure(Switch(loaded, reading.stack))
        # Kilobytes, bytes on macOS.
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3))
        return 0
    ways = ways_of(loaded, texts, options.max_length)
    with memory_kept() if options.keep else nullcontext():
        rounds(ways, options.rounds)
    n_tokens = int(reading_of(loaded, texts, options.max_length).lengths.sum())
    print(
        f"{loaded.name}, {texts.source}: {len(texts):,} texts, {n_tokens:,} tokens, {loaded.device}, "
        f"{torch.get_num_threads()} threads, float32"
    )
    for way in ways:
        seconds = statistics.median(way.seconds)
        rate = n_tokens / seconds
        print(
            f"  {way.name:26} {seconds:8.3f} s  {rate:9,.0f} tokens/s  {statistics.median(way.busy):8.3f} s processor"
        )
    collected, ours, sdpa, eager = ways
    say("eager over sdpa:", ratios(eager, sdpa, busy=False))
    say("of processor seconds:", ratios(eager, sdpa, busy=True))
    cost = ratios(ours, collected, busy=False)
    say("ours over eager with weights:", cost)
    say("of processor seconds:", ratios(ours, collected, busy=True))
    again = [options.model, "--max-length", str(options.max_length), "--device", options.device]
    again += ["--data", options.data] if options.data else []
    again += ["--threads", str(options.threads)] if options.threads else []
    few = max(options.texts, LEAST)
    small, large = peak(again, few), peak(again, 4 * few)
    print(f"  largest memory: {small:,.0f} MB with {few:,} texts, {large:,.0f} MB with {4 * few:,}")
    return 0 if statistics.median(cost) <= MOST and large - small <= MORE else 1


if __name__ == "__main__":
    sys.exit(main())
