"""Luo et al. (2021), figures 1 and 2: the average vector of every layer, and which dimension is its smallest and largest entry.

    python examples/luo_2021/figures_1_and_2.py --model distilbert-cased --data sst2/train.parquet --limit 1000

The paper averages the token vectors of 20,000 sentences of SST-2 and QQP in BERT and RoBERTa (figures 7 to 10 and 16: in other
models). Beside the averages stands the share of tokens whose smallest or largest entry a dimension is. Seconds.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--dims", type=int, nargs="+", help="dimensions to colour; default: what Luo's rule finds")
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("--limit", type=int, default=1000, help="texts")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/luo_2021/figures_1_and_2"), help="folder")
    args = parser.parse_args(arguments)

    stack = ol.observe(ol.load_model(args.model), ol.read_texts(args.data, limit=args.limit)).stacks[0]
    named = args.dims or [found.dim for found in stack.outliers if found.rule == "luo"]
    drawn = [charts.average_vectors(stack, named), charts.vector_panels(stack, named)]
    drawn.append(charts.extreme_shares(stack, named))

    args.output.mkdir(parents=True, exist_ok=True)
    for chart in drawn:
        (args.output / f"{chart.name}.png").write_bytes(charts.picture(chart, "png"))
        print(f"{chart.title}: {chart.reading}")


if __name__ == "__main__":
    main()
