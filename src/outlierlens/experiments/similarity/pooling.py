"""How a sentence becomes one vector: the mean over its tokens, one of them, or the model's own way.

pooling = Pooling()                                  # mean, special tokens left out
pooling = own_pooling("minilm-l6")                   # what 1_Pooling/config.json beside the model says
vectors = sentence_vectors(loaded, texts, pooling, options)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.checkpoints.base import is_too_long
from outlierlens.errors import BadFile, BadInput, Offline, OutlierlensError, need
from outlierlens.models.folder import input_table, model_folder, refuse_unknown
from outlierlens.models.load import LoadedModel, LoadOptions
from outlierlens.results.safe_files import read_json
from outlierlens.vectors.read import ReadOptions, Tokens, Vectors, gather, tokenise

MODES = ("mean", "mean_sqrt_len", "first", "last")
MAX_CONFIG = 2**20  # bytes
MAX_LENGTH = 128
TEXTS_AT_ONCE = 2048
# sentence-transformers' words for what a sentence's vector is: the mode of one file format, the flag of the older one.
THEIRS = {
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "mean_sqrt_len_tokens": ("mean_sqrt_len", "pooling_mode_mean_sqrt_len_tokens"),
    "cls": ("first", "pooling_mode_cls_token"),
    "lasttoken": ("last", "pooling_mode_lasttoken"),
    "max": ("", "pooling_mode_max_tokens"),
    "weightedmean": ("", "pooling_mode_weightedmean_tokens"),
}


@dataclass(frozen=True)
class Pooling:
    """One vector per sentence.

    Attributes:
        mode: "mean" over tokens; "mean_sqrt_len", their sum over the square root of their number; the "first" token, with
            special ones counted ([CLS]); or the "last".
        special: whether the mean counts special tokens.
        max_length: tokens at which a sentence is cut.
        source: where this was read, in words.
        notes: what else the model does to a sentence, which is not done here.
    """

    mode: str = "mean"
    special: bool = False
    max_length: int = MAX_LENGTH
    source: str = "as asked for"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise BadInput(f"pooling is {self.mode!r}; use one of {', '.join(MODES)}")

    @property
    def says(self) -> str:
        """ "mean of all tokens, special ones left out"."""
        if self.mode in ("first", "last"):
            return f"{self.mode} token"
        mean = "mean of all tokens" if self.mode == "mean" else "sum of all tokens over the square root of their number"
        return f"{mean}, special ones {'counted' if self.special else 'left out'}"


def sentence_vectors(loaded: LoadedModel, texts: Sequence[str], pooling: Pooling, options: ReadOptions) -> Vectors:
    """One vector per text at every layer, from one forward pass.

    Raises:
        BadInput: as `gather`.
    """
    tokens = tokenise(loaded, texts, max_length=pooling.max_length)
    if pooling.mode not in ("first", "last"):
        vectors = gather(loaded, tokens, tokens.sentences(), options, special=pooling.special)
        if pooling.mode == "mean_sqrt_len":
            root = np.sqrt(vectors.n_tokens, dtype=np.float32)
            for layer in range(len(vectors.layers)):
                vectors.values[layer] *= root[:, None]
        return vectors
    # A text without a token keeps an empty span, and a vector of zeros.
    lengths = tokens.lengths
    first = np.zeros(len(lengths), dtype=np.int64) if pooling.mode == "first" else np.maximum(lengths - 1, 0)
    spans = tokens.single(np.arange(len(lengths)), first)
    return gather(loaded, tokens, spans, options, special=True)


def static_vectors(loaded: LoadedModel, tokens: Tokens) -> np.ndarray:
    """Mean of the rows of the model's own input table over each text's ordinary tokens, float32 [text, dim].

    Neither positions nor norms nor any block: what the tokens say without a context.

    Raises:
        BadInput: the model has no such table.
    """
    inputs = input_table(loaded.model)
    if inputs is None:
        raise BadInput(f"{loaded.name} has no table of input embeddings; leave the static baseline out")
    table = inputs.weight
    found = np.zeros((len(tokens.texts), table.shape[1]), dtype=np.float32)
    for start in range(0, len(found), TEXTS_AT_ONCE):
        texts = range(start, min(len(found), start + TEXTS_AT_ONCE))
        ids = [np.asarray(tokens.encoded["input_ids"][text])[tokens.ordinary(text)] for text in texts]
        counts = np.array([len(one) for one in ids])
        used, inverse = np.unique(np.concatenate(ids).astype(np.int64), return_inverse=True)
        if not len(used):
            continue
        refuse_unknown(used.tolist(), len(table), loaded.tokenizer, loaded.name)
        rows = table[used.tolist()].detach().float().cpu().numpy()[inverse]  # [token, dim]
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
        some = counts > 0
        found[start + np.flatnonzero(some)] = np.add.reduceat(rows, begins[some], axis=0) / counts[some, None]
    return found


def own_pooling(name: str, options: LoadOptions | None = None) -> Pooling:
    """How sentence-transformers would make a sentence vector of model `name` (sample, folder or hub id).

    It is read from modules.json and the files it names. Without them, as that library has it: mean, special tokens counted.

    Raises:
        BadInput: a way that is not supported here (max, weighted mean, several at once).
        BadFile: a file that is damaged, or a module outside the model's folder.
    """
    options = options or LoadOptions()
    folder = _Folder(name, options)
    modules = folder.read("modules.json")
    beside = folder.read("sentence_bert_config.json")
    length = beside.get("max_seq_length") if isinstance(beside, dict) else None
    length = length if isinstance(length, int) and length >= 2 else MAX_LENGTH
    if modules is None:
        return Pooling("mean", True, length, "no modules.json beside the model: mean, special tokens counted")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise BadFile(f"{name}: modules.json is no list of modules; fetch the model again")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if "Pooling" not in kinds:
        raise BadInput(f"{name}: modules.json names no Pooling ({', '.join(kinds)}); use --pooling mean, first or last")
    place = str(modules[kinds.index("Pooling")].get("path", ""))
    config = folder.read(f"{place}/config.json")
    if not isinstance(config, dict):
        raise BadFile(f"{name}: {place}/config.json, which modules.json names, is missing; fetch the model again")
    # A length changes no cosine, so Normalize needs no note.
    behind = [kind for kind in kinds[kinds.index("Pooling") + 1 :] if kind != "Normalize"]
    notes = [f"the model's own {' and '.join(behind)} behind the pooling is left out"] if behind else []
    settings = folder.read("config_sentence_transformers.json")
    if isinstance(settings, dict) and settings.get("default_prompt_name"):
        notes.append(f"the model's own prompt {settings['default_prompt_name']!r} is left out")
    return Pooling(_mode(name, config), True, length, f"{place}/config.json", tuple(notes))


def _mode(name: str, config: dict[str, Any]) -> str:
    said = config.get("pooling_mode")
    if said is None:
        said = [word for word, (_, flag) in THEIRS.items() if config.get(flag)] or ["mean"]
    modes = [str(mode) for mode in said] if isinstance(said, list) else [str(said)]
    mode = THEIRS.get(modes[0], ("", ""))[0] if len(modes) == 1 else ""
    if not mode:
        raise BadInput(
            f"{name}: its own pooling is {' and '.join(modes)}, which is not supported; use --pooling mean, first or last"
        )
    return mode


class _Folder:
    """JSON files beside a model, on disk or on the hub."""

    def __init__(self, name: str, options: LoadOptions):
        self.name, self.options = name, options
        self.local = model_folder(
            name, subfolder=options.subfolder, offline=options.offline, weights=False, notice=options.notice
        )

    def read(self, file: str) -> Any:
        """The content of `file`; None where there is none."""
        parts = Path(file).parts
        if is_too_long(file):
            raise BadFile(f"{self.name}: modules.json names a path of {len(file):,} characters; fetch the model again")
        if ".." in parts or Path(file).is_absolute():
            raise BadFile(f"{self.name}: modules.json names {file!r}, which is outside the model's folder")
        path = self.local / file if self.local else self._fetched(file)
        if path is None or not path.is_file():
            return None
        if path.stat().st_size > MAX_CONFIG:
            raise BadFile(f"{path}: {path.stat().st_size:,} bytes is too large for a configuration")
        return read_json(path, "fetch the model again")

    def _fetched(self, file: str) -> Path | None:
        hub: Any = need("huggingface_hub", "models", "reading a model's own pooling")
        errors: Any = need("huggingface_hub.errors", "models", "reading a model's own pooling")
        options = self.options
        try:
            found = hub.hf_hub_download(
                self.name,
                "/".join(part for part in (options.subfolder, file) if part),
                revision=options.revision,
                token=options.token,
                local_files_only=options.offline,
            )
        except errors.LocalEntryNotFoundError as error:
            if options.offline:
                return None  # not among what was fetched; a model without the file is read alike
            raise Offline(f"{self.name}: {file} cannot be fetched: {' '.join(str(error).split())[:200]}") from None
        except errors.EntryNotFoundError:
            return None
        except (errors.HfHubHTTPError, OSError, ValueError) as error:
            text = " ".join(str(error).split())[:200]
            raise OutlierlensError(f"{self.name}: {file} cannot be fetched: {text}") from None
        return Path(found)
