"""Real tokens a second of an exact sweep, against the released scripts' way and against a careful plain loop.

    python benchmarks/sweep.py                                   # three workloads, about 12 minutes on two cores
    python benchmarks/sweep.py --only short --texts 32 --rounds 1
    python benchmarks/sweep.py --swept smollm2.json              # also what a finished adaptive sweep saved

Each way measures sets of dimensions on the same masked texts with the same model and threads, in turn, in rounds of
alternating order; ratios are taken round by round. Speed counts real tokens, padding never. The losses of all ways are
compared first of all: exit code 1 when they differ by 1e-3 nats or more. `OUTLIERLENS_DATA` may name a folder with
wikitext/wikitext-2-raw-v1/test.parquet and glue/sst2/validation.parquet; without it they come from the hub.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sweep_arithmetic import Work, counted, fast_bf16, processor, product_rate
from sweep_baselines import PlainLoop, ReleasedOptions, Row, as_released, masked_rows, released, save_bert

WIKITEXT = ("wikitext/wikitext-2-raw-v1/test.parquet", "Salesforce/wikitext:wikitext-2-raw-v1:test")
SST2 = ("glue/sst2/validation.parquet", "nyu-mll/glue:sst2:validation")
AGREE = 1e-3  # nats
BATCHES = (8, 16, 32, 64)  # that the plain loop may choose from
TUNING_TEXTS = 32
ONE_LAYER_SETS = 24  # enough that the pass up to the block, made once, weighs little


@dataclass(frozen=True)
class Workload:
    """What is measured: which texts with which model, and the speed wanted against (a) and (b)."""

    name: str
    title: str
    model: str
    max_length: int
    sets: int
    wanted: dict[str, float]
    wanted_bf16: dict[str, float] = field(default_factory=dict)


WORKLOADS = (
    Workload("long", "masked LM of BERT-base's size, WikiText-2 lines of > 70 words, length 128", "bert", 128, 3,
             {"a": 1.3, "b": 1.15}, {"a": 2.0}),
    Workload("short", "masked LM of BERT-base's size, SST-2 sentences, maximum length 256", "bert", 256, 8, {"a": 5.0}),
    Workload("causal", "SmolLM2-135M, WikiText-2 in blocks of 128 tokens", "smollm2-135m", 128, 3, {"b": 1.0}),
)  # fmt: skip


@dataclass
class Timing:
    """Seconds of each round, for `evaluations` passes over all texts."""

    evaluations: int
    seconds: list[float] = field(default_factory=list)

    def rates(self, tokens: int) -> list[float]:
        """Real tokens a second, round by round."""
        return [self.evaluations * tokens / seconds for seconds in self.seconds]


def data_of(where: tuple[str, str], words: int, n: int) -> tuple[str, ...]:
    """The first `n` texts of more than `words` words of a data set, from the data folder or the hub."""
    from outlierlens.data.texts import read_texts
    from outlierlens.errors import OutlierlensError

    folder = os.environ.get("OUTLIERLENS_DATA")
    try:
        texts = read_texts(Path(folder) / where[0] if folder else where[1]).texts
    except OutlierlensError as error:
        raise SystemExit(f"{error}; OUTLIERLENS_DATA may name a folder with {where[0]}") from None
    return tuple(text for text in texts if len(text.split()) > words)[:n]


def blocks(folder: Path, lines: Sequence[str], n: int, length: int) -> tuple[str, ...]:
    """As many of the lines as make `n` blocks of `length` tokens when a blank line joins them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def made(texts: Sequence[str]) -> int:
        return len(tokenizer("\n\n".join(texts))["input_ids"]) // length

    kept: list[str] = []
    for line in lines:
        kept.append(line)
        if made(kept) >= n:
            break
    words = kept[-1].split(" ")
    while made([*kept[:-1], " ".join(words)]) > n:
        words.pop()
    return (*kept[:-1], " ".join(words))


class Ours:
    """(c): the runner that `outlierlens sweep --exact` uses, made anew for each round."""

    def __init__(self, loaded: Any, texts: Any, task: Any, dims: Sequence[int], layers: Sequence[int] | None = None):
        from outlierlens.analyses.sweep.options import SweepOptions
        from outlierlens.analyses.sweep.units import INTACT, Unit

        layers = layers or range(loaded.stack().n_layers)
        self.loaded, self.texts, self.dims = loaded, texts, dims
        self.options = SweepOptions(exact=True, dims=tuple(dims), with_found=False, n_random=0, n_matched=0, task=task)
        self.units = [INTACT, *(Unit(str(dim), "all layers", dict.fromkeys(layers, (dim,))) for dim in dims)]

    def make(self) -> Any:
        """A runner: texts read, tables filled, its fast ways held against the plain one."""
        from outlierlens.analyses.sweep.runner import make_runner

        return make_runner(self.loaded, self.texts, self.options)

    def losses(self, runner: Any) -> np.ndarray:
        """Loss of each unit on each text [unit, text], texts as in the task; the first unit is the intact model."""
        from outlierlens.analyses.sweep.schedule import pieces
        from outlierlens.analyses.sweep.units import Local
        from outlierlens.analyses.sweep.units import Work as Piece
        from outlierlens.models.devices import memory_kept

        found = np.full((len(self.units), runner.n_texts), np.nan)
        number = {unit.key: i for i, unit in enumerate(self.units)}
        spans = pieces((runner.n_texts,))
        works = [Piece(unit, start, stop) for start, stop in spans for unit in self.units]
        with memory_kept():  # as `sweep` does
            for work, values in Local(runner).measure(works):
                found[number[work.unit.key], runner.order[work.start : work.stop]] = values
        return found

    def adaptive(self) -> Any:
        """(d): the default way on the same texts and dimensions."""
        from dataclasses import replace

        from outlierlens.analyses.sweep.measure import sweep

        return sweep(self.loaded, self.texts, replace(self.options, exact=False))


def tuned(loop: PlainLoop, batches: Sequence[int]) -> int:
    """The fastest batch size of the plain loop, each tried once on the intact model."""
    seconds = {}
    for size in batches:
        start = time.perf_counter()
        loop.loss([], size)
        seconds[size] = time.perf_counter() - start
    best = min(seconds, key=lambda size: seconds[size])
    print("(b) tried batches: " + ", ".join(f"{size}: {taken:.1f} s" for size, taken in seconds.items())
          + f"; takes {best}")  # fmt: skip
    return best


@dataclass
class Bench:
    """One workload with everything that is made once: the model, the texts as rows, and the sets to switch off."""

    ours: Ours
    rows: list[Row]
    options: ReleasedOptions
    folder: Path
    set_up: float
    batch: int = 0
    timings: dict[str, Timing] = field(default_factory=dict)
    losses: dict[str, list[Any]] = field(default_factory=lambda: {"a": [], "b": [], "c": []})
    rates: list[float] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    whole: float = 0.0  # useful operations of one pass of the whole model over all texts
    shares: list[tuple[float, float]] = field(default_factory=list)  # of bare products: as computed; as whole passes

    @property
    def tokens(self) -> int:
        """Real tokens of all texts."""
        return sum(len(row.ids) for row in self.rows)

    @property
    def weights(self) -> np.ndarray:
        """Predicted tokens of each text."""
        return np.array([row.n_predicted for row in self.rows], dtype=float)

    def run(self, loaded: Any, rounds: int) -> None:
        """Time every way once a round; `loaded` is the plain loop's model, in fp32."""
        dims = self.ours.dims
        self.timings = {"a": Timing(1), "b": Timing(1), "c": Timing(1 + len(dims))}
        loop = PlainLoop(loaded.model, self.rows, self.options.pad)
        with counted(loaded, self.weights.sum()) as pass_:
            loop.loss([], self.batch)
        self.whole = pass_.useful
        for turn in range(rounds):
            dim = [dims[turn % len(dims)]]
            for way in ("abc", "cba")[turn % 2]:
                runner = self.ours.make() if way == "c" else None
                start = time.perf_counter()
                if way == "a":
                    found: Any = released(self.folder, dim, self.rows, self.options)
                elif way == "b":
                    found = loop.loss(dim, self.batch)
                else:
                    with counted(self.ours.loaded, (1 + len(dims)) * self.weights.sum()) as self.work:
                        begun = time.process_time()
                        found = self.ours.losses(runner)
                        spent = time.process_time() - begun
                self.timings[way].seconds.append(time.perf_counter() - start)
                self.losses[way].append(found)
            tokens = round(self.work.tokens / self.work.passes)
            self.rates.append(product_rate(self.ours.loaded, tokens, self.weights.sum() / self.tokens))
            bare = spent * self.rates[-1]
            self.shares.append((self.work.useful / bare, self.whole * (1 + len(dims)) / bare))

    def one_layer(self, rounds: int) -> str:
        """What a set costs that is off in one block of the upper part alone, against one that is off in all."""
        loaded, n_layers = self.ours.loaded, self.ours.loaded.stack().n_layers
        layer, dims = n_layers * 5 // 6, range(loaded.model.config.hidden_size)[:ONE_LAYER_SETS]
        upper = Ours(loaded, self.ours.texts, self.ours.options.task, dims, (layer,))
        upper.units, runner, costs = upper.units[1:], self.ours.make(), []
        for _ in range(rounds):
            taken = []
            for ours in (self.ours, upper):
                begun = time.process_time()
                ours.losses(runner)
                taken.append((time.process_time() - begun) / len(ours.units))
            costs.append(taken[1] / taken[0])
        return (f"(c) off in block {layer} of {n_layers} alone, {len(dims)} sets: {_spread(costs, '.2f')} of the processor "
                f"time of a set that is off in all blocks; {n_layers - 1 - layer} of {n_layers} blocks lie above")  # fmt: skip

    def differences(self) -> dict[str, float]:
        """Largest differences of (a) and (b) from (c), in nats."""
        worst = {"a": 0.0, "b": 0.0}
        for turn, mine in enumerate(self.losses["c"]):
            same = mine[1 + turn % len(self.ours.dims)]
            expected = {"a": as_released(same, self.weights), "b": np.average(same, weights=self.weights)}
            for way, loss in expected.items():
                worst[way] = max(worst[way], abs(self.losses[way][turn] - loss))
        return worst

    def changes(self) -> np.ndarray:
        """Change of the loss by each set, in nats [set]."""
        mine = self.losses["c"][0]
        return np.average(mine[1:] - mine[:1], axis=1, weights=self.weights)


def measure(workload: Workload, folder: Path, texts: Any, given: argparse.Namespace, dtype: str) -> bool:
    """Run one workload in all ways, print its table, and return whether all ways gave the same losses."""
    from outlierlens.models.load import LoadOptions, load_model
    from outlierlens.tasks.base import TaskOptions

    loaded = load_model(str(folder), LoadOptions(device="cpu", dtype="float32", offline=True))
    causal, pad = loaded.head == "causal", loaded.tokenizer.pad_token_id or 0
    width, n_sets = loaded.model.config.hidden_size, given.sets or workload.sets
    dims = [int((i + 0.5) * width / n_sets) for i in range(n_sets)]
    ours = Ours(loaded, texts, TaskOptions(max_length=workload.max_length, blocks=causal), dims)
    start = time.perf_counter()
    runner = ours.make()
    set_up = time.perf_counter() - start
    rows = masked_rows(runner.task)
    bench = Bench(ours, rows, ReleasedOptions(workload.max_length, pad=pad, causal=causal), folder, set_up)
    print(
        f"\n## {workload.title}: {len(rows)} texts, {bench.tokens:,} tokens, {bench.weights.sum():,.0f} predicted; {dtype}\n"
    )
    print(
        f"padding to the maximum makes {1 - bench.tokens / (len(rows) * workload.max_length):.0%} of the tokens of (a)"
    )
    for note in runner.notes:
        print(f"note of (c): {note}")
    few = PlainLoop(loaded.model, rows[:: max(1, len(rows) // TUNING_TEXTS)], pad)
    bench.batch = tuned(few, [size for size in BATCHES if size <= len(few.rows)] or [1])
    if dtype != "float32":
        ours.loaded = load_model(str(folder), LoadOptions(device="cpu", dtype=dtype, offline=True))
    bench.run(loaded, given.rounds)
    show(bench, workload.wanted if dtype == "float32" else workload.wanted_bf16)
    return conclude(bench, dtype, adaptive=not given.skip_adaptive)


def _spread(values: Sequence[float], digits: str) -> str:
    """Median, smallest and largest of the rounds."""
    return f"{statistics.median(values):{digits}} ({min(values):{digits}} to {max(values):{digits}})"


def conclude(bench: Bench, dtype: str, *, adaptive: bool) -> bool:
    """Print what stands below a table; returns whether all ways gave the same losses (in bf16 nobody expects it)."""
    work = bench.work
    print(f"\n(c) computed {(work.blocks + work.head) / 1e12:.2f} TFLOP of matrix products in {work.passes} passes of "
          f"{work.tokens / work.passes:,.0f} tokens ({work.real / work.tokens:.1%} real)")  # fmt: skip
    computed, whole = ([100 * share[i] for share in bench.shares] for i in (0, 1))
    rates = [rate / 1e9 for rate in bench.rates]
    print(f"(c) by processor time, {_spread(computed, '.0f')} % of bare products of the same shapes in {dtype}, "
          f"{_spread(rates, '.1f')} GFLOP a second, for what it computed on real tokens; {_spread(whole, '.0f')} % for passes "
          "of the whole model over them")  # fmt: skip
    print(bench.one_layer(len(bench.shares)))
    print(
        f"(c) set-up, once a sweep, not in the table: {bench.set_up:.1f} s (texts read, fast ways held against plain)"
    )
    differences, changes = bench.differences(), bench.changes()
    print(f"losses: (a) and (c) differ by at most {differences['a']:.1e} nats, (b) and (c) by {differences['b']:.1e}; "
          f"the {len(changes)} sets change the loss by {changes.min():+.4f} to {changes.max():+.4f}")  # fmt: skip
    if adaptive:
        start = time.perf_counter()
        swept = bench.ours.adaptive()
        each = [effect.n_texts for effect in swept.effects]
        print(f"(d) adaptive, same texts and sets: {statistics.mean(each):.1f} of {swept.about.n_texts} texts a set "
              f"({min(each)} to {max(each)}), beside {swept.cost.intact} for the intact model and "
              f"{swept.cost.gradient_texts} for gradients; "
              f"{time.perf_counter() - start:.1f} s in all")  # fmt: skip
    return dtype != "float32" or max(differences.values()) < AGREE


def show(bench: Bench, wanted: dict[str, float]) -> None:
    """Print the table of one workload: seconds, rates, and (c) against the others round by round."""
    timings, tokens, n_texts = bench.timings, bench.tokens, len(bench.rows)
    names = {"a": "(a) released scripts' way", "b": "(b) plain loop", "c": "(c) exact sweep"}
    print(f"\n{'':28}{'sets':>5}{'s a set':>9}{'tokens/s':>10}{'texts/s':>9}   (c) is this many times faster")
    mine = timings["c"].rates(tokens)
    for way, timing in timings.items():
        rates = timing.rates(tokens)
        rate = statistics.median(rates)
        text = (
            f"{names[way]:28}{timing.evaluations:>5}{tokens / rate:>9.2f}{rate:>10,.0f}{rate * n_texts / tokens:>9.2f}"
        )
        if way != "c":
            ratios = [one / other for one, other in zip(mine, rates, strict=True)]
            text += f"   {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            text += f", wanted {wanted[way]}" if way in wanted else ""
        print(text)


def saved_by(file: str) -> str:
    """What a finished sweep took, in a line."""
    from outlierlens.results.document import load

    swept = load(file)
    return (
        f"(d) {file}: {swept.provenance.model}, {len(swept.effects)} effects on {swept.about.n_texts} texts, {swept.method}: "
        f"{swept.cost.saving:.1f} times fewer evaluations than exact ({swept.cost.exact:,} against {swept.cost.effects:,} "
        f"for effects, {swept.cost.intact:,} intact, 3 × {swept.cost.gradient_texts:,} for gradients)"
    )


def main() -> int:
    """Run the workloads; exit code 1 when two ways give different losses."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", choices=[workload.name for workload in WORKLOADS], action="append")
    arguments.add_argument("--texts", type=int, default=64, help="texts of each workload")
    arguments.add_argument("--sets", type=int, help="sets of dimensions of (c); (a) and (b) take one a round")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--threads", type=int, default=os.cpu_count())
    arguments.add_argument("--layers", type=int, default=12, help="of the random masked LM")
    arguments.add_argument("--width", type=int, default=768, help="of the random masked LM")
    arguments.add_argument("--skip-adaptive", action="store_true")
    arguments.add_argument("--swept", metavar="FILE", help="a finished sweep's JSON, to print what it saved")
    given = arguments.parse_args()
    import torch
    import transformers

    from outlierlens.data.texts import Texts
    from outlierlens.models.folder import model_folder

    torch.set_num_threads(given.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"python {' '.join(sys.argv)}")
    print(f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, transformers "
          f"{transformers.__version__}; median of {given.rounds} rounds")  # fmt: skip
    dtypes = ["float32", "bfloat16"] if fast_bf16() else ["float32"]
    if len(dtypes) == 1:
        print("bfloat16 is left out: this processor has neither AVX512-BF16 nor AMX, so bf16 is slower than fp32 here")
    agree = True
    with tempfile.TemporaryDirectory() as scratch:
        for workload in WORKLOADS:
            if given.only and workload.name not in given.only:
                continue
            source = SST2 if workload.name == "short" else WIKITEXT
            # Blocks come from running text: enough lines for the number wanted.
            lines = 20 * given.texts if workload.model != "bert" else given.texts
            texts = data_of(source, 70 if workload.name == "long" else 0, lines)
            folder = Path(scratch) / "bert"
            if workload.model != "bert":
                folder = model_folder(workload.model)
                texts = blocks(folder, texts, given.texts, workload.max_length)
            elif not folder.exists():
                save_bert(folder, data_of(WIKITEXT, 0, 10**6), layers=given.layers, width=given.width)
            for dtype in dtypes:
                agree &= measure(workload, folder, Texts(source[0], texts), given, dtype)
    if given.swept:
        print("\n" + saved_by(given.swept))
    if not agree:
        print("\nthe ways gave different losses: their speeds mean nothing", file=sys.stderr)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
