"""A trace of two blocks, by hand."""

from outlierlens.ablation.study import Measurement
from outlierlens.analyses.trace import BlockPart, BlockValue, SinkHead, SinkLoss, Trace, Weight, Writer
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate

DOWN = "layers.0.mlp.down_proj"


def block(layer: str, first: float, largest: float, others: float, share: float) -> BlockValue:
    return BlockValue(
        layer=layer, first=first, largest=largest, others=others, share_first=share, share_largest=share, share_others=0.02
    )  # fmt: skip


def part(layer: str, kind: str, name: str, index: int | None, largest: float) -> BlockPart:
    return BlockPart(layer=layer, kind=kind, name=name, index=index, first=largest - 1, largest=largest, others=0.1)


def trial(family: str, change: Estimate) -> Measurement:
    return Measurement(
        family=family, label=family, dims="", value=Estimate(3.0 + change.value), perplexity=None, change=change, n_set=1,
        plan={}, also={}, per_text=(3.0,) * 20,
    )  # fmt: skip


def found() -> Trace:
    """Dimension 3 of a model whose neuron 0.5 writes 95 of its 100, which block 1 takes away again."""
    return Trace(
        provenance=Provenance("mini", "0" * 64),
        about=About(
            data="made", data_digest="1" * 64, task="causal loss", unit="nats per token", stack="model", layers=(0, 1),
            dims=("3",), named_by="given", n_texts=20, n_tokens=320, max_length=64,
        ),
        blocks=(
            block("embeddings", 2.0, 2.5, 0.1, 0.02),
            block("0", 90.0, 100.0, 0.5, 0.95),
            block("1", 10.0, 12.0, 0.4, 0.35),
        ),
        parts=(
            part("embeddings", "embedding", "embed_tokens", None, 2.5),
            part("0", "carried", "", None, 2.5),
            part("0", "head", "layers.0.self_attn.o_proj", 0, 1.5),
            part("0", "neuron", DOWN, 5, 95.0),
            part("0", "other neurons", DOWN, None, 1.0),
            part("1", "carried", "", None, 100.0),
            part("1", "bias", "layers.1.mlp.down_proj", None, -88.0),
        ),
        writers=(Writer(layer="0", kind="neuron", name=DOWN, index=5, first=86.0, largest=95.0, others=0.2, share=0.95),),
        weights=(Weight(parameter=f"{DOWN}.weight", layer="0", place=(3, 5), value=-1.25, share=0.95),),
        trials=(
            trial("zeroed", Estimate(1.5, 1.0, 2.0)),
            trial("restored", Estimate(0.01, 0.0, 0.02)),
            trial("random", Estimate(0.0, 0.0, 0.0)),
        ),
        text=4, position=0, token="<s>", post_norm=False, error=2e-7, lifts="0", lift=100.0, peak="0", falls="1",
        threshold=0.3, n_heads=4, n_reading=1,
        readers=(
            SinkHead(layer=1, head=0, mass=0.8, in_keys=0.1, in_queries=0.75, lost=Estimate(0.875, 0.8, 0.9)),
            SinkHead(layer=1, head=1, mass=0.4, in_keys=0.38, in_queries=0.4, lost=Estimate(0.05, 0.0, 0.1)),
        ),
        sinks=(
            SinkLoss(name="dimension 3", lost=Estimate(0.6, 0.55, 0.65), read=Estimate(0.8, 0.7, 0.9)),
            SinkLoss(name="random dimension 7", lost=Estimate(0.001, -0.001, 0.003), read=Estimate(0.002, -0.002, 0.004)),
        ),
        notes=("a note",),
    )  # fmt: skip
