"""Kovaleva et al. (2021), the table of filled blanks: a text filled in intact, with random dimensions off, with outliers off.

    python examples/kovaleva_2021/filled_text.py --model roberta-base --dims 77 588 --data wikipedia.txt

The paper has RoBERTa fill masks of a paragraph of Wikipedia; here the text is the first long enough one of the data, the random
set is the one of median damage of 24, and every filled word is judged: the same, another word, or no word. Models that
continue texts continue one. A few seconds.
"""

import argparse
from pathlib import Path

import outlierlens as ol


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-planted", help="sample, folder or hub id")
    parser.add_argument(
        "--dims", type=int, nargs="+", help="dimensions to ablate; default: those that the weights name"
    )
    parser.add_argument("--data", default="reviews", help="texts: a file, a hub id, or reviews / excerpt (packaged)")
    parser.add_argument("--limit", type=int, default=64, help="texts")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/kovaleva_2021/filled_text"), help="folder")
    args = parser.parse_args(arguments)

    texts = ol.read_texts(args.data, limit=args.limit)
    damage = ol.ablate(args.model, texts, args.dims or "find", n_random=24, n_matched=0)
    lines = ["| model | text |", "|---|---|"]
    for fill in (one.fill for one in damage.replies if one.fill):
        pieces = [f"{before}**{blank.filled}**" for before, blank in zip(fill.pieces, fill.blanks, strict=False)]
        lines.append(f"| {fill.label} | {''.join(pieces)}{fill.pieces[-1]} |")
    lines += [f"| {one.off} | {one.begins} **{one.continued}** |" for one in damage.replies if one.begins]

    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "filled-text.md").write_text("\n".join(lines) + "\n", "utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
