"""Made-up results of `range`: a decoder of two layers whose last MLP overflows fp16, and weights of which one does."""

from outlierlens.experiments.range.result import FORMATS, INSIDE, Ranges, TensorRange, WeightRange
from outlierlens.results.document import Provenance

# Largest |x| of each kind in layers 0 and 1.
SIZES = {
    "stream": (40.0, 900.0), "stream after attention": (35.0, 60.0), "attention input": (12.0, 15.0),
    "q": (8.0, 9.0), "k": (20.0, 14.0), "v": (2.0, 3.0), "q·k": (640.0, 480.0), "attention logits": (80.0, 60.0),
    "attention output": (3.0, 4.0), "MLP input": (10.0, 11.0), "gate/up": (30.0, 300.0), "MLP inner": (90.0, 80000.0),
    "MLP output": (6.0, 850.0), "norm output": (12.0, 15.0), "norm sum of squares": (2000.0, 810000.0),
}  # fmt: skip


def row(kind: str, layer: str, largest: float) -> TensorRange:
    """Its median is a hundredth of the largest value of layer 0."""
    sums = kind in INSIDE or kind == "attention logits"
    below = {} if sums else {form.name: 0.25 * form.smallest_normal for form in FORMATS}
    counted = {} if sums else {"n_values": 800, "median": 0.01 * SIZES.get(kind, (1.0,))[0], "below": below}
    return TensorRange("model", kind, layer, "", largest, 3, 0, "the", -1 if sums else 7, **counted)


def rows(times: float = 1.0) -> tuple[TensorRange, ...]:
    """Every kind, all values `times` as large."""
    return (
        row("stream", "embeddings", 2.0 * times),
        *(row(kind, str(layer), times * size) for kind, sizes in SIZES.items() for layer, size in enumerate(sizes)),
        row("norm output", "final", 25.0 * times),
        row("logits", "head", 30.0 * times),
    )


def found() -> Ranges:
    """Plain texts, and templated ones with values half as large."""
    return Ranges(
        provenance=Provenance("m", "f", command="outlierlens range m --data d.txt --chat-template", dtype="float32"),
        data="d.txt", data_digest="0", inputs="texts", n_texts=9, n_tokens=800, max_length=128, every=16, rows=rows(),
        templated=rows(0.5), notes=("a note",),
    )  # fmt: skip


def of_weights() -> Ranges:
    """Two tensors, one value of the second beyond fp16."""
    none = {form.name: 0 for form in FORMATS}
    weights = (
        WeightRange("layers.0.mlp.up.weight", "BF16", 0.5, 64, none, none | {"e4m3": 12}),
        WeightRange("layers.1.mlp.down.weight", "BF16", 100000.0, 64, none | {"fp16": 1, "e4m3": 2, "e5m2": 1}, none),
    )
    origin = Provenance("m", "f", command="outlierlens range m --weights")
    return Ranges(origin, "", "", "weights", 0, 0, 0, 1, (), weights=weights)
