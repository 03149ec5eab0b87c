"""Recipes: everything a pre-training run depends on, as TOML, checked before anything is read or computed.

    recipe = read_recipe("mini-bert")                 # shipped with the package; or the path of a .toml
    recipe = recipe.changed(["training.steps=2000", "data.source=[\"reviews.parquet\"]"])
    recipe.to_toml()                                  # complete: written beside every run

A recipe may begin with `extends = "mini-bert"` (a shipped recipe, or a path beside it) and say only what differs.
"""

import dataclasses
import hashlib
import json
import math
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from outlierlens.errors import BadInput, literal, near
from outlierlens.options import check
from outlierlens.results.safe_files import read_toml

DEPTH = 8  # recipes that extend recipes
Packing = Literal["sentences", "split", "one-sep", "lines"]
Few = Annotated[int, Ge(1)]  # at least one
Some = Annotated[int, Ge(0)]
Size = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]


@dataclass(frozen=True)
class DataRecipe:
    """What text is read and how it becomes rows of tokens.

    Attributes:
        source: files (.txt, .jsonl, .csv, .tsv, .parquet) or hub ids (owner/name:config:split), read in this order.
        text_column: column of the text; found by its usual names where empty.
        sentences: "punctuation" splits texts after . ! ? …, "lines" takes each text as one sentence.
        min_characters: shorter sentences are dropped (Puccetti et al.: sentences of up to 10 characters).
        strip_markup: replace HTML tags by spaces and entities by their characters.
        packing: see `corpus.pack`.
        length: tokens of a row.
        validation: share of the texts, every 1/validation-th, held out.
        flatten: share of frequent tokens that rare ones replace; 0 leaves the text as it is. See `corpus.Flattening`.
        frequent_mass: frequent are the fewest types that make up this share of all occurrences.
        shuffle: put the ordinary tokens of every row in random order.
    """

    source: tuple[str, ...] = ()
    text_column: str = ""
    sentences: Literal["punctuation", "lines"] = "punctuation"
    min_characters: Some = 11
    strip_markup: bool = False
    packing: Packing = "sentences"
    length: Annotated[int, Ge(8)] = 64
    validation: Annotated[float, Gt(0), Lt(0.5)] = 0.01
    flatten: Annotated[float, Ge(0), Le(1)] = 0.0
    frequent_mass: Annotated[float, Gt(0), Lt(1)] = 0.5
    shuffle: bool = False


@dataclass(frozen=True)
class TokenizerRecipe:
    """`source` "train" trains one on the training texts; otherwise a directory, sample or hub id to reuse."""

    source: str = "train"
    kind: Literal["wordpiece", "byte-bpe"] = "wordpiece"
    vocabulary: Annotated[int, Ge(100), Le(1_000_000)] = 8192
    lowercase: bool = True


@dataclass(frozen=True)
class ModelRecipe:
    """The network, from random values.

    Attributes:
        type: "bert", "roberta" (which has no segments and numbers positions from 2), or "llama": a decoder that predicts
            the next token, with rotary positions, RMSNorm before each part, a gated MLP and no bias.
        intermediate: width of the MLP; 0 is four times the width.
        positions: learned, sinusoidal (fixed), none, relative, rotary or alibi; "roberta" has the first three.
        position_amplitude: learned positions begin as sinusoids of this amplitude; 0 begins them at random. Fixed ones
            have it, or twice `initializer_range`.
        position_wavelength: of the slowest of these sinusoids, over 2 pi, in tokens (Vaswani et al. 2017: 10,000).
        norm, norm_order: LayerNorm or RMSNorm; post-norm as in BERT, or pre-norm.
        attention: softmax, clipped (Bondarenko et al. 2023: clip((zeta − gamma) · softmax + gamma, 0, 1)), gated, or
            off-by-one (Miller 2023: exp(x) / (1 + sum of exp)).
        clip_gamma, clip_zeta: of clipped softmax.
        initializer_range: standard deviation of the weights at the start; BERT's 0.02 belongs to a width of 768.
        output_bias: whether the vocabulary head has a bias per token, which can hold token frequencies.
        linear_bias: whether the linear layers of attention, MLP and head learn their biases; without, constants can
            only come from norms and embeddings.
        planted: dimensions whose scale and bias begin at `planted_scale` and `planted_bias` in every output norm.
    """

    type: Literal["bert", "roberta", "llama"] = "bert"
    layers: Few = 4
    width: Few = 128
    heads: Few = 2
    intermediate: Some = 0
    positions: Literal["learned", "sinusoidal", "none", "relative", "rotary", "alibi"] = "learned"
    position_amplitude: Size = 0.0
    position_wavelength: Positive = 10_000.0
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_order: Literal["post", "pre"] = "post"
    attention: Literal["softmax", "clipped", "gated", "off-by-one"] = "softmax"
    clip_gamma: float = -0.025
    clip_zeta: float = 1.0
    initializer_range: Positive = 0.02
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    output_bias: bool = True
    linear_bias: bool = True
    planted: tuple[int, ...] = ()
    planted_scale: float = 1.0
    planted_bias: float = 0.0


@dataclass(frozen=True)
class TrainingRecipe:
    """How it is trained.

    Attributes:
        optimizer: adamw, or muon (Jordan et al. 2024) for the matrices of the blocks and AdamW for all else, at one learning
            rate: Muon's updates are brought to the size of AdamW's (Liu et al. 2025).
        decay_norms: decay the scales of norms and the biases too, as all else is.
        batch: rows of an optimizer step on one process, `accumulation` forward passes together.
        mask_share: share of the ordinary tokens to predict; a decoder predicts every next token, whatever this is.
        schedule: of the learning rate after the warm-up: linear or cosine to zero, polynomial (power 1, to 1e-7), constant.
        precision: what a step computes in, float32 or bfloat16; weights stay float32.
        clip_norm: largest norm of the gradient; 0 never clips.
        save_every, evaluate_every, log_every, watch_every: in steps; 0 saves or evaluates at the end only.
        evaluate_rows: held-out rows that an evaluation reads, always the same; 0 reads all of them.
        keep_states: newest checkpoints that keep what resuming needs (older ones keep the model alone).
        penalty: added to the loss: "norm-spread" (variance of the output norms' scale), "kurtosis" (of the hidden
            states' second moments, He et al. 2024), or "none"; times `penalty_strength`.
        clamp_scale: keep the output norms' scale in 1 ± this after every step; 0 does not.
    """

    optimizer: Literal["adamw", "muon"] = "adamw"
    decay_norms: bool = False
    steps: Few = 1000
    batch: Few = 32
    accumulation: Few = 1
    learning_rate: Positive = 1e-4
    schedule: Literal["linear", "cosine", "polynomial", "constant"] = "linear"
    warmup: Some = 100
    weight_decay: Size = 0.01
    adam_betas: tuple[float, ...] = (0.9, 0.999)
    adam_epsilon: Positive = 1e-8
    clip_norm: Size = 1.0
    mask_share: Annotated[float, Gt(0), Lt(1)] = 0.15
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: Annotated[int, Ge(0), Lt(2**31)] = 0
    save_every: Some = 0
    evaluate_every: Some = 0
    evaluate_rows: Some = 0
    log_every: Few = 50
    watch_every: Few = 100
    keep_states: Few = 2
    penalty: Literal["none", "norm-spread", "kurtosis"] = "none"
    penalty_strength: Size = 0.0
    clamp_scale: Annotated[float, Ge(0), Lt(1)] = 0.0


@dataclass(frozen=True)
class Recipe:
    """One pre-training run. `name` names the run's folder; `about` says in a sentence what it is for."""

    name: str
    about: str = ""
    data: DataRecipe = field(default_factory=DataRecipe)
    tokenizer: TokenizerRecipe = field(default_factory=TokenizerRecipe)
    model: ModelRecipe = field(default_factory=ModelRecipe)
    training: TrainingRecipe = field(default_factory=TrainingRecipe)

    def changed(self, settings: Sequence[str]) -> "Recipe":
        """The recipe with `settings` such as "training.steps=2000" (the value in TOML); raises BadInput for others."""
        document: dict[str, Any] = {}
        for setting in settings:
            name, equals, value = setting.partition("=")
            if not equals:
                raise BadInput(f"--set {setting}: write it as section.key=value, such as training.steps=2000")
            parsed = _parsed(f"value = {value}") or _parsed(f"value = {literal(value)}")
            section, _, key = name.strip().rpartition(".")
            target = document.setdefault(section, {}) if section else document
            target[key] = (parsed or {})["value"]
        return _made(_merged(dataclasses.asdict(self), document), "--set")

    def to_toml(self) -> str:
        """All of it as TOML, defaults included."""
        lines = [f"name = {literal(self.name)}", f"about = {literal(self.about)}"]
        for section in ("data", "tokenizer", "model", "training"):
            part = getattr(self, section)
            lines += ["", f"[{section}]"]
            lines += [f"{f.name} = {literal(getattr(part, f.name))}" for f in dataclasses.fields(part)]
        return "\n".join(lines) + "\n"

    @property
    def digest(self) -> str:
        """SHA-256 over everything but `about`: two runs of one digest are the same run."""
        document = dataclasses.asdict(self)
        del document["about"]
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def shipped() -> tuple[str, ...]:
    """Names of the recipes that come with the package."""
    folder = resources.files("outlierlens").joinpath("data_files", "recipes")
    return tuple(sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")))


def read_recipe(name: str | Path) -> Recipe:
    """The shipped recipe called `name`, or the one in a .toml file.

    Raises:
        BadInput: no such recipe, not TOML, an unknown key, a value of the wrong type or out of range.
    """
    return _made(_document(str(name), None, DEPTH), str(name))


def _document(name: str, beside: Path | None, depth: int) -> dict[str, Any]:
    if depth == 0:
        raise BadInput(f"{name}: recipes extend each other more than {DEPTH} times; do two extend one another?")
    document, folder = _read(name, beside)
    base = document.pop("extends", None)
    if base is None:
        return document
    if not isinstance(base, str):
        raise BadInput(f"{name}: extends = {base!r}; name one recipe")
    return _merged(_document(base, folder, depth - 1), document)


def _read(name: str, beside: Path | None) -> tuple[dict[str, Any], Path | None]:
    if name in shipped():
        text = resources.files("outlierlens").joinpath("data_files", "recipes", f"{name}.toml").read_text("utf-8")
        return tomllib.loads(text), None
    path = (beside or Path()) / name
    if path.suffix != ".toml" or not path.is_file():
        raise BadInput(
            f"{name}: no such .toml file and no shipped recipe; shipped are {', '.join(shipped())}{near(name, shipped())}"
        )
    return read_toml(path), path.parent


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for key, value in over.items():
        old = both.get(key)
        both[key] = _merged(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return both


def _made(document: Mapping[str, Any], where: str) -> Recipe:
    recipe = typing.cast(Recipe, _typed(Recipe, document, where))
    for problem in _problems(recipe):
        raise BadInput(f"{where}: {problem}")
    return recipe


def _typed(wanted: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Annotated:
        return _typed(arguments[0], value, where)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        if not isinstance(value, Mapping):
            raise BadInput(f"{where}: a table is needed, not {value!r}")
        hints = typing.get_type_hints(wanted, include_extras=True)
        for key in value:
            if key not in hints:
                hint = near(key, hints) or f"; known: {', '.join(hints)}"
                raise BadInput(f"{where}: unknown key {key!r}{hint}")
        if "name" in hints and "name" not in value:
            raise BadInput(f"{where}: the recipe has no name")
        return wanted(**{key: _typed(hints[key], item, f"{where}, {key}") for key, item in value.items()})
    if origin is Literal:
        if value not in arguments:
            raise BadInput(f"{where} is {value!r}; use one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise BadInput(f"{where} is {value!r}; write a list")
        return tuple(_typed(arguments[0], item, where) for item in value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1e308:
        return float(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise BadInput(f"{where} is {value!r}; a value of type {wanted.__name__} is needed")
    return value


def _problems(recipe: Recipe) -> Iterable[str]:
    model, training = recipe.model, recipe.training
    if not recipe.name or Path(recipe.name).name != recipe.name or recipe.name.startswith("."):
        yield f"name is {recipe.name!r}; it names a folder, so it must be one plain word"
    for section in ("data", "tokenizer", "model", "training"):
        part = getattr(recipe, section)
        for key, value in dataclasses.asdict(part).items():
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, float) and not math.isfinite(number):
                    yield f"{section}.{key} is {value}; it must be finite"
        try:
            check(part)
        except BadInput as error:
            yield f"{section}.{error}"
    if len(training.adam_betas) != 2 or not all(0 <= beta < 1 for beta in training.adam_betas):
        yield f"training.adam_betas is {list(training.adam_betas)}; it takes two numbers in [0, 1)"
    yield from _model_problems(model)
    if (training.penalty == "none") != (training.penalty_strength == 0):
        yield (
            f"training.penalty is {training.penalty!r} with penalty_strength {training.penalty_strength}; a penalty needs "
            f"a strength above 0, and a strength a penalty"
        )
    if training.save_every % training.log_every:
        yield (
            f"training.save_every ({training.save_every}) must be a multiple of log_every ({training.log_every}), so that "
            f"a resumed run logs the same means"
        )


def _model_problems(model: ModelRecipe) -> Iterable[str]:
    if model.width % model.heads:
        yield f"model.width {model.width} cannot be shared by {model.heads} heads"
    if model.type == "roberta" and not plain(model):
        yield (
            "type roberta takes learned, sinusoidal or no positions, post-norm, LayerNorm and plain softmax; use type bert"
        )
    if model.type == "llama":
        wanted = {**LLAMA, "attention": model.attention if model.attention != "clipped" else "softmax"}
        wrong = [f"{key} = {literal(value)}" for key, value in wanted.items() if getattr(model, key) != value]
        if wrong:
            yield f"type llama needs {', '.join(wrong)} in [model]"
    if any(not 0 <= dim < model.width for dim in model.planted):
        yield f"model.planted names a dimension outside 0 to {model.width - 1}"
    if len(set(model.planted)) != len(model.planted):
        yield f"model.planted is {list(model.planted)}; name each dimension once"
    if model.positions == "rotary" and model.width // model.heads % 2:
        yield f"rotary positions turn pairs of a head's dimensions, and a head has {model.width // model.heads} of them"
    if model.planted and model.norm_order == "pre":
        yield "model.planted sets the norms that post-norm blocks end in; pre-norm blocks have none"


LLAMA: dict[str, Any] = {
    "positions": "rotary", "norm": "rmsnorm", "norm_order": "pre", "dropout": 0.0, "output_bias": False, "linear_bias": False,
    "position_amplitude": 0.0,
}  # fmt: skip


def plain(model: ModelRecipe) -> bool:
    """Whether the network is one that Hugging Face's own BERT and RoBERTa classes compute."""
    return model.positions in ("learned", "sinusoidal", "none") and (model.norm, model.norm_order, model.attention) == (
        "layernorm",
        "post",
        "softmax",
    )
