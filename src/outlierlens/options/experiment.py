"""The contract of the table of experiments: `Experiment`, a row of it, and the groups of options that commands share.

A row is text alone, so that `--help` imports no experiment. The home of an analysis is one module of `analyses`: its options,
rows, `Finding`, measure and `run(session, options)`. `prune test` in `analyses/prune.py` is one of the shortest with controls;
`tests/test_toy_analysis.py` holds a whole one.

The report, the papers, the live page and the commands of the program itself have folders of their own; where the call is odd,
`run(session, options)` shows its result itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from outlierlens.options import Option, Override, changed

# What a command takes beside its own options, in the order of its help, and where that is declared. `Session` has what comes
# of them: `loaded` of "subject" and "loading", `texts()` of "reading", `data()` of "data", `task_reading.read()` of "task",
# `output`; and `kept`,
# the rows of a run, without an option.
GROUPS = {
    "subject": "session:Subject",
    "reading": "session:Reading",
    "data": "session:DataReading",
    "task": "session:TaskReading",
    "splits": "session:SplitReading",
    "vectors": "vectors.options:VectorReading",
    "fitting": "vectors.options:Fitting",
    "output": "session:Output",
    "source": "session:ModelSource",
    "loading": "session:Loading",
}
GROUP_NAMES = ("find", "ablate", "explain", "compare with papers", "train", "compress", "guard", "embed", "show")
TEXTS = ("subject", "reading", "options", "output", "loading")


def title(group: str) -> str:
    """The heading of a group of commands."""
    return group[:1].upper() + group[1:]


@dataclass(frozen=True)
class Experiment:
    """A row of the table.

    Attributes:
        name: of the command; two words of those that `cli.app.FAMILIES` puts together.
        group: its heading in `outlierlens --help`, of `GROUP_NAMES`.
        about: one sentence; below an empty line what more its own help says.
        home: package below outlierlens.
        takes: groups of options, those of `GROUPS` and "options", its own.
        options: the dataclass of its own options, in `home/options.py`, or ".file:Name" of its home, or "module:Name"; "" where
            it has none. Likewise below.
        shared: by name what is other about options of `GROUPS` here; None takes one away.
        result: the class of its result, in `home/result.py`; "" where it has none that is saved.
        also: other classes that its view shows.
        python: the function of the library, `outlierlens.commands.NAME`, in `home/measure.py`; "" for none.
        measure: the module of `run`, or ".file:function", where it is not `home/measure.py`.
        gate: the attribute of its result that says that a check failed (exit code 3; nothing to check is 2).
        examples: calls as one types them behind `outlierlens`, what they do behind `  # `; its page shows them. They run on the
            packaged models, and on small files of the reader's or of other examples.
        odd: whether `home/command.py` calls it, or its `run` says itself what came of it.
        writes: what -o names: a file, or a folder. places: options that name files or folders which are made whole.
    """

    name: str
    group: str
    about: str
    home: str
    takes: tuple[str, ...] = TEXTS
    options: str = ""
    shared: Mapping[str, Override | None] = field(default_factory=dict)
    result: str = ""
    also: tuple[str, ...] = ()
    python: str = ""
    measure: str = ""
    gate: str = ""
    examples: tuple[str, ...] = ()
    odd: bool = False
    writes: Literal["file", "folder"] = "file"
    places: tuple[str, ...] = ()

    def asks(self) -> dict[str, tuple[Any, tuple[Option, ...]]]:
        """{group: (its dataclass, or an instance with other defaults; its options)}; imports where they are declared."""
        found = {}
        for group in self.takes:
            declared = self._named(GROUPS.get(group) or self.options, "options")
            found[group] = changed(declared, {} if group == "options" else self.shared)
        return found

    def run(self) -> Any:
        """What finds it out: `run(session, options)`."""
        place, _, name = self.measure.partition(":")
        return self._named(f"{place}:{name or 'run'}", "command" if self.odd else "measure")

    @property
    def derived(self) -> bool:
        """Whether its result is a `Finding`, from which follows how it is shown."""
        return self.home.startswith(("analyses.", "replicate."))

    @property
    def kind(self) -> str:
        """The name of its kind of result; "" where it has none."""
        return self.result.rpartition(":")[2]

    @property
    def kinds(self) -> dict[str, str]:
        """{each kind of result that its view shows: the module that defines it}."""
        named = (self.result, *self.also) if self.result else ()
        return {one.rpartition(":")[2]: self.place(one, "result") for one in named}

    def place(self, name: str, file: str) -> str:
        """The module of a name that a row says: "module:name", or a name in a file of its home."""
        module = name.rpartition(":")[0]
        if self.derived and not module:
            return self.home
        return f"{self.home}{module}" if module.startswith(".") else module or f"{self.home}.{file}"

    def _named(self, name: str, file: str) -> Any:
        return getattr(import_module(f"outlierlens.{self.place(name, file)}"), name.rpartition(":")[2])
