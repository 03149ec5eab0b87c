"""Puccetti et al. (2022), what a model predicts without its outliers: more frequent tokens, or rarer ones?

    python examples/puccetti_2022/predictions.py --model roberta-base --dims 77 588 --counts counts.parquet --data wiki.txt

The paper reads unmasked and masked text with the dimensions ablated in all layers; here also with the last hidden state and the
product with the vocabulary changed, as Macocco et al. (2025) do, and beside random sets. Without `--counts` the texts' own
tokens are counted, which says little. Half a minute.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.analyses.frequency_counts import count_texts, counts_of
from outlierlens.commands import predictions
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--dims", type=int, nargs="+", help="dimensions; default: what the weights name")
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("--limit", type=int, default=64, help="texts")
    parser.add_argument("--counts", help="token counts, or a corpus to count")
    parser.add_argument("--random", type=int, default=5, help="random sets")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/puccetti_2022/predictions"), help="folder")
    args = parser.parse_args(arguments)

    loaded, texts = ol.load_model(args.model), ol.read_texts(args.data, limit=args.limit)
    tokenizer = loaded.tokenizer
    counts = counts_of(args.counts, tokenizer) if args.counts else count_texts(tokenizer, texts.texts)
    found = predictions(loaded, texts, counts, args.dims or "find", n_random=args.random)
    chart = found.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "predictions.png").write_bytes(charts.picture(chart, "png"))
    found.to_pandas().to_csv(args.output / "predictions.csv", index=False)
    print(chart.reading)


if __name__ == "__main__":
    main()
