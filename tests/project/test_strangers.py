"""The script that fetches strangers' models: its plain numpy against the rule, and its models in the packaged atlas."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from architectures import FAMILIES, build
from outlierlens.analyses.atlas_lookup import ATLAS
from outlierlens.analyses.atlas_rows import read_rows
from outlierlens.analyses.scan import scan
from outlierlens.checkpoints import samples


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    import strangers

    yield strangers
    sys.modules.pop("strangers", None)


def test_plain_numpy_names_what_scan_names(strangers: Any, tmp_path: Path) -> None:
    assert strangers.direct(str(samples.directory("mini-planted"))) == [8, 24, 40, 56, 72, 88, 104, 120]
    for family, kind in (("gpt2", "CausalLM"), ("bert", "MaskedLM"), ("albert", "MaskedLM")):
        folder = tmp_path / family
        model = build(FAMILIES[family], kind)
        with torch.no_grad():
            for name, values in model.named_parameters():
                if any(last in name for last in ("output.LayerNorm", "full_layer_layer_norm", "mlp.c_proj")):
                    values[..., 3] += 9
        model.save_pretrained(folder)
        assert strangers.direct(str(folder)) == list(scan(str(folder)).stacks[0].dims) == [3]


def test_every_stranger_has_its_row(strangers: Any) -> None:
    rows = {row.model: row for row in read_rows(ATLAS)}
    for name, one in strangers.STRANGERS.items():
        assert rows[name].family == one.family
        assert rows[name].license == one.licence.partition(" (")[0]  # without the file that says so
        assert rows[name].origin.startswith(one.origin)
