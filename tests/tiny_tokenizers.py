"""Tokenizers small enough to count by hand: BERT-like word pieces, RoBERTa-like bytes."""

from collections.abc import Sequence
from typing import Any

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "#", "s", "dog", "##gy", ".", "a")
# Half of é is \xc3 ("Ã"), the other half \xa9 ("©").
BYTES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "the", "Ġthe", "Ġa", ".", "Ġ.", "Ã", "©", "Ġ", "s")


def pieces_backend(tokens: Sequence[str] = PIECES, cls: str = "[CLS]", sep: str = "[SEP]") -> Any:
    """What is inside of `word_pieces`, without transformers around it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    ids = {token: number for number, token in enumerate(tokens)}
    inner = Tokenizer(WordPiece(ids, unk_token="[UNK]"))
    inner.pre_tokenizer = BertPreTokenizer()
    inner.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}", special_tokens=[(cls, ids[cls]), (sep, ids[sep])]
    )
    inner.add_special_tokens([token for token in tokens if token[0] in "[<"])
    return inner


class Bare:
    """As much of a fast tokenizer as counting needs; importing transformers takes seconds."""

    def __init__(self, inner: Any) -> None:
        self.backend_tokenizer = inner

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend_tokenizer.get_vocab())

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}


def word_pieces(tokens: Sequence[str] = PIECES, *, cls: str = "[CLS]", sep: str = "[SEP]", **special: str) -> Any:
    """A WordPiece tokenizer over `tokens` that puts `cls` and `sep` around a text."""
    from transformers import PreTrainedTokenizerFast

    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]", **special}
    inner = pieces_backend(tokens, cls, sep)
    return PreTrainedTokenizerFast(tokenizer_object=inner, cls_token=cls, sep_token=sep, **names)


def byte_level() -> Any:
    """A byte-level tokenizer over `BYTES` that puts <s> and </s> around a text."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.processors import RobertaProcessing
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(BPE({token: number for number, token in enumerate(BYTES)}, [], unk_token="<unk>"))
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    inner.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>", **names
    )
