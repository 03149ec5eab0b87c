"""Hidden states of a model in training on a fixed probe, leaving the model and the training exactly as they were.

    probe = make_probe(loaded, None, texts=16, tokens=64)      # or texts, or token ids
    seen = probe.measure()                           # {stream: {"kurtosis_dims": float64 [layer], …}}
    with untouched(model): ...                       # evaluation mode, no gradients; modes and random state restored

The pass runs the module below the head in the parameters' own precision, whatever autocast the training uses.
"""

import copy
import hashlib
import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.architectures.live import sharded_part
from outlierlens.data.texts import EXCERPT, Batch, Texts, beginnings, collate, read_texts
from outlierlens.errors import BadInput
from outlierlens.models.attention_maps import MapLooks, tapped_logits
from outlierlens.models.changes import evaluating, temporary
from outlierlens.models.folder import row_count
from outlierlens.models.forward import TextForward, check_padding
from outlierlens.models.hooks import EMBEDDINGS, refuse_compiled, tapped
from outlierlens.models.inputs import check_known, token_limit
from outlierlens.models.load import LoadedModel
from outlierlens.training.watch_rows import MEASURES

if TYPE_CHECKING:
    from torch import Tensor, nn


class Probe:
    """A fixed batch and the way to run it.

    Attributes:
        digest: SHA-256 over the token ids and which of them count.
    """

    def __init__(self, loaded: LoadedModel, batch: Batch):
        self.loaded, self.batch = loaded, batch
        self.stacks = loaded.text_stacks
        forward = TextForward(loaded, self.stacks)
        self.reader, self.inputs = forward.reader, forward.arguments(batch)
        digest = hashlib.sha256(str(tuple(batch.valid.shape)).encode())
        for part in (batch.inputs["input_ids"], batch.valid.long()):
            digest.update(part.numpy().astype("<i8").tobytes())
        self.digest = digest.hexdigest()
        with untouched(loaded.model):  # says at once, and not at the first recorded step, that hooks would be ignored
            pass

    def measure(self) -> dict[str, dict[str, np.ndarray]]:
        """Run the probe and describe every layer of every stream; the model is left as it was.

        By stream `MEASURES`, float64 [layer], and `state`, float32 [dim]: that of the first text after the middle layer,
        averaged over its tokens. Without attention that can be seen `largest_logit` is absent.

        Raises:
            BadInput: states do not fit the tokens (attention that unpads).
        """
        import torch

        device = self.loaded.device
        valid = self.batch.valid.to(device)
        seen: dict[str, list[Tensor]] = {stack.name: [] for stack in self.stacks}
        texts: dict[str, Tensor] = {}
        logits: list[Tensor] = []  # of the attention since the last block

        def attended(values: "Tensor") -> None:
            mine = values.shape == valid.shape
            logits.append((values.masked_fill(~valid, 0) if mine else values).amax().float())

        def look(stack: BoundStack, layer: int, found: "Tensor") -> None:
            largest = torch.stack(logits).amax() if logits else torch.tensor(math.nan, device=found.device)
            logits.clear()
            if layer == EMBEDDINGS:
                return
            check_padding(stack, layer, found, valid, "the probe's tokens")
            described = _describe(found, valid)
            seen[stack.name].append(torch.cat([described, largest.to(described)[None]]))
            if layer == middle(stack.n_layers):
                texts[stack.name] = found[0][valid[0]].float().mean(0)

        attention = MapLooks(read=lambda name, values: None, product=lambda values: None, logits=attended)
        with untouched(self.loaded.model), tapped(self.loaded.model, self.stacks, look), tapped_logits(attention):
            inputs = {
                name: value.to(device) if isinstance(value, torch.Tensor) else value
                for name, value in self.inputs.items()
            }
            with torch.autocast(device.type, enabled=False):
                self.reader(**inputs)
        found = {}
        for name, layers in seen.items():
            columns = torch.stack(layers).cpu().double().numpy().T  # [measure, layer]
            found[name] = dict(zip(MEASURES, columns, strict=True), state=texts[name].cpu().numpy())
            if np.isnan(found[name]["largest_logit"]).all():
                del found[name]["largest_logit"]
        return found


def middle(n_layers: int) -> int:
    """The layer whose state is kept: 4 of 8, as in the paper's figure."""
    return n_layers // 2


def _describe(states: "Tensor", valid: "Tensor") -> "Tensor":
    """Kurtosis over dims and over entries, inf-norm and largest |h| of [batch, token, dim] over valid tokens: [4]."""
    import torch

    # Fourth powers of a few hundred swamp float32; MPS has nothing wider.
    wide = states.detach().float() if states.device.type == "mps" else states.detach().double()
    second = wide[valid].square().mean(0)  # [dim]
    over_dims = second.square().mean() / second.mean().square()
    mask = valid.unsqueeze(-1)
    count = valid.sum(1) * states.shape[-1]  # [text]
    mean = wide.masked_fill(~mask, 0).sum((1, 2)) / count
    square = (wide - mean[:, None, None]).masked_fill(~mask, 0).square()
    variance = square.sum((1, 2)) / count
    entries = (square.square().sum((1, 2)) / count / variance.square()).mean()
    largest = wide.masked_fill(~mask, 0).abs().amax((1, 2))  # [text]
    return torch.stack([over_dims, entries, largest.mean(), largest.amax()])


def make_probe(loaded: LoadedModel, given: "Texts | Tensor | None", *, texts: int, tokens: int) -> Probe:
    """A probe of texts or token ids [text, token]; by default of the excerpt shipped with the package.

    Of texts the first `texts` are read, `tokens` of each, special tokens included.

    Raises:
        BadInput: this model cannot read it, there is no tokenizer for texts, or parts of the model are compiled.
    """
    if given is not None and not isinstance(given, Texts):
        return Probe(loaded, _from_ids(loaded, given))
    if loaded.tokenizer is None:
        raise BadInput(
            "without a tokenizer the probe's texts cannot be read; pass tokenizer=, or token ids as the probe"
        )
    # A copy, because a call changes a tokenizer's truncation; one text at a time, because a batch starts threads, after
    # which data loaders that fork complain.
    tokenizer: Any = copy.deepcopy(loaded.tokenizer)
    limit = token_limit(loaded, tokens)
    some = beginnings(tokenizer, (given or read_texts(EXCERPT)).texts[:texts], limit)
    encoded = [tokenizer(text, truncation=True, max_length=limit) for text in some]
    kept = tuple(number for number, text in enumerate(encoded) if text["input_ids"])
    if not kept:
        raise BadInput("the tokenizer made no token of the probe's texts; give others")
    check_known(loaded, (encoded[number]["input_ids"] for number in kept))
    columns = {key: [encoded[number][key] for number in kept] for key in encoded[kept[0]]}
    return Probe(loaded, collate(tokenizer, columns, kept, "cpu"))


def _from_ids(loaded: LoadedModel, given: Any) -> Batch:
    import torch

    ids = torch.as_tensor(given).detach().cpu()
    if ids.ndim != 2 or ids.numel() == 0 or ids.is_floating_point() or ids.is_complex():
        raise BadInput(f"a probe of token ids must be whole numbers [text, token], not {ids.dtype} {list(ids.shape)}")
    size = row_count(loaded.model) or 0
    if int(ids.min()) < 0 or int(ids.max()) >= size:
        raise BadInput(
            f"the probe's token ids go from {int(ids.min())} to {int(ids.max())}; the model has {size:,} tokens"
        )
    limit = token_limit(loaded, ids.shape[1])
    if ids.shape[1] > limit:
        raise BadInput(f"the probe has {ids.shape[1]} tokens per text; the model has positions for {limit}")
    valid = torch.ones(ids.shape, dtype=torch.bool)
    inputs = {"input_ids": ids.long(), "attention_mask": valid.long()}
    return Batch(inputs, valid, torch.zeros_like(valid), tuple(range(len(ids))))


@temporary
def untouched(model: "nn.Module") -> Iterator[None]:
    """Run the model in evaluation mode without gradients or compiled calls; every trace is undone.

    Each module's mode comes back by itself (some may have been in evaluation mode), as do the random states of Python,
    NumPy and torch.
    """
    import torch

    compiled = {
        module: call for module in model.modules() if (call := getattr(module, "_compiled_call_impl", None)) is not None
    }
    python, numpy = random.getstate(), np.random.get_state()
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(devices)), torch.no_grad(), evaluating(model):
            for module in compiled:
                module._compiled_call_impl = None
            refuse_compiled(model)
            yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call
        random.setstate(python)
        np.random.set_state(numpy)
        # Weights cast while gradients were off must not serve a pass that needs them.
        torch.clear_autocast_cache()


def bare_model(model: "nn.Module") -> "nn.Module":
    """The model inside compilers' and data-parallel wrappers.

    Raises:
        BadInput: its parameters are sharded, so that no process has whole vectors (FSDP, ZeRO-3).
    """
    inner: Any = model
    while True:
        wrappers = {cls.__name__ for cls in type(inner).__mro__}
        if hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        elif wrappers & {"DistributedDataParallel", "DataParallel", "DeepSpeedEngine"}:
            inner = inner.module
        else:
            break
    if sharded := sharded_part(inner):
        raise BadInput(
            f"parameters of this model are sharded over processes ({sharded}), so none of them holds whole vectors; "
            "train with DDP or ZeRO-2 to watch, or run `outlierlens track` on the checkpoints afterwards"
        )
    return inner
