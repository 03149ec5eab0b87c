"""Two machines get the same numbers: another processor's instructions move no result by 1e-5."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlierlens.detection.running_statistics import QUANTILE_ERROR

# What a processor without AVX computes with.
OLDER = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
MEASURED = """
import sys
from pathlib import Path
import outlierlens as ol
from outlierlens.options import AblateOptions, SweepOptions

loaded, texts = ol.load_model("mini-planted"), ol.read_texts("reviews", limit=12)
dims = ol.scan("mini-planted").stacks[0].dims
found = {
    "observed": ol.observe(loaded, texts),
    "damage": ol.ablate(loaded, texts, dims, AblateOptions(n_random=5, n_matched=3)),
    "sweep": ol.sweep(loaded, texts, SweepOptions(dims=(*dims[:2], 1, 2), n_random=5, n_matched=3)),
}
for name, result in found.items():
    result.save(Path(sys.argv[1]) / f"{name}.json")
"""
# A ratio to a mean near 0 magnifies the last digit of both.
RATIOS = ("times_random", "times_mean", "times_median", "times_percentile_95")


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of every number and word of a JSON document."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key not in (*RATIOS, "provenance") and "seconds" not in key:
                yield from leaves(one, f"{where}.{key}")
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from leaves(one, f"{where}[{number}]")
    else:
        yield where, value


def test_another_processor_gives_the_same_results(tmp_path: Path) -> None:
    for name, variables in (("here", {}), ("there", OLDER)):
        (tmp_path / name).mkdir()
        command = [sys.executable, "-c", MEASURED, str(tmp_path / name)]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1", **variables}, check=True)
    for path in sorted((tmp_path / "here").iterdir()):
        here, there = (
            dict(leaves(json.loads((tmp_path / name / path.name).read_text()))) for name in ("here", "there")
        )
        assert here.keys() == there.keys()
        numbers = {key for key, value in here.items() if isinstance(value, float)}
        assert len(numbers) > 20
        for key in numbers:
            # Of two values on either side of a bin's edge the quantile is another bin's.
            # A passage's states are written with four digits.
            known_to = 2 * QUANTILE_ERROR if "quantiles" in key else 1e-3 if ".states" in key else 1e-5
            assert there[key] == pytest.approx(here[key], rel=known_to, abs=1e-5), (path.name, key)
        assert {key: here[key] for key in here.keys() - numbers} == {key: there[key] for key in here.keys() - numbers}
