"""Kovaleva et al. (2021), figure 2: a fine-tuned model with one dimension ablated at a time, one panel per task.

    python examples/kovaleva_2021/figure_2.py --data glue/ --tasks rte,cola,stsb,sst2 --model distilbert-cased --full

The model is fine-tuned on each task and every dimension is ablated in turn, without training again. The paper does so to
BERT-base on nine tasks of GLUE; the default here is one task, trained for two passes over 6,000 examples at a rate that suits a
small model, and read on 200. `--full` trains as Puccetti et al. did and reads the whole dev split: minutes to hours a task.
`--data` is a folder with one folder a task (glue/sst2/train.parquet, …); without it the hub's copies are read. Half a minute.
"""

import argparse
import os
from pathlib import Path

from outlierlens.analyses.finetune import FinetuneSettings
from outlierlens.replicate.glue import GlueOptions, replicate, sweeps_of
from outlierlens.view import charts

DATA = os.environ.get("OUTLIERLENS_DATA")
QUICK = FinetuneSettings(epochs=2, learning_rate=3e-4, train_limit=6000, max_length=64)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id of a pre-trained model")
    parser.add_argument("--data", default=DATA and f"{DATA}/glue", help="folder with one folder a task")
    parser.add_argument("--tasks", default="sst2", help="tasks of GLUE, parted by commas")
    parser.add_argument("--full", action="store_true", help="train and read as in the papers")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/kovaleva_2021/figure_2"), help="run folder")
    args = parser.parse_args(arguments)

    options = GlueOptions(
        tasks=tuple(args.tasks.split(",")), data=args.data, settings=FinetuneSettings() if args.full else QUICK,
        limit=None if args.full else 200, every=True, n_random=19, n_matched=0,
    )  # fmt: skip
    made = replicate(args.model, options, args.output)
    chart = charts.figure2(sweeps_of(args.output, made), made.dims, model=args.model)

    (args.output / "figure-2.png").write_bytes(charts.picture(chart, "png"))
    print(f"{chart.title}: {chart.reading}")


if __name__ == "__main__":
    main()
