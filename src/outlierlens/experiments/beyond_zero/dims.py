"""Which dimensions are treated, and who names them: `choose(loaded, stack, texts, options)`."""

from dataclasses import replace
from typing import TYPE_CHECKING

from outlierlens.data.texts import Data
from outlierlens.detection.observe.measure import ObserveOptions
from outlierlens.detection.targets import Named, active_dims, named_dims
from outlierlens.experiments.beyond_zero.options import BeyondOptions
from outlierlens.models.inputs import row_limit
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from outlierlens.architectures import BoundStack

MOST = 4  # dimensions that are taken of those a rule on activations names, the strongest first


def choose(loaded: LoadedModel, stack: "BoundStack", texts: Data, options: BeyondOptions) -> Named:
    """The dimensions that `options.find` names, or the strongest in the weights where it names none."""
    scanned = named_dims(loaded, stack)
    if options.find == "scan" or (options.find == "auto" and scanned.found):
        return scanned
    length = row_limit(loaded, texts, options.task.max_length)
    settings = ObserveOptions(max_length=length, batch_size=options.task.batch_size, passage_tokens=0)
    dims, rule = active_dims(loaded, stack, texts, settings)
    if dims:
        more = f"; the strongest {MOST} of {len(dims)}" if len(dims) > MOST else ""
        return Named(tuple(sorted(dims[:MOST])), f"the rule {rule} on activations{more}", scanned.found + dims)
    if scanned.found:
        note = "the rules on activations name no dimension, so those of the scan of the weights are taken"
        return replace(scanned, notes=(*scanned.notes, note))
    return replace(scanned, by=f"{scanned.by}, and the rules on activations neither")
