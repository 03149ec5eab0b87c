"""Examples as token ids, the same way for training and for measuring.

encoded = encode(tokenizer, examples, max_length=128)
encoded.inputs["input_ids"]           # one list an example; encoded.labels: a number, or a list of them a token
"""

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from outlierlens.data.texts import beginnings
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from outlierlens.data.labelled.examples import Examples

NOT_A_LABEL = -100  # of a token that is no first piece of a word; what the Hugging Face libraries leave out of losses


@dataclass(frozen=True)
class Encoded:
    """What a tokenizer made of some examples.

    Attributes:
        inputs: by name (input_ids, attention_mask, token_type_ids where the model has them), one list an example.
        labels: of each example: its number, or of a token task a list [token], `NOT_A_LABEL` where none is asked for.
        n_cut: examples that did not fit.
    """

    inputs: dict[str, list[list[int]]]
    labels: tuple[Any, ...]
    n_cut: int = 0

    @property
    def lengths(self) -> list[int]:
        """Tokens of each example."""
        return [len(ids) for ids in self.inputs["input_ids"]]

    def for_model(self, model: Any) -> "Encoded":
        """Without what `model` does not take: tokenizers of no class of their own make token_type_ids for every model."""
        taken = inspect.signature(type(model).forward).parameters
        return replace(self, inputs={key: values for key, values in self.inputs.items() if key in taken})


def encode(tokenizer: Any, examples: "Examples", *, max_length: int) -> Encoded:
    """Token ids of all examples, cut at `max_length` tokens; of a pair, the longer text is cut first.

    A word's label stands at its first piece (as in BERT's tagging).

    Raises:
        BadInput: no tokenizer, or one that cannot tell words apart where a task needs it.
    """
    if tokenizer is None:
        raise BadInput("this model has no tokenizer beside it, so texts cannot be read; pass one (--tokenizer FOLDER)")
    if examples.words:
        return _encode_words(tokenizer, examples, max_length)
    texts = (
        (list(examples.texts), list(examples.pairs))
        if examples.pairs
        else (beginnings(tokenizer, examples.texts, max_length),)
    )
    full = tokenizer(*texts, truncation=True, max_length=max_length)
    inputs = {key: list(full[key]) for key in full}
    return Encoded(inputs, examples.labels, _n_cut(tokenizer, texts, inputs["input_ids"], max_length))


def _encode_words(tokenizer: Any, examples: "Examples", max_length: int) -> Encoded:
    if not getattr(tokenizer, "is_fast", False):
        raise BadInput("labels of words need a tokenizer that says which word a token is of (a fast one)")
    words = [list(mine) for mine in examples.words]
    try:
        full = tokenizer(words, is_split_into_words=True, truncation=True, max_length=max_length)
    except (AssertionError, ValueError) as error:
        raise BadInput(f"this tokenizer cannot read separate words: {str(error).splitlines()[0]}") from None
    labels = []
    for row, mine in enumerate(examples.labels):
        before: int | None = None
        placed = []
        for word in full.word_ids(row):
            placed.append(NOT_A_LABEL if word is None or word == before else mine[word])
            before = word
        labels.append(placed)
    inputs = {key: list(full[key]) for key in full}
    n_cut = _n_cut(tokenizer, (words,), inputs["input_ids"], max_length, is_split_into_words=True)
    return Encoded(inputs, tuple(labels), n_cut)


def _n_cut(tokenizer: Any, texts: tuple[list[Any], ...], ids: list[list[int]], max_length: int, **how: bool) -> int:
    """How many examples are longer than `max_length` tokens: those that fill it are read again, uncut."""
    full = [row for row, mine in enumerate(ids) if len(mine) >= max_length]
    if not full:
        return 0
    again = tokenizer(*([part[row] for row in full] for part in texts), verbose=False, **how)["input_ids"]
    return sum(len(mine) > max_length for mine in again)
