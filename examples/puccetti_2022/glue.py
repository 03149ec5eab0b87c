"""Puccetti et al. (2022), GLUE with the outliers off; and in each single layer.

    python examples/puccetti_2022/glue.py --data glue/ --tasks mnli,cola,rte --model distilbert-cased --full

The released rule at 2.5 sigma names the dimensions (the paper then fixes them by hand), each task is read with those of each
layer off alone, too, and random sets stand beside, which the released code lacks. The default is one task, trained for two
passes over 6,000 examples at a rate that suits a small model, and read on 200. `--data` is a folder with one folder a task;
without it the hub's copies are read. Half a minute; with `--full` minutes to hours a task.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from outlierlens.analyses.finetune import FinetuneSettings
from outlierlens.replicate.glue import PUCCETTI, replicate
from outlierlens.view import charts

DATA = os.environ.get("OUTLIERLENS_DATA")
QUICK = FinetuneSettings(epochs=2, learning_rate=3e-4, train_limit=6000, max_length=64)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-bert", help="sample, folder or hub id of a pre-trained model")
    parser.add_argument("--data", default=DATA and f"{DATA}/glue", help="folder with one folder a task")
    parser.add_argument("--tasks", default="sst2", help="tasks of GLUE, parted by commas")
    parser.add_argument("--dims", type=int, nargs="+", default=[], help="dimensions; default: what the rule names")
    parser.add_argument("--full", action="store_true", help="train and read as in the paper")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/puccetti_2022/glue"), help="run folder")
    args = parser.parse_args(arguments)

    quick = {} if args.full else {"settings": QUICK, "limit": 200, "n_random": 19, "n_matched": 0}
    dims = tuple(args.dims) or "find"
    options = replace(PUCCETTI, tasks=tuple(args.tasks.split(",")), data=args.data, dims=dims, layers=True, **quick)
    made = replicate(args.model, options, args.output)
    for name in ("losses", "by_layer"):
        table = made.to_pandas(name)
        table.to_csv(args.output / f"{name}.csv", index=False)
        print(table[["task", "off", "layer", "value", "lost"]].to_string(index=False))
    (args.output / "outliers-against-random.png").write_bytes(charts.picture(made.chart(), "png"))


if __name__ == "__main__":
    main()
