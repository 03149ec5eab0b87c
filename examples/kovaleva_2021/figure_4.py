"""Kovaleva et al. (2021), figure 4: do the outliers come from the embeddings, or from the norm after them?

    python examples/kovaleva_2021/figure_4.py --model distilbert-cased

Histograms of the token, position and segment embeddings and of the norm behind them, the outliers marked. In the paper's
BERT-base the outlier is beyond 3 sigma in that norm alone. It is read off the weights, without loading a model. Seconds.
"""

import argparse
from pathlib import Path

from outlierlens import charts
from outlierlens.experiments.origin.measure import origin


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/kovaleva_2021/figure_4"), help="folder")
    args = parser.parse_args(arguments)

    found = origin(args.model)
    chart = charts.origin_histograms(found.stacks[0])

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "figure-4.png").write_bytes(charts.picture(chart, "png"))
    found.to_pandas().to_csv(args.output / "origin.csv", index=False)
    print(f"{chart.title}: {chart.reading}")


if __name__ == "__main__":
    main()
