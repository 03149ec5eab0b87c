"""What a model of a config is made of, found by experiment on a small random model of it.

    found = derive(config)                       # config: the content of config.json
    found.stacks                                 # for bind(); what could not be established is in found.unsettled
    print(found.toml)                            # every line with what it rests on

Nothing is concluded from a name: a linear writes to the stream when changing one of its rows changes one dimension. Blocks need
not be alike: one of each kind is taken apart, and the row is then held against all of them.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outlierlens.architectures.bind import bind
from outlierlens.architectures.experiment.anatomy import DIM, Anatomy, BlockProbe, WriteSlice
from outlierlens.architectures.experiment.factors import Factors, agreed
from outlierlens.architectures.experiment.small import (
    N_INPUTS,
    SmallModel,
    number_of_blocks,
    number_of_experts,
    quiet,
    small_model,
)
from outlierlens.architectures.experiment.streams import FileNames, Stream, Surroundings, find_streams
from outlierlens.architectures.live import live_parameters
from outlierlens.architectures.stack import BY_HAND, Config, Stack, parameter, structure, table_of, to_toml
from outlierlens.errors import OutlierlensError, UnknownArchitecture, comment, need


@dataclass(frozen=True)
class Derivation:
    """Streams that were found and what they rest on.

    Attributes:
        model_type: the family.
        stacks: complete and verified stacks; a stream that could not be taken apart is not among them. Of one name, the first
            has the names of the running model and the second those in files, where these differ.
        evidence: for each stack, {field: what was seen}.
        unsettled: what could not be established, in words; empty when all could.
        basis: how the model was made. structure: what of its config the row rests on (`stack.structure`).
    """

    model_type: str
    stacks: tuple[Stack, ...]
    evidence: tuple[Mapping[str, str], ...]
    unsettled: tuple[str, ...]
    basis: str
    structure: Mapping[str, Any] = field(default_factory=dict)

    @property
    def row(self) -> dict[str, Any]:
        """The row as the package's file and the user's cache hold it."""
        about = {"structure": self.structure, "basis": self.basis, "unsettled": list(self.unsettled)}
        return about | {"stacks": list(map(table_of, self.stacks))}

    @property
    def toml(self) -> str:
        """The row as TOML that `load_toml` reads, a comment with its evidence above every line."""
        head = [f"Row for {self.model_type}, drafted by experiment: {self.basis}."]
        head += [f"NOT ESTABLISHED: {remark}." for remark in self.unsettled]
        return "".join(f"{comment(line)}\n" for line in head) + "\n" + to_toml(self.stacks, self.evidence)


def derive(config: Config) -> Derivation:
    """A row for `config["model_type"]`, found on a small random model built from the config, without any weights.

    Raises:
        UnknownArchitecture: no such model can be built or run, or no stream was found; the message says which.
        MissingExtra: torch or transformers is not installed.
    """
    need("torch", "models", "taking a model apart")
    need("transformers", "models", "taking a model apart")
    with quiet():
        small = small_model(config)
        streams, refused = find_streams(small)
        drafts = [
            _Draft(small, stream, streams, name) for stream, name in zip(streams, _stream_names(streams), strict=True)
        ]
        for draft in drafts:
            try:
                draft.fill()
            except UnknownArchitecture as error:
                draft.unsettled.append(str(error))
        done = [draft for draft in drafts if draft.stack is not None]
        if done:
            files = FileNames(small)
            for draft in done:
                draft.name_files(files)
    unsettled = (
        *small.unseen,
        *refused,
        *(f"{draft.name}: {remark}" for draft in drafts for remark in draft.unsettled),
    )
    if not done:
        why = "; ".join(unsettled) or "no list of two or more blocks hands a stream from one block to the next"
        raise UnknownArchitecture(f"no row can be drafted for {config['model_type']!r}: {why}; {BY_HAND}")
    given = " and ".join(key for key in small.inputs if key != "use_cache")
    done.sort(key=lambda draft: draft.is_tower)  # words first
    stacks = [(stack, draft.evidence) for draft in done for stack in (draft.stack, draft.stored) if stack is not None]
    return Derivation(
        model_type=str(config["model_type"]),
        stacks=tuple(stack for stack, _ in stacks),
        evidence=tuple(evidence for _, evidence in stacks),
        unsettled=unsettled,
        basis=f"a random model of this config ({small.changes}), given {given}",
        structure=structure(small.whole),
    )


MANY_VALUES = 50_000  # of states: a trial takes long, and only two blocks of each kind are tried


# A word in a stream's path -> what the stream is called, where there are several.
_TOWERS = {"language": "text", "text": "text", "vis": "vision", "image": "vision", "audio": "audio"}
_TOWERS |= {"encoder": "encoder", "decoder": "decoder"}


def _stream_names(streams: Sequence[Stream]) -> list[str]:
    if len(streams) == 1:
        return ["model"]
    names = [next((name for word, name in _TOWERS.items() if word in stream.path), stream.path) for stream in streams]
    numbers = [names[:place].count(name) + 1 for place, name in enumerate(names)]
    return [name if number == 1 else f"{name}{number}" for name, number in zip(names, numbers, strict=True)]


@dataclass
class _Draft:
    """One stream on its way to a stack."""

    small: SmallModel
    stream: Stream
    streams: Sequence[Stream]
    name: str
    stack: Stack | None = None
    stored: Stack | None = None
    evidence: dict[str, str] = field(default_factory=dict)
    unsettled: list[str] = field(default_factory=list)

    @property
    def is_tower(self) -> bool:
        """Whether pictures or sounds run through it."""
        return self.name.startswith(("vision", "audio"))

    def inner(self, name: str) -> str:
        """The name of a module or parameter without what stands before the model inside its heads."""
        return name.removeprefix(self.small.prefix)

    def fill(self) -> None:
        stream = self.stream
        n_blocks = len(stream.calls)
        values: dict[str, Any] = {"blocks": f"{self.inner(stream.path)}.{{layer}}", "name": self.name}
        self.evidence["blocks"] = (
            f"{stream.n_links} of {n_blocks - 1} blocks get exactly what the block before returned, "
            f"shape {list(stream.calls[0].got.shape)}"
        )
        if stream.n_links < n_blocks - 1:
            self.unsettled.append("something runs on the stream between some of the blocks; it is not in the row")
        shape = stream.calls[0].got.shape
        if len(shape) == 3 and shape[0] != N_INPUTS and shape[1] == N_INPUTS:
            values["token_first"] = True
            self.evidence["token_first"] = f"{N_INPUTS} inputs were given, and they are the second axis"
        kinds = [self.kind(layer) for layer in range(n_blocks)]
        layouts: list[dict[str, Any]] = []
        incomplete: set[int] = set()
        readers: dict[str, None] = {}
        for kind in dict.fromkeys(kinds):
            # The second of a kind where there is one: a first block may differ.
            alike = [number for number, one in enumerate(kinds) if one == kind]
            layer = alike[:2][-1]
            call = stream.calls[layer]
            block = self.small.model.get_submodule(f"{stream.path}.{layer}")
            anatomy = BlockProbe(block, call.args, call.kwargs, stream.width).peel()
            if anatomy.idle:
                self.unsettled.append(
                    f"{', '.join(anatomy.idle)} of the block did not run on the inputs that were given"
                )
            readers |= dict.fromkeys(anatomy.raw_readers)
            layout: dict[str, Any] = {}
            if anatomy.scales:
                layout["write_scales"] = {_named(linear): vector for linear, vector in anatomy.scales.items()}
                self.evidence["write_scales"] = "half of the one and twice of the other leave the output as it was"
            if problem := anatomy.problem or self._place_norms(anatomy, layout):
                self.unsettled.append(f"block {layer}: {problem}")
                return
            if anatomy.mixed:
                layout["fixed_scale"] = "its blocks mix copies of the stream"
                self.unsettled.append(
                    f"block {layer}: what {', '.join(anatomy.mixed)} write to a dimension reaches others, too, through what "
                    f"mixes the stream"
                )
            if not anatomy.complete:
                incomplete |= {*alike}
                layout["fixed_scale"] = "not all that writes to it is known"
                self.unsettled.append(
                    f"block {layer}: something else writes that no parameter sets for one dimension alone"
                )
            layouts.append(layout)
        if problem := self._join(layouts, values):
            self.unsettled.append(problem)
            return
        self._count_layers(values)
        self._count_experts(values)
        self._before_and_after(values)
        stack = Stack(**values)
        if problem := _verify(self.small, stream, stack, incomplete):
            self.unsettled.append(problem)
            return
        stack = self._with_factors(stack, readers)
        self.evidence["blocks"] += f"; the row was verified on {n_blocks - len(incomplete)} of {n_blocks} blocks"
        self.stack = stack

    def kind(self, layer: int) -> frozenset[str]:
        """What tells a block from others: the names of its parameters."""
        block = self.small.model.get_submodule(f"{self.stream.path}.{layer}")
        return frozenset(name for name, _ in block.named_parameters())

    # --- from what was found to the fields of a row

    def _place_norms(self, anatomy: Anatomy, values: dict[str, Any]) -> str:
        """Turn the steps into fields; the problem in words where they do not fit."""
        steps = anatomy.steps
        site = steps[0].kind
        norms = [step.norm for step in steps if step.norm]
        raw = [step for step in steps if step.kind == "read"]
        values["norm_site"] = site
        if site != "read":
            values["last_norm"] = norms.pop(0)
        if norms:
            values["other_norms"] = tuple(reversed(norms))
        if site == "stream":
            if any(step.kind == "write" for step in steps):
                return "some norms stand on the stream and others on what is added to it"
            self.evidence["norm_site"] = "the block's output is the output of a norm"
            self.evidence["last_norm"] = "its output is the block's output"
        elif site == "write":
            if any(step.kind == "stream" for step in steps):
                return "some norms stand on the stream and others on what is added to it"
            self.evidence["norm_site"] = "each write is the output of a norm, added to the stream"
            self.evidence["last_norm"] = "changing one value of its scale changes one dimension of the block's output"
            if raw:
                values["raw_writes"] = tuple(dict.fromkeys(_named(row.name) for step in raw for row in step.rows))
                self.evidence["raw_writes"] = "no norm stands between these and the stream"
        else:
            if any(step.kind == "write" for step in steps):
                return "its last write is added as it is and others through a norm"
            self.evidence["norm_site"] = "linears add to the stream directly; their norms only scale inputs"
            if norms:
                values["fixed_scale"] = "norms inside its blocks stand on the stream itself"
        if values.get("other_norms"):
            self.evidence["other_norms"] = "found likewise, after the parameters behind them were ablated"
        if anatomy.reading_norms:
            values["reading_norms"] = anatomy.reading_norms
            self.evidence["reading_norms"] = (
                "with all writes ablated they get the stream itself, and are not on its path"
            )
        if any(step.norm for step in steps) or anatomy.reading_norms:
            values["norm_offset"] = anatomy.norm_offset
            self.evidence["norm_offset"] = f"the norms return zeros with their weight at {-anatomy.norm_offset + 0.0:g}"
        return self._place_linears([step.rows for step in steps if step.rows], values)

    def _place_linears(self, groups: list[tuple[WriteSlice, ...]], values: dict[str, Any]) -> str:
        scales = set(values.get("write_scales", {}).values())
        weights = [[row for row in group if not _is_bias(row) and row.name not in scales] for group in groups]
        modules = {_named(row.name) for group in weights for row in group}
        # A bias of no linear that writes, as of all experts together, is a write of its own.
        alone = [row for group in groups for row in group if _is_bias(row) and _named(row.name) not in modules]
        matrices = [row for row in weights[0] if row.n_axes > 1]
        if not matrices:
            return f"only vectors ({', '.join(row.name for row in weights[0])}) were found to write last"
        # Attention and MLP side by side: the last is what runs last, with all that stands beside it (experts).
        branch = matrices[-1].name.partition(".")[0]
        last = [row for row in matrices if row.name.partition(".")[0] == branch]
        others = [row for group in reversed(weights[1:]) for row in group] + [
            row for row in weights[0] if row not in last
        ]
        values["last_linear"] = tuple(_named(row.name) for row in last)
        self.evidence["last_linear"] = (
            f"changing one slice of {last[0].name} changes one dimension of "
            + ("the input of last_norm" if values["norm_site"] != "read" else "the block's output")
            + (", as for its neighbours; of these it runs last" if len(matrices) > len(last) else "")
        )
        if others or alone:
            values["other_writes"] = (*(_named(row.name) for row in others), *(f"{row.name}()" for row in alone))
            self.evidence["other_writes"] = "found likewise; with these and last_linear ablated the block returns " + (
                "its norms of its input" if values["norm_site"] == "stream" else "its input exactly"
            )
        rows = [*(row for group in weights for row in group), *alone]
        if all(row.axis == -1 and row.n_axes == 2 for row in rows):
            values["weight_is_in_by_out"] = True
            self.evidence["weight_is_in_by_out"] = "it is columns, not rows, of the linears that write to one dimension"
        elif axes := {row.name: row.axis for row in rows if row.axis != -2}:
            values["axes"] = axes
            self.evidence["axes"] = "the axis whose slices write to one dimension"
        return ""

    def _join(self, layouts: list[dict[str, Any]], values: dict[str, Any]) -> str:
        """The fields of all kinds of blocks as those of one row; the problem in words where they do not fit together."""
        sites = {layout["norm_site"] for layout in layouts}
        if sites not in ({"read", "write"}, {next(iter(sites))}):
            return f"kinds of blocks differ in norm_site: {', '.join(sorted(map(repr, sites)))}"
        if len(each := {layout["last_norm"] for layout in layouts if "last_norm" in layout}) > 1:
            return f"kinds of blocks differ in last_norm: {', '.join(sorted(map(repr, each)))}"
        if len(sites) > 1:  # blocks without the norm add as they are
            for layout in layouts:
                if layout["norm_site"] == "read":
                    layout["raw_writes"] = (*layout.get("other_writes", ()), *layout["last_linear"])
            layouts.sort(key=lambda layout: layout["norm_site"] != "write")
        offsets = {layout["norm_offset"] for layout in layouts if "norm_offset" in layout}
        if len(offsets) > 1:
            return "some norms multiply by their weight and others by 1 + weight"
        values |= layouts[0]
        if offsets:
            values["norm_offset"] = offsets.pop()
        if len(layouts) == 1:
            return ""
        if fixed := next(filter(None, (layout.get("fixed_scale") for layout in layouts)), ""):
            values["fixed_scale"] = fixed
        values |= _joined(layouts, "write_scales")
        for key in ("last_linear", "other_writes", "raw_writes", "other_norms", "reading_norms"):
            if joined := tuple(dict.fromkeys(name for layout in layouts for name in layout.get(key, ()))):
                values[key] = joined
        if both := set(values["last_linear"]) & set(values.get("other_writes", ())):
            return f"{', '.join(sorted(both))} writes last in some blocks and before others in the rest"
        if both := set(values.get("other_norms", ())) & set(values.get("reading_norms", ())):
            return f"{', '.join(sorted(both))} norms the writes of some blocks and the inputs of the rest"
        turned = [layout.pop("weight_is_in_by_out", False) for layout in layouts]
        if any(turned) and not all(turned):
            return "some blocks hold linears [in, out] and others [out, in]"
        values |= _joined(layouts, "axes")
        sets = [
            tuple(sorted({*layout["last_linear"], *layout.get("other_writes", ()), *layout.get("other_norms", ())}))
            for layout in layouts
        ]
        values["layouts"] = tuple(dict.fromkeys(sets))
        self.evidence["layouts"] = (
            f"{len(layouts)} kinds of blocks, by the names of their parameters; one of each was taken apart"
        )
        return ""

    def _with_factors(self, stack: Stack, raw_readers: Iterable[str]) -> Stack:
        """`stack` with what can take factors in its blocks: neurons, heads, and norms with all that reads them."""
        (bound,) = bind((stack,), live_parameters(self.small.model), self.small.config)
        kinds = [self.kind(layer) for layer in range(len(self.stream.calls))]
        few = [layer for layer, kind in enumerate(kinds) if kinds[:layer].count(kind) < 2]  # of each kind
        layers = few if self.stream.calls[0].got.numel() > MANY_VALUES else range(len(kinds))
        blocks = [Factors(self.small, bound, layer, self.stream.calls[layer]) for layer in layers]
        found = agreed([(block, block.search()) for block in blocks])
        activation = _activation(self.small.config, stack.layers)
        if not activation:
            found.pop("rectified", None)  # which function it is, no config says
        elif "rectified" in found:
            found["activation"] = activation
        through = {name: norm for norm, names in found.get("readers", {}).items() for name in names}
        if raw := {name: through.get(name, "") for name in raw_readers}:
            found["raw_readers"] = raw
            self.evidence["raw_readers"] = (
                "with all writes ablated they get the stream itself, in some blocks or in all"
            )
        if (
            not stack.fixed_scale
            and stack.norm_site != "stream"
            and not all(block.keep_factor(raw) for block in blocks)
        ):
            found["fixed_scale"] = "its blocks do not keep a factor of the stream"
        found["axes"] = {**stack.axes, **found.get("axes", {})}
        remarks = {
            "neurons": "factors on the rows of the one and the columns of the other leave the output as it was",
            "rectified": "each row of the one reaches one column of the other alone, through an activation",
            "heads": "factors on what gives values, or keys, and on what takes them leave the output as it was",
            "activation": "transformers knows the value of this config key as an activation",
            "mlp": "of the parts that write, this has neurons of its own",
            "readers": "factors on the norm's weights and the columns of all these leave the output as it was",
        }
        self.evidence |= {name: remark for name, remark in remarks.items() if name in found}
        if found.get("fixed_scale", stack.fixed_scale):
            self.evidence["fixed_scale"] = "why repair leaves the scale of this stream as it is"
        return replace(stack, **found)

    def _count_layers(self, values: dict[str, Any]) -> None:
        """The config key that sets the number of blocks: changing it changes their number."""
        key = number_of_blocks(self.small, self.stream.path)
        values["layers"] = key
        self.evidence["layers"] = (
            "with one less there, the model has one less of these blocks"
            if key
            else "no config key was found that sets the number of blocks, so it is not checked"
        )

    def _count_experts(self, values: dict[str, Any]) -> None:
        """The config key that sets the number of experts, where one parameter holds all of theirs."""
        packed = [name.removesuffix("()") for name in values["last_linear"] if name.endswith("()")]
        live = live_parameters(self.small.model)
        for layer in range(len(self.stream.calls)):
            for name in packed:
                path = f"{self.stream.path}.{layer}.{name}"
                if path in live and (key := number_of_experts(self.small, path)):
                    values["experts"] = key
                    self.evidence["experts"] = f"with one more there, {name} holds one more"
                    return

    def _before_and_after(self, values: dict[str, Any]) -> None:
        outside = Surroundings(self.small, self.stream, self.streams)
        embedding_norm, tables, linears = outside.before()
        if embedding_norm:
            values["embedding_norm"] = self.inner(embedding_norm)
            self.evidence["embedding_norm"] = "its output is the first block's input"
        if not outside.complete:
            found = ", ".join((*tables, *linears)) or "nothing"
            self.unsettled.append(f"not all that writes before the first block was found ({found} was); left out")
            tables = linears = ()
        if not outside.scales and values["norm_site"] != "stream" and not embedding_norm:
            values.setdefault("fixed_scale", "what writes before its first block passes no factor on to it")
        if not self.is_tower and any(re.search("(image|audio|video|speech)_token", key) for key in self.small.config):
            values.setdefault("fixed_scale", "pictures or sounds are written to it, too")
        if tables:
            values["embeddings"] = tuple(map(self.inner, tables))
            self.evidence["embeddings"] = "changing one column changes one dimension before the first block"
        if linears:
            values["embedding_linears"] = tuple(map(self.inner, linears))
            self.evidence["embedding_linears"] = "changing one row changes one dimension before the first block"
        if final_norm := outside.after():
            values["final_norm"] = self.inner(final_norm)
            self.evidence["final_norm"] = "its input is the last block's output"

    # --- names in files

    def name_files(self, files: FileNames) -> None:
        """What files call the parameters of the stack, where they call them otherwise: `stored_as`, or a stack of their own."""
        stack = self.stack
        assert stack is not None
        path = self.stream.path
        inside = [
            (layer, name)
            for layer in range(len(self.stream.calls))
            for name in _inside(stack)
            if f"{path}.{layer}.{name}" in files.live
        ]
        blocks = files.block(path, len(self.stream.calls), inside)
        if blocks.lacking:
            self.unsettled.append(
                f"saved files hold {', '.join(blocks.lacking[:2])} in another form, which this row does not name"
            )
        if not blocks.path:
            return
        here = blocks.path == stack.blocks or blocks.path.endswith(f".{stack.blocks}")
        before = blocks.path.removesuffix(stack.blocks) if here else ""
        other = {live: (name,) for live, name in blocks.names.items()}
        for live in _outside(stack):
            name = files.whole(f"{self.small.prefix}{live}") or files.whole(live)
            if name and name != before + live and name.startswith(before):
                other[live] = (name.removeprefix(before),)
        if here:
            self.stack = replace(stack, stored_as=other)
        else:
            self.stored = replace(stack, blocks=blocks.path, stored_as=other)


def _joined(layouts: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """The table `key` of all layouts as one, under its key; {} where none has it."""
    joined = {name: one for layout in layouts for name, one in layout.get(key, {}).items()}
    return {key: joined} if joined else {}


def _activation(config: Config, layers: str) -> str:
    """The config key, beside that of the number of `layers`, that names an activation; "" without one."""
    from transformers.activations import ACT2FN

    for part in layers.split(".")[:-1]:
        config = config[part]
    named = [key for key, value in config.items() if isinstance(value, str) and value in ACT2FN]
    return next((key for key in ("hidden_act", "activation_function", *named) if key in named), "")


def _inside(stack: Stack) -> Iterable[str]:
    """Parameters of a block that a row names."""
    for linear in dict.fromkeys((*stack.other_writes, *stack.last_linear)):
        yield from (parameter(linear, leaf) for leaf in ("weight", "bias"))
    for norm in dict.fromkeys((*stack.reading_norms, *stack.other_norms, stack.last_norm)):
        yield from (f"{norm}.{leaf}" for leaf in ("weight", "bias") if norm)
    yield from dict.fromkeys(stack.write_scales.values())


def _outside(stack: Stack) -> Iterable[str]:
    """Parameters outside the blocks that a row names."""
    for name in (*stack.embeddings, *stack.embedding_linears, stack.embedding_norm, stack.final_norm):
        if name:
            yield from (name, f"{name}.weight", f"{name}.bias")


def _is_bias(row: WriteSlice) -> bool:
    return (row.n_axes == 1 and row.name.endswith("bias")) or row.name.endswith("_bias")


def _named(name: str) -> str:
    """The linear of a parameter as `Stack` names it: its module, or "name()" for a bare parameter."""
    module, _, leaf = name.rpartition(".")
    return module if leaf in ("weight", "bias") else f"{name.removesuffix('_bias')}()"


# --- the row against the model ---------------------------------------------------------------------------------------


def _verify(small: SmallModel, stream: Stream, stack: Stack, incomplete: Collection[int]) -> str:
    """The first way in which the whole model contradicts the stack, in words; of `incomplete` layers nothing is claimed."""
    import torch

    try:
        (bound,) = bind((stack,), live_parameters(small.model), small.config)
    except OutlierlensError as error:
        return f"the row does not fit the model: {str(error).partition(';')[0]}"
    if stack.norm_site == "stream":
        layers = [(*scale, *bias) for scale, bias in zip(bound.scale, bound.bias, strict=True)]
    else:  # a norm of the stream itself, between the writes, gives less its mean of what comes in as 0
        between = [bound.norms[norm] for norm in stack.other_norms if norm in bound.norms]
        layers = [
            tuple(dict.fromkeys((*writes, *(param for norm in between for param in norm[layer]))))
            for layer, writes in enumerate(bound.writes)
        ]
    named = live_parameters(small.model)
    with torch.no_grad():
        for layer, (params, call) in enumerate(zip(layers, stream.calls, strict=True)):
            if layer in incomplete:
                continue
            block = small.model.get_submodule(bound.blocks[layer])
            saved = [(param, named[param.name].select(param.axis, DIM).clone()) for param in params]
            for param in params:
                named[param.name].select(param.axis, DIM).fill_(param.off)
            silent = BlockProbe(block, call.args, call.kwargs, stream.width).silent()
            for param, values in saved:
                named[param.name].select(param.axis, DIM).copy_(values)
            if not silent:
                return (
                    f"with dimension {DIM} ablated, block {layer} still writes to it: it differs from those taken apart"
                )
    return ""
