"""Atlases that others wrote, and models with a value that no Parquet column holds: one line, or a row that says why."""

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

import hostile
from moments import contents
from outlierlens.analyses import atlas as page
from outlierlens.analyses import atlas_rows as kept
from outlierlens.analyses.atlas import COLUMNS, HubAccess, look, write_site
from outlierlens.analyses.atlas_lookup import LookupOptions, lookup
from outlierlens.analyses.atlas_rows import AtlasOutlier, AtlasRow, ListEntry, read_rows, schema, write_part
from outlierlens.checkpoints.ranges import Rate
from outlierlens.errors import BadFile

VECTORS = np.random.default_rng(0).normal(1, 0.1, (2, 40)).astype(np.float16)
ROW = AtlasRow(
    "a/b", "c" * 40, "model", "norm", "bert", 40, 2, "F32", "safetensors", "layernorm", "stream", "mit", "https://hub",
    "2020-01-31", 5, 10, 1000, 7, 0.5, (AtlasOutlier(2, -3.5, 3.5, -1, (0, 1), 0.25),), VECTORS, VECTORS,
)  # fmt: skip
NESTED = arrow.list_(arrow.list_(arrow.struct({"a": arrow.int64()}.items())))


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return parquet.read_table(write_part(tmp_path / "good.parquet", [ROW, replace(ROW, model="a/c")]))


def refused(table: Any, folder: Path) -> str:
    """What every reader of the file says, which is one line."""
    path = folder / "rows.parquet"
    parquet.write_table(table, path)
    said = set()
    readers: tuple[Callable[[], Any], ...] = (
        lambda: list(read_rows(path)),
        lambda: write_site(
            read_rows(path, (*COLUMNS, "origin", "seconds", "dtype", "format", *kept.ARRAYS)),
            folder / "site",
        ),
        lambda: lookup("a/b", LookupOptions(atlas=path)),
    )
    for read in readers:
        with pytest.raises(BadFile) as caught:
            read()
        assert "\n" not in str(caught.value)
        said.add(str(caught.value))
    assert not (folder / "site").exists()
    assert len(said) == 1, said
    return said.pop().removeprefix(f"{path}: cannot be read as a parquet file: ")


ELSE = "; name another file, or make one with `outlierlens atlas build`"


@pytest.mark.parametrize("name", schema().names)
def test_a_column_that_is_missing_or_of_another_type(table: Any, tmp_path: Path, name: str) -> None:
    ours, at = str(schema().field(name).type)[:80], schema().get_field_index(name)
    said = refused(table.drop_columns([name]), tmp_path)
    assert said == f"column {name} is missing here and {ours} in an atlas{ELSE}"
    for kind in (arrow.binary(), arrow.int16(), arrow.timestamp("us"), NESTED):
        said = refused(table.set_column(at, name, arrow.nulls(len(table), kind)), tmp_path)
        assert said.startswith(f"column {name} is {str(kind)[:5]}")
        assert said.endswith(f" here and {ours} in an atlas{ELSE}")


def test_a_column_more_than_an_atlas_has(table: Any, tmp_path: Path) -> None:
    more = table.append_column("more", arrow.array([1, 2]))
    assert refused(more, tmp_path) == f"column more is int64 here and missing in an atlas{ELSE}"
    twice = arrow.Table.from_arrays([*table.columns, table.column("model")], names=[*table.column_names, "model"])
    assert "model" in refused(twice.replace_schema_metadata(table.schema.metadata), tmp_path)


@pytest.mark.parametrize("name", [name for name in schema().names if name not in kept.MAY_BE_NULL])
def test_a_null_where_none_may_be(table: Any, tmp_path: Path, name: str) -> None:
    kind, at = schema().field(name).type, schema().get_field_index(name)
    values = [table.column(name)[0].as_py(), None]
    assert (
        refused(table.set_column(at, name, arrow.array(values, kind)), tmp_path) == f"column {name} holds a null{ELSE}"
    )


OUTLIER = {"dim": 2, "z_scale": 3.5, "z_bias": None, "sign": 1, "layers": [0], "p_holm": 0.5}


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("width", -40, "column width holds a number below 0"),
        ("downloads", -1, "column downloads holds a number below 0"),
        ("seconds", float("nan"), "column seconds holds NaN or infinity"),
        ("scale", [float("nan")] * 80, "column scale items holds NaN or infinity"),
        ("bias", [None] * 80, "column bias items holds a null"),
        ("outliers", [None], "column outliers items holds a null"),
        ("outliers", [OUTLIER] * 300_000, "column outliers holds a list of more than 10,000"),
        *(("outliers", [OUTLIER | {one: None}], f"column {one} holds a null") for one in OUTLIER if one != "z_bias"),
        *(
            ("outliers", [OUTLIER | {one: value}], f"column {one} holds NaN or infinity")
            for one in ("z_scale", "z_bias", "p_holm")
            for value in (float("nan"), float("inf"))
        ),
        ("outliers", [OUTLIER | {"layers": [None]}], "column layers items holds a null"),
        ("outliers", [OUTLIER | {"layers": [-1]}], "column layers items holds a number below 0"),
        ("outliers", [OUTLIER | {"dim": -1}], "column dim holds a number below 0"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_value_that_no_row_may_hold(table: Any, tmp_path: Path, name: str, value: Any, wrong: str) -> None:
    kind, at = schema().field(name).type, schema().get_field_index(name)
    values = [table.column(name)[0].as_py(), value]
    assert refused(table.set_column(at, name, arrow.array(values, kind)), tmp_path) == wrong + ELSE


def test_vectors_of_another_length_and_of_no_layers(table: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    for layers, width, scale in ((3, 40, VECTORS.ravel()), (0, 40, VECTORS.ravel()[:0])):
        at = schema().get_field_index
        other = table.set_column(at("layers"), "layers", arrow.array([layers] * 2))
        other = other.set_column(at("width"), "width", arrow.array([width] * 2))
        other = other.set_column(at("scale"), "scale", arrow.array([scale] * 2, schema().field("scale").type))
        parquet.write_table(other, path)
        with pytest.raises(BadFile, match=f"scale has {scale.size} values, not layers × width"):
            list(read_rows(path))


def test_what_is_null_by_right_is_read(tmp_path: Path) -> None:
    few = AtlasRow("m", outliers=(AtlasOutlier(2, -3.5, None, -1, (0, 1), 0.25),))
    wide = replace(ROW, scale=np.full_like(VECTORS, np.inf), bias=None)
    found = list(read_rows(write_part(tmp_path / "x.parquet", [few, wide])))
    assert found == [few, wide]
    assert np.isinf(found[1].scale).all()


POISON: list[dict[str, Any]] = [
    *({"downloads": n} for n in (10**40, 2**63, float("nan"), -1, True, "many", [1])),
    *({"bytes_total": n} for n in (10**40, float("nan"), -1)),
    *({name: "\ud800"} for name in ("family", "license", "created", "dtype", "origin")),
    {"seconds": float("nan")},
    {"outliers": (AtlasOutlier(2, float("nan"), None, 1, (0,), 0.5),)},
    {"outliers": (AtlasOutlier(2, 3.5, None, 1, (40_000,), 0.5),)},  # layers are 16 bits wide
    {"outliers": (AtlasOutlier(2**31, 3.5, None, 1, (0,), 0.5),)},
]


@pytest.mark.parametrize("bad", POISON, ids=repr)
def test_such_a_value_does_not_enter_an_atlas(monkeypatch: pytest.MonkeyPatch, bad: dict[str, Any]) -> None:
    monkeypatch.setattr("outlierlens.analyses.atlas.rows_of", lambda *_: (replace(ROW, **bad),))
    told = {name: value for name, value in bad.items() if name in ("downloads", "license", "created")}
    (row,) = look(ListEntry("mini-bert", **told), HubAccess(), Rate())
    assert (row.reason is None) == (set(bad) <= {"seconds", "origin"})  # these are what looking says
    assert row.failure is None or row.failure.startswith(f"no atlas holds this: {next(iter(bad))}: ")


def any_table(chance: Random) -> Any:
    """Rows of random words and numbers, as an atlas may hold them; of the first the name is "a/b"."""

    def made(place: int) -> AtlasRow:
        layers, width = chance.choice(((1, 1), (2, 40), (2, 128), (3, 40)))
        scale = np.random.default_rng(chance.randrange(99)).normal(1, 0.1, (layers, width)).astype(np.float16)
        scale *= np.float16(chance.choice((1, 1, 1, 0, np.inf, -1)) or 0)
        outlying = [
            AtlasOutlier(
                chance.choice((0, 7, 2**31 - 1)), chance.choice((-3.5, 1e30, 0.0)), chance.choice((None, 2.5)),
                chance.choice((-1, 1, 0, 127)), (0, chance.choice((1, 32_767))), chance.choice((0.0, 0.5, -1.0, 1e300)),
            )
            for _ in range(chance.choice((0, 1, 3)))
        ]  # fmt: skip
        words = {
            name: hostile.text(chance, surrogates=False)
            for name in chance.sample(WORDS, chance.randrange(len(WORDS) + 1))
        }
        given = {
            "model": chance.choice(("a/b", "a/c", "a/B", *words.values())) if place else "a/b",
            "layers": layers, "width": width, "outliers": tuple(outlying), "scale": chance.choice((None, scale, scale)),
            "bias": chance.choice((None, scale)),
            "downloads": chance.choice((None, 0, 2**63 - 1)), "seconds": chance.choice((0.5, 1e38, -1.0)),
            "bytes_read": chance.choice((0, 2**63 - 1)), "bytes_total": chance.choice((0, 1, 2**63 - 1)),
        }  # fmt: skip
        return replace(ROW, **words | given | ({} if place else {"failure": None, "reason": None}))

    return arrow.Table.from_pylist(
        [kept.to_plain(made(place)) for place in range(chance.randrange(1, 5))], schema=schema()
    )


WORDS = ("revision", "stack", "site", "family", "dtype", "format", "norm", "norm_site", "license", "origin", "created",
         "reason", "failure")  # fmt: skip
SCALARS = (
    arrow.null(), arrow.bool_(), arrow.int8(), arrow.uint64(), arrow.int64(), arrow.float16(), arrow.float64(), arrow.string(),
    arrow.large_string(), arrow.binary(), arrow.binary(3), arrow.date32(), arrow.timestamp("ns", "Europe/Berlin"),
    arrow.duration("s"), arrow.time64("us"), arrow.decimal128(38, 2), arrow.decimal256(76, 3),
)  # fmt: skip


def any_type(chance: Random, depth: int = 2) -> Any:
    one, other = chance.choice(SCALARS), chance.choice(SCALARS)
    if not depth or chance.random() < 0.5:
        return one
    within = any_type(chance, depth - 1)
    return chance.choice((
        arrow.list_(within), arrow.large_list(within), arrow.list_(within, 2), arrow.struct([("a", within), ("dim", one)]),
        arrow.map_(arrow.string(), other), arrow.dictionary(arrow.int32(), arrow.string()),
    ))  # fmt: skip


def any_change(table: Any, chance: Random) -> Any:
    """The table with a column of other values or another type, one more or fewer, in another order, or other metadata."""
    name, kind = chance.choice(table.column_names), chance.randrange(9)
    at, n = table.column_names.index(name), len(table)
    field, other = table.schema.field(at), any_type(chance)
    if kind == 0:
        return table.set_column(at, arrow.field(name, other), arrow.nulls(n, other))
    if kind == 1:
        return table.remove_column(at)
    if kind == 2:
        more = chance.choice((name, name.upper(), hostile.text(chance, surrogates=False)))
        return table.append_column(arrow.field(more, other), arrow.nulls(n, other))
    if kind == 3:
        order = chance.sample(range(table.num_columns), table.num_columns)
        return arrow.Table.from_arrays([table.column(one) for one in order], schema=arrow.schema(
            [table.schema.field(one) for one in order], metadata=table.schema.metadata))  # fmt: skip
    if kind == 4:
        meta = chance.choice((
            None, {}, {"outlierlens_atlas": "9"}, {"outlierlens_atlas": b"\xff\x00"}, {"pandas": "{" * 1000},
            {"outlierlens_atlas": "1", "pandas": json.dumps({"index_columns": [hostile.json_value(chance)]}, default=str)},
            {"outlierlens_atlas": "1" * 10**6}, {"ARROW:schema": "AAAA", "outlierlens_atlas": "1"},
        ))  # fmt: skip
        return table.replace_schema_metadata(meta)
    if kind == 5:  # a null anywhere, or a record of nulls
        values = table.column(at).to_pylist()
        values[chance.randrange(n)] = chance.choice((None, {}, [], [None])) if field.type.num_fields else None
    elif kind == 6 and arrow.types.is_list(field.type) and field.type.value_type.num_fields == 0:
        value = chance.choice((float("nan"), float("inf"), -1, 0, None))
        values = table.column(at).to_pylist()
        values[chance.randrange(n)] = [value] * chance.choice((1, 80, 10_001, 300_000))
    elif kind == 7 and arrow.types.is_string(field.type):
        alike = table.column(at).cast(chance.choice((arrow.large_string(), arrow.binary(), arrow.string())))
        return table.set_column(at, name, chance.choice((alike, alike.dictionary_encode())))
    else:
        values = [chance.choice((float("nan"), -(2**63), 2**63 - 1, 10**6, 0, 1, "x", None)) for _ in range(n)]
    try:
        return table.set_column(at, field, arrow.array(values, field.type))
    except (arrow.ArrowException, TypeError, OverflowError, ValueError):
        return table


def any_file(chance: Random, path: Path) -> bool:
    """Write an atlas, of every third with some bytes changed; returns whether nothing in it is wrong."""
    table, n = any_table(chance), chance.choice((0, 1, 1, 2))
    for _ in range(n):
        table = any_change(table, chance)
    kept_schema = chance.random() < 0.9
    parquet.write_table(
        table, path, compression=chance.choice(("none", "zstd", "gzip", "snappy")), use_dictionary=chance.random() < 0.5,
        row_group_size=chance.choice((1, 2, 100)), data_page_version=chance.choice(("1.0", "2.0")),
        store_schema=kept_schema, version=chance.choice(("1.0", "2.4", "2.6")),
    )  # fmt: skip
    if damaged := chance.random() < 0.3:
        path.write_bytes(hostile.spoilt(path.read_bytes(), chance))
    return kept_schema and not (n or damaged)


@pytest.mark.parametrize("chance", hostile.chances("ATLASES", 40), ids=itertools.count())
def test_any_atlas_is_shown_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any, chance: Random
) -> None:
    monkeypatch.chdir(tmp_path)
    good = any_file(chance, Path("rows.parquet"))
    Path("site").mkdir(), Path("site", "index.html").write_text(f"{page.MARK.decode()} before")
    Path("theirs.html").write_text("theirs")
    before = contents(tmp_path)
    asked = "--overwrite", "-o", chance.choice(("site", "new/site"))
    for words in (
        ("atlas", "page", "rows.parquet", *asked),
        (
            "atlas",
            "lookup",
            chance.choice(("a/b", "mini-planted")),
            "--atlas",
            "rows.parquet",
            "--model-args",
            "offline",
        ),
    ):
        code, out, err = run(*words)
        assert code in ((0,) if good else (0, 1)), err
        assert code == 0 or (err.startswith("error: ") and err.count("\n") == 1 and len(err) < 2000)
        assert all(one.isprintable() or one == "\n" for one in out + err)
        after = contents(tmp_path)
        if code or words[1] == "lookup":
            assert after == before
        before = after
    shown = [
        path for path in tmp_path.rglob("*.html") if b"before" not in path.read_bytes() and path.name != "theirs.html"
    ]
    for path in shown:
        assert len(re.findall(r"(?i)<script|</script|<img|<!--|onerror=", path.read_text("utf-8"))) == 4, path
