"""Made-up results of `range`: a decoder whose last MLP overflows fp16."""

from typing import Any

from outlierlens.analyses.range import NARROW, Ranges, TensorRange, headroom
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About


def row(kind: str, layer: str, largest: float, **more: Any) -> TensorRange:
    """The values of a tensor, the largest of them this one."""
    room: Any = {form: headroom(largest, form) for form in NARROW} | more
    return TensorRange(
        kind=kind, stack="model", layer=layer, module="", largest=largest, text=3, token=0, word="the", dim=7, **room
    )


def found(*rows: TensorRange, n_texts: int = 9) -> Ranges:
    """Of these tensors; without any, a stream, and an MLP that overflows."""
    made = (
        row("stream", "embeddings", 2.0),
        row("stream", "0", 900.0),
        row("MLP inner", "0", 80000.0, coarseness=395.0),
    )
    about = About(data="d.txt", data_digest="0", n_texts=n_texts, n_tokens=800, max_length=128)
    origin = Provenance("m", "f", command="outlierlens range m --data d.txt", dtype="float32")
    return Ranges(provenance=origin, about=about, tensors=rows or made, every=16, notes=("a note",))
