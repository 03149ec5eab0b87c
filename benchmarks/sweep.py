"""Real tokens a second of an exact sweep, against the released scripts' way and against a careful plain loop.

    python benchmarks/sweep.py                                   # SST-2 sentences, a masked LM of two layers
    python benchmarks/sweep.py long short causal --texts 64 --sets 0 --rounds 3 --layers 12 --width 768     # 12 minutes

Each way measures sets of dimensions on the same masked texts with the same model and threads, in turn, in rounds of
alternating order; ratios are taken round by round. Speed counts real tokens, padding never. The losses of all ways are
compared first of all: exit code 1 when they differ by 1e-3 nats or more. `OUTLIERLENS_DATA` names a folder with
wikitext/wikitext-2-raw-v1/test.parquet and glue/sst2/validation.parquet; without it the reviews of the package are read.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sweep_baselines import PlainLoop, ReleasedOptions, as_released, masked_rows, released, save_bert
from timing import Way, asked, ratios, spread

from outlierlens.analyses.sweep.measure import sweep
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.analyses.sweep.runner import make_runner
from outlierlens.analyses.sweep.schedule import pieces
from outlierlens.analyses.sweep.units import INTACT, LocalEngine, Unit, Work
from outlierlens.data.texts import Texts, read_texts
from outlierlens.models.devices import memory_kept
from outlierlens.models.folder import model_folder
from outlierlens.models.load import LoadOptions, load_model
from outlierlens.tasks.base import TaskOptions

WIKITEXT, SST2 = "wikitext/wikitext-2-raw-v1/test.parquet", "glue/sst2/validation.parquet"
AGREE = 1e-3  # nats
BATCHES = (8, 16, 32, 64)  # that the plain loop may choose from
TUNING_TEXTS = 32
ONE_LAYER_SETS = 24  # enough that the pass up to the block, made once, weighs little


@dataclass(frozen=True)
class Workload:
    """What is measured: which texts with which model, and the speed wanted against (a) and (b)."""

    title: str
    model: str
    max_length: int
    sets: int
    wanted: dict[str, float]
    wanted_bf16: dict[str, float] = field(default_factory=dict)


WORKLOADS = {
    "long": Workload("masked LM of BERT-base's size, WikiText-2 lines of > 70 words, length 128", "bert", 128, 3,
                     {"a": 1.3, "b": 1.15}, {"a": 2.0}),
    "short": Workload("masked LM of BERT-base's size, SST-2 sentences, maximum length 256", "bert", 256, 8, {"a": 5.0}),
    "causal": Workload("SmolLM2-135M, WikiText-2 in blocks of 128 tokens", "smollm2-135m", 128, 3, {"b": 1.0}),
}  # fmt: skip


def data_of(where: str, words: int, n: int) -> tuple[str, ...]:
    """The first `n` texts of more than `words` words of a file in the data folder; of the reviews without one."""
    folder = os.environ.get("OUTLIERLENS_DATA")
    texts = read_texts(Path(folder) / where if folder else "reviews").texts
    return tuple(text for text in texts if len(text.split()) > words)[:n]


def blocks(folder: Path, lines: Sequence[str], n: int, length: int) -> tuple[str, ...]:
    """As many of the lines as make `n` blocks of `length` tokens when a blank line joins them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

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
    """(c): the runner that `outlierlens sweep --precision exact` uses, made anew for each round."""

    def __init__(self, loaded: Any, texts: Texts, task: TaskOptions, dims: Sequence[int]):
        self.loaded, self.texts, self.dims = loaded, texts, dims
        self.options = SweepOptions(exact=True, dims=tuple(dims), with_found=False, n_random=0, n_matched=0, task=task)
        self.units = [INTACT, *self.off(dims, range(loaded.stack().n_layers))]

    def off(self, dims: Sequence[int], layers: Sequence[int]) -> list[Unit]:
        """Each dimension off in these blocks."""
        return [Unit(f"{dim} {len(layers)}", "all layers", dict.fromkeys(layers, (dim,))) for dim in dims]

    def make(self) -> Any:
        """A runner: texts read, tables filled, its fast ways held against the plain one."""
        return make_runner(self.loaded, self.texts, self.options)

    def losses(self, runner: Any, units: Sequence[Unit]) -> np.ndarray:
        """Loss of each unit on each text [unit, text], texts as in the task."""
        found = np.full((len(units), runner.n_texts), np.nan)
        number = {unit.key: i for i, unit in enumerate(units)}
        works = [Work(unit, start, stop) for start, stop in pieces((runner.n_texts,)) for unit in units]
        with memory_kept():  # as `sweep` does
            for work, values in LocalEngine(runner).measure(works):
                found[number[work.unit.key], runner.order[work.start : work.stop]] = values
        return found

    def one_layer(self, rounds: int) -> str:
        """What a set costs that is off in one block of the upper part alone, against one that is off in all."""
        n_layers, runner, costs = self.loaded.stack().n_layers, self.make(), []
        layer = n_layers * 5 // 6
        upper = self.off(range(self.loaded.model.config.hidden_size)[:ONE_LAYER_SETS], (layer,))
        for _ in range(rounds):
            taken = []
            for units in (self.units, upper):
                begun = time.process_time()
                self.losses(runner, units)
                taken.append((time.process_time() - begun) / len(units))
            costs.append(taken[1] / taken[0])
        return (f"(c) off in block {layer} of {n_layers} alone, {len(upper)} sets: {spread(costs)} of the processor time of a "
                f"set that is off in all blocks; {n_layers - 1 - layer} of {n_layers} blocks lie above")  # fmt: skip


def tuned(loop: PlainLoop) -> int:
    """The fastest batch size of the plain loop, each tried once on the intact model."""
    ways = {}
    for size in [size for size in BATCHES if size <= len(loop.rows)] or [1]:
        ways[size] = Way(str(size), lambda size=size: loop.loss([], size))
        ways[size].timed()
    best = min(ways, key=lambda size: ways[size].seconds[0])
    print("(b) tried batches:", ", ".join(f"{size}: {way.seconds[0]:.1f} s" for size, way in ways.items()), f"; {best}")
    return best


def measure(workload: Workload, folder: Path, texts: Texts, given: Any, dtype: str) -> bool:
    """Run one workload in all ways, print its table, and return whether all ways gave the same losses."""
    loaded = load_model(str(folder), LoadOptions(device="cpu", dtype="float32", offline=True))
    causal, pad = loaded.head == "causal", loaded.tokenizer.pad_token_id or 0
    width, n_sets = loaded.model.config.hidden_size, given.sets or workload.sets
    dims = [int((i + 0.5) * width / n_sets) for i in range(n_sets)]
    ours = Ours(loaded, texts, TaskOptions(max_length=workload.max_length, blocks=causal), dims)
    set_up = Way("set-up", ours.make)
    runner = set_up.timed()
    rows = masked_rows(runner.task)
    options = ReleasedOptions(workload.max_length, pad=pad, causal=causal)
    weights, tokens = np.array([row.n_predicted for row in rows], float), sum(len(row.ids) for row in rows)
    print(f"\n## {workload.title}: {len(rows)} texts, {tokens:,} tokens, {weights.sum():,.0f} predicted; {dtype}\n")
    print(f"padding to the maximum makes {1 - tokens / (len(rows) * workload.max_length):.0%} of the tokens of (a)")
    print("".join(f"note of (c): {note}\n" for note in runner.notes), end="")
    batch = tuned(PlainLoop(loaded.model, rows[:: max(1, len(rows) // TUNING_TEXTS)], pad))
    loop = PlainLoop(loaded.model, rows, pad)
    if dtype != "float32":
        ours.loaded = load_model(str(folder), LoadOptions(device="cpu", dtype=dtype, offline=True))
    a, b, c = (Way(name, lambda: None) for name in ("(a) released scripts' way", "(b) plain loop", "(c) exact sweep"))
    worst, changes = {"a": 0.0, "b": 0.0}, np.zeros(n_sets)
    for turn in range(given.rounds):
        dim = [dims[turn % n_sets]]
        runner = ours.make()
        a.work = lambda dim=dim: released(folder, dim, rows, options)
        b.work = lambda dim=dim: loop.loss(dim, batch)
        c.work = lambda runner=runner: ours.losses(runner, ours.units)
        found = {way.name[1]: way.timed() for way in ((a, b, c), (c, b, a))[turn % 2]}
        mine = found["c"]
        same, changes = mine[1 + turn % n_sets], np.average(mine[1:] - mine[:1], axis=1, weights=weights)
        worst["a"] = max(worst["a"], abs(found["a"] - as_released(same, weights)))
        worst["b"] = max(worst["b"], abs(found["b"] - np.average(same, weights=weights)))
    wanted = workload.wanted if dtype == "float32" else workload.wanted_bf16
    print(f"\n{'':28}{'sets':>5}{'s a set':>9}{'tokens/s':>10}{'texts/s':>9}   (c) is this many times faster")
    for way, sets in ((a, 1), (b, 1), (c, 1 + n_sets)):
        seconds = [one / sets for one in way.seconds]
        middle, each = statistics.median(seconds), [one / (1 + n_sets) for one in c.seconds]
        text = f"{way.name:28}{sets:>5}{middle:>9.2f}{tokens / middle:>10,.0f}{len(rows) / middle:>9.2f}"
        if way is not c:
            text += f"   {spread(ratios(seconds, each))}"
            text += f", wanted {wanted[way.name[1]]}" if way.name[1] in wanted else ""
        print(text)
    print(f"\n{ours.one_layer(given.rounds)}")
    print(
        f"(c) set-up, once a sweep, not in the table: {set_up.seconds[0]:.1f} s (texts read, fast ways held against plain)"
    )
    print(f"losses: (a) and (c) differ by at most {worst['a']:.1e} nats, (b) and (c) by {worst['b']:.1e}; "
          f"the {n_sets} sets change the loss by {changes.min():+.4f} to {changes.max():+.4f}")  # fmt: skip
    if not given.skip_adaptive:
        adaptive = Way("adaptive", lambda: sweep(ours.loaded, texts, replace(ours.options, exact=False)))
        swept = adaptive.timed()
        each = [effect.n_texts for effect in swept.effects]
        print(f"(d) adaptive, same texts and sets: {statistics.mean(each):.1f} of {swept.about.n_texts} texts a set "
              f"({min(each)} to {max(each)}), beside {swept.cost.intact} for the intact model and "
              f"{swept.cost.gradient_texts} for gradients; {adaptive.seconds[0]:.1f} s in all")  # fmt: skip
    return dtype != "float32" or max(worst.values()) < AGREE  # in bf16 nobody expects it


def fast_bf16() -> bool:
    """Whether this processor multiplies bf16 matrices in hardware."""
    tests = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(test is not None and test() for test in tests)


def main() -> int:
    """Run the workloads; exit code 1 when two ways give different losses."""
    given = asked(
        __doc__, {"workloads": ["short"]}, texts=8, sets=4, rounds=1, threads=os.cpu_count(), layers=2, width=128,
        skip_adaptive=False,
    )  # fmt: skip
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, transformers {transformers.__version__}")
    dtypes = ["float32", "bfloat16"] if fast_bf16() else ["float32"]
    if len(dtypes) == 1:
        print("bfloat16 is left out: this processor has neither AVX512-BF16 nor AMX, so bf16 is slower than fp32 here")
    agree = True
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.workloads:
            workload, source = WORKLOADS[name], SST2 if name == "short" else WIKITEXT
            # Blocks come from running text: enough lines for the number wanted.
            texts = data_of(source, 70 if name == "long" else 0, given.texts * (20 if name == "causal" else 1))
            folder = Path(scratch) / "bert"
            if workload.model != "bert":
                folder = model_folder(workload.model)
                texts = blocks(folder, texts, given.texts, workload.max_length)
            elif not folder.exists():
                save_bert(folder, data_of(WIKITEXT, 0, 10**6), layers=given.layers, width=given.width)
            for dtype in dtypes:
                agree &= measure(workload, folder, Texts(source, texts), given, dtype)
    if not agree:
        print("\nthe ways gave different losses: their speeds mean nothing", file=sys.stderr)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
