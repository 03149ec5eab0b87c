"""What must stay in high precision, twice: with single columns, and in whole linears as torchao is told.

    python examples/plans/keep.py --model smollm2-135m --data texts.txt --limit 96

On the packaged `mini-planted` with weights in INT4: both plans, their curves, and the file for torchao.
"""

import argparse
from pathlib import Path

import outlierlens as ol
from outlierlens.analyses.plan_exports import export, target_of
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.view import charts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("--limit", type=int, default=64, help="texts")
    parser.add_argument("--scheme", default="int4-group32/none", help="WEIGHTS/INPUTS")
    parser.add_argument("--keep", type=float, default=0.1, help="share of the linears' weights")
    parser.add_argument("--candidates", type=int, default=12, help="entries measured at a step")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/plans/keep"), help="folder")
    args = parser.parse_args(arguments)

    loaded, texts = ol.load_model(args.model), ol.read_texts(args.data, limit=args.limit)
    how = {"scheme": args.scheme, "keep": args.keep, "n_candidates": args.candidates, "max_length": 32}
    args.output.mkdir(parents=True, exist_ok=True)
    for grain in ("column", "linear"):
        found = ol.plan(loaded, texts, grain=grain, **how)
        print(f"{grain}: {' '.join(found.sentences())}")
        (args.output / f"{grain}.png").write_bytes(charts.picture(found.chart(), "png"))
    if found.kept:  # of the plan in whole linears
        text, _ = export("torchao", found.kept, scheme=parse(args.scheme), target=target_of(loaded))
        (args.output / "torchao.py").write_text(text)


if __name__ == "__main__":
    main()
