"""Luo et al. (2021), figures 3 and 4 and section 3: outliers in the rows of the position table, and in every norm.

    python examples/luo_2021/figures_3_and_4.py --model distilbert-cased --dims 557

In BERT the outlier is the smallest entry of position row 0 alone, the slot of [CLS]; in RoBERTa of nearly every row. From the
weights, which are not loaded into a model. Seconds.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--dims", type=int, nargs="+", help="dimensions to mark; default: what the weights name")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/luo_2021/figures_3_and_4"), help="folder")
    args = parser.parse_args(arguments)

    found = ol.origin(args.model, dims=args.dims or "find")
    chart = found.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "figures-3-and-4.png").write_bytes(charts.picture(chart, "png"))
    found.to_pandas("norms").to_csv(args.output / "norms.csv", index=False)
    print(f"{chart.title}: {chart.reading}")


if __name__ == "__main__":
    main()
