"""Puccetti et al. (2022), vertical attention: does a token that outliers mark receive it, and is it gone without them?

    python examples/puccetti_2022/attention.py --model minilm-l6 --dims 223 127 --data wikitext/test.parquet

Correlation, by layer, of |h| with the attention that a token receives, over all dimensions; the share that special tokens
receive intact, with the outliers ablated and with random ones ablated. Ten seconds.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--dims", type=int, nargs="+", default=[], help="dimensions; default: what the weights name")
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("--limit", type=int, default=200, help="texts")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/puccetti_2022/attention"), help="folder")
    args = parser.parse_args(arguments)

    texts = ol.read_texts(args.data, limit=args.limit)
    found = ol.attention(args.model, texts, dims=args.dims or "find")
    chart = found.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "attention.png").write_bytes(charts.picture(chart, "png"))
    found.to_pandas("correlations").to_csv(args.output / "attention.csv", index=False)
    print(chart.reading)


if __name__ == "__main__":
    main()
