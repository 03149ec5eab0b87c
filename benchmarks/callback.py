"""What watching costs a training: `OutlierCallback` every N steps on a small masked LM in a Hugging Face Trainer.

    python benchmarks/callback.py                                     # 2 x 128, batch 8 x 64, 20 steps, a record in ten
    OMP_NUM_THREADS=1 python benchmarks/callback.py --every 100 --steps 200 --rounds 3 --layers 4 --batch 32
    python benchmarks/callback.py --every 100 --steps 200 --rounds 3 --hidden 512 --layers 8

Inside: time spent in the callback's events over the time of the training, in one process. From outside: watched and
plain trainings of the same steps in turn, in rounds of alternating order. The vocabulary head is computed at masked
positions alone, which makes steps cheap and the callback's share large. Exit code 1 when
the share at N = 100 or more is 1 % or more.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import Way, asked, spread
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from outlierlens import OutlierCallback
from outlierlens.options import WatchOptions

VOCABULARY = 8000
MASKED = 0.15
EVENTS = ("on_train_begin", "on_pre_optimizer_step", "on_step_end", "on_log", "on_train_end")
LIMIT = 0.01


def clocked(way: Way, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, the time of each of its calls added to those of `way`."""

    def run(*args: Any, **kwargs: Any) -> Any:
        way.work = lambda: work(*args, **kwargs)
        return way.timed()

    return run


def model_of(given: Any) -> Any:
    """A BERT of the size asked for, with random weights."""
    torch.manual_seed(0)
    width = given.hidden
    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=given.layers, intermediate_size=4 * width,
            num_attention_heads=max(1, width // 64), max_position_embeddings=given.length,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def train(given: Any, folder: Path, *, watched: bool) -> tuple[Way, Way, Way]:
    """(whole training, the callback's events, those of its start) of one run."""

    class Masked(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            states = model.bert(inputs["input_ids"]).last_hidden_state
            chosen = inputs["labels"] >= 0
            return torch.nn.functional.cross_entropy(model.cls(states[chosen]), inputs["labels"][chosen])

    generator = torch.Generator().manual_seed(1)
    shape = (given.batch * 16, given.length)
    ids = torch.randint(5, VOCABULARY, shape, generator=generator)
    labels = ids.masked_fill(torch.rand(shape, generator=generator) >= MASKED, -100)
    rows = [{"input_ids": a, "labels": b} for a, b in zip(ids, labels, strict=True)]
    arguments = TrainingArguments(
        str(folder / "out"), max_steps=given.steps, per_device_train_batch_size=given.batch, learning_rate=1e-3,
        logging_steps=50, save_strategy="no", report_to=[], use_cpu=given.cpu, disable_tqdm=True,
    )  # fmt: skip
    trainer = Masked(model_of(given), arguments, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    whole, inside, start = (Way(name, trainer.train) for name in ("training", "events", "start"))
    if watched:
        probe = ids[: given.probe_texts, : min(64, given.length)]
        path = Path(tempfile.mkdtemp(dir=folder)) / "watch.jsonl"
        callback = OutlierCallback(path, WatchOptions(every=given.every, probe=probe, notice=lambda line: None))
        for name in EVENTS:
            clock = start if name == "on_train_begin" else inside
            setattr(callback, name, clocked(clock, getattr(callback, name)))
        callback.attach(trainer)
    whole.timed()
    return whole, inside, start


def main() -> int:
    """Measure, print, and say whether the share stays below 1 %."""
    given = asked(
        __doc__, every=10, steps=20, rounds=1, layers=2, hidden=128, batch=8, length=64, probe_texts=16, threads=1,
        cpu=False,
    )  # fmt: skip
    device = "CPU" if given.cpu or not torch.cuda.is_available() else torch.cuda.get_device_name()
    print(
        f"{given.layers} x {given.hidden}, batch {given.batch} x {given.length}, {given.steps} steps, N = {given.every}, "
        f"probe {given.probe_texts} x {min(64, given.length)}, {device}, {given.threads} threads, {given.rounds} rounds"
    )
    shares: dict[str, list[float]] = {"seconds": [], "busy": []}
    ratios: dict[str, list[float]] = {"seconds": [], "busy": []}
    starts, records, steps = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        warm = argparse.Namespace(**{**vars(given), "steps": 3, "every": 1})
        train(warm, Path(folder), watched=True)
        for turn in range(given.rounds):
            found = {}
            for watched in (turn % 2 == 0, turn % 2 == 1):
                found[watched] = train(given, Path(folder), watched=watched)
            (plain, _, _), (whole, inside, start) = found[False], found[True]
            for kind, seen in shares.items():
                whole_of, inside_of, start_of, plain_of = (
                    sum(getattr(one, kind)) for one in (whole, inside, start, plain)
                )
                seen.append(inside_of / (whole_of - start_of))
                ratios[kind].append(whole_of / plain_of - 1)
            starts += start.seconds
            records += sorted(inside.busy)[-(given.steps // given.every) :]
            steps.append(plain.seconds[0] / given.steps)
    print(f"a step {statistics.median(steps) * 1e3:.0f} ms, a record {statistics.median(records) * 1e3:.1f} ms, "
          f"the start {statistics.median(starts) * 1e3:.0f} ms once")  # fmt: skip
    for kind, name in (("busy", "processor"), ("seconds", "wall")):
        print(f"{name} time: {spread(shares[kind], '.2%')} of the training is the callback; watched against plain runs "
              f"{spread(ratios[kind], '+.1%')}")  # fmt: skip
    return int(given.every >= 100 and statistics.median(shares["seconds"]) >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
