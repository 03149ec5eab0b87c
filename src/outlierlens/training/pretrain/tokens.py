"""Train a tokenizer or reuse one.

tokenizer = train_tokenizer(sentences, TokenizerRecipe(vocabulary=8192), length=64)
tokenizer = load_tokenizer("minilm-l6")              # a directory, sample or hub id
"""

from collections.abc import Iterable
from typing import Any

from outlierlens.errors import BadInput, need
from outlierlens.training.pretrain.recipe import TokenizerRecipe

SPECIAL = {
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "byte-bpe": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
}
LARGEST = 1_000_000


def train_tokenizer(sentences: Iterable[str], recipe: TokenizerRecipe, length: int) -> Any:
    """A BERT-like (WordPiece) or RoBERTa-like (byte-level BPE) tokenizer of `recipe.vocabulary` entries or fewer.

    Raises:
        BadInput: a vocabulary that cannot hold even the characters.
    """
    if not 100 <= recipe.vocabulary <= LARGEST:
        raise BadInput(f"tokenizer.vocabulary is {recipe.vocabulary:,}; it must lie between 100 and {LARGEST:,}")
    tokenizers = need("tokenizers", "models", "training a tokenizer")
    transformers = need("transformers", "models", "training a tokenizer")
    special = list(SPECIAL[recipe.kind])
    if recipe.kind == "wordpiece":
        made = tokenizers.BertWordPieceTokenizer(lowercase=recipe.lowercase)
        made.train_from_iterator(sentences, recipe.vocabulary, special_tokens=special, show_progress=False)
        return transformers.BertTokenizerFast(
            tokenizer_object=made._tokenizer, do_lower_case=recipe.lowercase, model_max_length=length
        )
    made = tokenizers.ByteLevelBPETokenizer(lowercase=recipe.lowercase, add_prefix_space=False)
    made.train_from_iterator(sentences, recipe.vocabulary, special_tokens=special, show_progress=False)
    made._tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return transformers.RobertaTokenizerFast(tokenizer_object=made._tokenizer, model_max_length=length)


def load_tokenizer(source: str, *, offline: bool = False) -> Any:
    """The tokenizer in a directory, of a sample or of a hub id; raises BadInput when it is none of these or lacks a mask."""
    transformers = need("transformers", "models", "reading a tokenizer")
    from outlierlens.models.folder import model_folder

    folder = model_folder(source, offline=offline, weights=False) or source
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=offline)
    # KeyError: a file of tokens that is JSON of something else.
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{source}: no tokenizer there ({' '.join(str(error).split())[:200]})") from None
    if tokenizer.mask_token_id is None:
        raise BadInput(f"{source}: its tokenizer has no mask token; a masked language model needs one")
    return tokenizer
