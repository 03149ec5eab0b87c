"""Kovaleva et al. (2021), pruning and position: as many weights, at one position of all layers or wherever they are smallest.

    python examples/kovaleva_2021/same_position.py --model smollm2-135m --data excerpt

The paper asks why a handful of weights matters to models that bear heavy pruning: pruning by magnitude never takes the same
position in every layer. Every condition here prunes exactly as many weights of the blocks' last operations. Seconds.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.commands import prune_test
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--dims", type=int, nargs="+", default=[], help="outliers; default: what the weights name")
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("--limit", type=int, default=64, help="texts")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/kovaleva_2021/same_position"), help="folder")
    args = parser.parse_args(arguments)

    texts = ol.read_texts(args.data, limit=args.limit)
    found = prune_test(args.model, texts, dims=args.dims or "find")
    chart = found.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "same-position.png").write_bytes(charts.picture(chart, "png"))
    found.to_pandas().to_csv(args.output / "same-position.csv", index=False)
    print(chart.reading)
    print(found.verdict)


if __name__ == "__main__":
    main()
