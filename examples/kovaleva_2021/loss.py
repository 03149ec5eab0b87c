"""Kovaleva et al. (2021), the loss without the outliers: beside random sets, and beside as large weights elsewhere.

    python examples/kovaleva_2021/loss.py --model smollm2-135m --data excerpt --random 199

The paper takes 1,000 random pairs; each costs a pass over the texts. The matched sets hold weights as large at other positions
in every layer: it is the same position throughout that hurts, not the size. Half a minute with 199 sets.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument(
        "--dims", type=int, nargs="+", help="dimensions to ablate; default: those that the weights name"
    )
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("--limit", type=int, default=64, help="texts")
    parser.add_argument("--random", type=int, default=199, help="random sets")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/kovaleva_2021/loss"), help="folder")
    args = parser.parse_args(arguments)

    texts = ol.read_texts(args.data, limit=args.limit)
    damage = ol.ablate(args.model, texts, args.dims or "find", n_random=args.random)
    chart = damage.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "loss.png").write_bytes(charts.picture(chart, "png"))
    damage.to_pandas().to_csv(args.output / "loss.csv", index=False)
    print(chart.reading)


if __name__ == "__main__":
    main()
