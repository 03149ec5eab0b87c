"""The bare forward pass of a text model, without its head where that can be left out.

    run = TextForward(loaded, stacks)
    run(batch)                                 # hooks see the hidden states
    run.sides(batch)["decoder"]                # (token ids, special tokens) that the stream reads

Encoder-decoders read each text twice: the encoder as it is, the decoder shifted by one behind its start token.
"""

import inspect
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch, decoder_side
from outlierlens.errors import BadInput
from outlierlens.models.devices import fast_products
from outlierlens.models.hooks import layer_name
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor, nn


NOT_TEXT = ("vision", "audio")


def text_stacks(loaded: LoadedModel) -> list[BoundStack]:
    """The streams of a model that texts reach."""
    return [stack for stack in loaded.stacks if not stack.name.startswith(NOT_TEXT)]


def check_padding(stack: BoundStack, layer: int, states: "Tensor", valid: "Tensor", tokens: str = "the tokens") -> None:
    """Raise BadInput where `states` [batch, token, dim] are not those of `valid` [batch, token]: attention that unpads."""
    if states.shape[:2] != valid.shape:
        raise BadInput(
            f"stream {stack.name}, layer {layer_name(layer)}: states are {list(states.shape)}, {tokens} "
            f"{list(valid.shape)}; its attention takes padding out (load it with attention 'eager' or 'sdpa'), or the model "
            f"adds tokens of its own, which cannot be told from those of the text"
        )


class TextForward:
    """A forward pass that runs `stacks`.

    Attributes:
        accepts: what the innermost module that runs them takes.
        shifted: the stream whose text is shifted by one, "" without.

    Raises:
        BadInput: no module of the model takes token ids and runs `stacks`.
    """

    def __init__(self, loaded: LoadedModel, stacks: list[BoundStack]):
        self.loaded, self.stacks = loaded, stacks
        self.reader = text_reader(loaded, stacks)
        self.accepts = set(inspect.signature(self.reader.forward).parameters)
        self.shifted = "decoder" if "decoder_input_ids" in self.accepts else ""

    def __call__(self, batch: Batch) -> None:
        """Run the model on `batch`; nothing is returned: hooks see the states."""
        import torch

        with torch.inference_mode(), fast_products():
            self.reader(**self.arguments(batch))

    def arguments(self, batch: Batch) -> dict[str, Any]:
        """Keyword arguments of the reader."""
        inputs: dict[str, Any] = {name: value for name, value in batch.inputs.items() if name in self.accepts}
        if self.shifted:
            inputs["decoder_input_ids"] = self.sides(batch)[self.shifted][0]
            inputs["decoder_attention_mask"] = batch.valid.to(inputs["decoder_input_ids"].dtype)
        if "use_cache" in self.accepts:
            inputs["use_cache"] = False
        return inputs

    def sides(self, batch: Batch) -> dict[str, tuple["Tensor", "Tensor"]]:
        """{stream: (token ids, special tokens)}, both [batch, token]; the decoder's are shifted."""
        sides = {stack.name: (batch.inputs["input_ids"], batch.special) for stack in self.stacks}
        if self.shifted:
            sides[self.shifted] = decoder_side(batch, self.loaded.config)
        return sides


def text_reader(loaded: LoadedModel, stacks: list[BoundStack]) -> "nn.Module":
    """The innermost module that takes token ids and runs all of `stacks`: the model without its head, as a rule.

    Raises:
        BadInput: no such module takes token ids.
    """
    module = reader_of(loaded, stacks, "input_ids")
    if module is None:
        raise BadInput(
            f"{loaded.name} does not read text (it takes {getattr(loaded.model, 'main_input_name', 'other inputs')}); "
            "observe a text model, or the text tower of this one, loaded by itself"
        )
    return module


def reader_of(loaded: LoadedModel, stacks: list[BoundStack], takes: str) -> "nn.Module | None":
    """The innermost module that takes the argument `takes` and runs all of `stacks`; None where there is none."""
    paths = [block.split(".") for stack in stacks for block in stack.blocks]
    common = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    for length in range(len(common), -1, -1):
        module = loaded.model.get_submodule(".".join(common[:length]))
        if paths and takes in inspect.signature(module.forward).parameters:
            return module
    return None
