"""The Ray engine on a cluster of two nodes: what one process gives, whatever dies or fails."""

import contextlib
import gc
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from architectures import FAMILIES, build
from moments import HANGS
from outlierlens.analyses.ray_pool import connect, room
from outlierlens.analyses.sweep.measure import sweep
from outlierlens.analyses.sweep.options import Machines, SweepOptions
from outlierlens.analyses.sweep.ray_engine import RayEngine, RunnerCopy, portions
from outlierlens.analyses.sweep.runner import Runner, make_runner
from outlierlens.analyses.sweep.units import Unit, Work
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput, MissingExtra, OutlierlensError, UnknownModel
from outlierlens.models.load import LoadedModel, LoadOptions, from_objects, load_model
from outlierlens.tasks.base import TaskOptions
from row_files import measured_rows

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
# A head that is not of ray.init says even that nothing is to be said; here it says so to nobody.
os.environ["RAY_USAGE_STATS_REPORT_URL"] = "http://127.0.0.1:9"
pytest.importorskip("ray")
OPTIONS = SweepOptions(
    task=TaskOptions(blocks=False, max_length=16),
    windows="single",
    with_found=False,
    n_random=0,
    n_matched=0,
    gradients=16,
    tolerance=0.02,
    batch_size=8,
)


@contextlib.contextmanager
def unreaped() -> Iterator[None]:
    """Have Ray's handles on its own processes collected here, where it is no news that some are still ending."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def sent_whole() -> Iterator[None]:
    """Workers cannot import this file: what it defines is sent to them whole."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a processor each; the second may be removed and added again."""
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    made.second = made.add_node(**size)
    made.again = lambda: setattr(made, "second", made.add_node(**size))
    yield made
    with unreaped():
        made.shutdown()


@pytest.fixture
def texts() -> Texts:
    random = np.random.default_rng(0)
    return Texts("made up", tuple(" ".join(f"w{i}" for i in random.integers(0, 35, 12)) for _ in range(40)))


@pytest.fixture
def loaded(words: Any) -> LoadedModel:
    return from_objects(build(FAMILIES["llama"], "CausalLM"), words(kind="causal"), name="tiny")


def works(n_units: int = 12, *, texts: int = 4, spans: int = 2) -> list[Work]:
    units = [Unit(str(dim), "all layers", dict.fromkeys(range(3), (dim,))) for dim in range(n_units)]
    return [Work(unit, start * texts, (start + 1) * texts) for start in range(spans) for unit in units]


class Fake:
    """A runner whose value is the dimension that is off plus a hundredth of the text; `before` sees every plan first."""

    order = np.arange(8)

    def __init__(self, before: Callable[[int], None] = lambda _: None):
        self.before = before

    def rows(self, texts: np.ndarray) -> int:
        return 4

    def values(self, plans: list[Any], span: tuple[int, int], only: Any = None) -> np.ndarray:
        for plan in plans:
            self.before(plan[0][0])
        return np.array([[plan[0][0] + text / 100 for text in range(*span)] for plan in plans])


class Slow:
    """A real runner that takes its time."""

    def __init__(self, inner: Any):
        self.inner, self.order, self.rows = inner, inner.order, inner.rows

    def values(self, plans: list[Any], span: tuple[int, int], only: Any = None) -> np.ndarray:
        time.sleep(0.05)
        return self.inner.values(plans, span, only)


@contextlib.contextmanager
def running(make: Any, *, rows: int = 4, **options: Any) -> Iterator[RayEngine]:
    engine = RayEngine(make, Machines(**{"ray": "local"} | options), rows=rows)
    try:
        yield engine
    finally:
        with unreaped():
            engine.close()


def wait_for(path: Path) -> None:
    """Wait, in a worker that is ended with its engine."""
    while not path.exists():
        time.sleep(0.005)


def measured(engine: RayEngine, wanted: list[Work]) -> None:
    """Have `engine` measure `wanted`: each once, with the values of `Fake`."""
    found = list(engine.measure(wanted))
    assert sorted(work.key for work, _ in found) == sorted(work.key for work in wanted)
    for work, values in found:
        np.testing.assert_allclose(values, [work.unit.dims[0] + text / 100 for text in range(work.start, work.stop)])


def test_a_sweep_on_two_nodes_of_which_one_dies_is_the_sweep_of_one_process(
    cluster: Any, loaded: LoadedModel, texts: Texts, tmp_path: Path
) -> None:
    here = sweep(loaded, texts, OPTIONS, rows=tmp_path / "here.jsonl")
    kept, killed = Path(tmp_path / "there.jsonl"), list[int]()

    def start(runner: Runner) -> RayEngine:
        recipe = RunnerCopy.like(runner, texts)
        machines = Machines(ray=cluster.address)
        return RayEngine(lambda: Slow(recipe()), machines, rows=runner.rows(runner.order))

    def kill(phase: str, done: int, total: int) -> None:
        if phase == "effects" and 0 < done < total // 2 and cluster.second:  # with most of it to do
            killed.append(total - done)
            cluster.remove_node(cluster.second)
            cluster.second = None

    try:
        there = sweep(loaded, texts, OPTIONS, rows=kept, engine=start, progress=kill)
    finally:
        if cluster.second is None:
            cluster.again()
    assert killed
    ours, theirs = measured_rows(tmp_path / "here.jsonl"), measured_rows(tmp_path / "there.jsonl")
    assert ours.keys() == theirs.keys()
    for key, row in ours.items():
        for name, values in row.items():
            if isinstance(values, list):
                np.testing.assert_allclose(theirs[key][name], values, atol=2e-5, err_msg=key)
    assert [(e.label, e.n_texts) for e in there.effects] == [(e.label, e.n_texts) for e in here.effects]
    for one, other in zip(here.effects, there.effects, strict=True):
        assert other.change.value == pytest.approx(one.change.value, abs=2e-5)
        assert other.low == pytest.approx(one.low, abs=1e-4)


def test_a_worker_process_that_dies_is_replaced_and_its_work_done_again(cluster: Any, tmp_path: Path) -> None:
    dead = tmp_path / "dead"

    def die_once(dim: int) -> None:
        if dim == 7 and not dead.exists():
            dead.touch()
            os._exit(1)

    with running(lambda: Fake(die_once), ray=cluster.address, workers=1, rows=8) as engine:
        measured(engine, works())
        assert dead.exists()


def test_work_that_ends_every_worker_is_given_up(cluster: Any) -> None:
    def die(dim: int) -> None:
        if dim == 7:
            os._exit(1)

    message = r"5 Ray workers ended while measuring 7 on texts \d to \d \(the last ended so: .*\); a smaller batch size"
    running_now = running(lambda: Fake(die), ray=cluster.address, rows=1)
    with running_now as engine, pytest.raises(OutlierlensError, match=message):
        measured(engine, works())


def test_what_the_work_itself_raises_is_raised_here_in_one_line(cluster: Any) -> None:
    def no(dim: int) -> None:
        if dim == 2:
            raise BadInput("dimension 2 is not to be had")
        if dim == 1:
            raise ValueError("two\nlines")

    with running(lambda: Fake(no), ray=cluster.address) as engine:
        with pytest.raises(BadInput, match=r"^Ray worker on [\d.]+: dimension 2 is not to be had$"):
            measured(engine, works(4)[2:4])
        with pytest.raises(OutlierlensError, match=r"^Ray worker on [\d.]+ failed: ValueError: two lines$"):
            measured(engine, works(2)[1:2])
        measured(engine, works(1, spans=1))  # the workers themselves are well


def test_a_signal_ends_the_wait_for_workers(cluster: Any, tmp_path: Path) -> None:
    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    here = os.getpid()

    def terminate(_: int) -> None:
        os.kill(here, signal.SIGTERM)
        wait_for(tmp_path / "never")  # nor does the engine wait for it

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with (
            running(lambda: Fake(terminate), ray=cluster.address) as engine,
            pytest.raises(KeyboardInterrupt),
        ):
            measured(engine, works(1, spans=1))  # a second piece would send a second signal, into the end
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_room_for_a_worker_the_sweep_ends(cluster: Any) -> None:
    with running(Fake, ray=cluster.address, cpus_per_worker=64) as engine:
        engine.pool.patience = 0.5
        with pytest.raises(
            OutlierlensError, match=r"no Ray worker could be had for 0 s: each needs 64 CPUs and 0 GPUs; add"
        ):
            measured(engine, works(1))


def test_a_worker_that_cannot_load_the_model_says_where_and_why(
    cluster: Any, texts: Texts, loaded: LoadedModel
) -> None:
    recipe = replace(RunnerCopy.like(make_runner(loaded, texts, OPTIONS), texts), model="/nowhere/model")
    message = r"^Ray worker on [\d.]+: /nowhere/model: no such file or directory on this machine"
    with running(recipe, ray=cluster.address) as engine, pytest.raises(UnknownModel, match=message):
        measured(engine, works(1))


def test_ray_started_here_listens_to_this_machine_only_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    def mine(number: int, frame: Any) -> None: ...

    here = psutil.Process()
    kept = signal.signal(signal.SIGTERM, mine)
    before = set(here.children(recursive=True))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # another cluster is used only if it is asked for
    try:
        engine = RayEngine(Fake, Machines(ray="local", workers=1), rows=4)
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, kept)
    try:
        measured(engine, works(3))
        ours = set(here.children(recursive=True)) - before
        listening = {
            connection.laddr.ip.removeprefix("::ffff:")
            for process in (here, *ours)
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN and process in ours
        }
        assert listening == {"127.0.0.1"}
        assert {process.nice() for process in ours} == {here.nice()}  # as much at work as this process would be
    finally:
        with unreaped():
            engine.close()
    _, alive = psutil.wait_procs(ours, timeout=HANGS)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_a_recipe_makes_the_same_runner(texts: Texts, loaded: LoadedModel) -> None:
    runner = make_runner(loaded, texts, OPTIONS)
    again = RunnerCopy.like(runner, texts)()
    plans = [{}, {0: (5,)}, {2: (5, 7)}]
    np.testing.assert_array_equal(again.values(plans, (0, 8)), runner.values(plans, (0, 8)))


def test_a_recipe_refuses_another_model_tokenizer_or_other_texts(texts: Texts, loaded: LoadedModel, words: Any) -> None:
    recipe = RunnerCopy.like(make_runner(loaded, texts, OPTIONS), texts)
    other = replace(loaded, model=build(FAMILIES["llama"], "CausalLM", seed=1))
    with pytest.raises(
        BadInput, match=r"tiny has other parameters here .*fingerprint \w{12}, not \w{12}\); have the same"
    ):
        replace(recipe, model=other)()
    fewer = replace(loaded, tokenizer=words(5, kind="causal"))  # most words are unknown to it
    with pytest.raises(BadInput, match=r"tiny gives other numbers here: [\d.]+ on the first text, not [\d.]+"):
        replace(recipe, model=fewer)()
    with pytest.raises(BadInput, match="tiny has 39 texts here, not 40: its tokenizer differs"):
        replace(recipe, texts=Texts("made up", texts.texts[1:]))()


def test_a_model_that_has_a_name_is_loaded_by_it(
    texts: Texts, tmp_path: Path, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(FAMILIES["llama"], "CausalLM").save_pretrained(tmp_path / "model")
    words(kind="causal").save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    load = LoadOptions(dtype="float32", device="auto", notice=print)
    runner = make_runner(load_model("model", load), texts, OPTIONS)
    recipe = RunnerCopy.like(runner, texts, load)
    assert (recipe.model, recipe.load.device, recipe.load.dtype) == (str(tmp_path / "model"), "cpu", "float32")
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(recipe().values([{0: (3,)}], (0, 4)), runner.values([{0: (3,)}], (0, 4)))
    assert RunnerCopy.like(runner, texts, replace(load, device="cpu"), device="cuda").load.device == "cpu"
    assert RunnerCopy.like(runner, texts, load, device="cuda").load.device == "cuda"


def test_portions_hold_every_piece_once_and_shrink_towards_the_end() -> None:
    wanted = works(5, texts=4, spans=2)
    shares = list(portions(wanted, 2, 4))
    assert [len(share) for share in shares] == [2, 2, 1, 1, 1, 1, 1, 1]
    assert all(len({work.span for work in share}) == 1 for share in shares)
    assert [work.key for share in shares for work in share] == [work.key for work in wanted]
    assert [len(share) for share in portions(wanted, 1, 1)] == [1] * 10  # a piece of work is not cut
    assert [len(share) for share in portions(wanted, 1, 100)] == [5, 5]


def test_portions_of_screened_work_count_the_texts_that_are_run() -> None:
    few = ((), (), (0,), (0, 1, 2), (3,), ())
    screened = [replace(work, only=only) for work, only in zip(works(6, texts=4, spans=1), few, strict=True)]
    assert [[work.n_texts for work in share] for share in portions(screened, 9, 4)] == [[0, 0, 1, 3], [1, 0]]


def test_another_version_on_a_worker_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlierlens.analyses.ray_pool.__version__", "0.0.0")
    message = r"Ray worker on [\d.]+: outlierlens is \d+.* there and 0.0.0 here; install the same version"
    with running(Fake, ray=cluster.address) as engine, pytest.raises(BadInput, match=message):
        measured(engine, works(1))


def test_room_counts_machines_that_are_up() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {"CPU": 3.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
        {"Alive": True, "Resources": {}},
    ]
    ray = SimpleNamespace(nodes=lambda: nodes)
    assert [room(ray, 1, 0), room(ray, 2, 0), room(ray, 1, 0.25), room(ray, 0.1, 0.1), room(ray, 0, 1)] == [
        7,
        3,
        4,
        10,
        1,
    ]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "127.0.0.1:1",
            r"no Ray cluster answers at 127.0.0.1:1 \(Connection refused\); start one there with ray start",
        ),
        ("nonsense", r"'nonsense' is not an address of a Ray cluster; use auto, host:port or ray://host:port"),
    ],
)
def test_an_address_without_a_cluster(address: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        connect(address)


def test_the_client_and_ray_itself_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(MissingExtra, match=r"ray://head:10001 needs Ray's client; run: pip install 'ray\[client\]'"):
        connect("ray://head:10001")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"the Ray engine needs ray, .* pip install '\.\[ray\]'"):
        connect(None)


def code(kind: str) -> str:
    page = Path(__file__).parents[2] / "docs" / "rank.md"
    (block,) = re.findall(rf"```{kind}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    return block


def test_the_documented_jobs_run_commands_that_exist() -> None:
    import yaml

    from gold.commands import spelt

    job = yaml.safe_load(code("yaml"))
    spec = job["spec"]["rayClusterSpec"]
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert len({json.dumps(group["template"]["spec"]["volumes"]) for group in groups}) == 1
    gpus = [group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for group in groups]
    assert gpus == ["1", "1"]
    script = code("bash")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    known = spelt("sweep")
    (started,) = re.findall(r"^(outlierlens sweep .*?) &$", script.replace("\\\n", ""), re.MULTILINE)
    for line in (job["spec"]["entrypoint"], started):
        words = shlex.split(line)
        assert words[:2] == ["outlierlens", "sweep"]
        assert {word for word in words if word.startswith("-")} <= known
        assert {"--ray", "-o"} <= set(words)
    for options in re.findall(r"ray start (.*?) &$", script.replace("\\\n", ""), re.MULTILINE):
        size = re.search(r"size=\((.*)\)", script)
        from ray.scripts.scripts import start

        wanted = {word.partition("=")[0] for word in shlex.split(f"{options} {size[1]}") if word.startswith("--")}
        assert wanted <= {name for parameter in start.params for name in parameter.opts}
