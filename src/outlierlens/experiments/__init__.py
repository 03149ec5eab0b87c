"""The table of experiments: from a row come its command with help and limits, its kind of result and its place in the list.

A row is text alone, so that `--help` imports no experiment. A home `H` holds `H/options.py` (what is asked), `H/view.py`
(`sections`, what is said) and `H/run.py` (`run(session, options)`, how it is found out), or, where the call is an odd one,
`H/command.py` with a `run(session, options)` that shows its result itself. `charts.NAME` draws its picture.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from outlierlens.options import REQUIRED, Option, Other, changed

# What a command takes beside its own options, in the order of its help, and where that is declared.
GROUPS = {
    "subject": ("session", "Subject"),
    "reading": ("session", "Reading"),
    "task": ("session", "TaskReading"),
    "vectors": ("vectors.options", "VectorReading"),
    "fitting": ("vectors.options", "Fitting"),
    "rows": ("session", "Rows"),
    "output": ("session", "Output"),
    "source": ("session", "Source"),
    "loading": ("session", "Loading"),
}
WEIGHTS = ("subject", "options", "output", "source")
TEXTS = ("subject", "reading", "options", "output", "loading")
EXAMPLES = ("subject", "task", "options", "output", "loading")


@dataclass(frozen=True)
class Experiment:
    """A row of the table.

    Attributes:
        name: of the command; two words for a paper's.
        group: its heading in `outlierlens --help`.
        about: one sentence; below an empty line what more its own help says.
        home: package below outlierlens.
        takes: groups of options, those of `GROUPS` and "options", its own.
        options: the dataclass of its own options, in `home/options.py`; "" where it has none.
        shared: by name what is other about options of `GROUPS` here; None takes one away.
        result: the kind of its result; "" where it has none that is saved.
        picture: the function of `charts` that --chart draws with; "" for none.
        measure: the module of `run`, where it is not `home.run`.
        gate: the attribute of its result that says that a check failed (exit code 3; nothing to check is 2).
        odd: whether `home/command.py` calls it.
    """

    name: str
    group: str
    about: str
    home: str
    takes: tuple[str, ...] = TEXTS
    options: str = ""
    shared: Mapping[str, Other | None] = field(default_factory=dict)
    result: str = ""
    picture: str = ""
    measure: str = ""
    gate: str = ""
    odd: bool = False

    def asks(self) -> dict[str, tuple[Any, tuple[Option, ...]]]:
        """{group: (its dataclass, or an instance with other defaults; its options)}; imports where they are declared."""
        found = {}
        for group in self.takes:
            place, name = GROUPS.get(group, (f"{self.home}.options", self.options))
            declared = getattr(import_module(f"outlierlens.{place}"), name)
            found[group] = changed(declared, {} if group == "options" else self.shared)
        return found

    def run(self) -> Any:
        """What finds it out: `run(session, options)`."""
        place = f"{self.home}.command" if self.odd else self.measure or f"{self.home}.run"
        return import_module(f"outlierlens.{place}").run

    def sections(self) -> Any:
        """What is said of a result: `sections(found, *, verbose=False)`."""
        return import_module(f"outlierlens.{self.home}.view").sections


EXPERIMENTS: tuple[Experiment, ...] = (
    # scan

    # compare

    # fingerprint

    # verify

    # observe

    # disable

    # sweep

    # beyond-zero

    # prune-check

    # protect

    # prune-experiment

    # track

    # pretrain

    # outcomes

    # finetune

    # replicate kovaleva-glue

    # replicate puccetti-glue

    # replicate luo

    # replicate puccetti

    # survival

    # recover

    # one-dimension

    # sts

    # wic

    # origin

    # detectors

    # geometry

    # frequency

    # frequency-geometry

    # predictions

    # attention

    # probe

    Experiment(
        "quant", "compress",
        "Round weights and inputs to few bits: what it costs, where the error lies, and what keeping outliers gives back.",
        home="quantization", options="QuantizeOptions", shared={"limit": Other(64)}, result="Quantized",
        picture="quantization",
    ),
    # count

    # frozen

    # export-embedder

    # layer-story

    # attack

    # update-check

    # report

    # explore

    # doctor

    # samples

    # fetch
)  # fmt: skip
BY_NAME = {row.name: row for row in EXPERIMENTS}
BY_RESULT = {row.result: row for row in EXPERIMENTS if row.result}
