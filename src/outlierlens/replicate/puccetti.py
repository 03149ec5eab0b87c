"""Puccetti et al. (2022) whole, for any model that reads text: every part measured once, kept, and put together.

    found = replicate_puccetti(load_model("mini-bert"), texts, PuccettiOptions(counts="counts.parquet"), folder=Path("runs/p"))
    found.part("layers").link("308", "frequency, raw").rho

The run directory holds rows/ and parts/NAME.json; parts/sweep.json is what "layers" is joined from.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from outlierlens.ablation.modes import mode_by_layer
from outlierlens.analyses.attention import AttentionOptions, attention
from outlierlens.analyses.frequency import FrequencyOptions, frequency
from outlierlens.analyses.frequency_counts import count_texts, counts_of
from outlierlens.analyses.geometry import GeometryOptions, frequency_bands
from outlierlens.analyses.predictions import PredictionOptions, predictions
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.data.texts import Texts
from outlierlens.detection.targets import named_dims
from outlierlens.models.attention_maps import eager_attention
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import Progress
from outlierlens.options import FIND, DimsOrFind, Flag
from outlierlens.replicate.layers import FEWEST, layer_story
from outlierlens.replicate.papers import facts
from outlierlens.replicate.runner import PaperFinding, PaperOptions, PaperPart, PaperRun
from outlierlens.results.document import save
from outlierlens.results.row_store import alone_in
from outlierlens.tasks.base import TaskOptions

MAX_LENGTH = 128  # tokens of a text, as in the paper
HEAD = "head"  # that predicts words
BESIDE = "correlations"  # of frequency or attention, with which damage by layer is joined
NAMES = ("frequency", "attention", "layers", "bands", "predictions")


@dataclass(frozen=True, kw_only=True)
class PuccettiOptions(PaperOptions):
    """Data, models and controls of the replication."""

    parts: Annotated[tuple[str, ...], Flag(read="options:parse_names", words=",".join(NAMES))] = NAMES
    """Which parts, by commas."""
    counts: str | None = None
    """Token counts, ours or published, or a corpus to count; several by commas. Default: of --data."""
    dims: DimsOrFind = FIND
    """The outliers, 308,381; find: those that the weights name, or else the two of largest |z|."""


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PuccettiReplication(PaperFinding):
    """Puccetti et al. 2022 for one model; `counts` says where token frequencies come from."""

    title = "Token frequency (Puccetti et al. 2022)"
    paper = "puccetti"

    counts: str


# --- how it is measured ------------------------------------------------------------------------------------------


def replicate_puccetti(
    loaded: LoadedModel,
    texts: Texts,
    options: PuccettiOptions | None = None,
    *,
    folder: Path,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PuccettiReplication:
    """Measure every part that is missing in the run directory `folder`, and return the whole.

    Raises:
        BadInput: there is no text, or what a part raises.
    """
    options = options or PuccettiOptions()
    # Other ways to attend compute no attention weights.
    eager = eager_attention(loaded.model) if "attention" in options.parts else nullcontext()
    with alone_in(Path(folder), "replication"), eager:
        run = PuccettiRun(loaded, texts, options, Path(folder), overwrite=overwrite, progress=progress)
        run.measure(PARTS)
        together = run.together(PARTS, run.dims, run.named.by)
        said = facts()["said"]["puccetti"].get(together["checkpoint"])
        together["notes"] += (said,) if said else ()
        return PuccettiReplication(counts=run.counts.source, **together)


class PuccettiRun(PaperRun):
    """One run: the texts, token counts, and the outliers, the same for all parts."""

    def __init__(self, loaded: LoadedModel, texts: Texts, options: PuccettiOptions, folder: Path, **more: Any):
        super().__init__(loaded, options, folder, **more)
        self.texts = texts
        self.named = named_dims(loaded, self.stack, options.dims)
        self.dims = self.named.dims
        self.notes += self.named.notes
        if options.counts is not None:
            self.counts = counts_of(options.counts, loaded.tokenizer, rows=self.rows, progress=self.progress)
        else:
            self.counts = count_texts(loaded.tokenizer, texts.texts, source=texts.source)
            read = f"({self.counts.n_tokens:,} tokens): give --counts of a corpus"
            self.notes.append(f"token frequencies are those of the measured texts {read}")

    def some(self, part: PaperPart) -> Texts:
        """The first texts, as many as the part reads, or all in full."""
        return self.texts if self.options.full else self.texts.first(part.n_texts)

    def lacks(self, part: PaperPart) -> str:
        """Whether the model has no head that a part needs; a note says how many texts it reads where these are not all."""
        if HEAD in part.needs and self.loaded.head not in ("masked", "causal"):
            return f"{self.loaded.name} has no head that predicts words"
        if BESIDE in part.needs and not (self.stack.n_layers >= FEWEST and {"frequency", "attention"} & {*self.found}):
            return f"a rank correlation over layers needs {FEWEST} layers, and frequency or attention"
        if (n := len(self.some(part))) < len(self.texts):
            self.notes.append(f"{part.title}: the first {n:,} of {len(self.texts):,} texts")
        return ""


def _frequency(run: PuccettiRun) -> Any:
    options = FrequencyOptions(read=run.reading(), max_length=MAX_LENGTH, dims=run.dims, seed=run.options.seed)
    return frequency(run.loaded, run.some(PARTS["frequency"]), run.counts, options, rows=run.rows)


def _attention(run: PuccettiRun) -> Any:
    asked, name = run.options, run.stack.name
    options = AttentionOptions(
        dims=run.dims, stack=name, max_length=MAX_LENGTH, batch_size=asked.batch_size, seed=asked.seed
    )
    return attention(run.loaded, run.some(PARTS["attention"]), options, progress=run.progress, rows=run.rows)


def _layers(run: PuccettiRun) -> Any:
    """Every outlier, and all together, off in each layer alone, beside the correlations by layer."""
    from outlierlens.analyses.sweep.measure import sweep

    options = SweepOptions(
        dims=run.dims, sets=(run.dims,) if len(run.dims) > 1 else (), with_found=False, windows="single",
        mode=mode_by_layer(run.stack), stack=run.stack.name, n_random=0, n_matched=0, gradients=0, seed=run.options.seed,
        task=TaskOptions(max_length=MAX_LENGTH),
    )  # fmt: skip
    swept = sweep(run.loaded, run.some(PARTS["layers"]), options, rows=run.rows)
    save(swept, run.folder / "parts" / "sweep.json")
    beside = {name: run.found[name] for name in ("frequency", "attention") if name in run.found}
    return layer_story(swept, seed=run.options.seed, **beside)


def _bands(run: PuccettiRun) -> Any:
    options = GeometryOptions(read=run.reading(), max_length=MAX_LENGTH, dims=run.dims, seed=run.options.seed)
    return frequency_bands(run.loaded, run.some(PARTS["bands"]), run.counts, options, rows=run.rows)


def _predictions(run: PuccettiRun) -> Any:
    asked, task = run.options, TaskOptions(max_length=MAX_LENGTH)
    options = PredictionOptions(stack=run.stack.name, n_random=19 if asked.full else 5, task=task, seed=asked.seed)
    texts = run.some(PARTS["predictions"])
    return predictions(run.loaded, texts, run.counts, run.dims, options, progress=run.progress, rows=run.rows)


PARTS = {
    "frequency": PaperPart("correlation with token frequency", _frequency, n_texts=1000),
    "attention": PaperPart("vertical attention", _attention, n_texts=200),
    "layers": PaperPart("damage of single layers", _layers, (BESIDE,), 64),
    "bands": PaperPart("frequent and rare tokens in space", _bands, n_texts=1000),
    "predictions": PaperPart("what the model says without them", _predictions, (HEAD,), 64),
}
