"""The table of experiments: from a row come its command with help and limits, its kind of result and its place in the list.

A row is text alone, so that `--help` imports no experiment. A home `H` holds `H/options.py` (what is asked), `H/view.py`
(`sections`, what is said) and `H/measure.py` (`run`, how it is found out); `charts.NAME` draws its picture.
"""

from dataclasses import dataclass

from outlierlens.session import Reading


@dataclass(frozen=True)
class Experiment:
    """A row of the table.

    Attributes:
        name: of the command.
        group: its heading in `outlierlens --help`.
        about: one sentence.
        home: package below outlierlens.
        options: the dataclass of its options, in `home/options.py`.
        result: the kind of its result.
        picture: the function of `charts` that --chart draws with; "" for none.
        reading: the texts that it reads, with their defaults.
    """

    name: str
    group: str
    about: str
    home: str
    options: str
    result: str
    picture: str = ""
    reading: Reading = Reading()


EXPERIMENTS = (
    Experiment(
        "quant", "compress",
        "Round weights and inputs to few bits: what it costs, where the error lies, and what keeping outliers gives back.",
        home="quantization", options="QuantizeOptions", result="Quantized", picture="quantization", reading=Reading(limit=64),
    ),
)  # fmt: skip
BY_NAME = {row.name: row for row in EXPERIMENTS}
BY_RESULT = {row.result: row for row in EXPERIMENTS}
