"""Kovaleva et al. (2021), figure 3: outlier dimensions emerge while a model is pre-trained.

    python examples/kovaleva_2021/figure_3.py --checkpoints runs/bert                 # checkpoint-500/, checkpoint-1000/, …
    python examples/kovaleva_2021/figure_3.py --checkpoints runs/bert/watch.jsonl     # rows of OutlierCallback or watch

Loss, scale and bias of the middle layer, and the distance of the dimensions that left the others, over training. The paper
pre-trains BERT-medium on BookCorpus and keeps a checkpoint every 2,000 steps; the default is the recorded training of the
packaged sample `mini-bert`, 4 layers x 128, in which 109 emerges in scale alone and carries nothing. Seconds.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", nargs="+", default=["mini-bert"], help="run folder, checkpoints or watch rows")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/kovaleva_2021/figure_3"), help="folder")
    args = parser.parse_args(arguments)

    tracked = ol.track(args.checkpoints)
    chart = tracked.chart()

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "figure-3.png").write_bytes(charts.picture(chart, "png"))
    tracked.to_pandas().to_csv(args.output / "emergence.csv", index=False)
    print(f"{chart.title}: {chart.reading}")


if __name__ == "__main__":
    main()
