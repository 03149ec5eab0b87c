"""Luo et al. (2021), table 2: semantic textual similarity at the best layer, raw and with the outliers clipped.

    python examples/luo_2021/table_2.py --model distilbert-cased --clip 557 --data data/ --tasks stsb,sickr,sts12

Spearman's correlation of cosines with the annotators' scores. The paper takes the layer that is best on the evaluated pairs;
here it is chosen on the validation split where there is one, and the best one stands beside it. (Tables 6 and 7: other
models.) `--data` is a folder that holds sts/stsb/, …; without it the hub's copies are read. A few seconds a data set.
"""

import argparse
import os
from pathlib import Path

import outlierlens as ol
from outlierlens.analyses.embed import EmbedOptions
from outlierlens.analyses.embed_pairs import fit_text, has_split, read_sts, sts_tasks
from outlierlens.replicate.papers import PaperData
from outlierlens.vectors.fixes import parse_fixes
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--clip", default="auto", help="dimensions to clip (557,143), or auto: what Luo's rule finds")
    parser.add_argument("--data", default=os.environ.get("OUTLIERLENS_DATA"), help="folder that holds sts/")
    parser.add_argument("--tasks", default="stsb", help="data sets, parted by commas: stsb, sickr, sts12 … sts16")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/luo_2021/table_2"), help="folder")
    args = parser.parse_args(arguments)

    rows, root = sts_tasks(args.tasks), PaperData(args.data).folder("sts")
    pairs = [read_sts(task, root) for task in rows]
    dev = [read_sts(task, root, split="validation") for task in rows if has_split(task, root, "validation")]
    options = EmbedOptions(fixes=parse_fixes("raw,clip"), clip=args.clip)
    fit = fit_text(rows, root) or ol.read_texts("reviews")
    found = ol.embed(ol.load_model(args.model), pairs, options, fit=fit, dev=dev)
    chart = found.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "table-2.png").write_bytes(charts.picture(chart, "png"))
    table = found.to_pandas()
    table.to_csv(args.output / "table-2.csv", index=False)
    print(table.to_string(index=False))
    print(chart.reading)


if __name__ == "__main__":
    main()
