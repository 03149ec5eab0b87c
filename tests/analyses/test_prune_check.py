"""What a pruning removed: masks and models of every kind, against counts made by hand; the picture and tables."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch.nn.utils import prune

from architectures import FAMILIES, build
from mixtures import DIM, EXPERT, NAME, NEURON, last_of, mixture
from outlierlens.ablation.switches import zero_weights_
from outlierlens.analyses.prune import PositionCheck, PruneCheck, PruneCheckOptions, prune_check
from outlierlens.analyses.prune_guard import Removal, same_position_guard
from outlierlens.checkpoints import open_checkpoint
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadFile, BadInput, Offline, UnknownModel

OUTLIERS = PruneCheckOptions(dims=(3,))


def hits(found: PruneCheck) -> list[PositionCheck]:
    return found.outliers(found.streams[0])


def broken_outliers(found: PruneCheck) -> tuple[int, ...]:
    return tuple(one.dim for one in hits(found) if one.dim in found.streams[0].broken)


NORMS = "encoder.layer.{}.output.LayerNorm.{}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Saved tiny models: make("bert") intact; make("bert", edit) changed by `edit(model)`, each its own folder."""
    root = tmp_path_factory.mktemp("models")

    def make(family: str, edit: Any = None, name: str = "intact", head: str = "") -> str:
        path = root / f"{family}{head}-{name}"
        if not path.exists():
            model = build(FAMILIES[family], head)
            if edit:
                edit(model)
            model.save_pretrained(path)
        return str(path)

    return make


def masks_of(dims: dict[int, tuple[int, ...]], scale_only: bool = False) -> dict[str, np.ndarray]:
    """Masks of a BERT's output norms with these positions gone, {layer: positions}."""
    masks = {}
    for layer in range(3):
        for leaf in ("weight", "bias"):
            mask = np.ones(16, bool)
            if leaf == "weight" or not scale_only:
                mask[list(dims.get(layer, ()))] = False
            masks[NORMS.format(layer, leaf)] = mask
    return masks


@pytest.mark.parametrize(("family", "values"), [("bert", 2), ("gpt2", 64), ("llama", 24), ("gemma2", 1)])
def test_newly_zero_values_of_a_model(family: str, values: int, folder: Any) -> None:
    def edit(model: Any) -> None:
        zero_weights_(model, [3, 5], layers=[0, 2])
        zero_weights_(model, [7], layers=[1])

    found = prune_check(folder(family), folder(family, edit, "pruned"), OUTLIERS)
    (stack,) = found.streams
    assert found.evidence == "models"
    assert list(stack.layers_removed) == [2 if d in (3, 5) else 1 if d == 7 else 0 for d in range(16)]
    assert (stack.n_layers, stack.needed, stack.broken, broken_outliers(found)) == (3, 2, (3, 5), (3,))
    assert hits(found)[0].layers == (0, 2)
    assert hits(found)[0].share == pytest.approx(2 / 3)
    per_cell = {"gpt2": 24}.get(family, values)
    assert stack.values_removed == 5 * per_cell
    assert stack.values == 3 * 16 * per_cell
    assert not found.holds
    assert found.verdict == (
        "broken: safe to prune except 3 (outlier), 5, removed in up to 2 of 3 layers (the constraint allows fewer than 2); "
        "no single weight is an outlier in the MLPs"
    )
    assert found.bytes_read < found.total_bytes
    three = PruneCheckOptions(rule=Removal(min_layer_fraction=1.0), dims=(3,))
    again = prune_check(folder(family), folder(family, edit, "pruned"), three)
    assert again.holds
    assert (
        again.verdict
        == "holds: no position is removed in 3 of 3 layers or more; outliers removed in some layers: 3 (2); "
        "no single weight is an outlier in the MLPs"
    )


def test_a_model_against_itself_is_untouched_and_its_own_zeros_are_not_new(folder: Any) -> None:
    found = prune_check(folder("bert"), folder("bert"))
    assert found.holds
    assert found.streams[0].values_removed == 0
    zeroed = folder("bert", lambda m: zero_weights_(m, [3]), "three off")
    assert prune_check(zeroed, zeroed, OUTLIERS).streams[0].values_removed == 0
    five = folder("bert", lambda m: zero_weights_(m, [3, 5]), "three and five off")
    assert prune_check(zeroed, five, OUTLIERS).streams[0].broken == (5,)


WRITERS: dict[str, Any] = {
    "safetensors": lambda path, masks: save_file(masks, path),
    "bytes.safetensors": lambda path, masks: save_file({k: v.astype(np.uint8) for k, v in masks.items()}, path),
    "floats.safetensors": lambda path, masks: save_file(
        {f"{k}_mask": v.astype(np.float32) for k, v in masks.items()}, path
    ),
    "headed.safetensors": lambda path, masks: save_file({f"bert.{k}_mask": v for k, v in masks.items()}, path),
    "pt": lambda path, masks: torch.save({k: torch.from_numpy(v) for k, v in masks.items()}, path),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_masks_in_files_of_every_kind(kind: str, folder: Any, tmp_path: Path) -> None:
    path = tmp_path / f"masks.{kind}"
    WRITERS[kind](path, masks_of({0: (3,), 1: (3, 9), 2: (9, 4)}))
    found = prune_check(folder("bert"), str(path), OUTLIERS)
    assert found.evidence == "masks"
    assert list(found.streams[0].layers_removed) == [0, 0, 0, 2, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]
    assert found.streams[0].broken == (3, 9)
    headed = prune_check(folder("bert", name="headed", head="MaskedLM"), str(path), OUTLIERS)
    assert headed.streams[0].broken == (3, 9)


def test_weights_need_a_config_beside_them(tmp_path: Path) -> None:
    path = str(tmp_path / "weights.safetensors")
    save_file({"a.weight": np.ones(2)}, path)
    with pytest.raises(BadInput, match=r"lay its config\.json beside it"):
        prune_check(path, path)


def test_bias_and_scale_are_both_asked_for(folder: Any, tmp_path: Path) -> None:
    path = tmp_path / "masks.safetensors"
    save_file(masks_of({0: (3,), 1: (3,), 2: (3,)}, scale_only=True), path)
    found = prune_check(folder("bert"), str(path), OUTLIERS)
    assert found.holds
    assert found.streams[0].definition == "scale and bias of the output norm zero"
    assert hits(found)[0].share == 0.5


@pytest.mark.parametrize(("fraction", "removed"), [(1.0, 0), (0.9, 1), (0.5, 3)])
def test_a_share_of_a_row_can_be_enough(fraction: float, removed: int, folder: Any, tmp_path: Path) -> None:
    masks = {f"layers.{layer}.mlp.down_proj.weight": np.ones((16, 24), np.uint8) for layer in range(3)}
    masks["layers.0.mlp.down_proj.weight"][3, :22] = 0  # 91.7 %
    masks["layers.1.mlp.down_proj.weight"][3, :21] = 0  # 87.5 %
    masks["layers.2.mlp.down_proj.weight"][3, :12] = 0  # half
    path = tmp_path / "masks.safetensors"
    save_file(masks, path)
    rule = Removal(row_fraction=fraction)
    found = prune_check(folder("llama"), str(path), PruneCheckOptions(rule=rule, dims=(3,)))
    assert found.streams[0].layers_removed[3] == removed
    assert found.holds is (removed < 2)


def test_masks_of_a_state_dict_of_torch_pruning(folder: Any, tmp_path: Path) -> None:
    model = build(FAMILIES["bert"])
    for layer in range(3):
        norm = model.get_submodule(f"encoder.layer.{layer}.output.LayerNorm")
        mask = torch.ones(16)
        mask[[2, 3]] = 0
        for leaf in ("weight", "bias"):
            prune.custom_from_mask(norm, leaf, mask)
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    assert "encoder.layer.0.output.LayerNorm.weight_orig" in state
    torch.save(state, tmp_path / "pruned.pt")
    save_file({name: value.numpy() for name, value in state.items()}, tmp_path / "pruned.safetensors")
    for name in ("pruned.pt", "pruned.safetensors"):
        found = prune_check(folder("bert"), str(tmp_path / name), OUTLIERS)
        assert (found.evidence, found.streams[0].broken) == ("masks", (2, 3))


def test_outliers_are_those_of_the_intact_weights(folder: Any) -> None:
    def plant(model: Any) -> None:
        for layer in range(3):
            norm = model.get_submodule(f"encoder.layer.{layer}.output.LayerNorm")
            with torch.no_grad():
                norm.weight[6], norm.bias[6] = 50.0, 50.0

    def both(model: Any) -> None:
        plant(model)
        zero_weights_(model, [6], layers=[0, 1])

    found = prune_check(folder("bert", plant, "planted"), folder("bert", both, "planted and pruned"))
    assert found.streams[0].named_by == "the scan of the weights, at 3 sigma"
    assert [hit.dim for hit in hits(found)] == [6]
    assert broken_outliers(found) == (6,)


def test_the_constraint_can_be_about_outliers_alone(folder: Any) -> None:
    pruned = folder("bert", lambda m: zero_weights_(m, [5]), "five off")
    rule = Removal(only_outliers=True)
    found = prune_check(folder("bert"), pruned, PruneCheckOptions(rule=rule, dims=(3,)))
    assert found.holds
    assert found.verdict == (
        "holds: no outlier is removed in 2 of 3 layers or more; 1 other positions are; "
        "no single weight is an outlier in the MLPs"
    )
    assert not prune_check(folder("bert"), pruned, PruneCheckOptions(rule=rule, dims=(5,))).holds


def test_a_narrower_mlp_loses_what_its_rows_no_longer_have(folder: Any, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    tensors = load_file(Path(folder("llama")) / "model.safetensors")
    config = json.loads((Path(folder("llama")) / "config.json").read_text()) | {"intermediate_size": 6}
    for name, values in tensors.items():
        if "mlp." in name:
            tensors[name] = np.ascontiguousarray(values[:, :6] if "down" in name else values[:6])
    tensors["layers.1.mlp.down_proj.weight"][4] = 0
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = prune_check(folder("llama"), str(tmp_path), OUTLIERS)
    assert list(found.streams[0].layers_removed) == [0, 0, 0, 0, 1] + [0] * 11
    assert hits(found)[0].share == pytest.approx(18 / 24)
    most = prune_check(folder("llama"), str(tmp_path), PruneCheckOptions(rule=Removal(row_fraction=0.75), dims=(3,)))
    assert len(most.streams[0].broken) == 16
    whole = folder("llama", carrying, "carrying")
    assert "which ones are left cannot be told from the files" in prune_check(whole, str(tmp_path), OUTLIERS).verdict


def carrying(model: Any) -> None:
    """Neuron 7 of layer 1 can become far larger than all others, and writes through one weight, to dimension 5."""
    with torch.no_grad():
        if hasattr(model, "layers"):
            mlp = model.layers[1].mlp
            mlp.up_proj.weight[7] *= 60
            mlp.gate_proj.weight[7] *= 60
            mlp.down_proj.weight[5, 7] = 25.0
        else:  # GPT-2 stores [in, out]
            mlp = model.get_submodule("h.1.mlp")
            mlp.c_fc.weight[:, 7] *= 600
            mlp.c_proj.weight[7, 5] = 25.0


def without(model: Any) -> None:
    carrying(model)
    with torch.no_grad():
        if hasattr(model, "layers"):
            model.layers[1].mlp.down_proj.weight[5, 7] = 0
        else:
            model.get_submodule("h.1.mlp").c_proj.weight[7, 5] = 0


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_single_weight_that_carries_a_layer_s_output(family: str, folder: Any, tmp_path: Path) -> None:
    before, after = folder(family, carrying, "carrying"), folder(family, without, "without")
    found = prune_check(before, after, OUTLIERS)
    (weight,) = found.weights
    assert (weight.neuron, weight.dim, weight.weight, weight.gone) == ("1:7", 5, 25.0, True)
    assert found.failed
    assert re.match(
        r"broken: single weights that can carry a layer's output are gone: \[5, 7\] of layer 1 "
        r"\(the first [\d,]+ times its block's median\); "
        "no position is removed in 2 of 3 layers or more",
        found.verdict,
    )
    assert weight.place == "[5, 7] of layer 1"
    (section,) = found.sections()
    assert section.tables[-1].rows[0][:2] == ("1:7", 5)
    same = prune_check(before, before, OUTLIERS)
    assert same.holds
    assert same.verdict.endswith("; single weights that can carry a layer's output stay: 1 of 1")
    stored = f"{'layers.1.mlp.down_proj' if family == 'llama' else 'h.1.mlp.c_proj'}.weight"
    place = (5, 7) if family == "llama" else (7, 5)
    ((_, values),) = open_checkpoint(before).read([stored])
    mask = np.ones(values.shape, dtype=bool)
    save_file({stored: mask}, tmp_path / "whole.safetensors")
    assert prune_check(before, str(tmp_path / "whole.safetensors"), OUTLIERS).holds
    mask[place] = False
    save_file({stored: mask}, tmp_path / "masks.safetensors")
    assert [one.gone for one in prune_check(before, str(tmp_path / "masks.safetensors"), OUTLIERS).weights] == [True]


def test_the_first_line_says_where_single_weights_were_not_looked_at(folder: Any) -> None:
    small = replace(OUTLIERS, scan=ScanOptions(max_read=3000))
    verdict = prune_check(folder("bert"), folder("bert"), small).verdict
    assert re.search(r"single weights were not looked at \(.*allow it with --model-args max-read=1MB\)$", verdict)
    albert = prune_check(folder("albert"), folder("albert"), OUTLIERS).verdict
    assert "single weights were not looked at (stream 'model' has no MLP axis: " in albert


def test_a_single_weight_of_an_expert(tmp_path: Path) -> None:
    model, places = mixture("mixtral"), [tmp_path / name for name in ("before", "after")]
    for place in places:
        model.save_pretrained(place)
        with torch.no_grad():
            last_of(model)[EXPERT, DIM, NEURON] = 0.0
    (weight,) = prune_check(str(places[0]), str(places[1]), OUTLIERS).weights
    assert (weight.neuron, weight.dim, weight.weight, weight.gone) == (NAME, DIM, 30.0, True)
    (weight,) = prune_check(str(places[0]), str(places[0]), OUTLIERS).weights
    assert not weight.gone


def test_whole_layers_that_are_gone_cannot_be_checked(folder: Any, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    tensors = {n: v for n, v in load_file(Path(folder("bert")) / "model.safetensors").items() if ".layer.2." not in n}
    config = json.loads((Path(folder("bert")) / "config.json").read_text()) | {"num_hidden_layers": 2}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match=r"has 2 layers of 16 positions .* has 3 layers of 16 positions"):
        prune_check(folder("bert"), str(tmp_path), OUTLIERS)


def test_masks_that_do_not_fit(folder: Any, tmp_path: Path) -> None:
    path, model = tmp_path / "masks.safetensors", folder("bert")
    good = masks_of({})
    for masks, message in (
        ({"something.else": np.ones(3, bool)}, "none of its 1 tensors .* is named as a parameter"),
        ({f"{NORMS.format(1, 'bias')}_mask": np.full(16, 0.5)}, "holds 0.5; masks are 0 and 1"),
        (good | {NORMS.format(1, "weight"): np.ones(8, bool)}, r"is \[8\], the parameter \[16\]"),
        (good | {f"{n}.{NORMS.format(0, 'bias')}": np.ones(16, bool) for n in "ab"}, None),
        ({k: v for k, v in good.items() if "0" not in k} | {f"{n}.{NORMS.format(0, 'bias')}": np.ones(16, bool) for n in "ab"},
         "could all be the mask"),
    ):  # fmt: skip
        save_file(masks, path)
        if message is None:
            assert prune_check(model, str(path), OUTLIERS).holds
            continue
        with pytest.raises(BadInput, match=message):
            prune_check(model, str(path), OUTLIERS)
    save_file({"encoder.layer.0.intermediate.dense.weight": np.zeros((24, 16), bool)}, path)
    found = prune_check(model, str(path), OUTLIERS)
    assert found.holds
    assert "no mask is of a block's last operation" in found.notes[-1]
    with pytest.raises(BadInput, match="dimension 16 does not exist"):
        prune_check(model, str(path), PruneCheckOptions(dims=(16,)))
    with pytest.raises(BadInput, match="--stack must be one of model, not 'decoder'"):
        prune_check(model, str(path), PruneCheckOptions(stack="decoder"))
    with pytest.raises(Offline):
        prune_check(model, "someone/pruned", PruneCheckOptions(scan=ScanOptions(offline=True)))
    with pytest.raises(UnknownModel):
        prune_check(model, str(tmp_path / "nothing.safetensors"))


def test_norms_that_multiply_by_one_plus_weight_are_not_removed_by_masks(folder: Any, tmp_path: Path) -> None:
    path = tmp_path / "masks.safetensors"
    save_file({f"layers.{i}.post_feedforward_layernorm.weight": np.zeros(16, bool) for i in range(3)}, path)
    found = prune_check(folder("gemma2"), str(path), OUTLIERS)
    assert found.holds
    assert any("multiply by 1 + weight" in note for note in found.notes)


def test_damaged_masks_are_refused(folder: Any, tmp_path: Path) -> None:
    path = tmp_path / "masks.safetensors"
    save_file(masks_of({}), path)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-1], b"\xff" * 8 + whole[8:]):
        path.write_bytes(damaged)
        with pytest.raises(BadFile, match=r"masks\.safetensors"):
            prune_check(folder("bert"), str(path))


def test_the_check_needs_no_torch(folder: Any, tmp_path: Path) -> None:
    path = tmp_path / "masks.safetensors"
    save_file(masks_of({0: (3,), 1: (3,)}), path)
    code = (
        "import sys; from outlierlens.analyses.prune import prune_check\n"
        "from outlierlens.analyses.prune_lists import protect\n"
        "assert not prune_check(sys.argv[1], sys.argv[2]).holds; print([m for m in ('torch', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder("bert"), str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_how_many_values_a_row_must_lose() -> None:
    assert [Removal(row_fraction=f).off_needed(10, is_norm=False) for f in (1.0, 0.9, 0.91, 0.01)] == [10, 9, 10, 1]
    assert Removal(row_fraction=0.1).off_needed(2, is_norm=True) == 2


def test_each_stream_has_its_verdict_and_its_picture(folder: Any) -> None:
    def edit(model: Any) -> None:
        with torch.no_grad():
            for layer in range(3):
                norm = model.get_submodule(f"decoder.layers.{layer}.final_layer_norm")
                norm.weight[3], norm.bias[3] = 0.0, 0.0

    found = prune_check(folder("bart"), folder("bart", edit, "decoder"), OUTLIERS)
    assert [(one.stack, one.broken) for one in found.streams] == [("encoder", ()), ("decoder", (3,))]
    first, second = found.verdict.split("; decoder ")
    assert first.startswith("encoder holds: no position is removed in ")
    assert second.startswith("broken: safe to prune except 3 (outlier), removed in 3 of 3 layers")


def test_a_guard_makes_masks_that_hold(tmp_path: Path) -> None:
    model = build(FAMILIES["llama"])
    model.save_pretrained(tmp_path / "intact")
    guard = same_position_guard(model, protect=(3,))
    guard.prune([(one, "weight") for one in model.modules() if isinstance(one, torch.nn.Linear)], amount=0.5)
    assert guard.broken() == {"model": ()}
    torch.save(model.state_dict(), tmp_path / "state.pt")
    assert prune_check(str(tmp_path / "intact"), str(tmp_path / "state.pt"), OUTLIERS).holds


def test_nan_in_a_pruned_model_is_refused_by_name(folder: Any) -> None:
    def broken(model: Any) -> None:
        with torch.no_grad():
            model.layers[1].mlp.down_proj.weight[3, 4] = float("nan")

    after = folder("llama", broken, "nan")
    with pytest.raises(
        BadFile, match=r"llama-nan: layers\.1\.mlp\.down_proj\.weight holds NaN: the weights are damaged"
    ):
        prune_check(folder("llama"), after, OUTLIERS)
