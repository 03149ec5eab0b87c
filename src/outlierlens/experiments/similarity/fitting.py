"""The fixes of every layer, fitted on vectors of a text that is never an evaluated one.

specs = raw_first(parse_fixes("clip,whiten"))
text, fitted = fitting_text(fit, evaluated, limit=10_000, seed=0)
fixes = fit_fixes(specs, vectors_of_that_text, clipping)          # fixes.at[layer][fix]
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from outlierlens.data.labelled.labels import apart
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.experiments.similarity.options import RepairOptions
from outlierlens.experiments.similarity.result import Fitted
from outlierlens.models.load import LoadedModel
from outlierlens.vectors.clip import Clipping, resolve_clipping
from outlierlens.vectors.fixes import Fix, FixSpec, make_fix, moments_of
from outlierlens.vectors.read import Budget, Vectors, check_matrices, text_stack

NOTHING = Clipping("none", {}, "nothing is clipped")


@dataclass(frozen=True)
class FittedFixes:
    """Fixes [layer][fix], and what they were fitted on."""

    at: tuple[tuple[Fix, ...], ...]
    n: int
    shrinkage: tuple[float, ...]


def needs_text(specs: Sequence[FixSpec], clip: str) -> bool:
    """Whether anything has to be fitted: a mean, a covariance, or which dimensions to clip."""
    return any(spec.fitted or (spec.kind == "clip" and clip == "auto") for spec in specs)


def fitting_text(
    fit: Texts | None, evaluated: Collection[str], *, limit: int, seed: int, remedy: str = "name one with --fit-data"
) -> tuple[Texts, int]:
    """(texts to fit on, how many of `fit` are evaluated ones and left out).

    Raises:
        BadInput: no text at all, or none that is left.
    """
    if fit is None:
        raise BadInput(f"these fixes need a text to fit on, and there is none beside the evaluated ones; {remedy}")
    return apart(fit, evaluated, limit=limit, seed=seed)


def text_and_clipping(
    loaded: LoadedModel, sentences: Sequence[str], specs: Sequence[FixSpec], fit: Texts | None, options: RepairOptions
) -> tuple[Texts | None, int, Clipping | None]:
    """(text to fit on, evaluated `sentences` left out of it, what is clipped); None where no fix needs it.

    Raises:
        BadInput: see `fitting_text` and `resolve_clipping`.
    """
    text, dropped = None, 0
    if needs_text(specs, options.clip):
        text, dropped = fitting_text(fit, sentences, limit=options.fit_limit, seed=options.seed)
    stack = text_stack(loaded, options.read.stack).name
    if all(spec.kind != "clip" for spec in specs):
        return text, dropped, None
    return text, dropped, resolve_clipping(options.clip, loaded, fit_texts=text, stack=stack)


def fit_fixes(
    specs: Sequence[FixSpec],
    layers: Sequence[str],
    vectors: Vectors | None,
    width: int,
    clipping: Clipping,
    budget: Budget | None = None,
) -> FittedFixes:
    """Fixes of every layer from `vectors` of the fitting text; None where no fix needs one.

    Raises:
        BadInput: more matrices than `budget` has room for.
    """
    check_matrices(
        len(layers) * sum(spec.dense for spec in specs), width, budget or Budget(), what="fixes of all layers"
    )
    found = []
    for place, layer in enumerate(layers):
        moments = None
        if vectors is not None and any(spec.fitted for spec in specs):
            kept = vectors.values[place]
            if not vectors.n_tokens.all():
                kept = kept[vectors.n_tokens > 0]
            moments = moments_of(kept)
        found.append(tuple(make_fix(spec, width, moments=moments, dims=clipping.at(layer)) for spec in specs))
    shrunk = tuple(
        float(fix.shrinkage) for row in found for fix, spec in zip(row, specs, strict=True) if spec.kind == "whiten"
    )
    return FittedFixes(tuple(found), max((fix.n_fitted for row in found for fix in row), default=0), shrunk)


def described(fixes: FittedFixes, text: Texts | None, dropped: int, clipping: Clipping | None) -> Fitted:
    """What a result says about its fixes."""
    return Fitted(
        source=text.source if text is not None else "",
        n=fixes.n,
        dropped=dropped,
        shrinkage=fixes.shrinkage,
        clipping="" if clipping is None else f"{clipping.name}: {clipping.source}",
        clipped={} if clipping is None else dict(clipping.dims),
    )


def fit_notes(fixes: FittedFixes, specs: Sequence[FixSpec], clipping: Clipping | None, width: int) -> tuple[str, ...]:
    """What a reader should know about the fit."""
    notes = []
    if clipping is not None and not clipping.dims:
        notes.append(f"no dimension is clipped, so clip is raw ({clipping.source})")
    if any(fixes.shrinkage):
        notes.append(
            f"whitening was fitted on {fixes.n:,} vectors, fewer than 10 for each of {width} dimensions, and is shrunk by "
            f"{min(fixes.shrinkage):.2g} to {max(fixes.shrinkage):.2g} towards the mean variance"
        )
    few = [spec.name for spec in specs if spec.kind in ("abtt", "standardize", "centre")]
    if few and 0 < fixes.n < 2 * width:
        notes.append(f"{', '.join(few)} rest on {fixes.n:,} vectors of {width} dimensions; give more text (--fit-data)")
    return tuple(notes)
