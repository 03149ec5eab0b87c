"""A trace of two blocks, by hand."""

from outlierlens.experiments.trace.result import (
    BlockValue,
    Part,
    Reader,
    SinkLoss,
    Trace,
    Trial,
    Weight,
    Writer,
)
from outlierlens.results.document import Provenance

DOWN = "layers.0.mlp.down_proj"


def found() -> Trace:
    """Dimension 3 of a model whose neuron 0.5 writes 90 of its 100, which block 1 takes away again."""
    return Trace(
        provenance=Provenance("mini", "0" * 64),
        data="made",
        data_digest="1" * 64,
        stack="model",
        dim=3,
        n_texts=20,
        n_tokens=320,
        text=4,
        position=0,
        token="<s>",
        post_norm=False,
        error=2e-7,
        blocks=(
            BlockValue("embeddings", 2.0, 2.5, 0.1, 0.01, 0.02, 0.01),
            BlockValue("0", 90.0, 100.0, 0.5, 0.9, 0.95, 0.02),
            BlockValue("1", 10.0, 12.0, 0.4, 0.3, 0.35, 0.02),
        ),
        parts=(
            Part("embeddings", "embedding", "embed_tokens", -1, 2.0, 2.5, 0.1),
            Part("0", "carried", "", -1, 2.0, 2.5, 0.1),
            Part("0", "head", "layers.0.self_attn.o_proj", 0, 1.0, 1.5, 0.1),
            Part("0", "neuron", DOWN, 5, 86.0, 95.0, 0.2),
            Part("0", "other neurons", DOWN, -1, 1.0, 1.0, 0.1),
            Part("1", "carried", "", -1, 90.0, 100.0, 0.5),
            Part("1", "bias", "layers.1.mlp.down_proj", -1, -80.0, -88.0, -0.1),
        ),
        lifts="0",
        lift=100.0,
        peak="0",
        falls="1",
        writers=(Writer("0", "neuron", DOWN, 5, 95.0, 0.95),),
        explained=0.95,
        weights=(Weight("0", f"{DOWN}.weight", (3, 5), -1.25, 0.95),),
        passed=0.95,
        task="causal loss",
        unit="nats per token",
        trials=(
            Trial("named", "zeroed", 1.5, 1.0, 2.0),
            Trial("named", "restored", 0.01, 0.0, 0.02),
            Trial("draw 0", "random", 0.0, 0.0, 0.0),
        ),
        threshold=0.3,
        n_heads=4,
        readers=(Reader(1, 0, 0.8, 0.1, 0.75, 0.875, 0.8, 0.9), Reader(1, 1, 0.4, 0.38, 0.4, 0.05, 0.0, 0.1)),
        n_reading=1,
        sinks=(
            SinkLoss("dimension 3", 0.6, 0.55, 0.65, 0.8, 0.7, 0.9),
            SinkLoss("random dimension 7", 0.001, -0.001, 0.003, 0.002, -0.002, 0.004),
        ),
        notes=("a note",),
    )
