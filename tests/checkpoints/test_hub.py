"""Models read from a hub by byte ranges, against a hub on this machine that counts requests and bytes."""

import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from hub_models import MODEL, norms, one_file, packed, sharded, spaced
from hub_server import COMMIT, FakeHub
from outlierlens import errors
from outlierlens.architectures import bind, stacks_of
from outlierlens.checkpoints import open_checkpoint, ranges, samples
from outlierlens.checkpoints.formats import write_header
from outlierlens.checkpoints.hub import open_hub

pytest_plugins = ["hub_fixtures"]

GAP = 256_000


# -- what is read, and in how many requests -----------------------------------------------------------------------


def test_single_file_is_read_by_header_and_runs(hub: FakeHub) -> None:
    tensors = spaced(3, 300_000)
    hub.add(MODEL, one_file(tensors))
    with open_checkpoint(MODEL) as checkpoint:
        assert checkpoint.kind == "hub"
        assert checkpoint.config == {"model_type": "bert"}
        assert {name: info.shape for name, info in checkpoint.tensors.items()} == {
            name: values.shape for name, values in tensors.items()
        }
        assert checkpoint.requests == 3  # config, redirect, header
        found = dict(checkpoint.read(norms(tensors)))
        assert list(found) == norms(tensors)
        for name, values in found.items():
            np.testing.assert_array_equal(values, tensors[name])
        assert checkpoint.requests == len(hub.seen) == 1 + 2 + 3
        small = len(b'{"model_type": "bert"}') + len(b"Found")
        assert checkpoint.bytes_read == hub.sent == small + 65_536 + 3 * 32
        assert checkpoint.total_bytes == len(packed(tensors))
        assert checkpoint.notes == (f"read from the hub at commit {COMMIT}",)
    assert len(hub.requests("org/model/model.safetensors")) == 4  # at the store
    assert [seen.server for seen in hub.requests("resolve/" + COMMIT + "/model.safetensors")] == ["hub"]


@pytest.mark.parametrize(("gap", "n_runs"), [(GAP - 1, 1), (GAP, 4), (1, 1)])
def test_gaps_below_256_kb_are_read_over(hub: FakeHub, gap: int, n_runs: int) -> None:
    tensors = spaced(4, gap)
    hub.add(MODEL, one_file(tensors))
    checkpoint = open_hub(MODEL)
    before = checkpoint.requests
    found = dict(checkpoint.read(reversed(norms(tensors))))
    assert checkpoint.requests - before == n_runs
    assert all(np.array_equal(found[name], tensors[name]) for name in norms(tensors))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=30), st.integers(1, 20), st.integers(1, 80))
def test_runs_cover_every_span_once(steps: list[tuple[int, int]], gap: int, longest: int) -> None:
    spans, position = [], 0
    for skip, length in steps:
        spans.append((position + skip, position + skip + length, str(len(spans))))
        position += skip + length
    runs = ranges.merge(reversed(spans), gap=gap, longest=longest)
    where = {name: run for run in runs for name in run.names}
    assert sorted(where) == sorted(name for start, end, name in spans if end > start)
    assert sum(len(run.names) for run in runs) == len(where)
    for start, end, name in spans:
        assert end == start or where[name].start <= start < end <= where[name].end
    for run in runs:
        assert run.end - run.start <= longest or len(run.names) == 1
    for left, right in itertools.pairwise(runs):
        assert right.start >= left.end
        first_of_right = next(end for start, end, name in spans if name == right.names[0])
        assert right.start - left.end >= gap or first_of_right - left.start > longest


def test_at_most_eight_requests_at_a_time_over_kept_connections(hub: FakeHub) -> None:
    tensors = spaced(30, GAP)
    hub.add(MODEL, one_file(tensors))
    checkpoint = open_hub(MODEL)
    hub.together = 2  # the first answer waits for another request
    found = dict(checkpoint.read(norms(tensors)))
    assert len(found) == 30
    assert hub.most_at_once <= 8
    assert hub.connections["cdn"] <= 8
    assert hub.connections["hub"] == 1


def test_token_goes_to_the_endpoint_only(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = spaced(2, GAP)
    hub.add(MODEL, one_file(tensors))
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert len(dict(open_hub(MODEL).read(norms(tensors)))) == 2
    assert {(seen.server, seen.authorization) for seen in hub.seen} == {("hub", "Bearer hf_secret"), ("cdn", None)}
    hub.token = "hf_other"
    open_hub(MODEL, token="hf_other")
    assert hub.seen[-2].authorization == "Bearer hf_other"


@pytest.mark.parametrize(("redirect", "n_requests"), [(False, 3), (True, 4)])
def test_the_rest_of_a_long_header_takes_a_second_request(hub: FakeHub, redirect: bool, n_requests: int) -> None:
    tensors = {f"a.long.name.of.tensor.number.{i:06}": np.full(2, i, np.float16) for i in range(2000)}
    raw = packed(tensors)
    header = 8 + struct.unpack("<Q", raw[:8])[0]
    assert header > 2 * 65_536
    hub.redirect = redirect
    hub.add(MODEL, {"config.json": b"{}", "model.safetensors": raw})
    checkpoint = open_hub(MODEL)
    assert checkpoint.requests == n_requests
    assert hub.sent == len(b"{}") + len(b"Found") * redirect + header
    name = "a.long.name.of.tensor.number.001234"
    assert dict(checkpoint.read([name]))[name].tolist() == [1234, 1234]


def test_types_empty_tensors_and_scalars(hub: FakeHub) -> None:
    raw = packed(
        {
            "half": np.array([1.5, -2], np.float16),
            "odd": np.zeros(1, np.uint8),  # the next tensor starts at an odd byte
            "double": np.array([1e-300], np.float64),
            "empty": np.zeros((0, 3), np.float32),
            "scalar": np.array(7, np.float32),
        }
    )
    header = write_header({"brain": ("BF16", (2,), 4), "packed": ("F4", (2,), 1)})
    hub.add(MODEL, {"model.safetensors": raw})
    hub.add("brain", {"model.safetensors": header + bytes.fromhex("803f 00c0 ff")})
    found = dict(open_hub(MODEL).read(["half", "double", "empty", "scalar"]))
    assert found["half"].tolist() == [1.5, -2.0]
    assert found["double"].tolist() == [1e-300]
    assert found["double"].dtype == np.float64
    assert found["empty"].shape == (0, 3)
    assert found["scalar"].shape == ()
    assert found["scalar"] == 7
    brain = open_hub("brain")
    assert dict(brain.read(["brain"]))["brain"].tolist() == [1.0, -2.0]
    with pytest.raises(errors.BadFile, match=r"cannot read values of type F4 \(packed\)"):
        list(brain.read(["packed"]))
    with pytest.raises(errors.BadInput, match="has no tensor 'absent'"):
        list(brain.read(["absent"]))


def test_reading_can_be_given_up(hub: FakeHub) -> None:
    tensors = spaced(20, GAP)
    hub.add(MODEL, one_file(tensors))
    checkpoint = open_hub(MODEL)
    values = checkpoint.read(norms(tensors))
    next(values)
    values.close()  # type: ignore[attr-defined]
    assert len(hub.requests("/model.safetensors")) <= 2 + 9
    assert len(dict(checkpoint.read(norms(tensors)))) == 20


# -- shards -------------------------------------------------------------------------------------------------------


def test_only_the_shards_that_are_needed_are_opened(hub: FakeHub) -> None:
    shards = [spaced(2, GAP, seed) for seed in range(4)]
    hub.add(MODEL, sharded(*shards))
    checkpoint = open_hub(MODEL)
    assert set(checkpoint.tensors) == {name for shard in shards for name in shard}
    assert "norm.1.0" in checkpoint.tensors
    assert "x" not in checkpoint.tensors
    assert len(checkpoint.tensors) == 16
    digest = checkpoint.header_digest()
    assert checkpoint.requests == 3  # config, no model.safetensors, index
    assert checkpoint.total_bytes == sum(v.nbytes for shard in shards for v in shard.values())

    assert checkpoint.tensors["norm.1.0"].shape == (8,)
    assert checkpoint.requests == 3 + 2  # redirect and header of the second shard
    wanted = [*norms(shards[1]), *norms(shards[3])]
    found = dict(checkpoint.read(wanted))
    for name in wanted:
        np.testing.assert_array_equal(found[name], (shards[1] | shards[3])[name])
    assert checkpoint.requests == len(hub.seen) == 3 + (2 + 2) + (2 + 2)
    assert not hub.requests("00001-of-00004.safetensors")
    assert not hub.requests("00003-of-00004.safetensors")

    assert len(dict(checkpoint.tensors)) == 16
    assert checkpoint.header_digest() == digest == open_hub(MODEL).header_digest()
    assert checkpoint.total_bytes == sum(len(packed(shard)) for shard in shards)
    with pytest.raises(KeyError):
        checkpoint.tensors["x"]


def test_digest_tells_layouts_apart_and_equals_the_local_one(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(MODEL, one_file(spaced(2, 10)))
    hub.add("org/shards", sharded(spaced(1, 10), spaced(1, 10, 1)))
    hub.add("org/others", sharded(spaced(1, 10), spaced(2, 10, 1)))
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed(spaced(2, 10)))
    assert open_hub(MODEL).header_digest() == open_checkpoint(str(path)).header_digest()
    assert open_hub("org/shards").header_digest() != open_hub("org/others").header_digest()


def test_revision_and_subfolder(hub: FakeHub) -> None:
    tensors = spaced(1, 10)
    hub.add(MODEL, {"sub/dir/" + name: content for name, content in one_file(tensors).items()})
    checkpoint = open_hub(MODEL, revision=COMMIT, subfolder="sub/dir/")
    assert dict(checkpoint.read(["norm.0.0"]))["norm.0.0"].tolist() == tensors["norm.0.0"].tolist()
    assert {seen.path.partition("/resolve/")[2] for seen in hub.seen if seen.server == "hub"} == {
        f"{COMMIT}/sub/dir/config.json",
        f"{COMMIT}/sub/dir/model.safetensors",
    }
    with pytest.raises(
        errors.BadFile, match="holds no weight file in its root; pass the right --model-args subfolder=FOLDER"
    ):
        open_hub(MODEL)


def test_the_only_safetensors_file_is_found_by_the_listing(hub: FakeHub) -> None:
    tensors = spaced(1, 10)
    hub.add(MODEL, {"config.json": b"{}", "model.fp16.safetensors": packed(tensors), "../x.safetensors": b""})
    assert set(open_hub(MODEL).tensors) == set(tensors)
    hub.add(MODEL, {"a.safetensors": packed(tensors), "b.safetensors": packed(tensors)})
    with pytest.raises(errors.BadFile, match=r"2 safetensors files and no index \(a.safetensors, b.safetensors\)"):
        open_hub(MODEL)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "m.gguf", "onnx/model.onnx"])
def test_formats_that_ranges_do_not_serve(hub: FakeHub, name: str) -> None:
    hub.add(MODEL, {"config.json": b"{}", name: b""})
    with pytest.raises(errors.BadFile) as caught:
        open_hub(MODEL)
    assert str(caught.value) == (
        f"org/model: holds {name} but no safetensors, and only those can be read by byte ranges; "
        "run `hf download org/model` and then the same command again"
    )


# -- the local cache ----------------------------------------------------------------------------------------------


def cache(root: Path, files: dict[str, bytes], *, reference: str = "main") -> Path:
    """Put files where the hub library would."""
    home = root / "cache" / "models--org--model"
    (home / "refs").mkdir(parents=True, exist_ok=True)
    (home / "refs" / reference).write_text(COMMIT)
    for name, content in files.items():
        path = home / "snapshots" / COMMIT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return home


@pytest.mark.parametrize("how", ["argument", "environment", "library"])
def test_offline_reads_the_cache_and_sends_nothing(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    shards = [spaced(1, 10, seed) for seed in range(2)]
    if how == "environment":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if how == "library":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    files = sharded(*shards)
    last = files.popitem()
    cache(tmp_path, files)
    with pytest.raises(errors.Offline) as caught:
        open_hub(MODEL, offline=how == "argument")
    assert str(caught.value) == (
        "org/model: offline mode is on and the local hub cache holds no complete copy of its weights at 'main'; "
        "go online (drop offline from --model-args, unset HF_HUB_OFFLINE) or run `hf download org/model` first"
    )
    cache(tmp_path, dict([last]))
    with open_hub(MODEL, offline=how == "argument") as checkpoint:
        found = dict(checkpoint.read(["norm.1.0"]))
        np.testing.assert_array_equal(found["norm.1.0"], shards[1]["norm.1.0"])
        assert checkpoint.kind == "hub"
        assert checkpoint.name == MODEL
        assert checkpoint.commit == COMMIT
        assert checkpoint.config == {"a": 1}
        assert checkpoint.requests == 0
        assert 0 < checkpoint.bytes_read < checkpoint.total_bytes
        assert checkpoint.notes == (f"read from the local hub cache, commit {COMMIT}",)
        assert len(checkpoint.header_digest()) == 64
    with pytest.raises(errors.Offline, match=r"at 'other'.*`hf download org/model --revision other`"):
        open_hub(MODEL, revision="other", offline=how == "argument")
    assert hub.seen == []


def test_a_single_shard_in_the_cache_is_no_model(hub: FakeHub, tmp_path: Path) -> None:
    cache(tmp_path, {"model-00001-of-00002.safetensors": packed(spaced(1, 10)), "tokenizer.json": b"{}"})
    with pytest.raises(errors.Offline):
        open_hub(MODEL, offline=True)


def test_cached_weights_of_the_same_commit_are_used_online(hub: FakeHub, tmp_path: Path) -> None:
    tensors = spaced(2, GAP)
    hub.add(MODEL, one_file(tensors))
    cache(tmp_path, one_file(tensors))
    checkpoint = open_hub(MODEL)
    assert set(dict(checkpoint.read(norms(tensors)))) == set(norms(tensors))
    assert [seen.path for seen in hub.seen] == ["/org/model/resolve/main/config.json"]
    assert checkpoint.requests == 1
    assert open_hub(MODEL, revision=COMMIT).requests == 0  # a commit cannot move


def test_an_older_commit_in_the_cache_is_not_used_online(hub: FakeHub, tmp_path: Path) -> None:
    tensors = spaced(2, GAP)
    hub.add(MODEL, one_file(tensors))
    home = cache(tmp_path, one_file(spaced(2, GAP, seed=5)))
    (home / "snapshots" / COMMIT).rename(home / "snapshots" / ("a" * 40))
    (home / "refs" / "main").write_text("a" * 40)
    assert "norm.0.0" in open_hub(MODEL).tensors
    assert "norm.5.0" in open_hub(MODEL, offline=True).tensors


def test_a_cached_file_of_another_format_is_used_where_ranges_fail(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(MODEL, {"config.json": b"{}", "model.gguf": b"x"})
    cache(tmp_path, {"config.json": b"{}", "model.gguf": b"not a checkpoint"})
    with pytest.raises(errors.BadFile, match=r"model\.gguf") as caught:
        open_hub(MODEL)
    assert "byte ranges" not in str(caught.value)  # the local reader was handed the file


# -- a real model -------------------------------------------------------------------------------------------------


@pytest.fixture
def mpnet(sample: Any) -> Path:
    """Where the sample's files are; asked for before the server that stands in for the hub."""
    return samples.directory(sample("mpnet-base"))


@pytest.mark.real
@pytest.mark.parametrize(("redirect", "n_requests"), [(False, 14), (True, 15)])
def test_mpnet_reads_a_thousandth(mpnet: Path, hub: FakeHub, redirect: bool, n_requests: int) -> None:
    hub.redirect = redirect
    hub.add(MODEL, {name: mpnet / name for name in ("config.json", "model.safetensors")})
    with open_checkpoint(MODEL) as checkpoint, open_checkpoint(str(mpnet)) as local:
        assert checkpoint.kind == "hub"
        (stack,) = bind(stacks_of(checkpoint.config), checkpoint.tensors, checkpoint.config)
        names = [param.name for layer in (*stack.scale, *stack.bias) for param in layer]
        assert len(names) == 24
        found = dict(checkpoint.read(names))
        assert all(np.array_equal(found[name], values) for name, values in local.read(names))
        assert checkpoint.requests == len(hub.seen) == n_requests  # config, redirect if any, header, a run per layer
        assert checkpoint.bytes_read == hub.sent < 0.001 * checkpoint.total_bytes
        assert checkpoint.header_digest() == local.header_digest()
