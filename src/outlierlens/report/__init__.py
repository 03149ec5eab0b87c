"""Measure a model and write its report, one self-contained HTML page: `ol.report("mini-planted", n_random=19)`.

`ol.report(MODEL, texts, folder="runs/MODEL", …)` takes what `report.job.report` takes, whose docstring lists the arguments. It
writes manifest, results.json, charts/ and report.html to the folder, and returns the `ReportData`.

write(ReportData(provenance, (scan, observation, ablation)), "runs/mpnet")     # of results that exist, without torch
rerender("runs/mpnet/results.json")          # the page again, on any machine; write_both: of two reports
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from outlierlens.report.both import ReportPair
from outlierlens.report.files import ReportFiles, rerender, write, write_both
from outlierlens.report.page import render
from outlierlens.report.result import ReportData

__all__ = [
    "ReportData",
    "ReportFiles",
    "ReportPair",
    "render",
    "rerender",
    "write",
    "write_both",
]  # fmt: skip


class _Report(ModuleType):
    """This package, which is called as the function `job.report`: `outlierlens.report(…)`."""

    def __call__(self, *arguments: Any, **named: Any) -> ReportData:
        from outlierlens.commands import accepting

        return accepting(import_module(f"{__name__}.job").report)(*arguments, **named)


sys.modules[__name__].__class__ = _Report
