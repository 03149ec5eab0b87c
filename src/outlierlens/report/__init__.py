"""The report of a run: one self-contained HTML page from result dataclasses, without torch.

    data = ReportData(provenance, scan, observation, damages)
    write(data, "runs/mpnet")                    # manifest.json, results.json, charts/, report.html
    rerender("runs/mpnet/results.json")          # the page again, on any machine

finding(data)    the result in sentences, by rule
advice(data)     what to do about it, by rule
render(data)     the page as one string
chart_page(chart)    one chart as a page of its own
"""

from outlierlens.report.advice import Advice, advice
from outlierlens.report.files import Written, rerender, write
from outlierlens.report.page import chart_page, render
from outlierlens.report.results import ReportData
from outlierlens.report.words import finding

__all__ = ["Advice", "ReportData", "Written", "advice", "chart_page", "finding", "render", "rerender", "write"]
