"""`plan` beside the exhaustive greedy choice, and how often it names anything where nothing stands out.

    python benchmarks/plan.py                                              # greedy, 16 reviews, mini-planted
    OMP_NUM_THREADS=1 python benchmarks/plan.py greedy mini-planted --data reviews --limit 64 --rows DIR
    OMP_NUM_THREADS=1 python benchmarks/plan.py nulls --draws 200
    OMP_NUM_THREADS=1 python benchmarks/plan.py columns smollm2-135m --data FILE --limit 96 --max-length 64

`greedy` runs both with the same texts: the plan as the command makes it, and every entry at every step on all texts that
nominate (`exact`). What is measured is appended to DIR, so a run that was cut off goes on. `nulls` plans tiny models of random
weights, drawn alike, in which nothing was planted. `columns` searches nothing: it keeps 1, 4 and 16 columns of every linear,
those with the largest |x|, and measures each on the texts that judge a plan.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from timing import asked
from transformers import LlamaConfig, LlamaForCausalLM

from outlierlens.analyses.plan import PlanOptions, PlanStudy, plan
from outlierlens.analyses.quantize_rounding import rounded
from outlierlens.data.texts import Texts, read_texts
from outlierlens.models.load import from_objects, load_model
from outlierlens.statistics.means import ratio_interval
from outlierlens.tasks.base import TaskOptions


def greedy(given: Any) -> None:
    """Print evaluations, seconds, what stays and what it costs, of both."""
    loaded, texts = load_model(given.model), read_texts(given.data, limit=given.limit)
    options = PlanOptions(
        scheme=given.scheme, keep=given.keep, grain=given.grain, n_candidates=given.candidates, n_random=0,
        task=TaskOptions(max_length=given.max_length),
    )  # fmt: skip
    if given.rows:
        Path(given.rows).mkdir(parents=True, exist_ok=True)
    found = []
    for name, one in (("adaptive", options), ("exhaustive", replace(options, exact=True))):
        begin = time.perf_counter()
        made = plan(loaded, texts, one, rows=Path(given.rows) / f"{name}.jsonl" if given.rows else None)
        found.append(made)
        searching = sum(row.n_texts or 0 for row in made.sensitivities)
        print(
            f"{name:10} {made.evaluations:7,} evaluations ({searching:,} at the first step), "
            f"{time.perf_counter() - begin:,.0f} s; "
            f"{made.rounded.change.value:+.4f} -> {made.plan.change.value:+.4f} with {made.plan.share:.3%} kept: "
            f"{', '.join(f'{step.path} {step.what}' for step in made.steps) or 'nothing'}",
            flush=True,
        )
    ours, exhaustive = found
    regained = [made.regained.value for made in found]
    if not exhaustive.steps:
        print("the exhaustive choice names nothing, so there is nothing to compare")
        return
    print(
        f"gives back {regained[0] / regained[1]:.1%} of what the exhaustive choice does, "
        f"with 1/{exhaustive.evaluations / ours.evaluations:.1f} of its evaluations"
    )


def columns(given: Any) -> None:
    """Print what is left of the cost of rounding with few columns of every linear kept, on the texts that judge."""
    loaded, texts = load_model(given.model), read_texts(given.data, limit=given.limit)
    options = PlanOptions(scheme=given.scheme, task=TaskOptions(max_length=given.max_length))
    study = PlanStudy(loaded, texts, options, None, None)
    weights, intact = study.weights[study.judging], study.intact[study.judging]
    with rounded(loaded, study.recipe, stack=study.stack.name, places=study.places) as study.model:
        plain = study.judged([])
        for entries in ([], *([(name, what)] for name, what in study.entries.candidates if name == "every linear")):
            one, back = study.setting("rule", str(entries), entries), (plain - study.judged(entries)) * weights
            cost = (plain - intact) * weights
            low, high = ratio_interval(back, cost)
            print(
                f"{entries[0][1] if entries else 'nothing'} of every linear: {one.share:.3%} of the weights; "
                f"{one.change.value:+.4f} ({one.change.low:+.4f} to {one.change.high:+.4f}); "
                f"gives back {back.sum() / cost.sum():.1%} ({low:.1%} to {high:.1%})",
                flush=True,
            )


def nulls(given: Any) -> None:
    """Print in how many draws a plan names an entry, how often that holds on the texts that judge, and "keep"."""
    tokenizer = load_model("mini-planted").tokenizer
    texts = Texts(
        "made", tuple(f"film number {i} was {'very ' * (i % 5)}good and then it was bad again" for i in range(64))
    )
    named = kept = judged = 0
    for draw in range(given.draws):
        torch.manual_seed(draw)
        config = LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, initializer_range=0.1,
        )  # fmt: skip
        loaded = from_objects(LlamaForCausalLM(config), tokenizer, name=f"null {draw}")
        options = PlanOptions(
            keep=0.5, n_candidates=8, n_random=3, tolerance=given.tolerance, seed=draw, task=TaskOptions(max_length=16)
        )
        found = plan(loaded, texts, options)
        named += bool(found.steps)
        kept += found.says == "keep"
        judged += bool(found.steps) and found.regained.low > 0
        if (draw + 1) % 20 == 0:
            print(
                f"{draw + 1} draws: {named} name an entry ({judged} of these give back on texts that judge), {kept} say keep",
                flush=True,
            )


def main() -> None:
    """Run what is given."""
    given = asked(
        __doc__, {"part": "greedy", "model": "mini-planted"}, data="reviews", limit=16, max_length=32,
        scheme="int8-tensor/int8-tensor", keep=0.04, grain="column", candidates=12, rows="", draws=200, tolerance=0.01,
    )  # fmt: skip
    {"greedy": greedy, "nulls": nulls, "columns": columns}[given.part](given)


if __name__ == "__main__":
    main()
