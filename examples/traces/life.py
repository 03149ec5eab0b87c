"""Who writes an outlier dimension? The account of one, and the same model with the weights of every tensor shuffled beside it.

    python examples/traces/life.py --model smollm2-135m --dim 507
    python examples/traces/life.py --model distilbert-cased --dim 557

Shuffled, a model keeps every weight and loses their order: if few parts still carried its largest dimension, "few parts carry
it" would say nothing.
"""

import argparse
from pathlib import Path

import torch

import outlierlens as ol
from outlierlens.view import charts


def shuffled_(model: torch.nn.Module, seed: int) -> None:
    """Put the values of every parameter in another order, for good."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            order = torch.randperm(parameter.numel(), generator=random)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--model", default="mini-planted")
    asked.add_argument("--dim", type=int, help="default: the most extreme one")
    asked.add_argument("--data", default="excerpt")
    asked.add_argument("--limit", type=int, default=20)
    asked.add_argument("-o", "--output", type=Path, default=Path("runs/life"))
    how = asked.parse_args()
    loaded = ol.load_model(how.model)
    texts = ol.read_texts(how.data, limit=how.limit)
    small = {"max_length": 32, "batch_size": 8}
    how.output.mkdir(parents=True, exist_ok=True)
    found = ol.trace(loaded, texts, dim=how.dim, **small)
    found.save(how.output / "trace.json")
    (how.output / "life.vl.json").write_bytes(charts.picture(found.chart(), "vl.json"))
    print(
        f"{how.model}, dimension {found.dim}: largest after block {found.peak}, the account exact to {found.error:.1g}"
    )
    for one in found.weights:
        print(f"  {one.parameter}{list(one.place)} = {one.value:.4g}: {one.share:.0%} of the lift")
    for trial in found.trials:
        print(f"  {trial.label:>16} {trial.change.value:+.3f} {found.about.unit}")
    shuffled_(loaded.model, seed=0)
    null = ol.trace(loaded, texts, **small)
    print(f"shuffled, dimension {null.dim}: {len(null.writers) or 'no'} single writer{'s' * (len(null.writers) > 1)}")


if __name__ == "__main__":
    main()
