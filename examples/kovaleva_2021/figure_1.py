"""Kovaleva et al. (2021), figure 1: scale and bias of every block's last norm, and one text's token vectors.

    python examples/kovaleva_2021/figure_1.py --model distilbert-cased

A few dimensions stand out in the same place of every layer. The paper draws BERT-base; here the outliers are those that the
rule names (3 sigma in half of the layers, scale and bias both), and the token vectors are of the first of the given texts.
Seconds.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/kovaleva_2021/figure_1"), help="folder")
    args = parser.parse_args(arguments)

    scanned = ol.scan(args.model).stacks[0]
    seen = ol.observe(ol.load_model(args.model), ol.read_texts(args.data, limit=16))
    drawn = [*charts.weight_maps(scanned), charts.token_vectors(seen.passages[0], scanned.dims)]

    args.output.mkdir(parents=True, exist_ok=True)
    for chart in drawn:
        (args.output / f"{chart.name}.png").write_bytes(charts.picture(chart, "png"))
        print(f"{chart.title}: {chart.reading}")


if __name__ == "__main__":
    main()
