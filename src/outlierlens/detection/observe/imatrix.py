"""What an importance matrix of llama.cpp says of a model: nothing is run, and torch is not needed.

    with open_checkpoint("smollm2-135m") as checkpoint:
        found = observe_imatrix(checkpoint, Path("imatrix.gguf"))
    found.moments                          # SecondMoments of each linear, by layer

The root of a second moment is what a rule on activations is held against: max |x| is at least as large. A value that is large
at few tokens may be missed.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from outlierlens.architectures import family_of
from outlierlens.architectures.rows import stacks_of
from outlierlens.architectures.stack import BLOCK, Gguf
from outlierlens.checkpoints import Checkpoint
from outlierlens.checkpoints.imatrix import Entry, read_imatrix
from outlierlens.detection.observe.result import Observation, SecondMoments
from outlierlens.detection.rules import ActivationRules
from outlierlens.errors import BadInput
from outlierlens.results.document import Provenance


def observe_imatrix(checkpoint: Checkpoint, path: Path, rules: ActivationRules | None = None) -> Observation:
    """The second moments of what each linear of a model reads, and the inputs that the rule "massive" finds by their roots.

    Raises:
        BadFile: no importance matrix. BadInput: of another model, or of a family whose names in GGUF are not known.
    """
    found = read_imatrix(path)
    row = _row(checkpoint, found.entries, path)
    neurons = {part for stack in stacks_of(checkpoint.config, checkpoint.name) for part in stack.last_linear}
    rows, strangers = [], []
    for name, entry in found.entries.items():
        told = row.translate(name)
        block = BLOCK.match(name.rpartition(".")[0])
        if not told.known:
            strangers.append(name)
            continue
        module = told.name.removesuffix(".weight")
        layer = int(block[1]) if block else -1
        part = module.removeprefix(row.blocks.replace("{layer}", str(layer)) + ".") if block else module
        reads = any(part in (one, one.removesuffix("()")) for one in neurons)
        fitting = _fitting(checkpoint, path, module, entry)
        rows.append(_summary(module, layer, part, reads, fitting, rules or ActivationRules()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    notes = list(checkpoint.notes)
    if strangers:
        notes.append(
            f"{len(strangers):,} tensors of {path.name} that the family's row does not name, such as {strangers[0]}"
        )
    if found.empty:
        notes.append(f"{len(found.empty):,} tensors of {path.name} read nothing, such as {found.empty[0]}")
    return Observation(
        provenance=Provenance.now(checkpoint.name, checkpoint.header_digest()),
        data=f"{path.name}{f' ({found.data})' if found.data else ''}",
        data_digest=digest,
        n_texts=found.n_chunks,
        n_tokens=max(entry.vectors for entry in found.entries.values()),
        n_special=0,
        max_length=found.chunk_size,
        n_sigma=0.0,
        stacks=(),
        notes=tuple(notes),
        inputs="chunks",
        moments=tuple(sorted(rows, key=lambda one: one.layer)),
    )


def _row(checkpoint: Checkpoint, entries: Mapping[str, Entry], path: Path) -> Gguf:
    """The family's GGUF row that names most of the tensors."""
    counts = [(sum(row.translate(name).known for name in entries), row) for row in family_of(checkpoint.config).gguf]
    n_known, best = max(counts, key=lambda one: one[0], default=(0, None))
    if best is None or not n_known:
        raise BadInput(
            f"{path}: no tensor of it is one of {checkpoint.name} (family {checkpoint.config.get('model_type')}); name the "
            "model that it was made of"
        )
    return best


def _fitting(checkpoint: Checkpoint, path: Path, module: str, entry: Entry) -> Entry:
    """The entry with as many columns as the linear has inputs: the old format strings experts one behind the other."""
    stored = next(
        (name for name in checkpoint.tensors if name.endswith(f"{module}.weight") or name.endswith(module)), None
    )
    if stored is None:  # another layout of the same family: tied, packed or renamed
        return entry
    shape, size = checkpoint.tensors[stored].shape, entry.moments.size
    width = next((one for one in shape[:-3:-1] if size == one), None)
    experts = next((one for one in shape[:-3:-1] if len(shape) == 3 and size == one * shape[0]), None)
    if width is None and experts is None:
        raise BadInput(
            f"{path}: has {size:,} values of {module}, whose weight in {checkpoint.name} is {list(shape)}; name the model "
            "that it was made of"
        )
    return entry if width is not None else Entry(entry.moments.reshape(-1, experts or 1).mean(0), entry.vectors)


def _summary(module: str, layer: int, part: str, neurons: bool, entry: Entry, rules: ActivationRules) -> SecondMoments:
    root = np.sqrt(entry.moments)
    out = (root > rules.massive_size) & (root > rules.massive_ratio * np.median(root))
    dims = np.flatnonzero(out)
    return SecondMoments(
        path=module,
        layer=layer,
        part=part,
        neurons=neurons,
        width=entry.moments.size,
        vectors=entry.vectors,
        largest=float(entry.moments.max()),
        dim=int(entry.moments.argmax()),
        median=float(np.median(entry.moments)),
        outliers=tuple(dims[np.argsort(-entry.moments[dims], kind="stable")].tolist()),
    )
