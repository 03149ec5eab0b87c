"""Scanning files: sources, views, limits, comparison, and what the command line prints and returns.

Neurons that their weights single out: the bound against brute force, a planted one, and random weights.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from architectures import D_FF, FAMILIES, build
from mixtures import DIM, EXPERT, MIXTURES, NAME, NEURON, experts_of, mixture
from outlierlens.analyses.scan import scan, scan_live
from outlierlens.detection.rules import Rule
from outlierlens.detection.weights import TIMES, ScanOptions, _reach
from outlierlens.errors import BadFile, BadInput, TooMuchToRead, UnknownArchitecture, UnknownModel
from outlierlens.models.load import from_objects
from outlierlens.results.document import from_json, load, to_json


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """Saves a tiny family, with `values` planted in the scale and bias of every last norm at `dim`."""

    def make(family: str = "bert", dim: int | None = None, folder: str = "model") -> Path:
        model = build(FAMILIES[family])
        if dim is not None:
            loaded = from_objects(model)
            with torch.no_grad():
                for layer in range(loaded.stacks[0].n_layers):
                    for param in (*loaded.stacks[0].scale[layer], *loaded.stacks[0].bias[layer]):
                        model.get_parameter(param.name)[dim] = 40.0
        path = tmp_path / folder
        model.save_pretrained(path)
        return path

    return make


def test_planted_dimension_is_found_in_a_saved_file(saved: Any) -> None:
    path = saved(dim=6)
    found = scan(str(path))
    (stack,) = found.stacks
    assert stack.dims == (6,)
    assert (stack.site, stack.n_layers, stack.hidden_size) == ("output.LayerNorm", 3, 16)
    assert found.bytes_read < found.total_bytes
    assert stack.values_read == 3 * 16 * 2
    vectors = load_file(path / "model.safetensors")
    weight = vectors["encoder.layer.1.output.LayerNorm.weight"].astype(np.float64)
    assert stack.z_scale[1] == pytest.approx((weight - weight.mean()) / weight.std(), rel=1e-5)


def test_file_live_model_and_old_names_agree(saved: Any, tmp_path: Path) -> None:
    path = saved(dim=6)
    from transformers import AutoModel

    live = scan_live(from_objects(AutoModel.from_pretrained(path)))
    stored = scan(str(path))
    assert live.stacks[0].outliers == stored.stacks[0].outliers
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values
        for name, values in load_file(path / "model.safetensors").items()
    }
    save_file({f"bert.{name}": values for name, values in old.items()}, path / "model.safetensors")
    assert scan(str(path)).stacks[0].outliers == stored.stacks[0].outliers


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_widened(saved: Any, dtype: str) -> None:
    path = saved(dim=6)
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, dtype=getattr(torch, dtype))
    model.save_pretrained(path)
    assert scan(str(path)).stacks[0].dims == (6,)


def test_a_dimension_that_passes_on_one_side_only_is_mentioned(saved: Any) -> None:
    path = saved()
    tensors = load_file(path / "model.safetensors")
    for layer in range(3):
        tensors[f"encoder.layer.{layer}.output.LayerNorm.weight"][6] = 40
    save_file(tensors, path / "model.safetensors")
    (stack,) = scan(str(path)).stacks
    assert stack.dims == ()
    assert any("for scale or bias, but not for both: 6 (scale 3/3, bias 0/3)" in note for note in stack.notes)
    llama = scan(str(saved("llama", folder="l")), ScanOptions(rule=Rule("puccetti"))).stacks[0]
    assert any("has no bias here: so this rule can find nothing" in note for note in llama.notes)


def test_a_mistyped_sample_is_asked_back_before_any_request() -> None:
    with pytest.raises(UnknownModel, match=r"did you mean the sample smollm2-135m\?"):
        scan("smolm2-135m")


def test_fingerprint_changes_with_the_values_only(saved: Any) -> None:
    one, two = saved(dim=6, folder="one"), saved(dim=6, folder="two")
    other = saved(dim=7, folder="three")
    prints = [scan(str(path)).provenance.fingerprint for path in (one, two, other)]
    assert prints[0] == prints[1] != prints[2]


def test_reading_norms_are_a_view_of_their_own(saved: Any) -> None:
    path = saved("llama")
    tensors = load_file(path / "model.safetensors")
    for layer in range(3):
        name = next(n for n in tensors if n.endswith(f"layers.{layer}.post_attention_layernorm.weight"))
        tensors[name][9] = 50
    save_file(tensors, path / "model.safetensors")
    found = scan(str(path), ScanOptions(view="reading"))
    assert {stack.site: stack.dims for stack in found.stacks} == {
        "input_layernorm": (),
        "post_attention_layernorm": (9,),
    }
    with pytest.raises(BadInput, match="its blocks declare no reading norms"):
        scan(str(saved("bert", folder="bert")), ScanOptions(view="reading"))


def test_a_linear_rule_stops_above_the_limit_and_says_what_it_needs(saved: Any) -> None:
    path = saved("llama")
    with pytest.raises(
        TooMuchToRead, match=r"reads mlp\.down_proj of every layer.*--model-args max-read=1MB.*--rule view=reading"
    ):
        scan(str(path), ScanOptions(max_read=100))
    assert scan(str(path), ScanOptions(max_read=100, view="reading")).stacks


def test_unknown_architecture_names_the_remedy(saved: Any, tmp_path: Path) -> None:
    path = saved()
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"model_type": "bertt"}))
    with pytest.raises(
        UnknownArchitecture,
        match=r"transformers .* has no model_type 'bertt'.*--model-args arch=row\.toml; near: .*bert",
    ):
        scan(str(path))
    row = tmp_path / "row.toml"
    row.write_text(
        '[[stack]]\nblocks = "encoder.layer.{layer}"\nnorm_site = "stream"\nlast_norm = "output.LayerNorm"\n'
        'last_linear = ["output.dense"]\n'
    )
    assert scan(str(path), ScanOptions(row=row)).stacks[0].n_layers == 3


def test_incomplete_and_foreign_files(saved: Any) -> None:
    path = saved()
    tensors = load_file(path / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if "layer.2." not in k}, path / "model.safetensors")
    with pytest.raises(BadFile, match="2 layers are stored but the config's num_hidden_layers is 3"):
        scan(str(path))
    save_file({k: v for k, v in tensors.items() if "layer.1." not in k}, path / "model.safetensors")
    with pytest.raises(BadFile, match=r"layers \[1\].*are missing"):
        scan(str(path))
    changed = dict(tensors)
    changed["encoder.layer.1.output.LayerNorm.weight"] = np.ones(15, dtype=np.float32)
    save_file(changed, path / "model.safetensors")
    with pytest.raises(BadFile, match="layers disagree on the width of the stream"):
        scan(str(path))
    changed["encoder.layer.1.output.LayerNorm.weight"] = np.full(16, np.inf, dtype=np.float32)
    save_file(changed, path / "model.safetensors")
    with pytest.raises(BadFile, match="scale of layer 1 is inf at dimension 0"):
        scan(str(path))


def test_what_a_linear_rule_reads_is_said_first(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from outlierlens.detection import weights

    monkeypatch.setattr(weights, "QUIET_READ", 100)
    said: list[str] = []
    scan(str(saved("llama")), ScanOptions(notice=said.append))
    assert len(said) == 1
    assert "so this reads mlp.down_proj of every layer, 0 MB" in said[0]
    scan(str(saved("bert", folder="b")), ScanOptions(notice=said.append))
    assert len(said) == 1


# Each file is read by a child that has loaded nothing but the package: forked, for starting Python anew takes a second.
READ = """
import os, sys
import outlierlens

for path in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork() == 0:
        print(type(outlierlens.load(path)).__name__, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.apart
def test_every_kind_of_result_is_read_in_a_fresh_process_and_shown_as_a_table(tmp_path: Path) -> None:
    from every_result import made_in
    from outlierlens.results.document import _KINDS, HOMES

    made = made_in(tmp_path)
    assert set(made) == set(HOMES) <= set(_KINDS)  # tests may have kinds of their own
    assert "Finding" not in _KINDS
    paths = [str(value.save(tmp_path / f"{kind}.json")) for kind, value in made.items()]
    done = subprocess.run([sys.executable, "-c", READ, *paths], capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(made)
    for path, found in zip(paths, made.values(), strict=True):
        assert to_json(load(path)) + "\n" == Path(path).read_text("utf-8")
        rows, frame = list(found.records()), found.to_pandas()
        assert len(frame) == len(rows), path
        assert set(frame.columns) == {key for row in rows for key in row}, path
        assert "<h3>" in found._repr_html_(), path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "kind None is not a result"),
        ('{"kind": "Scan"}', "format_version None; this version reads 1"),
        ('{"kind": "Scan", "format_version": 99}', "format_version 99"),
        ('{"kind": "Scan", "format_version": 1}', "provenance is missing"),
        ('{"kind": "Scan", "format_version": 1, "provenance": 3}', "expected an object for Provenance, found int"),
        ('{"kind": "Sc<an", "format_version": 1}', "is not a result of outlierlens"),
    ],
)
def test_broken_results_are_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        from_json(text, "x.json")


# Each command runs in a child of its own.
COMMAND = """
import os, runpy, sys

for line in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork() == 0:
        sys.argv = ["outlierlens", *line.split("|")]
        try:
            runpy.run_module("outlierlens", run_name="__main__")
        except SystemExit as stop:
            heavy = "cyclopts numpy torch transformers scipy pandas altair onnx gguf datasets sklearn".split()
            heavy += [f"outlierlens.{other}.options" for other in "attention attacks sweeps explore".split()]
            print([stop.code, *(name for name in heavy if name in sys.modules)], file=sys.stderr, flush=True)
        os._exit(0)
    os.wait()
"""


def test_scan_and_help_import_no_heavy_library(saved: Any) -> None:
    lines = [f"scan|{saved(dim=6)}", "scan|--help", "--help"]
    done = subprocess.run([sys.executable, "-c", COMMAND, *lines], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [
        "[0, 'cyclopts', 'numpy']",
        "[0, 'cyclopts', 'numpy']",
        "[0]",
    ]  # nor any other command's options


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["scan", "/no/such/file"], 1, "no such file or directory"),
        (["fetch", "nothing"], 1, "nothing"),
        (["scan", "no-such-model-here", "--model-args", "offline"], 1, "offline"),
    ],
)
def test_errors_are_one_line_with_an_exit_code(arguments: list[str], code: int, message: str, run: Any) -> None:
    status, _, err = run(*arguments)
    assert status == code, err
    assert message in err
    assert "Traceback" not in err
    if code == 1:
        assert len(err.strip().splitlines()) == 1


def test_control_characters_of_a_file_do_not_reach_the_terminal(saved: Any, run: Any, capsys: Any) -> None:
    path = saved()
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"model_type": "a\u001b[31mb\r\nerror: fine"}))
    capsys.readouterr()  # the model's writing
    code, _, err = run("scan", str(path))
    assert code == 1
    assert "\x1b" not in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("distilbert-cased", (143, 283, 557)),
        ("mpnet-base", (34, 461, 568, 688)),
        ("minilm-l6", ()),
        ("smollm2-135m", (100, 247, 507)),
    ],
)
def test_samples(name: str, expected: tuple[int, ...], sample: Any) -> None:
    found = scan(sample(name))
    (stack,) = found.stacks
    assert stack.dims == expected
    assert all(outlier.p_holm < 0.01 for outlier in stack.outliers)


@pytest.mark.real
def test_same_layer_on_mpnet(sample: Any) -> None:
    assert scan(sample("mpnet-base"), ScanOptions(rule=Rule(same_layer=True))).stacks[0].dims == (34, 461)


@pytest.mark.real
@pytest.mark.parametrize("name", ["distilbert-cased", "mpnet-base", "minilm-l6", "smollm2-135m"])
def test_a_shuffled_copy_of_a_sample_has_none(name: str, sample: Any) -> None:
    from outlierlens.detection.rules import LastOperation, find

    (stack,) = scan(sample(name)).stacks
    random = np.random.default_rng(0)
    for _ in range(20):
        scale = random.permuted(stack.z_scale.astype(np.float64), axis=1)
        bias = random.permuted(stack.z_bias.astype(np.float64), axis=1) if stack.z_bias.size else None
        for rule in (Rule(), Rule(same_layer=True), Rule("puccetti")):
            found = find(LastOperation(scale, bias), rule)
            assert all(outlier.p_holm >= 0.05 for outlier in found)
            assert rule.name == "puccetti" or not found


PLANTED = {"llama": "mlp.down_proj", "phi3": "mlp.down_proj", "gpt2": "mlp.c_proj", "bert": "output.dense"}
PLANTED_NEURON = 5


def test_the_largest_value_is_that_of_an_eigenvector() -> None:
    random = np.random.default_rng(0)
    up, gate = random.standard_normal((2, 7, 12))
    both = np.einsum("ni,nj->nij", up, gate)
    largest = np.abs(np.linalg.eigvalsh((both + both.transpose(0, 2, 1)) / 2)).max(1)
    np.testing.assert_allclose(_reach([up, gate]), 12 * largest)
    np.testing.assert_allclose(_reach([up]), np.sqrt(12) * np.linalg.norm(up, axis=1))


def test_random_rows_are_never_named() -> None:
    for draw in range(200):
        random = np.random.default_rng(draw)
        for rows in ([random.standard_normal((256, 16))], list(random.standard_normal((2, 256, 16)))):
            reach = _reach(rows)
            assert reach.max() < TIMES / 2 * np.median(reach)


@pytest.mark.parametrize("family", PLANTED)
def test_a_planted_neuron_is_named_by_block_and_number(family: str, tmp_path: Path) -> None:
    model: Any = build(FAMILIES[family])
    linear = f".1.{PLANTED[family]}"
    width = FAMILIES[family].config.get("hidden_size") or FAMILIES[family].config["n_embd"]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".1." not in name or weight.ndim != 2 or "att" in name:
                continue
            if name.endswith(f"{linear}.weight"):
                (weight if family != "gpt2" else weight.T)[3, PLANTED_NEURON] = 9.0
            elif weight.numel() != width * width:
                (weight if family != "gpt2" else weight.T)[PLANTED_NEURON] = 3.0
                if family == "phi3":
                    weight[len(weight) // 2 + PLANTED_NEURON] = 3.0
    model.save_pretrained(tmp_path)
    found = scan(str(tmp_path), ScanOptions(stack="mlp"))
    assert not found.stacks
    (neuron,) = found.neurons
    assert neuron.neuron == f"1:{PLANTED_NEURON}"
    assert (neuron.dim, round(neuron.weight, 3)) == (3, 9.0)
    assert (found.about.dims, [row["neuron"] for row in found.records()]) == (
        (f"1:{PLANTED_NEURON}",),
        [f"1:{PLANTED_NEURON}"],
    )


@pytest.mark.parametrize("name", MIXTURES)
def test_a_planted_neuron_of_an_expert_is_named_with_it(name: str, tmp_path: Path) -> None:
    """In files, which hold some types' experts one by one, and in the model, which packs them."""
    model = mixture(name)
    model.save_pretrained(tmp_path)
    stored = scan(str(tmp_path), ScanOptions(stack="mlp"))
    for found in (stored, scan(from_objects(model, name=name), ScanOptions(stack="mlp"))):
        (neuron,) = found.neurons
        assert (neuron.neuron, neuron.dim, neuron.weight) == (NAME, DIM, 30.0)
        assert found.about.dims == (NAME,)
        kinds = {one.stack: (one.n_layers, one.n_experts) for one in found.mlps}
        several = {"deepseek_v3": {"down_proj": (1, 0), "shared_experts.down_proj": (2, 0), "experts.down_proj": (2, 4)},
                   "qwen3_moe": {"down_proj": (1, 0), "experts.down_proj": (2, 4)},
                   "qwen2_moe": {"shared_expert.down_proj": (3, 0), "experts.down_proj": (3, 4)},
                   "llama4_text": {"shared_expert.down_proj": (3, 0), "experts.down_proj": (3, 4)}}  # fmt: skip
        root = "feed_forward" if name == "llama4_text" else "mlp"
        expected = {f"mlp ({root}.{path})": counts for path, counts in several.get(name, {}).items()}
        assert kinds == (expected or {"mlp": (3, 4)})
    assert f"{NAME}" in " ".join(stored.sentences())
    assert " × 4 experts × " in " ".join(stored.sentences())


def test_the_reach_of_an_expert_is_that_of_its_rows(tmp_path: Path) -> None:
    """Gate and up stand one behind the other in Mixtral, and take turns in gpt-oss."""
    for name, gate, up in (
        ("mixtral", slice(0, D_FF), slice(D_FF, None)),
        ("gpt_oss", slice(0, None, 2), slice(1, None, 2)),
    ):
        model = mixture(name)
        found = scan(from_objects(model, name=name), ScanOptions(stack="mlp"))
        packed = experts_of(model).gate_up_proj.detach().double().numpy()
        rows = packed.transpose(0, 2, 1) if name == "gpt_oss" else packed
        rows = rows * model.model.layers[1].post_attention_layernorm.weight.detach().double().numpy()
        reach = np.stack([_reach([one[up], one[gate]]) for one in rows])
        assert found.neurons[0].reach == pytest.approx(reach[EXPERT, NEURON])
        assert found.neurons[0].times_median == pytest.approx(reach[EXPERT, NEURON] / np.median(reach))


def test_where_there_are_no_neurons_one_line_says_so(tmp_path: Path) -> None:
    build(FAMILIES["albert"]).save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="has no MLP axis: layers share one block"):
        scan(str(tmp_path), ScanOptions(stack="mlp"))


@pytest.mark.real
def test_smollm2_has_the_neuron_of_its_super_weight() -> None:
    found = scan("smollm2-135m", ScanOptions(stack="mlp")).neurons
    one = next(one for one in found if one.neuron == "11:1229")
    assert one.dim == 507
