"""Masks for other tools: what each file does, with stand-ins for the tools, and in the tools where they are installed."""

import runpy
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import mask_results
from architectures import FAMILIES, build
from outlierlens import edited_hidden, mask
from outlierlens.analyses.mask import Mask, MaskOptions
from outlierlens.analyses.mask_exports import TOOLS, export
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from planted import some_texts

STATES = torch.tensor([[[1.0, 0.5, 30.0, -1.0], [2.0, 0.5, 60.0, -1.0], [0.0, 0.0, 10.0, 0.0], [0.0, 0.0, 5.0, 0.0]]])
SHORT = [0, 2, 3]  # by the norm of 40
TEXTS = some_texts(40, seed=5, longest=12, shortest=6, n_words=9)
WIDTH = 16


class Saved(torch.Tensor):
    """A state as a trace shows it."""

    def save(self) -> "Saved":
        return self


class Buffer:
    """As much of dictionary-learning's buffer as counts: after `refresh` nothing is read."""

    activations = STATES[0]

    def refresh(self) -> None:
        self.read = torch.zeros(len(self.activations), dtype=torch.bool)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """The names in the file for a tool; dictionary-learning is a stand-in unless it is wanted as it is."""

    def run(tool: str, found: Mask | None = None, *, stands_in: bool = True) -> dict[str, Any]:
        path = tmp_path / f"{tool}_file.py"
        path.write_text(export(tool, found or mask_results.found()), encoding="utf-8")
        if stands_in:
            library: Any = ModuleType("dictionary_learning")
            library.ActivationBuffer = Buffer
            monkeypatch.setitem(sys.modules, "dictionary_learning", library)
        return runpy.run_path(str(path))

    return run


def test_settings_are_what_the_tools_take(ran: Callable[..., dict[str, Any]]) -> None:
    found = mask_results.found()
    assert ran("saelens")["SINKS"] == {"exclude_special_tokens": [7], "seqpos_slice": (1, None)}
    assert "cannot leave out: 3" in export("saelens", found)
    assert ran("dictionary-learning")["SINKS"] == {"max_activation_norm_multiple": found.factor, "remove_bos": True}
    none = replace(found, positions=(), token_ids=(), words=())
    assert ran("saelens", none)["SINKS"] == {"exclude_special_tokens": False, "seqpos_slice": (0, None)}
    assert ran("dictionary-learning", none)["SINKS"]["remove_bos"] is False
    assert "model.blocks[1], d_submodule=4" in export("dictionary-learning", found)
    with pytest.raises(BadInput, match="unknown tool 'x'"):
        export("x", found)
    assert all(export(tool, found).startswith("# Sinks of mini, block 1") for tool in TOOLS)


def test_each_file_leaves_out_long_states(ran: Callable[..., dict[str, Any]]) -> None:
    for tool in ("saelens", "dictionary-learning", "transformer-lens", "nnsight", "steering"):
        assert ran(tool)["kept"](STATES).tolist() == [[True, False, True, True]], tool
    store = SimpleNamespace(get_filtered_llm_batch=lambda raise_on_epoch_end=False: STATES[0])
    assert torch.equal(ran("saelens")["leave_out_sinks"](store).get_filtered_llm_batch(), STATES[0, SHORT])
    buffer = ran("dictionary-learning")["ShortStates"]()
    buffer.refresh()
    assert buffer.read.tolist() == [False, True, False, False]
    assert ran("transformer-lens")["ablate_sinks"](STATES, None)[0, 1].tolist() == [0, 0, 0, 0]


def test_each_file_ablates_the_outlier_dimensions(ran: Callable[..., dict[str, Any]]) -> None:
    ones = torch.ones(2, 4)
    for change in (
        ran("steering")["without_outliers"],
        lambda states: ran("transformer-lens")["ablate_outliers"](states, None),
    ):
        assert change(ones).tolist() == [[1, 1, 0, 1], [1, 1, 0, 1]]
        assert ones.min() == 1

    @contextmanager
    def trace(_: str) -> Iterator[None]:
        yield

    for wrap in (lambda one: one, lambda one: (one,)):
        states = STATES.clone().as_subclass(Saved)
        block = SimpleNamespace(output=wrap(states))
        model = SimpleNamespace(trace=trace, get={"blocks.1": block}.get)
        model.output = SimpleNamespace(logits=states)
        if isinstance(block.output, torch.Tensor):  # else the tool's tuple has the method
            assert torch.equal(ran("nnsight")["short_states"](model, "w1"), STATES[0, SHORT])
        assert ran("nnsight")["ablated_logits"](model, "w1")[0, :, 2].tolist() == [0, 0, 0, 0]


def test_heretic_clips_exactly_the_dimensions_that_stand_out() -> None:
    found = mask_results.found()
    quantile = tomllib.loads(export("heretic", found))["winsorization_quantile"]
    state = torch.tensor([1.0, 2.0, 30.0, 3.0])
    limit = torch.quantile(state.abs(), quantile)
    assert float(limit) == pytest.approx(3.0, abs=1e-4)
    none = replace(found, about=replace(found.about, dims=()))
    assert tomllib.loads(export("heretic", none))["winsorization_quantile"] == 1.0


# --- in the tools, where they are installed --------------------------------------------------------------------------


@pytest.fixture
def planted(words: Any, tmp_path: Path) -> tuple[LoadedModel, Mask, str]:
    """A GPT-2 in a folder whose first token is a sink in dimension 3, and in which dimension 7 is large on every token."""
    model = build(FAMILIES["gpt2"], head="CausalLM")
    with torch.no_grad():
        model.transformer.wpe.weight[0, 3] = 500.0
        model.transformer.wpe.weight[:, 7] += 30.0
    loaded = from_objects(model, words(kind="causal"), name="planted")
    model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    found = mask(loaded, TEXTS, MaskOptions(layer=1))
    assert (found.positions, found.dims, found.path) == ((0,), (7,), "transformer.h.1")
    return loaded, found, str(tmp_path / "model")


def by_hand(loaded: LoadedModel, found: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    """(states of the first text behind block 1 without its first token, its logits with dimension 7 ablated there)."""
    read = loaded.tokenizer(TEXTS.texts[0], return_tensors="pt")
    with torch.no_grad():
        states = loaded.model(**read, output_hidden_states=True).hidden_states[2][0, 1:]
        with edited_hidden(loaded, {1: list(found.dims)}, "zero"):
            return states, loaded.model(**read).logits


def test_nnsight_runs_the_file(planted: Any, ran: Callable[..., dict[str, Any]]) -> None:
    nnsight: Any = pytest.importorskip("nnsight", minversion="0.8")
    loaded, found, folder = planted
    model, names = nnsight.LanguageModel(folder, dispatch=True), ran("nnsight", found)
    states, logits = by_hand(loaded, found)
    torch.testing.assert_close(names["short_states"](model, TEXTS.texts[0]), states)
    torch.testing.assert_close(names["ablated_logits"](model, TEXTS.texts[0]), logits)


def test_transformer_lens_runs_the_file(planted: Any, ran: Callable[..., dict[str, Any]]) -> None:
    pytest.importorskip("transformer_lens")
    from transformer_lens.model_bridge import TransformerBridge

    loaded, found, folder = planted
    model = TransformerBridge.boot_transformers(folder, tokenizer=loaded.tokenizer, device="cpu")
    names, ids = ran("transformer-lens", found), loaded.tokenizer(TEXTS.texts[0], return_tensors="pt")["input_ids"]
    states, logits = by_hand(loaded, found)
    with torch.no_grad():
        seen = model.run_with_cache(ids, names_filter=names["HOOK"])[1][names["HOOK"]]
        torch.testing.assert_close(seen[names["kept"](seen)], states)
        made = model.run_with_hooks(ids, fwd_hooks=[(names["HOOK"], names["ablate_outliers"])])
    torch.testing.assert_close(made, logits)


def test_saelens_trains_without_sinks(
    planted: Any, ran: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sae_lens: Any = pytest.importorskip("sae_lens")
    from datasets import Dataset
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    monkeypatch.chdir(tmp_path)  # its runner writes to a folder "output"
    loaded, found, _ = planted
    model: Any = HookedTransformer(HookedTransformerConfig(
        n_layers=3, d_model=WIDTH, n_ctx=WIDTH, d_head=8, n_heads=2, d_vocab=len(loaded.tokenizer), act_fn="gelu", seed=0,
    ))  # fmt: skip
    model.tokenizer = loaded.tokenizer
    with torch.no_grad():
        model.W_pos[0, 3] = 500.0
    data = Dataset.from_dict({"input_ids": [loaded.tokenizer(text)["input_ids"][:6] for text in TEXTS.texts]})
    names = ran("saelens", found)

    def runner(**settings: Any) -> Any:
        config = sae_lens.LanguageModelSAERunnerConfig(
            sae=sae_lens.StandardTrainingSAEConfig(d_in=WIDTH, d_sae=2 * WIDTH, normalize_activations="none"),
            model_name="planted", hook_name="blocks.1.hook_resid_post", dataset_path="none", context_size=6,
            training_tokens=64, train_batch_size_tokens=8, store_batch_size_prompts=4, n_batches_in_buffer=2,
            prepend_bos=False, logger=sae_lens.LoggingConfig(log_to_wandb=False), device="cpu", checkpoint_path=None,
            n_checkpoints=0, output_path=None, **settings,
        )  # fmt: skip
        return sae_lens.LanguageModelSAETrainingRunner(config, override_dataset=data, override_model=model)

    for settings in (
        {},
        names["SINKS"],
    ):  # with the first token, the norm alone decides; without it nothing is left out
        before, run = runner(**settings).activations_store.get_filtered_llm_batch(), runner(**settings)
        after = names["leave_out_sinks"](run.activations_store).get_filtered_llm_batch()
        sinks = 0 if settings else 4
        assert (len(before), int((~names["kept"](before)).sum())) == (20 + sinks, sinks)
        assert (len(after), int((~names["kept"](after)).sum())) == (20, 0)
    run.run()


def test_dictionary_learning_gives_out_no_sink(planted: Any, ran: Callable[..., dict[str, Any]]) -> None:
    pytest.importorskip("dictionary_learning")
    from nnsight import LanguageModel

    _, found, folder = planted
    model: Any = LanguageModel(folder, device_map="cpu", dispatch=True)
    model.tokenizer.pad_token = "[PAD]"
    names = ran("dictionary-learning", found, stands_in=False)
    n_sinks = []
    for kind in (names["ActivationBuffer"], names["ShortStates"]):
        settings = {"n_ctxs": 8, "ctx_len": 12, "refresh_batch_size": 4, "out_batch_size": 16}
        buffer = kind(iter(TEXTS.texts * 20), model, model.transformer.h[1], d_submodule=WIDTH, **settings)
        rows = torch.cat([next(buffer) for _ in range(6)])
        n_sinks.append(int((~names["kept"](rows)).sum()))
    assert n_sinks[0] > 0 == n_sinks[1]
