"""Draft a row for a model family that the table lacks, by experiment on a small random model of it.

    proposal = propose(config)                   # config: the content of config.json
    print(proposal.toml)                         # every line with what it rests on
    stacks = proposal.stacks                     # for bind(); what could not be established is in proposal.unsettled

Nothing is concluded from a name: a linear writes to the stream when changing one of its rows changes one dimension.
"""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import BoundStack, bind, live_parameters
from outlierlens.architectures.stack import Config, Stack, to_toml
from outlierlens.errors import OutlierlensError, UnknownArchitecture, comment, need
from outlierlens.models.changes import hang
from outlierlens.models.proposal.probe import (
    DIM,
    Anatomy,
    BlockProbe,
    Row,
    Stream,
    Surroundings,
    find_streams,
    first_tensor,
)
from outlierlens.models.proposal.tiny import N_INPUTS, TinyModel, count_blocks, full_names, quiet, tiny_model

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Proposal:
    """Drafted stacks and what they rest on.

    Attributes:
        model_type: the family.
        stacks: complete and verified stacks; a stream that could not be taken apart is not among them.
        evidence: for each stack, {field: what was seen}.
        unsettled: what could not be established, in words; empty when all could.
        basis: how the model was made.
    """

    model_type: str
    stacks: tuple[Stack, ...]
    evidence: tuple[Mapping[str, str], ...]
    unsettled: tuple[str, ...]
    basis: str

    @property
    def toml(self) -> str:
        """The row as TOML that `load_toml` reads, a comment with its evidence above every line."""
        head = [f"Row for {self.model_type}, drafted by experiment: {self.basis}."]
        head += [f"NOT ESTABLISHED: {remark}." for remark in self.unsettled]
        return "".join(f"{comment(line)}\n" for line in head) + "\n" + to_toml(self.stacks, self.evidence)


def propose(config: Config) -> Proposal:
    """A row for `config["model_type"]`, found on a small random model built from the config, without any weights.

    Raises:
        UnknownArchitecture: no such model can be built or run, or no stream was found; the message says which.
        MissingExtra: torch or transformers is not installed.
    """
    need("torch", "models", "proposing a row")
    need("transformers", "models", "proposing a row")
    with quiet():
        tiny = tiny_model(config)
        streams, refused = find_streams(tiny)
        drafts = [_Draft(tiny, stream, name) for stream, name in zip(streams, _stream_names(streams), strict=True)]
        for draft in drafts:
            try:
                draft.fill()
            except UnknownArchitecture as error:
                draft.unsettled.append(str(error))
    done = [draft for draft in drafts if draft.stack is not None]
    unsettled = (*refused, *(f"{draft.name}: {remark}" for draft in drafts for remark in draft.unsettled))
    if not done:
        why = "; ".join(unsettled) or "no list of two or more blocks hands a stream from one block to the next"
        raise UnknownArchitecture(
            f"no row can be drafted for {config['model_type']!r}: {why}; write it by hand as TOML"
        )
    given = " and ".join(key for key in tiny.inputs if key != "use_cache")
    return Proposal(
        model_type=str(config["model_type"]),
        stacks=tuple(draft.stack for draft in done if draft.stack is not None),
        evidence=tuple(draft.evidence for draft in done),
        unsettled=unsettled,
        basis=f"a random model of this config ({tiny.changes}), given {given}",
    )


def _stream_names(streams: list[Stream]) -> list[str]:
    if len(streams) == 1:
        return ["model"]
    words = ("text", "vision", "encoder", "decoder")
    names = [next((word for word in words if word in stream.path), stream.path) for stream in streams]
    return names if len(set(names)) == len(names) else [stream.path for stream in streams]


@dataclass
class _Draft:
    """One stream on its way to a stack."""

    tiny: TinyModel
    stream: Stream
    name: str
    stack: Stack | None = None
    evidence: dict[str, str] = field(default_factory=dict)
    unsettled: list[str] = field(default_factory=list)

    def fill(self) -> None:
        stream = self.stream
        n_blocks = len(stream.calls)
        values: dict[str, Any] = {"blocks": f"{stream.path}.{{layer}}", "name": self.name}
        self.evidence["blocks"] = (
            f"{stream.n_links} of {n_blocks - 1} blocks get exactly what the block before returned, "
            f"shape {list(stream.calls[0][3].shape)}"
        )
        if stream.n_links < n_blocks - 1:
            self.unsettled.append("something runs on the stream between some of the blocks; it is not in the row")
        if stream.calls[0][3].shape[0] != N_INPUTS:
            values["token_first"] = True
            self.evidence["token_first"] = f"{N_INPUTS} inputs were given, and they are the second axis"
        middle = 1  # a first block may differ (ModernBERT's reads without a norm)
        args, kwargs, _, _ = stream.calls[middle]
        block = self.tiny.model.get_submodule(f"{stream.path}.{middle}")
        anatomy = BlockProbe(block, args, kwargs, stream.width).peel()
        if anatomy.idle:
            self.unsettled.append(f"{', '.join(anatomy.idle)} of the block did not run on the inputs that were given")
        if anatomy.problem or (problem := self._place_norms(anatomy, values)):
            self.unsettled.append(anatomy.problem or problem)
            return
        self._count_layers(values)
        self._before_and_after(values)
        stack = Stack(**values)
        if problem := _verify(self.tiny, stream, stack):
            self.unsettled.append(problem)
            return
        self.evidence["blocks"] += f"; the whole row was verified on all {n_blocks} blocks"
        if problem := _verify_saved(self.tiny, stack):
            self.unsettled.append(problem)
        self.stack = stack

    def _place_norms(self, anatomy: Anatomy, values: dict[str, Any]) -> str:
        """Turn the steps into fields; the problem in words where they do not fit."""
        steps = anatomy.steps
        kinds = [step.kind for step in steps]
        norms = [step.norm for step in steps if step.norm]
        groups = [step.rows for step in steps if step.rows]
        if not groups:
            return "the block adds nothing to its input"
        if kinds[0] == "stream" and set(kinds) == {"stream", "read"}:
            values |= {"norm_site": "stream", "last_norm": norms[0], "other_norms": tuple(reversed(norms[1:]))}
            self.evidence["norm_site"] = "the block's output is the output of a norm"
            self.evidence["last_norm"] = "its output is the block's output"
        elif set(kinds) == {"write"}:
            values |= {"norm_site": "write", "last_norm": norms[0], "other_norms": tuple(reversed(norms[1:]))}
            self.evidence["norm_site"] = "each write is the output of a norm, added to the stream"
            self.evidence["last_norm"] = "changing one value of its scale changes one dimension of the block's output"
        elif set(kinds) == {"read"}:
            values["norm_site"] = "read"
            self.evidence["norm_site"] = "linears add to the stream directly; their norms only scale what is read"
        else:
            return f"its steps from the end, {', '.join(kinds)}, fit none of stream, write, read"
        if values.get("other_norms"):
            self.evidence["other_norms"] = "found likewise after the last write was switched off"
        if anatomy.reading_norms:
            values["reading_norms"] = anatomy.reading_norms
            self.evidence["reading_norms"] = "with all writes off they get the stream itself, and are not on its path"
        if norms or anatomy.reading_norms:
            values["norm_offset"] = anatomy.norm_offset
            self.evidence["norm_offset"] = f"the norms return zeros with their weight at {-anatomy.norm_offset + 0.0:g}"
        return self._place_linears(groups, values)

    def _place_linears(self, groups: list[tuple[Row, ...]], values: dict[str, Any]) -> str:
        weights = [[row for row in group if not _is_bias(row)] for group in groups]
        modules = {_module(row) for group in weights for row in group}
        if alone := [row.name for group in groups for row in group if _is_bias(row) and _module(row) not in modules]:
            return f"{', '.join(alone)} writes to one dimension but belongs to no linear that does"
        matrices = [row for row in weights[0] if row.n_axes > 1]
        if not matrices:
            return f"only vectors ({', '.join(row.name for row in weights[0])}) were found to write last"
        # Attention and MLP side by side: the last is what runs last, with all that stands beside it (experts).
        branch = matrices[-1].name.partition(".")[0]
        last = [row for row in matrices if row.name.partition(".")[0] == branch]
        others = [row for group in reversed(weights[1:]) for row in group] + [
            row for row in weights[0] if row not in last
        ]
        values["last_linear"] = tuple(_module(row) for row in last)
        self.evidence["last_linear"] = (
            f"changing one slice of {last[0].name} changes one dimension of "
            + ("the input of last_norm" if values["norm_site"] != "read" else "the block's output")
            + (", as for its neighbours; of these it runs last" if len(matrices) > len(last) else "")
        )
        if others:
            values["other_writes"] = tuple(_module(row) for row in others)
            self.evidence["other_writes"] = "found likewise; with these and last_linear off the block returns " + (
                "its norms of its input" if values["norm_site"] == "stream" else "its input exactly"
            )
        rows = [row for group in weights for row in group]
        if all(row.axis == -1 and row.n_axes == 2 for row in rows):
            values["weight_is_in_by_out"] = True
            self.evidence["weight_is_in_by_out"] = "it is columns, not rows, of the linears that write to one dimension"
        elif axes := {row.name: row.axis for row in rows if row.axis != -2}:
            values["axes"] = axes
            self.evidence["axes"] = "the axis whose slices write to one dimension"
        return ""

    def _count_layers(self, values: dict[str, Any]) -> None:
        """The config key that sets the number of blocks: changing it changes their number."""
        n_blocks = len(self.stream.calls)
        for key in _integer_keys(self.tiny.config, n_blocks):
            if (
                "layer" in key
                and count_blocks(_with(self.tiny.config, key, n_blocks + 1), self.stream.path) == n_blocks + 1
            ):
                values["layers"] = key
                self.evidence["layers"] = f"with {n_blocks + 1} there, the model has {n_blocks + 1} of these blocks"
                return
        values["layers"] = ""
        self.evidence["layers"] = "no config key was found that sets the number of blocks, so it is not checked"

    def _before_and_after(self, values: dict[str, Any]) -> None:
        outside = Surroundings(self.tiny, self.stream)
        embedding_norm, tables, linears = outside.before()
        if embedding_norm:
            values["embedding_norm"] = embedding_norm
            self.evidence["embedding_norm"] = "its output is the first block's input"
        if not outside.complete:
            found = ", ".join((*tables, *linears)) or "nothing"
            self.unsettled.append(f"not all that writes before the first block was found ({found} was); left out")
            tables = linears = ()
        if tables:
            values["embeddings"] = tables
            self.evidence["embeddings"] = "changing one column changes one dimension before the first block"
        if linears:
            values["embedding_linears"] = linears
            self.evidence["embedding_linears"] = "changing one row changes one dimension before the first block"
        if final_norm := outside.after():
            values["final_norm"] = final_norm
            self.evidence["final_norm"] = "its input is the last block's output"


def _is_bias(row: Row) -> bool:
    return (row.n_axes == 1 and row.name.endswith("bias")) or row.name.endswith("_bias")


def _module(row: Row) -> str:
    """A linear as `Stack` names it: its module, or "name()" for a bare parameter."""
    module, _, leaf = row.name.rpartition(".")
    if leaf in ("weight", "bias"):
        return module
    return f"{row.name.removesuffix('_bias')}()" if row.name.endswith("_bias") else f"{row.name}()"


def _integer_keys(config: Mapping[str, Any], value: int, prefix: str = "") -> list[str]:
    found: list[str] = []
    for key, item in config.items():
        if type(item) is int and item == value:
            found.append(prefix + key)
        elif isinstance(item, Mapping):
            found += _integer_keys(item, value, f"{prefix}{key}.")
    return sorted(found, key=lambda key: (not key.endswith("num_hidden_layers"), key.count("."), key))


def _with(config: Mapping[str, Any], key: str, value: int) -> dict[str, Any]:
    """`config` with the dotted `key` changed, and without lists that have one entry per layer."""
    head, _, rest = key.partition(".")
    copy = {name: item for name, item in config.items() if not (isinstance(item, list) and len(item) == value - 1)}
    copy[head] = _with(config[head], rest, value) if rest else value
    return copy


def _verify(tiny: TinyModel, stream: Stream, stack: Stack) -> str:
    """The first way in which the whole model contradicts the stack, in words."""
    import torch

    try:
        (bound,) = bind((stack,), live_parameters(tiny.model), tiny.config)
        # Layers that the small model has not may be built otherwise: experts from the fourth on, say.
        if (names := full_names(tiny.whole)) is not None:
            bind((stack,), names, tiny.whole)
    except OutlierlensError as error:
        return f"the blocks are not all built alike: {str(error).partition(';')[0]}"
    if stack.norm_site == "stream":
        layers = [(*scale, *bias) for scale, bias in zip(bound.scale, bound.bias, strict=True)]
    else:
        layers = list(bound.writes)
    named = live_parameters(tiny.model)
    with torch.no_grad():
        for layer, params in enumerate(layers):
            saved = [(param, named[param.name].select(param.axis, DIM).clone()) for param in params]
            for param in params:
                named[param.name].select(param.axis, DIM).fill_(param.off)
            given, got = _block_call(tiny, bound, layer)
            for param, values in saved:
                named[param.name].select(param.axis, DIM).copy_(values)
            expected = torch.zeros_like(got) if stack.norm_site == "stream" else given
            if not torch.equal(got[..., DIM], expected[..., DIM]):
                return f"with dimension {DIM} off, block {layer} still writes to it: it differs from block 1"
    return ""


def _block_call(tiny: TinyModel, bound: BoundStack, layer: int) -> tuple["Tensor", "Tensor"]:
    calls: list[tuple[Tensor, Tensor]] = []

    def keep(_: Any, args: Any, kwargs: Any, output: Any) -> None:
        given = first_tensor(args or (kwargs.get("hidden_states"),))
        calls.append((given.clone(), first_tensor(output).clone()))

    with ExitStack() as hooks:
        hang(hooks, tiny.model.get_submodule(bound.blocks[layer]).register_forward_hook, keep, with_kwargs=True)
        tiny.run()
    return calls[0]


def _verify_saved(tiny: TinyModel, stack: Stack) -> str:
    """How the names in a file saved from the model differ from the live ones, in words, if they do."""
    from safetensors import safe_open

    with tempfile.TemporaryDirectory() as folder:
        model: Any = tiny.model
        model.save_pretrained(folder)
        names: list[str] = []
        for path in sorted(Path(folder).glob("*.safetensors")):
            with safe_open(path, framework="numpy") as file:
                names += file.keys()
    (live,) = bind((stack,), live_parameters(tiny.model))
    written = {param.name for layer in live.writes for param in layer}
    try:
        (saved,) = bind((stack,), names, tiny.config)
        found = {param.name for layer in saved.writes for param in layer}
    except OutlierlensError:
        found = set()
    if found == written:
        return ""
    lacking: list[str] = sorted(written - set(names))
    return (
        f"saved files name {', '.join(lacking[:2]) or 'its parameters'} differently, so this row serves the live "
        "model only; add `stored_as`, or a second [[stack]] of the same name, for files"
    )
