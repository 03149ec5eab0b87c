"""The packaged sample with planted outliers shows what the papers describe: few dimensions break it, random ones do not."""

import numpy as np
import pytest

from outlierlens.analyses.ablate import AblateOptions, Ablation, ablate
from outlierlens.analyses.observe import observe
from outlierlens.analyses.scan import scan
from outlierlens.checkpoints import samples
from outlierlens.data.texts import Texts
from outlierlens.detection.activations import ObserveOptions
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import TaskOptions
from outlierlens.training.pretrain.recipe import read_recipe
from outlierlens.training.watch_rows import read_watch

NAME = "mini-planted"
PLANTED = (8, 24, 40, 56, 72, 88, 104, 120)

# What the model that is shipped must reach; its card says what it does reach.
LEAST_DAMAGE = 1.0  # nats per masked token of `reviews`, all eight off
LEAST_TIMES_RANDOM = 20


@pytest.fixture(scope="module")
def damage(loaded: LoadedModel, reviews: Texts) -> Ablation:
    options = AblateOptions(n_random=24, n_matched=0, task=TaskOptions(max_length=64, seed=0))
    return ablate(loaded, reviews, PLANTED, options)


def test_it_is_the_recipe_of_its_name() -> None:
    folder = samples.directory(NAME)
    recipe, shipped = read_recipe(folder / "recipe.toml"), read_recipe(NAME)
    assert recipe.model.planted == PLANTED
    assert recipe.changed([f"training.seed={shipped.training.seed}"]).digest == shipped.digest
    assert "planted" in (folder / "README.md").read_text("utf-8")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 6_000_000


def test_training_began_with_them_and_kept_them() -> None:
    recorded = read_watch(samples.directory(NAME) / "watch.jsonl")
    first, last = recorded.scale[0], recorded.scale[-1]
    assert np.flatnonzero((first == 3.0).all(axis=0)).tolist() == list(PLANTED)
    others = np.setdiff1d(np.arange(128), PLANTED)
    assert last[:, PLANTED].min() > 1.5 * last[:, others].max()


def test_scan_finds_them_and_nothing_else() -> None:
    (found,) = scan(NAME).stacks
    assert found.dims == PLANTED


def test_they_carry_the_model_and_random_dimensions_do_not(damage: Ablation) -> None:
    random, ordinary = damage.family("random"), damage.family("ordinary")
    assert random is not None
    assert ordinary is not None
    assert random.p == 1 / 25
    spared = np.array(ordinary.sets)
    assert len(spared) == 24
    assert damage.chosen.change.value > LEAST_DAMAGE
    assert damage.chosen.change.low > LEAST_TIMES_RANDOM * np.median(spared)
    assert damage.chosen.change.value > 5 * spared.max()


def test_words_are_lost_with_them(damage: Ablation) -> None:
    """Share of the intact model's words that stay in the blanks."""
    kept = {
        reply.off: np.mean([blank.kind == "same" for blank in reply.fill.blanks if blank.kind != "changed"])
        for reply in damage.replies
        if reply.fill and reply.fill.blanks
    }
    assert kept["chosen"] < 0.5 < kept["random"]


def test_their_states_stand_out(loaded: LoadedModel, reviews: Texts) -> None:
    states = observe(loaded, reviews, ObserveOptions(max_length=64)).stacks[0].view()  # row 0 is the embeddings
    others = np.setdiff1d(np.arange(128), PLANTED)
    assert (states.std[1:, PLANTED].min(axis=1) > np.median(states.std[1:, others], axis=1)).all()
