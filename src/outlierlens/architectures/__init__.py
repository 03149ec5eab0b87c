"""Where each model family's blocks write to and read from the residual stream.

    stacks = stacks_of(config)                    # streams declared for config["model_type"]
    bound = bind(stacks, names)                   # the same resolved to concrete parameter names
    family_of(config)                             # what else its row says

`names` may be a checkpoint's keys or a live model's parameter names: one row serves both, and ablation too.
Rows are data (`data_files/families.toml`); they are declared and tested, never guessed from names. For a type without one,
`rows` has the row of an experiment on a small random model, too.
"""

from outlierlens.architectures.bind import (
    NO_EXPERT,
    BoundStack,
    LastLinear,
    Param,
    bind,
    expert_of,
)
from outlierlens.architectures.live import (
    bind_live,
    input_device,
    live_parameters,
    offloaded,
    offloaded_values,
    own_parameters,
    refuse_offloaded,
    refuse_packed,
    refuse_sharded,
    weight_of,
)
from outlierlens.architectures.neurons import (
    MLP,
    Neuron,
    axis_name,
    expert_axis,
    is_mlp,
    last_linears,
    mlp_axes,
    mlp_axis,
    neurons_of,
    packs_experts,
    streams_of,
)
from outlierlens.architectures.rows import (
    ARCHITECTURES,
    RowChoice,
    bound_stacks,
    families,
    family_of,
    first_row,
    kind_of,
    no_model_type,
    stacks_for,
    stacks_of,
)
from outlierlens.architectures.stack import Stack, load_toml, to_toml

__all__ = [
    "ARCHITECTURES",
    "MLP",
    "NO_EXPERT",
    "BoundStack",
    "LastLinear",
    "Neuron",
    "Param",
    "RowChoice",
    "Stack",
    "axis_name",
    "bind",
    "bind_live",
    "bound_stacks",
    "expert_axis",
    "expert_of",
    "families",
    "family_of",
    "first_row",
    "input_device",
    "is_mlp",
    "kind_of",
    "last_linears",
    "live_parameters",
    "load_toml",
    "mlp_axes",
    "mlp_axis",
    "neurons_of",
    "no_model_type",
    "offloaded",
    "offloaded_values",
    "own_parameters",
    "packs_experts",
    "refuse_offloaded",
    "refuse_packed",
    "refuse_sharded",
    "stacks_for",
    "stacks_of",
    "streams_of",
    "to_toml",
    "weight_of",
]
