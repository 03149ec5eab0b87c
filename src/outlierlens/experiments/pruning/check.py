"""What a pruning did to the residual stream: `prune_check`.

found = prune_check("bert", "pruned-bert")                  # two models: what is newly zero
found = prune_check("bert", "masks.safetensors")            # a model and masks
found = prune_check("pruned.pt")                            # a state dict with weight_orig and weight_mask, config.json beside
found.holds, found.verdict

Each block's last operation is read, and where the intact weights are there its MLP, whose single weights may carry a layer's
output; torch is needed for .bin and .pt files alone.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from outlierlens import architectures as arch
from outlierlens.architectures import BoundStack, Neuron, Param, mlp_axis
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.scan.measure import check_size, scan_checkpoint, scan_mlps, sites_of
from outlierlens.detection.scan.result import Standing
from outlierlens.errors import BadFile, BadInput, TooMuchToRead, UnknownArchitecture
from outlierlens.experiments.pruning.masks import Masks, Unmasked, held, open_source
from outlierlens.experiments.pruning.options import CheckedModels, CheckOptions
from outlierlens.experiments.pruning.removal import Cells, infer_positions, per_dim_off, read_positions
from outlierlens.experiments.pruning.result import Hit, PruneCheck, SingleWeight, StackCheck
from outlierlens.options import FIND
from outlierlens.results.document import Provenance
from outlierlens.session import Session

SHOWN = 32  # positions beside the outliers whose shares a result keeps


def prune_check(before: str, after: str | None = None, options: CheckOptions | None = None) -> PruneCheck:
    """Say which positions of the residual stream a pruning removed in too many layers, and which outliers it hit.

    `before` is the intact model and `after` the pruned one, or masks. Masks alone will do where a config.json lies beside
    them; outliers are then known only where the file holds the weights too.

    Raises:
        BadInput: nothing in the masks belongs to the model; layers were removed; a narrower stream without a map.
        UnknownModel, UnknownArchitecture, BadFile, TooMuchToRead: see those.
    """
    options = options or CheckOptions()
    with ExitStack() as files:
        scan = options.scan
        reach = {"token": scan.token, "offline": scan.offline}
        first = files.enter_context(open_source(before, revision=scan.revision, subfolder=scan.subfolder, **reach))
        second = files.enter_context(open_source(after, **reach)) if after is not None else None
        return _Check(first, second, options).run()


def run(session: Session, options: CheckedModels) -> PruneCheck:
    """The check, as the command runs it."""
    rule = replace(options.rule, scope="outliers" if options.only_outliers else "all")
    options = replace(options, rule=rule, scan=session.scanning(max_read=options.scan.max_read))
    return prune_check(options.before, options.after, options)


class _Check:
    """Intact weights (where there are any) and the evidence of what was pruned."""

    def __init__(self, first: Checkpoint, second: Checkpoint | None, options: CheckOptions):
        self.options, self.first, self.second = options, first, second
        self.notes = list(first.notes) + (list(second.notes) if second else [])
        evidence = second or first
        holds = held(evidence) if options.reading == "auto" else options.reading
        if second is None:
            if options.reading == "weights":
                raise BadInput(f"{first.name}: one model alone does not say what was pruned; give the intact one first")
            if holds == "weights" and not _looks_like_masks(first):
                raise BadInput(
                    f"{first.name} holds weights, not masks; give the intact model first and the pruned one second"
                )
            holds = "masks" if holds == "weights" else holds
        self.masks = Masks(evidence) if holds != "weights" else None
        if options.positions and self.masks is not None:
            raise BadInput("--positions belongs to a pruned model; masks have the shapes of the intact one")
        self.evidence = "models" if self.masks is None else self.masks.holds if holds == "torch masks" else "masks"
        self.model = Unmasked(first) if second is None or held(first) == "torch masks" else first
        self.config = self.model.config or (second.config if second else {})

    def run(self) -> PruneCheck:
        """Check every stream."""
        options = self.options
        stacks = self._declared(options.scan.row)
        bound = self._bound(stacks)
        chosen = [one for one in bound if options.stack in (None, one.name)]
        if not chosen:
            known = ", ".join(one.name for one in bound)
            raise BadInput(f"no stream {options.stack!r} in {self.model.name}; streams are {known}")
        later = self._later(stacks) if self.masks is None else {}
        digest = hashlib.sha256(self.first.header_digest().encode())
        checks = tuple(self._stack(one, later.get(one.name), digest) for one in chosen)
        self._nothing_in_common(bound)
        sources = [self.first, *([self.second] if self.second else [])]
        return PruneCheck(
            provenance=Provenance.now((self.second or self.first).name, digest.hexdigest()),
            before=self.first.name if self.second else "",
            after=(self.second or self.first).name,
            evidence=self.evidence,
            rule=options.rule,
            stacks=checks,
            bytes_read=sum(one.bytes_read for one in sources),
            total_bytes=sum(one.total_bytes for one in sources),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _declared(self, row: arch.RowChoice) -> tuple[arch.Stack, ...]:
        if row is not None:
            return arch.stacks_for(self.model, row)
        if not self.config:
            raise BadInput(
                f"{self.model.name}: there is no config.json beside it, so nothing says what its tensors are; name the "
                "intact model first: outlierlens prune-check MODEL MASKS"
            )
        return arch.stacks_of(self.config, self.model.name)

    def _bound(self, stacks: tuple[arch.Stack, ...]) -> list[BoundStack]:
        """The streams, by the names of the intact model; of masks alone, by the names of what they mask."""
        if self.second is not None or self.masks is None or self.masks.holds == "torch masks":
            return arch.bind(stacks, self.model.tensors, self.config)
        try:
            return arch.bind(stacks, self.masks.parameters(), self.config)
        except (BadFile, UnknownArchitecture) as error:
            raise BadInput(
                f"{self.model.name}: these masks alone do not cover the last operation of every block ({error}); name the "
                "intact model first: outlierlens prune-check MODEL MASKS"
            ) from None

    def _later(self, stacks: tuple[arch.Stack, ...]) -> dict[str, BoundStack]:
        """The streams of the pruned model."""
        assert self.second is not None
        config = self.second.config or self.config
        return {one.name: one for one in arch.bind(stacks, self.second.tensors, config)}

    def _stack(self, bound: BoundStack, later: BoundStack | None, digest: Any) -> StackCheck:
        """One stream: count what is off in every cell, then apply the rule."""
        cells = Cells.of(bound, self._shapes(bound), self.options.rule)
        notes = list(bound.stack.notes)
        if self.second is not None:
            check_size(self.model, sites_of(bound, "last"), self.options.scan, instead="")
        kept = np.arange(0)
        if self.masks is not None:
            off = np.stack([
                sum((self.masks.off(p, bound.prefix, self._shapes(bound)[p.name]) for p in layer), np.zeros(cells.width, int))
                for layer in cells.params
            ])  # fmt: skip
            removed = cells.removed(off)
            if cells.beyond_masks:
                notes.append(
                    "norms here multiply by 1 + weight: a mask sets the weight to 0 and the factor to 1, so none counts"
                )
        else:
            if later is None:
                raise BadInput(f"{self._name(1)}: has no stream {bound.name!r}, which {self._name(0)} has")
            off, before, kept, said = self._compare(bound, later, cells)
            notes += said
            removed = cells.removed(off) & ~cells.removed(before)
            off = np.maximum(off - before, 0)
        digest.update(bound.name.encode() + off.tobytes())
        outliers, named_by, found_notes = self._outliers(bound, cells)
        found = _summary(cells, off, removed, (outliers, named_by), (*notes, *found_notes), kept)
        try:
            return replace(found, weights=tuple(self._single_weights(bound, later, kept, digest)))
        except (BadInput, TooMuchToRead) as error:
            return replace(found, not_looked_at=str(error))

    def _single_weights(
        self, bound: BoundStack, later: BoundStack | None, kept: np.ndarray, digest: Any
    ) -> Iterator[SingleWeight]:
        """The largest weight of each neuron that the intact MLP's weights single out, and whether it is gone.

        Raises:
            BadInput: there are no intact weights, neurons cannot be told, or the pruned MLP has others.
            TooMuchToRead: the MLPs are larger than may be read.
        """
        if self.second is None and self.evidence == "masks":
            raise BadInput("masks alone hold no weights; name the intact model first")
        found = scan_mlps(self.model, bound, self.options.scan, digest).found
        for layer, neurons in groupby(sorted(found, key=_place), key=lambda one: _place(one).layer):
            pruned = self._pruned(bound, later, layer)
            for one in neurons:
                rows = np.flatnonzero(kept == one.dim) if kept.size else [one.dim]  # of the pruned stream: one, or none
                gone = pruned is not None and not pruned[rows, _place(one).neuron].any()
                yield SingleWeight(one.neuron, one.dim, one.weight, one.times_median, gone)

    def _pruned(self, bound: BoundStack, later: BoundStack | None, layer: int) -> np.ndarray | None:
        """The last linear of a pruned MLP, or its mask, [row, column]; None where it has no mask."""
        axis = mlp_axis(later or bound)
        ((param,), *_) = axis.scale[layer:]
        name = self.masks.find(param.name, bound.prefix) if self.masks else param.name
        source = self.masks.source if self.masks else self.second
        if name is None:
            return None
        assert source is not None
        ((before,), *_) = mlp_axis(bound).scale[layer:]
        if source.tensors[name].shape[param.axis] != self.model.tensors[before.name].shape[before.axis]:
            raise BadInput("the pruned MLPs have fewer neurons, and which ones are left cannot be told from the files")
        ((_, values),) = source.read([name])
        return values.T if bound.stack.weight_is_in_by_out else values

    def _shapes(self, bound: BoundStack) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter of the last operations; of masks alone, that of the mask."""
        params = {p.name for layer in (*bound.scale, *bound.bias) for p in layer}
        if all(name in self.model.tensors for name in params):
            return {name: self.model.tensors[name].shape for name in params}
        assert self.masks is not None
        found = {name: self.masks.find(name, bound.prefix) for name in params}
        return {name: self.masks.source.tensors[real].shape for name, real in found.items() if real}

    def _compare(
        self, old: BoundStack, new: BoundStack, cells: Cells
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
        """(off after, off before, kept positions, notes), counts [layer, dim] in the old stream's positions."""
        assert self.second is not None
        later = Cells.of(new, {name: info.shape for name, info in self.second.tensors.items()}, self.options.rule)
        if later.n_layers != cells.n_layers:
            raise BadInput(
                f"{self._name(1)}: has {later.n_layers} layers of {old.name!r}, {self._name(0)} has {cells.n_layers}: whole "
                "layers were removed, and which ones cannot be told from the files; this check compares layer by layer"
            )
        kept, notes = self._kept(old, new, cells.width, later.width)
        off = np.repeat(cells.total[:, None], cells.width, axis=1)
        before = np.zeros_like(off)
        for layer in range(cells.n_layers):
            then = self._off(self.model, cells.params[layer], cells.width)
            now = self._off(self.second, later.params[layer], later.width)
            # Rows of fewer weights (a narrower MLP) lost what they no longer have.
            off[layer, kept] = now + max(0, int(cells.total[layer] - later.total[layer]))
            before[layer] = then
        if not np.array_equal(cells.total, later.total):
            notes.append("rows of the pruned model have fewer weights; what they no longer have counts as removed")
        return off, before, kept if later.width != cells.width else np.arange(0), notes

    def _off(self, source: Checkpoint, params: Sequence[Param], width: int) -> np.ndarray:
        by_name = {param.name: param for param in params}
        found = np.zeros(width, dtype=np.int64)
        for name, values in source.read(by_name):
            if np.isnan(values).any():
                raise BadFile(f"{source.name}: {name} holds NaN: the weights are damaged; fetch or train them again")
            found += per_dim_off(values == by_name[name].off, by_name[name])
        return found

    def _kept(self, old: BoundStack, new: BoundStack, old_width: int, new_width: int) -> tuple[np.ndarray, list[str]]:
        """The old position of each new one."""
        if self.options.positions:
            return read_positions(self.options.positions, old_width, new_width), ["positions as given by --positions"]
        if new_width == old_width:
            return np.arange(old_width), []
        if new_width > old_width:
            raise BadInput(
                f"{self._name(1)}: its stream has {new_width} positions, {self._name(0)} has {old_width}: it grew"
            )
        assert self.second is not None
        found = infer_positions(self.model, self.second, old, new)
        if found is None:
            raise BadInput(
                f"{self._name(1)}: its stream has {new_width} positions of {old_width}, and its norm vectors are no copies "
                "of the old ones, so which positions were removed cannot be checked; give --positions, a JSON list of the old "
                "position of each new one. That the others are gone from every layer can be said without it"
            )
        return found, ["positions found by their values: each has those of one old position in every norm vector"]

    def _outliers(self, bound: BoundStack, cells: Cells) -> tuple[tuple[int, ...], str, tuple[str, ...]]:
        """(dims, who names them, notes)"""
        dims = () if self.options.dims == FIND else tuple(dict.fromkeys(self.options.dims))
        if dims:
            bad = [dim for dim in dims if not 0 <= dim < cells.width]
            if bad:
                raise BadInput(f"dimension {bad[0]} does not exist; stream {bound.name!r} has 0 to {cells.width - 1}")
            return dims, "given", ()
        if self.second is None and self.masks is not None and self.masks.holds == "masks":
            return (), "no one", ("masks alone do not say where outliers are: name the intact model first, or --dims",)
        quiet = replace(self.options.scan, notice=None)  # what is read was said when its size was checked
        self.model.config = self.config
        scan = scan_checkpoint(self.model, quiet)
        found = next(stack for stack in scan.stacks if stack.stack == bound.name)
        return found.dims, found.named_by, ()

    def _nothing_in_common(self, bound: Sequence[BoundStack]) -> None:
        """Masks that fit nothing of the model are a mistake; masks of other parameters are worth a remark."""
        if self.masks is None or self.masks.used:
            return
        known = {name for name in self.model.tensors if self.second is not None}
        prefixes = [one.prefix for one in bound]
        fits = [name for name in known if any(self.masks.find(name, prefix) for prefix in prefixes)]
        if known and not fits:
            shown = ", ".join(sorted(self.masks.source.tensors)[:3])
            raise BadInput(
                f"{self.masks.source.name}: none of its {len(self.masks.source.tensors)} tensors ({shown}, …) is named as a "
                f"parameter of {self.model.name}; are these masks of another model?"
            )
        self.notes.append(
            "no mask is of a block's last operation: other parameters were pruned, which removes no position"
        )

    def _name(self, which: int) -> str:
        return (self.second or self.first).name if which else self.first.name


def _place(one: Standing) -> Neuron:
    return Neuron.parse(one.neuron)


def _looks_like_masks(source: Checkpoint) -> bool:
    """Whether the smallest tensor holds zeros and ones alone; what is read later is looked at value by value."""
    names = sorted(source.tensors, key=lambda name: source.tensors[name].nbytes)
    return all(np.isin(values, (0, 1)).all() for _, values in source.read(names[:1]))


def _summary(
    cells: Cells,
    off: np.ndarray,
    removed: np.ndarray,
    named: tuple[tuple[int, ...], str],
    notes: Sequence[str],
    kept: np.ndarray,
) -> StackCheck:
    outliers, named_by = named
    layers_removed = removed.sum(axis=0)
    share = off / cells.total[:, None]
    lost = share.mean(axis=0)
    broken = cells.broken(removed)
    broken = broken[np.lexsort((broken, -layers_removed[broken]))]
    worst = [int(dim) for dim in np.lexsort((np.arange(cells.width), -lost))[:SHOWN] if lost[dim] > 0]
    dims = tuple(dict.fromkeys((*outliers, *broken[:SHOWN].tolist(), *worst)))[: len(outliers) + SHOWN]
    return StackCheck(
        stack=cells.bound.name,
        site=cells.site,
        definition=cells.definition,
        n_layers=cells.n_layers,
        needed=cells.limit,
        hidden_size=cells.width,
        values=int(cells.total.sum()) * cells.width,
        values_removed=int(off.sum()),
        layers_removed=layers_removed,
        broken=tuple(broken.tolist()),
        outliers=tuple(Hit(dim, tuple(np.flatnonzero(removed[:, dim]).tolist()), float(lost[dim])) for dim in outliers),
        named_by=named_by,
        dims=dims,
        share=share[:, list(dims)],
        notes=tuple(notes),
        kept=tuple(kept.tolist()),
    )
