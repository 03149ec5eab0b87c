"""What a verdict says where there is no interval, for every kind of result that rests on one."""

import math
from dataclasses import replace

import frequency_results
import similar_results
from outlierlens.experiments.frequency.view import sections as frequency_sections
from outlierlens.experiments.similarity.view import sections as similarity_sections

NAN = math.nan


def test_frequency_without_an_interval_has_no_verdict() -> None:
    found = frequency_results.frequency()
    found = replace(found, n_texts=5, contrasts=tuple(replace(one, low=NAN, high=NAN) for one in found.contrasts))
    first = next(iter(frequency_sections(found))).sentences[0]
    assert first.startswith(
        "Outliers and token frequency: no verdict, for 5 texts are too few for an interval; read 16"
    )
    by = {one.measure: one.verdict for one in found.contrasts}
    assert (by["log"], by["spearman"]) == ("too few texts", "more")  # ranks never have an interval


def test_sentence_pairs_say_how_many_settle_a_correlation() -> None:
    found = similar_results.similarity()
    (task,) = found.tasks
    choices = tuple(replace(one, low=NAN, high=NAN) if one.fix == "clip" else one for one in task.choices)
    notes = [
        table.note
        for section in similarity_sections(replace(found, tasks=(replace(task, choices=choices),)))
        for table in section.tables
    ]
    assert any(
        "Not settled: 28 independent pairs are too few for an interval; read 598 or more." in one for one in notes
    )
