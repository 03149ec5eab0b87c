"""Made-up results of `embed`, one of each kind."""

from dataclasses import replace
from typing import Any

from outlierlens.analyses.embed import FixScore, LayerScore, PairSet, Similarity
from outlierlens.analyses.embed_export import EmbedderExport, FolderCheck, FolderScore
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate
from outlierlens.statistics.means import verdict

LAYERS = {("embeddings", "raw"): 0.5, ("embeddings", "clip"): 0.6, ("0", "raw"): 0.7, ("0", "clip"): 0.65}


def choices(data: str, ways: dict[str, Estimate], **more: Any) -> tuple[FixScore, ...]:
    """Raw vectors, 0.7 at layer 0, and clipped ones with a change for each way to choose the layer."""
    raw = FixScore(data=data, fix="raw", chosen="", layer="0", score=0.7, raw_layer="0", raw=0.7, **more)
    return tuple(
        made
        for way, change in ways.items()
        for made in (
            replace(raw, chosen=way),
            replace(
                raw, fix="clip", chosen=way, score=0.7 + change.value, change=change, says=verdict(change.low, change.high)
            ),
        )
    )  # fmt: skip


def similarity() -> Similarity:
    """One set of two parts, two layers, raw and clip."""
    rows = tuple(
        LayerScore(
            data="sts13", layer=layer, fix=fix, score=rho, mean=rho - 0.1, weighted=rho - 0.05,
            subsets={"FNWN": rho - 0.2, "OnWN": rho},
        )
        for (layer, fix), rho in LAYERS.items()
    )  # fmt: skip
    data = PairSet(
        data="sts13", source="t", n_pairs=30, n_families=28, subsets={"FNWN": 10, "OnWN": 20}, missing=("headlines",)
    )
    return Similarity(
        provenance=Provenance("m", "f", command="outlierlens embed m"),
        about=About(data="t", inputs="sentences", task="Spearman's ρ", stack="model", layers=(0,), n_texts=55, max_length=128),
        choices=choices("sts13", {"best": Estimate(-0.05, -0.08, -0.02), "last": Estimate(-0.05, -0.08, 0.01)}),
        data=(data,), by_layer=rows, pooling="mean of all tokens, special ones left out", final_norm=False, fit_data="train",
        n_fitted=500, n_dropped=3, shrinkage=(0.1, 0.2), clipped={"0": (557,)}, clipping="auto: the rule", notes=("a note",),
    )  # fmt: skip


def words() -> Similarity:
    """A train split, two layers, raw and clip."""
    rows = tuple(
        LayerScore(data="wic train", layer=layer, fix=fix, score=rho, threshold=0.1, accuracies=(rho, 0.5))
        for (layer, fix), rho in LAYERS.items()
    )
    ways = {"best": Estimate(0.05, 0.01, 0.09), "held out": Estimate(0.03, -0.01, 0.07)}
    made = choices("wic train", ways, thresholds="grid", threshold=0.1)
    data = PairSet(data="wic train", source="t", n_pairs=40, n_families=30, left_out=1, all_true=0.5)
    found = similarity()
    about = replace(found.about, task="accuracy")
    return replace(found, about=about, choices=made, data=(data,), by_layer=rows, pooling="mean of a word's sub-words")


def exported() -> EmbedderExport:
    """Layer 2 of a model, whitened and scored."""
    return EmbedderExport(
        provenance=Provenance("mini", "0" * 64), about=About(stack="model", layers=(2,), max_length=256),
        scores=(FolderScore(data="test.parquet", n_pairs=1379, raw=0.6, fixed=0.7, exported=0.7),),
        read_back=(FolderCheck(reader="sentence-transformers 6.2.0", n_texts=36, difference=2e-6, relative=1e-6),),
        folder="better", layer="2", n_blocks=3, of_blocks=6, final_norm=False, fix="whiten:8", fit="train.txt",
        fit_digest="1" * 64, n_fitted=4000, n_dropped=3, width=(16, 8), normalized=True, notes=("a note",),
    )  # fmt: skip


def made() -> dict[str, Any]:
    """{kind: result}"""
    return {"Similarity": similarity(), "EmbedderExport": exported()}
