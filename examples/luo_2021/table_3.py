"""Luo et al. (2021), table 3: linear classifiers on frozen vectors, raw and with the outliers clipped.

    python examples/luo_2021/table_3.py --model distilbert-cased --clip 557 --data data/ --task sst5 --limit 100000

The model stays as it is, a text is the mean of its tokens' vectors, and a linear classifier is trained on them at every
layer. The paper takes SST-2, IMDB and SST-5 whole; the default is 2,000 sentences of SST-2. `--data` is a folder that holds
sst2/ (also below glue/); without it the hub's copy is read. Twenty seconds.
"""

import argparse
import os
from pathlib import Path

import outlierlens as ol
from outlierlens.analyses.probe_classifiers import read_frozen
from outlierlens.analyses.probe_frozen import FrozenOptions, frozen
from outlierlens.data.labelled import find_task
from outlierlens.replicate.papers import PaperData
from outlierlens.vectors.clip import resolve_clipping
from outlierlens.vectors.fixes import parse_fixes
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--clip", default="auto", help="dimensions to clip (557,143), or auto: what Luo's rule finds")
    parser.add_argument("--data", default=os.environ.get("OUTLIERLENS_DATA"), help="folder that holds sst2/")
    parser.add_argument("--task", default="sst2", help="sst2, sst5 or imdb")
    parser.add_argument("--limit", type=int, default=2000, help="examples to train on, and of the test split")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/luo_2021/table_3"), help="folder")
    args = parser.parse_args(arguments)

    folder = PaperData(args.data).folder(args.task)
    splits = read_frozen(find_task(args.task), folder, limit=args.limit, test_limit=args.limit)
    loaded = ol.load_model(args.model)
    options = FrozenOptions(fixes=parse_fixes("raw,clip"))
    found = frozen(loaded, splits, options, clip=lambda texts: resolve_clipping(args.clip, loaded, fit_texts=texts))
    chart = found.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "table-3.png").write_bytes(charts.picture(chart, "png"))
    table = found.to_pandas()
    table.to_csv(args.output / "table-3.csv", index=False)
    print(table.to_string(index=False))
    print(chart.reading)


if __name__ == "__main__":
    main()
