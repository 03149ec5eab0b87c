"""A small Trainer run that is watched, for tests: in this process, or as one of several that train together.

train(folder, accumulation=2)
in_two(train, folder, 1)
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

import forked
from moments import finish

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


class Pushed(TrainerCallback):
    """Lets one dimension of the norms' scale grow with every step."""

    DIM, PUSH = 3, 0.03

    @classmethod
    def push_(cls, model: Any) -> None:
        """One step of it."""
        with torch.no_grad():
            for layer in model.bert.encoder.layer:
                layer.output.LayerNorm.weight[cls.DIM] += cls.PUSH

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.push_(getattr(model, "module", model))


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def train(folder: Path, accumulation: int) -> None:
    """Train without dropout and in order; the rows go to rows.jsonl in `folder`."""
    trainer = ordered(folder, gradient_accumulation_steps=accumulation, max_steps=4)
    watch_in(trainer, folder, every=EVERY)
    trainer.train()


def alarm(folder: Path, accumulation: int) -> None:
    """As `train`, with a dimension that grows and a checkpoint where that is announced."""
    from outlierlens.training.watch_alarm import Approach

    trainer = ordered(folder, gradient_accumulation_steps=accumulation, max_steps=24, learning_rate=1e-6)
    trainer.add_callback(Pushed())
    watch_in(trainer, folder, every=EVERY, on_alarm="checkpoint", approach=Approach(near=0.7, records=1, speed=0.0))
    trainer.train()


def watch_in(trainer: Any, folder: Path, **settings: Any) -> None:
    """Attach the callback, with rows.jsonl in `folder`."""
    from outlierlens import OutlierCallback
    from outlierlens.options import WatchOptions

    OutlierCallback(folder / "rows.jsonl", WatchOptions(probe=IDS, **settings)).attach(trainer)


def ordered(folder: Path, **settings: Any) -> Any:
    """A trainer without dropout that reads in order and saves nothing by itself."""
    model = model_of()
    model.config.use_cache = False
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # processes draw their own
    return trainer_of(
        folder / "out", model, in_order=True, save_strategy="no", ddp_find_unused_parameters=True, **settings
    )


def in_two(work: Callable[..., None], *given: Any) -> None:
    """`work(*given)` in two processes that train together; both must end well."""
    port = free_port()
    started = [forked.context().Process(target=one_of_two, args=(rank, port, work, given)) for rank in (0, 1)]
    try:
        for process in started:
            process.start()
        for process in started:
            assert finish(process) == 0
    finally:
        for process in started:
            process.kill()
            process.join()


def one_of_two(rank: int, port: int, work: Callable[..., None], given: tuple[Any, ...]) -> None:
    """`work(*given)` in the environment that torchrun gives each of two processes."""
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    work(*given)
