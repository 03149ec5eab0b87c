"""Luo et al. (2021), figure 6: anisotropy and self-similarity of every layer, raw and with the outliers clipped.

    python examples/luo_2021/figure_6.py --model distilbert-cased --data sst2/train.parquet --clip 557

The paper takes 1,000 pairs of sentences and 1,000 words of SST-2; here as many as the texts give. A word needs two
sentences by default (the paper: ten), because the packaged reviews are 64. Clipped are dimensions of extracted vectors; half
of the texts are measured and the other half names what is clipped. Seconds.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.analyses.geometry import GeometryOptions, geometry
from outlierlens.vectors.fixes import parse_fixes
from outlierlens.vectors.spans import Drawing
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--clip", default="auto", help="dimensions to clip (557,143), or auto: what Luo's rule finds")
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("--limit", type=int, default=20_000, help="texts")
    parser.add_argument("--min-sentences", type=int, default=2, help="that a word must occur in; the paper: 10")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/luo_2021/figure_6"), help="folder")
    args = parser.parse_args(arguments)

    texts = ol.read_texts(args.data, limit=args.limit)
    half = len(texts) // 2
    drawing = Drawing(min_sentences=args.min_sentences)
    options = GeometryOptions(fixes=parse_fixes("raw,clip"), clip=args.clip, drawing=drawing)
    rest = texts.some(range(half, len(texts)))
    found = geometry(ol.load_model(args.model), texts.first(half), options, fit=rest)
    chart = found.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "figure-6.png").write_bytes(charts.picture(chart, "png"))
    found.to_pandas().to_csv(args.output / "geometry.csv", index=False)
    print(chart.reading)


if __name__ == "__main__":
    main()
