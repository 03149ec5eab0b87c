"""lm-evaluation-harness on a model intact, with outlier dimensions off, with random ones off, and repaired.

    pip install 'lm_eval[hf]'                            # beside '.[models]' of a clone
    python examples/harness/cloze.py --model smollm2-135m

The task is a file of sentences beside this script, so that nothing is downloaded; name the harness's own tasks with --tasks.
"""

import argparse
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
from lm_eval.models.huggingface import HFLM

import outlierlens as ol
from outlierlens.analyses.repair import RepairOptions, repair

MEAN = {"aggregation": "mean", "higher_is_better": True}
CLOZE = {
    "task": "cloze", "dataset_path": "json", "dataset_kwargs": {"data_files": str(Path(__file__).with_name("cloze.jsonl"))},
    "test_split": "train", "output_type": "multiple_choice", "doc_to_text": "{{text}}", "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{answer}}", "metric_list": [{"metric": "acc", **MEAN}, {"metric": "acc_norm", **MEAN}],
}  # fmt: skip


def scores(loaded: Any, tasks: list[Any], limit: int | None = None) -> dict[str, float]:
    """{"task metric": value} of the harness."""
    harness = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=8)
    found = lm_eval.simple_evaluate(harness, tasks=tasks, limit=limit, bootstrap_iters=0, log_samples=False)
    return {
        f"{task} {metric.removesuffix(',none')}": float(value)
        for task, values in found["results"].items()
        for metric, value in values.items()
        if metric.endswith(",none") and "stderr" not in metric
    }


def main(words: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Evaluate under each condition, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a decoder: sample, folder or hub id")
    parser.add_argument("--dims", type=int, nargs="+", help="default: what the weights name")
    parser.add_argument(
        "--tasks", nargs="+", default=[CLOZE], help="of the harness; default: the file beside this script"
    )
    parser.add_argument("--limit", type=int, help="examples per task")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/harness"), help="folder of two copies")
    how = parser.parse_args(words)
    loaded = ol.load_model(how.model)
    stack = ol.scan(loaded).stacks[0]
    dims = how.dims or stack.dims
    others = np.setdiff1d(np.arange(stack.hidden_size), dims)
    random = np.random.default_rng(0).choice(others, len(dims), replace=False)
    found = {"intact": scores(loaded, how.tasks, how.limit)}
    for name, chosen in (("outliers off", dims), ("random off", random)):
        with ol.zeroed_weights(loaded, chosen):
            found[name] = scores(loaded, how.tasks, how.limit)
    plain, repaired = how.output / "plain", how.output / "repaired"
    loaded.model.save_pretrained(plain)  # weights that are quantized take no repair
    loaded.tokenizer.save_pretrained(plain)
    repair(str(plain), repaired, RepairOptions(rotate=True), overwrite=True)
    found["repaired"] = scores(ol.load_model(str(repaired)), how.tasks, how.limit)
    for name, values in found.items():
        print(f"{name:<14}", *(f"{metric} {value:.3f}" for metric, value in values.items()), sep="  ")
    return found


if __name__ == "__main__":
    main()
