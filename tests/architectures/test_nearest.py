"""Mistyped commands, options, samples, tasks, modes and rules: the message names what was meant, at once and offline."""

from typing import Any

import pytest

from outlierlens.errors import near

# (arguments, exit code, what the message says)
MISTYPED = [
    (("scna", "mini-bert"), 2, 'Did you mean "scan"?'),
    (("replicate", "lou", "mini-bert"), 2, 'Did you mean "luo"?'),
    (("finetune", "mini-bert"), 2, 'Did you mean "lab finetune"?'),
    (("scan", "mini-bert", "--rlue", "luo"), 2, "--rule"),
    (("scan", "mini-bret"), 1, "did you mean the sample mini-bert?"),
    (("observe", "mini-bret"), 1, "did you mean the sample mini-bert?"),
    (("report", "smollm2-135", "-o", "nowhere"), 1, "did you mean the sample smollm2-135m?"),
    (("fetch", "smolm2"), 1, "near: smollm2-135m"),
    (("scan", "mini-bert", "--rule", "lou"), 2, "near: 'luo'"),
    (("ablate", "mini-bert", "--dims", "3", "--modes", "zeor"), 2, "near: 'zero'"),
    (("ablate", "mini-bert", "--dims", "3", "--task", "glue:cloa"), 1, "near: 'glue:cola'"),
    (("ablate", "mini-bert", "--dims", "3", "--task", "cusal-loss"), 1, "near: 'causal-loss'"),
    (("ablate", "mini-bert", "--dims", "128"), 1, "dimension 128 does not exist; stream 'model': dimensions 0 to 127"),
    (("ablate", "mini-bert", "--dims", "3", "--layers", "4"), 1, "stream 'model' has layers 0 to 3"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), MISTYPED, ids=lambda value: str(value)[:40])
def test_what_was_meant_is_named(arguments: tuple[str, ...], code: int, says: str, run: Any) -> None:
    stopped, out, err = run(*arguments)
    assert stopped == code, err
    assert says in err
    assert out == ""


def test_near_is_silent_where_nothing_resembles_the_word() -> None:
    assert near("zeor", ("weights", "zero")) == "; near: 'zero'"
    assert near("xyzzy", ("weights", "zero")) == ""
    assert near("zero", ()) == ""
