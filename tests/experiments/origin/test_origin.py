"""Where outliers come from: planted needles, ranks by hand, streams cut anywhere, every family, files of every kind."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import origin_models
import synthetic_report
from architectures import FAMILIES, Family, batch, build
from hub_server import FakeHub
from origin_models import POSITIONS, TOKENS, WIDTH
from outlierlens.architectures import ARCHITECTURES, first_row, kind_of, stacks_of
from outlierlens.checkpoints.vocabulary import token_texts
from outlierlens.detection.observe.result import ActivationOutlier
from outlierlens.detection.rules import zscore
from outlierlens.detection.scan.measure import ScanOptions, scan
from outlierlens.errors import BadFile, BadInput, TooMuchToRead
from outlierlens.experiments.origin.embedding_tables import BINS, BinCounter, TablePass, histogram_of
from outlierlens.experiments.origin.measure import OriginOptions, dims_of_observation, origin, origin_live
from outlierlens.experiments.origin.result import Origin, StackOrigin, TableOrigin
from outlierlens.experiments.origin.verdict import summary
from outlierlens.models.load import from_objects
from outlierlens.results.document import from_json, load, save, to_json

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


def passed(rows: np.ndarray, dims: tuple[int, ...], cuts: list[int] | None = None, **options: Any) -> TableOrigin:
    """The outcome of a pass over `rows` cut before the rows in `cuts`."""
    collected = TablePass(rows.shape[1], dims, **options)
    for part in np.split(rows, sorted(cuts or [])):
        if len(part):
            collected.add(part)
    return collected.result(kind="token", name="t", stored="F32")


# -- one table ----------------------------------------------------------------------------------------------------


def test_a_small_table_by_hand() -> None:
    rows = np.array([[1, 2, 3, -4], [5, -1, -1, 0], [2, 2, 2, 2], [0, 8, 1, -9], [7, 7, 0, 1]], dtype=np.float32)
    table = passed(rows, (1, 3), keep_rows=True, first_row=1)
    assert (table.n_rows, table.n_read, table.first_row, table.n_tied) == (5, 3, 1, 2)  # row 0 unread, row 2 flat
    one, three = table.dims
    # Row 1 has its minimum in 1 and 2, row 3 its maximum in 1, row 4 its maximum in 0 and 1.
    assert (one.argmin_share, one.argmin_alone, one.argmin_tied, one.argmin_rows) == (pytest.approx(1 / 6), 0, 1, ())
    assert (one.argmax_share, one.argmax_alone, one.argmax_tied, one.argmax_rows) == (pytest.approx(0.5), 1, 1, (3,))
    assert (three.argmin_share, three.argmin_alone, three.argmin_rows) == (pytest.approx(1 / 3), 1, (3,))
    # Smallest: 1/6, 1/6 + 1/3 of dim 2 (half of row 1, all of row 4), 1/3; largest: 1/2 of 0, 1/2 of 1.
    assert (one.argmin_rank, three.argmin_rank, one.argmax_rank, three.argmax_rank) == (3, 2, 1, 3)
    assert {(s.end, s.dim): s.share for s in table.leaders if s.share} == {
        ("smallest", 2): pytest.approx(0.5), ("smallest", 3): pytest.approx(1 / 3), ("smallest", 1): pytest.approx(1 / 6),
        ("largest", 0): pytest.approx(0.5), ("largest", 1): pytest.approx(0.5),
    }  # fmt: skip
    most = table.most_of_others("smallest", (1, 3))
    assert most is not None
    assert most.dim == 2
    assert one.mean == pytest.approx(14 / 3)
    means = rows[[1, 3, 4]].mean(axis=0)
    assert one.mean_z == pytest.approx((means[1] - means.mean()) / means.std(), rel=1e-6)
    assert three.mean_rank == 1 + int((np.abs(means - means.mean()) > abs(means[3] - means.mean())).sum())
    assert one.quantiles == pytest.approx(np.quantile([-1, 8, 7], (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)))
    kept = table.rows
    assert kept is not None
    assert kept.low.tolist() == [-4, -1, 2, -9, 0]
    assert kept.argmax.tolist() == [2, 0, 0, 1, 0]
    assert kept.n_low.tolist() == [1, 2, 4, 1, 1]
    assert kept.n_high.tolist() == [1, 1, 4, 1, 2]
    assert kept.value[:, 1].tolist() == [-4, 0, 2, -9, 1]
    assert kept.rank_top.tolist() == [[2, 4], [3, 2], [1, 1], [1, 4], [1, 3]]
    assert kept.rank_bottom.tolist() == [[3, 1], [1, 3], [1, 1], [4, 1], [3, 2]]
    assert kept.rank_absolute.tolist() == [[3, 1], [2, 4], [1, 1], [2, 1], [1, 3]]
    assert kept.z == pytest.approx(zscore(rows)[:, [1, 3]], rel=1e-6)
    farthest = max((1, 3, 4), key=lambda row: abs(zscore(rows)[row, 3]))
    assert three.extremes[0].row == farthest
    assert [entry.row for entry in three.extremes] == sorted((1, 3, 4), key=lambda row: -abs(zscore(rows)[row, 3]))


def test_sigma_shares_and_peaks_are_those_of_the_whole_table() -> None:
    random = np.random.default_rng(4)
    rows = random.normal(size=(200, 40)).astype(np.float32)
    rows[17, 3] = 30
    table = passed(rows, (3, 9))
    z = zscore(rows)
    peak = np.abs(z).max(axis=0)
    for dim, one in zip((3, 9), table.dims, strict=True):
        assert one.sigma_share == pytest.approx((np.abs(z[:, dim]) >= 3).mean())
        assert one.peak_rank == 1 + int((peak > peak[dim]).sum())
        assert one.peak_sigma == pytest.approx((peak[dim] - peak.mean()) / peak.std())
        farthest = z[np.abs(z[:, dim]).argmax(), dim]
        assert one.peak_apart == pytest.approx(abs(farthest - z[:, dim].mean()) / z[:, dim].std())
        assert one.outside_share == pytest.approx((np.abs(rows[:, dim] - rows.mean()) >= 3 * rows.std()).mean())
        order = np.lexsort((np.arange(200), -np.abs(z[:, dim])))[:8]
        assert [entry.row for entry in one.extremes] == order.tolist()
    assert table.dims[0].extremes[0].z == pytest.approx(z[17, 3])
    assert table.peak_median == pytest.approx(np.median(peak))
    assert table.n_peak_outside == 1


FINITE = st.floats(-1e6, 1e6, width=32)


@given(arrays(np.float32, st.integers(1, 60), elements=FINITE))
def test_bins_count_as_numpy_does(values: np.ndarray) -> None:
    counter = BinCounter()
    for part in np.array_split(values, 3):
        counter.add(part)
    histogram, _ = counter.histogram(0.0, 1.0)
    expected, _ = np.histogram(values.astype(np.float64), bins=histogram.edges)
    # numpy closes the last bin on the right; a value there would lie in a bin of its own here.
    assert histogram.total == len(values)
    assert histogram.counts.tolist() == expected.tolist()
    largest = float(np.abs(values).max())
    assert largest < counter.reach <= max(2 * largest, 2.0**-30)


def test_bins_resolve_a_thousandth_of_the_range() -> None:
    histogram = histogram_of(np.array([-0.9, 0.0, 0.9]))
    assert histogram.width == 2 / BINS
    assert histogram.counts.sum() == 3
    assert histogram.sigma(0.0) == 0
    assert replace(histogram, std=0.0).sigma(5.0) == 0


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 24), max_size=4),
    arrays(np.float32, (24, 5), elements=st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0, 8.0])),
)
def test_the_outcome_does_not_depend_on_where_the_rows_are_cut(cuts: list[int], rows: np.ndarray) -> None:
    rows[0] = [1, 2, 3, 4, 5]  # at least one row with a spread
    whole = passed(rows, (0, 4), keep_rows=True)
    cut = passed(rows, (0, 4), cuts, keep_rows=True)
    one, other = (json.loads(to_json(wrapped(table))) for table in (whole, cut))
    assert near(one, other)


def wrapped(table: TableOrigin) -> Origin:
    from outlierlens.results.document import Provenance

    stack = StackOrigin("model", 5, 1, (0, 4), (table,), (), ())
    return Origin(Provenance("m", "f"), "", "", "", 3.0, (stack,), 0, 0)


def near(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list):
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
    (stack,) = origin(str(origin_models.saved(tmp_path / "model", made)), OriginOptions(dims=(5,))).stacks
    assert [table.kind for table in stack.tables] == ["token", "position"]
    assert stack.notes == (
        "embeddings.token_type_embeddings.weight: no row differs from a constant, so it says nothing",
    )


def test_no_dimension_is_first_where_all_are_equal(tmp_path: Path) -> None:
    made = origin_models.tensors()
    made["encoder.layer.0.output.LayerNorm.weight"][:] = 1
    (stack,) = origin(str(origin_models.saved(tmp_path / "model", made)), OriginOptions(dims=(5,))).stacks
    norm = next(one for one in stack.norms if one.module == "output.LayerNorm" and one.part == "scale")
    assert (norm.rank_z[0, 0], norm.z[0, 0], norm.n_flat) == (1, 0, 1)
    assert not norm.first(0)[0]


# -- a model with needles -----------------------------------------------------------------------------------------


def test_a_planted_needle_is_followed_from_its_token_and_position_to_the_norms(tmp_path: Path) -> None:
    found = origin_models.found(tmp_path / "model")
    (stack,) = found.stacks
    assert (stack.dims, stack.hidden_size, stack.n_layers) == ((5, 2), WIDTH, 2)
    five, two = stack.verdicts
    token = stack.table("token").dims[0]
    assert [(entry.row, entry.token) for entry in token.extremes[:1]] == [(1, "[CLS]")]
    assert (token.argmax_rows, token.argmax_alone) == ((1,), 1)
    position = stack.table("position")
    assert position.dims[0].argmin_rows == (0,)
    assert [place.where for place in five.places] == [
        "token [CLS]", "position row 0", "position table", "layer 0, output.LayerNorm, scale",
        "layer 0, output.LayerNorm, bias",
    ]  # fmt: skip
    assert "is the minimum of position row 0 and of no other of the 8 position rows" in five.sentences
    assert "is the maximum of token [CLS] and of no other of the 60 token rows" in five.sentences
    assert position.rows is not None
    z = position.rows.z[0, 0]
    assert z == pytest.approx(zscore(origin_models.planted()["embeddings.position_embeddings.weight"])[0, 5])
    assert f"in position row 0 its z is {z:.1f}, rank 1 from the bottom".replace("-", "−") in " ".join(five.sentences)
    assert five.places[-1].why.endswith("; so in 2 of 2 layers")
    assert [place.n_likewise for place in five.places] == [1, 1, 1, 1, 1]
    assert summary(five).startswith(
        "5: first stands out in token [CLS] (z +4.3 within the row; no other dimension does)"
    )
    assert two.places == ()
    assert two.sentences[-1] == "stands out nowhere in the weights that were read"
    assert summary(two) == "2: stands out nowhere in the weights that were read"
    assert found.notes == ()
    assert found.bytes_read <= found.total_bytes


def test_ranks_of_norms_by_hand(tmp_path: Path) -> None:
    made = origin_models.tensors()
    scale = np.array([1, 2, 3, 4, 5, -6, 7, 8, 9, 10, 11, 12, *[0] * 8], dtype=np.float32)
    made["embeddings.LayerNorm.weight"] = scale
    made["encoder.layer.1.attention.output.LayerNorm.bias"] = np.float32([0] * 11 + [1] + [0] * 8)
    path = origin_models.saved(tmp_path / "model", made)
    (stack,) = origin(str(path), OriginOptions(dims=(5, 11))).stacks
    by_name = {(norm.role, norm.module, norm.part): norm for norm in stack.norms}
    assert list(by_name) == [
        ("embedding norm", "embeddings.LayerNorm", "scale"), ("embedding norm", "embeddings.LayerNorm", "bias"),
        ("after a write", "attention.output.LayerNorm", "scale"), ("after a write", "attention.output.LayerNorm", "bias"),
        ("last", "output.LayerNorm", "scale"), ("last", "output.LayerNorm", "bias"),
    ]  # fmt: skip
    norm = by_name["embedding norm", "embeddings.LayerNorm", "scale"]
    assert norm.layers == ("embeddings",)
    assert norm.value.tolist() == [[-6, 12]]
    assert norm.rank_top.tolist() == [[20, 1]]
    assert norm.rank_bottom.tolist() == [[1, 20]]
    assert norm.rank_absolute.tolist() == [[7, 1]]  # 12 … 7 are larger than |−6|
    z = (scale - scale.mean()) / scale.std()
    assert norm.z == pytest.approx(z[None, [5, 11]], rel=1e-6)
    assert norm.rank_z.tolist() == [[1, 2]]
    assert (norm.other_dim.tolist(), norm.other_z) == ([10], pytest.approx([z[10]]))
    assert norm.histogram is not None
    assert norm.histogram.total == WIDTH
    bias = by_name["after a write", "attention.output.LayerNorm", "bias"]
    assert bias.layers == ("0", "1")
    assert bias.rank_z[1].tolist() == [2, 1]  # nineteen equal values share rank 2
    assert bias.n_outside[1] == 1
    rows = [row for row in origin(str(path), OriginOptions(dims=(5,))).records() if row["role"] == "embedding norm"]
    assert [(row["part"], row["layer"], row["dim"]) for row in rows] == [
        ("scale", "embeddings", 5),
        ("bias", "embeddings", 5),
    ]


def test_a_result_comes_back_from_json_and_as_tables(tmp_path: Path) -> None:
    found = origin_models.found(tmp_path / "model")
    again = from_json(to_json(found))
    assert to_json(again) == to_json(found)
    assert again.stacks[0].verdicts == found.stacks[0].verdicts
    assert len(list(found.records())) == 2 * (2 + 4 * 2)


def test_default_dimensions_are_those_of_the_scan_and_the_fingerprint_is_of_the_values(tmp_path: Path) -> None:
    path = origin_models.saved(tmp_path / "model", origin_models.planted())
    found = origin(str(path))
    assert found.stacks[0].dims == scan(str(path)).stacks[0].dims == (5,)
    assert found.bytes_read <= found.total_bytes  # nothing is read twice
    assert found.named_by == "the rule kovaleva on the weights"
    assert origin(str(path)).provenance.fingerprint == found.provenance.fingerprint
    other = origin_models.planted()
    other["embeddings.word_embeddings.weight"][7, 7] += 1
    changed = origin(str(origin_models.saved(tmp_path / "other", other)))
    assert changed.provenance.fingerprint != found.provenance.fingerprint
    nothing = origin(str(origin_models.saved(tmp_path / "plain", origin_models.tensors())))
    assert nothing.stacks[0].dims == ()
    assert "finds no outlier at 3 sigma" in nothing.stacks[0].notes[0]
    assert nothing.stacks[0].table("position").leaders


def test_what_cannot_be_followed_is_said(tmp_path: Path) -> None:
    path = str(origin_models.saved(tmp_path / "model", origin_models.planted()))
    with pytest.raises(BadInput, match=r"dimension 20 does not exist in .*; widths: model 20"):
        origin(path, OriginOptions(dims=(5, 20)))
    with pytest.raises(BadInput, match="has no stack 'decoder'; its stacks: model"):
        origin(path, OriginOptions(dims={"decoder": (5,)}))
    with pytest.raises(BadInput, match="stack 'model' has no class table; there are token, position, segment"):
        origin(path, OriginOptions(dims=(5,))).stacks[0].table("class")
    told: list[str] = []
    limited = origin(path, OriginOptions(dims=(5,), scan=ScanOptions(max_read=1000, notice=told.append)))
    whole = origin(path, OriginOptions(dims=(5,)))
    assert limited.stacks[0].verdicts == whole.stacks[0].verdicts  # a first place without all tables is none
    assert [table.kind for table in limited.stacks[0].tables] == ["token", "position", "segment"]
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
    (stack,) = origin(str(path), OriginOptions(dims=(3,))).stacks
    table = stack.table("position")
    assert (table.first_row, table.n_rows, table.n_read) == (2, POSITIONS, POSITIONS - 2)
    assert table.dims[0].argmin_rows == (2,)
    assert np.abs(table.values.edges).max() < 100
    assert stack.verdicts[0].places[0].where == "position row 2 (position 0)"


def test_a_model_on_a_hub_is_read_by_ranges_and_gives_the_same(hub: FakeHub, tmp_path: Path) -> None:
    path = origin_models.saved(tmp_path / "model", origin_models.planted() | {"head": np.zeros(300_000, np.float32)})
    hub.add("org/model", {file: path / file for file in ("config.json", "model.safetensors")})
    here, there = (origin(name, OriginOptions(dims=(5, 2))) for name in (str(path), "org/model"))
    assert there.source == "hub"
    assert there.bytes_read < there.total_bytes
    without_texts = [replace(entry, token="") for entry in here.stacks[0].table("token").dims[0].extremes]
    assert list(there.stacks[0].table("token").dims[0].extremes) == without_texts
    assert [norm.z.tolist() for norm in there.stacks[0].norms] == [norm.z.tolist() for norm in here.stacks[0].norms]
    assert there.stacks[0].verdicts[0].places[0].where == "token 1"


def test_dimensions_of_an_observation() -> None:
    seen = synthetic_report.observation(n_layers=6, hidden_size=520)
    stack = seen.stacks[0]
    outliers = tuple(
        ActivationOutlier(rule, dim, ("0",), (1.0,)) for rule, dim in (("luo", 9), ("massive", 9), ("luo", 4))
    )
    assert dims_of_observation(replace(seen, stacks=(replace(stack, outliers=outliers),))) == {stack.stack: (9, 4)}
    with pytest.raises(BadInput, match="found no outlier in any stack"):
        dims_of_observation(replace(seen, stacks=(replace(stack, outliers=()),)))


# -- every family -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_its_tables_and_norms(name: str) -> None:
    model = build(FAMILIES[name])
    loaded = from_objects(model)
    found = origin_live(loaded, OriginOptions(dims=(3, 11)))
    expected = TABLES.get(SAME.get(name, name)) or {stack.name: "token" for stack in loaded.stacks}
    assert expected == {
        stack.stack: " ".join(t.kind + (f"@{t.first_row}" if t.first_row else "") for t in stack.tables)
        for stack in found.stacks
    }
    for bound, stack in zip(loaded.stacks, found.stacks, strict=True):
        for table in stack.tables:
            values = model.get_parameter(table.name).detach().numpy().reshape(-1, 16)
            assert table.dims[1].mean == pytest.approx(float(values[table.first_row :, 11].mean()), rel=1e-4)
        noted = " ".join(stack.notes)
        assert ("no position table" in noted) == ("position" not in expected[stack.stack])
        has_tokens = "token" in expected[stack.stack]
        assert ("projected into it by" in noted) == bool(bound.stack.embedding_linears and not has_tokens)
        assert [norm for norm in stack.norms if norm.role == "last"]
        in_blocks = [
            norm for norm in stack.norms if norm.role in ("reads", "after a write", "last") and norm.part == "scale"
        ]
        assert {norm.module for norm in in_blocks} == set(bound.norms)
        for norm in in_blocks:
            for i, layer in enumerate(norm.layers):
                weight = model.get_parameter(f"{bound.blocks[int(layer)]}.{norm.module}.weight")
                assert norm.value[i] == pytest.approx(
                    weight[[3, 11]].detach().numpy() + bound.stack.norm_offset, rel=1e-5
                )
    assert from_json(to_json(found)).provenance.fingerprint == found.provenance.fingerprint


def test_every_declared_table_has_a_kind() -> None:
    for model_type in ARCHITECTURES:
        for stack in stacks_of({"model_type": model_type}):
            for table in (*stack.embeddings, *(name for names in stack.stored_as.values() for name in names)):
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


def test_the_command_prints_verdicts_and_tables_and_writes_json(run: Any, tmp_path: Path) -> None:
    path = str(origin_models.saved(tmp_path / "model", origin_models.planted()))
    code, out, err = run("origin", path, "-o", str(tmp_path / "o.json"), "-v", "--chart", str(tmp_path / "o.json.json"))
    assert (code, err) == (0, "")
    assert "dimensions by the rule kovaleva on the weights: 5" in out
    assert "5: first stands out in token [CLS]" in out
    assert "5: is the minimum of position row 0 and of no other of the 8 position rows" in out
    assert "Most of any dimension that is not named" in out
    assert "output.LayerNorm" in out
    found = load(tmp_path / "o.json")
    assert found.stacks[0].dims == (5,)
    assert "vconcat" in json.loads((tmp_path / "o.json.json").read_text())
    code, out, _ = run("origin", path, "--dims", "2,5", "--json")
    assert code == 0
    assert json.loads(out)["kind"] == "Origin"
    assert json.loads(out)["named_by"] == "--dims"


def test_dimensions_from_an_observation_file(run: Any, tmp_path: Path) -> None:
    path = str(origin_models.saved(tmp_path / "model", origin_models.planted()))
    seen = synthetic_report.observation(n_layers=6, hidden_size=520)
    outliers = (ActivationOutlier("luo", 9, ("0",), (1.0,)),)
    save(replace(seen, stacks=(replace(seen.stacks[0], outliers=outliers),)), tmp_path / "seen.json")
    code, out, _ = run("origin", path, "--from", str(tmp_path / "seen.json"))
    assert code == 0
    assert "dimensions by seen.json (observe): 9" in out
    save(scan(path), tmp_path / "scan.json")
    for arguments, message in [
        (("--from", str(tmp_path / "scan.json")), "holds a Scan, not an Observation; make it with outlierlens observe"),
        (("--from", str(tmp_path / "seen.json"), "--dims", "3"), "--dims and --from both name dimensions"),
        (("--dims", "0-1:3"), "names layers; write dimensions alone"),
        (("--dims", "99"), "dimension 99 does not exist"),
        (
            ("--chart", str(tmp_path / "x.html"), "--stack", "decoder"),
            "--stack 'decoder': no such stream; there are model",
        ),
    ]:
        code, _, err = run("origin", path, *arguments)
        assert code == (2 if "names layers" in message else 1)
        assert message in err
    for words in (("--picture", "pie"), ("--view", "first")):
        code, _, err = run("origin", path, *words)
        assert (code, f'Invalid value "{words[1]}" for {words[0]}.' in err) == (2, True), err


def test_a_model_whose_blocks_end_in_no_norm(run: Any, tmp_path: Path) -> None:
    build(FAMILIES["gpt2"]).save_pretrained(tmp_path / "gpt2")
    code, _, err = run("origin", str(tmp_path / "gpt2"), "--dims", "3", "--max-read", "1000")
    assert code == 0, err
    assert "reads what the blocks write last, 0 MB, in parts" in err
    code, _, err = run("origin", str(tmp_path / "gpt2"), "--max-read", "1000")
    assert code == 1
    assert "or name dimensions with --dims" in err
    with pytest.raises(TooMuchToRead):
        origin(str(tmp_path / "gpt2"), OriginOptions(scan=ScanOptions(max_read=10)))
    reading = origin(str(tmp_path / "gpt2"), OriginOptions(scan=ScanOptions(view="reading"))).stacks[0]
    assert {norm.role for norm in reading.norms} == {"reads", "final norm"}
    whole = origin(str(tmp_path / "gpt2"), OriginOptions(dims=(3,))).stacks[0]
    (written,) = [norm for norm in whole.norms if (norm.role, norm.part) == ("last", "weight")]
    weight = build(FAMILIES["gpt2"]).get_parameter("h.1.mlp.c_proj.weight").detach().numpy()  # [in, out]
    assert written.value[1, 0] == pytest.approx(np.linalg.norm(weight[:, 3]), rel=1e-5)
    code, _, err = run(
        "origin", str(tmp_path / "gpt2"), "--dims", "3", "--chart", str(tmp_path / "c.html"), "--picture", "rows"
    )
    assert (code, err) == (0, "")


# -- real models --------------------------------------------------------------------------------------------------


@pytest.mark.real
def test_dimension_557_of_distilbert_cased_is_the_minimum_of_position_row_0_alone(sample: Any) -> None:
    found = origin(sample("distilbert-cased"), OriginOptions(dims=(143, 283, 557)))
    (stack,) = found.stacks
    position = stack.table("position")
    named = position.dims[2]
    assert (named.argmin_alone, named.argmin_rows) == (1, (0,))
    assert position.rows is not None
    assert position.rows.z[0].tolist() == pytest.approx([-15.94, 0.42, -18.17], abs=0.01)
    assert position.rows.rank_bottom[0, 0] == 2
    tokens = {dim.dim: dim.extremes[0] for dim in stack.table("token").dims}
    assert {dim: entry.token for dim, entry in tokens.items()} == {143: "[CLS]", 283: "[SEP]", 557: "[MASK]"}
    bias = next(norm for norm in stack.norms if (norm.role, norm.part) == ("embedding norm", "bias"))
    assert bias.rank_z[0].tolist() == [6, 203, 1]


@pytest.mark.real
def test_dimension_461_of_mpnet_is_the_maximum_of_nearly_every_position(sample: Any) -> None:
    (stack,) = origin(sample("mpnet-base")).stacks
    table = stack.table("position")
    assert (table.n_rows, table.n_read, table.first_row) == (514, 512, 2)
    (dim,) = [one for one in table.dims if one.dim == 461]
    assert (dim.argmax_alone, dim.argmax_rank) == (510, 1)


@pytest.mark.real
def test_quantised_tokens_of_a_gguf_are_read_in_blocks(sample: Any) -> None:
    (stack,) = origin(sample("smollm2-135m"), OriginOptions(dims=(507,))).stacks
    table = stack.table("token")
    assert (table.stored, table.n_rows, table.n_read) == ("Q8_0", 49152, 49152)
    assert table.dims[0].mean_z == pytest.approx(-4.3, abs=0.05)
    assert "no position table" in stack.notes[-1]


def test_tables_are_counted_as_numpy_counts_them(tmp_path: Path) -> None:
    made = origin_models.tensors(3)
    (stack,) = origin(str(origin_models.saved(tmp_path / "model", made)), OriginOptions(dims=(4,))).stacks
    for kind, name in (("token", "word"), ("position", "position"), ("segment", "token_type")):
        table, values = stack.table(kind), made[f"embeddings.{name}_embeddings.weight"].astype(np.float64)
        counts, _ = np.histogram(values, bins=table.values.edges)
        assert table.values.counts.tolist() == counts.tolist()
        assert (table.values.mean, table.values.std) == (pytest.approx(values.mean()), pytest.approx(values.std()))
        own, _ = np.histogram(values[:, 4], bins=table.values.edges)
        assert table.dims[0].counts.tolist() == own.tolist()
        others = np.delete(values, 4, axis=1).ravel()
        ranked = np.sort(others)[[int(np.ceil(q * len(others))) - 1 for q in (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)]]
        assert np.abs(table.value_quantiles - ranked).max() <= table.values.width / 2
    assert stack.table("token").n_rows == TOKENS
