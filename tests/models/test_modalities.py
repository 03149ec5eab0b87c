"""`scan`, `observe`, `ablate` and `sweep` on pictures and recordings, against plain loops of transformers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import media_models as made
from outlierlens.ablation.modes import Switch
from outlierlens.ablation.switches import edited_hidden, zeroed_norms
from outlierlens.analyses.ablate import AblateOptions, ablate
from outlierlens.analyses.observe import observe
from outlierlens.analyses.scan import scan
from outlierlens.analyses.sweep.measure import sweep
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.data.media import LabelledItems, read_items
from outlierlens.data.media.read import ItemOptions
from outlierlens.data.texts import Texts
from outlierlens.detection.activations import ObserveOptions
from outlierlens.detection.rules import Rule
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadFile, BadInput, MissingExtra
from outlierlens.models.load import LoadedModel, LoadOptions, load_model
from outlierlens.models.media import Preparation
from outlierlens.results.document import from_json, to_json
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task

N = 30
UNLABELLED = ItemOptions(labelled=False)
KINDS = ("image", "audio")
PLAIN = LoadOptions(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models image, audio, group (normed over time), stable (pre-norm), and without a head; data-image, data-audio."""
    root = tmp_path_factory.mktemp("modalities")
    made.save_vit(root / "image")
    made.save_speech(root / "audio")
    made.save_speech(root / "group", norm="group")
    made.save_speech(root / "stable", stable=True)
    made.save_vit(root / "image-bare", head=False)
    made.save_speech(root / "audio-bare", head=False)
    made.write_pictures(root / "data-image", *made.pictures(N, seed=1))
    made.write_sounds(root / "data-audio", *made.sounds(N, seed=1))
    return root


@pytest.fixture(scope="module")
def models(folder: Path) -> Callable[[str], LoadedModel]:
    known: dict[str, LoadedModel] = {}

    def get(name: str) -> LoadedModel:
        if name not in known:
            known[name] = load_model(str(folder / name), PLAIN)
        return known[name]

    return get


@pytest.fixture(scope="module")
def data(folder: Path) -> dict[str, LabelledItems]:
    return {kind: read_items(kind, folder / f"data-{kind}") for kind in KINDS}  # type: ignore


class Oracle:
    """Each item by itself, decoded and prepared without our code: inputs, logits, states [layer][item]."""

    def __init__(self, kind: str, model_folder: Path, items: LabelledItems):
        import wave

        from PIL import Image
        from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoModelForAudioClassification
        from transformers import AutoModelForImageClassification as Images

        self.inputs = []
        if kind == "image":
            processor = AutoImageProcessor.from_pretrained(model_folder)
        else:
            extractor = AutoFeatureExtractor.from_pretrained(model_folder)
        for part in items.parts:
            if kind == "image":
                self.inputs.append(processor(Image.open(part.path), return_tensors="pt")["pixel_values"])
            else:
                with wave.open(str(part.path)) as file:
                    raw = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
                self.inputs.append(extractor(raw, sampling_rate=made.RATE, return_tensors="pt")["input_values"])
        loader = Images if kind == "image" else AutoModelForAudioClassification
        self.model = loader.from_pretrained(model_folder).eval()

    def logits(self, n: int = N) -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([self.model(one).logits for one in self.inputs[:n]])

    def states(self, n: int) -> list[np.ndarray]:
        """Of each layer, embeddings first, the vectors of the first items' tokens [token, dim]."""
        body = self.model.base_model
        blocks = body.layers if hasattr(body, "layers") else body.encoder.layers
        seen: dict[int, list[np.ndarray]] = {}

        def keep(layer: int, states: torch.Tensor) -> None:
            seen.setdefault(layer, []).append(states[0].double().numpy())

        hooks = [blocks[0].register_forward_pre_hook(lambda _, args: keep(-1, args[0]))]
        for layer, block in enumerate(blocks):
            hooks.append(block.register_forward_hook(lambda _, args, output, layer=layer: keep(layer, output)))
        self.logits(n)
        for hook in hooks:
            hook.remove()
        return [np.concatenate(seen[layer]) for layer in sorted(seen)]


@pytest.fixture(scope="module")
def oracles(folder: Path, data: dict[str, LabelledItems]) -> dict[str, Oracle]:
    return {
        name: Oracle(kind, folder / name, data[kind])
        for name, kind in (("image", "image"), ("audio", "audio"), ("group", "audio"), ("stable", "audio"))
    }


@pytest.mark.parametrize("name", ["image", "audio", "group", "stable"])
def test_accuracy_and_loss_equal_a_plain_loop(
    name: str, models: Callable[[str], LoadedModel], data: dict[str, LabelledItems], oracles: dict[str, Oracle]
) -> None:
    items = data["image" if name == "image" else "audio"]
    logits, truth = oracles[name].logits(), torch.tensor(items.labels)
    losses = torch.nn.functional.cross_entropy(logits, truth, reduction="none").numpy()
    right = (logits.argmax(1) == truth).float().mean().item()
    for batch_size in (1, 4):
        task: Any = make_task(models(name), items, TaskOptions(measure="loss", batch_size=batch_size))
        values, weights = task.per_text()
        assert np.allclose(values, losses, atol=1e-5)
        assert weights.tolist() == [1.0] * N
        assert task.also()["accuracy"] == pytest.approx(right)
    assert right > 0.85 or name in ("group", "stable")  # whose features the planted weights do not fit
    assert task.name == ("image-classification loss" if name == "image" else "audio-classification loss")
    sums = np.zeros(4)
    for feed in task.feeds([7, 3, 3, 20], tokens=40):
        np.add.at(sums, list(feed.slots), task.sums(feed).detach().numpy())
    assert np.allclose(sums, losses[[7, 3, 3, 20]], atol=1e-5)
    unequal = {len(one.values) for one in task.rows._kept.values()}
    assert len(unequal) > 1 or name == "image"
    assert any("only recordings of the same number of samples share a batch" in note for note in task.notes) == (
        name == "group"
    )


@pytest.mark.parametrize("name", ["image", "audio", "group", "stable"])
def test_statistics_count_every_token_and_no_padding(
    name: str, models: Callable[[str], LoadedModel], data: dict[str, LabelledItems], oracles: dict[str, Oracle]
) -> None:
    items = data["image" if name == "image" else "audio"]
    items = items.first(12)
    states = oracles[name].states(12)
    for batch_size in (1, 4):
        found = observe(models(name), items, ObserveOptions(batch_size=batch_size, passage_tokens=2 * (batch_size > 1)))
        view = found.stacks[0].view()
        assert found.about.n_tokens == len(states[0])
        assert found.stacks[0].layers == ("embeddings", "0", "1", "2")
        for row, vectors in enumerate(states):
            assert np.allclose(view.mean[row], vectors.mean(0), atol=1e-5)
            assert np.allclose(view.abs_max[row], np.abs(vectors).max(0), atol=1e-5)
            assert np.allclose(
                view.argmax_share[row], np.bincount(vectors.argmax(1), minlength=made.WIDTH) / len(vectors)
            )
    assert found.about.inputs == ("images" if name == "image" else "recordings")
    assert found.n_special == (12 if name == "image" else 0)
    without = found.stacks[0].view("without_special").tokens
    assert without.tolist() == [found.about.n_tokens - found.n_special] * 4
    assert from_json(to_json(found)).about == found.about


def test_tokens_are_named_by_place(models: Callable[[str], LoadedModel], data: dict[str, LabelledItems]) -> None:
    seen = observe(models("image"), data["image"].first(3)).passages[0]
    assert seen.tokens[:6] == ("[CLS]", "patch 0,0", "patch 0,1", "patch 0,2", "patch 0,3", "patch 1,0")
    heard = observe(models("audio"), data["audio"].first(3), ObserveOptions(passage_tokens=4)).passages[0]
    assert heard.tokens == ("0.00 s", "0.01 s", "0.02 s", "0.02 s")  # 8 samples a token, 1,000 a second
    assert heard.states.shape == (3, 4, made.WIDTH)


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_dimension_is_found_by_weights_and_by_damage(
    kind: str, folder: Path, models: Callable[[str], LoadedModel], data: dict[str, LabelledItems]
) -> None:
    found = scan(str(folder / kind)).stacks[0]
    assert found.dims == (made.PLANTED, made.INERT)
    damage = ablate(models(kind), data[kind], [made.PLANTED], AblateOptions(n_random=9, n_matched=3))
    assert damage.about.inputs == f"{'images' if kind == 'image' else 'recordings'}"
    assert (damage.about.task, damage.about.metric) == (f"{kind}-classification accuracy", "accuracy")
    assert damage.intact.value.value == pytest.approx(0.1)
    assert damage.chosen.change.value >= 0.35
    assert damage.chosen.change.low > 0.05
    assert {control.family: control.p for control in damage.families} == {
        "random": 0.1,
        "ordinary": None,
        "matched": None,
    }
    assert [control.mean for control in damage.families] == pytest.approx([0, 0, 0], abs=0.05)
    assert damage.replies == ()
    inert = ablate(models(kind), data[kind], [made.INERT], AblateOptions(n_random=0, n_matched=0))
    assert inert.chosen.change.value == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("measure", ["metric", "loss"])
def test_a_sweep_finds_the_planted_dimension(
    kind: str, measure: Any, models: Callable[[str], LoadedModel], data: dict[str, LabelledItems]
) -> None:
    options = SweepOptions(n_random=3, n_matched=2, task=TaskOptions(measure=measure))
    swept = sweep(models(kind), data[kind], options)
    assert swept.top(1)[0].dims in ((made.PLANTED,), (made.PLANTED, made.INERT))
    by_dim = {effect.dims: effect for effect in swept.effects}
    assert by_dim[made.PLANTED,].p == pytest.approx(1 / made.WIDTH)
    assert swept.found == (made.PLANTED, made.INERT)
    assert not swept.notes  # batches mix ablations, and passes start behind the first touched layer
    if measure == "metric":  # which is of all items
        alone = ablate(models(kind), data[kind], [made.PLANTED], AblateOptions(n_random=0, n_matched=0))
        assert by_dim[made.PLANTED,].change.value == pytest.approx(alone.chosen.change.value)
    longest = make_task(models(kind), data[kind]).lengths.max()
    assert swept.text == (
        "image of 17 tokens" if kind == "image" else f"recording of at most 30 seconds, {longest} tokens"
    )


def test_windows_of_layers_and_models_normed_over_time(
    models: Callable[[str], LoadedModel], data: dict[str, LabelledItems]
) -> None:
    options = SweepOptions(
        dims=(made.PLANTED,), windows="single", n_random=0, n_matched=0, with_found=False, exact=True,
        task=TaskOptions(measure="loss"),
    )  # fmt: skip
    items = data["audio"].first(6)
    swept = sweep(models("group"), items, options)
    for effect in swept.effects:
        alone = ablate(
            models("group"),
            items,
            effect.dims,
            AblateOptions(layers=effect.layers, n_random=0, n_matched=0, task=options.task),
        )
        assert effect.change.value == pytest.approx(alone.chosen.change.value, abs=1e-6)
    assert {effect.window for effect in swept.effects} == {"layer 0", "layer 1", "layer 2"}
    assert any("only recordings of the same number of samples" in note for note in swept.notes)


def test_the_norms_of_the_released_code_are_zeroed_and_put_back(models: Callable[[str], LoadedModel]) -> None:
    model = models("image").model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    off = {f"vit.layers.{layer}.layernorm_{site}" for layer in range(made.LAYERS) for site in ("before", "after")}
    with zeroed_norms(models("image"), [7, made.PLANTED]) as n_values:
        assert n_values == 2 * 2 * (2 * made.LAYERS + 1)
        for name, value in model.state_dict().items():
            norm = name.rpartition(".")[0]
            changed = before[name].clone()
            if norm in {*off, "vit.layernorm"}:
                changed[[7, made.PLANTED]] = 0
            assert torch.equal(value, changed), name
    with zeroed_norms(models("image"), [7], layers=[0]) as n_values:
        assert n_values == 2 * 2  # the final norm goes with the last layer
    with pytest.raises(RuntimeError, match="stop"), zeroed_norms(models("image"), [7]):
        raise RuntimeError("stop")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with zeroed_norms(models("audio"), [7]) as n_values:
        assert n_values == 2 * 2 * made.LAYERS  # post-norm: layer_norm and final_layer_norm, no norm behind the blocks


@pytest.mark.parametrize("mode", ["norms", "zero", "mean", "scale:-1", "resample", "writes"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_ablation_works_on_items(
    kind: str, mode: Any, models: Callable[[str], LoadedModel], data: dict[str, LabelledItems]
) -> None:
    options = AblateOptions(modes=(mode,), n_random=0, n_matched=0)
    damage = ablate(models(kind), data[kind], [made.PLANTED], options)
    kept = kind == "audio" and mode == "writes"  # a norm's scale brings on what the embeddings wrote
    assert damage.chosen.change.value == pytest.approx(0, abs=0.05) if kept else damage.chosen.change.value > 0.2
    if mode == "mean":
        assert any("all tokens of each of these" in note for note in damage.notes)


def test_resampling_never_draws_padding(models: Callable[[str], LoadedModel], data: dict[str, LabelledItems]) -> None:
    loaded, items = models("audio"), data["audio"]
    prepare = Preparation(loaded, "audio")
    longest = max(items.parts, key=lambda part: len(part.content()))
    shortest = min(items.parts, key=lambda part: len(part.content()))
    batch = prepare.batch([prepare(part, max_seconds=30) for part in (longest, shortest)], (0, 1))
    assert not batch.valid.all()
    seen: list[torch.Tensor] = []
    block = loaded.model.get_submodule(loaded.stack().blocks[-1])
    last = block.register_forward_hook(lambda *_: seen.append(_[2]))
    with torch.inference_mode():
        loaded.model(**batch.inputs)
        last.remove()
        with edited_hidden(loaded, [made.PLANTED], "resample", layers=[made.LAYERS - 1]):
            last = block.register_forward_hook(lambda *_: seen.append(_[2]))
            loaded.model(**batch.inputs)
            last.remove()
    before, after = (states[..., made.PLANTED] for states in seen)
    assert torch.equal(before[~batch.valid], after[~batch.valid])
    assert torch.equal(before[batch.valid].sort().values, after[batch.valid].sort().values)
    assert not torch.equal(before[batch.valid], after[batch.valid])


@pytest.mark.parametrize("kind", KINDS)
def test_models_without_a_head_change_their_outputs(
    kind: str, folder: Path, models: Callable[[str], LoadedModel], data: dict[str, LabelledItems]
) -> None:
    loaded = models(f"{kind}-bare")
    items = read_items(kind, folder / f"data-{kind}", ItemOptions(labelled=False, limit=9))  # type: ignore[arg-type]
    found = [
        ablate(loaded, items, [made.PLANTED], AblateOptions(n_random=0, n_matched=0, task=TaskOptions(batch_size=size)))
        for size in (1, 4)
    ]
    assert [(one.about.task, one.about.unit) for one in found] == [("output change", "cosine distance")] * 2
    assert found[0].intact.value.value == pytest.approx(0, abs=1e-6)
    assert found[0].chosen.change.value > 1e-4
    assert found[0].chosen.per_text == pytest.approx(found[1].chosen.per_text, abs=1e-6)
    with_head = ablate(models(kind), items, [made.PLANTED], AblateOptions(n_random=0, n_matched=0))
    assert with_head.about.unit == "KL divergence (nats)"
    with pytest.raises(BadInput, match=rf"without a head for {kind}-classification; use a model that was fine-tuned"):
        ablate(loaded, data[kind], [1])
    with pytest.raises(BadInput, match="'masked loss' is a task of texts"):
        make_task(loaded, items, TaskOptions(name="masked loss"))


def test_labels_are_matched_by_name(folder: Path, tmp_path: Path, data: dict[str, LabelledItems]) -> None:
    loaded = load_model(str(made.save_vit(tmp_path / "named", names=("Blue", "RED"))), PLAIN)
    accuracy = make_task(loaded, data["image"])
    accuracy.per_text()
    loaded.model.config.id2label = {0: "red", 1: "blue"}  # type: ignore[union-attr]
    turned = make_task(loaded, data["image"])
    turned.per_text()
    assert (accuracy.also()["accuracy"], turned.also()["accuracy"]) == pytest.approx((0.9, 0.1))
    loaded.model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}  # type: ignore[union-attr]
    with pytest.raises(BadInput, match=r"does not say what they mean.*labels="):
        make_task(loaded, data["image"])
    given = make_task(loaded, data["image"], TaskOptions(labels=("blue", "red")))
    given.per_text()
    assert given.also()["accuracy"] == pytest.approx(0.9)
    loaded.model.config.id2label = {0: "cat", 1: "dog"}  # type: ignore[union-attr]
    with pytest.raises(BadInput, match="has the classes cat, dog, which are not those of image-classification"):
        make_task(loaded, data["image"])


def test_data_may_hold_some_of_a_models_classes(tmp_path: Path, data: dict[str, LabelledItems]) -> None:
    loaded = load_model(str(made.save_vit(tmp_path / "more", names=("blue", "red", "green"))), PLAIN)
    task: Any = make_task(loaded, data["image"])
    task.per_text()
    assert task.examples.task.labels == ("blue", "red", "green")
    assert task.also()["accuracy"] == pytest.approx(0.9, abs=0.05)


def test_what_does_not_fit_is_named(
    folder: Path, tmp_path: Path, models: Callable[[str], LoadedModel], data: dict[str, LabelledItems],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with pytest.raises(
        BadInput, match=r"does not read recordings .it takes pixel_values.; use a model that takes input_values"
    ):
        observe(models("image"), data["audio"])
    made.write_wav(tmp_path / "w" / "low" / "a.wav", np.zeros(200), rate=8000)
    with pytest.raises(BadInput, match=r"a\.wav: 8,000 samples per second; .* reads 1,000; resample it first"):
        observe(models("audio"), read_items("audio", tmp_path / "w"))
    made.write_wav(tmp_path / "short" / "a.wav", np.zeros(50))
    made.write_wav(tmp_path / "short" / "b.wav", np.zeros(5))
    with pytest.raises(BadInput, match=r"b\.wav: 5 samples are too few for one token; leave it out"):
        make_task(models("audio"), read_items("audio", tmp_path / "short", UNLABELLED))
    monkeypatch.setattr(models("image").processor, "size", {"height": 8, "width": 8})
    with pytest.raises(BadInput, match=r"makes \[3, 8, 8\] of it, .* reads \[3, 16, 16\]"):
        observe(models("image"), data["image"])
    monkeypatch.undo()
    for name, message in (
        ("image", "has no image processor beside it"),
        ("audio", "has no feature extractor beside it"),
    ):
        made.save_vit(tmp_path / name) if name == "image" else made.save_speech(tmp_path / name)
        (tmp_path / name / "preprocessor_config.json").write_text("{")
        with pytest.raises(BadFile, match="its processor cannot be read"):
            load_model(str(tmp_path / name), PLAIN)
        (tmp_path / name / "preprocessor_config.json").unlink()
        with pytest.raises(BadInput, match=message):
            observe(load_model(str(tmp_path / name), PLAIN), data[name])
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"reading images needs PIL.*pip install '\.\[vision\]'"):
        observe(models("image"), data["image"])


def test_long_recordings_are_cut_and_that_is_said(
    folder: Path, models: Callable[[str], LoadedModel], data: dict[str, LabelledItems]
) -> None:
    items = read_items("audio", folder / "data-audio", ItemOptions(max_seconds=0.08))
    n_cut = sum(len(part.content()) - 44 > 160 for part in items.parts)  # 44 bytes of header, 2 a sample
    assert 0 < n_cut < N
    found = observe(models("audio"), items)
    assert f"{n_cut} recordings are longer than is read of one, and were cut" in found.notes
    task: Any = make_task(models("audio"), items)
    assert task.notes == (f"{n_cut} of {N} recordings are longer than 0.08 s, and were cut",)
    assert task.lengths.max() == 10


def test_what_is_not_kept_is_prepared_again(
    models: Callable[[str], LoadedModel], data: dict[str, LabelledItems], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_task(models("image"), data["image"], TaskOptions(measure="loss")).per_text()[0]
    monkeypatch.setattr("outlierlens.models.media.KEPT_BYTES", 5000)
    task: Any = make_task(models("image"), data["image"], TaskOptions(measure="loss"))
    assert len(task.rows._kept) == 1
    assert np.array_equal(task.per_text()[0], whole)


def test_a_model_with_dimensions_off_is_saved_with_its_processor(
    tmp_path: Path, models: Callable[[str], LoadedModel], data: dict[str, LabelledItems]
) -> None:
    options = AblateOptions(modes=("norms",), n_random=0, n_matched=0)
    damage = ablate(models("image"), data["image"], [made.PLANTED], options)
    switch = Switch(models("image"), models("image").stack(), "norms")
    assert switch.save(damage.chosen.plan, tmp_path / "off") == 2 * (2 * made.LAYERS + 1)
    again = make_task(load_model(str(tmp_path / "off"), PLAIN), data["image"])
    again.per_text()
    assert 1 - again.also()["accuracy"] == pytest.approx(damage.chosen.value.value)


def test_puccetti_s_rule_finds_what_stands_out_in_the_norms_that_vit_reads_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.numpy import load_file, save_file

    monkeypatch.setattr(made, "LAYERS", 5)  # the rule wants more than three
    made.save_vit(tmp_path / "vit", planted=False)
    file = tmp_path / "vit" / "model.safetensors"
    tensors = load_file(file)
    random = np.random.default_rng(0)
    for name in (name for name in tensors if ".layernorm_after." in name):
        tensors[name] = random.normal(1.0 if name.endswith("weight") else 0.0, 0.05, made.WIDTH).astype(np.float32)
        tensors[name][7] += 2.0
    save_file(tensors, file, {"format": "pt"})
    options = ScanOptions(rule=Rule("puccetti"), view="reading")
    before, after = scan(str(tmp_path / "vit"), options).stacks
    assert (before.site, after.site) == ("layernorm_before", "layernorm_after")
    assert (before.dims, after.dims) == ((), (7,))
    (outlier,) = after.outliers
    assert outlier.layers_scale == outlier.layers_bias == tuple(range(made.LAYERS))


def test_a_sweep_goes_on(folder: Path, tmp_path: Path, run: Any, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLIERLENS_RUNS", str(tmp_path))
    code, out, _ = run(
        "sweep", str(folder / "audio"), "--task", "audio-classification", "--data", str(folder / "data-audio"), "--dims",
        "11,4", "--no-found-set", "--random", "2", "--matched", "0", "--json", "--device", "cpu", "--dtype",
        "float32",
    )  # fmt: skip
    assert code == 0
    swept = from_json(out)
    assert swept.about.metric == "accuracy"
    (file,) = (tmp_path / "audio-sweep").glob("*.jsonl")
    rows = file.read_text()
    options = SweepOptions(
        dims=(11, 4), with_found=False, n_random=2, n_matched=0, task=TaskOptions("labelled", True, 256)
    )
    again = sweep(models("audio"), read_items("audio", folder / "data-audio"), options, rows=file)
    assert file.read_text() == rows
    assert [effect.change for effect in again.effects] == [effect.change for effect in swept.effects]
    with pytest.raises(BadInput, match="other"):
        sweep(models("audio"), read_items("audio", folder / "data-audio", ItemOptions(limit=9)), options, rows=file)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--task", "image-classification"), "--task image-classification needs your own data: --data FOLDER"),
        (("--task", "image-classification", "--data", "X", "--max-length", "9"), "--max-length counts tokens of texts"),
        (
            ("--task", "image-classification", "--data", "X:seconds=9"),
            "--data seconds belongs to recordings",
        ),
        (("--data", "seconds=9"), "--data seconds belongs to recordings"),
        (("--task", "image-classification:pair=b", "--data", "X"), "--task pair"),
        (
            ("--task", "audio-classification", "--data", "X:seconds=0"),
            "--data seconds is 0.0; it must be more than",
        ),
        (
            ("--task", "audio-classification:metric=pearson", "--data", "X"),
            "task classify has no metric 'pears",
        ),
    ],
)
def test_options_that_do_not_belong_are_refused(words: tuple[str, ...], message: str, folder: Path, run: Any) -> None:
    given = [str(folder / "data-audio") if word == "X" else word for word in words]
    code, _, err = run("ablate", str(folder / "image"), "--dims", "1", *given)
    assert code == (2 if "X:seconds=0" in words else 1)
    assert message in err


# --- recordings read as features, by an encoder and a decoder ---------------------------------------------------------

SAID = ("low", "", "a high tone", "hm")


def _both_sides(model: Any, features: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, dict[str, list[Any]]]:
    """(logits [token, word], states of each layer, embeddings first [token, dim], by stream) of one recording."""
    seen: dict[str, list[Any]] = {"encoder": [], "decoder": []}
    hooks = []
    for name, layers in seen.items():
        blocks = model.get_submodule(f"model.{name}.layers")
        hooks.append(blocks[0].register_forward_pre_hook(lambda _, args, layers=layers: layers.append(args[0][0])))
        for one in blocks:
            hooks.append(one.register_forward_hook(lambda *found, layers=layers: layers.append(found[2][0])))
    with torch.no_grad():
        logits = model(input_features=features, decoder_input_ids=ids).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, seen


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Any, list[Any], dict[str, list[Any]]]:
    """(the model, recordings some with a transcript, logits [token, word] of each, states [layer, token, dim] by stream)."""
    from transformers import AutoFeatureExtractor, AutoTokenizer, WhisperForConditionalGeneration

    folder = tmp_path_factory.mktemp("whisper")
    made.save_whisper(folder / "model")
    random = np.random.default_rng(3)
    recordings = [0.2 * random.standard_normal(length).astype(np.float32) for length in (5000, 14000, 9600, 8000)]
    for number, (samples, said) in enumerate(zip(recordings, SAID, strict=True)):
        made.write_wav(folder / "data" / f"{number}.wav", samples, rate=16_000)
        if said:
            (folder / "data" / f"{number}.txt").write_text(said + "\n", "utf-8")
    extractor = AutoFeatureExtractor.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = WhisperForConditionalGeneration.from_pretrained(folder / "model").eval()
    logits, states = [], dict[str, list[Any]](encoder=[], decoder=[])
    for samples, said in zip(recordings, SAID, strict=True):
        rounded = (np.round(samples.astype(np.float64) * 32767) / 32768).astype(np.float32)
        features = extractor(rounded, sampling_rate=16_000, return_tensors="pt").input_features
        ids = torch.tensor([[1, *(tokenizer(said).input_ids if said else ())]])
        said_logits, seen = _both_sides(model, features, ids)
        logits.append(said_logits)
        for name, layers in seen.items():
            states[name].append(torch.stack(layers).double().numpy())
    return load_model(str(folder / "model"), PLAIN), read_items("audio", folder / "data", UNLABELLED), logits, states


@pytest.mark.parametrize("batch_size", [1, 4])
def test_both_sides_of_a_model_of_features_are_observed(whisper: Any, batch_size: int) -> None:
    loaded, items, _, states = whisper
    found = observe(loaded, items, ObserveOptions(batch_size=batch_size, passage_tokens=3))
    assert [one.stack for one in found.stacks] == ["encoder", "decoder"]
    for one in found.stacks:
        vectors = np.concatenate(states[one.stack], axis=1)  # [layer, token, dim]
        assert one.view().tokens.tolist() == [vectors.shape[1]] * len(vectors)
        assert np.allclose(one.view().mean, vectors.mean(1), rtol=1e-4, atol=1e-4)
        assert np.allclose(one.view().abs_max, np.abs(vectors).max(1), rtol=1e-5, atol=1e-5)
    encoder, decoder = found.stacks
    heard = sum(int(np.ceil(len(recording_of(part)) / 320)) for part in items.parts)  # a token is of 20 ms
    assert encoder.view("without_special").tokens[0] == heard
    assert decoder.view("without_special").tokens[0] == sum(len(said.replace(" ", "")) for said in SAID)
    assert (encoder.peak.dim, encoder.peak.layer) == (made.SOURCE, "1")
    assert encoder.peak.token == f"{encoder.peak.position * 0.02:.2f} s"
    assert [passage.tokens for passage in found.passages] == [("0.00 s", "0.02 s", "0.04 s"), ("<s>", "l", "o")]
    assert any("padded with silence" in note for note in found.notes)
    assert any("read the transcripts" in note for note in found.notes)
    assert any("recordings without a transcript" in note for note in found.notes)


def recording_of(part: Any) -> np.ndarray:
    from outlierlens.data.media.items import recording

    return recording(part.content(), part.name, max_seconds=30).samples


def test_ranges_hold_both_sides_and_the_logits(whisper: Any) -> None:
    from outlierlens import range_of

    loaded, items, logits, states = whisper
    ranges = range_of(loaded, items)
    assert " s') of recording " in next(iter(ranges.sentences()))
    found = {(row.stack, row.kind, row.layer): row for row in ranges.tensors}
    for stream, every in states.items():
        for layer, name in ((1, "0"), (len(every[0]) - 1, str(len(every[0]) - 2))):
            largest = max(float(np.abs(one[layer]).max()) for one in every)
            assert found[stream, "stream", name].largest == pytest.approx(largest, rel=1e-5)
    row = found["encoder", "stream", "1"]
    assert row.dim == made.SOURCE
    assert row.fp16 < 1
    assert found["decoder", "logits", "head"].largest == pytest.approx(
        max(float(one.abs().max()) for one in logits), rel=1e-5
    )
    assert found["decoder", "stream", "1"].word in ("<s>", *"abcdefghijklmnopqrstuvwxyz")


@pytest.mark.parametrize("stream", ["encoder", "decoder"])
def test_outputs_of_a_decoder_change_as_by_hand(whisper: Any, stream: str) -> None:
    loaded, items, logits, _ = whisper
    options = AblateOptions(stack=stream, n_random=0, n_matched=0, task=TaskOptions(batch_size=2))
    found = ablate(loaded, items, [made.SOURCE], options)
    assert (found.about.unit, found.about.n_tokens) == ("KL divergence (nats)", sum(map(len, logits)))
    by_hand = []
    with zeroed(loaded, stream), torch.no_grad():
        for part, intact in zip(items.parts, logits, strict=True):
            ids = torch.tensor([[1, *(loaded.tokenizer(part.transcript).input_ids if part.transcript else ())]])
            features = loaded.processor(recording_of(part), sampling_rate=16_000, return_tensors="pt").input_features
            now = loaded.model(input_features=features, decoder_input_ids=ids).logits[0].log_softmax(-1)
            before = intact.log_softmax(-1)
            by_hand.append(float((before.exp() * (before - now)).sum(-1).mean()))
    assert found.chosen.per_text == pytest.approx(by_hand, rel=1e-3, abs=1e-6)
    assert max(by_hand) > 1e-4
    with_mean = ablate(
        loaded, items, [made.SOURCE], AblateOptions(stack=stream, modes=("mean",), n_random=0, n_matched=0)
    )
    assert with_mean.chosen.change.value >= 0


def zeroed(loaded: LoadedModel, stream: str) -> Any:
    from outlierlens.ablation.switches import zeroed_weights

    return zeroed_weights(loaded, [made.SOURCE], stack=stream)


def test_an_encoder_of_features_is_traced(whisper: Any) -> None:
    from outlierlens import trace

    loaded, items, *_ = whisper
    found = trace(loaded, items, stack="encoder", n_random=1)
    assert found.dim == made.SOURCE
    with pytest.raises(BadInput, match="does not read images"):
        observe(loaded, read_items("image", _picture(loaded), UNLABELLED))
    for stacks in (loaded.stacks, loaded.stacks[1:]):  # as of a row that names the decoder alone
        with pytest.raises(BadInput, match=r"does not read text .it takes input_features.; give it recordings"):
            observe(replace(loaded, stacks=stacks), Texts("words", ("low", "high")))


def _picture(loaded: LoadedModel) -> Path:
    folder = Path(loaded.name).parent / "pictures"
    made.write_pictures(folder, *made.pictures(1, seed=0))
    return folder


def test_an_extractor_of_another_model_is_named(whisper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import WhisperFeatureExtractor

    loaded, items, *_ = whisper
    other = WhisperFeatureExtractor(feature_size=5, chunk_length=1)
    with pytest.raises(BadInput, match=r"does not run by itself on what the feature extractor makes.*\[5, 100\]"):
        observe(replace(loaded, processor=other), items)
