"""GGUF files as llama.cpp's converters write them, of tiny models, with their tokenizers inside.

    model = build(FAMILIES["llama"], "CausalLM")
    write_gguf(tmp_path / "model.gguf", model, "llama", byte_level(texts))

What the converters do to names, order of rows and values is written down here from their own code, the other way round than
in the package.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gguf_files

# GGUF architecture by tiny model of `architectures.py`.
CONVERTED = {
    "llama": "llama",
    "llama-biases": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "olmo2": "olmo2",
    "phi": "phi2",
    "phi3": "phi3",
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
    "bloom": "bloom",
    "falcon": "falcon",
    "falcon-new": "falcon",
    "falcon-new-one-norm": "falcon",
    "bert": "bert",
}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def converted(model: Any, architecture: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What llama.cpp's converters make of a model: ({GGUF name: values}, {Hugging Face name: values as they are stored}).

    Names are those of the gguf package's own table. Rows of attention are put in llama.cpp's order. The second has the same
    values under Hugging Face's names and in its layout, for names that are one tensor in both.
    """
    import gguf

    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    stored, expected = {}, {}

    def put(asked: str, values: np.ndarray) -> None:
        target = table.get_name(asked, try_suffixes=(".weight", ".bias"))
        assert target, asked
        stored[target] = np.ascontiguousarray(values)

    for name, parameter in model.named_parameters():
        if name.startswith(("cls.", "bert.pooler", "pooler.")):
            continue
        values = parameter.detach().numpy()
        if "experts.gate_up_proj" in name:
            gate, up = _apart(values, alternating=architecture == "gpt-oss", is_bias=name.endswith("_bias"))
            leaf = ".bias" if name.endswith("_bias") else ".weight"
            start = name.partition("gate_up_proj")[0]
            put(f"{start}gate_proj{leaf}", gate)
            put(f"{start}up_proj{leaf}", up)
            continue
        values = _reordered(values, name, model.config, architecture)
        expected[name] = written = values
        asked = name.removeprefix("bert.").removeprefix("transformer.") if architecture in ("bert", "bloom") else name
        if asked.endswith(("sinks", "experts.down_proj")):
            asked += ".weight"
        asked = asked.replace("down_proj_bias", "down_proj.bias")
        if architecture == "gpt-oss" and name.endswith("experts.down_proj"):
            written = values.swapaxes(-1, -2)
        if architecture == "gpt2" and values.ndim == 2 and ".h." in name:
            written = values.T
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            written = values + 1
        put(asked, written)
    return stored, expected


def _apart(values: np.ndarray, *, alternating: bool, is_bias: bool) -> tuple[np.ndarray, np.ndarray]:
    """Gate and up projections of experts, [expert, out, in] or [expert, out]."""
    if not alternating:
        half = values.shape[1] // 2
        return values[:, :half], values[:, half:]
    values = values if is_bias else values.transpose(0, 2, 1)
    return values[:, ::2], values[:, 1::2]


def _reordered(values: np.ndarray, name: str, config: Any, architecture: str) -> np.ndarray:
    heads = config.num_attention_heads
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config.num_key_value_heads if "k_proj" in name else heads
        return (
            values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            .swapaxes(1, 2)
            .reshape(values.shape)
        )
    if "query_key_value" not in name:
        return values
    if architecture in ("gptneox", "bloom"):
        qkv = values.reshape(heads, 3, values.shape[0] // heads // 3, *values.shape[1:])
        return np.concatenate([qkv[:, i].reshape(-1, *values.shape[1:]) for i in range(3)])
    groups = config.num_kv_heads if config.new_decoder_architecture else 1
    qkv = values.reshape(groups, heads // groups + 2, config.hidden_size // heads, *values.shape[1:])
    parts = (qkv[:, :-2], qkv[:, -2:-1], qkv[:, -1:])
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])


def write_gguf(
    path: Path,
    model: Any,
    architecture: str,
    tokenizer: dict[str, Any] | None = None,
    *,
    change: Callable[[dict[str, Any]], None] = lambda settings: None,
    quantize: str = "F32",
) -> Path:
    """Write `model`; `change` may alter the settings before they are written ({key: value}), `quantize` holds for matrices."""
    import gguf

    stored, _ = converted(model, architecture)
    settings = metadata(model.config, architecture) | {f"tokenizer.ggml.{k}": v for k, v in (tokenizer or {}).items()}
    stored |= {k: v for k, v in settings.items() if isinstance(v, np.ndarray)}
    settings = {k: v for k, v in settings.items() if not isinstance(v, np.ndarray)}
    change(settings)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in settings.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            (writer.add_uint32 if 0 <= value < 2**32 else writer.add_uint64)(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    kind = gguf.GGMLQuantizationType[quantize]
    for name, values in stored.items():
        if quantize != "F32" and values.ndim == 2 and values.shape[1] % 32 == 0:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values.astype(np.float32))
    gguf_files.write(writer)
    return path


def metadata(config: Any, architecture: str) -> dict[str, Any]:
    """The settings that converters write; rotary tables are arrays, which are stored as tensors."""
    get = lambda *names: next((v for n in names if (v := getattr(config, n, None)) is not None), None)  # noqa: E731
    heads = get("num_attention_heads", "n_head")
    head_dim = get("head_dim") or config.hidden_size // heads
    rope = get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    found = {
        "context_length": get("max_position_embeddings", "n_positions", "seq_length"),
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": get("intermediate_size", "n_inner", "ffn_hidden_size") or 4 * config.hidden_size,
        "attention.head_count": heads,
        "attention.head_count_kv": get("num_key_value_heads"),
        "expert_count": get("num_local_experts", "num_experts"),
        "expert_used_count": get("num_experts_per_tok")
        if "qwen3_moe gpt_oss mixtral".find(config.model_type) >= 0
        else None,
        "attn_logit_softcapping": get("attn_logit_softcapping"),
        "final_logit_softcapping": get("final_logit_softcapping"),
        "rope.freq_base": rope.get("rope_theta"),
    }
    if get("rms_norm_eps") is not None:
        found["attention.layer_norm_rms_epsilon"] = config.rms_norm_eps
    else:
        found["attention.layer_norm_epsilon"] = get("layer_norm_eps", "layer_norm_epsilon")
    if architecture == "falcon":
        found["attention.head_count_kv"] = config.num_kv_heads if config.new_decoder_architecture else 1
    if architecture in ("qwen3", "qwen3moe", "gemma", "gemma2", "gemma3", "gpt-oss"):
        found |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if architecture in ("gemma2", "gemma3", "gpt-oss"):
        found["attention.sliding_window"] = config.sliding_window
    if architecture == "phi3":
        found["attention.sliding_window"] = config.sliding_window or 0
    if architecture in ("llama", "phi2", "phi3", "gptneox"):
        found["rope.dimension_count"] = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    if architecture in ("gpt-oss", "qwen3moe"):
        found["expert_feed_forward_length"] = get("moe_intermediate_size", "intermediate_size")
    if architecture == "gptneox":
        found["use_parallel_residual"] = config.use_parallel_residual
    if architecture == "bert":
        found |= {"attention.causal": False}
    if rope.get("rope_type") in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
        found["rope.scaling.original_context_length"] = rope.get("original_max_position_embeddings")
    out: dict[str, Any] = {f"{architecture}.{key}": value for key, value in found.items() if value is not None}
    if rope.get("rope_type") == "llama3":
        out["rope_freqs.weight"] = llama3_factors(rope, head_dim)
    if rope.get("rope_type") == "longrope":
        for which in ("long", "short"):
            out[f"rope_factors_{which}.weight"] = np.array(rope[f"{which}_factor"], dtype=np.float32)
        original = rope["original_max_position_embeddings"]
        out["phi3.rope.scaling.original_context_length"] = original
        out["phi3.rope.scaling.attn_factor"] = float(
            np.sqrt(1 + np.log(config.max_position_embeddings / original) / np.log(original))
        )
    return out


def llama3_factors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """By what Llama 3 divides each rotary frequency: nothing for short waves, `factor` for long ones, smoothly between."""
    frequency = 1 / rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    old = rope["original_max_position_embeddings"]
    wave = 2 * np.pi / frequency
    smooth = (old / wave - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    long, short = wave > old / rope["low_freq_factor"], wave < old / rope["high_freq_factor"]
    return np.where(short, 1.0, np.where(long, rope["factor"], between)).astype(np.float32)


# --- tokenizers: what stands below tokenizer.ggml. -----------------------------------------------------------------


def byte_level(
    texts: Sequence[str], *, pre: str = "gpt-2", split: Any = None, size: int = 400
) -> tuple[dict[str, Any], Any]:
    """A byte-level BPE learned from `texts`, which `split` splits first: (what a file holds, the tokenizer)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = split or pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|begin|>", "<|end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    model = json.loads(made.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    held = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [CONTROL if token in special else NORMAL for token in tokens],
        "merges": [" ".join(pair) for pair in model["merges"]],
        "padding_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
    }
    return held, made


def sentencepiece(texts: Sequence[str], *, kind: str, folder: Path, size: int = 400) -> tuple[dict[str, Any], Any]:
    """SentencePiece's own "bpe" or "unigram", learned from `texts`: (what a file holds, its processor)."""
    import sentencepiece as library

    prefix = folder / kind
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(prefix), model_type=kind, vocab_size=size, byte_fallback=kind == "bpe",
        character_coverage=1.0, minloglevel=2, normalization_rule_name="identity" if kind == "bpe" else "nmt_nfkc",
        remove_extra_whitespaces=kind != "bpe", num_threads=1,
    )  # fmt: skip
    read = library.SentencePieceProcessor(model_file=f"{prefix}.model")
    numbers = range(read.vocab_size())
    held = {
        "model": "llama" if kind == "bpe" else "t5",
        "tokens": [read.id_to_piece(n) for n in numbers],
        "scores": [read.get_score(n) for n in numbers],
        "token_type": [
            UNKNOWN if read.is_unknown(n) else CONTROL if read.is_control(n) else BYTE if read.is_byte(n) else NORMAL
            for n in numbers
        ],
        "unknown_token_id": read.unk_id(),
        "bos_token_id": read.bos_id(),
        "eos_token_id": read.eos_id(),
        "add_bos_token": False,
        "add_eos_token": False,
    }
    if kind == "unigram":
        from sentencepiece import sentencepiece_model_pb2 as proto

        spec = proto.ModelProto.FromString(Path(f"{prefix}.model").read_bytes()).normalizer_spec
        held |= {"precompiled_charsmap": list(spec.precompiled_charsmap), "remove_extra_whitespaces": True}
    return held, read


def wordpiece(tokenizer: Any) -> dict[str, Any]:
    """What a file holds of a BERT tokenizer: words begin with a mark, and what continues them does not."""
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = set(tokenizer.all_special_tokens)
    spelled = [t if t in special else t[2:] if t.startswith("##") else f"▁{t}" for t in tokens]
    ids = {"padding": "pad", "unknown": "unk", "cls": "cls", "seperator": "sep", "mask": "mask"}
    return {
        "model": "bert",
        "tokens": spelled,
        "token_type": [CONTROL if t in special else NORMAL for t in tokens],
        **{f"{key}_token_id": getattr(tokenizer, f"{name}_token_id") for key, name in ids.items()},
    }
