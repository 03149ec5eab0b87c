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
    import numpy as np

    from outlierlens.ablation.fill import Blank, Continuation, Filled
    from outlierlens.explore.result import (
        Anisotropy,
        AttentionMaps,
        Explored,
        Guess,
        Guesses,
        GuessList,
        Life,
        Loss,
        LossRow,
        Off,
        OneDimension,
        Passage,
        State,
        Vectors,
    )
    from outlierlens.results.document import Provenance

    conditions = (Off("intact", (), ()), Off("random", (3,), (0, 1)), Off("chosen", (2,), (0, 1)))
    fills = tuple(Filled(one.label, one.dims, ("a ", "."), (Blank(1, "b", "b", "c", "same"),)) for one in conditions)
    return Explored(
        provenance=Provenance("tiny", "0" * 64, command="outlierlens explore tiny", seed=0),
        state=State(text="a c.", dims=(2,), last=1, stack="model", vector_layer="1", attention_layer=1),
        read="a c.",
        conditions=conditions,
        notes=("the text has 97 tokens; the first 96 are read",),
        passage=Passage(fills, (Continuation("intact", (), "a", "c"),)),
        loss=Loss("masked loss", "nats per token", 2, (LossRow("intact", 1.5, 1.0, 2.0, 0.0, 0.0, 0.0),)),
        dimension=OneDimension(
            2,
            ("embeddings", "0", "1"),
            ("a", "c"),
            np.arange(6.0).reshape(3, 2),
            np.full((3, 2), 0.5),
            Loss("masked loss", "nats per token", 2, (LossRow("alone", 2.5, 2.0, 3.0, 1.0, 0.5, 1.5),)),
            (Blank(1, "d", "b", "c", "other"),),
            1,
        ),
        guesses=Guesses(0, "c", (GuessList("intact", (Guess("b", 0.5), Guess("c", 0.25))),)),
        vectors=Vectors("1", ("a", "c"), "a", np.eye(3, 4), (2,), np.arange(6.0).reshape(3, 2, 1), np.ones((3, 2))),
        attention=AttentionMaps(1, 0, 2, ("a", "c"), (True, False), np.full((3, 2, 2), 0.5)),
        anisotropy=Anisotropy(("embeddings", "0", "1"), np.full((3, 3), 0.25), np.zeros((3, 3)), 2),
        life=Life(2, ("embeddings", "0", "1"), ("a", "c"), np.arange(6.0).reshape(3, 2), 1, np.full((3, 6), 0.5)),
    )
