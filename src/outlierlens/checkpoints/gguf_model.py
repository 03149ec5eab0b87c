"""A GGUF file as the whole model that it was made from: a complete config, all tensors as Hugging Face has them, its tokenizer.

    with GGUFCheckpoint(path, name="smollm2") as checkpoint:
        model = whole(checkpoint)
        model.config                             # what config.json says
        model.shapes                             # {name: shape}
        for name, values in model.values(): ...  # float32, one tensor at a time
    tokenizer = read_tokenizer(path)             # a PreTrainedTokenizerFast

`GGUFCheckpoint` gives what a scan needs. To run a model takes more: rows in Hugging Face's order, gate and up projections of
experts in one parameter, and every setting that the forward pass reads. The conversion of transformers (`gguf_file=`, 5.23) is
not taken: without an error it drops how rotary positions are stretched (Llama 3.1, linear, YaRN, LongRoPE), biases of Llama and
experts of Mixtral, and five of our architectures it does not know (BERT, GPT-NeoX, Phi-2, OLMo 2, Gemma).

`tokenizer.ggml.model` names the kind: byte-level BPE ("gpt2"), SentencePiece's BPE ("llama") or unigrams ("t5"), WordPiece
("bert"). `tokenizer.ggml.pre` names how byte-level BPE splits a text first: `SPLITS`. A name that is not there is refused:
tokens would be others than those that the model learned.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.architectures.stack import BLOCK, Gguf
from outlierlens.checkpoints.base import Checkpoint, TensorInfo
from outlierlens.checkpoints.gguf import FAMILIES, GGUFCheckpoint, read_header
from outlierlens.errors import BadFile, UnknownArchitecture, need

# Rotary tables: what they say is in the config.
_NO_WEIGHTS = re.compile(r"rope_freqs\.weight|rope_factors_(long|short)\.weight|blk\.\d+\.attn_rot_embd\.weight")
_HALVES = ("ffn_gate_exps", "ffn_up_exps")
_NEEDED = ("block_count", "embedding_length", "attention.head_count")
_EPSILONS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
_TOKENS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


@dataclass(frozen=True)
class GgufModel:
    """All of a model: `config` as in config.json, `shapes` by Hugging Face name, `left_out` what the file holds besides."""

    checkpoint: GGUFCheckpoint
    family: Gguf
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    left_out: tuple[str, ...]
    stored: dict[str, tuple[str, ...]]

    def values(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, np.ndarray]]:
        """(name, values), one at a time; of all in the order of `shapes` where none are named."""
        for name in self.stored if names is None else names:
            stored = self.stored[name]
            parts = [values for one in stored for _, values in self.checkpoint.read([one])]
            if len(parts) > 1:
                yield name, _joined(parts, self.family, is_bias=name.endswith("_bias"))
            else:
                order = self.checkpoint.translation(stored[0]).order
                yield name, _ORDERS[order](parts[0], self.config, name) if order else parts[0]


class GgufWeights(Checkpoint):
    """The tensors of an open GGUF file as Hugging Face has them, rows in its order; raises as `whole`."""

    kind = "gguf"

    def __init__(self, checkpoint: GGUFCheckpoint):
        self.checkpoint, self.model, self.name = checkpoint, whole(checkpoint), checkpoint.name
        self.config, self.total_bytes, self.bytes_read = self.model.config, checkpoint.total_bytes, 0
        stored = {name: [checkpoint.tensors[one] for one in parts] for name, parts in self.model.stored.items()}
        self.tensors = {
            name: TensorInfo(parts[0].dtype, self.model.shapes[name], sum(one.nbytes for one in parts))
            for name, parts in stored.items()
        }

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        return self.model.values(names)


def whole(checkpoint: GGUFCheckpoint) -> GgufModel:
    """The model in an open file.

    Raises:
        UnknownArchitecture: its architecture is none of `FAMILIES`.
        BadFile: a setting is missing, or tensors are there that the family does not have.
    """
    family = checkpoint.family
    if family is None:
        raise UnknownArchitecture(
            f"{checkpoint.path}: its architecture is {checkpoint.metadata.get('general.architecture')!r}; GGUF files of "
            f"{', '.join(FAMILIES)} can be run, of any other model its folder (config, tokenizer, safetensors)"
        )
    stored: dict[str, tuple[str, ...]] = {}
    left_out = []
    for name in checkpoint.tensors:
        block = BLOCK.match(name)
        module, _, leaf = block[2].rpartition(".") if block else ("", "", "")
        if checkpoint.translation(name).known:
            stored[name] = (name,)
        elif block and module in _HALVES and family.experts:
            path = family.experts.removesuffix("()") + ("" if leaf == "weight" else "_bias")
            parts = tuple(f"blk.{block[1]}.{half}.{leaf}" for half in _HALVES)
            _check_alike(checkpoint, parts)
            stored[f"{family.blocks.replace('{layer}', block[1])}.{path}"] = parts
        elif _NO_WEIGHTS.fullmatch(name):
            continue
        elif block:
            raise BadFile(
                f"{checkpoint.path}: holds {name[:80]!r}, which a {family.model_type} as known here does not have; take the "
                "model's folder (config, tokenizer, safetensors)"
            )
        else:
            left_out.append(name)
    apart = next((name for name in stored if ".block_sparse_moe.experts." in name), None)
    if apart:
        raise BadFile(
            f"{checkpoint.path}: holds each expert on its own, as files before April 2024 do; take a newer one"
        )
    shapes = {name: _shape(checkpoint, parts, family) for name, parts in stored.items()}
    return GgufModel(checkpoint, family, _config(checkpoint, family), shapes, tuple(left_out), stored)


# --- tensors -----------------------------------------------------------------------------------------------------


def _check_alike(checkpoint: GGUFCheckpoint, parts: tuple[str, ...]) -> None:
    shapes = [checkpoint.tensors[part].shape if part in checkpoint.tensors else None for part in parts]
    if shapes[0] is None or shapes[0] != shapes[1] or not 2 <= len(shapes[0]) <= 3:
        raise BadFile(
            f"{checkpoint.path}: {parts[0]} and {parts[1]} do not fit each other ({shapes}); the file is corrupt"
        )


def _shape(checkpoint: GGUFCheckpoint, parts: tuple[str, ...], family: Gguf) -> tuple[int, ...]:
    shape = checkpoint.tensors[parts[0]].shape
    if len(parts) == 1:
        return shape
    if len(shape) == 2:  # biases [expert, out]
        return shape[0], 2 * shape[1]
    return (shape[0], shape[2], 2 * shape[1]) if family.alternating else (shape[0], 2 * shape[1], shape[2])


def _joined(parts: list[np.ndarray], family: Gguf, *, is_bias: bool) -> np.ndarray:
    """Gate and up projections of experts, [expert, out, in] or biases [expert, out] each, as one parameter."""
    if not family.alternating:
        return np.concatenate(parts, axis=1)
    gate, up = parts if is_bias else [part.swapaxes(1, 2) for part in parts]
    return np.stack([gate, up], axis=-1).reshape(*gate.shape[:-1], -1)


def _paired(values: np.ndarray, config: Mapping[str, Any], name: str) -> np.ndarray:
    """Rows [head, pair, half] back to [head, half, pair]."""
    n_heads = config["num_attention_heads"]
    if ".k_proj." in name:
        n_heads = config["num_key_value_heads"]
    return values.reshape(n_heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _by_head(values: np.ndarray, config: Mapping[str, Any], name: str) -> np.ndarray:
    """Rows [query, key, value][head] back to [head][query, key, value]."""
    n_heads = config.get("num_attention_heads") or config["n_head"]
    return values.reshape(3, n_heads, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)


def _by_group(values: np.ndarray, config: Mapping[str, Any], name: str) -> np.ndarray:
    """Rows of all queries, all keys, all values back to groups: some queries, their key, their value."""
    n_heads, n_groups = config["num_attention_heads"], config["num_kv_heads"]
    heads = values.reshape(n_heads + 2 * n_groups, -1, *values.shape[1:])  # [head, dim, in]
    query, key, value = np.split(heads, [n_heads, n_heads + n_groups])
    queries = query.reshape(n_groups, n_heads // n_groups, *query.shape[1:])
    return np.concatenate([queries, key[:, None], value[:, None]], axis=1).reshape(values.shape)


_ORDERS: dict[str, Callable[[np.ndarray, Mapping[str, Any], str], np.ndarray]] = {
    "rotary": _paired,
    "heads": _by_head,
    "groups": _by_group,
}


# --- settings ----------------------------------------------------------------------------------------------------


def _config(checkpoint: GGUFCheckpoint, family: Gguf) -> dict[str, Any]:
    """config.json, from the metadata and the tensors; sizes are as the metadata says and are yet to be held against them."""
    metadata, where = checkpoint.metadata, str(checkpoint.path)
    prefix = f"{metadata['general.architecture']}."
    missing = [prefix + key for key in _NEEDED if metadata.get(prefix + key) is None]
    if not any(prefix + key in metadata for key in _EPSILONS):
        missing.append(prefix + _EPSILONS[0])
    if missing:
        raise BadFile(f"{where}: its metadata lacks {', '.join(missing)}; convert the model again")
    n_heads, width = metadata[prefix + "attention.head_count"], metadata[prefix + "embedding_length"]
    if type(n_heads) is not int or type(width) is not int or n_heads < 1:
        raise BadFile(
            f"{where}: {n_heads!r} heads of {width!r} dimensions in all are not sizes; convert the model again"
        )
    if other := next((what for key, what in family.others.items() if prefix + key in metadata), None):
        raise BadFile(f"{where}: is of {other} and is not known here; take its folder")
    blocks = {match[1] for name in checkpoint.stored_names if (match := BLOCK.match(name))}
    if metadata[prefix + "block_count"] != len(blocks):
        raise BadFile(
            f"{where}: claims {metadata[prefix + 'block_count']!r} blocks and holds {len(blocks)}; the file is corrupt"
        )
    config = dict(checkpoint.config)
    for key in ("num_key_value_heads", "num_kv_heads"):
        if key in family.keys:
            config.setdefault(key, n_heads)
    head_dim = config.get("head_dim")
    rotated = metadata.get(prefix + "rope.dimension_count")
    if "head_dim" in family.keys and head_dim is None and len(family.rope) == 1:
        head_dim = config["head_dim"] = rotated or width // n_heads
    head_dim = head_dim or width // n_heads
    if not config.get("sliding_window", True):
        config["sliding_window"] = None  # 0 says that there is none
    config |= {key: tensor in checkpoint.stored_names for key, tensor in family.flags.items()}
    config |= {key: metadata.get(f"tokenizer.ggml.{name}_token_id") for key, name in _TOKENS.items()}
    if family.rope:
        config |= _rotation(checkpoint, family, head_dim)
    if config.get("num_kv_heads", 1) > 1:
        config |= family.several_keys
    if family.by_hidden:
        config["query_pre_attn_scalar"] = width // n_heads if len(blocks) == family.by_hidden else head_dim
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            config[key] = metadata.get(prefix + key)
    types = checkpoint.tensors.get("embeddings.token_type_embeddings.weight")
    return config if types is None else config | {"type_vocab_size": types.shape[0]}


def _rotation(checkpoint: GGUFCheckpoint, family: Gguf, head_dim: int) -> dict[str, Any]:
    """Settings of the rotary positions: base, share of a head that rotates, and how they are stretched."""
    metadata, prefix = checkpoint.metadata, f"{checkpoint.metadata['general.architecture']}.rope."
    found: dict[str, Any] = {family.rope[0]: metadata.get(prefix + "freq_base", 10_000.0)}
    rotated = metadata.get(prefix + "dimension_count")
    if len(family.rope) > 1 and rotated is not None:
        found[family.rope[1]] = rotated / head_dim
    kind, factor = metadata.get(prefix + "scaling.type"), metadata.get(prefix + "scaling.factor")
    length: Any = metadata.get(f"{metadata['general.architecture']}.context_length")
    original: Any = metadata.get(prefix + "scaling.original_context_length")
    tables = [name for name in ("rope_factors_short.weight", "rope_factors_long.weight") if name in checkpoint.tensors]
    if "rope_freqs.weight" in checkpoint.tensors:
        # Llama 3 divides each frequency by a number of its own; the same numbers for short and long texts say so exactly.
        tables, original = ["rope_freqs.weight"] * 2, length
        attention: Any = 1.0
    else:
        attention = metadata.get(prefix + "scaling.attn_factor")
    if len(tables) == 2:
        short, long = (values.tolist() for name in tables for _, values in checkpoint.read([name]))
        scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        scaling |= {"original_max_position_embeddings": original, "factor": length / original}
        scaling |= {"attention_factor": attention} if attention is not None else {}
        found["original_max_position_embeddings"] = original  # where Phi-3 looks for it
    elif kind == "linear" and factor:
        scaling = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn" and factor:
        scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        scaling |= family.yarn
    else:
        return found
    return found | {"rope_scaling": scaling}


_KEY = "tokenizer.ggml."
_ARRAYS = ("tokens", "token_type", "scores", "merges", "precompiled_charsmap")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # llama.cpp's types of tokens
# Key ("seperator" is GGUF's own spelling) -> Hugging Face's name.
_SPECIAL = {
    "bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token", "seperator": "sep_token",
    "cls": "cls_token", "mask": "mask_token",
}  # fmt: skip
_SPACE = "▁"

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_WORDS}|\p{{N}}|{_REST}"
_GPT4O = "|".join([*(f"{words}{_CONTRACTIONS}?" for words in _CASED), r"\p{N}{1,3}", _CASED_REST])
_TEKKEN = "|".join([*_CASED, r"\p{N}", _CASED_REST])
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_GPT2, _DIGITS, _FALCON = "as GPT-2", "as GPT-2, each digit alone", "as Falcon"

# `tokenizer.ggml.pre` -> how a text is split before BPE: one of the three ways above, or a pattern.
SPLITS: dict[str, str] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe", "exaone4", "default"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "pixtral"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "tekken": _TEKKEN,
    "bloom": _BLOOM,
    "falcon": _FALCON,
}
_WHOLE_FIRST = (
    _LLAMA3,
    _TEKKEN,
)  # a piece that is a token is taken whole, whatever the merges make of it; they add BOS too


def read_tokenizer(path: Path) -> Any:
    """The tokenizer in a file.

    Raises:
        BadFile: there is none, or one of a kind that is not known.
        MissingExtra: transformers is not installed.
    """
    transformers = need("transformers", "models", "reading a tokenizer")
    metadata = read_header(path, [_KEY + name for name in _ARRAYS]).metadata
    given = {key.removeprefix(_KEY): value for key, value in metadata.items() if key.startswith(_KEY)}
    beside = f"put the model's tokenizer.json and tokenizer_config.json beside {path.name}"
    kind, tokens = given.get("model"), given.get("tokens")
    if not tokens:
        raise BadFile(f"{path}: holds no tokenizer; {beside}")
    if kind not in _KINDS:
        raise BadFile(f"{path}: its tokenizer is of the kind {kind!r}, and {', '.join(_KINDS)} are read; {beside}")
    architecture = given["architecture"] = str(metadata.get("general.architecture"))
    # Files from before there was a name for it have none.
    split = given.setdefault("pre", architecture if architecture in ("falcon", "bloom") else "gpt-2")
    if kind == "gpt2" and split not in SPLITS:
        raise BadFile(f"{path}: its tokenizer splits texts as {split!r}, which is not known; {beside}")
    types = given.setdefault("token_type", [NORMAL] * len(tokens))
    sound = all(isinstance(token, str) for token in tokens) and len(types) == len(tokens) == len(set(tokens))
    if not sound or len(given.get("scores", tokens)) != len(tokens):
        raise BadFile(f"{path}: its tokens, their types and scores do not fit each other; convert the model again")
    numbers = {name: given.get(f"{theirs}_token_id") for theirs, name in _SPECIAL.items()}
    special = {name: tokens[n] for name, n in numbers.items() if isinstance(n, int) and 0 <= n < len(tokens)}
    try:
        inner = _KINDS[kind](given, special)
    except Exception as error:  # the library raises bare Exception
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BadFile(f"{path}: its tokenizer cannot be built ({text}); {beside}") from error
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **special)


def _byte_level(given: dict[str, Any], special: dict[str, str]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pattern = SPLITS[given["pre"]]
    merges = [tuple(merge.split(" ", 1)) for merge in given.get("merges", ())]
    vocabulary = {token: number for number, token in enumerate(given["tokens"])}
    made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pattern in _WHOLE_FIRST))
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pattern == _GPT2:
        steps: list[Any] = [gpt2]
    elif pattern == _DIGITS:
        steps = [pre_tokenizers.Digits(individual_digits=True), gpt2]
    elif pattern == _FALCON:
        three = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
        steps = [pre_tokenizers.Punctuation("contiguous"), gpt2, pre_tokenizers.Digits(individual_digits=False), three]
    else:
        bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_alone]
    made.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    if pattern == _QWEN2:
        made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    return _finished(made, given, special, first=pattern in _WHOLE_FIRST, last=given["pre"] == "roberta-bpe")


def _sentencepiece(given: dict[str, Any], special: dict[str, str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = {token: number for number, token in enumerate(given["tokens"])}
    made = Tokenizer(
        models.BPE(
            vocabulary,
            _merges(given, vocabulary),
            unk_token=special.get("unk_token"),
            fuse_unk=True,
            byte_fallback=BYTE in given["token_type"],
        )
    )
    prefix = given.get("add_space_prefix", True)
    spaces = [normalizers.Replace(" ", _SPACE)]
    made.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), *spaces] if prefix else spaces)
    back = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prefix else back)
    return _finished(made, given, special, first=True, last=False)


def _merges(given: dict[str, Any], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The merges that SentencePiece makes: of any two tokens that give a third, the best scored third first.

    Gemma's scores do not say in which order its tokens were learned; the order of its tokens does.
    """
    by_place = given["architecture"].startswith("gemma")
    found = []
    for token, number in vocabulary.items():
        if given["token_type"][number] != NORMAL:
            continue
        score = -number if by_place or "scores" not in given else given["scores"][number]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-score, -len(left), -len(right), left, right))
    return [(left, right) for *_, left, right in sorted(found, key=lambda merge: merge[:3])]


def _unigrams(given: dict[str, Any], special: dict[str, str]) -> Any:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    unknown = given["tokens"].index(special["unk_token"]) if "unk_token" in special else None
    made = Tokenizer(models.Unigram(list(zip(given["tokens"], given["scores"], strict=True)), unknown, False))
    table = bytes(value & 255 for value in given.get("precompiled_charsmap", ()))
    steps: list[Any] = [normalizers.Precompiled(table)] if table else []
    if given.get("remove_extra_whitespaces", False):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    made.normalizer = normalizers.Sequence(steps)
    scheme = "always" if given.get("add_space_prefix", True) else "never"
    made.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, scheme)
    return _finished(made, given, special, first=False, last=True)


def _wordpiece(given: dict[str, Any], special: dict[str, str]) -> Any:
    """WordPiece, whose tokens llama.cpp spells the other way round: a mark begins a word, and none continues it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokens = [
        token if kind == CONTROL else token[1:] if token.startswith(_SPACE) else f"##{token}"
        for token, kind in zip(given["tokens"], given["token_type"], strict=True)
    ]
    special |= {name: tokens[given["tokens"].index(token)] for name, token in special.items()}
    given["tokens"] = tokens
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token=special.get("unk_token", "[UNK]")))
    cased = any(
        token != token.lower() for token, kind in zip(tokens, given["token_type"], strict=True) if kind == NORMAL
    )
    made.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece("##")
    return _finished(made, given, special, first=True, last=True)


_KINDS: dict[str, Callable[[dict[str, Any], dict[str, str]], Any]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "t5": _unigrams,
    "bert": _wordpiece,
}


def _finished(made: Any, given: dict[str, Any], special: dict[str, str], *, first: bool, last: bool) -> Any:
    """With special tokens that are never cut, and what the model puts before and behind a text, as the file says or else."""
    from tokenizers import AddedToken, processors

    kinds = given["token_type"]
    for token, kind in zip(given["tokens"], kinds, strict=True):
        if kind in (UNKNOWN, CONTROL) or (kind == USER_DEFINED and token):
            made.add_tokens([AddedToken(token, normalized=False, special=kind != USER_DEFINED)])
    begin = special.get("cls_token") or special.get("bos_token")
    end = special.get("sep_token") or special.get("eos_token")
    begins = bool(begin) and given.get("add_bos_token", first)
    ends = bool(end) and (given.get("add_eos_token", last) or given.get("add_sep_token", False))
    words = [*([f"{begin}"] if begins else []), "$A", *([f"{end}"] if ends else [])]
    used = [(token, made.token_to_id(token)) for token in words if token != "$A"]
    made.post_processor = processors.TemplateProcessing(single=words, special_tokens=used)
    return made
