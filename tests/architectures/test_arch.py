"""Every row of the architecture table, proved on a tiny live model and on a file saved from it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from architectures import FAMILIES, Family, batch, build
from outlierlens.architectures import ARCHITECTURES, BoundStack, Param, bind, live_parameters, stacks_of
from outlierlens.checkpoints import open_checkpoint

DIM = 5
FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
Call = tuple[str, torch.Tensor, torch.Tensor]
_built: dict[str, Any] = {}


def model_of(family: Family) -> Any:
    """The family's bare model; tests restore every change they make to it."""
    if family.name not in _built:
        _built[family.name] = build(family)
    return _built[family.name]


def bound_of(family: Family, model: Any) -> list[BoundStack]:
    config = model.config.to_dict()
    return bind(stacks_of(config), live_parameters(model), config)


def run(model: Any, family: Family, stack: BoundStack) -> list[Call]:
    """(block, input, output) of every call of a block in one forward pass, all [batch, token, dim]."""
    calls: list[Call] = []

    def axes(states: Any) -> torch.Tensor:
        states = states[0] if isinstance(states, tuple) else states
        return (states.transpose(0, 1) if stack.stack.token_first else states).detach().clone()

    hooks = []
    for path in set(stack.blocks):

        def seen(module: Any, args: Any, kwargs: Any, output: Any, path: str = path) -> None:
            calls.append((path, axes(args[0] if args else kwargs["hidden_states"]), axes(output)))

        hooks.append(model.get_submodule(path).register_forward_hook(seen, with_kwargs=True))
    with torch.no_grad():
        model(**batch(family))
    for hook in hooks:
        hook.remove()
    return calls


@contextmanager
def changed(model: Any, params: Any, dim: int | None, value: float | None) -> Iterator[None]:
    """Parameters set to `value` (None: to their `off`) at `dim` (None: everywhere), and back afterwards."""
    live = live_parameters(model)
    saved = {param.name: live[param.name].detach().clone() for param in params}
    with torch.no_grad():
        for param in params:
            target = live[param.name] if dim is None else live[param.name].select(param.axis, dim)
            target.fill_(param.off if value is None else value)
    yield
    with torch.no_grad():
        for name, values in saved.items():
            live[name].copy_(values)


def others(states: torch.Tensor) -> torch.Tensor:
    """All dimensions but DIM."""
    return torch.cat([states[..., :DIM], states[..., DIM + 1 :]], dim=-1)


def test_every_row_has_a_family() -> None:
    assert {family.model_type for family in FAMILIES.values()} == set(ARCHITECTURES)


@FAMILY
def test_block_outputs_are_the_stream(family: Family) -> None:
    model = model_of(family)
    for stack in bound_of(family, model):
        calls = run(model, family, stack)
        assert [path for path, _, _ in calls] == list(stack.blocks)
        n_tokens = {states.shape[1] for _, _, states in calls}
        for _, before, after in calls:
            assert before.shape == after.shape
            assert after.shape[0] == 2
            assert after.shape[2] == 16
        assert len(n_tokens) == 1
        for layer in range(1, stack.n_layers):
            if not (family.between and layer == 1):
                assert torch.equal(calls[layer][1], calls[layer - 1][2])


@FAMILY
def test_final_norm_reads_the_last_block(family: Family) -> None:
    model = model_of(family)
    for stack in bound_of(family, model):
        assert bool(stack.final_norm) == bool(stack.stack.final_norm)
        last = run(model, family, stack)[-1][2]
        if not stack.final_norm:
            with torch.no_grad():
                output = model(**batch(family))
            states = output["encoder_last_hidden_state" if stack.name == "encoder" else "last_hidden_state"]
            if states.shape != last.shape:  # OPT-350m's output is projected to the width of its embeddings
                last = model.decoder.project_out(last)
            assert torch.equal(states, last)
            continue
        read: list[torch.Tensor] = []
        norm = model.get_submodule(stack.prefix + stack.stack.final_norm)
        hook = norm.register_forward_pre_hook(lambda module, args, read=read: read.append(args[0]))
        with torch.no_grad():
            model(**batch(family))
        hook.remove()
        # CLIP's vision tower norms only the class token.
        assert torch.equal(read[0], last) or torch.equal(read[0], last[:, 0])


@FAMILY
def test_last_operation_changes_its_dimension_only(family: Family) -> None:
    model = model_of(family)
    for stack in bound_of(family, model):
        intact = run(model, family, stack)
        for layer in stack.weight_layers:
            params = (*stack.scale[layer], *stack.bias[layer])
            assert all(live_parameters(model)[param.name].shape[param.axis] == 16 for param in params)
            with changed(model, params, DIM, 0.7):
                off = run(model, family, stack)
            # With shared blocks only the first call still has the same input.
            assert torch.equal(off[layer][1], intact[layer][1])
            assert torch.equal(others(off[layer][2]), others(intact[layer][2]))
            assert not torch.equal(off[layer][2][..., DIM], intact[layer][2][..., DIM])


@FAMILY
def test_a_dimension_switched_off_is_off(family: Family) -> None:
    model = model_of(family)
    for stack in bound_of(family, model):
        everywhere = range(stack.n_layers)
        if stack.stack.norm_site == "stream":
            params = [param for layer in everywhere for param in (*stack.scale[layer], *stack.bias[layer])]
        else:
            params = [param for layer in everywhere for param in stack.writes[layer]]
        with changed(model, params, DIM, None):
            calls = run(model, family, stack)
        for _, before, after in calls:
            if stack.stack.norm_site == "stream":
                assert torch.equal(after[..., DIM], torch.zeros_like(after[..., DIM]))
            else:
                assert torch.equal(after[..., DIM], before[..., DIM])
            assert not torch.equal(others(after), others(before))


@FAMILY
def test_writes_are_rows_of_the_stream(family: Family) -> None:
    model = model_of(family)
    live = live_parameters(model)
    for stack in bound_of(family, model):
        params = [*(param for layer in stack.writes for param in layer), *stack.embeddings]
        assert {live[param.name].shape[param.axis] for param in params} == {16}
        if stack.stack.norm_site != "stream":
            continue
        path = stack.blocks[0]
        norms = [name for name in (*stack.stack.other_norms, stack.stack.last_norm) if _has(model, f"{path}.{name}")]
        seen: list[torch.Tensor] = []
        hooks = [
            model.get_submodule(f"{path}.{name}").register_forward_hook(
                lambda module, args, output, seen=seen: seen.extend((args[0], output))
            )
            for name in norms
        ]
        with changed(model, stack.writes[0], DIM, None):
            before = run(model, family, stack)[0][1]
        for hook in hooks:
            hook.remove()
        # With all writes of a dimension off, each norm gets there what the block, or the norm before it, gave.
        turned = [states.transpose(0, 1) if stack.stack.token_first else states for states in seen[: 2 * len(norms)]]
        for given, got in zip([before, *turned[1:-1:2]], turned[::2], strict=True):
            assert torch.equal(given[..., DIM], got[..., DIM])


def _has(model: Any, path: str) -> bool:
    return path in dict(model.named_modules())


@FAMILY
def test_nothing_else_writes(family: Family) -> None:
    model = model_of(family)
    for stack in bound_of(family, model):
        with changed(model, [param for layer in stack.writes for param in layer], None, None):
            for path, before, after in run(model, family, stack):
                expected = before
                if stack.stack.norm_site == "stream":
                    for name in (*stack.stack.other_norms, stack.stack.last_norm):
                        if _has(model, f"{path}.{name}"):
                            expected = model.get_submodule(f"{path}.{name}")(expected)
                torch.testing.assert_close(after, expected, rtol=1e-6, atol=1e-6)


@FAMILY
def test_nothing_else_writes_before_the_first_block(family: Family) -> None:
    model = model_of(family)
    for stack in bound_of(family, model):
        params = stack.embedding_norm or stack.embeddings
        assert stack.embeddings
        with changed(model, params, DIM, None):
            first = run(model, family, stack)[0][1]
        if stack.name not in family.extra:
            assert torch.equal(first[..., DIM], torch.zeros_like(first[..., DIM]))
        with changed(model, stack.embeddings, None, 0.0):
            constant = run(model, family, stack)[0][1]
        if stack.name not in family.extra:
            assert torch.equal(constant, constant[:1, :1].expand_as(constant))


@FAMILY
def test_reading_norms_are_read(family: Family) -> None:
    model = model_of(family)
    names = live_parameters(model)
    for stack in bound_of(family, model):
        without = () if family.inputs == "cross" else ("ln_cross_attn",)
        expected = len([norm for norm in stack.stack.reading_norms if norm not in without])
        assert [len(params) for params in stack.reading[1:]] == [expected] * (stack.n_layers - 1)
        declared = {
            param.name for layer in (*stack.reading, *stack.scale, *stack.bias, *stack.writes) for param in layer
        }
        # Every vector of the stream's width that is called a norm has a place in the row.
        for block in stack.blocks:
            for name, values in names.items():
                if name.startswith(f"{block}.") and name.endswith("norm.weight") and values.shape == (16,):
                    inner = ("q_norm", "k_norm")  # per head, before the dot product
                    assert name in declared or stack.stack.norm_site == "stream" or name.split(".")[-2] in inner


@FAMILY
def test_number_of_values_switched_off(family: Family) -> None:
    model = model_of(family)
    live = live_parameters(model)
    stacks = bound_of(family, model)
    assert {stack.name for stack in stacks} == set(family.values)
    for stack in stacks:
        touched = [
            sum(param.values_per_dim(live[param.name].shape) for param in (*stack.scale[layer], *stack.bias[layer]))
            for layer in range(stack.n_layers)
        ]
        assert touched == list(family.values[stack.name])
        assert len(stack.weight_layers) == len({id(model.get_submodule(path)) for path in stack.blocks})


def per_dim(stack: BoundStack, shapes: dict[str, tuple[int, ...]]) -> dict[str, list[int]]:
    """Values that one dimension has in each part of the row, by layer."""
    parts = {"scale": stack.scale, "bias": stack.bias, "writes": stack.writes, "reading": stack.reading}
    counts = {
        part: [sum(param.values_per_dim(shapes[param.name]) for param in layer) for layer in layers]
        for part, layers in parts.items()
    }
    outer = {"embedding_norm": stack.embedding_norm, "final_norm": stack.final_norm, "embeddings": stack.embeddings}
    return counts | {
        part: [sum(param.values_per_dim(shapes[param.name]) for param in params)] for part, params in outer.items()
    }


@FAMILY
def test_files_bind_like_live_models(family: Family, tmp_path: Any) -> None:
    for head in ("", *family.heads):
        model = build(family, head) if head else model_of(family)
        live = {name: tuple(values.shape) for name, values in live_parameters(model).items()}
        alive = bound_of(family, model)
        model.save_pretrained(tmp_path / head)
        with open_checkpoint(str(tmp_path / head)) as checkpoint:
            stored = bind(stacks_of(checkpoint.config), checkpoint.tensors, checkpoint.config)
            shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        assert [stack.name for stack in stored] == [stack.name for stack in alive] == list(family.values)
        for ours, theirs in zip(alive, stored, strict=True):
            assert ours.n_layers == theirs.n_layers == len(family.values[ours.name])
            assert per_dim(ours, live) == per_dim(theirs, shapes)
            assert all(path in dict(model.named_modules()) for path in ours.blocks)


def test_bert_base_has_48_values_for_two_dimensions() -> None:
    from transformers import BertConfig, BertModel

    with torch.device("meta"):
        model = BertModel(BertConfig())
    (stack,) = bind(stacks_of({"model_type": "bert"}), live_parameters(model), model.config.to_dict())
    shapes = {name: tuple(values.shape) for name, values in live_parameters(model).items()}
    counts = per_dim(stack, shapes)
    assert sum(counts["scale"]) * 2 + sum(counts["bias"]) * 2 == 48
    assert stack.scale[11] == (Param("encoder.layer.11.output.LayerNorm.weight"),)
