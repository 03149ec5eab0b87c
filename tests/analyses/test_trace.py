"""Traces: the account of every family against its states, planted writers by name, readers, and models without a writer."""

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import mixtures
from architectures import FAMILIES, TEXT, build
from media_models import PLANTED, RATE, pictures, png, save_vit, sounds, write_pictures, write_wav
from mixtures import MIXTURES, mixture
from outlierlens import trace
from outlierlens.analyses import trace_passes
from outlierlens.analyses.trace import GROUPS, Trace, TraceOptions
from outlierlens.data.media.items import Items, ItemSource
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.hooks import tapped
from outlierlens.models.inputs import reading_of
from outlierlens.models.load import LoadedModel, LoadOptions, from_objects, load_model
from outlierlens.results.document import load
from outlierlens.tasks.base import TaskOptions
from planted import TEXT_FAMILIES, Oracle, some_texts, tiny

TEXTS = some_texts(24, seed=5, longest=12, shortest=6, n_words=9)
DIM = 3
W2 = 7  # the id of w2 in the tests' tokenizer
# Why a family has no account; all others have one.
REFUSED = {
    "xlnet": "writes as a bare parameter",
    "deberta-v2-convolution": "something else writes there",
}


def small(family: str, words: Any, head: str = "CausalLM") -> Any:
    """A tiny model whose parts write little, so that what is planted stands out."""
    model: Any = build(FAMILIES[family], head=head)
    return from_objects(model, words(kind="causal" if head == "CausalLM" else "masked"), name=family)


@pytest.mark.parametrize("family", [family.name for family in TEXT_FAMILIES])
def test_the_parts_sum_to_the_value_in_every_block_of_every_family(family: str) -> None:
    loaded = tiny(family)
    for stack in loaded.stacks:
        options = TraceOptions(dim=DIM, stack=stack.name, n_random=1, task=TaskOptions(max_length=8))
        says = "texts do not reach stream 'vision'" if stack.name == "vision" else REFUSED.get(family)
        if says:
            with pytest.raises(BadInput, match=says):
                trace(loaded, TEXTS, options)
            continue
        found = trace(loaded, TEXTS, options)
        assert 0 < found.error <= 1e-5
        _sums(found)
        _against(found, Oracle(loaded, TEXTS, 8).by_text[stack.name])


@pytest.mark.parametrize("name", MIXTURES)
def test_the_expert_that_writes_a_massive_value_is_named(name: str, words: Any) -> None:
    loaded = from_objects(mixture(name), words(kind="causal"), name=name)
    found = trace(loaded, TEXTS, TraceOptions(dim=mixtures.DIM, n_random=1, task=TaskOptions(max_length=16)))
    assert 0 < found.error <= 1e-5
    _sums(found)
    first = found.writers[0]
    assert (first.kind, first.layer, first.expert, first.index) == (
        "neuron", str(mixtures.LAYER), mixtures.EXPERT, mixtures.NEURON
    )  # fmt: skip
    assert first.named == "neuron 3 of expert 2 in block 1"
    assert first.share == pytest.approx(1, abs=0.05)
    weight = found.weights[0]
    turned = name in ("gpt_oss", "llama4_text")
    assert weight.place == ((mixtures.EXPERT, mixtures.NEURON, mixtures.DIM) if turned else (2, mixtures.DIM, 3))
    assert weight.parameter.endswith("experts.down_proj")
    assert weight.value == 30.0
    if name == "gpt_oss":  # each expert's bias, times the router's weight, is a part of its own
        biases = {(one.layer, one.expert) for one in found.parts if one.kind == "bias" and "experts" in one.name}
        assert {expert for _, expert in biases} == {0, 1, 2, 3}
    shared = {one.name.rpartition(".")[0] for one in found.parts if one.kind == "neuron" and one.expert is None}
    at = {
        "deepseek_v3": "mlp.shared_experts",
        "qwen2_moe": "mlp.shared_expert",
        "llama4_text": "feed_forward.shared_expert",
    }
    assert (f"model.layers.1.{at[name]}" in shared) if name in at else True


def test_experts_that_are_modules_of_their_own_are_named_too(words: Any) -> None:
    """Switch: an encoder-decoder of few experts, each a module."""
    import transformers

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "num_layers": 2, "num_decoder_layers": 2}
    config = transformers.SwitchTransformersConfig(
        vocab_size=40, num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, pad_token_id=0,
        decoder_start_token_id=0, **sizes,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = transformers.SwitchTransformersForConditionalGeneration(config).eval()
    expert = model.encoder.block[1].layer[1].mlp.experts["expert_1"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        expert.wi.weight[7] *= 60
        expert.wo.weight[5, 7] = 30.0
    found = trace(from_objects(model, words(), name="switch"), TEXTS, TraceOptions(dim=5, stack="encoder", n_random=1))
    assert found.error <= 1e-5
    assert (found.writers[0].named, found.weights[0].place) == ("neuron 7 of expert 1 in block 1", (5, 7))


def test_experts_that_no_text_reached_are_said(words: Any) -> None:
    loaded = from_objects(mixture("mixtral"), words(kind="causal"), name="mixtral")
    found = trace(loaded, Texts("two", ("w1 w2",)), TraceOptions(dim=1, n_random=1))
    written = {(one.layer, one.expert) for one in found.parts if one.expert is not None}
    assert written
    (note,) = (note for note in found.notes if "reached" in note)
    assert note.startswith(f"no token reached {12 - len(written)} of 12 experts")


def test_a_scale_among_the_linears_is_refused(words: Any) -> None:
    config = transformers.XmodConfig(**TEXT, languages=["en_XX"], default_language="en_XX")
    loaded = from_objects(transformers.XmodForMaskedLM(config).eval(), words(), name="xmod")
    with pytest.raises(BadInput, match=r"output\.LayerNorm\.weight multiplies one by one and is not a linear"):
        trace(loaded, TEXTS, TraceOptions(dim=DIM, n_random=1))


def test_states_of_more_than_the_text_are_refused(words: Any) -> None:
    config = transformers.ProphetNetConfig(
        hidden_size=16, vocab_size=TEXT["vocab_size"], max_position_embeddings=32, ngram=2, decoder_start_token_id=1,
        encoder_ffn_dim=24, decoder_ffn_dim=24, num_encoder_layers=2, num_decoder_layers=2,
        num_encoder_attention_heads=2, num_decoder_attention_heads=2,
    )  # fmt: skip
    model = transformers.ProphetNetForConditionalGeneration(config).eval()
    loaded = from_objects(model, words(), name="prophetnet")
    with pytest.raises(BadInput, match="the model adds tokens of its own"):
        trace(loaded, TEXTS, TraceOptions(dim=DIM, stack="decoder", n_random=1))


def test_constants_that_multiply_what_is_added_are_measured(words: Any) -> None:
    torch.manual_seed(0)
    config = transformers.GraniteConfig(
        **TEXT, num_key_value_heads=2, residual_multiplier=0.22, embedding_multiplier=3.0
    )
    loaded = from_objects(transformers.GraniteForCausalLM(config).eval(), words(kind="causal"), name="granite")
    found = trace(loaded, TEXTS, TraceOptions(dim=DIM, n_random=1, task=TaskOptions(max_length=8)))
    assert 0 < found.error <= 1e-5
    _against(found, Oracle(loaded, TEXTS, 8).by_text["model"])
    layers = ", ".join(map(str, range(config.num_hidden_layers)))
    for linear in ("self_attn.o_proj", "mlp.down_proj"):
        assert f"a constant multiplies {linear} by 0.22 in layer {layers}: measured, no row declares it" in found.notes


@pytest.mark.parametrize(
    "family", [one for one in FAMILIES.values() if one.inputs in ("image", "audio")], ids=lambda one: one.name
)
def test_pictures_and_recordings_are_followed_too(family: Any, tmp_path: Path) -> None:
    from transformers import ViTImageProcessorPil, Wav2Vec2FeatureExtractor

    model: Any = build(family)
    if family.inputs == "image":
        side = model.config.image_size
        processor: Any = ViTImageProcessorPil(size={"height": side, "width": side})
        parts = tuple(ItemSource(str(number), data=png(one)) for number, one in enumerate(pictures(4, seed=1)[0]))
    else:
        pads = model.config.feat_extract_norm == "layer"
        processor = Wav2Vec2FeatureExtractor(sampling_rate=RATE, return_attention_mask=pads)
        written = [write_wav(tmp_path / f"{i}.wav", one) for i, one in enumerate(sounds(4, seed=1)[0])]
        parts = tuple(ItemSource(str(path), path) for path in written)
    loaded = from_objects(model, processor=processor)
    found = trace(loaded, Items("made", family.inputs, parts), TraceOptions(dim=DIM, n_random=1))
    assert 0 < found.error <= 1e-5
    assert found.about.n_texts == 4
    assert found.n_heads > 0
    _sums(found)


def test_a_planted_dimension_of_a_vit_is_written_by_its_neurons(tmp_path: Path, run: Any) -> None:
    folder = save_vit(tmp_path / "vit")
    data = write_pictures(tmp_path / "data", *pictures(6, seed=1))
    path = tmp_path / "out.json"
    code, _, err = run("trace", str(folder), "--data", str(data), "--dims", str(PLANTED), "-o", str(path))
    assert code == 0, err
    found = load(path)
    assert isinstance(found, Trace)
    assert [(one.kind, one.layer, one.index) for one in found.writers[:3]] == [("neuron", str(n), 0) for n in range(3)]
    assert found.token.startswith("patch")


def _sums(found: Trace) -> None:
    for block in found.blocks:
        parts = found.of(block.layer)
        for group in GROUPS:
            values = [getattr(part, group) for part in parts]
            assert sum(values) == pytest.approx(getattr(block, group), abs=1e-5 * sum(map(abs, values)))


def _against(found: Trace, texts: list[list[np.ndarray]]) -> None:
    """Values by an oracle with hooks of its own, [layer][token, dim] of each text."""
    for number, block in enumerate(found.blocks):
        values = [layers[number][:, DIM] for layers in texts]
        others = np.concatenate([
            np.delete(one, [0, *([found.position] if text == found.text else [])]) for text, one in enumerate(values)
        ])  # fmt: skip
        assert block.largest == pytest.approx(values[found.text][found.position], rel=1e-3, abs=1e-3)
        assert block.first == pytest.approx(np.mean([one[0] for one in values]), rel=1e-3, abs=1e-3)
        assert block.others == pytest.approx(others.mean(), rel=1e-3, abs=1e-3)
    peak = [np.abs(layers[n][:, DIM]).max() for n in range(len(found.blocks)) for layers in texts]
    assert abs(found.at(found.peak).largest) == pytest.approx(max(peak), rel=1e-3)


def planted(words: Any, *what: str, family: str = "gpt2") -> LoadedModel:
    """A tiny GPT-2 in which parts write to dimension 3: a neuron or a head of block 1, a position, a word."""
    loaded = small(family, words)
    blocks, model = loaded.model.transformer.h, loaded.model.transformer
    with torch.no_grad():
        if "neuron" in what:
            blocks[1].mlp.c_fc.bias[5] = 4.0  # it fires on every token
            blocks[1].mlp.c_proj.weight[5, DIM] = 60.0
        if "head" in what:
            blocks[1].attn.c_attn.bias[2 * 16 + 8] = 40.0  # a value of head 1
            blocks[1].attn.c_proj.weight[8, DIM] = 6.0
        if "position" in what:
            model.wpe.weight[2, DIM] = 240.0
        if "word" in what:
            model.wte.weight[W2, DIM] = 240.0
    return loaded


@pytest.mark.parametrize(
    ("what", "writers", "weights"),
    [
        (("neuron",), [("1", "neuron", 5)], ["transformer.h.1.mlp.c_proj.weight[5, 3]"]),
        (("head",), [("1", "head", 1)], ["transformer.h.1.attn.c_proj.weight[8, 3]"]),
        (("position",), [("embeddings", "embedding", None)], ["transformer.wpe.weight[2, 3]"]),
        (("word",), [("embeddings", "embedding", None)], ["transformer.wte.weight[7, 3]"]),
        (
            ("neuron", "position"),
            [("1", "neuron", 5), ("embeddings", "embedding", None)],
            ["transformer.h.1.mlp.c_proj.weight[5, 3]", "transformer.wpe.weight[2, 3]"],
        ),
        (
            ("head", "neuron"),
            [("1", "head", 1), ("1", "neuron", 5)],
            ["transformer.h.1.attn.c_proj.weight[8, 3]", "transformer.h.1.mlp.c_proj.weight[5, 3]"],
        ),
    ],
)
def test_planted_writers_are_named_and_nothing_else(
    words: Any, what: tuple[str, ...], writers: list[tuple[str, str, int | None]], weights: list[str]
) -> None:
    found = trace(planted(words, *what), TEXTS, TraceOptions(n_random=2))
    assert found.dim == DIM
    assert {(one.layer, one.kind, one.index) for one in found.writers} == set(writers)
    assert {f"{one.parameter}[{', '.join(map(str, one.place))}]" for one in found.weights} == set(weights)
    assert sum(one.share for one in found.writers) == pytest.approx(1, abs=0.05)
    assert sum(one.share for one in found.weights) == pytest.approx(1, abs=0.1)
    zeroed, restored, *random = found.trials
    assert (zeroed.family, restored.family) == ("zeroed", "restored")
    assert len(random) == 2
    if what == ("neuron",):
        assert abs(restored.change.value) < 1e-6  # nothing else in the block reads what the MLP writes
    elif len(what) == 1:
        assert abs(restored.change.value) < abs(zeroed.change.value)
    assert all(abs(one.change.value) < abs(zeroed.change.value) for one in random)


def test_a_post_norm_model_is_followed_through_its_norms(words: Any) -> None:
    loaded = small("distilbert", words, "MaskedLM")
    with torch.no_grad():
        loaded.model.distilbert.embeddings.position_embeddings.weight[2, DIM] = 240.0
    found = trace(loaded, TEXTS, TraceOptions(dim=DIM, n_random=1))
    assert found.post_norm
    assert found.lifts == "embeddings"
    (position,) = [one for one in found.of("embeddings") if one.name.endswith("position_embeddings")]
    assert position.largest == pytest.approx(found.at("embeddings").largest, rel=0.5)
    assert {one.kind for one in found.of("0")} >= {"carried", "head", "neuron", "bias", "norm bias", "norm mean"}


@pytest.mark.parametrize("seed", range(3))
def test_a_shuffled_model_has_no_single_writer(seed: int) -> None:
    loaded = load_model("mini-bert", LoadOptions(attention="eager"))
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            order = torch.randperm(parameter.numel(), generator=random)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    texts = Texts("made", tuple(f"The film was good, and number {i} of it was better." for i in range(16)))
    found = trace(loaded, texts, TraceOptions(n_random=1))
    assert found.writers == found.weights == found.trials == ()
    assert "No single writer" in " ".join(found.sentences())


def test_heads_that_read_it_lose_their_sink(words: Any) -> None:
    loaded = planted(words)
    attention = loaded.model.transformer.h[1].attn
    with torch.no_grad():
        loaded.model.transformer.wpe.weight[0, DIM] = 240.0
        # A key of head 1 reads the dimension, and every query asks for it.
        attention.c_attn.weight[:, 16 + 8] = 0.0
        attention.c_attn.weight[DIM, 16 + 8] = 1.5 * torch.sign(loaded.model.transformer.h[1].ln_1.weight[DIM])
        attention.c_attn.weight[:, 8] = 0.0
        attention.c_attn.bias[8] = 6.0
    found = trace(loaded, some_texts(64, seed=5, longest=12, shortest=6, n_words=9), TraceOptions(n_random=4))
    assert (found.dim, found.position) == (DIM, 0)
    (reader,) = [one for one in found.readers if (one.layer, one.head) == (1, 1)]
    assert reader.mass > 0.9
    assert reader.reads == "keys"
    assert reader.lost.value > 0.5
    assert reader.lost.low > 0.25
    own, *random = found.sinks
    assert len(random) == 4
    assert own.lost.value > 0.4  # of all heads that are sinks there
    assert found.n_reading == 1
    assert own.read.low > 0.5
    assert all(max(abs(one.lost.value), abs(one.read.value)) < 0.1 for one in random)


def test_a_control_moves_a_random_dimension_as_far(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = planted(words, "word")
    stack = loaded.stack(None)
    seen: list[Any] = []  # dimension, values [text, layer + 1], where [text, token]
    real = trace_passes.set_to
    monkeypatch.setattr(trace_passes, "set_to", lambda *given: seen.append(given[1:]) or real(*given))
    found = trace(loaded, TEXTS, TraceOptions(n_random=2, task=TaskOptions(batch_size=len(TEXTS))))
    (dim, mean, there), _, *controls = seen
    assert dim == found.dim == DIM
    assert len(controls) == 2
    reading = reading_of(loaded, TEXTS, 64)
    (batch,) = reading.batches(TEXTS, batch_size=len(TEXTS))
    states: list[torch.Tensor] = []
    with tapped(loaded.model, [stack], lambda _, layer, all_: states.append(all_[there].double())):
        reading(batch)
    token = torch.stack(states, 1).numpy()  # [text, layer + 1, dim]
    for other, values, where in controls:
        assert other != DIM
        assert (where == there).all()
        # Every layer's move is the dimension's own.
        np.testing.assert_allclose(values - token[:, :, other], mean - token[:, :, DIM], rtol=1e-5, atol=1e-5)
    assert np.abs(mean - token[:, :, DIM]).max() > 10


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path(__file__).parents[2] / "examples" / "traces" / "life.py"
    monkeypatch.setattr(sys, "argv", ["life.py", "--limit", "4", "-o", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    said = capsys.readouterr().out
    assert "mini-planted, dimension " in said
    assert said.endswith("no single writer\n")
    assert (tmp_path / "life.vl.json").exists()
    assert isinstance(load(tmp_path / "trace.json"), Trace)


def test_the_default_is_the_dimension_that_stands_out(words: Any) -> None:
    assert trace(planted(words, "word"), TEXTS, TraceOptions(n_random=1)).dim == DIM


def test_attention_is_eager_meanwhile(words: Any) -> None:
    loaded = planted(words, "word")
    eager = trace(loaded, TEXTS, TraceOptions(n_random=1))
    loaded.model.set_attn_implementation("sdpa")
    found = trace(loaded, TEXTS, TraceOptions(n_random=1))
    assert loaded.model.config._attn_implementation == "sdpa"
    assert (found.n_heads, found.readers) == (eager.n_heads, eager.readers)
    assert found.n_heads > 0
