"""From a model and a fix to a checked folder.

found = export_embedder(loaded, Path("better"), EmbedderOptions(fix=FixSpec("whiten"), layer="2"), fit=read_texts("train.txt"))
found.checks                           # the folder read back, against our own pass and fix

A vector is the mean over all tokens of a text, special ones included, because that is what sentence-transformers' mean
pooling is; so the fix is fitted on such vectors too.

Scored sentence pairs in one file, to check an embedder with: columns sentence1, sentence2, score.
"""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from outlierlens.data.labelled import LabelledTask, read_examples
from outlierlens.data.labelled.labels import apart
from outlierlens.data.texts import EXCERPT, REVIEWS, Texts, read_texts
from outlierlens.data.token_texts import KnownTokens
from outlierlens.errors import BadFile, BadInput
from outlierlens.experiments.embedder.cut import Cut, cut_model
from outlierlens.experiments.embedder.folder import CARD, RESULT, Modules, Reader, check_place, readers, write_model
from outlierlens.experiments.embedder.options import EmbedderCall, EmbedderOptions
from outlierlens.experiments.embedder.result import EmbedderCheck, EmbedderSts, Exported
from outlierlens.experiments.embedder.view import card
from outlierlens.experiments.similarity.scores import spearman
from outlierlens.experiments.similarity.table import TEST, StsPairs, StsTask
from outlierlens.models.hooks import EMBEDDINGS
from outlierlens.models.inputs import token_limit, tokenizer_of
from outlierlens.models.load import LoadedModel
from outlierlens.results.document import save
from outlierlens.results.safe_files import new_folder
from outlierlens.session import Session
from outlierlens.vectors.clip import Clipping, resolve_clipping
from outlierlens.vectors.fixes import ENOUGH, Fix, make_fix, moments_of
from outlierlens.vectors.read import Budget, ReadOptions, gather, tokenise

TOLERANCE = 1e-4  # of the largest entry: above what float32 leaves to chance, below what a wrong file does
CHECK_TEXTS = 32  # of each shipped text
POOLING = "mean of all tokens, special ones included"


def read_pairs(path: Path) -> StsPairs:
    """The pairs of `path`, scores on whatever scale.

    Raises:
        BadInput: no such file or column, a score that is no number, or fewer than 2 pairs.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file; --check-data takes one with columns sentence1, sentence2 and score")
    asked = LabelledTask("sts:pairs", "sentence1", "sentence2", (), ("spearman",), label="score", regression=True)
    read = read_examples(asked, path)
    gold = np.array(read.labels, dtype=np.float64)
    if len(gold) < 2:
        raise BadInput(f"{path}: {len(gold)} pair has no rank correlation; give at least 2")
    task = StsTask(path.stem, path.name, "", float(gold.min()), float(gold.max()), (TEST,), len(gold), (), path.name)
    return StsPairs(task, str(path), TEST, read.texts, read.pairs, gold)


@dataclass(frozen=True)
class _Ours:
    """Our own pass over a layer: sentence vectors as the exported model makes them."""

    loaded: LoadedModel
    options: EmbedderOptions
    layer: int

    def vectors(self, texts: tuple[str, ...], label: str) -> np.ndarray:
        """[text, dim], without those of texts that have no token."""
        tell = self.options.progress
        progress = None if tell is None else lambda _, done, total: tell(label, done, total)
        tokens = tokenise(self.loaded, texts, max_length=self.options.max_length)
        read = ReadOptions(self.options.batch_size, None, (self.layer,), True, Budget(), progress)
        found = gather(self.loaded, tokens, tokens.sentences(), read, special=True)
        return found.values[0][found.n_tokens > 0]


def export_embedder(
    loaded: LoadedModel,
    folder: Path,
    options: EmbedderOptions,
    *,
    fit: Texts | None = None,
    check: StsPairs | None = None,
    command: str = "",
) -> Exported:
    """Write a sentence-transformers model with the fix in it to `folder`, and read it back.

    `fit` is what the fix is fitted on; sentences of `check` are left out of it. Nothing is left in `folder` unless all
    readers agree with our own vectors.

    Raises:
        BadInput: the model is not in float32, the folder exists, the model cannot be cut there or the fix cannot be made;
            see `cut_model`, `make_fix`; or the tokenizer knows no token of `check`.
        BadFile: what was written reads back as another model.
    """
    import torch
    import transformers

    if (dtype := next(loaded.model.parameters()).dtype) != torch.float32:
        raise BadInput(
            f"{loaded.name} is loaded in {str(dtype).removeprefix('torch.')}, and an embedder is written in float32; load it "
            f"with LoadOptions(dtype='float32')"
        )
    check_place(folder, overwrite=options.overwrite)
    unknown = _unknown(loaded, check)
    transformers.utils.logging.disable_progress_bar()  # of its own, of files that are written and read at once
    cut = cut_model(loaded, options.layer)
    ours = _Ours(loaded, options, cut.layer)
    fit, dropped = _fit_text(fit, options, check)
    fix, clipping = _fix(ours, cut, fit)
    width = len(fix.centre)
    modules = Modules(width, fix, options.normalize, token_limit(loaded, options.max_length))
    made = Exported(
        provenance=loaded.provenance(command=command, seed=options.seed),
        folder=folder.name,
        layer=cut.name,
        n_blocks=cut.n_blocks,
        of_blocks=cut.of_blocks,
        final_norm=cut.final_norm,
        pooling=POOLING,
        max_length=modules.max_length,
        fix=fix.name,
        dims=clipping.at(cut.name) if clipping else (),
        clip=clipping.source if clipping else "",
        fit=fit.source if fit else "",
        fit_digest=fit.digest if fit else "",
        n_fitted=fix.n_fitted,
        shrinkage=fix.shrinkage,
        width=(width, len(fix.bias)),
        normalized=options.normalize,
        n_checked=0,
        checks=(),
        notes=(*loaded.notes, *unknown, *_notes(loaded, cut, fix)),
    )
    check_place(folder, overwrite=options.overwrite)  # once more: the checks took their time
    with new_folder(folder) as part:
        write_model(part, cut.model, loaded.tokenizer, modules)
        made = _checked(made, ours, fix, part, check, dropped)
        (part / CARD).write_text(card(made), "utf-8")
        save(made, part / RESULT)
    return made


def _unknown(loaded: LoadedModel, check: StsPairs | None) -> tuple[str, ...]:
    """A remark where many tokens of these sentences are unknown; raises BadInput where all are."""
    known = KnownTokens()
    for sentence in check.sentences if check else ():
        known.add(loaded.tokenizer, tokenizer_of(loaded)(sentence)["input_ids"])
    known.check(loaded.name)
    return (f"{check.source}: {known.note}",) if check and known.note else ()


def _fit_text(fit: Texts | None, options: EmbedderOptions, check: StsPairs | None) -> tuple[Texts | None, int]:
    """(what to fit on, texts that were left out because they are evaluated)."""
    if not options.needs_text:
        if fit is not None:
            raise BadInput(f"fix {options.fix.name} is not fitted on a text; leave {fit.source} out (--fit-data)")
        return None, 0
    if fit is None:
        raise BadInput(f"fix {options.fix.name} needs a text to fit on; name one (--fit-data)")
    return apart(fit, check.sentences if check else (), limit=options.fit_limit, seed=options.seed)


def _fix(ours: _Ours, cut: Cut, fit: Texts | None) -> tuple[Fix, Clipping | None]:
    """The repair of the layer's vectors, and where its dimensions come from if it clips."""
    from outlierlens.models.load import stream_width

    spec, loaded = ours.options.fix, ours.loaded
    if spec.kind == "clip":
        clipping = resolve_clipping(ours.options.clip, loaded, fit_texts=fit)
        dims = clipping.at(cut.name)
        if not dims:
            raise BadInput(
                f"{loaded.name}, layer {cut.name}: nothing to clip ({clipping.source}); name dimensions with --clip, or use "
                f"--fix raw"
            )
        return make_fix(spec, stream_width(loaded.model, loaded.stacks[0]), dims=dims), clipping
    if fit is None:
        return make_fix(spec, stream_width(loaded.model, loaded.stacks[0])), None
    moments = moments_of(ours.vectors(fit.texts, "fitting"))
    return make_fix(spec, moments.width, moments=moments), None


def _checked(made: Exported, ours: _Ours, fix: Fix, part: Path, check: StsPairs | None, dropped: int) -> Exported:
    """`made` with what reading the folder back gave; raises BadFile where that is not what we make."""
    texts = tuple(text for name in (REVIEWS, EXCERPT) for text in read_texts(name, limit=CHECK_TEXTS).texts)
    _same_tokens(part, ours.loaded, texts)
    wanted = _final(fix.apply(ours.vectors(texts, "checking")), made.normalized)
    found = _readers(part, ours, made)
    checks = tuple(_compared(reader, texts, wanted, made) for reader in found)
    made = replace(made, n_checked=len(texts), checks=checks)
    if check is None:
        return made
    sentences = check.sentences
    plain = ours.vectors(sentences, "scoring")
    if len(plain) < len(sentences):
        raise BadInput(f"{check.source}: {len(sentences) - len(plain)} sentences have no token; leave their pairs out")
    reader = found[-1]
    sts = EmbedderSts(
        source=check.source,
        n_pairs=len(check),
        n_fit_dropped=dropped,
        raw=spearman(check, plain),
        fixed=spearman(check, fix.apply(plain)),
        exported=spearman(check, reader.encode(sentences)),
        reader=reader.name,
    )
    return replace(made, sts=sts)


def _same_tokens(part: Path, loaded: LoadedModel, texts: tuple[str, ...]) -> None:
    """Raises BadFile where the written tokenizer reads texts otherwise than the one at hand."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(part, local_files_only=True)
    for text in texts:
        if tokenizer(text)["input_ids"] != loaded.tokenizer(text)["input_ids"]:  # type: ignore[misc]
            raise BadFile(
                f"{loaded.name}: its tokenizer, written and read back as a {type(tokenizer).__name__}, gives other tokens "
                f"for {text[:40]!r}, so nothing is kept; use the tokenizer that belongs to this family"
            )


def _readers(part: Path, ours: _Ours, made: Exported) -> tuple[Reader, ...]:
    with warnings.catch_warnings():
        # Newer versions note that a module type is spelled the old way, which is what older ones need.
        warnings.simplefilter("ignore")
        try:
            return readers(part, ours.options.batch_size)
        except BadFile:
            raise
        except Exception as error:  # every family has errors of its own
            raise _unread(made, error) from error


def _compared(reader: Reader, texts: tuple[str, ...], wanted: np.ndarray, made: Exported) -> EmbedderCheck:
    try:
        found = reader.encode(texts)
    except Exception as error:  # as above
        raise _unread(made, error) from error
    if found.shape != wanted.shape:
        raise _unread(made, ValueError(f"{found.shape[1]} dimensions instead of {wanted.shape[1]}"))
    scale = float(np.abs(wanted).max())
    difference = float(np.abs(found - wanted).max())
    relative = difference / scale if scale > 0 else difference
    if not relative <= TOLERANCE:
        remedy = (
            "the blocks that are left compute something else without the others: use --layer last"
            if made.n_blocks < made.of_blocks
            else "this family computes something else from a file than it did here, and cannot be exported"
        )
        raise BadFile(
            f"layer {made.layer}, fix {made.fix}: {reader.name} reads back vectors that differ by {difference:.3g} "
            f"({relative:.2g} of the largest entry; at most {TOLERANCE:g}), so nothing is kept. If it is little, the fix "
            f"divides by tiny variances: use --k. If it is much, {remedy}"
        )
    return EmbedderCheck(reader.name, difference, relative)


def _unread(made: Exported, error: Exception) -> BadInput:
    model = made.provenance.model
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if made.layer == "embeddings":
        return BadInput(f"{model}: a model without blocks cannot be run ({text}); choose --layer 0 or later")
    if made.n_blocks < made.of_blocks:
        return BadInput(f"{model}: what is left of it cannot be run ({text}); use --layer last")
    return BadInput(f"{model}: its output is not the pooled layer ({text}), so it cannot be exported")


def _final(vectors: np.ndarray, normalize: bool) -> np.ndarray:
    if not normalize:
        return vectors
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _notes(loaded: LoadedModel, cut: Cut, fix: Fix) -> tuple[str, ...]:
    tokenizer = loaded.tokenizer
    found = []
    width = len(fix.centre)
    if 0 < fix.n_fitted < ENOUGH * width:
        shrunk = f"; the covariance is shrunk by {fix.shrinkage:.3f}" if fix.shrinkage else ""
        found.append(
            f"fitted on {fix.n_fitted:,} vectors, fewer than {ENOUGH} for each of the {width} dimensions{shrunk}"
        )
    if cut.final_norm:
        found.append(
            "a vector is the mean of final_norm(output of the layer): the model's final norm stays behind the cut"
        )
    if cut.layer == EMBEDDINGS:
        found.append("no block is left: a vector is the mean of what goes into the first block")
    pad = getattr(tokenizer, "pad_token", None)
    others = {name: getattr(tokenizer, name, None) for name in ("eos_token", "unk_token", "bos_token")}
    shared = next((name.removesuffix("_token") for name, token in others.items() if token == pad), None)
    if pad is not None and shared:
        found.append(f"the tokenizer pads with its {shared} token, {pad}; padding is masked and not counted")
    if getattr(tokenizer, "padding_side", "right") != "right":
        found.append("the tokenizer padded on the left and is stored padding on the right, as the vectors were made")
    return tuple(found)


def run(session: Session, options: EmbedderCall) -> Exported:
    """The embedder that the command line asks for; its folder names the command too."""
    fits, spec = session.fitting, options.spec
    if fits.clip != "auto" and spec.kind != "clip":
        raise BadInput(f"--clip {fits.clip} belongs to --fix clip, not to {spec.name}")
    if session.load.dtype != "float32":
        raise BadInput(f"--dtype {session.load.dtype}: an embedder is written in float32; leave --dtype out")
    how = replace(fits.into(options), fix=spec, k=None, overwrite=session.output.overwrite, progress=session.progress)
    check_place(options.folder, overwrite=how.overwrite)
    fit = fits.texts(offline=session.load.offline)
    if fit is None and how.needs_text:
        fit = read_texts(REVIEWS)
        session.notice(f"fitting on the {len(fit):,} shipped film reviews; name a text like your own with --fit-data")
    pairs = None if options.check_data is None else read_pairs(options.check_data)
    session.show = {"folder": options.folder}
    return export_embedder(session.loaded, options.folder, how, fit=fit, check=pairs, command=session.command)
