"""`atlas build` against a hub on this machine: every planted dimension, every reason, nothing lost, nothing twice."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import warnings
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from atlas_hub import SIZES, WAYS, Catalogue, Faults, real_size
from hub_server import COMMIT, FakeHub, Handler, Seen
from outlierlens.analyses import atlas as loop
from outlierlens.analyses import atlas_rows as kept
from outlierlens.analyses.atlas import BuildSummary, HubAccess, build, failed, in_threads, look, on_ray
from outlierlens.analyses.atlas_rows import (
    AtlasOutlier,
    AtlasRow,
    ListEntry,
    Query,
    Store,
    listed,
    names_in,
    query,
    read_rows,
    write_part,
)
from outlierlens.analyses.scan import scan
from outlierlens.analyses.sweep.options import Machines
from outlierlens.checkpoints import samples
from outlierlens.checkpoints.ranges import Rate
from outlierlens.cli.app import run
from outlierlens.detection.weights import strongest
from outlierlens.errors import BadFile, BadInput, RemoteError

pytest_plugins = ["hub_fixtures"]
FAMILIES = ("bert", "llama", "t5", "gpt2", "bart", "modernbert")


@pytest.fixture
def catalogue(hub: FakeHub) -> Catalogue:
    """120 models of six families, broken ones and faults of the connection among them."""
    made = Catalogue(120, families=FAMILIES)
    hub.models = made
    hub.tamper[""] = Faults(made, per_thousand=20)
    return made


def unbroken(hub: FakeHub, size: int, family: str = "bert") -> Catalogue:
    """Models of one family on the hub, each as it should be."""
    made = Catalogue(size, families=(family,))
    made.way = lambda name: ""  # type: ignore[method-assign]
    hub.models = made
    return made


def built(folder: Path, names: Any, **options: Any) -> BuildSummary:
    parallel = options.pop("parallel", 8)
    with Store.open(folder) as store:
        return build(store, names, partial(in_threads, access=HubAccess(parallel=parallel)), **options)


def by_model(folder: Path) -> dict[str, list[AtlasRow]]:
    found = defaultdict(list)
    for row in read_rows(folder):
        found[row.model].append(row)
    return found


def holds(catalogue: Catalogue, folder: Path) -> None:
    """Every model has its rows once, with what was planted in it or the reason why not."""
    found = by_model(folder)
    assert found.keys() == set(catalogue)
    for name, rows in found.items():
        assert len({(row.revision, row.stack) for row in rows}) == len(rows), name
        assert {row.reason or "" for row in rows} == {catalogue.broken(name)}, (name, rows[0].failure)
        if not catalogue.broken(name):
            planted = catalogue.planted(name)
            assert {row.stack: [one.dim for one in row.outliers] for row in rows} == {
                row.stack: [planted[row.stack]] if planted else [] for row in rows
            }


def test_every_model_gets_its_rows_or_its_reason(catalogue: Catalogue, tmp_path: Path) -> None:
    done = built(tmp_path, map(ListEntry, catalogue))
    holds(catalogue, tmp_path)
    assert sum(catalogue.broken(name) == "" for name in catalogue) == done.read
    assert set(done.failed) <= set(WAYS.values())
    assert done.looked_at == 120
    for rows in by_model(tmp_path).values():
        for row in rows:
            if row.reason is None:
                assert (row.revision, row.format, row.dtype) == (COMMIT, "safetensors", "F16")
                assert row.scale.shape == (row.layers, row.width)
                assert (row.bias is None) == all(one.z_bias is None for one in row.outliers) or not row.outliers
                assert 0 < row.requests < 20
                assert all(one.sign == 1 and one.z_scale > 3 and one.p_holm < 1 for one in row.outliers)
    kinds = {
        (row.family, row.norm, row.norm_site) for rows in by_model(tmp_path).values() for row in rows if row.family
    }
    assert kinds == {
        ("bert", "layernorm", "stream"), ("llama", "rmsnorm", "read"), ("t5", "rmsnorm", "read"),
        ("gpt2", "layernorm", "read"), ("bart", "layernorm", "stream"), ("modernbert", "layernorm", "read"),
    }  # fmt: skip


def test_vectors_are_those_of_the_file(hub: FakeHub, tmp_path: Path) -> None:
    made = unbroken(hub, 2)
    built(tmp_path, map(ListEntry, made))
    from safetensors.numpy import load

    for name, (row,) in by_model(tmp_path).items():
        tensors = load(made[name]["model.safetensors"])
        for part, values in (("weight", row.scale), ("bias", row.bias)):
            stored = [tensors[f"encoder.layer.{layer}.output.LayerNorm.{part}"] for layer in range(row.layers)]
            np.testing.assert_array_equal(values, np.stack(stored))


def test_the_same_command_asks_for_nothing_that_is_there(catalogue: Catalogue, hub: FakeHub, tmp_path: Path) -> None:
    built(tmp_path, map(ListEntry, list(catalogue)[:30]))
    asked = len(hub.seen)
    again = built(tmp_path, map(ListEntry, list(catalogue)[:40]))
    assert (again.before, again.looked_at) == (30, 10)
    assert all("/model-3" in seen.path for seen in hub.seen[asked:])
    holds_first = by_model(tmp_path)
    assert len(holds_first) == 40
    fresh = built(tmp_path, map(ListEntry, list(catalogue)[:40]), update=True)
    known = sum(catalogue.way(name) not in ("missing", "gated") for name in list(catalogue)[:40])
    assert fresh.before == known  # one request each said so
    assert by_model(tmp_path) == holds_first


def test_a_new_revision_gets_rows_of_its_own(hub: FakeHub, tmp_path: Path) -> None:
    made = unbroken(hub, 4)
    names = [ListEntry(name, COMMIT, listed=True) for name in made]
    assert built(tmp_path, names).read == 4
    assert built(tmp_path, names).before == 4
    store_revision = "d" * 40
    moved = [replace(names[0], revision=store_revision), *names[1:]]
    done = built(tmp_path, moved)
    assert (done.before, done.looked_at) == (3, 1)  # the hub of this test knows no such revision, which is a row too
    assert {row.revision for row in by_model(tmp_path)[names[0].model]} == {COMMIT, store_revision}


def test_a_killed_build_loses_nothing_and_does_nothing_twice(
    catalogue: Catalogue, hub: FakeHub, tmp_path: Path
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("\n".join(catalogue) + "\n")
    command = [sys.executable, "-m", "outlierlens", "atlas", "build", str(names), "-o", str(tmp_path / "atlas"), "-q"]
    command += ["--rate", "none", "--parallel", "4"]
    at = [40, 130, 260, 10**9]  # requests after which the process is killed
    process: list[subprocess.Popen[bytes]] = []
    spoil = hub.tamper[""]

    def kill(handler: Handler, seen: Seen) -> bool:
        if len(hub.seen) >= at[0] and process[-1].poll() is None:
            process[-1].send_signal(signal.SIGKILL)
            process[-1].wait()
            return True
        return spoil(handler, seen)

    hub.tamper[""] = kill
    finished = set[str]()
    while at:
        before = len(hub.seen)
        process.append(
            subprocess.Popen(command, env=os.environ | {"HF_ENDPOINT": hub.endpoint, "OMP_NUM_THREADS": "1"})
        )
        code = process[-1].wait()
        assert code == (0 if len(at) == 1 else -signal.SIGKILL)
        asked = {"/".join(seen.path.split("/")[1:3]) for seen in hub.seen[before:]}
        assert not asked & finished  # what had a row was not asked for again
        finished = {row.model for file in (tmp_path / "atlas").glob("part-*") for row in read_rows(file)}
        at.pop(0)
    holds(catalogue, tmp_path / "atlas")


def test_rows_wait_for_a_part_and_none_is_there_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [AtlasRow(f"m{number}", "r", reason="malformed", failure="x") for number in range(8)]
    with Store.open(tmp_path) as store:
        for row in rows[:2]:
            store.append([row])
        assert not list(tmp_path.glob("part-*"))
        monkeypatch.setattr(kept, "PART_SECONDS", -1.0)
        store.append([rows[2]])
        assert [row.model for row in read_rows(tmp_path)] == ["m0", "m1", "m2"]
    assert sorted(path.name for path in tmp_path.glob("part-*")) == ["part-000001.parquet"]
    with Store.open(tmp_path) as store:
        assert store.done == {"m0": ("r",), "m1": ("r",), "m2": ("r",)}
        for row in (*rows[3:], rows[5]):
            store.append([row])
    assert [row.model for row in read_rows(tmp_path)] == [f"m{number}" for number in range(8)]
    with (
        pytest.raises(BadInput, match="another atlas build is writing to it"),
        Store.open(tmp_path),
        Store.open(tmp_path),
    ):
        pass


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    scale = np.arange(6, dtype=np.float16).reshape(2, 3)
    row = AtlasRow(
        "a/b", "c" * 40, "encoder", "norm", "bert", 3, 2, "F32", "safetensors", "layernorm", "stream", "mit", "https://hub",
        "2020-01-31", 5, 10, 1000, 7, 0.5, (AtlasOutlier(2, -3.5, None, -1, (0, 1), 0.25),), scale, None,
    )  # fmt: skip
    failure = AtlasRow("a/c", reason="gated", failure="no")
    with Store.open(tmp_path) as store:
        store.append([row, replace(row, stack="decoder", bias=scale + 1)])
        store.append([failure])
    for found in (list(read_rows(tmp_path))[:2], list(read_rows(tmp_path / "part-000001.parquet"))[:2]):
        assert found == [row, replace(row, stack="decoder")]
        assert found[0].scale.dtype == np.float16
        np.testing.assert_array_equal(found[0].scale, scale)
        assert found[0].bias is None
        np.testing.assert_array_equal(found[1].bias, scale + 1)
    assert list(read_rows(tmp_path))[2] == failure
    few = list(read_rows(tmp_path, ["outliers"]))
    assert few[0].outliers == row.outliers
    assert few[0].scale is None


def test_what_holds_no_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no atlas; `outlierlens atlas build` makes one"):
        list(read_rows(tmp_path))
    other = tmp_path / "part-000001.parquet"
    other.write_bytes(b"PAR1 nothing")
    with pytest.raises(BadFile, match="cannot be read as a parquet file"):
        list(read_rows(tmp_path))
    write_part(other, [AtlasRow("m", version=kept.VERSION + 1)])
    with pytest.raises(BadFile, match=f"atlas rows of version {kept.VERSION + 1}"):
        list(read_rows(tmp_path))


def test_passing_failures_are_tried_again_and_others_stay(catalogue: Catalogue, hub: FakeHub, tmp_path: Path) -> None:
    names = [name for name in catalogue if catalogue.broken(name) in ("", "malformed")][:20]
    down = set(names[:6])
    spoil = hub.tamper[""]
    hub.tamper[""] = lambda handler, seen: (
        handler.reply(500, b"") is None if any(name in seen.path for name in down) else spoil(handler, seen)
    )
    first = built(tmp_path, map(ListEntry, names))
    assert first.failed["unreachable"] == 6
    down.clear()
    asked = len(hub.seen)
    again = built(tmp_path, map(ListEntry, names))
    assert (again.before, again.looked_at) == (14, 6)
    assert len(hub.seen) > asked
    rows = by_model(tmp_path)
    assert rows.keys() == set(names)
    assert not [row for found in rows.values() for row in found if row.reason == "unreachable"]
    assert all(len({row.revision for row in found}) == 1 for found in rows.values())


def test_a_hub_that_gives_nothing_is_left_alone(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MAX_UNREACHABLE", 5)
    hub.tamper[""] = lambda handler, seen: handler.reply(503, b"") is None
    with pytest.raises(RemoteError, match="the hub gave none of 5 models in a row"):
        built(tmp_path, (ListEntry(f"org/model-{number}") for number in range(1000)))
    assert not list(tmp_path.glob("part-*"))


def test_bounds_of_one_model_and_of_all(hub: FakeHub, tmp_path: Path) -> None:
    made = unbroken(hub, 30)
    (row,) = look(ListEntry(made.name(0)), HubAccess(max_bytes=10_000), Rate())
    assert (row.reason, row.model, row.revision) == ("too large", made.name(0), COMMIT)
    assert "more than 10,000 bytes would be read of this model" in (row.failure or "")
    assert row.bytes_read <= 10_000
    done = built(tmp_path, map(ListEntry, made), max_total=100_000, parallel=1)
    assert 0 < done.read < 30
    assert done.stopped.endswith("of 100,000 allowed")
    assert built(tmp_path, map(ListEntry, made)).before == done.read


def test_a_busy_hub_is_waited_for_and_none_asks_it_too_often(hub: FakeHub, waits: list[float]) -> None:
    made = unbroken(hub, 2)
    left = [2]

    def busy(handler: Handler, seen: Seen) -> bool:
        left[0] -= 1
        if left[0] >= 0:
            handler.reply(429, b"", {"Retry-After": "20"})
        return left[0] >= 0

    hub.tamper["config.json"] = busy
    assert look(ListEntry(made.name(0)), HubAccess(), Rate())[0].reason is None
    assert waits == [20.0, 20.0]
    waits.clear()
    hub.seen.clear()
    assert look(ListEntry(made.name(1)), HubAccess(), Rate(4))[0].reason is None
    to_hub = sum(seen.server == "hub" for seen in hub.seen)
    assert 0 < to_hub < len(hub.seen)  # the store behind it is not limited
    assert waits == pytest.approx([0.25] * (to_hub - 1))


def test_a_hub_is_asked_by_task_family_and_downloads(hub: FakeHub, tmp_path: Path, capsys: Any) -> None:
    made, hub.page = unbroken(hub, 30), 7
    for number, name in enumerate(made):
        hub.cards[name] = {
            "sha": COMMIT, "downloads": 10 * number, "createdAt": "2021-03-04T05:06:07.000Z",
            "pipeline_tag": "fill-mask" if number % 3 else "other", "tags": ["bert", "license:mit"],
        }  # fmt: skip
    found = list(listed(query("task=fill-mask downloads=100"), None))
    assert [named.model for named in found] == [made.name(n) for n in range(29, 9, -1) if n % 3]
    assert found[0] == ListEntry(made.name(29), COMMIT, "mit", "2021-03-04", 290, listed=True)
    words = "atlas build --query family=bert,downloads=100 --limit 12 --rate none -o"
    run([*words.split(), str(tmp_path)])
    told = capsys.readouterr().out
    assert told.startswith("12 models read, 0 not, 0 were there before; ")
    rows = list(read_rows(tmp_path))
    assert {row.model for row in rows} == {made.name(n) for n in range(18, 30)}
    assert {(row.license, row.created, row.origin) for row in rows} == {("mit", "2021-03-04", hub.endpoint)}
    hub.tamper["/api/models"] = lambda handler, seen: handler.reply(403, b"no") is None
    with pytest.raises(RemoteError, match=r"cannot list models .*; check HF_ENDPOINT"):
        list(listed(Query(task="fill-mask"), None))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tusk=fill-mask", r"'tusk=fill-mask' is no task, family, author, search or downloads; near: 'task'"),
        ("", "the query is empty"),
        ("downloads=many", "downloads is 'many' in the query"),
    ],
)
def test_a_query_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        query(text)


def test_names_come_from_lines(tmp_path: Path) -> None:
    text = tmp_path / "names.txt"
    text.write_text("a/b\n\n# a remark\nc@v1  # tagged\na/b\n")
    assert list(names_in(text)) == [ListEntry("a/b"), ListEntry("c", "v1")]
    text.write_text("# nothing\n")
    with pytest.raises(BadFile, match="holds no names"):
        list(names_in(text))
    text.write_bytes(b"a/b\nx" + b"y" * 400)
    with pytest.raises(BadFile, match="line 2: not a model's name"):
        list(names_in(text))
    with pytest.raises(BadInput, match="no such file of names"):
        list(names_in(tmp_path / "absent"))


def test_a_model_that_breaks_the_program_gets_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlierlens.analyses.atlas.rows_of", lambda *_: 1 / 0)
    (row,) = look(ListEntry("mini-bert"), HubAccess(), Rate())
    assert (row.reason, row.failure) == ("error", "ZeroDivisionError: division by zero")
    assert failed(ListEntry("x"), BadInput("two\nlines")).failure == "two lines"


def test_a_family_that_no_config_names_is_told_by_the_tensors(tmp_path: Path) -> None:
    """Without "bert." before their names, tensors fit the row that RoBERTa and others share with BERT."""
    tensors = load_file(samples.directory("mini-bert") / "model.safetensors")
    save_file({name.removeprefix("bert."): values for name, values in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 4}')
    (row,) = look(ListEntry(str(tmp_path)), HubAccess(), Rate())
    assert (row.family, row.layers, row.failure) == ("bert", 4, None)


@pytest.mark.parametrize("name", ["bert-base", "bert-large"])
def test_real_sizes_cost_a_thousandth_at_most(hub: FakeHub, tmp_path: Path, name: str) -> None:
    family, layers, width, *_ = SIZES[name]
    config, path = real_size(tmp_path / "model.safetensors", name, planted=309)
    hub.models = {"org/real": {"config.json": config, "model.safetensors": path}}
    (row,) = look(ListEntry("org/real"), HubAccess(), Rate())
    assert [one.dim for one in row.outliers] == [309]
    assert (row.family, row.layers, row.width) == (family, layers, width)
    assert row.bytes_total == path.stat().st_size
    assert row.bytes_read <= 0.001 * row.bytes_total
    assert row.requests == len(hub.seen) <= 3 + 2 * layers


def test_linears_beyond_the_limit_are_refused_before_they_are_read(hub: FakeHub, tmp_path: Path) -> None:
    config, path = real_size(tmp_path / "model.safetensors", "llama-2-7b", planted=309)
    hub.models = {"org/real": {"config.json": config, "model.safetensors": path}}
    (row,) = look(ListEntry("org/real"), HubAccess(), Rate())
    _, layers, width, inner, _ = SIZES["llama-2-7b"]
    needed = 4 * layers * width * inner // 1_000_000 + 1
    assert row.reason == "too large"
    assert row.failure == (
        "org/real: its blocks do not end in a norm, so this rule reads mlp.down_proj of every layer, 5,771 MB; allow it "
        f"with --model-args max-read={needed}MB"
    )
    assert row.bytes_read <= 0.001 * path.stat().st_size


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "gemma2", "mixtral", "modernbert"])
def test_an_atlas_measures_what_scan_measures(hub: FakeHub, tmp_path: Path, family: str) -> None:
    """The same dimensions, z and site in every stream, of a model on a hub and of its files."""
    made = unbroken(hub, 2, family)
    for number, name in enumerate(made):
        for file, content in made[name].items():
            (tmp_path / file).write_bytes(content)
        rows = look(ListEntry(name), HubAccess(), Rate())
        found = scan(str(tmp_path)).stacks
        assert [(row.stack, row.site, row.norm_site) for row in rows] == [
            (one.stack, one.site, one.norm_site) for one in found
        ]
        for row, one in zip(rows, found, strict=True):
            assert [each.dim for each in row.outliers] == [each.dim for each in one.outliers]
            assert [each.z_scale for each in row.outliers] == [strongest(each.z_scale) for each in one.outliers]
            assert bool(row.outliers) == bool(number)
        assert {row.bytes_read for row in rows} == {rows[0].bytes_read}


def killed_worker() -> bool:
    """Whether a worker of this process's Ray was there and is killed now."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(name in " ".join(process.cmdline()) for name in ("ray::_work", "ray::IDLE")):
                process.kill()
                return True
    return False


def built_on_ray(folder: Path, names: Any) -> BuildSummary:
    """With two workers of half a processor on this machine."""
    pytest.importorskip("ray")
    machines = Machines(ray="local", workers=2, cpus_per_worker=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with Store.open(folder) as store:
            done = build(store, names, partial(on_ray, access=HubAccess(parallel=2), machines=machines))
        gc.collect()
    return done


def test_ray_workers_give_the_same_rows_whatever_dies(
    catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    append = Store.append

    def append_and_kill(store: Store, rows: Any) -> None:
        append(store, rows)
        done = sum(map(len, store.done.values()))
        if done in (25, 70) and done not in killed:
            assert killed_worker()
            killed.append(done)

    monkeypatch.setattr(Store, "append", append_and_kill)
    done = built_on_ray(tmp_path, map(ListEntry, catalogue))
    assert killed == [25, 70]
    assert done.looked_at == 120
    holds(catalogue, tmp_path)


class DeadlyEntry(ListEntry):
    """A model that ends every process but this one that hears of it."""

    def __reduce__(self) -> Any:
        return os._exit, (1,)


def test_a_model_that_ends_workers_gets_a_row_and_the_others_are_looked_at(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    names = [*map(ListEntry, list(catalogue)[:10]), DeadlyEntry("org/deadly"), *map(ListEntry, list(catalogue)[10:20])]
    done = built_on_ray(tmp_path, names)
    assert done.looked_at == 21
    rows = by_model(tmp_path)
    assert rows.keys() == {entry.model for entry in names}
    (row,) = rows["org/deadly"]
    assert row.reason == "error"
    assert row.failure.startswith("3 Ray workers ended while they read it (")
    assert not [row for found in rows.values() for row in found if row.reason == "error" and row.model != "org/deadly"]
