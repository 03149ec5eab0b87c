"""What a verdict says where there is no interval, for every kind of result that rests on one."""

from dataclasses import replace

import embed_results
from outlierlens.results.rows import Estimate


def test_sentence_pairs_say_how_many_settle_a_correlation() -> None:
    found = embed_results.similarity()
    choices = tuple(
        replace(one, change=Estimate(one.change.value), says="not settled") if one.fix == "clip" else one
        for one in found.choices
    )
    (section,) = replace(found, choices=choices).sections()
    said = "sts13, not settled: 28 independent pairs are too few for an interval; read 598 or more."
    assert any(said in table.note for table in section.tables)
