"""The report of a run: one self-contained HTML page from result dataclasses, without torch.

    ol.report("mini-planted", n_random=19)       # measured, written to runs/mini-planted; `job.report` says more
    data = ReportData(provenance, scan, observation, damages)
    write(data, "runs/mpnet")                    # manifest.json, results.json, charts/, report.html
    rerender("runs/mpnet/results.json")          # the page again, on any machine

finding(data)    the result in sentences, by rule
advice(data)     what to do about it, by rule
render(data)     the page as one string
paired(a, b)     two reports side by side; write_pair(pair, directory) makes their page
chart_page(chart)    one chart as a page of its own
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from outlierlens.report.advice import Advice, advice
from outlierlens.report.files import Written, rerender, write, write_pair
from outlierlens.report.page import chart_page, render
from outlierlens.report.pair import Pair, paired
from outlierlens.report.result import ReportData
from outlierlens.report.words import finding

__all__ = [
    "Advice", "Pair", "ReportData", "Written", "advice", "chart_page", "finding", "paired", "render", "rerender", "write",
    "write_pair",
]  # fmt: skip


class _Report(ModuleType):
    """This package, which is called as the function `job.report`: `outlierlens.report(…)`."""

    def __call__(self, *arguments: Any, **named: Any) -> ReportData:
        from outlierlens.experiments.given import accepting

        return accepting(import_module(f"{__name__}.job").report)(*arguments, **named)


sys.modules[__name__].__class__ = _Report
