"""A made-up finding of `definitions`: four dimensions, two blocks; 2 is found by most, and one super weight with its trials."""

from outlierlens.analyses.definitions import (
    DEFINITIONS,
    MODEL,
    DefinitionHits,
    Definitions,
    LayerNumbers,
    Overlap,
    Vote,
)
from outlierlens.analyses.super_weights import SuperWeight, WeightTrial
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate


def found(
    definition: str, condition: str, layers: dict[str, dict[int, float]] | None, why_not: str = ""
) -> DefinitionHits:
    """A row, of {layer: {dimension: strength}}."""
    names = sorted({dim for some in (layers or {}).values() for dim in some})
    return DefinitionHits(
        definition=definition, condition=condition, n=None if layers is None else len(names), names=tuple(map(str, names)),
        layers={layer: tuple(some) for layer, some in (layers or {}).items()},
        strength={layer: tuple(some.values()) for layer, some in (layers or {}).items()}, why_not=why_not,
    )  # fmt: skip


def trial(label: str, value: float, change: Estimate, n_restored: int | None = None) -> WeightTrial:
    """A condition of the trials."""
    return WeightTrial(
        family=label.partition(" ")[0], label=label, dims="", value=Estimate(value, value - 0.1, value + 0.1), change=change,
        perplexity=None, n_set=None, plan={}, also={}, per_text=(value,), n_restored=n_restored,
    )  # fmt: skip


def definitions() -> Definitions:
    """Three definitions, of which the one on weights has no rotated basis."""
    rows = (
        found("kovaleva", MODEL, {"0": {2: 4.0}, "1": {2: 5.0}}),
        found("kovaleva", "random", {}),
        found("kovaleva", "rotated", None, "rests on weights"),
        found("massive", MODEL, {"1": {2: 900.0, 3: 150.0}}),
        found("massive", "random", {}),
        found("massive", "rotated", {}),
        found("timkey", MODEL, {"0": {2: 0.4}, "1": {2: 0.5, 1: 0.1}}),
        found("timkey", "random", {"1": {0: 0.06}}),
        found("timkey", "rotated", {}),
    )
    mine = [one for one in rows if one.condition == MODEL]
    numbers = tuple(
        LayerNumbers(condition=condition, layer=layer, mean_cosine=0.1 + i, he_kurtosis=1 + size, bondarenko_out=3 + size,
                     inf_norm=2.0 + i, bondarenko_ffn=float("nan") if layer == "embeddings" else 3.0, gamma=size / 10 + i)
        for condition, size in ((MODEL, 10.0), ("random", 0.1)) for i, layer in enumerate(("embeddings", "0", "1"))
    )  # fmt: skip
    return Definitions(
        provenance=Provenance("m", "f", command="outlierlens observe m --rule all --data d.txt", seed=0),
        about=About(data="d.txt", data_digest="0", task="causal loss", unit="nats per token", stack="model", layers=(0, 1),
                    dims=("2",), n_texts=20, n_tokens=300, max_length=128),
        found=rows,
        overlaps=tuple(Overlap(one=a.definition, other=b.definition, jaccard=a.overlap(b)) for a in mine for b in mine),
        several=(Vote(name="2", n=3, by=("kovaleva", "massive", "timkey")),),
        definitions=tuple(one for one in DEFINITIONS if one.name in ("kovaleva", "massive", "timkey")), numbers=numbers,
        weights=(SuperWeight(layer=1, row=2, column=7, weight=9.5, rank=1, read=90.0, written=800.0, token="the", position=1,
                             share=0.98, remaining=4.0),),
        trials=(
            trial("intact", 3.0, Estimate(0.0, 0.0, 0.0)), trial("zeroed", 6.0, Estimate(3.0, 2.5, 3.4)),
            trial("restored", 4.5, Estimate(1.5, 1.2, 1.8), 16), trial("× 2", 3.2, Estimate(0.2, 0.1, 0.3)),
        ),
        stopped="no layer reads and writes above 50", notes=("a note",),
    )  # fmt: skip
