"""What an analysis finds: where it comes from, what it is about, and a few tables; all that is shown follows from these.

class BeyondZero(Finding):
    title = "Beyond zero"
    pictures = (Strips(rows="treatments", x="change", y="treatment", by="dims", draws="random"),)
    treatments: tuple[Treatment, ...]                       # below it the table's head; in brackets: only with --verbose

found.dims; found.to_pandas(); found.chart(); found.save("f.json"); print(found)
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.options import docstrings
from outlierlens.results.document import Provenance, Result
from outlierlens.results.rows import Pivot, Row, table
from outlierlens.view.section import Rows, Section, few, number_of_layers

if TYPE_CHECKING:
    from outlierlens.view.charts.base import Chart
    from outlierlens.view.pictures import Picture


@dataclass(frozen=True, kw_only=True)
class About:
    """The measured quantity and its data: the header of every finding.

    Attributes:
        data, data_digest: what was read, and its SHA-256. inputs: what one is called: "texts", "images", "recordings".
        task, unit: "causal loss", "nats per token". metric: "mcc" where values are 1 − metric, else "".
        stack: the residual stream. layers: blocks that were touched.
        dims: positions that the finding is about, neurons as "11:1229". kind: what one is called. named_by: who named them.
        n_texts, n_tokens: of these, how many counted. max_length: tokens of a text at most; 0 where nothing is cut.
    """

    data: str = ""
    data_digest: str = ""
    inputs: str = "texts"
    task: str = ""
    unit: str = ""
    metric: str = ""
    stack: str = ""
    layers: tuple[int, ...] = ()
    dims: tuple[str, ...] = ()
    kind: str = "dimension"
    named_by: str = ""
    n_texts: int = 0
    n_tokens: int = 0
    max_length: int = 0

    @property
    def measured(self) -> str:
        """For reading: "causal loss"; "mcc on glue:cola"."""
        return f"{self.metric} on {self.task.removesuffix(f' {self.metric}')}" if self.metric else self.task

    @property
    def score(self) -> str:
        """What a value is: "causal loss"; "1 − mcc on glue:cola"."""
        return f"1 − {self.measured}" if self.metric else self.task

    @property
    def of_change(self) -> str:
        """What a change is a number of: "nats per token"; "mcc lost"."""
        return f"{self.metric} lost" if self.metric else self.unit

    @property
    def words(self) -> dict[str, str]:
        """What stands in the heads of columns: {task}, {unit}, {measured}, {of_change}, …"""
        return {one.name: str(getattr(self, one.name)) for one in fields(self)} | {
            "measured": self.measured, "score": self.score, "of_change": self.of_change,
        }  # fmt: skip

    def sentence(self, model: str) -> str:
        """What was measured on what, in one sentence."""
        unit = f" ({self.unit})" if self.unit else ""
        tokens = f", {self.n_tokens:,} tokens in all" if self.n_tokens > self.n_texts else ""
        of = f"{self.n_texts:,} {self.inputs}{f' of {self.data}' if self.data else ''}{tokens}"
        parts = [
            f"{self.task}{unit} on {of}" if self.task else of if self.n_texts else "",
            f"stream {self.stack}, {number_of_layers(len(self.layers))}" if self.layers else "",
            f"{self.kind}s: {self.named_by}" if self.named_by else "",
        ]
        return f"{model}: {'; '.join(filter(None, parts))}." if any(parts) else ""


@dataclass(frozen=True, kw_only=True)
class Finding(Result):
    """What an analysis finds. A kind of it adds tables (tuples of `Row`), a title, sentences and pictures.

    `layouts` says by the name of a table that it is laid out over two fields; `axes` names those of its arrays, whose fields
    "layers" and "dims" label them.
    """

    title: ClassVar[str] = ""
    axes: ClassVar[tuple[str, ...]] = ()
    layouts: ClassVar[Mapping[str, Pivot]] = {}
    pictures: ClassVar[tuple[Any, ...]] = ()  # of `view.pictures.Picture`

    provenance: Provenance
    about: About
    notes: tuple[str, ...] = ()

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions that it is about; of neurons their numbers within a block."""
        return tuple(dict.fromkeys(int(one.rpartition(":")[2]) for one in self.about.dims))

    def sentences(self) -> Iterator[str]:
        """What it says, the answer first."""
        yield from ()

    def all_rows(self) -> dict[str, tuple[Row, ...]]:
        """{field: its rows} of every table that has any, the first one first."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: value
            for name, value in found.items()
            if isinstance(value, tuple) and value and isinstance(value[0], Row)
        }

    def shown(self, *, verbose: bool = False) -> Iterator[Rows]:
        """Its tables as people read them."""
        heads = docstrings(type(self))
        for name, rows in self.all_rows().items():
            head, _, note = heads.get(name, name.replace("_", " ")).partition(": ")
            if verbose or not head.startswith("("):
                yield self.laid_out(name, rows, head.strip("()"), note, verbose=verbose)

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """One of its tables; a kind of finding may lay out one by its own hand."""
        if name in self.layouts:
            return self.layouts[name].table(head, rows, note, self.about.words)
        return table(head, rows, note, self.about.words, verbose=verbose)

    def records(self, which: str = "") -> Iterator[dict[str, Any]]:
        """Flat rows of a table, the first unless `which` names another; where `axes` are named, of each cell of its arrays.

        Raises:
            BadInput: there is no such table.
        """
        if which or not self.axes:
            tables = self.all_rows()
            if which not in {*tables, ""}:
                raise BadInput(f"no table {which!r}; there are {', '.join(tables)}")
            yield from (row.flat() for row in tables[which or next(iter(tables))])
            return
        arrays = {
            one.name: value
            for one in fields(self)
            if isinstance(value := getattr(self, one.name), np.ndarray) and value.ndim == len(self.axes)
        }
        shape = next(iter(arrays.values())).shape
        labels = [getattr(self, f"{axis}s", None) or range(n) for axis, n in zip(self.axes, shape, strict=True)]
        flat = {name: values.ravel().tolist() for name, values in arrays.items()}
        for i, place in enumerate(itertools.product(*labels)):
            yield dict(zip(self.axes, place, strict=True)) | {name: values[i] for name, values in flat.items()}

    def drawn(self) -> "tuple[Picture, ...]":
        """The pictures that are drawn of it."""
        return self.pictures

    @property
    def name(self) -> str:
        """Of its section and of the files of its pictures."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())

    def chart(self) -> "Chart":
        """Its pictures, one below another."""
        from outlierlens.view.pictures import draw

        return draw(self)

    def sections(self, *, verbose: bool = False) -> Iterator[Section]:
        """For every surface; its pictures are drawn when somebody looks."""
        said = tuple(filter(None, (*self.sentences(), self.about.sentence(self.provenance.subject))))
        drawn = (lambda: (self.chart(),)) if any(one.chosen(self) for one in self.drawn()) else ()
        title = f"{self.title}: {few(self.about.dims)}" if self.about.dims else self.title
        yield Section(self.name, title, said, drawn, tuple(self.shown(verbose=verbose)))
