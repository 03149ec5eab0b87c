"""A small Trainer run that is watched, for tests: in this process, or as one of several that train together.

python tests/watch_training.py FOLDER ACCUMULATION       # RANK, WORLD_SIZE, … as torchrun sets them
"""

import sys
from pathlib import Path
from typing import Any

import torch

EVERY = 2
IDS = torch.arange(5, 29).reshape(3, 8)
N_EXAMPLES = 48


def model_of(kind: str = "bert") -> Any:
    """A tiny model with dropout and parameters off their initial values."""
    from architectures import FAMILIES, build

    return build(FAMILIES[kind], "MaskedLM" if kind == "bert" else "CausalLM").train()


class InOrder(torch.utils.data.Dataset):
    """Seeded token ids, the labels beside them."""

    def __init__(self) -> None:
        self.ids = torch.randint(5, 40, (N_EXAMPLES, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"input_ids": self.ids[place], "labels": self.ids[place]}


def trainer_of(folder: Path, model: Any = None, **settings: Any) -> Any:
    """A Trainer on CPU: 12 optimizer steps, two batches of four each, a checkpoint every fourth step."""
    from transformers import Trainer, TrainingArguments

    class Ordered(Trainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    common: dict[str, Any] = {
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "logging_steps": 3,
        "save_steps": 4,
        "learning_rate": 0.01,
        "max_grad_norm": 0.5,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 3,
        "dataloader_num_workers": 0,
    }
    cls = Ordered if settings.pop("in_order", False) else Trainer
    arguments = TrainingArguments(str(folder), **{**common, **settings})
    trainer = cls(model_of() if model is None else model, arguments, train_dataset=InOrder(), eval_dataset=InOrder())
    from transformers.trainer_callback import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    return trainer


def main() -> None:
    """Train with the accumulation that the command line gives; the rows go to FOLDER/rows.jsonl."""
    from outlierlens import OutlierCallback, WatchOptions

    torch.set_num_threads(1)
    folder, accumulation = Path(sys.argv[1]), int(sys.argv[2])
    model = model_of()
    model.config.use_cache = False
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # processes draw their own
    trainer = trainer_of(
        folder / "out", model, in_order=True, gradient_accumulation_steps=accumulation, max_steps=4, save_strategy="no",
        ddp_find_unused_parameters=True,
    )  # fmt: skip
    OutlierCallback(folder / "rows.jsonl", WatchOptions(every=EVERY, probe=IDS)).attach(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
