"""Recipes: every shipped one reads, one extends another, settings change them, and errors say what to do."""

import dataclasses
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlierlens.errors import BadInput
from outlierlens.training.pretrain.recipe import (
    DataRecipe,
    ModelRecipe,
    Recipe,
    TokenizerRecipe,
    TrainingRecipe,
    read_recipe,
    shipped,
)

MINIMAL = Recipe("tiny")


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text, "utf-8")
    return path


def differences(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """{section.key: (value, other value)}, the texts about them left out."""
    return {
        f"{section}.{key}": (value, dataclasses.asdict(getattr(other, section))[key])
        for section in ("data", "tokenizer", "model", "training")
        for key, value in dataclasses.asdict(getattr(one, section)).items()
        if value != dataclasses.asdict(getattr(other, section))[key]
    }


@pytest.mark.parametrize("name", shipped())
def test_shipped_recipes_are_complete(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.name == name
    assert recipe.about.endswith(".")
    assert recipe.data.source
    assert recipe.training.save_every % recipe.training.log_every == 0
    assert recipe.training.steps % recipe.training.log_every == 0
    assert recipe.training.warmup < recipe.training.steps
    # What shows emergence: enough checkpoints, and an evaluation at each.
    assert recipe.training.steps / recipe.training.save_every >= 6
    assert recipe.training.evaluate_every == recipe.training.save_every


@pytest.mark.parametrize(
    ("name", "base", "changes"),
    [
        ("bert-medium-split", "bert-medium", {"data.packing": "split"}),
        ("bert-medium-one-sep", "bert-medium", {"data.packing": "one-sep"}),
        ("bert-medium-frequency-flattened", "bert-medium", {"data.flatten": 0.5}),
        ("bert-medium-shuffled", "bert-medium", {"data.shuffle": True}),
        ("roberta-base-no-positions", "roberta-base", {"model.positions": "none"}),
        ("mini-split", "mini-short", {"data.packing": "split"}),
        ("mini-one-sep", "mini-short", {"data.packing": "one-sep"}),
        ("mini-frequency-flattened", "mini-short", {"data.flatten": 0.5}),
        ("mini-shuffled", "mini-short", {"data.shuffle": True}),
        ("mini-no-positions", "mini-short", {"model.positions": "none"}),
        ("mini-clipped-softmax", "mini-short", {"model.attention": "clipped"}),
        ("mini-gated-attention", "mini-short", {"model.attention": "gated"}),
        ("mini-rotary", "mini-short", {"model.positions": "rotary"}),
        ("mini-rmsnorm", "mini-short", {"model.norm": "rmsnorm"}),
        ("mini-pre-norm", "mini-short", {"model.norm_order": "pre"}),
        ("mini-clamped-scale", "mini-short", {"training.clamp_scale": 0.1}),
    ],
)
def test_a_variant_changes_one_thing(name: str, base: str, changes: dict[str, Any]) -> None:
    found = differences(read_recipe(base), read_recipe(name))
    assert {key: new for key, (_, new) in found.items()} == changes


def test_the_papers_configurations() -> None:
    medium = read_recipe("bert-medium")
    assert (medium.model.layers, medium.model.width, medium.model.heads) == (8, 512, 8)
    assert (medium.data.length, medium.data.validation, medium.data.min_characters) == (256, 0.1, 11)
    assert (medium.tokenizer.source, medium.model.dropout) == ("google-bert/bert-base-uncased", 0.1)
    training = medium.training
    assert (training.save_every, training.batch * training.accumulation, training.warmup) == (2000, 128, 30_000)
    assert (training.learning_rate, training.schedule, training.weight_decay) == (1e-4, "linear", 0.01)
    assert (training.mask_share, training.penalty, training.clamp_scale) == (0.15, "none", 0.0)
    luo = read_recipe("roberta-base")
    assert (luo.model.type, luo.model.layers, luo.model.width, luo.model.heads) == ("roberta", 12, 768, 12)
    training = luo.training
    assert (training.steps, training.batch * training.accumulation, training.warmup) == (200_000, 256, 10_000)
    assert (training.learning_rate, training.schedule, training.weight_decay) == (1e-4, "polynomial", 0.01)
    assert (training.adam_betas, training.adam_epsilon, training.clip_norm) == ((0.9, 0.98), 1e-6, 0.5)
    assert luo.model.dropout == 0.1


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
recipes = st.builds(
    Recipe,
    name=st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True),
    about=text,
    data=st.builds(
        DataRecipe,
        source=st.lists(text, max_size=3).map(tuple),
        text_column=text,
        strip_markup=st.booleans(),
        validation=st.floats(1e-9, 0.49),
    ),
    tokenizer=st.builds(TokenizerRecipe, source=text, kind=st.sampled_from(["wordpiece", "byte-bpe"])),
    model=st.builds(
        ModelRecipe,
        width=st.just(128),
        planted=st.lists(st.integers(0, 127), max_size=3, unique=True).map(tuple),
        planted_scale=st.floats(allow_nan=False, allow_infinity=False),
    ),
    training=st.builds(TrainingRecipe, learning_rate=st.floats(1e-300, 1e300), seed=st.integers(0, 2**31 - 1)),
)


@given(recipe=recipes)
@settings(max_examples=60)
def test_any_recipe_written_out_is_the_same(recipe: Recipe, tmp_path: Path) -> None:
    assert read_recipe(written(tmp_path, "recipe", recipe.to_toml())) == recipe


def test_what_is_written_holds_every_default() -> None:
    document = tomllib.loads(MINIMAL.to_toml())
    assert set(document) == {"name", "about", "data", "tokenizer", "model", "training"}
    for section in ("data", "tokenizer", "model", "training"):
        defaults = json.loads(json.dumps(dataclasses.asdict(getattr(MINIMAL, section))))
        assert document[section] == defaults


def test_the_digest_tells_runs_apart_and_not_their_descriptions() -> None:
    digests = {
        recipe.digest
        for recipe in (
            MINIMAL,
            dataclasses.replace(MINIMAL, name="other"),
            MINIMAL.changed(["training.seed=1"]),
            MINIMAL.changed(["training.learning_rate=2e-4"]),
            MINIMAL.changed(["data.source=['a.txt']"]),
            MINIMAL.changed(["model.planted=[3]"]),
        )
    }
    assert len(digests) == 6
    assert dataclasses.replace(MINIMAL, about="something").digest == MINIMAL.digest
    assert re.fullmatch("[0-9a-f]{64}", MINIMAL.digest)


def test_settings_in_toml_or_as_plain_words() -> None:
    recipe = read_recipe("mini-bert").changed(
        [
            "training.steps=2000",
            "training.learning_rate=1",
            'data.source=["reviews.parquet", "more.txt"]',
            "data.packing=one-sep",
            "model.positions='none'",
            "data.shuffle=true",
            "name=mine",
            "training.adam_betas=[0.8, 0.9]",
        ]
    )
    assert (recipe.training.steps, recipe.training.learning_rate) == (2000, 1.0)
    assert isinstance(recipe.training.learning_rate, float)
    assert recipe.data.source == ("reviews.parquet", "more.txt")
    assert (recipe.data.packing, recipe.model.positions, recipe.data.shuffle) == ("one-sep", "none", True)
    assert (recipe.name, recipe.training.adam_betas) == ("mine", (0.8, 0.9))
    untouched = differences(read_recipe("mini-bert"), recipe)
    assert set(untouched) == {
        "training.steps", "training.learning_rate", "data.source", "data.packing", "model.positions", "data.shuffle",
        "training.adam_betas",
    }  # fmt: skip


def test_a_recipe_extends_the_one_beside_it_and_that_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    written(tmp_path, "base", 'extends = "mini-bert"\nname = "base"\n[training]\nsteps = 70\nbatch = 3\n')
    child = written(tmp_path / "sub", "child", 'extends = "../base.toml"\nname = "child"\n[training]\nbatch = 5\n')
    recipe = read_recipe(child)
    assert (recipe.name, recipe.training.steps, recipe.training.batch) == ("child", 70, 5)
    assert recipe.model == read_recipe("mini-bert").model


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[data]\n", r"the recipe has no name"),
        ('name = "a/b"', r"name is 'a/b'; it names a folder, so it must be one plain word"),
        ('name = ".."', r"name is '\.\.'; it names a folder"),
        ('name = "x"\ncolour = 1', r"unknown key 'colour'; known: name, about, data, tokenizer, model, training"),
        ('name = "x"\n[training]\nstep = 4', r"training: unknown key 'step'; near: 'steps'"),
        ('name = "x"\n[training]\nsteps = "many"', r"training, steps is 'many'; a value of type int is needed"),
        ('name = "x"\n[model]\ndropout = true', r"model, dropout is True; a value of type float is needed"),
        ('name = "x"\n[data]\nsource = "a.txt"', r"data, source is 'a\.txt'; write a list"),
        (
            'name = "x"\n[data]\npacking = "one_sep"',
            r"packing is 'one_sep'; use one of sentences, split, one-sep, lines",
        ),
        ('name = "x"\ndata = 3', r"data: a table is needed, not 3"),
        ('name = "x"\nextends = 3', r"extends = 3; name one recipe"),
        ('name = "x"\n[data]\nvalidation = 0.5', r"data\.validation is 0\.5; it must be .* and less than 0\.5"),
        ('name = "x"\n[data]\nlength = 4', r"data\.length is 4; it must be at least 8"),
        (
            'name = "x"\n[training]\nadam_betas = [0.9]',
            r"training\.adam_betas is \[0\.9\]; it takes two numbers in \[0, 1\)",
        ),
        ('name = "x"\n[model]\nheads = 3', r"model\.width 128 cannot be shared by 3 heads"),
        ('name = "x"\n[model]\nplanted = [128]', r"model\.planted names a dimension outside 0 to 127"),
        (
            'name = "x"\n[model]\nnorm_order = "pre"\nplanted = [1]',
            r"model\.planted sets the norms that post-norm blocks end in; pre-norm blocks have none",
        ),
        (
            'name = "x"\n[model]\nwidth = 12\nheads = 4\npositions = "rotary"',
            r"rotary positions turn pairs of a head's dimensions, and a head has 3 of them",
        ),
        (
            'name = "x"\n[model]\ntype = "roberta"\npositions = "rotary"',
            r"type roberta takes learned, sinusoidal or no positions, post-norm, LayerNorm and plain softmax; use type bert",
        ),
        (
            'name = "x"\n[training]\nsave_every = 70\nlog_every = 50',
            r"training\.save_every \(70\) must be a multiple of log_every \(50\)",
        ),
        ('name = "x"\n[training]\nlearning_rate = nan', r"training\.learning_rate is nan; it must be finite"),
        ('name = "x"\n[model]\nplanted = [3, 3]', r"model\.planted is \[3, 3\]; name each dimension once"),
        (
            'name = "x"\n[training]\npenalty = "kurtosis"',
            r"training\.penalty is 'kurtosis' with penalty_strength 0\.0; a penalty needs a strength above 0",
        ),
        (
            'name = "x"\n[training]\npenalty_strength = 0.1',
            r"training\.penalty is 'none' with penalty_strength 0\.1; .* and a strength a penalty",
        ),
    ],
)
def test_recipes_that_cannot_be(toml: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, "wrong", toml)
    with pytest.raises(BadInput, match=message) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.steps", r"--set training\.steps: write it as section\.key=value, such as training\.steps=2000"),
        ("training.steps=many", r"--set, training, steps is 'many'; a value of type int is needed"),
        ("training.steps=", r"--set, training, steps is ''; a value of type int is needed"),
        ("steps=3", r"--set: unknown key 'steps'"),
        ("modle.width=3", r"--set: unknown key 'modle'; near: 'model'"),
        ("model.layers.x=3", r"unknown key 'model\.layers'"),
        ("data=3", r"--set, data: a table is needed, not 3"),
    ],
)
def test_settings_that_cannot_be(setting: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        MINIMAL.changed([setting])


def test_recipes_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"mini-brt: no such \.toml file and no shipped recipe; shipped are .*; near: 'mini-bert'"
    ):
        read_recipe("mini-brt")
    with pytest.raises(BadInput, match=r"nowhere\.toml: no such \.toml file"):
        read_recipe(tmp_path / "nowhere.toml")
    (tmp_path / "recipe.txt").write_text('name = "x"')
    with pytest.raises(BadInput, match=r"no such \.toml file"):
        read_recipe(tmp_path / "recipe.txt")
    with pytest.raises(BadInput, match=r"no such \.toml file"):
        read_recipe(written(tmp_path, "child", 'extends = "missing.toml"\nname = "child"'))


def test_recipes_that_are_not_toml(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"broken\.toml: cannot be read as TOML: .*line 2"):
        read_recipe(written(tmp_path, "broken", 'name = "x"\nsteps = = 3'))
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(BadInput, match=r"latin\.toml: cannot be read as TOML"):
        read_recipe(tmp_path / "latin.toml")


def test_recipes_that_extend_each_other(tmp_path: Path) -> None:
    one = written(tmp_path, "one", 'extends = "two.toml"\nname = "one"')
    written(tmp_path, "two", 'extends = "one.toml"\nname = "two"')
    with pytest.raises(BadInput, match="recipes extend each other more than 8 times; do two extend one another"):
        read_recipe(one)
