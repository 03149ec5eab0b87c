"""Kovaleva et al. (2021), table 3: GLUE with the outliers ablated, against random sets of the same size.

    python examples/kovaleva_2021/table_3.py --data glue/ --tasks rte,cola,stsb,sst2,mnli --model distilbert-cased --full

The paper ablates two dimensions of BERT-base and compares with random ones; here they are what the rule names in the
fine-tuned model, with intervals and 1,000 random sets (19 without `--full`). The default is one task, trained for two passes
over 2,000 examples at a rate that suits a small model, and read on 200. `--data` is a folder with one folder a task; without
it the hub's copies are read. Twenty seconds; with `--full` minutes to hours a task.
"""

import argparse
import os
from pathlib import Path

from outlierlens.analyses.finetune import FinetuneSettings
from outlierlens.replicate.glue import GlueOptions, replicate
from outlierlens.view import charts

DATA = os.environ.get("OUTLIERLENS_DATA")
QUICK = FinetuneSettings(epochs=2, learning_rate=3e-4, train_limit=6000, max_length=64)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id of a pre-trained model")
    parser.add_argument("--data", default=DATA and f"{DATA}/glue", help="folder with one folder a task")
    parser.add_argument("--tasks", default="sst2", help="tasks of GLUE, parted by commas")
    parser.add_argument("--full", action="store_true", help="train, read and compare as in the paper")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/kovaleva_2021/table_3"), help="run folder")
    args = parser.parse_args(arguments)

    quick = {} if args.full else {"settings": QUICK, "limit": 200, "n_random": 19, "n_matched": 5}
    options = GlueOptions(tasks=tuple(args.tasks.split(",")), data=args.data, **quick)
    made = replicate(args.model, options, args.output)
    table = made.to_pandas()
    table.to_csv(args.output / "table-3.csv", index=False)
    print(table[["task", "off", "metric", "value", "lost", "lost_low", "lost_high"]].to_string(index=False))
    (args.output / "outliers-against-random.png").write_bytes(charts.picture(made.chart(), "png"))


if __name__ == "__main__":
    main()
