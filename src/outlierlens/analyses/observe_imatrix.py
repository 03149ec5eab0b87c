"""What an importance matrix of llama.cpp says of a model: nothing is run, and torch is not needed.

    with open_checkpoint("smollm2-135m") as checkpoint:
        found = second_moments(checkpoint, Path("imatrix.gguf"), ActivationRules())
    found["moments"]                       # a row for each linear, by layer

The root of a second moment is what a rule on activations is held against: max |x| is at least as large. A value that is large
at few tokens may be missed.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from outlierlens.architectures import family_of
from outlierlens.architectures.bind import NUMBERED
from outlierlens.architectures.rows import stacks_of
from outlierlens.architectures.stack import BLOCK, Gguf
from outlierlens.checkpoints import Checkpoint
from outlierlens.checkpoints.gguf import Imatrix, ImatrixEntry, read_imatrix
from outlierlens.detection.rules import ActivationRules
from outlierlens.errors import BadInput
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import More, Quiet, Row
from outlierlens.view.section import Count


@dataclass(frozen=True, kw_only=True)
class SecondMoments(Row):
    """Mean x² of one linear's inputs, in squared activation units."""

    note = "x²: mean over all inputs. Found: root above 100 and above 1,000 times the median root."
    path: Annotated[str, Quiet]
    """of the module in Hugging Face's names"""
    layer: int | None
    """layer: none outside the blocks"""
    part: str
    """linear: path inside the block"""
    largest: float
    """largest x²"""
    dim: int
    """input: that it is of; a dimension, or of an MLP's last linear a neuron"""
    median: float
    """median x²: over inputs"""
    width: Annotated[int, Count, More]
    """inputs"""
    vectors: Annotated[int, Count, More]
    """vectors seen"""
    outliers: tuple[str, ...]
    """found: inputs whose root second moment passes the rule "massive", strongest first: "507", of neurons "11:1229\""""


def second_moments(checkpoint: Checkpoint, path: Path, rules: ActivationRules) -> dict[str, Any]:
    """The fields of an `Observation`: what each linear of a model reads, and the inputs that rule "massive" finds by roots.

    Raises:
        BadFile: no importance matrix. BadInput: of another model, or of a family whose names in GGUF are not known.
    """
    found = read_imatrix(path)
    row = _row(checkpoint, found.entries, path)
    neurons = {part for stack in stacks_of(checkpoint.config, checkpoint.name) for part in stack.last_linear}
    moments, strangers = list[SecondMoments](), []
    for name, entry in found.entries.items():
        told = row.translate(name)
        block = BLOCK.match(name.rpartition(".")[0])
        if not told.known:
            strangers.append(name)
            continue
        module = told.name.removesuffix(".weight")
        layer = int(block[1]) if block else None
        part = module.removeprefix(row.blocks.replace("{layer}", str(layer)) + ".") if block else module
        values = _fitting(checkpoint, path, module, entry)
        root = np.sqrt(values)
        dims = np.flatnonzero((root > rules.massive_size) & (root > rules.massive_ratio * np.median(root)))
        named = f"{layer}:" * any(part in (one, one.removesuffix("()")) for one in neurons)
        moments.append(SecondMoments(
            path=module, layer=layer, part=part, width=values.size, vectors=entry.vectors, largest=float(values.max()),
            dim=int(values.argmax()), median=float(np.median(values)),
            outliers=tuple(f"{named}{dim}" for dim in dims[np.argsort(-values[dims], kind="stable")].tolist()),
        ))  # fmt: skip
    notes = list(checkpoint.notes)
    if strangers:
        notes.append(
            f"{len(strangers):,} tensors of {path.name} that the family's row does not name, such as {strangers[0]}"
        )
    about = About(
        data=f"{path.name}{f' ({found.data})' if found.data else ''}", inputs="chunks", n_texts=found.n_chunks,
        data_digest=hashlib.sha256(path.read_bytes()).hexdigest(), max_length=found.chunk_size,
        n_tokens=max(entry.vectors for entry in found.entries.values()),
    )  # fmt: skip
    moments.sort(key=lambda one: -1 if one.layer is None else one.layer)
    provenance = Provenance.now(checkpoint.name, checkpoint.header_digest(), adapter=checkpoint.adapter)
    return {
        "provenance": provenance, "about": about, "moments": tuple(moments), "never_fed": found.unfed,
        "without_entry": tuple(_without_entry(checkpoint, row, found)), "notes": tuple(notes),
    }  # fmt: skip


def _without_entry(checkpoint: Checkpoint, row: Gguf, found: Imatrix) -> Iterator[str]:
    """GGUF's names of the blocks' linears that the model has and the matrix does not."""
    many = (name for name, one in checkpoint.tensors.items() if len(one.shape) > 1)
    matrices = {NUMBERED.sub(".experts", name).removesuffix(".weight") for name in many}
    blocks = {int(match[1]) for name in found.entries if (match := BLOCK.match(name))}
    depth = checkpoint.config.get(stacks_of(checkpoint.config, checkpoint.name)[0].layers, max(blocks, default=-1) + 1)
    for layer in range(depth):
        for module in row.inner:
            name = f"blk.{layer}.{module}.weight"
            inside = row.translate(name).name.removesuffix(".weight").partition(f".{layer}.")[2]
            is_matrix = any(one.endswith(f".{layer}.{inside}") for one in matrices)
            if is_matrix and name not in found.entries and name not in found.unfed:
                yield name


def _row(checkpoint: Checkpoint, entries: Mapping[str, ImatrixEntry], path: Path) -> Gguf:
    """The family's GGUF row that names most of the tensors."""
    counts = [(sum(row.translate(name).known for name in entries), row) for row in family_of(checkpoint.config).gguf]
    n_known, best = max(counts, key=lambda one: one[0], default=(0, None))
    if best is None or not n_known:
        raise BadInput(
            f"{path}: no tensor of it is one of {checkpoint.name} (family {checkpoint.config.get('model_type')}); name the "
            "model that it was made of"
        )
    return best


def _fitting(checkpoint: Checkpoint, path: Path, module: str, entry: ImatrixEntry) -> np.ndarray:
    """Second moments [input], as many as the linear has inputs."""
    stored = next(
        (name for name in checkpoint.tensors if name.endswith(f"{module}.weight") or name.endswith(module)), None
    )
    # None is another layout of the same family: tied, packed or renamed.
    if stored is not None and entry.moments.size not in checkpoint.tensors[stored].shape[:-3:-1]:
        raise BadInput(
            f"{path}: has {entry.moments.size:,} values of {module}, whose weight in {checkpoint.name} is "
            f"{list(checkpoint.tensors[stored].shape)}; name the model that it was made of"
        )
    return entry.moments
