"""Puccetti et al. (2022), correlation of the hidden state at an outlier with the frequency of the encoded token, by layer.

    python examples/puccetti_2022/frequency.py --model distilbert-cased --counts wiki.jsonl --data wikitext/test.parquet

The paper correlates |h| with raw counts of Wikipedia and BookCorpus and takes the mean of 10 random dimensions as control;
here log counts too, with intervals over texts, and the outliers are held against all other dimensions. Without `--counts`
the texts' own tokens are counted, which says little. Seconds.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.analyses.frequency_counts import count_texts, counts_of
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--dims", type=int, nargs="+", help="dimensions; default: what the weights name")
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("--limit", type=int, default=1000, help="texts")
    parser.add_argument("--counts", help="token counts, or a corpus to count")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/puccetti_2022/frequency"), help="folder")
    args = parser.parse_args(arguments)

    loaded, texts = ol.load_model(args.model), ol.read_texts(args.data, limit=args.limit)
    tokenizer = loaded.tokenizer
    counts = counts_of(args.counts, tokenizer) if args.counts else count_texts(tokenizer, texts.texts)
    found = ol.frequency(loaded, texts, counts, dims=args.dims or "find")
    chart = found.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "frequency.png").write_bytes(charts.picture(chart, "png"))
    found.to_pandas().to_csv(args.output / "frequency.csv", index=False)
    print(chart.reading)


if __name__ == "__main__":
    main()
