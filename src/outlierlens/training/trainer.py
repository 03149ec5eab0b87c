"""What all trainings with Hugging Face's Trainer have in common: arguments, folder, and measuring between steps.

arguments = training_arguments(folder, device="auto", precision="float32", seed=0, report_to=(), max_steps=100)
refuse_foreign(folder, "recipe.toml")            # before anything is written into it
with full_precision(model): ...                  # without the rounding that mixed precision wraps around forward
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations

from outlierlens.errors import BadInput
from outlierlens.models.changes import temporary
from outlierlens.models.devices import pick_device
from outlierlens.results.row_store import LOCK


def training_arguments(
    folder: Path, *, device: str, precision: str, seed: int, report_to: Sequence[str], **own: Any
) -> TrainingArguments:
    """The Trainer's arguments for a resumable run that is quiet and reads its rows in their order; `own` go on top.

    `precision` is "float32", or "bfloat16" for the passes alone.

    Raises:
        BadInput: a device that the Trainer would not take, or a `report_to` that is not there.
    """
    chosen = pick_device(device)
    if chosen.index:
        raise BadInput(
            f"device {chosen}: a training takes the first GPU that it sees; choose one by CUDA_VISIBLE_DEVICES={chosen.index}"
        )
    there = get_available_reporting_integrations() if report_to else []
    if absent := [name for name in report_to if name not in there]:
        raise BadInput(
            f"cannot report to {absent[0]}: no such integration, or its library is not installed; here there are "
            f"{', '.join(there) or 'none'}"
        )
    return TrainingArguments(
        output_dir=str(folder),
        bf16=precision == "bfloat16",
        use_cpu=str(chosen) == "cpu",
        seed=seed,
        data_seed=seed,
        train_sampling_strategy="sequential",  # the order is in the rows themselves
        remove_unused_columns=False,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        report_to=list(report_to) or "none",
        disable_tqdm=True,
        dataloader_num_workers=0,
        **own,
    )


def refuse_foreign(folder: Path, noted: str) -> None:
    """Raise BadInput where `folder` is a file, or holds anything but what a run killed at once leaves of its `noted`."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a folder with -o")
    if folder.is_dir() and any(path.name != LOCK and not path.match(f".{noted}.*.part") for path in folder.iterdir()):
        raise BadInput(f"{folder} is not empty and holds no run; name another folder with -o")


@temporary
def full_precision(model: nn.Module) -> Iterator[None]:
    """While it lasts the model computes as it will when it is loaded from a file, without the Trainer's mixed precision."""
    wrapped = vars(model).pop("forward", None)  # accelerate puts it in front of the class's own
    try:
        yield
    finally:
        if wrapped is not None:
            vars(model)["forward"] = wrapped
