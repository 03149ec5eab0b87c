"""A derived row as a table, and which configs it serves: those that differ in sizes alone.

row = row_of(stacks, structure(config), basis, unsettled)      # as the package's file and the user's cache hold it
fits(row["structure"], other)                                  # whether it serves another config of the type
read_stacks(row, "llama")
"""

from collections.abc import Iterable, Mapping
from typing import Any

from outlierlens.architectures.bind import WIDTHS
from outlierlens.architectures.stack import Config, Stack, stack_of, table_of

# What every config has beside the structure of its model, and what changes no name and no place of a write.
_BESIDE = (
    "token", "dropout", "drop", "output_", "use_cache", "return_dict", "id2label", "label2id", "problem_type", "architectures",
    "transformers_version", "dtype", "_name_or_path", "auto_map", "initializer", "init", "rope", "tie_word", "pretraining_tp",
    "is_decoder", "chunk_size", "model_type", "act", "attn_implementation", "quantization", "gradient", "finetuning_task",
    "task_specific", "router_aux", "aux_loss", "mask_", "loss", "labels", "name", "prefix", "tokenizer",
    "out_features", "out_indices", "n_inner", "intermediate_size", "head_dim", "conv_bias",
    "feat_extract", "norm_topk",
)  # fmt: skip


_EVERY = ("step", "freq", "frequency", "interval", "period", "every_n_layers")


def read_stacks(row: Mapping[str, Any], model_type: str, *, told: bool = True) -> tuple[Stack, ...]:
    """The stacks of a row, with gaps as their notes, and their evidence if that is to be `told`."""
    remarks = [f"the row of {model_type} was derived by experiment on {row['basis']}"] if told else []
    remarks += [f"not established of {model_type}: {remark}" for remark in row["unsettled"]]
    return tuple(stack_of({**table, "notes": remarks}, f"the row of {model_type}") for table in row["stacks"])


def row_of(
    stacks: tuple[Stack, ...], structure: Mapping[str, Any], basis: str, unsettled: tuple[str, ...]
) -> dict[str, Any]:
    """A row as the file holds it."""
    return {"structure": structure, "basis": basis, "unsettled": list(unsettled), "stacks": list(map(table_of, stacks))}


def structure(config: Config) -> dict[str, Any]:
    """What of a config says how its model is built: switches, kinds, every how many layers, and which numbers are 0; no size.

    Of embeddings it says whether they are as wide as the stream.
    """
    found: dict[str, Any] = {}
    width = next((config[key] for key in WIDTHS if key in config), None)
    for key, value in config.items():
        name = str(key)
        if "embed" in name and ("size" in name or "dim" in name) and type(value) is int and width:
            found[name] = "as wide" if value == width else "another width"
        if "key_value_heads" in name or "kv_heads" in name:  # a row of several serves one, and not the other way round
            found[name] = ["one"] if value == 1 else ["one", "several"]
        if name in found or any(word in name for word in _BESIDE):
            continue
        kind = structure(value) if isinstance(value, Mapping) else _kind(value)
        if type(value) is int and name.endswith(_EVERY):
            kind = value
        if kind is not None and kind != {}:
            found[str(key)] = kind
    return found


def _kind(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return bool(value)  # a switch that is not set is off
    if isinstance(value, str):
        return value if len(value) < 40 else None
    if isinstance(value, int):
        return value > 0
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):
        return sorted(set(value))
    if isinstance(value, list | tuple) and all(isinstance(one, int) for one in value):
        return bool(value)
    return None


def nearest(rows: Iterable[Mapping[str, Any]], config: Config) -> Mapping[str, Any] | None:
    """The row that covers most keys of a config, among those that serve it; None where none does."""
    known = structure(config).keys()
    served = [row for row in rows if fits(row["structure"], config)]
    return max(served, key=lambda row: len(known & row["structure"].keys()), default=None)


def fits(row: Mapping[str, Any], config: Config) -> bool:
    """Whether a config is built like the one of which `row` is the structure.

    A key that it has not is at its default, as in the row; one that the row has not is none of this type.
    """
    for key, kind in structure(config).items():
        own = row.get(key, "as wide" if kind == "another width" else kind)
        if isinstance(own, Mapping) and isinstance(kind, Mapping):
            alike = fits(own, config[key])
        elif isinstance(own, list) and isinstance(kind, list):
            alike = set(kind) <= set(own)
        else:
            alike = own == kind
        if not alike:
            return False
    return True
