"""How each tool is told what to leave alone: `ToolLists`, whose subclasses say of which modules and channels."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from outlierlens.architectures import BoundStack, Neuron
from outlierlens.checkpoints import Checkpoint
from outlierlens.errors import comment, literal
from outlierlens.experiments.pruning.options import ProtectOptions, Tool

TORCH_PRUNING = '''\
import torch_pruning as tp

KEEP = {keep}


def module_of(model, name):
    """The module of that name, also where a head's prefix stands before it here or there."""
    for path, module in model.named_modules():
        if path and (path == name or path.endswith("." + name) or name.endswith("." + path)):
            return module
    raise KeyError(name)


class KeepPositions(tp.importance.Importance):
    """Another importance, in which the protected positions of the stream come last."""

    def __init__(self, importance, model):
        self.importance = importance
        self.keep = {module_of(model, name): set(dims) for name, dims in KEEP.items()}

    def __call__(self, group):
        scores = self.importance(group)
        if scores is None:
            return None
        for place, (dependency, channels) in enumerate(group):
            kept = self.keep.get(dependency.target.module, ())
            if kept and dependency.handler is not tp.prune_linear_in_channels:
                for channel, root in zip(channels, group[place].root_idxs):
                    if channel in kept:
                        scores[root] = float("inf")
        return scores


# importance = KeepPositions(tp.importance.MagnitudeImportance(), model)
# pruner = tp.pruner.BasePruner(model, example_inputs, importance=importance, ...)
# {whole}:
# ignored_layers = [module_of(model, name) for name in KEEP]
'''

# https://docs.vllm.ai/projects/llm-compressor: recipes of one modifier, up to the list of modules that it ignores.
SPARSEGPT = """\
sparsity_stage:
  sparsity_modifiers:
    SparseGPTModifier:
      sparsity: 0.5
      mask_structure: "0:0"
      targets: ["Linear"]
      ignore:
"""
QUANTIZATION = """\
quantization_stage:
  quantization_modifiers:
    QuantizationModifier:
      scheme: W8A8
      targets: ["Linear"]
      ignore:
"""


@dataclass(frozen=True)
class Protection:
    """A protect-list to paste, `text`.

    `modules` and `dims`, or `neurons`, are what it names, `layers` where, `notes` what to know.
    """

    tool: Tool
    text: str
    modules: tuple[str, ...]
    dims: tuple[int, ...]
    layers: tuple[int, ...]
    notes: tuple[str, ...]
    neurons: tuple[str, ...] = ()


class ToolLists(ABC):
    """The lists of one stream; `whole` and `unscaled` are words of the texts, `dims` or `neurons` what is protected."""

    checkpoint: Checkpoint
    options: ProtectOptions
    bound: BoundStack
    dims: tuple[int, ...] = ()
    neurons: tuple[Neuron, ...] = ()
    whole: str
    unscaled: str

    @abstractmethod
    def named(self, tool: Tool) -> tuple[tuple[str, ...], tuple[int, ...], list[str]]:
        """(modules, layers, what to know) of the list."""

    @abstractmethod
    def keep(self, modules: tuple[str, ...]) -> dict[str, list[int]]:
        """Of each module the channels that pruning must not give up."""

    @abstractmethod
    def scaled(self, layers: Sequence[int]) -> list[tuple[str, list[str], list[int]]]:
        """(what feeds, linears that read it, channels) of the layers, where that is known; [] elsewhere."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Channels of what is scaled."""

    def made(self, tool: Tool, measured: str | None = None) -> Protection:
        """The list for one tool."""
        modules, layers, notes = self.named(tool)
        notes.append(
            measured or "what this gives back was not measured: outlierlens plan measures what helps most per byte"
        )
        write: dict[Tool, Callable[[tuple[str, ...], tuple[int, ...], list[str]], str]] = {
            "torch-pruning": self._torch_pruning,
            "sparsegpt": partial(self._recipe, SPARSEGPT),
            "llm-compressor": partial(self._recipe, QUANTIZATION),
            "bitsandbytes": self._bitsandbytes,
            "awq": self._awq,
        }
        text = write[tool](modules, layers, notes)
        return Protection(tool, text, modules, self.dims, layers, tuple(notes), tuple(map(str, self.neurons)))

    def _head(self, what: str, notes: Sequence[str]) -> list[str]:
        lines = [f"outlierlens: {what} of {self.checkpoint.name}", *notes]
        return [comment(line) for line in lines]

    def _torch_pruning(self, modules: tuple[str, ...], layers: tuple[int, ...], notes: list[str]) -> str:
        if not self.neurons:
            notes[0] = f"positions {', '.join(map(str, self.dims))} of the residual stream, which goes as a whole"
        if self.bound.stack.weight_is_in_by_out:
            notes.append("linears here are Conv1D modules, which Torch-Pruning prunes only with a pruner of your own")
        head = self._head("channels that Torch-Pruning should keep", notes)
        return "\n".join(
            [*head, TORCH_PRUNING.replace("{whole}", self.whole).replace("{keep}", _literal(self.keep(modules)))]
        )

    def _recipe(self, modifier: str, modules: tuple[str, ...], layers: tuple[int, ...], notes: list[str]) -> str:
        """A recipe of llm-compressor that leaves these modules and the head alone."""
        lines = [literal(f"re:.*{re.escape(_tail(name, self.bound.prefix))}$") for name in ("lm_head", *modules)]
        return "\n".join([
            *self._head("modules that llm-compressor should ignore", notes),
            "# oneshot(model=…, recipe=this file); the settings above `ignore` are yours.",
            modifier.rstrip(),
            *(f"        - {line}" for line in lines),
            "",
        ])  # fmt: skip

    def _bitsandbytes(self, modules: tuple[str, ...], layers: tuple[int, ...], notes: list[str]) -> str:
        skip = ["lm_head", *(_tail(name, self.bound.prefix) for name in modules)]
        notes.append("a name given here replaces the default, which leaves the head out; it is named again")
        return "\n".join([
            *self._head("modules that bitsandbytes should leave in high precision", notes),
            "from transformers import BitsAndBytesConfig",
            "",
            f"llm_int8_skip_modules = {_literal(skip)}",
            "",
            "config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=llm_int8_skip_modules)",
            '# AutoModelForCausalLM.from_pretrained(..., quantization_config=config)',
            "",
        ])  # fmt: skip

    def _awq(self, modules: tuple[str, ...], layers: tuple[int, ...], notes: list[str]) -> str:
        skip = ["lm_head", *(_tail(name, self.bound.prefix) for name in modules)]
        scaled = self.scaled(layers)
        lines = ["from transformers import AwqConfig", "", f"modules_to_not_convert = {_literal(skip)}", ""]
        lines += ["config = AwqConfig(bits=4, modules_to_not_convert=modules_to_not_convert)"]
        if not scaled:
            notes.append(f"no scales: {self.unscaled}")
            return "\n".join([*self._head("modules that AWQ should leave in high precision", notes), *lines, ""])
        notes.append(
            f"scales: a channel's weights grow by {self.options.factor:g} and what feeds it shrinks by as much, which changes "
            "nothing before quantization"
        )
        return "\n".join([
            *self._head("modules and channels that AWQ should spare", notes),
            *lines,
            "",
            "# Scales for llm-awq: apply_awq(model, awq_results), or torch.save(awq_results, file) for --load_awq.",
            "import torch",
            "",
            f"SCALED = {_literal(scaled)}",
            'awq_results = {"scale": [], "clip": []}',
            "for feeds, readers, channels in SCALED:",
            f"    scales = torch.ones({self.width})",
            f"    scales[channels] = {self.options.factor!r}",
            '    awq_results["scale"].append((feeds, tuple(readers), scales))',
            "",
        ])  # fmt: skip


def _tail(name: str, prefix: str) -> str:
    """A module's name without what a task head puts before it."""
    return name.removeprefix(prefix)


def _literal(value: Any) -> str:
    """A list or dictionary as Python (and JSON), a line an entry."""
    return literal(value, indent=4) if not isinstance(value, dict) else (
        "{\n" + "".join(f"    {literal(key)}: {literal(item)},\n" for key, item in value.items()) + "}"
    )  # fmt: skip
