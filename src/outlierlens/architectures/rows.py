"""THE table: `model_type` -> the residual streams of that family.

A row is a tuple of `Stack`s, or a function of the config where the layout depends on it.
To add a family: one entry here, one tiny config in `tests/architectures.py`; see CONTRIBUTING.md.
"""

import difflib
from collections.abc import Callable
from dataclasses import replace

from outlierlens.architectures import rows_decoders as dec
from outlierlens.architectures import rows_encoders as enc
from outlierlens.architectures.rows_encoders import inside
from outlierlens.architectures.stack import Config, Stack
from outlierlens.errors import UnknownArchitecture

Row = tuple[Stack, ...] | Callable[[Config], tuple[Stack, ...]]

_BART = (dec.BART_ENCODER, dec.BART_DECODER)
_T5 = (dec.T5_ENCODER, dec.T5_DECODER)

ARCHITECTURES: dict[str, Row] = {
    "albert": enc.albert,
    "bart": _BART,
    "bert": (enc.BERT,),
    "bloom": dec.bloom,
    "camembert": (enc.BERT,),
    "clip": (
        inside("text_model", enc.CLIP_TEXT, name="text", layers="text_config.num_hidden_layers"),
        inside("vision_model", enc.CLIP_VISION, name="vision", layers="vision_config.num_hidden_layers"),
    ),
    "clip_text_model": (enc.CLIP_TEXT,),
    "clip_vision_model": (enc.CLIP_VISION,),
    "deberta": enc.deberta,
    "deberta-v2": enc.deberta,
    "dinov2": enc.dinov2,
    "dinov2_with_registers": enc.dinov2,
    "distilbert": (enc.DISTILBERT,),
    "electra": enc.electra,
    "falcon": dec.falcon,
    "gemma": (dec.GEMMA,),
    "gemma2": (dec.GEMMA2,),
    "gemma3": (
        replace(
            dec.GEMMA2,
            name="text",
            layers="text_config.num_hidden_layers",
            fixed_scale="a projector with a norm of its own writes pictures to it",
        ),
        replace(enc.SIGLIP_VISION, name="vision", layers="vision_config.num_hidden_layers"),
    ),
    "gemma3_text": (dec.GEMMA2,),
    "gpt2": (dec.GPT2,),
    "gpt_neo": (dec.GPT_NEO,),
    "gpt_neox": (dec.GPT_NEOX,),
    "gpt_oss": (dec.GPT_OSS,),
    "llama": (dec.LLAMA,),
    "mistral": (dec.LLAMA,),
    "mixtral": (dec.MIXTRAL,),
    "modernbert": (enc.MODERNBERT,),
    "mpnet": (enc.MPNET,),
    "mt5": _T5,
    "olmo2": (dec.OLMO2,),
    "opt": dec.opt,
    "outlierlens-bert": enc.variant,
    "phi": (dec.PHI,),
    "phi3": (dec.LLAMA,),
    "qwen2": (dec.LLAMA,),
    "qwen3": (dec.LLAMA,),
    "qwen3_moe": (dec.QWEN3_MOE,),
    "roberta": (enc.BERT,),
    "t5": _T5,
    "vit": (enc.VIT, enc.VIT_STORED),
    "wav2vec2": enc.wav2vec2,
    "whisper": (dec.WHISPER_ENCODER, dec.WHISPER_DECODER),
    "xlm-roberta": (enc.BERT,),
    "xlnet": (enc.XLNET,),
}


def stacks_of(config: Config, where: str = "config.json") -> tuple[Stack, ...]:
    """The streams declared for `config["model_type"]`; `where` names the config in the error.

    Raises:
        UnknownArchitecture: no row; the message names the nearest rows and the remedies.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnknownArchitecture(
            f"no model_type in {where}; name the family that it is built like (--family bert), or write a row by hand "
            f"(docs/architectures.md) and pass --arch row.toml"
        )
    row = ARCHITECTURES.get(model_type)
    if row is None:
        near = difflib.get_close_matches(model_type, ARCHITECTURES, n=3, cutoff=0.4)
        hint = f"; near: {', '.join(near)}" if near else ""
        raise UnknownArchitecture(
            f"unknown model_type {model_type!r} in {where}; pass --arch row.toml (`outlierlens scan --propose` drafts "
            f"one) or add a row to ARCHITECTURES (arch/rows.py){hint}"
        )
    return row(config) if callable(row) else row
