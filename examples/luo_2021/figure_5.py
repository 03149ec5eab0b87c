"""Luo et al. (2021), figure 5: can a linear probe read a token's position, and from which dimensions?

    python examples/luo_2021/figure_5.py --model distilbert-cased --data sst2/train.parquet --clip 557

The paper probes BERT and RoBERTa on SST-2 for 10 epochs (figures 11 to 15: other models); here it is one epoch, and the
probe is trained on four fifths of the texts and read on the rest. The packaged reviews are 64, so the default says little:
give thousands of sentences. Seconds; a minute with 10,000 sentences and a small model.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.analyses.probe import ProbeOptions, probe, split_texts
from outlierlens.vectors.clip import resolve_clipping
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--clip", default="auto", help="dimensions to clip (557,143), or auto: what Luo's rule finds")
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("--limit", type=int, default=10_000, help="texts")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the training texts; the paper: 10")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/luo_2021/figure_5"), help="folder")
    args = parser.parse_args(arguments)

    loaded = ol.load_model(args.model)
    split = split_texts(ol.read_texts(args.data, limit=args.limit), None, seed=0)
    clipping = resolve_clipping(args.clip, loaded, fit_texts=split.train.first(1000))
    found = probe(loaded, split, clipping, ProbeOptions(epochs=args.epochs))
    chart = found.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "figure-5.png").write_bytes(charts.picture(chart, "png"))
    found.to_pandas("contributions").to_csv(args.output / "probe.csv", index=False)
    print(chart.reading)


if __name__ == "__main__":
    main()
