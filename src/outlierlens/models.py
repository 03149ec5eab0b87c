"""Load a model and its tokenizer by name, the way every command takes them.

loaded = load_model("smollm2-135m")
loaded.model, loaded.tokenizer, loaded.head          # head: "causal", "masked", "other" or "none"
loaded.stacks                                        # residual streams, bound to the live parameters
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from outlierlens import arch
from outlierlens.arch import BoundStack
from outlierlens.errors import BadInput, Offline, UnknownModel, need

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedTokenizerBase

Head = Literal["causal", "masked", "other", "none"]
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet")
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class LoadOptions:
    """How to load: revision, precision, device and trust, as in every command.

    `dtype` "auto" means float32 on CPU (bf16 is slower there without hardware support) and the stored type on GPUs.
    """

    revision: str | None = None
    subfolder: str = ""
    token: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    offline: bool = False
    row: Path | None = None
    attention: str | None = None


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode with everything that measures need to know about it."""

    name: str
    model: "nn.Module"
    tokenizer: "PreTrainedTokenizerBase | None"
    head: Head
    stacks: list[BoundStack]
    config: dict[str, Any] = field(repr=False, default_factory=dict)

    @property
    def device(self) -> "torch.device":
        """Where the inputs go."""
        return next(self.model.parameters()).device

    def stack(self, name: str | None = None) -> BoundStack:
        """The stream called `name`, or the only one; raises BadInput with the choices."""
        names = [stack.name for stack in self.stacks]
        if name is None and len(names) == 1:
            return self.stacks[0]
        if name not in names:
            raise BadInput(f"{self.name}: which stream? --stack must be one of {', '.join(names)}, not {name!r}")
        return self.stacks[names.index(name)]


def from_objects(model: "nn.Module", tokenizer: Any = None, *, name: str = "", row: Path | None = None) -> LoadedModel:
    """Wrap a live model; `row` is a TOML file that replaces the table's row.

    Raises:
        UnknownArchitecture: the model's type has no row and none is given.
    """
    config = config_dict(model)
    stacks = arch.load_toml(row) if row else arch.stacks_of(config, name or type(model).__name__)
    bound = arch.bind(stacks, arch.live_parameters(model))
    model.eval()
    return LoadedModel(name or type(model).__name__, model, tokenizer, _head_of(model), bound, config)


def config_dict(model: "nn.Module") -> dict[str, Any]:
    """The model's configuration as a dictionary; {} for a module that carries none."""
    config: Any = getattr(model, "config", None)
    return config.to_dict() if config is not None and hasattr(config, "to_dict") else {}


def max_positions(config: Mapping[str, Any]) -> int | None:
    """Tokens that the model has positions for, where its config sets a limit."""
    limits = [config.get(key) for key in ("max_position_embeddings", "n_positions")]
    found = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    if not found:
        return None
    # RoBERTa and its kin number positions from the padding index + 1.
    offset = config.get("pad_token_id", 1) + 1 if config.get("model_type") in OFFSET_POSITIONS else 0
    return min(found) - offset


def load_model(name: str, options: LoadOptions | None = None) -> LoadedModel:
    """Load `name` (sample, directory or hub id) with its tokenizer and bind its residual streams.

    The class is the one the config's `architectures` names; where the file lacks that class's head (sentence
    encoders are often saved so), the bare encoder is loaded instead.

    Raises:
        UnknownModel, UnknownArchitecture, Offline, BadInput: see those.
    """
    options = options or LoadOptions()
    if options.dtype not in DTYPES:
        raise BadInput(f"dtype is {options.dtype!r}; use one of {', '.join(DTYPES)}")
    need("torch", "models", "running a model")
    if options.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when the libraries are imported, so before the next line
    transformers = need("transformers", "models", "running a model")
    import torch

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    source = _source(name, options)
    common = {
        "revision": options.revision,
        "token": options.token,
        "trust_remote_code": options.trust_remote_code,
        "subfolder": options.subfolder,
        "local_files_only": options.offline,
    }
    device = pick_device(options.device)
    dtype = getattr(torch, options.dtype) if options.dtype != "auto" else _auto_dtype(device)
    try:
        config = transformers.AutoConfig.from_pretrained(source, **common)
        model = _load(transformers, source, config, dtype, {**common, "attention": options.attention})
        tokenizer = _tokenizer(transformers, source, common)
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
        if options.offline and not Path(source).exists():
            raise Offline(
                f"{name}: not in the local cache, and offline mode is on; run once without --offline"
            ) from None
        raise UnknownModel(f"{name}: cannot be loaded: {text[:300]}") from error
    return from_objects(model.to(device), tokenizer, name=name, row=options.row)


def _source(name: str, options: LoadOptions) -> str:
    from outlierlens import samples

    if Path(name).is_dir():
        return name
    if name in samples.SAMPLES:
        return str(samples.model_directory(name))
    if Path(name).is_file() or name.startswith((".", "/", "~")):
        raise UnknownModel(
            f"{name}: running a model needs its folder (config, tokenizer and weights), a sample or a hub id, not one file"
        )
    return name


def _load(transformers: Any, source: str, config: Any, dtype: Any, options: dict[str, Any]) -> "nn.Module":
    attention = options.pop("attention")
    extra = {"attn_implementation": attention} if attention else {}
    # A pre-training class adds a head of its own (next sentence, replaced tokens) to the masked-LM head.
    named = (getattr(config, "architectures", None) or [""])[0].replace("ForPreTraining", "ForMaskedLM")
    classes = [getattr(transformers, named, None) if named else None, transformers.AutoModel]
    for cls in classes:
        if cls is None:
            continue
        model, info = cls.from_pretrained(
            source, config=config, dtype=dtype, output_loading_info=True, **options, **extra
        )
        # A head that is not stored would be random: its outputs would mean nothing.
        if not info["missing_keys"] or cls is transformers.AutoModel:
            return model
    raise UnknownModel(f"{source}: no class of transformers loads it")


def _tokenizer(transformers: Any, source: str, common: dict[str, Any]) -> Any:
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **common)
    except (OSError, ValueError):
        return None  # a bare model: commands that need texts say so
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


def _head_of(model: "nn.Module") -> Head:
    name = type(getattr(model, "_orig_mod", getattr(model, "module", model))).__name__
    if name.endswith("ForMaskedLM"):
        return "masked"
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal"
    return "other" if "For" in name else "none"


def pick_device(device: str) -> "torch.device":
    """The device named, or the best there is for "auto"; raises BadInput for one that is absent."""
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise BadInput(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return chosen


def _auto_dtype(device: "torch.device") -> Any:
    import torch

    if device.type == "cpu":
        return torch.float32
    return "auto"


def fingerprint(model: "nn.Module") -> str:
    """SHA-256 over names, shapes, types and a strided sample of every parameter: cheap, and changed by training."""
    import torch

    digest = hashlib.sha256()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            flat = parameter.detach().reshape(-1)
            sample = flat[:: max(1, len(flat) // 256)].to("cpu", torch.float32)
            digest.update(f"{name}\0{tuple(parameter.shape)}\0{parameter.dtype}\n".encode())
            digest.update(sample.numpy().tobytes())
    return digest.hexdigest()
