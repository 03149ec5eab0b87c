"""A tiny fine-tuning for tests: a model, a text whose first word says its label, and the training in a process of its own.

base = tiny(folder)                              # a folder with a BERT of 3 x 16 and a tokenizer
write_data(folder / "data")                      # train.jsonl and validation.jsonl
train_alone(base, folder / "data", folder / "run", settings, crash="row")     # also as the target of another process
"""

import json
import random
from pathlib import Path
from typing import Any

from moments import die, die_in_checkpoint
from outlierlens.analyses.finetune import EpochScore, FineTunedModel, SeedRun
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate

QUIET = {"progress": lambda line: None}


def tiny(folder: Path, **config: Any) -> str:
    """Save a BERT of 2 x 32 that learns quickly, with a word-level tokenizer; `config` replaces values of its own."""
    import torch
    import transformers

    from conftest import Words

    values: dict[str, Any] = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    values |= {"intermediate_size": 48, "max_position_embeddings": 32, "initializer_range": 0.2, "pad_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertForMaskedLM(transformers.BertConfig(**{**values, **config}))
    model.save_pretrained(folder)
    Words.build().save_pretrained(folder)
    return str(folder)


def rows(n: int, seed: int) -> list[dict[str, Any]]:
    """Texts of 3 to 8 words whose first (w0, w1) is the label, and with their number the value."""
    chance = random.Random(seed)
    found = []
    for _ in range(n):
        label = chance.randrange(2)
        words = [f"w{label}", *(f"w{chance.randrange(2, 35)}" for _ in range(chance.randrange(2, 8)))]
        found.append(
            {
                "text": " ".join(words),
                "second": f"w{chance.randrange(2, 35)}",
                "label": ("no", "yes")[label],
                "value": label + len(words) / 20,
                "words": words,
                "tags": ["first", *["later"] * (len(words) - 1)],
            }
        )
    return found


def write_data(folder: Path, n_train: int = 96, n_dev: int = 40) -> Path:
    """Write train.jsonl and validation.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, n, seed in (("train", n_train, 1), ("validation", n_dev, 2)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(n, seed)))
    return folder


def examples(data: Path, kind: str = "classify", text: str = "text", label: str = "label", **more: Any) -> Any:
    """(train, dev) of the data's columns."""
    from outlierlens.data.labelled import plain_task
    from outlierlens.data.labelled.examples import read_splits

    return read_splits(plain_task(kind, text, label, **more), str(data))


def train(base: str, data: Any, folder: Path, *, seeds: tuple[int, ...] = (42,), **settings: Any) -> FineTunedModel:
    """Fine-tune on the processor, in silence; `data` is a folder, or (train, dev)."""
    from outlierlens.analyses.finetune import FinetuneOptions, FinetuneSettings, finetune
    from outlierlens.models.load import LoadOptions

    options = {"command": "", "overwrite": False, **QUIET, **settings.pop("options", {})}
    load = LoadOptions(device="cpu", notice=options.pop("notice", lambda line: None))
    chosen = {"epochs": 2, "batch": 8, "learning_rate": 5e-3, "max_length": 16, **settings}
    training, dev = examples(data) if isinstance(data, Path) else data
    return finetune(
        base,
        training,
        dev,
        folder,
        FinetuneSettings(**chosen),
        seeds=seeds,
        options=FinetuneOptions(load=load, **options),
    )


def train_alone(base: str, data: Path, folder: Path, settings: dict[str, Any], crash: str = "") -> None:
    """`train` in a process of its own, killed by itself at the moment that `crash` names."""
    import torch

    torch.set_num_threads(1)
    if crash.startswith("checkpoint "):
        die_in_checkpoint(int(crash.split()[1]))
    elif crash:
        _arm(crash, folder)
    train(base, examples(data, "regress", label="value"), folder, **settings)


def _arm(crash: str, folder: Path) -> None:
    """Have this process kill itself at a moment that lasts too short to be met from outside."""
    from outlierlens.analyses import finetune as tuning
    from outlierlens.results import row_store
    from outlierlens.training import finetune as training

    files: Any = tuning
    store: Any = row_store
    paths: Any = Path
    kind, _, count = crash.partition(" ")
    left = int(count or 1)

    def nth(real: Any, when: Any, *, after: bool = False, first: Any = lambda: None) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            mine = when(*arguments)
            left -= mine
            if mine and not left and not after:
                first()
                die()
            value = real(*arguments, **named)
            if mine and not left and after:
                die()
            return value

        return call

    def half() -> None:
        with next(folder.glob("seed-*")).joinpath(files.ROWS).open("ab") as file:
            file.write(b'{"key":"epoch 2","value":{"epo')

    if kind == "model":  # its weights are written, its name is not yet
        files.np.savez = nth(files.np.savez, lambda *_: True)
    elif kind == "named":  # the new best model has its name, the row that makes it count is not written
        paths.replace = nth(paths.replace, lambda _, to: Path(to).name.startswith("best-"), after=True)
    elif kind == "step":  # the step is computed, and nothing of it is logged
        moments: Any = training._Moments
        moments.on_step_end = nth(moments.on_step_end, lambda _, args, state, *__: state.global_step == int(count))
        left = 1
    elif kind == "row":  # half of a row is written
        store.row_line = nth(store.row_line, lambda row: str(row.get("key")).startswith("epoch "), first=half)
    elif kind == "removal":  # the old best model is half removed
        files.shutil.rmtree = nth(files.shutil.rmtree, _begins_to_remove)
    elif kind == "done":  # the model is in its place, and nothing says that the run is finished
        store.row_line = nth(store.row_line, lambda row: row.get("key") == "done")
    else:
        raise ValueError(crash)


def _begins_to_remove(path: Any, **_: Any) -> bool:
    """Whether this is an old best model, of which a file goes then."""
    mine = Path(path).name.startswith("best-") and Path(path).exists()
    if mine:
        (Path(path) / "config.json").unlink()
    return mine


def tuned(task: str = "glue:rte", base: str = "minilm-l6") -> FineTunedModel:
    """A result made up: two seeds of two epochs."""
    epochs = (EpochScore(1.0, 5, 0.7, {"accuracy": 0.5}), EpochScore(2.0, 10, 0.6, {"accuracy": 0.75}, 0.65))
    runs = tuple(
        SeedRun(
            seed=seed, best_epoch=2.0, loss=0.6, value=Estimate(0.75, 0.6, 0.9), fingerprint="f",
            folder=f"runs/seed-{seed}/model", epochs=epochs,
        )
        for seed in (42, 43)
    )  # fmt: skip
    return FineTunedModel(
        provenance=Provenance(base, "f", command="outlierlens lab finetune m --task rte"),
        about=About(
            data="dev.parquet", data_digest="b" * 64, inputs="examples", task=task, metric="accuracy", n_texts=20
        ),
        seeds=runs, settings={"epochs": 2, "off": [1, 2], "hold": False}, train="train.parquet", train_digest="a" * 64,
        n_train=40,
    )  # fmt: skip
