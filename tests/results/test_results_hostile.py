"""Result files that somebody else made: one line, quickly, in little memory."""

import json
import tracemalloc
from typing import Any

import pytest

from outlierlens.errors import BadFile
from outlierlens.results import document as results
from synthetic_report import report_data

REGULAR = r"z_scale\[0\]: not a regular array of numbers"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["x" * 350_000, *["1"] * 1000], REGULAR),  # NumPy would make 1,001 words of 350,000 characters
        ([[1, 2], [3]], REGULAR),
        ([10**400], REGULAR),
        ([10**30], REGULAR),
        ([[[[[[[[[1]]]]]]]]], REGULAR),
        ([{}], REGULAR),
        ([None], REGULAR),
        (["Infinity"], REGULAR),
        ({}, "expected ndarray, found dict"),
    ],
)
def test_an_array_is_of_numbers_and_costs_what_it_holds(value: Any, message: str) -> None:
    document = json.loads(results.to_json(report_data(observed=False, damages=())))
    document["findings"][0]["stacks"]["z_scale"][0] = value
    text = json.dumps(document)
    tracemalloc.start()
    try:
        with pytest.raises(BadFile, match=message):
            results.from_json(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": []}, "kind None is not a result"),
        ({"kind": {"a": 1}}, "kind None is not a result"),
        ({"format_version": 10**4000}, "format_version 1000"),
        ({"notes": 7}, "notes: expected tuple"),
    ],
)
def test_what_is_no_result_is_said_in_a_short_line(change: dict[str, Any], message: str) -> None:
    document = json.loads(results.to_json(report_data(observed=False, damages=())))
    with pytest.raises(BadFile, match=message) as refused:
        results.from_json(json.dumps(document | change))
    assert len(str(refused.value)) < 1500


def test_numbers_and_names_that_no_float_and_no_utf8_holds() -> None:
    document = json.loads(results.to_json(report_data(observed=False, damages=())))
    document["findings"][0]["stacks"]["n_sigma"][0] = 10**400
    document["findings"][0]["provenance"]["model"] = "caf\udce9"
    with pytest.raises(BadFile, match=r"n_sigma\[0\]: a whole number too large for a float|n_sigma\[0\]: expected"):
        results.from_json(json.dumps(document))
    document["findings"][0]["stacks"]["n_sigma"][0] = 3.0
    text = results.to_json(results.from_json(json.dumps(document)))
    assert rb"caf\udce9" in text.encode("utf-8")
    assert results.from_json(text).scan.provenance.model == "caf\udce9"
