"""The range of running models and of weights: numbers by hand, planted overflows, batches, templates, words."""

import gc
import json
import math
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

import range_results
from architectures import FAMILIES, build
from media_models import pictures, save_vit
from memory_checkpoint import Memory
from outlierlens import range_of
from outlierlens.analyses.range import FORMATS, NARROW, RangeOptions, headroom, weights_range
from outlierlens.analyses.range_pass import RangeTally, below, exponents, median_of
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.forward import Side
from outlierlens.models.load import LoadedModel, from_objects
from planted import some_texts, wrap

TEXTS = some_texts(9, seed=3)
ALL = RangeOptions(batch_size=4, every=1)


def llama(words: Any, attention: str = "eager") -> LoadedModel:
    """A tiny Llama with grouped keys and a vocabulary head."""
    model = build(FAMILIES["llama"], head="CausalLM")
    model.set_attn_implementation(attention)
    return from_objects(model, words(), name="llama")


def by_hand(loaded: LoadedModel) -> dict[tuple[str, str], float]:
    """{(kind, layer): largest |x|} of `TEXTS`, each alone, by the formulas of a Llama."""
    model, found = loaded.model, {}

    def take(kind: str, layer: Any, values: torch.Tensor) -> None:
        key = kind, str(layer)
        found[key] = max(found.get(key, 0.0), float(values.abs().max()))

    def norm(module: Any, layer: Any, x: torch.Tensor) -> torch.Tensor:
        take("norm sum of squares", layer, (x**2).sum(-1))
        made = module.weight * x / torch.sqrt((x**2).mean(-1, keepdim=True) + module.variance_epsilon)
        take("norm output", layer, made)
        return made

    def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    for text in TEXTS.texts:
        ids = torch.tensor([loaded.tokenizer(text)["input_ids"]])
        x = model.model.embed_tokens(ids)
        cos, sin = model.model.rotary_emb(x, torch.arange(ids.shape[1])[None])
        take("stream", "embeddings", x)
        for layer, block in enumerate(model.model.layers):
            read = norm(block.input_layernorm, layer, x)
            take("attention input", layer, read)
            q, k, v = (getattr(block.self_attn, f"{name}_proj")(read) for name in "qkv")
            for one in (q, k, v):
                take("attention linears", layer, one)
            q, k, v = (one.unflatten(-1, (-1, 8)).transpose(1, 2) for one in (q, k, v))
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            for name, one in (("q", q), ("k", k), ("v", v)):
                take(name, layer, one)
            product = q @ k.transpose(-1, -2)  # [1, head, query, key]; one head of keys for two of queries
            take("q·k", layer, product.tril())
            take("attention logits", layer, product.tril() / 8**0.5)
            hidden = torch.full_like(product, -math.inf).triu(1)
            mix = ((product / 8**0.5 + hidden).softmax(-1) @ v).transpose(1, 2).flatten(2)
            take("attention mix", layer, mix)
            made = block.self_attn.o_proj(mix)
            take("attention output", layer, made)
            x = x + made
            take("stream after attention", layer, x)
            read = norm(block.post_attention_layernorm, layer, x)
            take("MLP input", layer, read)
            gate, up = block.mlp.gate_proj(read), block.mlp.up_proj(read)
            take("gate/up", layer, torch.cat((gate, up), -1))
            inner = torch.nn.functional.silu(gate) * up
            take("MLP inner", layer, inner)
            made = block.mlp.down_proj(inner)
            take("MLP output", layer, made)
            x = x + made
            take("stream", layer, x)
        take("logits", "head", model.lm_head(norm(model.model.norm, "final", x)))
    return found


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_every_kind_is_what_the_formulas_give(words: Any, attention: str) -> None:
    loaded = llama(words, attention)
    found = range_of(loaded, TEXTS, ALL)
    expected = by_hand(loaded)
    assert {(row.kind, row.layer): row.largest for row in found.tensors} == pytest.approx(expected, rel=2e-4)
    assert not [note for note in found.notes if "not seen" in note]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("n_key_heads", [1, 2])
def test_keys_and_values_are_named_by_their_row_of_the_projection(n_key_heads: int, attention: str, words: Any) -> None:
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=n_key_heads, attn_implementation=attention,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    row = 8 * (n_key_heads - 1) + 3  # channel 3 of the last head that keys and values have; queries have four
    with torch.no_grad():
        for name in ("k_proj", "v_proj"):
            getattr(model.model.layers[1].self_attn, name).weight[row] *= 100
    found = range_of(from_objects(model, words(), name="grouped"), TEXTS, RangeOptions(every=1, cache=True))
    assert found.top("v").dim == row
    assert found.top("k").dim in (row, row + 4)  # positions turn channels 3 and 7 into each other
    assert found.top("q").dim < 32
    assert f"row {row}, token" in found.top("v").place()
    assert found.top("v").n_values == 8 * n_key_heads * found.about.n_tokens


def test_how_texts_are_batched_changes_nothing(words: Any) -> None:
    loaded = llama(words)
    one, *others = (range_of(loaded, TEXTS, RangeOptions(batch_size=size, every=2)) for size in (1, 4, 9))
    for other in others:
        for mine, its in zip(one.tensors, other.tensors, strict=True):
            assert (mine.kind, mine.layer, mine.n_values) == (its.kind, its.layer, its.n_values)
            assert mine.largest == pytest.approx(its.largest, rel=1e-4)
            assert mine.median == pytest.approx(its.median, rel=0.02, nan_ok=True)


class Alive(TorchDispatchMode):
    """Bytes of all tensors made inside the block that are alive at once; `peak` of them."""

    def __init__(self) -> None:
        super().__init__()
        self.holders: dict[int, int] = {}
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(one, torch.Tensor):
                at, size = one.untyped_storage().data_ptr(), one.untyped_storage().nbytes()
                self.bytes += 0 if self.holders.get(at) else size
                self.holders[at] = self.holders.get(at, 0) + 1
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(one, self._gone, at, size)
        return made

    def _gone(self, at: int, size: int) -> None:
        self.holders[at] -= 1
        self.bytes -= 0 if self.holders[at] else size


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_peak_memory_is_that_of_one_batch(family: str, words: Any) -> None:
    loaded = wrap(FAMILIES[family], words(kind="causal"), double=False)
    peaks = []
    for n_texts in (8, 8, 80):  # the first fills what the model keeps
        gc.collect()
        with Alive() as alive:
            range_of(loaded, Texts("made", ("w1 w2 w3 w4 w5",) * n_texts), RangeOptions(batch_size=4))
        peaks.append(alive.peak)
    assert peaks[2] <= 1.02 * peaks[1]


@torch.no_grad()
def test_a_planted_overflow_is_found_where_it_is(words: Any) -> None:
    loaded = llama(words)
    word = loaded.tokenizer.convert_tokens_to_ids("w7")
    texts = Texts("made", ("w1 w2", "w3 w7 w4", "w5"))
    block = loaded.model.model.layers[1]
    loaded.model.model.embed_tokens.weight[:, 3] = 0
    loaded.model.model.embed_tokens.weight[word, 3] = 1000
    for one in loaded.model.model.layers:  # nothing else writes to dimension 3, and all but one neuron is deaf to it
        one.self_attn.o_proj.weight[3] = 0
        one.mlp.down_proj.weight[3] = 0
        for linear in (one.mlp.gate_proj, one.mlp.up_proj):
            linear.weight[:, 3] = 0
    block.mlp.gate_proj.weight[5, 3] = block.mlp.up_proj.weight[5, 3] = 1e3
    found = range_of(loaded, texts, ALL)
    top = found.top("MLP inner")
    place = loaded.tokenizer(texts.texts[1])["input_ids"].index(word)
    assert (top.layer, top.dim, top.text, top.token, top.word) == ("1", 5, 1, place, "w7")
    assert top.module == "model.layers.1.mlp.down_proj"
    assert top.fp16 < 1 < headroom(top.largest, "bf16")
    stream = found.of("stream")[0]
    assert (stream.largest, stream.dim, stream.text, stream.token) == (1000.0, 3, 1, place)
    squares = next(row for row in found.of("norm sum of squares") if row.layer == "0")
    assert squares.largest == pytest.approx(1e6, rel=1e-3)  # what overflows first: 1000² in fp16
    assert squares.fp16 < 1
    first, second, *_ = found.sentences()
    assert first.startswith("fp16: overflows")
    assert "neuron 5" in first
    assert "overflows, unless the kernel holds it in float32" in second


def test_a_model_that_overflows_while_it_runs_is_infinite(words: Any) -> None:
    loaded = llama(words)
    with torch.no_grad():
        loaded.model.model.layers[0].mlp.down_proj.weight[2] = math.inf
    top = range_of(loaded, TEXTS, ALL).top("stream")
    assert (top.layer, top.largest, headroom(top.largest, "bf16")) == ("0", math.inf, 0.0)


def test_padding_is_not_counted() -> None:
    tally = RangeTally(every=1)
    states = torch.tensor([[[1.0, -2.0], [9.0, 9.0]], [[0.5, 0.25], [-3.0, 0.0]]])
    valid = torch.tensor([[True, False], [True, True]])
    tally.begin({"model": Side(torch.tensor([[7, 0], [8, 9]]), ~valid, valid)}, (4, 2))
    tally.add(("model", "stream", "0"), "block", states)
    tally.end()
    kept = tally.found[("model", "stream", "0")]
    assert (kept.largest, kept.text, kept.token, kept.word, kept.dim) == (3.0, 2, 1, 9, 0)
    assert int(kept.counts.sum()) == 6
    assert int(kept.counts[0]) == 1  # zeros


def test_the_first_of_equal_maxima_is_kept_whatever_the_order() -> None:
    for order in ((0, 1), (1, 0)):
        tally = RangeTally(every=1)
        for text in order:
            there = torch.ones(1, 1, dtype=torch.bool)
            tally.begin({"model": Side(torch.zeros(1, 1), ~there, there)}, (text,))
            tally.add(("model", "stream", "0"), "", torch.tensor([[[-4.0]]]))
            tally.end()
        assert tally.found[("model", "stream", "0")].text == 0


def test_shares_and_medians_by_hand() -> None:
    values = torch.tensor([0.0, -(2.0**-20), 2.0**-14, 2.0**-7, -1.0, 1.25, 1.5, 1e-39, 3.0, 100.0])
    counts = exponents(values).numpy()
    assert counts.sum() == 10
    assert counts[0] == 1
    # 1e-39 is below bf16's 2^-126; 2^-20 and 1e-39 below fp16's 2^-14; 2^-14 and 2^-7 below e4m3's 2^-6 too.
    shares = {form: below(counts, smallest) for form, (_, smallest) in FORMATS.items()}
    assert shares == {"fp16": 0.2, "bf16": 0.1, "e4m3": 0.4, "e5m2": 0.2}
    assert median_of(counts) == pytest.approx(2.0**-7 * 1.25)  # five of ten lie below the end of the bin of 2^-7
    assert math.isnan(median_of(np.zeros_like(counts)))
    assert median_of(exponents(torch.zeros(3)).numpy()) == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_median_is_exact_to_within_a_quarter(seed: int) -> None:
    values = torch.randn(1001, generator=torch.Generator().manual_seed(seed)) * 10.0**seed
    assert median_of(exponents(values).numpy()) == pytest.approx(float(values.abs().median()), rel=0.1)


def test_formats_are_those_of_torch() -> None:
    kinds = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
    for form, kind in zip(FORMATS.values(), kinds, strict=True):
        assert form == (torch.finfo(kind).max, torch.finfo(kind).smallest_normal)


def test_headroom_by_hand() -> None:
    assert headroom(254.0, "fp16") == pytest.approx(65504 / 254)
    assert headroom(0.0, "e4m3") == math.inf
    with pytest.raises(BadInput, match="no format 'fp4'; formats are fp16, bf16, e4m3, e5m2"):
        headroom(1.0, "fp4")
    with pytest.raises(BadInput, match="no tensor of kind 'heat' was seen; kinds are stream, MLP inner"):
        range_results.found().of("heat")


@torch.no_grad()
def test_an_int8_step_is_the_largest_value_by_127(words: Any) -> None:
    found = range_of(llama(words), TEXTS, ALL)
    for one in found.stored:
        if one.n_values:
            assert one.coarseness == pytest.approx(one.largest / 127 / one.median)


def test_weights_against_numpy() -> None:
    random = np.random.default_rng(0)
    tensors = {
        "a.weight": (random.standard_normal((40, 30)) * 10.0 ** random.integers(-9, 6, (40, 30))).astype(np.float32),
        "a.bias": np.array([70000.0, 0.0, -1e-5, 2.0**-14], dtype=np.float32),
    }
    found = {one.name: one for one in weights_range(Memory(tensors, {})).weights}
    for name, values in tensors.items():
        size, one = np.abs(values), found[name]
        assert (one.largest, one.n_values) == (size.max(), size.size)
        for form in NARROW:
            largest, smallest = FORMATS[form]
            assert getattr(one, f"over_{form}") == (size > largest).sum()
            assert getattr(one, f"below_{form}") == ((size > 0) & (size < smallest)).sum()
    assert (found["a.bias"].over_fp16, found["a.bias"].below_fp16) == (1, 1)
    assert found["a.bias"].fp16 == pytest.approx(65504 / 70000)


def test_weights_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from outlierlens.analyses.range import weights_range;"
        "from outlierlens.checkpoints import open_checkpoint;"
        "found = weights_range(open_checkpoint('mini-planted'));"
        "print(len(found.weights), sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1)[1].strip() == "[]"


def test_what_cannot_be_asked_is_refused(words: Any, tmp_path: Path) -> None:
    loaded = llama(words)
    with pytest.raises(BadInput, match=r"call weights_range\(checkpoint\)"):
        range_of(loaded, TEXTS, RangeOptions(weights=True))
    with pytest.raises(BadInput, match="holds no tensor of floating-point values"):
        weights_range(Memory({}, {}))


def test_pictures_are_read_too(tmp_path: Path, run: Any) -> None:
    from PIL import Image

    model, data = save_vit(tmp_path / "vit"), tmp_path / "data"
    for number, values in enumerate(pictures(4, seed=1)[0]):
        path = data / "red" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(values, dtype=np.uint8)).save(path)
    code, out, err = run("range", str(model), "--data", str(data), "--json", "--device", "cpu")
    assert code == 0, err
    rows = json.loads(out)["tensors"]
    assert set(rows["kind"]) >= {"stream", "q", "attention logits", "MLP inner", "norm sum of squares"}
    assert any(word.startswith(("patch", "[CLS]")) for word in rows["word"])


def test_nan_is_called_nan_in_a_running_model_and_in_weights(words: Any) -> None:
    loaded = llama(words)
    with torch.no_grad():
        loaded.model.model.layers[1].mlp.up_proj.weight.fill_(math.nan)
    found = range_of(loaded, TEXTS, ALL)
    broken = {(row.kind, row.layer) for row in found.tensors if row.nan}
    assert ("gate/up", "1") in broken
    assert not {layer for _, layer in broken} & {"embeddings", "0"}
    first = next(found.sentences())
    assert first.startswith("NaN in the ")
    assert "of layer 1 and " in first
    assert {row.largest for row in found.of("gate/up") if row.nan} == {math.inf}

    held = weights_range(Memory({"a.weight": np.array([1.0, math.nan, 70_000.0], np.float32)}, {}))
    (one,) = held.weights
    assert (one.nan, one.largest, one.over_fp16) == (1, 70_000.0, 1)
    assert next(held.sentences()).startswith("NaN in the a.weight: the weights are damaged")


def test_an_expert_that_no_token_reached_is_named(words: Any) -> None:
    model = build(FAMILIES["mixtral"], head="CausalLM").eval()
    loaded = from_objects(model, words(), name="mixtral")
    texts = Texts("one", ("w1",))
    found = range_of(loaded, texts, ALL)
    read = loaded.tokenizer("w1", return_tensors="pt")
    intact = model(**read).logits
    unread = set()  # by hand: experts whose weights can be anything
    for layer, block in enumerate(model.model.layers):
        weight = block.mlp.experts.down_proj
        for expert in range(len(weight)):
            with torch.no_grad():
                before = weight[expert].clone()
                weight[expert] = 100.0
                if torch.equal(model(**read).logits, intact):
                    unread.add((layer, expert))
                weight[expert] = before
    assert unread
    names = {
        f"model.layers.{layer}.mlp.experts.{part}, expert {expert}"
        for layer, expert in unread
        for part in ("gate_up_proj", "down_proj")
    }
    assert set(found.never_fed) == names
    never, then, *_ = found.sentences()
    assert never.startswith("These texts do not reach: model.layers.")
    assert then.endswith("has nothing for them: of experts, llama-quantize weighs all inputs alike.")
    (note,) = (note for note in found.notes if "reached" in note)
    assert note.startswith(f"no token reached {len(unread)} of {4 * len(model.model.layers)} experts")
