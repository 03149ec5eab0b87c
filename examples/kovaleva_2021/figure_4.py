"""Kovaleva et al. (2021), figure 4: do the outliers come from the embeddings, or from the norm after them?

    python examples/kovaleva_2021/figure_4.py --model distilbert-cased

How far the outliers lie from other dimensions in the token, position and segment embeddings and in the norm behind them. In the
paper's BERT-base the outlier is beyond 3 sigma in that norm alone. Read off the weights, without loading a model. Seconds.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/kovaleva_2021/figure_4"), help="folder")
    args = parser.parse_args(arguments)

    found = ol.origin(args.model)
    chart = found.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "figure-4.png").write_bytes(charts.picture(chart, "png"))
    found.to_pandas("entries").to_csv(args.output / "embeddings.csv", index=False)
    norms = [row for row in found.norms if row.role == "embedding norm"]
    for row in (*found.entries, *norms):
        where, z = (row.name, row.z) if row in norms else (f"{row.table} embeddings, mean", row.mean_z)
        print(f"{row.dim}: {where}: z {z:+.1f}" if z is not None else f"{row.dim}: {where}: one row")


if __name__ == "__main__":
    main()
