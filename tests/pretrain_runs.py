"""A tiny pre-training for tests: a text that is learned in a minute of a laptop's second, its tokenizer and its recipe.

    recipe = recipe_in(folder).changed(["training.steps=20"])
    train(recipe, folder / "run")                    # also as the target of another process

The word at place i of a text is w{2i} or w{2i + 1}, by chance: knowing the place leaves ln 2 nats, not knowing it ln 28.
"""

import os
import random
from pathlib import Path
from typing import Any

from moments import die, die_in_checkpoint, end_at
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import UNKNOWN, Estimate
from outlierlens.training.pretrain.recipe import DataRecipe, ModelRecipe, Recipe, TokenizerRecipe, TrainingRecipe
from outlierlens.training.pretrain.result import Outcomes, TrainedModel

N_PLACES = 14


def recipe_in(folder: Path) -> Recipe:
    """Write the text and the tokenizer into `folder`; the recipe of 2 layers x 16 that is trained on them."""
    from conftest import Words

    chance = random.Random(0)
    texts = [" ".join(f"w{2 * i + chance.randrange(2)}" for i in range(N_PLACES)) for _ in range(400)]
    (folder / "text.txt").write_text("\n".join(texts))
    Words.build(2 * N_PLACES).save_pretrained(folder / "tokenizer")
    return Recipe(
        "tiny",
        data=DataRecipe(
            source=(str(folder / "text.txt"),),
            sentences="lines",
            packing="lines",
            min_characters=1,
            length=N_PLACES + 2,
            validation=0.1,
        ),
        tokenizer=TokenizerRecipe(str(folder / "tokenizer")),
        model=ModelRecipe(layers=2, width=16, heads=2, dropout=0.0, initializer_range=0.2),
        training=TrainingRecipe(
            steps=40, batch=16, learning_rate=0.02, warmup=5, mask_share=0.3, log_every=10, watch_every=20,
        ),
    )  # fmt: skip


def train(recipe: Recipe, folder: Path, **options: Any) -> Any:
    """Pre-train on the processor, in silence."""
    from outlierlens.training.pretrain.loop import RunOptions, pretrain

    return pretrain(recipe, folder, RunOptions(**{"device": "cpu", "progress": lambda line: None, **options}))


def train_alone(recipe: Recipe, folder: Path, cache: Path, crash: str = "") -> None:
    """The same in a process of its own, which kills itself at the moment that `crash` names.

    "row 15": the watch has recorded step 15. "forward 15": in the step after 15. "checkpoint 20": while it
    is written.
    """
    import torch
    import transformers

    torch.set_num_threads(1)
    os.environ["OUTLIERLENS_CACHE"] = str(cache)
    kind, _, step = crash.partition(" ")
    if kind == "row":
        end_at(lambda _, row: row.get("key") == f"step {step}")
    elif kind == "forward":
        trainer: Any = transformers.Trainer
        learn = trainer.training_step
        trainer.training_step = lambda self, *given, **named: (
            die() if self.state.global_step == int(step) else learn(self, *given, **named)
        )
    elif kind == "checkpoint":
        die_in_checkpoint(int(step))
    train(recipe, folder)


def outcome(recipe: str, seed: int, loss: float, off: float | None, **more: Any) -> Outcomes:
    """A measured run, made up, of a recipe and seed with this loss; `off` nats for dimension 1, or nothing is named."""
    values: dict[str, Any] = {
        "about": "", "toml": "", "steps": 10, "n_parameters": 1, "tokens": 1, "held_out_loss": loss, "text": "texts",
        "text_digest": "d", "both": (1,), "scale_alone": (2, 3), "bias_alone": (3, 4), "largest_z": 4.0, "kurtosis": 2.0,
        "inf_norm": 9.0, "first": 0.2, "sinks": 0.5,
        "worst": Estimate(0.5, 0.4, 0.6), "worst_dims": (7,), "dim_median": 0.1, "dim_high": 0.2,
        "int8": Estimate(0.01, 0.0, 0.02), "off": UNKNOWN if off is None else Estimate(off, off - 1, off + 1),
    }  # fmt: skip
    run = TrainedModel(recipe=recipe, seed=seed, text_loss=loss, **values | more)
    return Outcomes(provenance=Provenance("m", "f"), about=About(), runs=(run,))
