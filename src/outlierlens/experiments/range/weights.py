"""What can be said of the number range of stored weights, tensor by tensor, without running the model and without torch.

weight_ranges(checkpoint)                    # largest |w|, what overflows each format, what falls below its normal numbers
"""

from collections.abc import Callable, Iterator

import numpy as np

from outlierlens.checkpoints import Checkpoint
from outlierlens.errors import BadInput
from outlierlens.experiments.range.result import FORMATS, WeightRange

BLOCK = 2**22  # values that are held at once, where the file allows it


def weight_ranges(
    checkpoint: Checkpoint, progress: Callable[[str, int, int], None] | None = None
) -> tuple[WeightRange, ...]:
    """Every tensor of floating-point values, as the checkpoint holds them; codes with scales as they are multiplied out.

    NaN is counted apart: it is no size.

    Raises:
        BadInput: there is no such tensor.
    """
    packed = packed_tensors(checkpoint)
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
    return tuple(found)


def packed_tensors(checkpoint: Checkpoint) -> dict[str, str]:
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
