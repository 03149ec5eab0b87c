"""The units of a sweep: what is switched off (`Unit`), and on which of the ordered texts (`Work`).

units = planned(options, stream, found)
Work(units[0], 0, 8).key              # "[[0,[507]],[1,[507]]]|0-8": the row it becomes
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from outlierlens.ablation.controls import Plan, plan_key
from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.options import SweepOptions
from outlierlens.experiments.sweep.result import BY_LAYER
from outlierlens.view.words import runs


@dataclass(frozen=True)
class Unit:
    """One thing that is switched off: `plan` is {layer: dims}; an empty plan is the intact model."""

    label: str
    window: str
    plan: Plan = field(hash=False)
    key: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", plan_key(self.plan) if self.plan else "intact")

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimensions off in any layer, ascending."""
        return tuple(sorted({dim for dims in self.plan.values() for dim in dims}))

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers with something off, ascending."""
        return tuple(sorted(self.plan))

    @property
    def by_layer(self) -> Plan:
        """`plan` where layers differ, else empty."""
        return {} if len(set(self.plan.values())) <= 1 else self.plan


INTACT = Unit("intact", "", {})


@dataclass(frozen=True)
class Work:
    """A unit on the texts start to stop (exclusive) of the sweep's order: what is measured, kept or lost as one.

    `only` names the texts to run, counted from `start`; the others keep the intact model's value. None is all.
    """

    unit: Unit
    start: int
    stop: int
    only: tuple[int, ...] | None = None

    @property
    def key(self) -> str:
        """Its name in row files."""
        return f"{self.unit.key}|{self.start}-{self.stop}" + ("" if self.only is None else "|screened")

    @property
    def span(self) -> tuple[int, int]:
        """Its texts."""
        return self.start, self.stop

    @property
    def n_texts(self) -> int:
        """Number of texts that are run."""
        return self.stop - self.start if self.only is None else len(self.only)


def layer_windows(options: SweepOptions, n_layers: int) -> list[tuple[str, tuple[int, ...]]]:
    """(name, layers) of every window of a stream with `n_layers` layers.

    Raises:
        BadInput: a layer that does not exist.
    """
    layers = tuple(range(n_layers)) if options.layers is None else tuple(sorted(set(options.layers)))
    if not layers or not 0 <= layers[0] <= layers[-1] < n_layers:
        raise BadInput(f"layers {options.layers} are not all layers of this stream; it has layers 0 to {n_layers - 1}")
    if options.windows == "single":
        return [(f"layer {layer}", (layer,)) for layer in layers]
    if options.windows == "from":
        return [(f"from layer {layer}", tuple(other for other in layers if other >= layer)) for layer in layers]
    if options.windows == "upto":
        return [(f"up to layer {layer}", tuple(other for other in layers if other <= layer)) for layer in layers]
    return [("all layers" if len(layers) == n_layers else f"layers {runs(layers)}", layers)]


def planned(options: SweepOptions, n_layers: int, width: int, found: Sequence[int]) -> list[Unit]:
    """Everything whose effect is wanted: single dimensions first, then sets, window by window.

    Raises:
        BadInput: a layer or dimension that does not exist, or nothing to test.
    """
    dims = range(width) if options.dims is None else dict.fromkeys(options.dims)
    sets = [tuple(sorted(set(one))) for one in options.sets]
    if options.with_found and len(found) > 1:
        sets.append(tuple(sorted(found)))
    sets = [one for one in dict.fromkeys(sets) if len(one) > 1 or (one and one[0] not in dims)]
    wrong = [dim for dim in (*dims, *(dim for one in sets for dim in one)) if not 0 <= dim < width]
    if wrong:
        raise BadInput(f"dimension {wrong[0]} does not exist; this stream has dimensions 0 to {width - 1}")
    units = []
    for name, layers in layer_windows(options, n_layers):
        for one in (*((dim,) for dim in dims), *sets):
            where = "" if name == "all layers" else f" in {name}" if name.startswith("layer") else f" {name}"
            units.append(Unit(", ".join(map(str, one)) + where, name, dict.fromkeys(layers, one)))
    for given in options.plans:
        plan = {layer: tuple(sorted(set(one))) for layer, one in sorted(given.items()) if one}
        wrong = [dim for one in plan.values() for dim in one if not 0 <= dim < width]
        if wrong or not plan or max(plan) >= n_layers or min(plan) < 0:
            raise BadInput(
                f"the plan {dict(given)} does not fit this stream: layers 0 to {n_layers - 1}, dimensions 0 to {width - 1}"
            )
        units.append(
            Unit("; ".join(f"{where}: {', '.join(map(str, one))}" for one, where in _grouped(plan)), BY_LAYER, plan)
        )
    units = list({unit.key: unit for unit in reversed(units)}.values())[
        ::-1
    ]  # what is the same in two ways is one unit
    if not units:
        raise BadInput("nothing to sweep: name dimensions or sets, or leave both out to sweep every dimension")
    return units


def _grouped(plan: Plan) -> list[tuple[tuple[int, ...], str]]:
    """(dimensions, "layers 0–9") of the layers that share them."""
    by_dims: dict[tuple[int, ...], list[int]] = {}
    for layer, dims in plan.items():
        by_dims.setdefault(dims, []).append(layer)
    return [(dims, f"layers {runs(tuple(layers))}") for dims, layers in by_dims.items()]
