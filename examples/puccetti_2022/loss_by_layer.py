"""Puccetti et al. (2022), the loss with outliers off in one layer at a time, and whether that goes with frequency.

    python examples/puccetti_2022/loss_by_layer.py --model distilbert-cased --dims 557 143 --data wikitext/test.parquet

The paper reads WikiText-2 and sets damage and correlation with token frequency side by side; here a rank correlation over
layers says whether they go together (four layers can say little). Frequencies are counted in `--counts`, or in the texts
themselves, in which case they say little. A few seconds.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.analyses.frequency import FrequencyOptions, frequency
from outlierlens.analyses.frequency_counts import count_texts, counts_of
from outlierlens.options import SweepOptions
from outlierlens.replicate.puccetti import layer_story
from outlierlens.tasks.base import TaskOptions
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--dims", type=int, nargs="+", help="dimensions; default: what the weights name")
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("--limit", type=int, default=64, help="texts")
    parser.add_argument("--counts", help="token counts, or a corpus to count")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/puccetti_2022/loss_by_layer"), help="folder")
    args = parser.parse_args(arguments)

    loaded, texts = ol.load_model(args.model), ol.read_texts(args.data, limit=args.limit)
    dims = tuple(args.dims or ol.scan(args.model).stacks[0].dims)
    task = TaskOptions(max_length=128)
    sets = (dims,) if len(dims) > 1 else ()
    options = SweepOptions(dims=dims, sets=sets, with_found=False, windows="single", n_random=0, gradients=0, task=task)
    swept = ol.sweep(loaded, texts, options)
    tokenizer = loaded.tokenizer
    counts = counts_of(args.counts, tokenizer) if args.counts else count_texts(tokenizer, texts.texts)
    story = layer_story(swept, frequency=frequency(loaded, texts, counts, FrequencyOptions(dims=dims)))

    args.output.mkdir(parents=True, exist_ok=True)
    for chart in (swept.chart(), story.chart()):
        (args.output / f"{chart.name}.png").write_bytes(charts.picture(chart, "png"))
        print(f"{chart.title}: {chart.reading}")


if __name__ == "__main__":
    main()
