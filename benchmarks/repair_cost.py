"""What rounding costs before and after a repair: as it is, `--fit int8`, the same factors on other neurons, `--rotate`.

    OMP_NUM_THREADS=1 python benchmarks/repair_cost.py ./model --limit 32 --max-length 64 -o cost.jsonl

Factors that are shuffled among the neurons of each linear have the same sizes and hit others: they must not help. All copies
give the outputs of the model in float32, so that their cost is held against one intact loss. A line is appended for
each copy and scheme, and a rerun goes on.
"""

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import outlierlens as ol
from outlierlens.errors import BadInput
from outlierlens.experiments.quantization.schemes import parse_all
from outlierlens.experiments.repair.extent import add_neurons, check_inputs, extent, outputs
from outlierlens.experiments.repair.measure import plan_for
from outlierlens.experiments.repair.options import RepairOptions
from outlierlens.experiments.repair.plan import Plan
from outlierlens.experiments.repair.rewriting import repaired
from outlierlens.experiments.repair.rotation import rotated
from outlierlens.tasks.base import TaskOptions

SCHEMES = "int8-tensor/int8-tensor,int8-channel/int8-token,none/int4-token,int4-channel/int4-token"


def copies(loaded: Any, texts: Any, how: argparse.Namespace) -> Any:
    """(name, a context in which the model is that copy)."""
    inputs = check_inputs(loaded, texts.texts[: how.checked], max_length=how.max_length, seed=0)
    _, _, exponents = plan_for(loaded, extent(loaded, inputs), RepairOptions(fit="int8"), inputs)

    def planned(factors: dict[str, torch.Tensor]) -> Any:
        plan = Plan()
        add_neurons(plan, loaded, factors)
        return repaired(loaded, plan)

    yield "as it is", ExitStack()
    yield "--fit int8", planned(exponents)
    for seed in range(how.shuffled):
        random = torch.Generator().manual_seed(seed)
        yield (
            f"shuffled factors {seed}",
            planned({path: one[torch.randperm(len(one), generator=random)] for path, one in exponents.items()}),
        )
    try:
        with rotated(loaded, lambda: outputs(loaded.model, inputs), seed=0):
            pass
    except BadInput as error:
        print(error)
    else:
        yield "--rotate", rotated(loaded, lambda: outputs(loaded.model, inputs), seed=0)


def main() -> None:
    """Measure every copy that is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", default="excerpt")
    parser.add_argument("--limit", type=int, default=32, help="texts")
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--checked", type=int, default=16, help="texts that factors rest on, after the measured ones")
    parser.add_argument("--shuffled", type=int, default=3)
    parser.add_argument("--schemes", default=SCHEMES)
    parser.add_argument("-o", "--output", type=Path, default=Path("repair-cost.jsonl"))
    how = parser.parse_args()
    before = how.output.read_text().splitlines() if how.output.exists() else []
    done = {(row["copy"], row["scheme"]) for row in map(json.loads, before)}
    loaded = ol.load_model(how.model)
    read = ol.read_texts(how.data, limit=how.limit + how.checked)
    texts, others = read.first(how.limit), read.some(range(how.limit, len(read)))
    for name, copy in copies(loaded, others, how):
        recipes = tuple(one for one in parse_all(how.schemes) if (name, str(one)) not in done)
        if not recipes:
            continue
        with copy:
            options = ol.QuantizeOptions(
                recipes=recipes, dims=(0,), n_random=0, threshold=None, alpha=None, n_error_texts=1, noise_draws=0,
                task=TaskOptions(max_length=how.max_length),
            )  # fmt: skip
            found = ol.quantize(loaded, texts, options)
        for one in found.roundings:
            cost = one.rounded
            row = {"copy": name, "scheme": one.scheme, "intact": found.intact.value, "change": cost.change}
            row |= {"low": cost.change_low, "high": cost.change_high, "texts": found.n_texts, "tokens": found.n_tokens}
            with how.output.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
