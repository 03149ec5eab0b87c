"""Luo et al. (2021), table 1: words in context (WiC), raw and with the outliers clipped.

    python examples/luo_2021/table_1.py --model distilbert-cased --clip 557 --data data/

Is the cosine of a word's two vectors a sign that it means the same? Nothing is trained: every layer and threshold is tried.
The paper reports the best pair on the split that it was chosen on; the table also has words held out, and the validation
split. (Table 5: other models.) `--data` is a folder that holds wic/; without it the hub's copy is read. Half a minute with
the default model, two minutes with minilm-l6.
"""

import argparse
import os
from pathlib import Path

import outlierlens as ol
from outlierlens.analyses.embed import EmbedOptions
from outlierlens.analyses.embed_pairs import read_wic
from outlierlens.replicate.papers import PaperData
from outlierlens.vectors.fixes import parse_fixes
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--clip", default="auto", help="dimensions to clip (557,143), or auto: what Luo's rule finds")
    parser.add_argument("--data", default=os.environ.get("OUTLIERLENS_DATA"), help="folder that holds wic/")
    parser.add_argument("--limit", type=int, help="pairs of each split; default all")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/luo_2021/table_1"), help="folder")
    args = parser.parse_args(arguments)

    folder = PaperData(args.data).folder("wic")
    splits = [read_wic(folder, split, limit=args.limit) for split in ("train", "validation")]
    options = EmbedOptions(fixes=parse_fixes("raw,clip"), clip=args.clip)
    found = ol.embed(ol.load_model(args.model), splits, options, fit=ol.read_texts("reviews"))
    chart = found.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "table-1.png").write_bytes(charts.picture(chart, "png"))
    table = found.to_pandas()
    table.to_csv(args.output / "table-1.csv", index=False)
    print(table.to_string(index=False))
    print(chart.reading)


if __name__ == "__main__":
    main()
