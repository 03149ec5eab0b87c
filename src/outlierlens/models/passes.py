"""How a model reads data while its hidden states are looked at: one object for texts, one for pictures and recordings.

reading = reading_of(loaded, texts, 128)
for batch in reading.batches(texts, batch_size=16):
    with tapped(loaded.model, reading.stacks, look):
        reading(batch)
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from outlierlens.architectures import BoundStack
from outlierlens.data.media.items import Items
from outlierlens.data.texts import NO_LIMIT, Batch, Data, batches
from outlierlens.data.token_texts import token_words
from outlierlens.errors import BadInput
from outlierlens.models.devices import memory_kept
from outlierlens.models.forward import TextForward
from outlierlens.models.inputs import check_readable, token_limit
from outlierlens.models.load import LoadedModel
from outlierlens.models.media import ItemReading

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
