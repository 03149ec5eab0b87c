"""Puccetti et al. (2022), pre-training on other rows (SPLIT, ONE_SEP) and flattened frequencies: do outliers still come?

    python examples/puccetti_2022/training_text.py --data imdb/train.parquet --limit 25000 --steps 1500   # ten minutes a recipe
    outlierlens lab pretrain bert-medium-one-sep  # theirs: days of GPUs

The paper trains BERT-medium on Wikipedia and BookCorpus with fewer [CLS] and [SEP], and with half of the frequent tokens
replaced by rare ones. Here small BERTs differ in nothing else. The default is 50 steps on the packaged reviews, which shows how
it is done and nothing more; what 1,500 steps show stands in docs/results.md. A minute.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.training.pretrain.loop import pretrain
from outlierlens.training.pretrain.recipe import read_recipe

RECIPES = ["mini-short", "mini-split", "mini-one-sep", "mini-frequency-flattened"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=RECIPES, help="names or files")
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("--limit", type=int, default=2000, help="texts")
    parser.add_argument("--steps", type=int, default=50, help="of training")
    parser.add_argument("--set", nargs="*", default=[], help="further settings: model.layers=2")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/puccetti_2022/training_text"), help="folder")
    args = parser.parse_args(arguments)

    args.output.mkdir(parents=True, exist_ok=True)
    text = args.output / "texts.txt"
    text.write_text(
        "\n".join(" ".join(one.split()) for one in ol.read_texts(args.data, limit=args.limit).texts), "utf-8"
    )
    lines = ["| recipe | held-out loss | outliers in scale and bias | largest z of a scale |", "|---|---|---|---|"]
    for name in args.recipes:
        changes = [f'data.source=["{text}"]', "data.validation=0.1", "tokenizer.source=mini-bert"]
        changes += [f"training.steps={args.steps}", f"training.warmup={max(1, args.steps // 10)}", *args.set]
        run = pretrain(read_recipe(name).changed(changes), args.output / Path(name).stem)
        found = ol.scan(str(run.model_folder)).stacks[0]
        loss = [row["eval_loss"] for row in run.log if "eval_loss" in row][-1]
        dims = ", ".join(map(str, found.dims)) or "none"
        lines.append(f"| {name} | {loss:.2f} | {dims} | {abs(found.z_scale).max():.1f} |")

    (args.output / "training-text.md").write_text("\n".join(lines) + "\n", "utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
