"""Fine-tune a model on a labelled task, reproducibly: several seeds, the best epoch of each kept, stopped runs continued.

    from outlierlens.data.labelled.splits import read_splits
    from outlierlens.training.finetune import FinetuneSettings, finetune

    train, dev = read_splits(find_task("rte"), "rte/")
    tuned = finetune("minilm-l6", train, dev, Path("runs/minilm-l6-rte"), FinetuneSettings(), seeds=(42, 43))
    load_model(tuned.seeds[0].folder)

Importing this package imports neither torch nor transformers; `finetune` does.
"""

from typing import TYPE_CHECKING, Any

from outlierlens.errors import need
from outlierlens.training.finetune.settings import FinetuneSettings

if TYPE_CHECKING:
    from outlierlens.training.finetune.loop import FinetuneOptions, finetune

__all__ = ["FinetuneOptions", "FinetuneSettings", "finetune"]


def __getattr__(name: str) -> Any:
    if name not in ("FinetuneOptions", "finetune"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for library in ("torch", "transformers"):
        need(library, "models", "fine-tuning")
    return getattr(need(f"{__name__}.loop", "models", "fine-tuning"), name)
