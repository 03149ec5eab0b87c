"""A small random model with the structure that a config describes, and inputs that it takes: texts, pictures, videos, sounds.

small = small_model(config)      # fewer layers, narrower, random weights; needs transformers, no weights, no network
small.run()                      # one forward pass
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from outlierlens.architectures.experiment.shrink import (
    PICTURES,
    bare_model,
    config_object,
    dotted,
    fewer_layers,
    first_line,
    items,
    nodes,
    numbers,
    put,
    same_node,
    smaller_configs,
    values_of,
    with_fewer,
)
from outlierlens.architectures.stack import BY_HAND, Config
from outlierlens.errors import UnknownArchitecture

if TYPE_CHECKING:
    import torch
    from torch import nn


MAX_PARAMETERS = 160_000_000  # 640 MB


@dataclass(frozen=True)
class SmallModel:
    """A running stand-in for the model of a config.

    Attributes:
        model: the whole class, heads included. inputs: what it takes.
        config: its values. whole: those of the config that it stands for. changes: what was made smaller, in words.
        unseen: kinds of blocks that it has not, in words.
        towers: inputs of modules that `inputs` do not reach, by path: the tower for pictures of a model that reads text.
    """

    model: "nn.Module"
    inputs: dict[str, Any]
    config: dict[str, Any]
    changes: str
    whole: dict[str, Any]
    unseen: tuple[str, ...] = ()
    towers: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """What stands before the names of the model without its heads."""
        base: Any = self.model
        inner = getattr(base, "base_model", base)
        return "" if inner is base else f"{base.base_model_prefix}."

    def run(self, *, track: bool = False) -> None:
        """One forward pass of all of it; `track` keeps how its states depend on the parameters."""
        import torch

        with torch.set_grad_enabled(track), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model(**self.inputs)
            for path, inputs in self.towers.items():
                self.model.get_submodule(path)(**inputs)


def small_model(config: Config) -> SmallModel:
    """The model of `config`, as small as it can be made without changing its kind, that runs on made-up inputs.

    Code that comes with a model is never run: `model_type` must be one that transformers itself has.

    Raises:
        UnknownArchitecture: transformers does not know the family, or no small version of it runs.
    """
    full = config_object(config)
    reasons: list[str] = []
    unread: SmallModel | None = None  # runs, and transformers takes no file of its config
    made = next(classes_of(full), None)
    if made is None:
        raise UnknownArchitecture(f"transformers has no model for {full.model_type}")
    try:
        shallow, unseen = fewer_layers(full, made)
    except UnknownArchitecture:
        raise
    except Exception as error:  # of the family's own code
        raise UnknownArchitecture(
            f"a model of this {full.model_type} config cannot be built ({first_line(error)}); {BY_HAND}"
        ) from error
    fewer = "" if values_of(shallow) == values_of(full) else "fewer layers"
    for narrower, smaller in smaller_configs(shallow):
        words = ", ".join(filter(None, (fewer, narrower))) or "as it is"
        for made in classes_of(full):
            try:
                model = _build(made, smaller)
                getattr(model.config, "validate", tuple)()  # as it is read and written
            except Exception as error:
                reasons.append(f"{words}: {first_line(error)}")
                continue
            for inputs in made_inputs(model):
                small = SmallModel(model, inputs, values_of(model.config), words, values_of(full), unseen)
                try:
                    small.run()
                except Exception as error:
                    reasons.append(f"{words}, given {' and '.join(inputs)}: {first_line(error)}")
                    continue
                if PICTURES in words and _has_lone_tokens(small):
                    reasons.append(f"{words}: a block reads one patch alone")
                elif _is_read_back(small):
                    return replace(small, towers=_towers(small))
                else:
                    unread = unread or small
    if unread:
        return replace(unread, towers=_towers(unread))
    raise UnknownArchitecture(
        f"no small version of this {full.model_type} config runs ({'; '.join(dict.fromkeys(reasons[:3]))}); {BY_HAND}"
    )


def _has_lone_tokens(small: SmallModel) -> bool:
    """Whether a block gets a single token: attention over one is no attention, and what it takes is not seen."""
    import torch
    from torch import nn

    blocks = [one for module in small.model.modules() if isinstance(module, nn.ModuleList) for one in module]
    lone: list[int] = []

    def look(_: "nn.Module", args: Any, output: Any) -> None:
        found = [one for one in (*args, output) if isinstance(one, torch.Tensor) and one.ndim == 3]
        lone.extend(1 for one in found if one.shape[1] == 1)

    with ExitStack() as hooks:
        for block in dict.fromkeys(blocks):
            hooks.enter_context(block.register_forward_hook(look))
        small.run()
    return bool(lone)


def _is_read_back(small: SmallModel) -> bool:
    """Whether a file of its config gives the model again."""
    import torch

    try:
        with torch.device("meta"):
            again = bare_model(type(small.model), config_object(small.config))
    except Exception:  # of the family's own code
        return False
    return [one.shape for one in again.parameters()] == [one.shape for one in small.model.parameters()]


def _towers(small: SmallModel) -> dict[str, dict[str, Any]]:
    """Inputs of the models inside that the inputs of the whole do not reach, where some can be made up."""
    import transformers

    inner = {
        path: one for path, one in small.model.named_modules() if path and isinstance(one, transformers.PreTrainedModel)
    }
    ran: set[str] = set()
    with ExitStack() as hooks:
        for path, module in inner.items():
            hooks.enter_context(module.register_forward_hook(lambda *_, path=path: ran.add(path)))
        small.run()
    found: dict[str, dict[str, Any]] = {}
    for path, module in inner.items():
        if any(one == path or one.startswith(f"{path}.") for one in ran) or path.startswith(
            tuple(f"{one}." for one in found)
        ):
            continue
        for inputs in made_inputs(module):
            with suppress(Exception):  # of the family's own code
                replace(small, model=module, inputs=inputs).run()
                found[path] = inputs
                break
    return found


def classes_of(config: Any) -> Iterator[Any]:
    """The classes of this config's models: the one that it names, the one with a head, the bare one."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    tasks = [
        "MULTIMODAL_LM",
        "IMAGE_TEXT_TO_TEXT",
        "CAUSAL_LM",
        "SEQ_TO_SEQ_CAUSAL_LM",
        "SPEECH_SEQ_2_SEQ",
        "MASKED_LM",
        "CTC",
    ]
    if getattr(config, "is_encoder_decoder", False):
        tasks.sort(key=lambda task: "SEQ" not in task)
    names = list(getattr(config, "architectures", None) or ())
    names += [getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}).get(config.model_type) for task in tasks]
    names.append(auto.MODEL_MAPPING_NAMES.get(config.model_type))
    flat = [one for name in names for one in (name if isinstance(name, tuple | list) else (name,))]
    for name in dict.fromkeys(flat):
        made = getattr(transformers, str(name), None)
        if isinstance(made, type) and issubclass(made, transformers.PreTrainedModel):
            yield made


def _build(made: Any, config: Any) -> "nn.Module":
    import torch

    with torch.device("meta"):
        n_parameters = sum(parameter.numel() for parameter in bare_model(made, config).parameters())
    if n_parameters > MAX_PARAMETERS:
        raise UnknownArchitecture(f"{n_parameters:,} parameters are more than {MAX_PARAMETERS:,}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = bare_model(made, config).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                # Initial scales of 1 and biases of 0 would hide what they do.
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def number_of_blocks(small: SmallModel, path: str) -> str:
    """The dotted config key that sets the number of blocks in the list `path`; "" where none was found."""
    model: Any = small.model
    config = model.config
    n = len(list(small.model.get_submodule(path).children()))
    _, key = with_fewer(type(small.model), config, path, n, n - 1)
    return key


def number_of_experts(small: SmallModel, parameter: str) -> str:
    """The dotted config key that sets the first axis of a parameter of all experts; "" where none was found."""
    import torch

    model: Any = small.model
    n = len(model.get_parameter(parameter))
    for node, key, _ in (one for one in numbers(model.config) if one[2] == n and "expert" in str(one[1])):
        trial = copy.deepcopy(model.config)
        put(same_node(model.config, trial, node), key, n + 1)
        with suppress(Exception), torch.device("meta"):  # of the family's own code: another number
            if len(bare_model(type(model), trial).get_parameter(parameter)) == n + 1:
                return dotted(model.config, node, key)
    return ""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from logging and drawing progress bars about a model that is not the user's."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


N_INPUTS = 2
N_TOKENS = 7


def made_inputs(model: "nn.Module") -> Iterator[dict[str, Any]]:
    """Inputs that the model may take, the likeliest first."""
    import torch

    random = torch.Generator().manual_seed(0)
    config: Any = model.config
    text, vision = (getattr(config, f"{part}_config", None) or config for part in ("text", "vision"))
    takes = inspect.signature(model.forward).parameters
    n_words = getattr(text, "vocab_size", 0) or 100
    ids = torch.randint(min(5, n_words // 2), max(6, n_words * 3 // 4), (N_INPUTS, N_TOKENS), generator=random)
    decoder = {"decoder_input_ids": ids[:, :5]} if "decoder_input_ids" in takes else {}

    def noise(*shape: int) -> "torch.Tensor":
        return torch.randn((N_INPUTS, *shape), generator=random)

    def images() -> Iterator[dict[str, Any]]:
        size = _setting(vision, "image_size", 0) or _setting(config, "image_size", 32)
        picture = (_setting(vision, "num_channels", 3), *(size if isinstance(size, list | tuple) else (size, size)))
        words = {"input_ids": ids} if "input_ids" in takes else {}
        yield {"pixel_values": noise(*picture), **words, **decoder}
        yield {"pixel_values": noise(_setting(config, "num_frames", 2), *picture)}
        if "spatial_shapes" in takes:  # pictures that are cut into patches
            side = int(_setting(vision, "num_patches", 16) ** 0.5)
            patches = noise(side * side, picture[0] * _setting(vision, "patch_size", 16) ** 2)
            shapes = torch.tensor([[side, side]] * N_INPUTS)
            given = {"pixel_values": patches, "spatial_shapes": shapes}
            for name in ("pixel_attention_mask", "attention_mask"):
                if name in takes:
                    yield {**given, name: torch.ones(N_INPUTS, side * side, dtype=torch.long), **words}

    def sounds(name: str) -> Iterator[dict[str, Any]]:
        if name == "input_values":
            yield {name: noise(1200), **decoder}
        n_mel = next(filter(None, (_setting(config, key, 0) for key in _MEL_KEYS)), 80)
        n_frames = 2 * (getattr(config, "max_source_positions", 0) or 50)
        yield {name: noise(n_mel, n_frames), **decoder}
        yield {
            name: noise(_setting(config, "max_length", n_frames) if name == "input_values" else n_frames, n_mel),
            **decoder,
        }

    def texts() -> Iterator[dict[str, Any]]:
        words: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **decoder}
        if getattr(config, "add_cross_attention", False):
            words["encoder_hidden_states"] = noise(5, config.hidden_size)
        yield {key: value for key, value in words.items() if key in takes}

    makers: tuple[tuple[str, Callable[[], Iterator[dict[str, Any]]]], ...] = (
        ("input_values", lambda: sounds("input_values")),
        ("input_features", lambda: sounds("input_features")),
        ("pixel_values", images),
        ("input_ids", texts),
    )
    cache = {"use_cache": False} if "use_cache" in takes else {}
    for name, make in makers:
        if name in takes:
            for inputs in make():
                yield {**inputs, **cache}


_MEL_KEYS = ("num_mel_bins", "input_feat_per_channel", "n_mels", "mel_bins", "feature_size")


def _setting(config: Any, key: str, otherwise: Any) -> Any:
    """The first value of `key` that is set in a config, or in one inside."""
    return next((value for node in nodes(config) for name, value in items(node) if name == key and value), otherwise)
