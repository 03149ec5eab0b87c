"""Sensitive values by hand and against live models; edits caught, differences told apart; damaged baselines refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from memory_checkpoint import Memory, of_model
from outlierlens.analyses.fingerprint import (
    Fingerprint,
    FingerprintOptions,
    digest_of,
    fingerprint_checkpoint,
    load_fingerprint,
)
from outlierlens.analyses.fingerprint_values import SensitiveValues, list_sensitive, read_entry
from outlierlens.analyses.fingerprint_verify import verify_checkpoint
from outlierlens.architectures import bound_stacks
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadFile, BadInput, TooMuchToRead
from outlierlens.results.document import to_json

WIDTH, INNER = 4, 6
CONFIG = {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": WIDTH, "pad_token_id": 0}
DEEP = FingerprintOptions(deep=True, dims=(1, 3))


def bert(prefix: str = "bert.") -> dict[str, np.ndarray]:
    """Everything of a BERT of two layers that acts on the stream, its head's norm, and a matrix that does not."""
    random = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}

    def put(name: str, *shape: int) -> None:
        made[name] = random.normal(size=shape).astype(np.float32)

    put(f"{prefix}embeddings.word_embeddings.weight", 9, WIDTH)
    put(f"{prefix}embeddings.position_embeddings.weight", 8, WIDTH)
    put(f"{prefix}embeddings.token_type_embeddings.weight", 2, WIDTH)
    for leaf in ("weight", "bias"):
        put(f"{prefix}embeddings.LayerNorm.{leaf}", WIDTH)
        put(f"cls.predictions.transform.LayerNorm.{leaf}", WIDTH)
    for layer in range(2):
        block = f"{prefix}encoder.layer.{layer}"
        put(f"{block}.intermediate.dense.weight", INNER, WIDTH)
        put(f"{block}.attention.output.dense.weight", WIDTH, WIDTH)
        put(f"{block}.output.dense.weight", WIDTH, INNER)
        for site in ("attention.output", "output"):
            put(f"{block}.{site}.dense.bias", WIDTH)
            for leaf in ("gamma", "beta"):
                put(f"{block}.{site}.LayerNorm.{leaf}", WIDTH)
    return made


def memory(**arrays: np.ndarray) -> Memory:
    return Memory({**bert(), **arrays}, CONFIG)


def listed(checkpoint: Any, dims: tuple[int, ...] = (1, 3), deep: bool = False) -> list[SensitiveValues]:
    bound = bound_stacks(checkpoint)
    return list_sensitive(checkpoint, bound, {stack.name: dims for stack in bound}, deep=deep)


def taken(checkpoint: Memory, **options: Any) -> Fingerprint:
    return fingerprint_checkpoint(checkpoint, FingerprintOptions(dims=(1, 3), **options))


# --- what is sensitive -------------------------------------------------------------------------------------------


def test_every_sensitive_value_of_a_hand_made_bert() -> None:
    entries = {(entry.name, entry.role): entry for entry in listed(memory())}
    wanted = {("embeddings.position_embeddings.weight", "position row")}
    for leaf in ("weight", "bias"):
        role = {"weight": "norm scale", "bias": "norm bias"}[leaf]
        wanted |= {("embeddings.LayerNorm." + leaf, role), ("cls.predictions.transform.LayerNorm." + leaf, role)}
        for layer in range(2):
            for site in ("attention.output", "output"):
                wanted.add((f"encoder.layer.{layer}.{site}.LayerNorm.{leaf}", role))
    for layer in range(2):
        for site in ("attention.output", "output"):
            wanted |= {(f"encoder.layer.{layer}.{site}.dense.weight", "write row")}
            wanted |= {(f"encoder.layer.{layer}.{site}.dense.bias", "write bias")}
    assert entries.keys() == wanted

    rows = entries["encoder.layer.1.output.dense.weight", "write row"]
    assert (rows.row_numbers, rows.dims, rows.layer, rows.size) == ((1, 3), (1, 3), 1, (2, INNER))
    assert rows.stored == "bert.encoder.layer.1.output.dense.weight"
    assert rows.dangerous().all()
    assert rows.index(1, 4) == (3, 4)
    assert [rows.dim(row, 5) for row in (0, 1)] == [1, 3]
    np.testing.assert_array_equal(read_entry(memory(), rows), bert()[rows.stored][[1, 3]])

    scale = entries["encoder.layer.0.output.LayerNorm.weight", "norm scale"]
    assert scale.stored == "bert.encoder.layer.0.output.LayerNorm.gamma"
    assert scale.dangerous().tolist() == [[False, True, False, True]]
    assert (scale.index(0, 2), scale.dim(0, 2)) == ((2,), 2)
    head = entries["cls.predictions.transform.LayerNorm.weight", "norm scale"]
    assert (head.layer, head.on_stream, head.dangerous().any(), head.dim(0, 1)) == (None, False, False, None)
    positions = entries["embeddings.position_embeddings.weight", "position row"]
    assert positions.row_numbers == (0, 1, 2, 3)
    assert positions.dangerous().tolist() == [[False, True, False, True]] * 4


def test_deep_adds_the_embeddings_columns() -> None:
    more = [entry for entry in listed(memory(), deep=True) if entry.role == "embedding column"]
    assert [entry.stored.split(".")[2] for entry in more] == [
        "word_embeddings", "position_embeddings", "token_type_embeddings",
    ]  # fmt: skip
    np.testing.assert_array_equal(
        read_entry(memory(), more[0]), bert()["bert.embeddings.word_embeddings.weight"][:, [1, 3]]
    )
    assert more[0].index(8, 1) == (8, 3)
    assert more[0].dim(8, 1) == 3


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "gemma2", "qwen3", "mixtral", "gpt_oss", "xlnet", "t5"])
def test_no_norm_and_no_write_is_forgotten(family: str) -> None:
    from architectures import FAMILIES, build
    from outlierlens.checkpoints.stored import LiveCheckpoint

    model = build(FAMILIES[family])
    checkpoint = LiveCheckpoint(model, name=family, config=model.config.to_dict())
    bound = bound_stacks(checkpoint)
    entries = listed(checkpoint, (2, 5), deep=True)
    norms = {
        f"{name}.{leaf}"
        for name, module in model.named_modules()
        if "norm" in type(module).__name__.lower()
        for leaf, _ in module.named_parameters(recurse=False)
    }
    assert norms <= {entry.stored for entry in entries}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for entry in entries:  # what is read stands where `index` says
        values = read_entry(checkpoint, entry)
        assert values.shape == entry.size == entry.dangerous().shape
        for row, column in ((0, 0), (values.shape[0] - 1, values.shape[1] - 1)):
            assert float(parameters[entry.stored].detach()[entry.index(row, column)]) == values[row, column]
    writes = {
        param.name: param for stack in bound for some in stack.linears.values() for layer in some for param in layer
    }
    assert writes.keys() <= {entry.stored for entry in entries}
    for entry in entries:
        if entry.role in ("write row", "write column"):  # every value of the dimension, and no other
            axis = writes[entry.stored].axis
            at = [entry.index(row, column) for row in range(entry.size[0]) for column in range(entry.size[1])]
            assert {place[axis] for place in at} == {2, 5}
    for name, param in writes.items():
        if not name.endswith("bias"):
            n = sum(np.prod(entry.size) for entry in entries if entry.stored == name)
            assert n == 2 * parameters[name].numel() // parameters[name].shape[param.axis]


def test_positions_start_where_the_family_counts_from() -> None:
    entries = listed(of_model("roberta"))
    (positions,) = [entry for entry in entries if entry.role == "position row"]
    assert positions.row_numbers == (1, 2, 3, 4)  # padding is token 0, so position 0 is row 1


# --- fingerprint and verify --------------------------------------------------------------------------------------


def test_values_are_kept_bit_for_bit_in_the_narrowest_encoding() -> None:
    odd = memory(**{"bert.embeddings.LayerNorm.weight": np.array([1.5, -0.0, np.inf, np.nan], np.float32)})
    found = taken(odd)
    kept = {(entry.name, entry.role): entry for entry in found.entries}
    vector = kept["embeddings.LayerNorm.weight", "norm scale"]
    assert vector.encoding == "bfloat16"
    np.testing.assert_array_equal(vector.values(), [[1.5, -0.0, np.inf, np.nan]])
    rows = kept["encoder.layer.0.output.dense.weight", "write row"]
    assert rows.encoding == "float32"
    np.testing.assert_array_equal(rows.values(), bert()["bert.encoder.layer.0.output.dense.weight"][[1, 3]])
    assert {entry.encoding for entry in taken(memory().rounded("F16")).entries} == {"float16"}
    assert verify_checkpoint(odd, found).matches
    assert (
        found.n_values
        == 1 * 16 + 4 * 4 + 2 * 2 * (WIDTH + INNER) + 4 * WIDTH + 4 * WIDTH + 2 * 2 * 2 * WIDTH - 16 - 16 + 16
    )


def test_verdict_names_the_moved_values_and_the_dangerous_ones() -> None:
    found = taken(memory())
    same = verify_checkpoint(memory(), found)
    assert same.matches
    assert same.verdict == f"matches its fingerprint: {found.n_values:,} values"
    assert not same.tensors
    name = "bert.encoder.layer.1.output.LayerNorm.gamma"
    before = float(bert()[name][3])
    other = memory().edited(name, (3,), before + 0.5).edited(name, (0,), 2.0)
    moved = verify_checkpoint(other, found)
    assert not moved.matches
    assert (
        moved.verdict
        == f"does NOT match its fingerprint: 2 of {found.n_values:,} values moved, 1 of them outlier entries"
    )
    first, second = moved.moved
    assert (first.name, first.role, first.layer) == ("encoder.layer.1.output.LayerNorm.weight", "norm scale", 1)
    assert (first.index, first.dim, first.dangerous, first.before) == ((3,), 3, True, before)
    assert first.after - first.before == pytest.approx(0.5)
    assert (second.index, second.dangerous, second.after) == ((0,), False, 2.0)
    (fate,) = moved.tensors
    assert (fate.fate, fate.n_moved, fate.n_dangerous) == ("moved", 2, 1)


@pytest.mark.parametrize("family", ["mpnet", "gemma2", "mixtral"])
def test_every_single_edit_is_caught_and_named(family: str) -> None:
    whole = of_model(family)
    found = fingerprint_checkpoint(whole, FingerprintOptions())
    entries = list_sensitive(whole, bound_stacks(whole), {stream.name: stream.dims for stream in found.streams})
    random = np.random.default_rng(7)
    for _ in range(25):
        entry = entries[random.integers(len(entries))]
        row, column = (int(random.integers(n)) for n in entry.size)
        index = entry.index(row, column)
        before = whole.arrays[entry.stored][index]
        after = np.nextafter(before, np.float32(random.choice([-np.inf, np.inf])))  # the smallest edit there is
        (moved,) = verify_checkpoint(whole.edited(entry.stored, index, after), found).moved
        assert (moved.name, moved.role, moved.index) == (entry.name, entry.role, index)
        assert (moved.before, moved.after) == (before, after)
        assert moved.dangerous == entry.dangerous()[row, column]


def test_deep_sees_what_lies_elsewhere() -> None:
    found = taken(memory(), deep=True)
    for name, index in (
        ("bert.encoder.layer.0.intermediate.dense.weight", (0, 0)),
        ("bert.embeddings.word_embeddings.weight", (7, 3)),
    ):
        other = memory().edited(name, index, 9.0)
        shallow = verify_checkpoint(other, found)
        assert shallow.matches
        assert "the fingerprint is deep; --deep also verifies embedding columns and whole tensors" in shallow.notes
        deep = verify_checkpoint(other, found, deep=True)
        assert not deep.matches
        assert (name.removeprefix("bert."), "whole tensor", "moved") in {(t.name, t.role, t.fate) for t in deep.tensors}
        assert "1 whole tensors differ" in deep.verdict
        assert deep.n_moved == (1 if "embeddings" in name else 0)
    with pytest.raises(BadInput, match=r"taken without --deep; take it again with --deep"):
        verify_checkpoint(memory(), taken(memory()), deep=True)


def test_a_signalling_nan_is_a_moved_value_and_no_warning() -> None:
    """Numpy warns where it converts one; a warning fails the tests."""
    name, found = "bert.embeddings.LayerNorm.weight", taken(memory(), deep=True)
    damaged = memory().arrays[name].copy()
    damaged.view(np.uint32)[2] = 0x7F800001
    (moved,) = verify_checkpoint(memory(**{name: damaged}), found, deep=True).moved
    assert (moved.index, np.isnan(moved.after)) == ((2,), True)


def test_a_tied_head_may_come_and_go_and_another_tensor_may_not() -> None:
    found = taken(memory(), deep=True)
    tied = memory(**{"cls.predictions.decoder.weight": bert()["bert.embeddings.word_embeddings.weight"]})
    same = verify_checkpoint(tied, found, deep=True)
    assert same.matches
    assert [(fate.fate, fate.why) for fate in same.tensors] == [
        ("extra", "equal to embeddings.word_embeddings.weight, which is there")
    ]
    other = memory(**{"cls.predictions.decoder.weight": np.ones((9, WIDTH), np.float32)})
    assert not verify_checkpoint(other, found, deep=True).matches
    assert not verify_checkpoint(memory(), taken(other, deep=True), deep=True).matches


def test_without_the_task_head_s_prefix_it_is_the_same_model() -> None:
    bare = Memory({name: value for name, value in bert("").items() if not name.startswith("cls.")}, CONFIG)
    assert verify_checkpoint(memory(), taken(bare)).matches  # the head's norm is extra, and changes nothing recorded
    lacking = verify_checkpoint(bare, taken(memory()))
    assert not lacking.matches
    assert lacking.verdict == "does NOT match its fingerprint: 2 missing"
    assert {fate.name for fate in lacking.tensors} == {
        f"cls.predictions.transform.LayerNorm.{x}" for x in ("weight", "bias")
    }


def test_what_is_missing_extra_or_of_another_size_is_said() -> None:
    found = taken(memory())
    arrays = bert()
    name = "bert.encoder.layer.1.output.dense.weight"
    wider = Memory({**arrays, name: np.ones((WIDTH, INNER + 1), np.float32)}, CONFIG)
    (fate,) = verify_checkpoint(wider, found).tensors
    assert (fate.fate, fate.why) == ("other shape", "recorded from [4, 6], here [4, 7]")
    short = {key: value for key, value in arrays.items() if "layer.1" not in key}
    fewer = verify_checkpoint(Memory(short, {**CONFIG, "num_hidden_layers": 1}), found)
    assert not fewer.matches
    assert ("model", "recorded were 2 layers × 4, here are 1 × 4") in {(t.name, t.why) for t in fewer.tensors}
    assert sum(t.fate == "missing" for t in fewer.tensors) == 8
    more = verify_checkpoint(memory(), taken(Memory(short, {**CONFIG, "num_hidden_layers": 1})))
    assert sum(t.fate == "extra" and t.fails for t in more.tensors) == 8
    other = verify_checkpoint(of_model("bert"), found)
    assert ("model", "recorded were 2 layers × 4, here are 3 × 16") in {(t.name, t.why) for t in other.tensors}
    assert not other.matches
    streams = verify_checkpoint(of_model("t5"), found)
    assert streams.tensors[0].why == "recorded were 2 layers × 4; the model has encoder, decoder"
    assert "model_type is 't5', recorded was 'bert'" in streams.notes


def test_without_a_config_the_recorded_family_is_taken() -> None:
    found = verify_checkpoint(Memory(bert(), {}), taken(memory()))
    assert found.matches
    assert found.notes == ("no model_type beside the weights; taken for bert, as recorded",)


def test_limits_and_spread_values_are_said() -> None:
    whole, limited = of_model("llama"), FingerprintOptions(scan=ScanOptions(max_read=10))
    with pytest.raises(TooMuchToRead, match=r"or name the dimensions yourself with --dims"):
        fingerprint_checkpoint(whole, limited)
    assert fingerprint_checkpoint(whole, dataclasses.replace(limited, dims=(3,))).streams[0].dims == (3,)
    spread = fingerprint_checkpoint(of_model("gpt2"), FingerprintOptions(dims=(3,))).notes
    assert any("6 linears are stored [in, out]" in note and "--deep" in note for note in spread)


# --- damaged baselines -------------------------------------------------------------------------------------------


def signed(found: Fingerprint, **changes: Any) -> Fingerprint:
    """A fingerprint whose digest fits, whatever it says."""
    changed = dataclasses.replace(found, **changes)
    provenance = dataclasses.replace(found.provenance, fingerprint=digest_of(changed))
    return dataclasses.replace(changed, provenance=provenance)


def refused(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    with pytest.raises((BadFile, BadInput)) as caught:
        load_fingerprint(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    found, path = taken(memory()), tmp_path / "f.json"
    text = to_json(found)
    assert "not valid JSON" in refused(path, text[:-20])
    at = text.index('"bits":["') + 13
    flipped = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
    assert "its digest is not that of its content" in refused(path, flipped)
    assert "has fingerprint layout 2" in refused(path, to_json(signed(found, layout=2)))
    verification = verify_checkpoint(memory(), found)
    assert "holds a Verification, not a Fingerprint" in refused(path, to_json(verification))
    assert "records nothing" in refused(path, to_json(signed(found, entries=(), n_values=0)))
    assert "distinct" in refused(path, to_json(signed(found, entries=found.entries[:1] * 2)))
    assert "it says 7 values" in refused(path, to_json(signed(found, n_values=7)))
    document = json.loads(text)
    document["entries"]["role"][0] = "mood"
    assert "'mood' is none of" in refused(path, json.dumps(document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (4, 10**18)}, "cannot hold 2,000,000,000,000,000,000 values"),
        ({"shape": ()}, "its shape is []"),
        ({"shape": (4, -1)}, "its shape is [4, -1]"),
        ({"row_numbers": (0, 7)}, "a row lies outside its 4 rows"),
        ({"column_numbers": (9,)}, "a column lies outside its 6 columns"),
        ({"dims": (1,)}, "1 dimensions do not fit its rows"),
        ({"encoding": "float64"}, "cannot hold 12 values of float64"),
        ({"bits": "!" * 64}, "its values are not base64"),
        ({"offset": float("nan")}, "bytes for 12 values"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    found = taken(memory())
    at = next(i for i, entry in enumerate(found.entries) if entry.name == "encoder.layer.0.output.dense.weight")
    entries = list(found.entries)
    entries[at] = dataclasses.replace(entries[at], **change)
    said = refused(tmp_path / "f.json", to_json(signed(found, entries=tuple(entries))))
    assert "encoder.layer.0.output.dense.weight (write row)" in said
    assert message in said


# --- the commands ------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path) -> Any:
    def make(name: str, arrays: dict[str, np.ndarray]) -> str:
        (tmp_path / name).mkdir()
        save_file(arrays, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(json.dumps(CONFIG))
        return str(tmp_path / name)

    return make


def test_compare_with_values(folders: Any, run: Any, tmp_path: Path) -> None:
    good, same = folders("good", bert()), folders("same", bert())
    bad = folders("bad", {**bert(), "bert.embeddings.LayerNorm.bias": np.zeros(WIDTH, np.float32)})
    assert run("compare", good, bad)[0] == 0  # outliers alone: no check was asked for
    status, out, _ = run("compare", good, same, "--values")
    assert status == 0
    assert f"{same} matches {good}: " in out
    status, out, _ = run("compare", good, bad, "--values", "--json")
    assert status == 3
    assert json.loads(out)["n_moved"] == 4
    assert run("compare", good, bad, "--deep")[0] == 1
