"""What the tests of the live page look at: the packaged model with planted outliers, tiny models of other kinds."""

from functools import cache
from typing import Any

TEXT = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16"
PLANTED = (8, 24, 40, 56, 72, 88, 104, 120)


@cache
def planted() -> Any:
    """`mini-planted` in float32: a masked model whose scan finds eight dimensions."""
    from outlierlens.explore.look import open_explorer
    from outlierlens.models.load import LoadOptions

    return open_explorer("mini-planted", LoadOptions(dtype="float32", device="cpu"))


def tiny(words: Any, family: str = "gpt2", head: str = "CausalLM", kind: str = "causal") -> Any:
    """An explorer of a tiny random model of the architecture table over whole words."""
    from architectures import FAMILIES, build
    from outlierlens.explore.look import Explorer
    from outlierlens.models.load import from_objects

    made = build(FAMILIES[family], head)
    made.set_attn_implementation("eager")
    return Explorer(from_objects(made, words(kind=kind), name=f"tiny-{family}"))


def explored() -> Any:
    """A result written by hand, every view in it."""
    from outlierlens.ablation.fill import Blank, FilledPassage, Reply
    from outlierlens.explore.look import (
        AttentionSink,
        Exploration,
        Guess,
        LargestValue,
        TextCosine,
        TextLoss,
        TurnedDims,
    )
    from outlierlens.explore.state import Selection
    from outlierlens.results.document import Provenance
    from outlierlens.results.finding import About
    from outlierlens.results.rows import Estimate

    conditions = (TurnedDims("intact"), TurnedDims("random", (3,), (0, 1)), TurnedDims("chosen", (2,), (0, 1)))
    places = [(layer, one) for layer in ("embeddings", "0", "1") for one in conditions]
    return Exploration(
        provenance=Provenance("tiny", "0" * 64, command="outlierlens explore tiny", seed=0),
        about=About(task="masked loss", unit="nats per token", stack="model", dims=("2",), n_texts=1, n_tokens=2),
        notes=("the text has 97 tokens; the first 96 are read",),
        state=Selection(text="a c.", dims=(2,), last=1, stack="model"), blank="c", conditions=conditions,
        replies=tuple(
            Reply(off=one.label, dims=", ".join(map(str, one.dims)), filled="a [b].", begins="a", continued="c", plan=one.plan,
                  fill=FilledPassage(one.label, one.dims, ("a ", "."), (Blank(1, "b", "b", "c", "same"),)))
            for one in conditions
        ),
        losses=tuple(
            TextLoss(condition=one.label, off=one.names, loss=Estimate(1.5 + i, 1.0 + i, 2.0 + i), perplexity=4.5 + i,
                     change=Estimate(float(i), i / 2, 2.0 * i))
            for i, one in enumerate(conditions)
        ),
        guesses=tuple(Guess(rank=1, condition=one.label, said="b  50.0 %", word="b", probability=0.5) for one in conditions),
        largest=tuple(LargestValue(layer=layer, dim=2, size=2.0 + i, value=-2.0 - i, token="1 c", share=0.5)
                      for i, layer in enumerate(("embeddings", "0", "1"))),
        sinks=tuple(AttentionSink(layer=layer, condition=one.label, first=0.5, special=0.75)
                    for layer, one in places if layer != "embeddings"),
        cosines=tuple(TextCosine(layer=layer, condition=one.label, cosine=0.25, share=0.125) for layer, one in places),
    )  # fmt: skip
