"""What vectors of all layers with all fixes cost beside a plain forward pass, and how fast sentences are encoded.

    python benchmarks/geometry.py --data sts/ --threads 2            # minilm-l6 on the test pairs of STS-B
    python benchmarks/geometry.py mpnet-base --rounds 7              # without data: made-up pairs, as many

Cost: a plain pass over the sentences of STS-B (batches of 32 like ours, nothing kept), beside ours: tokens to Spearman's ρ of
every layer with raw, clip, standardize, abtt and whiten. The pass over a text to fit on, and the bootstrap of intervals,
are timed beside it. Speed: the mean of the last layer, special tokens counted, beside sentence-transformers' `encode` of the
same folder. Same process, sentences, precision (float32) and threads, in rounds of alternating order; ratios are taken round
by round. Exit code 1 where the cost is over 1.3, the speed below 1, or both ways' vectors differ by more than 1e-5.
"""

import argparse
import logging
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from timing import Way, ratios, rounds, say

MOST, LEAST, SAME = 1.3, 1.0, 1e-5
BATCH = 32
PAIRS = 1379  # of the test split of STS-B
WORDS = (
    "a",
    "man",
    "is",
    "playing",
    "the",
    "guitar",
    "woman",
    "cuts",
    "an",
    "onion",
    "two",
    "dogs",
    "run",
    "over",
    "snow",
)


def made_up(n: int) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """Pairs of sentences of 4 to 24 words, with how many words they share."""
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, size=4 + int(20 * random.beta(1, 2)))) + f" {i}" for i in range(2 * n)]
    first, second = tuple(texts[:n]), tuple(texts[n:])
    gold = [
        len({*a.split()} & {*b.split()}) / len({*a.split()} | {*b.split()}) for a, b in zip(first, second, strict=True)
    ]
    return first, second, np.array(gold)


def read_pairs(data: str | None, limit: int | None) -> Any:
    """The test pairs of STS-B in `data`, or made-up ones."""
    from outlierlens.analyses.embed_pairs import TASKS, TextPairs, read_sts

    task = TASKS["stsb"]
    if data is None:
        first, second, gold = made_up(limit or PAIRS)
        return TextPairs(task.name, "made-up pairs", "test", first, second, gold)
    return read_sts(task, data, limit=limit)


def plain_pass(loaded: Any, sentences: Sequence[str], max_length: int) -> Way:
    """The model over the same sentences, nothing kept."""
    from outlierlens.data.texts import batches
    from outlierlens.models.forward import TextForward
    from outlierlens.vectors.read import text_stack

    run = TextForward(loaded, [text_stack(loaded, None)])

    def work() -> None:
        for batch in batches(
            loaded.tokenizer, sentences, max_length=max_length, batch_size=BATCH, device=loaded.device
        ):
            run(batch)

    return Way("plain forward pass", work)


def cost_ways(loaded: Any, pairs: Any, fit_texts: Any, max_length: int) -> list[Way]:
    """The plain pass, ours, and what is timed beside: the fit, and the intervals."""
    from outlierlens.analyses.embed import EmbedOptions, _sentences
    from outlierlens.analyses.embed_pass import PairPass, Pooling, sentence_vectors
    from outlierlens.data.texts import Texts
    from outlierlens.results.row_store import Kept
    from outlierlens.vectors.read import ReadOptions

    pooling, read = Pooling(max_length=max_length), ReadOptions(BATCH, final_norm=True)
    options = EmbedOptions(pooling=pooling, read=read, clip="1")
    fitting, last = [sentence_vectors(loaded, fit_texts, pooling, read)], list[Any]()

    class Fitted(PairPass):
        """The text to fit on was read before."""

        def _fitting(self, _: Any) -> Any:
            return fitting[0]

    def ours() -> None:
        work = Fitted(loaded, [pairs], Texts("fit", tuple(fit_texts)), options)
        last[:] = [work, work.measured(Kept(None, {}))]

    return [
        plain_pass(loaded, tuple(dict.fromkeys(pairs.sentences)), max_length),
        Way("all layers x all fixes", ours),
        Way("fit pass", lambda: sentence_vectors(loaded, fit_texts, pooling, read)),
        Way("intervals", lambda: _sentences(last[0], 1, last[1])),
    ]


def speed_ways(loaded: Any, folder: str, sentences: Sequence[str], max_length: int) -> list[Way]:
    """Encoding by `gather` and by sentence-transformers; both return vectors of length 1 [sentence, dim]."""
    from sentence_transformers import SentenceTransformer

    from outlierlens.vectors.read import ReadOptions, gather, text_stack, tokenise

    theirs = SentenceTransformer(folder, device=str(loaded.device))
    theirs.max_seq_length = max_length
    last = text_stack(loaded, None).n_layers - 1
    options = ReadOptions(BATCH, layers=(last,), final_norm=True)

    def ours() -> np.ndarray:
        tokens = tokenise(loaded, sentences, max_length=max_length)
        found = gather(loaded, tokens, tokens.sentences(), options, special=True).values[0]
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def encode() -> Any:
        return theirs.encode(list(sentences), batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False)

    return [Way("outlierlens", ours), Way("sentence-transformers", encode)]


def table(ways: Sequence[Way], n: int) -> None:
    """Median seconds and sentences a second."""
    for way in ways:
        seconds = statistics.median(way.seconds)
        print(
            f"  {way.name:24} {seconds:8.3f} s  {n / seconds:8,.0f} sentences/s  {statistics.median(way.busy):8.3f} s processor"
        )


def main(arguments: list[str] | None = None) -> int:
    """Measure both, print tables, and say by the exit code whether the bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="minilm-l6", help="sample or folder of a model")
    parser.add_argument("--data", help="folder that holds stsb/; without it pairs are made up")
    parser.add_argument("--fit-data", help="text to fit on; without it the shipped reviews, many times over")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, help="first pairs only")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, help="of PyTorch")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)

    import torch

    from outlierlens.data.texts import read_texts
    from outlierlens.errors import OutlierlensError
    from outlierlens.models.folder import model_folder
    from outlierlens.models.load import LoadOptions, load_model

    if options.threads:
        torch.set_num_threads(options.threads)
    for name in ("transformers", "sentence_transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        loaded = load_model(options.model, LoadOptions(dtype="float32", device=options.device, notice=lambda _: None))
        pairs = read_pairs(options.data, options.limit)
        limit = len(pairs.sentences)
        fit = read_texts(options.fit_data, limit=limit).texts if options.fit_data else read_texts("reviews").texts
        folder = model_folder(options.model) or options.model
    except OutlierlensError as error:
        print(error, file=sys.stderr)
        return 2
    sentences = tuple(dict.fromkeys(pairs.sentences))
    fit_texts = (fit * (1 + len(sentences) // len(fit)))[: len(sentences)]
    cost = cost_ways(loaded, pairs, fit_texts, options.max_length)
    rounds(cost, options.rounds, turned=2)
    print(
        f"{loaded.name}, {pairs.source}: {len(pairs):,} pairs, {len(sentences):,} sentences, {loaded.device}, "
        f"{torch.get_num_threads()} threads, float32"
    )
    table(cost, len(sentences))
    wall = ratios(cost[1], cost[0], busy=False)
    say("all layers x all fixes over the plain pass:", wall)
    say("of processor seconds:", ratios(cost[1], cost[0], busy=True))
    good = statistics.median(wall) <= MOST
    try:
        import sentence_transformers
    except ImportError:
        print("sentence-transformers is not installed, so encoding is compared with nothing", file=sys.stderr)
        return 2
    speed = speed_ways(loaded, str(folder), sentences, options.max_length)
    found = rounds(speed, options.rounds, turned=2)
    print(f"encoding, beside sentence-transformers {sentence_transformers.__version__}")
    table(speed, len(sentences))
    faster = ratios(speed[1], speed[0], busy=False)
    say("their seconds over ours:", faster)
    say("of processor seconds:", ratios(speed[1], speed[0], busy=True))
    apart = float(np.abs(found[speed[0].name] - np.asarray(found[speed[1].name])).max())
    print(f"  vectors differ by at most {apart:.1e}")
    return 0 if good and statistics.median(faster) >= LEAST and apart <= SAME else 1


if __name__ == "__main__":
    sys.exit(main())
