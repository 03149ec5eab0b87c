"""What can be said of the number range of stored weights, tensor by tensor, without running the model and without torch.

weights_range(checkpoint).weights            # largest |w|, what overflows each format, what falls below its normal numbers
"""

import hashlib
from collections.abc import Callable, Iterator

import numpy as np

from outlierlens.checkpoints import Checkpoint
from outlierlens.errors import BadInput
from outlierlens.experiments.range.keys import key_biases
from outlierlens.experiments.range.result import FORMATS, Ranges, WeightRange
from outlierlens.results.document import Provenance

BLOCK = 2**22  # values that are held at once, where the file allows it


def weights_range(checkpoint: Checkpoint, *, progress: Callable[[str, int, int], None] | None = None) -> Ranges:
    """What can be said without running: every stored tensor of floating-point values against each format.

    Codes with scales are multiplied out. NaN is counted apart: it is no size.

    Raises:
        BadInput: there is no such tensor.
    """
    packed = _packed(checkpoint)
    names = [
        name
        for name in checkpoint.tensors
        if name not in packed and checkpoint.holds_floats(name) and checkpoint.tensors[name].size
    ]
    if not names:
        raise BadInput(f"{checkpoint.name}: holds no tensor of floating-point values")
    found = []
    for done, name in enumerate(names):
        found.append(_weight_range(checkpoint, name))
        if progress:
            progress("reading weights", done + 1, len(names))
    digest = hashlib.sha256(checkpoint.header_digest().encode())
    digest.update("".join(f"{one.name}\0{one.largest!r}\n" for one in found).encode())
    origin = Provenance.now(checkpoint.name, digest.hexdigest())
    return Ranges(
        origin,
        "",
        "",
        "weights",
        0,
        0,
        0,
        1,
        (),
        weights=tuple(found),
        notes=tuple(checkpoint.notes),
        keys=key_biases(checkpoint),
        skipped=packed,
    )


def _packed(checkpoint: Checkpoint) -> dict[str, str]:
    """{tensor: what packed it} of those whose values are not read."""
    return {name: by for name in checkpoint.tensors if (by := checkpoint.packed_by(name))}


def _weight_range(checkpoint: Checkpoint, name: str) -> WeightRange:
    info = checkpoint.tensors[name]
    largest, n_values, nan = 0.0, 0, 0
    over = {form.name: 0 for form in FORMATS}
    below = dict(over)
    for values in _blocks(checkpoint, name):
        nan += int(np.isnan(values).sum())
        size = np.nan_to_num(np.abs(values), nan=0.0, posinf=np.inf)
        largest = max(largest, float(size.max(initial=0.0)))
        n_values += size.size
        for form in FORMATS:
            over[form.name] += int((size > form.largest).sum())
            below[form.name] += int(((size > 0) & (size < form.smallest_normal)).sum())
    return WeightRange(name, info.dtype, largest, n_values, over, below, nan)


def _blocks(checkpoint: Checkpoint, name: str) -> Iterator[np.ndarray]:
    shape = checkpoint.tensors[name].shape
    if not shape:
        yield from (values for _, values in checkpoint.read([name]))
    else:
        yield from checkpoint.read_rows(name, max(1, BLOCK // shape[-1]))
