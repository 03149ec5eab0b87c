"""Where outliers come from: planted needles, ranks by hand, streams cut anywhere, every family, files of every kind."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import origin_models
from architectures import FAMILIES, Family, batch, build
from hub_server import FakeHub
from origin_models import POSITIONS, WIDTH
from outlierlens.analyses.origin import IN_BLOCKS, MAX_ROWS_DRAWN, OriginOptions, origin, origin_live
from outlierlens.analyses.origin_weights import TablePass
from outlierlens.analyses.scan import scan
from outlierlens.architectures import ARCHITECTURES, first_row, kind_of, stacks_of
from outlierlens.checkpoints.formats import token_texts
from outlierlens.detection.rules import Rule, zscore
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadFile, TooMuchToRead
from outlierlens.models.load import from_objects
from outlierlens.results.document import from_json, to_json

pytest_plugins = ["hub_fixtures"]

# What every family's stacks embed with tables of the stream's width; "@n" is the row of position 0.
TABLES = {
    "dinov2": {"model": "class position"},
    "dinov2-gated": {"model": "class position"},
    "dinov2_with_registers": {"model": "class position register"},
    "bert": {"model": "token position segment"},
    "roberta": {"model": "token position@1 segment"},
    "xlm-roberta": {"model": "token position@1 segment"},
    "camembert": {"model": "token position@1 segment"},
    "electra-discriminator": {"model": "token position segment"},
    "electra-generator": {"model": ""},
    "distilbert": {"model": "token position"},
    "albert": {"model": ""},
    "albert-groups": {"model": ""},
    "mpnet": {"model": "token position@2"},
    "outlierlens-bert-rmsnorm": {"model": "token segment"},
    "outlierlens-bert-pre-norm": {"model": "token segment"},
    "outlierlens-bert-pre-rmsnorm": {"model": "token segment"},
    "deberta": {"model": "token position"},
    "deberta-v2-convolution": {"model": ""},
    "bart": {"encoder": "token position@2", "decoder": "token position@2"},
    "gpt2": {"model": "token position"},
    "gpt2-cross-attention": {"model": "token position"},
    "gpt_neo": {"model": "token position"},
    "opt": {"model": "token position@2"},
    "opt-post-norm": {"model": "position@2"},
    "gemma3": {"text": "token", "vision": "position"},
    "vit": {"model": "class position"},
    "wav2vec2": {"model": ""},
    "wav2vec2-stable": {"model": ""},
    "wav2vec2-adapters": {"model": ""},
    "whisper": {"encoder": "position", "decoder": "token position"},
    "clip": {"text": "token position", "vision": "class position"},
    "clip_text_model": {"model": "token position"},
    "clip_vision_model": {"model": "class position"},
}
SAME = {"bert-cross-attention": "bert", "outlierlens-bert": "bert"}
TOKENS_ALONE = {"t5", "t5-gated", "mt5"}


def passed(
    rows: np.ndarray, dims: tuple[int, ...], cuts: list[int] | None = None, **options: Any
) -> tuple[Any, list[Any]]:
    """(table, entries) of a pass over `rows` cut before the rows in `cuts`."""
    collected = TablePass(rows.shape[1], dims, **options)
    for part in np.split(rows, sorted(cuts or [])):
        if len(part):
            collected.add(part)
    return SimpleNamespace(**collected.table()), [SimpleNamespace(**one) for one in collected.entries()]


# -- one table ----------------------------------------------------------------------------------------------------


def test_a_small_table_by_hand() -> None:
    rows = np.array([[1, 2, 3, -4], [5, -1, -1, 0], [2, 2, 2, 2], [0, 8, 1, -9], [7, 7, 0, 1]], dtype=np.float32)
    table, (one, three) = passed(rows, (1, 3), keep_rows=True, first_row=1)
    assert (table.n_rows, table.n_read, table.first_row) == (5, 3, 1)  # row 0 unread, row 2 flat
    # Row 1 has its minimum in 1 and 2, row 3 its maximum in 1, row 4 its maximum in 0 and 1.
    assert (one.smallest, one.smallest_alone, one.smallest_rows) == (pytest.approx(1 / 6), 0, ())
    assert (one.largest, one.largest_alone, one.largest_rows) == (pytest.approx(0.5), 1, (3,))
    assert (three.smallest, three.smallest_alone, three.smallest_rows) == (pytest.approx(1 / 3), 1, (3,))
    assert (one.n_tied, three.n_tied) == (2, 0)
    # Smallest: 1/6, 1/6 + 1/3 of dim 2 (half of row 1, all of row 4), 1/3; largest: 1/2 of 0, 1/2 of 1.
    assert (table.smallest, table.smallest_dim) == (pytest.approx(0.5), 2)
    assert (table.largest, table.largest_dim) == (pytest.approx(0.5), 0)
    assert one.mean == pytest.approx(14 / 3)
    means = rows[[1, 3, 4]].mean(axis=0)
    assert one.mean_z == pytest.approx((means[1] - means.mean()) / means.std(), rel=1e-6)
    assert three.mean_rank == 1 + int((np.abs(means - means.mean()) > abs(means[3] - means.mean())).sum())
    assert table.low == (-4, -1, 2, -9, 0)
    assert table.high == (3, 5, 2, 8, 7)
    assert three.values == (-4, 0, 2, -9, 1)
    assert (one.ends, three.ends) == ((0, 0, 0, 1, 0), (-1, 0, 0, -1, 0))
    z = zscore(rows)
    assert [one.z, three.z] == pytest.approx(z[:, [1, 3]].T, rel=1e-6)
    assert (one.first_z, three.first_z) == (one.z[1], three.z[1])
    assert (one.first_rank, three.first_rank) == (2, 4)  # of 5, −1, −1, 0, whose mean is 0.75
    assert three.farthest_row == max((1, 3, 4), key=lambda row: abs(z[row, 3]))
    assert table.top_z == pytest.approx(np.abs(z).max(axis=1), rel=1e-6)


def test_shares_and_farthest_values_are_those_of_the_whole_table() -> None:
    random = np.random.default_rng(4)
    rows = random.normal(size=(200, 40)).astype(np.float32)
    rows[17, 3] = 30
    table, entries = passed(rows, (3, 9))
    z = zscore(rows)
    peak = np.abs(z).max(axis=0)
    for dim, one in zip((3, 9), entries, strict=True):
        assert one.farthest_rank == 1 + int((peak > peak[dim]).sum())
        assert one.farthest_sigma == pytest.approx((peak[dim] - peak.mean()) / peak.std())
        assert one.farthest_row == np.abs(z[:, dim]).argmax()
        assert one.farthest_z == pytest.approx(z[one.farthest_row, dim])
        assert one.farthest_apart == pytest.approx(abs(one.farthest_z - z[:, dim].mean()) / z[:, dim].std())
        assert one.outside == pytest.approx((np.abs(rows[:, dim] - rows.mean()) >= 3 * rows.std()).mean())
    assert (entries[0].farthest_row, table.n_farthest_outside) == (17, 1)
    assert table.median_farthest == pytest.approx(np.median(peak))


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 24), max_size=4),
    arrays(np.float32, (24, 5), elements=st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0, 8.0])),
)
def test_the_outcome_does_not_depend_on_where_the_rows_are_cut(cuts: list[int], rows: np.ndarray) -> None:
    rows[0] = [1, 2, 3, 4, 5]  # at least one row with a spread
    whole, cut = passed(rows, (0, 4), keep_rows=True), passed(rows, (0, 4), cuts, keep_rows=True)
    one, other = ([vars(table), *map(vars, entries)] for table, entries in (whole, cut))
    assert near(one, other)


def near(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(near, one, other))
    return one == (pytest.approx(other, rel=1e-6, abs=1e-9) if isinstance(one, float) else other)


def test_broken_tables_are_refused() -> None:
    rows = np.ones((3, 4), dtype=np.float32)
    rows[1, 2] = np.nan
    with pytest.raises(BadFile, match="row 1 is nan at dimension 2"):
        passed(rows, (1,))


def test_a_constant_table_says_nothing_and_is_noted(tmp_path: Path) -> None:
    collected = TablePass(4, (1,))
    collected.add(np.ones((3, 4), dtype=np.float32))
    assert collected.empty
    collected.add(np.arange(4, dtype=np.float32)[None])
    assert not collected.empty
    made = origin_models.tensors()
    made["embeddings.token_type_embeddings.weight"][:] = 0
    found = origin(str(origin_models.saved(tmp_path / "model", made)), OriginOptions(dims=(5,)))
    assert [table.kind for table in found.tables] == ["token", "position"]
    assert found.notes == (
        "embeddings.token_type_embeddings.weight: no row differs from a constant, so it says nothing",
    )


def test_no_dimension_is_first_where_all_are_equal(tmp_path: Path) -> None:
    made = origin_models.tensors()
    made["encoder.layer.0.output.LayerNorm.weight"][:] = 1
    found = origin(str(origin_models.saved(tmp_path / "model", made)), OriginOptions(dims=(5,)))
    norm = next(one for one in found.norms if one.module == "output.LayerNorm" and one.part == "scale")
    assert (norm.layer, norm.rank_z, norm.z, norm.is_first) == ("0", 1, 0, False)


# -- a model with needles -----------------------------------------------------------------------------------------


def test_a_planted_needle_is_followed_from_its_token_and_position_to_the_norms(tmp_path: Path) -> None:
    found = origin_models.found(tmp_path / "model")
    assert (found.dims, found.named, found.about.layers) == ((5, 2), {"": (5, 2)}, (0, 1))
    token = found.entry("token", 5)
    assert (token.farthest_row, token.token, token.in_row) == (1, "[CLS]", "1 [CLS]")
    assert (token.largest_rows, token.largest_alone) == ((1,), 1)
    position = found.entry("position", 5)
    assert position.smallest_rows == (0,)
    assert [place.where for place in found.of(5)] == [
        "token [CLS]", "position row 0", "position table", "layer 0, output.LayerNorm, scale",
        "layer 0, output.LayerNorm, bias",
    ]  # fmt: skip
    z = zscore(origin_models.planted()["embeddings.position_embeddings.weight"])[0, 5]
    assert position.z[0] == position.first_z == pytest.approx(z)
    assert found.of(5)[-1].why.endswith("; so in 2 of 2 layers")
    assert [place.likewise for place in found.of(5)] == [0] * 5
    assert found.of(2) == ()
    assert list(found.sentences()) == [
        "5: is first an outlier in token [CLS] (z +4.3 within the row; no other dimension does); then position row 0 · "
        "position table · layer 0, output.LayerNorm, scale and on.",
        "5 is the minimum of position row 0 and of no other of the 8 rows.",
        "2: is not an outlier in the weights read.",
    ]
    assert found.notes == ()
    assert found.bytes_read <= found.total_bytes


def test_ranks_of_norms_by_hand(tmp_path: Path) -> None:
    made = origin_models.tensors()
    scale = np.array([1, 2, 3, 4, 5, -6, 7, 8, 9, 10, 11, 12, *[0] * 8], dtype=np.float32)
    made["embeddings.LayerNorm.weight"] = scale
    made["encoder.layer.1.attention.output.LayerNorm.bias"] = np.float32([0] * 11 + [1] + [0] * 8)
    found = origin(str(origin_models.saved(tmp_path / "model", made)), OriginOptions(dims=(5, 11)))
    by_name: dict[Any, list[Any]] = {}
    for row in found.norms:
        by_name.setdefault((row.role, row.module, row.part), []).append(row)
    assert list(by_name) == [
        ("embedding norm", "embeddings.LayerNorm", "scale"), ("embedding norm", "embeddings.LayerNorm", "bias"),
        ("after a write", "attention.output.LayerNorm", "scale"), ("after a write", "attention.output.LayerNorm", "bias"),
        ("last", "output.LayerNorm", "scale"), ("last", "output.LayerNorm", "bias"),
    ]  # fmt: skip
    five, eleven = by_name["embedding norm", "embeddings.LayerNorm", "scale"]
    assert (five.layer, five.value, eleven.value) == ("embeddings", -6, 12)
    assert (five.rank_top, five.rank_bottom, five.rank_absolute) == (20, 1, 7)  # 12 … 7 are larger than |−6|
    assert (eleven.rank_top, eleven.rank_bottom, eleven.rank_absolute) == (1, 20, 1)
    z = (scale - scale.mean()) / scale.std()
    assert (five.z, eleven.z) == pytest.approx(tuple(z[[5, 11]]), rel=1e-6)
    assert (five.rank_z, eleven.rank_z) == (1, 2)
    assert (five.other_dim, five.other_z) == (10, pytest.approx(z[10]))
    bias = by_name["after a write", "attention.output.LayerNorm", "bias"]
    assert [row.layer for row in bias] == ["0", "0", "1", "1"]
    assert [row.rank_z for row in bias[2:]] == [2, 1]  # nineteen equal values share rank 2
    assert bias[2].n_outside == 1
    table = next(one for one in found.shown() if one.title == "Norms and writes")
    assert table.rows[0][:2] == ("embedding norm", "scale")
    assert table.rows[6] == ("attention.output.LayerNorm", "bias", 5, *table.rows[6][3:])
    assert table.rows[7][3:5] == ((1, 2), (1, 2))  # 11 passes and is first in layer 1 alone


def test_default_dimensions_are_those_of_the_scan_and_the_fingerprint_is_of_the_values(tmp_path: Path) -> None:
    path = origin_models.saved(tmp_path / "model", origin_models.planted())
    found = origin(str(path))
    assert found.dims == scan(str(path)).stacks[0].dims == (5,)
    assert found.bytes_read <= found.total_bytes  # nothing is read twice
    assert found.about.named_by == "the rule kovaleva on the weights"
    assert origin(str(path)).provenance.fingerprint == found.provenance.fingerprint
    other = origin_models.planted()
    other["embeddings.word_embeddings.weight"][7, 7] += 1
    changed = origin(str(origin_models.saved(tmp_path / "other", other)))
    assert changed.provenance.fingerprint != found.provenance.fingerprint
    nothing = origin(str(origin_models.saved(tmp_path / "plain", origin_models.tensors())))
    assert nothing.dims == ()
    assert "finds no outlier at 3 sigma" in nothing.notes[0]
    assert list(nothing.sentences()) == ["No dimension is followed."]
    assert nothing.table("position").smallest > 0


def test_what_cannot_be_followed_is_said(tmp_path: Path) -> None:
    path = str(origin_models.saved(tmp_path / "model", origin_models.planted()))
    told: list[str] = []
    limited = origin(path, OriginOptions(dims=(5,), scan=ScanOptions(max_read=1000, notice=told.append)))
    whole = origin(path, OriginOptions(dims=(5,)))
    assert limited.places == whole.places  # a first place without all tables is none
    assert [table.kind for table in limited.tables] == ["token", "position", "segment"]
    assert [line.partition("; ")[0] for line in told] == [
        f"{path}: reads embeddings.word_embeddings.weight, 0 MB, in parts"
    ]
    wrong = origin_models.tensors() | {"embeddings.position_embeddings.weight": np.ones((4, 6), dtype=np.float32)}
    with pytest.raises(BadFile, match=r"hidden_size is 20 wide and embeddings\.position_embeddings\.weight 6"):
        origin(str(origin_models.saved(tmp_path / "wrong", wrong)), OriginOptions(dims=(5,)))
    broken = origin_models.tensors()
    broken["embeddings.LayerNorm.bias"][4] = np.inf
    with pytest.raises(BadFile, match=r"embeddings\.LayerNorm\.bias is inf at dimension 4"):
        origin(str(origin_models.saved(tmp_path / "broken", broken)), OriginOptions(dims=(5,)))


def test_positions_that_are_counted_from_a_later_row(tmp_path: Path) -> None:
    made = origin_models.tensors()
    made["embeddings.position_embeddings.weight"][0] = 1e6 * np.arange(WIDTH)  # never read: must count for nothing
    made["embeddings.position_embeddings.weight"][1] = 0
    made["embeddings.position_embeddings.weight"][2, 3] = -30
    path = origin_models.saved(tmp_path / "model", made, model_type="roberta", pad_token_id=1)
    found = origin(str(path), OriginOptions(dims=(3,)))
    table = found.table("position")
    assert (table.first_row, table.n_rows, table.n_read) == (2, POSITIONS, POSITIONS - 2)
    assert found.entry("position", 3).smallest_rows == (2,)
    assert found.entry("position", 3).outside == pytest.approx(1 / (POSITIONS - 2))
    assert found.places[0].where == "position row 2 (position 0)"


def test_a_model_on_a_hub_is_read_by_ranges_and_gives_the_same(hub: FakeHub, tmp_path: Path) -> None:
    path = origin_models.saved(tmp_path / "model", origin_models.planted() | {"head": np.zeros(300_000, np.float32)})
    hub.add("org/model", {file: path / file for file in ("config.json", "model.safetensors")})
    here, there = (origin(name, OriginOptions(dims=(5, 2))) for name in (str(path), "org/model"))
    assert there.bytes_read < there.total_bytes
    assert there.entry("token", 5) == replace(here.entry("token", 5), token="", in_row="1")
    assert there.norms == here.norms
    assert there.of(5)[0].where == "token 1"


# -- every family -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_its_tables_and_norms(name: str) -> None:
    model = build(FAMILIES[name])
    loaded = from_objects(model)
    found = origin_live(loaded, OriginOptions(dims=(3, 11)))
    expected = TABLES.get(SAME.get(name, name)) or {stack.name: "token" for stack in loaded.stacks}
    several = len(loaded.stacks) > 1
    for bound in loaded.stacks:
        stream = bound.name if several else ""
        tables = [one for one in found.tables if one.stream == stream]
        kinds = [one.kind + (f"@{one.first_row}" if one.first_row else "") for one in tables]
        assert sorted(kinds) == sorted(expected[bound.name].split())
        for table in tables:
            values = model.get_parameter(table.name).detach().numpy().reshape(-1, 16)
            mean = float(values[table.first_row :, 11].mean())
            assert found.entry(table.kind, 11, stream).mean == pytest.approx(mean, rel=1e-4)
        noted = " ".join(note for note in found.notes if note.startswith(f"{stream}: " if several else ""))
        assert ("no position table" in noted) == (not any(kind.startswith("position") for kind in kinds))
        assert ("projected into it by" in noted) == bool(bound.stack.embedding_linears and "token" not in kinds)
        norms = [one for one in found.norms if one.stream == stream]
        assert [norm for norm in norms if norm.role == "last"]
        in_blocks = [norm for norm in norms if norm.role in IN_BLOCKS and norm.part == "scale"]
        assert {norm.module for norm in in_blocks} == set(bound.norms)
        for norm in in_blocks:
            weight = model.get_parameter(f"{bound.blocks[int(norm.layer)]}.{norm.module}.weight")
            assert norm.value == pytest.approx(float(weight[norm.dim].detach()) + bound.stack.norm_offset, rel=1e-5)
    assert from_json(to_json(found)).provenance.fingerprint == found.provenance.fingerprint


def test_every_declared_table_has_a_kind() -> None:
    for model_type in ARCHITECTURES:
        for stack in stacks_of({"model_type": model_type}):
            stored = [name for table in stack.embeddings for name in stack.stored_as.get(f"{table}.weight", ())]
            for table in (*stack.embeddings, *stored):
                if not any(linear in table for linear in ("proj", "w2", "dense", "weights_out")):
                    assert kind_of(f"x.{table}") != "other", (model_type, table)
    assert kind_of("my_table.weight") == "other"


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "camembert", "mpnet", "distilbert", "deberta", "opt",
                                  "electra-discriminator", "bart", "gpt2", "gpt_neo", "clip_text_model"])  # fmt: skip
def test_position_0_reads_the_row_that_is_declared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    family: Family = FAMILIES[name]
    model = build(family)
    stack = from_objects(model).stacks[0]
    (table,) = [param.name for param in stack.embeddings if kind_of(param.name) == "position"]
    weight = model.get_parameter(table)
    original, seen = torch.nn.functional.embedding, []

    def embedding(ids: Any, weights: Any, *args: Any, **kwargs: Any) -> Any:
        if weights is weight:
            seen.append(int(ids.reshape(-1)[0]))
        return original(ids, weights, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "embedding", embedding)
    inputs = batch(family)
    inputs["input_ids"] = torch.full_like(inputs["input_ids"], 7)  # nothing that is padding anywhere
    if "decoder_input_ids" in inputs:
        inputs["decoder_input_ids"] = torch.full_like(inputs["decoder_input_ids"], 7)
    with torch.no_grad():
        model(**inputs)
    assert seen[0] == first_row(model.config.to_dict())


def test_padding_decides_the_first_row_of_a_roberta() -> None:
    assert first_row({"model_type": "roberta"}) == 2
    assert first_row({"model_type": "roberta", "pad_token_id": 4}) == 5
    assert first_row({"model_type": "mpnet", "pad_token_id": 0}) == 2
    assert first_row({}) == 0


# -- vocabularies -------------------------------------------------------------------------------------------------


def test_token_texts_of_every_kind_of_vocabulary(tmp_path: Path) -> None:
    assert token_texts(None, [1]) == {}
    assert token_texts(tmp_path, [1]) == {}
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    assert token_texts(tmp_path, [1, 9]) == {1: "b"}
    (tmp_path / "vocab.txt").write_text("[PAD]\r\n[UNK]\r\n")
    assert token_texts(tmp_path, [1]) == {1: "[UNK]"}
    whole = {"model": {"vocab": [["<s>", 0.0], ["</s>", -1.0]]}, "added_tokens": [{"id": 2, "content": "<mask>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    assert token_texts(tmp_path, [0, 2]) == {0: "<s>", 2: "<mask>"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"Ġx": 1}}}))
    assert token_texts(tmp_path, [1]) == {1: "Ġx"}
    (tmp_path / "tokenizer.json").write_text("{")  # broken: the next file serves
    assert token_texts(tmp_path, [1]) == {1: "[UNK]"}


# -- the command --------------------------------------------------------------------------------------------------


def test_a_model_whose_blocks_end_in_no_norm(tmp_path: Path) -> None:
    path = str(tmp_path / "gpt2")
    build(FAMILIES["gpt2"]).save_pretrained(path)
    with pytest.raises(TooMuchToRead, match="or name dimensions with --dims"):
        origin(path, OriginOptions(scan=ScanOptions(max_read=10)))
    reading = origin(path, OriginOptions(scan=ScanOptions(view="reading", rule=Rule(n_sigma=1.0))))
    assert {norm.role for norm in reading.norms} == {"reads", "final norm"}
    whole = origin(path, OriginOptions(dims=(3,)))
    written = {norm.layer: norm for norm in whole.norms if (norm.role, norm.part) == ("last", "weight")}
    weight = build(FAMILIES["gpt2"]).get_parameter("h.1.mlp.c_proj.weight").detach().numpy()  # [in, out]
    assert written["1"].value == pytest.approx(np.linalg.norm(weight[:, 3]), rel=1e-5)


# -- real models --------------------------------------------------------------------------------------------------


@pytest.mark.real
def test_dimension_557_of_distilbert_cased_is_the_minimum_of_position_row_0_alone(sample: Any) -> None:
    found = origin(sample("distilbert-cased"), OriginOptions(dims=(143, 283, 557)))
    entries = [found.entry("position", dim) for dim in (143, 283, 557)]
    assert (entries[2].smallest_alone, entries[2].smallest_rows) == (1, (0,))
    assert [one.z[0] for one in entries] == pytest.approx([-15.94, 0.42, -18.17], abs=0.01)
    assert (entries[0].first_rank, entries[2].first_rank) == (2, 1)
    tokens = {dim: found.entry("token", dim).token for dim in (143, 283, 557)}
    assert tokens == {143: "[CLS]", 283: "[SEP]", 557: "[MASK]"}
    ranks = [norm.rank_z for norm in found.norms if (norm.role, norm.part) == ("embedding norm", "bias")]
    assert ranks == [6, 203, 1]


@pytest.mark.real
def test_dimension_461_of_mpnet_is_the_maximum_of_nearly_every_position(sample: Any) -> None:
    found = origin(sample("mpnet-base"))
    table = found.table("position")
    assert (table.n_rows, table.n_read, table.first_row) == (514, 512, 2)
    entry = found.entry("position", 461)
    assert entry.largest_alone == 510
    assert entry.largest > table.largest
    assert "461 is the maximum of 510 of the 512 position rows; any other of at most 0.2%." in found.sentences()


@pytest.mark.real
def test_quantised_tokens_of_a_gguf_are_read_in_blocks(sample: Any) -> None:
    found = origin(sample("smollm2-135m"), OriginOptions(dims=(507,)))
    table = found.table("token")
    assert (table.stored, table.n_rows, table.n_read) == ("Q8_0", 49152, 49152)
    assert found.entry("token", 507).mean_z == pytest.approx(-4.3, abs=0.05)
    assert "no position table" in found.notes[-1]


# -- pictures -----------------------------------------------------------------------------------------------------


def data_of(layer: dict[str, Any]) -> list[dict[str, Any]]:
    return layer["data"]["values"]


def test_long_tables_are_thinned_but_keep_their_ends_and_marks(tmp_path: Path) -> None:
    made = origin_models.tensors()
    rows = np.random.default_rng(5).uniform(-1, 1, (3000, WIDTH)).astype(np.float32)
    rows[1500:1600, 3] = 5
    made["embeddings.position_embeddings.weight"] = rows
    found = origin(str(origin_models.saved(tmp_path / "model", made)), OriginOptions(dims=(3,)))
    band, _, marks = (data_of(layer) for layer in found.chart().spec["vconcat"][0]["layer"])
    drawn = [row["row"] for row in band]
    assert MAX_ROWS_DRAWN <= len(drawn) <= 2 * MAX_ROWS_DRAWN
    assert {0, 2999} <= set(drawn)
    assert set(range(1500, 1600)) <= {mark["row"] for mark in marks}
