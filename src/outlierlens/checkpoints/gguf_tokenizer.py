"""The tokenizer inside a GGUF file, as one of Hugging Face's.

    tokenizer = read_tokenizer(path)             # a PreTrainedTokenizerFast
    tokenizer.save_pretrained(folder)

`tokenizer.ggml.model` names the kind: byte-level BPE ("gpt2"), SentencePiece's BPE ("llama") or unigrams ("t5"), WordPiece
("bert"). `tokenizer.ggml.pre` names how byte-level BPE splits a text first: `SPLITS`. A name that is not there is refused:
tokens would be others than those that the model learned.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.gguf_header import read_header
from outlierlens.errors import BadFile, need

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
