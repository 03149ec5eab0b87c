"""What a model is fed, in one place: decoders get their text shifted by one, and nobody gets more tokens than positions.

model(**model_inputs(loaded, batch))
token_limit(loaded, 128)
token_ids(loaded, "A text.")              # what its tokenizer makes of it, unknown tokens counted
tokenizer_of(loaded)                      # or an error that says what the model reads instead
rows = rows_of(loaded, examples, 128)     # `TextRows` of a labelled task, beside `media.ItemRows`
model(**rows.inputs([0, 5]))              # padded

How a model reads data while its hidden states are looked at: one object for texts, one for pictures and recordings.

reading = reading_of(loaded, texts, 128)
for batch in reading.batches(texts, batch_size=16):
    with tapped(loaded.model, reading.stacks, look):
        reading(batch)
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from outlierlens.architectures import BoundStack, family_of, first_row
from outlierlens.data.labelled.examples import Examples
from outlierlens.data.labelled.labels import NOT_A_LABEL, encode
from outlierlens.data.media.items import PLURAL, Items, LabelledItems
from outlierlens.data.tables import OF_ITEMS
from outlierlens.data.texts import NO_LIMIT, NO_TOKENIZER, Batch, Data, Texts, TokenText, batches, decoder_side
from outlierlens.data.token_texts import token_words
from outlierlens.errors import BadInput
from outlierlens.models.devices import memory_kept
from outlierlens.models.folder import kind_read
from outlierlens.models.forward import TextForward
from outlierlens.models.load import LoadedModel
from outlierlens.models.media import ItemReading, ItemRows
from outlierlens.models.model_class import padding_side

if TYPE_CHECKING:
    from torch import Tensor


def max_positions(config: Mapping[str, Any]) -> int | None:
    """Tokens that the model has positions for, where its config sets a limit."""
    limits = [config.get(key) for key in ("max_position_embeddings", "n_positions")]
    found = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    if not found:
        return None
    return min(found) - (first_row(config) if family_of(config).counts_skipped else 0)


def model_inputs(loaded: LoadedModel, batch: Batch) -> dict[str, Any]:
    """Keyword arguments of the model for `batch`; raises BadInput for a decoder without a start token."""
    inputs: dict[str, Any] = dict(batch.inputs)
    if loaded.config.get("is_encoder_decoder") and "input_ids" in inputs:  # recordings bring what their decoder reads
        inputs["decoder_input_ids"], _ = decoder_side(batch, loaded.config)
        inputs["decoder_attention_mask"] = batch.valid.long()
    return inputs


def tokenizer_of(loaded: LoadedModel) -> Any:
    """The model's tokenizer; raises BadInput that says why there is none."""
    if loaded.tokenizer is not None:
        return loaded.tokenizer
    kind = kind_read(loaded.model)
    if kind is not None:
        raise BadInput(
            f"{loaded.name} reads {PLURAL[kind]}, not text; {OF_ITEMS} take them (--data FOLDER), "
            f"commands about words do not"
        )
    raise BadInput(f"{loaded.name}: {NO_TOKENIZER}")


def reader_digest(loaded: LoadedModel) -> str:
    """SHA-256 over what makes inputs of texts or items: the tokenizer's vocabulary and rules, the processor's settings.

    For what must be equal where kept measurements are used again; "" where the model has neither.
    """
    tokenizer: Any = loaded.tokenizer
    parts: list[Any] = []
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        rules = json.loads(backend.to_str())
        parts.append({name: rule for name, rule in rules.items() if name not in ("truncation", "padding")})  # of a call
    elif tokenizer is not None:
        parts += [tokenizer.get_vocab(), getattr(tokenizer, "init_kwargs", {})]
    if tokenizer is not None:
        parts.append(getattr(tokenizer, "special_tokens_map", {}))
    if loaded.processor is not None:
        parts.append(loaded.processor.to_dict())
    said = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(said.encode("utf-8", "backslashreplace")).hexdigest() if parts else ""


def check_readable(loaded: LoadedModel, texts: Any) -> None:
    """Raise as `tokenizer_of`, unless all texts were given as token ids, which need no tokenizer."""
    plain = texts.texts if isinstance(texts, Texts) else texts
    if not plain or not all(isinstance(text, TokenText) for text in plain):
        tokenizer_of(loaded)


def token_ids(loaded: LoadedModel, text: str, **how: Any) -> list[int]:
    """Token ids of one text; `how` is the tokenizer's. Unknown ones are counted: see `check_known`."""
    if isinstance(text, TokenText):
        ids = list(text.ids[: how.get("max_length")])
    else:
        ids = list(tokenizer_of(loaded)(text, **how)["input_ids"])
    loaded.known.add(loaded.tokenizer, ids)
    return ids


def check_known(loaded: LoadedModel, rows: Iterable[Iterable[int]] = ()) -> None:
    """Tell the user once where many tokens of all texts are unknown; `rows` of token ids are counted first.

    Raises:
        BadInput: all of them are.
    """
    for ids in rows:
        loaded.known.add(loaded.tokenizer, ids)
    loaded.known.check(loaded.name)
    loaded.known.warn(loaded.notice, loaded.name)


def token_limit(loaded: LoadedModel, asked: int) -> int:
    """`asked` tokens, or fewer where the text model or its tokenizer has fewer positions.

    Beside the config this asks the position tables themselves: MPNet keeps its padding index in the code, not the config.
    """
    from torch import nn

    config: Any = getattr(loaded.model, "config", None)
    inner: Any = config.get_text_config() if hasattr(config, "get_text_config") else None
    text_config = inner.to_dict() if hasattr(inner, "to_dict") else loaded.config
    limits = [max_positions(text_config), getattr(loaded.tokenizer, "model_max_length", None)]
    for name, module in loaded.model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return min([asked, *(limit for limit in limits if isinstance(limit, int) and limit >= 2)])


def row_limit(loaded: LoadedModel, data: Data, asked: int) -> int:
    """Maximum number of tokens per row of a forward pass; a picture keeps all, recordings are cut by seconds."""
    return NO_LIMIT if isinstance(data, Items) else token_limit(loaded, asked)


# --- labelled examples -----------------------------------------------------------------------------------------------


class TextRows:
    """Texts, or pairs of them, by their tokens.

    Attributes:
        encoded: token ids and labels. lengths: tokens of each, int [text]. labels: of each text.
        longest: tokens of a row at most.
        tries_first: whether the head may read the first token alone.
        what: one of them in words. notes: about how they were read.
    """

    def __init__(self, loaded: LoadedModel, examples: Examples, max_length: int):
        self.loaded, self.examples = loaded, examples
        self.tries_first = examples.task.level != "token"
        _check_padding(loaded)
        self.longest = token_limit(loaded, max_length)
        self.encoded = encode(loaded.tokenizer, examples, max_length=self.longest).for_model(loaded.model)
        check_known(loaded, self.encoded.inputs["input_ids"])
        self.lengths = np.array(self.encoded.lengths)
        if not self.lengths.all():
            row = int(np.argmin(self.lengths)) + 1
            raise BadInput(f"{examples.source}, row {row}: no token at all for {loaded.name}; leave such rows out")
        self.labels = self.encoded.labels
        self.what = f"{'pair' if examples.pairs else 'example'} of at most {self.longest} tokens"
        lost = "; labels of words that were cut off do not count" if examples.task.level == "token" else ""
        n_cut = self.encoded.n_cut
        said = f"{n_cut:,} of {len(examples):,} examples do not fit into {self.longest} tokens and were cut{lost}"
        self.notes = (said,) if n_cut else ()

    def inputs(self, numbers: Sequence[int]) -> "dict[str, Tensor]":
        """Keyword arguments of the model for these texts (repeats allowed), padded."""
        config: Any = self.loaded.model.config
        tokenizer: Any = self.loaded.tokenizer
        # The model's own padding, by which some heads find the last token; else the tokenizer's.
        own = getattr(config.get_text_config(), "pad_token_id", None)
        padding = int(next((found for found in (own, tokenizer.pad_token_id) if found is not None), 0))
        return {
            key: self._padded([values[number] for number in numbers], padding if key == "input_ids" else 0)
            for key, values in self.encoded.inputs.items()
        }

    def targets(self, numbers: Sequence[int]) -> "Tensor":
        """Labels of these texts, int64 [text], or [text, token] padded; of a regression float32 [text]."""
        import torch

        mine = [self.labels[number] for number in numbers]
        if self.examples.task.level == "token":
            return self._padded(mine, NOT_A_LABEL)
        kind = torch.float32 if self.examples.task.regression else torch.int64
        return torch.tensor(mine, dtype=kind).to(self.loaded.device, non_blocking=True)

    def _padded(self, rows: Sequence[Sequence[int]], fill: int) -> "Tensor":
        """Rows padded to the longest with `fill`, int64 [row, token], on the model's device."""
        import torch

        side = padding_side(self.loaded.model)
        longest = max(map(len, rows))
        values = np.full((len(rows), longest), fill, dtype=np.int64)
        for number, row in enumerate(rows):
            values[number, slice(len(row)) if side == "right" else slice(longest - len(row), None)] = row
        return torch.from_numpy(values).to(self.loaded.device, non_blocking=True)

    def apart(self, numbers: Sequence[int]) -> list[list[int]]:
        """Places in `numbers` that can share batches: all of them."""
        return [list(range(len(numbers)))]


def _check_padding(loaded: LoadedModel) -> None:
    """Raise BadInput for a head that reads the last token and cannot tell padding from tokens."""
    config: Any = loaded.model.config
    # GPT-2 and its kin call such a head "score", and find their last token by the padding that the config names.
    if hasattr(loaded.model, "score") and getattr(config.get_text_config(), "pad_token_id", None) is None:
        own = getattr(loaded.tokenizer, "pad_token_id", None)
        raise BadInput(
            f"{loaded.name}: its config names no padding token, so its head cannot find the last token of a text; set "
            f"pad_token_id{'' if own is None else f' = {own}'} in the config"
        )


def rows_of(loaded: LoadedModel, examples: "Examples | LabelledItems", max_length: int) -> "TextRows | ItemRows":
    """The examples as a task hands them to `loaded`."""
    return ItemRows(loaded, examples) if isinstance(examples, Items) else TextRows(loaded, examples, max_length)


Progress = Callable[[str, int, int], None]
T = TypeVar("T")
Options = TypeVar("Options", bound=Any)  # of an experiment, a dataclass with `stack`


class TextReading(TextForward):
    """A bare forward pass on texts, and the batches of tokens that it takes.

    Attributes:
        max_length: tokens that are read of each text at most.
        window: batches that are prepared and sorted by length together: memory stays constant in the number of texts.
        inputs: what they are.

    Raises:
        BadInput: the model reads no text.
    """

    window = 32
    inputs = "texts"

    def __init__(self, loaded: LoadedModel, max_length: int):
        super().__init__(loaded, loaded.text_stacks)
        self.max_length = token_limit(loaded, max_length)
        self._asked = max_length

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not read, and how."""
        said = []
        if other := [stack.name for stack in self.loaded.stacks if stack not in self.stacks]:
            said.append(f"not observed: stream {', '.join(other)}, which texts do not reach")
        if self.shifted:
            said.append(
                "the decoder read each text shifted by one behind its start token; that token counts as special"
            )
        if self.max_length < self._asked:
            said.append(f"texts are cut at {self.max_length} tokens: the model has no more positions")
        return tuple(said)

    def batches(self, data: Any, *, batch_size: int, max_length: int | None = None) -> Iterator[Batch]:
        """Padded batches of `data`."""
        length = self.max_length if max_length is None else min(self.max_length, max_length)
        tokenizer, device = self.loaded.tokenizer, self.loaded.device
        with memory_kept():  # while whoever asks for them runs the model
            for batch in batches(tokenizer, data, max_length=length, batch_size=batch_size, device=device):
                if max_length is None:  # else it is a closer look at texts that are read anyway
                    for ids, valid in zip(batch.inputs["input_ids"].tolist(), batch.valid.sum(1).tolist(), strict=True):
                        self.loaded.known.add(tokenizer, ids[:valid])
                yield batch

    def words(self, ids: list[int], stream: str = "") -> tuple[str, ...]:
        """The tokens with these ids, of whichever stream; without a tokenizer "id 101"."""
        return token_words(self.loaded.tokenizer, ids)


Reading = TextReading | ItemReading


def in_windows(
    reading: Reading, data: Data, batch_size: int, progress: Progress | None = None, label: str = ""
) -> Iterator[Batch]:
    """Batches of all of `data`, some prepared at a time (`Reading.window`); texts are numbered as in `data`.

    `progress` is called with the label, and how many are read, of how many.
    """
    step, done = reading.window * max(1, batch_size), 0
    with memory_kept():
        for start in range(0, len(data), step):
            window = data.some(range(start, min(start + step, len(data))))
            for batch in reading.batches(window, batch_size=batch_size):
                yield Batch(batch.inputs, batch.valid, batch.special, tuple(start + text for text in batch.texts))
                done += len(batch.texts)
                if progress:
                    progress(label, done, len(data))


def read_together(loaded: LoadedModel, read: Callable[[Batch], T], batches: Iterable[Batch]) -> list[T]:
    """What `read` gives for each batch; all go together through a model that is read block by block."""
    if loaded.blocks is None:
        return [read(batch) for batch in batches]
    together = list(batches)
    n_tokens = max((batch.valid.numel() for batch in together), default=0)
    return loaded.run((partial(read, batch) for batch in together), n_tokens)


def stack_read(loaded: LoadedModel, reading: Reading, name: str | None) -> BoundStack:
    """The stream called `name`, or the first that is read; raises BadInput for one that the data do not reach."""
    stack = reading.stacks[0] if name is None else loaded.axis(name, experts=True)
    if not any(one.blocks == stack.blocks for one in reading.stacks):
        raise BadInput(
            f"{loaded.name}: {reading.inputs} do not reach stream {stack.name!r}, only "
            f"{', '.join(one.name for one in reading.stacks)}; name one of these, or give other data"
        )
    return stack


def reaching(loaded: LoadedModel, data: Data, options: Options) -> Options:
    """`options` of an experiment with the only stream that `data` reach, where they name none; raises as `stack_read`."""
    if len(loaded.stacks) == 1:
        return options
    reading = reading_of(loaded, data, NO_LIMIT)
    first = stack_read(loaded, reading, options.stack).name
    return replace(options, stack=first) if options.stack is None and len(reading.stacks) == 1 else options


def reading_of(loaded: LoadedModel, data: Data, max_length: int, stream: str | None = None) -> Reading:
    """How `loaded` reads `data`, at most `max_length` tokens of each text, while its states are looked at.

    Batches are of the tokens of `stream`, by default of the first: the two sides of a model of recordings differ in length.
    """
    if isinstance(data, Items):
        return ItemReading(loaded, data, stream)
    check_readable(loaded, data)
    return TextReading(loaded, max_length)
