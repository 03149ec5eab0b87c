"""The parts of Puccetti et al. (2022), as data: what each needs, and how it is measured at the usual size and in full.

PARTS["frequency"].measure(context)              # -> frequent.Frequency
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.ablation.modes import mode_by_layer
from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts
from outlierlens.experiments.attention.measure import attention
from outlierlens.experiments.attention.options import AttentionOptions
from outlierlens.experiments.frequency.measure import frequency
from outlierlens.experiments.frequency.options import FrequencyOptions
from outlierlens.experiments.frequency_geometry.measure import frequency_geometry
from outlierlens.experiments.frequency_geometry.options import FrequencyGeometryOptions
from outlierlens.experiments.predictions.measure import predictions
from outlierlens.experiments.predictions.options import PredictionOptions
from outlierlens.experiments.predictions.speech import Tagger
from outlierlens.experiments.sweep.options import SweepOptions
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import TaskOptions
from outlierlens.vectors.read import ReadOptions

if TYPE_CHECKING:
    from outlierlens.replicate.puccetti.measure import PuccettiJob

MAX_LENGTH = 128  # tokens of a text, as in the paper
ROWS = "layers.rows.jsonl"


@dataclass(frozen=True)
class Context:
    """What a part is measured with: the model, the job, texts, counts, and the outliers."""

    loaded: LoadedModel
    job: "PuccettiJob"
    texts: Texts
    counts: TokenCounts
    stack: str
    dims: tuple[int, ...]

    def some(self, n: int) -> Texts:
        """The first `n` texts, or all in full."""
        return self.texts if self.job.full else self.texts.first(n)


@dataclass(frozen=True)
class Part:
    """One part: a title, texts it reads unless in full, whether it needs a head for words, and its measurement."""

    title: str
    n_texts: int
    needs_head: bool
    measure: Callable[[Context, Texts], Any]


def _reading(at: Context) -> ReadOptions:
    return ReadOptions(batch_size=at.job.batch_size, stack=at.stack, progress=at.job.progress)


def _frequency(at: Context, texts: Texts) -> Any:
    options = FrequencyOptions(read=_reading(at), max_length=MAX_LENGTH, dims=at.dims, seed=at.job.seed)
    return frequency(at.loaded, texts, at.counts, options, command=at.job.command)


def _attention(at: Context, texts: Texts) -> Any:
    options = AttentionOptions(
        dims=at.dims, stack=at.stack, max_length=MAX_LENGTH, batch_size=at.job.batch_size, seed=at.job.seed
    )  # fmt: skip
    return attention(at.loaded, texts, options, command=at.job.command, progress=at.job.progress)


def _layers(at: Context, texts: Texts) -> Any:
    """Every outlier, and all together, off in each layer alone."""
    from outlierlens.experiments.sweep.measure import sweep

    options = SweepOptions(
        dims=at.dims,
        sets=(at.dims,) if len(at.dims) > 1 else (),
        with_found=False,
        windows="single",
        mode=mode_by_layer(at.loaded.stack(at.stack)),
        stack=at.stack,
        n_random=0,
        n_matched=0,
        gradients=0,
        seed=at.job.seed,
        task=TaskOptions(max_length=MAX_LENGTH),
    )
    return sweep(at.loaded, texts, options, command=at.job.command, rows=at.job.directory / ROWS)


def _bands(at: Context, texts: Texts) -> Any:
    options = FrequencyGeometryOptions(read=_reading(at), max_length=MAX_LENGTH, dims=at.dims, seed=at.job.seed)
    return frequency_geometry(at.loaded, texts, at.counts, options, command=at.job.command)


def _predictions(at: Context, texts: Texts) -> Any:
    job = at.job
    options = PredictionOptions(
        stack=at.stack,
        n_random=19 if job.full else 5,
        tagger=None if job.tagger is None else Tagger.load(job.tagger),
        task=TaskOptions(max_length=MAX_LENGTH),
        seed=job.seed,
    )
    return predictions(
        at.loaded, texts, at.counts, at.dims, options, command=job.command, progress=job.progress
    )  # fmt: skip


PARTS = {
    "frequency": Part("correlation with token frequency", 1000, False, _frequency),
    "attention": Part("vertical attention", 200, False, _attention),
    "layers": Part("damage of single layers", 64, False, _layers),
    "bands": Part("frequent and rare tokens in space", 1000, False, _bands),
    "predictions": Part("what the model says without them", 64, True, _predictions),
}
