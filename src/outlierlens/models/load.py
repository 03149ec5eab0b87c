"""Load a model and its tokenizer by name, the way every command takes them.

loaded = load_model("smollm2-135m")
loaded.model, loaded.tokenizer, loaded.head          # head: "causal", "masked", "other" or "none"
loaded.stacks                                        # residual streams, bound to the live parameters
"""

import contextlib
import difflib
import hashlib
import importlib
import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from weakref import finalize

import outlierlens.architectures as arch
from outlierlens.architectures import BoundStack, input_device, live_parameters, own_parameters
from outlierlens.checkpoints import open_adapter, open_checkpoint
from outlierlens.checkpoints.formats import format_of, suffixes
from outlierlens.checkpoints.samples import SAMPLES, is_told, say
from outlierlens.checkpoints.stored import LiveCheckpoint
from outlierlens.data.token_texts import KnownTokens
from outlierlens.errors import (
    BadFile,
    BadInput,
    MissingExtra,
    Offline,
    OutlierlensError,
    UnknownArchitecture,
    UnknownModel,
    need,
)
from outlierlens.models.changes import BY_BLOCK, NEEDS_WHOLE, evaluating
from outlierlens.models.devices import free_memory, ordered_weights, pick_device, whole_float32
from outlierlens.models.folder import guard_rows, model_folder, processor_beside, row_count, tokenizer_beside
from outlierlens.models.model_class import (
    NewHead,
    agree_on_padding,
    check_values,
    config_of,
    load_class,
    load_with_head,
    put_on,
    spread_out,
    takes_alone,
)
from outlierlens.results.document import Provenance

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from outlierlens.models.block_weights import BlockReader
    from outlierlens.models.blocks import ByBlock

T = TypeVar("T")
Head = Literal["causal", "masked", "other", "none"]
OF_FILES = "read block by block: the model's fingerprint is of its files' layout, sizes and times, not of every value"
NOT_TEXT = ("vision", "audio")  # streams that texts do not reach begin so
STORED = "checkpoint"
BY_NEURON = "scan, observe, ablate and sweep"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
DTYPES = (*DTYPE_BYTES, STORED)


@dataclass(frozen=True)
class LoadOptions:
    """How to load: revision, adapter, precision, device and trust, as in every command."""

    revision: str | None = None
    """Hub revision: branch, tag or commit."""
    subfolder: str = ""
    """Folder inside the model's directory or repository."""
    token: str | None = field(default=None, repr=False)
    """Hub token. Default: HF_TOKEN, or that of `hf auth login`."""
    dtype: str = "float32"
    """float32 (even where hardware prefers others), bfloat16, float16; "checkpoint": as the config or the first weight says."""
    device: str = "auto"
    """auto, cpu, cuda:0, mps."""
    trust_remote_code: bool = False
    """Run code that the model brings."""
    offline: bool = False
    """Forbid the network while this model is loaded."""
    adapter: str | None = None
    """Folder of a LoRA adapter, which is added to the weights in memory."""
    row: arch.RowChoice = None
    """TOML file that declares the architecture, or the family (model_type) to take the model for."""
    tokenizer: str | None = None
    """Folder, sample or hub id whose tokenizer reads the texts."""
    attention: str | None = None
    """Implementation of attention, as transformers calls it: eager, sdpa."""
    device_map: str | Mapping[str, Any] | None = None
    """Spread the weights as accelerate does: "auto", or {module: device}; `device` is then "auto"."""
    by_block: bool | None = None
    """Read weights when their block runs, see `models.blocks`. Default: where they do not fit into free memory."""
    memory: int | None = None
    """Bytes of memory that reading block by block may take, the libraries not counted."""
    keep_weights: bool = False
    """Download a hub's model that is read by block into the hub's cache first."""
    notice: Callable[[str], None] = say
    """Called with a line before slow work that is done once."""


@dataclass(frozen=True)
class LoadedModel:
    """A model with everything that measures need to know about it; they run it in evaluation mode."""

    name: str
    model: "nn.Module"
    tokenizer: "PreTrainedTokenizerBase | None"
    head: Head
    stacks: list[BoundStack]
    config: dict[str, Any] = field(repr=False, default_factory=dict)
    processor: Any = field(repr=False, default=None)  # of models that read pictures or recordings
    notice: Callable[[str], None] = field(repr=False, compare=False, default=say)
    known: KnownTokens = field(repr=False, compare=False, default_factory=KnownTokens)  # of the texts read so far
    adapter: str = ""  # the folder of the adapter that was added to its weights
    note: str = ""  # on the adapter

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of every result should know: its adapter, the texts that were read, how it was; () for nothing."""
        return tuple(filter(None, (self.note, self.known.note, OF_FILES if self.blocks else "")))

    @property
    def weights(self) -> LiveCheckpoint:
        """Its parameters as they are now."""
        found = LiveCheckpoint(self.model, name=self.name, config=self.config)
        found.adapter, found.notes = self.adapter, (self.note,) if self.note else ()
        return found

    @property
    def blocks(self) -> "ByBlock | None":
        """What reads its weights block by block; None for a model that is whole in memory."""
        found: ByBlock | None = getattr(self.model, BY_BLOCK, None)
        return found

    def run(self, calls: "Iterable[Callable[[], T]]", n_tokens: int = 0) -> list[T]:
        """What each call gives; where the model is read block by block, all of them go through each block together.

        With a bound of memory calls go in groups, where each reads `n_tokens` tokens.
        """
        if self.blocks is None:
            return [call() for call in calls]
        return self.blocks.run(list(calls), n_tokens)

    def need_whole(self, what: str) -> None:
        """Raise BadInput where the model is read block by block, and `what` needs all weights at once."""
        if self.blocks is not None:
            raise BadInput(f"{self.name}: {what} needs the model whole, and it is read block by block; {NEEDS_WHOLE}")

    def weights_of(self, module: "nn.Module") -> contextlib.AbstractContextManager[None]:
        """Inside, its weights are in memory; else they are while it runs, where the model is read block by block."""
        return contextlib.nullcontext() if self.blocks is None else self.blocks.weights_of(module)

    def ordered_weights(self) -> contextlib.AbstractContextManager[None]:
        """`devices.ordered_weights`, where all weights are in memory."""
        whole = self.blocks is None and not arch.offloaded(self.model)
        return ordered_weights() if whole else contextlib.nullcontext()

    @property
    def device(self) -> "torch.device":
        """Where the inputs go."""
        return input_device(self.model)

    @property
    def dtype(self) -> str:
        """What most of its weights are in: "bfloat16"."""
        count: Counter[str] = Counter()
        for parameter in own_parameters(self.model).values():
            count[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
        return count.most_common(1)[0][0]

    @property
    def text_stacks(self) -> list[BoundStack]:
        """The streams that texts reach; of several none that only a module with pictures runs (a Q-Former)."""
        found = [stack for stack in self.stacks if not stack.name.startswith(NOT_TEXT)]
        if len(found) < 2 or self.config.get("is_encoder_decoder"):
            return found
        return [one for one in found if any(takes_alone(it, "input_ids") for it in around([one], self.model))]

    @property
    def language(self) -> "nn.Module":
        """What predicts words from text alone: the model itself, or a part of one that wants pictures too (BLIP-2)."""
        found = reversed(around(self.text_stacks, self.model))
        return next((one for one in found if _has_words(one) and takes_alone(one, "input_ids")), self.model)

    def provenance(self, *, command: str = "", seed: int | None = None, digest: str = "") -> Provenance:
        """Of a result of this model, made now; `digest` is its `fingerprint`, taken here (1 s/GB) where none is given.

        Raises:
            BadInput: every token of the texts that were read is unknown to the tokenizer.
        """
        self.known.check(self.name)
        self.known.warn(self.notice, self.name)
        return Provenance.now(
            self.name, digest or fingerprint(self.model), command=command, seed=seed, dtype=self.dtype,
            adapter=self.adapter,
        )  # fmt: skip

    def stack(self, name: str | None = None) -> BoundStack:
        """The residual stream called `name`, or the only one; raises BadInput with the choices."""
        names = [stack.name for stack in self.stacks]
        if arch.is_mlp(name):
            raise BadInput(
                f"--stack {name}: neurons are read by {BY_NEURON}; here --stack names a residual stream: {', '.join(names)}"
            )
        if name is None and len(names) == 1:
            return self.stacks[0]
        if name not in names:
            raise BadInput(f"{self.name}: which stream? --stack must be one of {', '.join(names)}, not {name!r}")
        return self.stacks[names.index(name)]

    def axis(self, name: str | None = None, *, experts: bool = False) -> BoundStack:
        """`stack`, or the neurons of its MLPs: "mlp", or "encoder.mlp" where there are several streams.

        With `experts` also whole experts: "experts", "encoder.experts".

        Raises:
            BadInput: there is no such stream, not each layer has one MLP (experts, shared blocks), or experts are not taken.
        """
        if name is None or not (axis := arch.axis_name(name)):
            return self.stack(name)
        if axis != arch.MLP and not experts:
            raise BadInput(f"--stack {name}: whole experts are ablated by `ablate`, in mode weights, and nowhere else")
        (stream,) = arch.streams_of(self.stacks, name, self.name)
        make = arch.mlp_axis if axis == arch.MLP else arch.expert_axis
        return make(stream, arch.live_parameters(self.model), name)

    def axes(self, name: str) -> tuple[BoundStack, ...]:
        """`axis`, where there are experts a row for each MLP, and an axis for each kind of MLP; raises BadInput likewise."""
        if not arch.is_mlp(name):
            return (self.stack(name),)
        (stream,) = arch.streams_of(self.stacks, name, self.name)
        return arch.mlp_axes(stream, arch.live_parameters(self.model), name)


def from_objects(
    model: "nn.Module", tokenizer: Any = None, *, processor: Any = None, name: str = "", row: arch.RowChoice = None
) -> LoadedModel:
    """Wrap a live model; DataParallel around it is taken off. `row` is a TOML file, or a family, that describes its type.

    `processor` is the image processor or feature extractor of a model that reads pictures or recordings. A model whose
    tokenizer knows more ids than its embeddings have rows is given a hook that says so when such an id comes. Nothing else
    of the model changes: functions of the library run it in evaluation mode, and put each module back into its own.

    Raises:
        UnknownArchitecture: the model's type has no row and none is given.
        BadInput: an adapter of peft is around its weights.
    """
    while type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
        model = cast("nn.Module", model.module)
    config = config_dict(model)
    if isinstance(row, Path):
        stacks = arch.load_toml(row)
    else:
        stacks = arch.stacks_of({**config, "model_type": row} if row else config, name or type(model).__name__)
    try:
        bound = arch.bind_live(stacks, model)
    except UnknownArchitecture:
        if wrapped := next((one for one in live_parameters(model) if ".base_layer." in one), ""):
            remedy = "merge it with merge_and_unload(), or give base and folder: load_model(BASE, adapter=FOLDER)"
            raise BadInput(f"{wrapped}: an adapter of peft is around this weight; {remedy}") from None
        raise
    guard_rows(model, tokenizer, name or type(model).__name__)
    loaded = LoadedModel(
        name or type(model).__name__, model, tokenizer, _head_of(model, tokenizer), bound, config, processor
    )
    tower = type(model).__name__.endswith("ForConditionalGeneration") and not config.get("is_encoder_decoder")
    return replace(loaded, head="causal") if tower and _looks_left(loaded.language) else loaded


def around(stacks: "list[BoundStack]", model: "nn.Module") -> "list[nn.Module]":
    """The modules that hold all blocks of `stacks`, the innermost first and the model itself last; [] of no block."""
    paths = [block.split(".") for stack in stacks for block in stack.blocks]
    common = [names[0] for names in itertools.takewhile(lambda names: len({*names}) == 1, zip(*paths, strict=False))]
    return [model.get_submodule(".".join(common[:length])) for length in range(len(common), -1, -1) if paths]


def _has_words(module: "nn.Module") -> bool:
    """Whether its outputs are logits of a vocabulary."""
    head: Any = getattr(module, "get_output_embeddings", lambda: None)
    try:
        return head() is not None
    except (AttributeError, NotImplementedError):
        return False


def _looks_left(module: "nn.Module") -> bool:
    """Whether logits from text alone depend on what stands before alone: tried on two rows that differ in their last token."""
    import torch

    device, kind = input_device(module), next(module.parameters()).dtype
    if device.type == "meta" or not _has_words(module):
        return False
    ids = torch.tensor([[3, 4, 5, 6], [3, 4, 5, 7]], device=device)
    try:
        with torch.inference_mode(), evaluating(module):
            logits: Any = module(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.float()
    except (TypeError, ValueError, RuntimeError, IndexError):  # it wants pictures as well
        return False
    close = 1e-5 if kind is torch.float32 else 1e-2
    apart = (logits[0] - logits[1]).abs().amax(-1)  # [token]
    return bool(apart[:3].max() <= close * logits.abs().max()) and bool(apart[3] > 0)


def config_dict(model: "nn.Module") -> dict[str, Any]:
    """The model's configuration as a dictionary; {} for a module that carries none."""
    config: Any = getattr(model, "config", None)
    return config.to_dict() if config is not None and hasattr(config, "to_dict") else {}


def load_model(name: str, options: LoadOptions | None = None, head: NewHead | None = None) -> LoadedModel:
    """Load `name` (sample, directory, weight file or hub id) with its tokenizer and bind its residual streams.

    The class is the one the config's `architectures` names, or where it names none, that of the language model whose head is
    stored; where the file lacks that class's head (sentence encoders are often saved so), the bare encoder is loaded
    instead. A pooler that the file lacks is set to zero: no state depends on it, and random values would make every load
    another model.

    With `head`, the model gets that head for fine-tuning; a stored head for the same labels is kept (`options.notice` is
    told).

    Raises:
        BadFile: damaged weights (NaN and infinity among them), a config or an adapter that does not fit them, or missing ones.
        MissingExtra: the model or its tokenizer needs a library that is not installed.
        UnknownModel, UnknownArchitecture, Offline, BadInput: see those.
    """
    options = options or LoadOptions()
    if options.dtype not in DTYPES:
        raise BadInput(f"dtype is {options.dtype!r}; use one of {', '.join(DTYPES)}")
    if head is not None and options.adapter is not None:
        raise BadInput(
            "fine-tuning starts from a model, not from an adapter; merge it with peft first: merge_and_unload()"
        )
    beside = {"device": options.device != "auto", "an adapter": options.adapter, "a new head": head}
    placed, folder = spread_out(options.device_map, beside | {"by_block": options.by_block, "memory": options.memory})
    torch = need("torch", "models", "running a model")
    transformers = need("transformers", "models", "running a model")
    transformers.utils.logging.set_verbosity_error()
    if not is_told():
        transformers.utils.logging.disable_progress_bar()
    source, options = _source(name, options)
    adapter = None if options.adapter is None else open_adapter(options.adapter)
    common = _common(options)
    device = pick_device(options.device)
    whole_float32(device)
    dtype = "auto" if options.dtype == STORED else getattr(torch, options.dtype)
    with _explaining(name, source, options):
        family = options.row if isinstance(options.row, str) else None
        config = config_of(source, family, common, options.notice)
        reader = _block_reader(name, source, options, device, plain=head is None)
        how = {**common, **placed, **({"attn_implementation": options.attention} if options.attention else {})}
        if head is None:
            model = load_class(source, config, dtype, how, adapter, reader)
        else:
            model = load_with_head(source, head, config=config, dtype=dtype, options=how, notice=options.notice)
        if options.tokenizer is None:
            tokenizer = tokenizer_beside(source, common, config)
        else:
            tokenizer = _other_tokenizer(options, model)
        note = "" if adapter is None else put_on(model, adapter)
        agree_on_padding(model, tokenizer)
        processor = processor_beside(model, source, common)
    if folder is not None:
        finalize(model, folder.cleanup)
    elif reader is None:
        model = model.to(device)
    check_values(name, model, options.dtype)
    if reader is not None:
        from outlierlens.models.block_weights import BlockWeights
        from outlierlens.models.blocks import ByBlock

        blocks = ByBlock(model, BlockWeights(model, reader, name), options.memory)
        blocks.notice = lambda line: options.notice(f"{name}: {line}")
    loaded = from_objects(model.eval(), tokenizer, processor=processor, name=name, row=options.row)
    return replace(loaded, notice=options.notice, adapter=options.adapter or "", note=note)


def _block_reader(
    name: str, source: str, options: LoadOptions, device: "torch.device", *, plain: bool
) -> "BlockReader | None":
    """What reads the weights of blocks when they run; None where the model is loaded whole.

    Raises:
        BadInput: a new head (not `plain`) or an adapter needs all weights at once.
    """
    asked, plain = options.by_block or options.memory is not None, plain and options.adapter is None
    if asked and not plain:
        raise BadInput(f"{name}: an adapter or a new head needs the model whole; {NEEDS_WHOLE}")
    left = options.by_block is False or options.device_map is not None
    if not asked and (left or not plain or not Path(source).is_dir()):
        return None
    checkpoint = open_checkpoint(
        source, revision=options.revision, subfolder=options.subfolder, token=options.token, offline=options.offline,
        as_stored=True,
    )  # fmt: skip
    if not asked:
        item = DTYPE_BYTES.get(options.dtype)
        takes = sum(one.size * item if item else one.nbytes for one in checkpoint.tensors.values())
        free = free_memory(device)
        if free is None or takes <= free:
            return None
        options.notice(
            f"{name}: {takes / 1e9:,.3g} GB of weights in {options.dtype}, and {free / 1e9:,.3g} GB of {device.type} memory "
            f"free: read block by block, {checkpoint.total_bytes / 1e9:,.3g} GB each time"
        )
    need("greenlet", "models", "reading a model block by block")
    from outlierlens.checkpoints.hub import HubCheckpoint
    from outlierlens.models.block_weights import BlockReader

    if options.keep_weights and isinstance(checkpoint, HubCheckpoint):
        checkpoint = checkpoint.kept(options.notice)
    return BlockReader(checkpoint, device)


def load_tokenizer(name: str, options: LoadOptions | None = None) -> "PreTrainedTokenizerBase":
    """The tokenizer of `name` (sample, directory, weight file or hub id) alone: no weights are read.

    Raises:
        UnknownModel: there is none.
        BadFile, MissingExtra, Offline: as `load_model`.
    """
    options = options or LoadOptions()
    transformers = need("transformers", "models", "reading a tokenizer")
    transformers.utils.logging.set_verbosity_error()
    source, options = _source(name, options, weights=False)
    with _explaining(name, source, options):
        found = tokenizer_beside(source, _common(options))
    if found is None:
        raise UnknownModel(
            f"{name}: no tokenizer there, or the hub cannot be reached; name a folder, sample or hub id that has one"
        )
    return found


def load_config(name: str, options: LoadOptions | None = None) -> Any:
    """The configuration of `name` (sample, directory or hub id) alone; raises like `load_tokenizer`."""
    options = options or LoadOptions()
    transformers = need("transformers", "models", "reading a configuration")
    source, options = _source(name, options, weights=False)
    with _explaining(name, source, options):
        return transformers.AutoConfig.from_pretrained(source, **_common(options))


def _other_tokenizer(options: LoadOptions, model: "nn.Module") -> "PreTrainedTokenizerBase":
    """The tokenizer that is named instead of the model's own; raises BadInput where the model lacks rows for its tokens."""
    name = str(options.tokenizer)
    if Path(name).is_file() and format_of(Path(name)) is None:
        raise BadInput(f"--model-args tokenizer={name}: is a file; name the folder that holds it, {Path(name).parent}")
    found = load_tokenizer(name, replace(options, revision=None, subfolder="", row=None, tokenizer=None))
    rows = row_count(model) or 0
    if (highest := max(found.get_vocab().values())) >= rows:
        raise BadInput(
            f"--model-args tokenizer={name}: has tokens up to number {highest:,}, and the model rows for {rows:,}; name the "
            f"tokenizer that the model was trained with"
        )
    return found


@contextlib.contextmanager
def _explaining(name: str, source: str, options: LoadOptions) -> Iterator[None]:
    """Load inside: without the network where that is asked for, and with errors of ours for those of other libraries."""
    with _no_network() if options.offline else contextlib.nullcontext():
        try:
            importlib.import_module(
                "outlierlens.models.variants.config"
            )  # with it AutoConfig knows the house's own families
            yield
        except (OutlierlensError, MemoryError):
            raise
        except Exception as error:  # the libraries below raise nearly every class for a damaged file, some bare
            raise _explained(error, name, missing=options.offline and not Path(source).exists()) from error


def _common(options: LoadOptions) -> dict[str, Any]:
    """What every `from_pretrained` gets."""
    return {
        "revision": options.revision,
        "token": options.token,
        "trust_remote_code": options.trust_remote_code,
        "subfolder": options.subfolder,
        "local_files_only": options.offline,
    }


@contextlib.contextmanager
def _no_network() -> Iterator[None]:
    """Have the hub library refuse every request: `local_files_only` alone lets some through (metadata, telemetry)."""
    constants: Any = need("huggingface_hub.constants", "models", "running a model")
    before = constants.HF_HUB_OFFLINE
    try:
        constants.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _explained(error: Exception, name: str, *, missing: bool) -> OutlierlensError:
    """The error of ours, in one line, that says what another library's error means for loading `name`."""
    if missing and isinstance(error, OSError):
        return Offline(
            f"{name}: not in the local cache, and offline mode is on; run once without offline in --model-args"
        )
    text = (" ".join(str(error).split()) or type(error).__name__)[:300]
    if isinstance(error, ImportError):
        return MissingExtra(f"{name}: needs a library that is not installed: {text}")
    if isinstance(error, pickle.UnpicklingError):
        # The library's own message recommends unpickling without protection.
        return BadFile(f"{name}: its weights are damaged or hold more than tensors; fetch or save them again")
    if isinstance(error, ValueError) and "contains custom code" in text:
        return UnknownModel(
            f"{name}: runs by code that comes with it; read that, and pass --model-args trust-remote-code to run it"
        )
    if isinstance(error, OSError | ValueError):
        return UnknownModel(f"{name}: cannot be loaded: {text}")
    return BadFile(
        f"{name}: a file in it is damaged or does not fit the others ({type(error).__name__}: {text}); "
        f"fetch or save the model again"
    )


def _source(name: str, options: LoadOptions, *, weights: bool = True) -> tuple[str, LoadOptions]:
    """Where to load from, and the options that are left: a folder on this machine is named with its subfolder."""
    found = model_folder(
        name, subfolder=options.subfolder, offline=options.offline, weights=weights, notice=options.notice
    )
    if found is not None:
        return str(found), replace(options, subfolder="")
    if name.startswith((".", "/", "~")) or Path(name).suffix in suffixes():
        raise UnknownModel(f"{name}: no such file or directory")
    meant = difflib.get_close_matches(name, SAMPLES, n=1, cutoff=0.8)
    if meant:  # as `scan` says; the hub would be asked for minutes otherwise
        raise UnknownModel(f"{name}: no such file or directory; did you mean the sample {meant[0]}?")
    return name, options


def _head_of(model: "nn.Module", tokenizer: Any = None) -> Head:
    """What the outputs are: "causal" (next token), "masked", "other" (another head) or "none" (states).

    A class name ending in ForCausalLM or LMHeadModel counts as causal only where the model attends to the left alone.
    "other" are therefore: XLNet (both directions unless it is given a permutation mask), encoder families whose config
    says is_decoder false (BertLMHeadModel, RobertaForCausalLM, …), XLM and Flaubert with causal false, and Gemma with
    use_bidirectional_attention; and a masked model whose tokenizer has no mask token, such as a tagger with that head.

    Of a model of texts and pictures (ForConditionalGeneration) `from_objects` tries whether its words depend on what stands
    before alone.
    """
    inner: Any = getattr(model, "_orig_mod", getattr(model, "module", model))
    name, config = type(inner).__name__, config_dict(inner)
    if name.endswith("ForMaskedLM"):
        return "other" if tokenizer is not None and tokenizer.mask_token_id is None else "masked"
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        causal = arch.family_of(config).causal
        both_directions = (
            causal == "never"
            or (causal == "is_decoder" and not config.get("is_decoder", False))
            or config.get("causal") is False
            or config.get("use_bidirectional_attention") is True
        )
        return "other" if both_directions else "causal"
    return "other" if "For" in name else "none"


def fingerprint(model: "nn.Module") -> str:
    """SHA-256 over names, shapes, types and all bytes of every parameter; parameters that are shared count once.

    About 1 second per gigabyte: nothing but every byte shows a change of one value, and sums would take longer. Of a model
    that is read block by block it is over the layout, and the size and time of change of its files, or their commit.

    Raises:
        BadInput: a parameter has no values here (it is on the meta device).
    """
    import torch

    arch.refuse_sharded(model)
    if blocks := getattr(model, BY_BLOCK, None):
        return str(blocks.weights.reader.fingerprint)
    digest = hashlib.sha256()
    with torch.no_grad():
        for name, parameter in sorted(own_parameters(model).items()):
            if parameter.is_meta:
                raise BadInput(f"{name} is on the meta device and has no values; load the whole model on one device")
            digest.update(f"{name}\0{tuple(parameter.shape)}\0{parameter.dtype}\n".encode())
            digest.update(parameter.detach().reshape(-1).view(torch.uint8).to("cpu").numpy().data)
    return digest.hexdigest()


def stream_width(module: "nn.Module", bound: BoundStack) -> int:
    """Number of dimensions of the stream, from the live weights."""
    param = next(one for layer in bound.scale for one in layer)  # a block may have no experts
    return int(live_parameters(module)[param.name].shape[param.axis])
