"""A layer of a model with a fix in it, as a sentence-transformers model that nobody needs this package to read.

    options = ExportOptions(fix=FixSpec("whiten"), layer="2")
    found = export_embedder(loaded, Path("better"), options, fit=read_texts("train.txt"))
    found.read_back[0].relative            # largest difference from our own pass and fix
    SentenceTransformer("better").encode(["A plane is taking off."])

A vector is the mean over all tokens of a text, special ones included, because that is what sentence-transformers' mean
pooling is; so the fix is fitted on such vectors too. That library writes the folder: the model up to the layer, the mean, the
fix as a dense layer.
"""

import copy
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

import outlierlens.architectures as arch
from outlierlens.analyses.embed_pairs import TextPairs
from outlierlens.analyses.embed_pass import spearman
from outlierlens.architectures import BoundStack, refuse_offloaded
from outlierlens.architectures.experiment.small import quiet
from outlierlens.checkpoints.samples import SAMPLES
from outlierlens.data.labelled.labels import apart
from outlierlens.data.texts import EXCERPT, REVIEWS, Texts, read_texts
from outlierlens.data.token_texts import KnownTokens
from outlierlens.errors import BadFile, BadInput, literal, markdown, need, printable
from outlierlens.models.hooks import EMBEDDINGS, layer_name
from outlierlens.models.inputs import token_limit, tokenizer_of
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import Flag, Options
from outlierlens.results.document import save
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import Row
from outlierlens.results.safe_files import check_folder, new_folder
from outlierlens.vectors.clip import Clipping, resolve_clipping
from outlierlens.vectors.fixes import ENOUGH, Fix, FixSpec, make_fix, moments_of, parse_fixes
from outlierlens.vectors.options import Fitting
from outlierlens.vectors.read import ReadOptions, gather, text_stack, tokenise
from outlierlens.view.section import Count

MODULES, RESULT, CARD = "modules.json", "outlierlens.json", "README.md"
TOLERANCE = 1e-4  # of the largest entry: above what float32 leaves to chance, below what a wrong file does
CHECK_TEXTS = 32  # of each shipped text
LIBRARY = "sentence-transformers"


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Layer, fix and format of the folder, and how the text to fit on is read."""

    fix: Annotated[FixSpec, Flag(read="analyses.embed_export:one_fix")] = FixSpec("raw")
    """--export: raw, clip, centre, standardize, abtt:3, whiten, whiten:256."""
    layer: str = "last"
    """--export: last, embeddings or a block's number from 0; the rest is dropped."""
    normalize: Annotated[bool, Flag("--normalize/--no-normalize")] = False
    """--export: end with vectors of length 1."""
    max_length: Annotated[int, Ge(2), Flag(hidden=True)] = 128
    """Maximum number of tokens per text; the model's number of positions if that is smaller."""
    batch_size: Annotated[int, Ge(1), Flag(hidden=True)] = 32
    """Texts per forward pass."""
    seed: Annotated[int, Ge(0), Flag(hidden=True)] = 0
    """Seed of everything random."""
    clip: Annotated[str, Flag(hidden=True)] = "auto"
    """Dimensions of the fix "clip", as `resolve_clipping` takes them."""
    fit_limit: Annotated[int | None, Ge(2), Flag(hidden=True)] = Fitting.fit_limit
    """Fit on N texts at most, by the seed."""
    overwrite: Annotated[bool, Flag(hidden=True)] = False
    """Replace an embedder that was exported before."""
    progress: Annotated[Callable[[str, int, int], None] | None, Flag(hidden=True)] = field(default=None, compare=False)
    """Called with (label, texts done, texts)."""

    @property
    def needs_text(self) -> bool:
        """Whether the fix is fitted, or its dimensions are observed, on a text."""
        return self.fix.fitted or (self.fix.kind == "clip" and self.clip == "auto")


def one_fix(text: str) -> FixSpec:
    """ "abtt:3"; raises BadInput for several."""
    specs = parse_fixes(text)
    if len(specs) != 1:
        raise BadInput(f"--fix {text!r} names {len(specs)} fixes; an embedder has one")
    return specs[0]


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FolderCheck(Row):
    """The written folder, read back by a library, against our own pass and fix."""

    reader: str
    n_texts: Annotated[int, Count]
    """texts"""
    difference: float
    """largest difference: of an entry, absolute"""
    relative: float
    """of the largest entry"""


@dataclass(frozen=True, kw_only=True)
class FolderScore(Row):
    """Spearman's ρ in [−1, 1] between cosines and scores that people gave."""

    data: str
    n_pairs: Annotated[int, Count]
    """pairs"""
    raw: float
    """without the fix"""
    fixed: float
    """with it: our own vectors"""
    exported: float
    """from the folder: as its reader makes them"""


@dataclass(frozen=True, kw_only=True)
class EmbedderExport(Finding):
    """A sentence-transformers model with a fix in it.

    Attributes:
        folder: its name.
        layer: "embeddings", "0", "1", …: the block whose output is pooled. n_blocks: kept, of `of_blocks`.
        final_norm: whether the vectors are what the model's final norm makes of that output; false where it has none.
        fix: "whiten:256". clip: where the clipped dimensions, those of `about`, come from.
        fit, fit_digest: the text that the fix was fitted on, "" for none. n_fitted: its vectors. shrinkage: of whiten.
        n_dropped: sentences that it is scored on, left out of that text.
        width: dimensions before and after the fix. normalized: whether vectors get length 1, behind the fix.
    """

    title = "An exported embedder"

    scores: tuple[FolderScore, ...] = ()
    """Spearman's ρ of cosines with people's scores"""
    read_back: tuple[FolderCheck, ...]
    """Read back from the folder, against our own vectors"""
    folder: str
    layer: str
    n_blocks: int
    of_blocks: int
    final_norm: bool
    fix: str
    clip: str = ""
    fit: str = ""
    fit_digest: str = ""
    n_fitted: int = 0
    shrinkage: float = 0.0
    n_dropped: int = 0
    width: Annotated[tuple[int, int], "2"]
    normalized: bool

    def sentences(self) -> Iterator[str]:
        yield f"Written to the folder {self.folder}: SentenceTransformer({literal(self.folder)}) loads it."
        blocks = "all" if self.n_blocks == self.of_blocks else f"the first {self.n_blocks}"
        behind = ", behind the model's final norm" if self.final_norm else ""
        vector = f"the output of block {self.layer} (from 0)" if self.n_blocks else "the input of the first block"
        yield (
            f"It is {self.provenance.subject}, {blocks} of {self.of_blocks} blocks. A vector is the mean of {vector}{behind} "
            f"over all tokens, special ones included; texts end at {self.about.max_length} tokens."
        )
        shrunk = f", the covariance shrunk by {self.shrinkage:.3f}" if self.shrinkage else ""
        if self.dims:
            yield f"Fix clip: dimensions {', '.join(map(str, self.dims))} of the mean are zero ({self.clip})."
        elif self.fix != "raw":
            yield f"Fix {self.fix}: a dense layer {self.width[0]} → {self.width[1]} behind the mean{shrunk}."
        if self.n_fitted:
            left = f"; {self.n_dropped:,} that it is scored on were left out" if self.n_dropped else ""
            yield (
                f"It is fitted on {self.n_fitted:,} sentence vectors of {self.fit} (SHA-256 {self.fit_digest[:16]}…){left}."
            )
        if self.normalized:
            yield "Every vector has length 1."


# --- the model up to a layer -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShorterModel:
    """The `base` of a model, of which blocks behind `layer` are left out; `config` says so."""

    base: Any
    config: Any
    stack: BoundStack
    layer: int

    @property
    def name(self) -> str:
        """ "embeddings", "0", "1", …"""
        return layer_name(self.layer)

    @property
    def n_blocks(self) -> int:
        """Blocks that are left."""
        return self.layer + 1

    def write(self, folder: Path) -> None:
        """Its config and weights."""
        dropped = {f"{self.stack.stack.block(at)}." for at in range(self.n_blocks, self.stack.n_layers)}
        dropped -= {f"{self.stack.stack.block(at)}." for at in range(self.n_blocks)}  # blocks may be shared
        state = {name: tensor for name, tensor in self.base.state_dict().items() if not name.startswith(tuple(dropped))}
        self.base.save_pretrained(folder, state_dict=state)
        self.config.save_pretrained(folder)


def shorter_model(loaded: LoadedModel, asked: str = "last") -> ShorterModel:
    """The bare model that ends with layer `asked`: "last", "embeddings" or "2".

    Raises:
        BadInput: no such layer; an encoder-decoder, a model of several streams or one that only this package knows; or a
            family whose first blocks do not make a model of their own.
    """
    base, stack = _bare(loaded), text_stack(loaded, None)
    named = {"last": stack.n_layers - 1} | {layer_name(layer): layer for layer in (EMBEDDINGS, *range(stack.n_layers))}
    if asked not in named:
        raise BadInput(f"--layer {asked}: use last, embeddings or a block from 0 to {stack.n_layers - 1}")
    layer = named[asked]
    try:
        return ShorterModel(base, _config(base, loaded, stack, layer), stack, layer)
    except BadInput:
        raise
    except Exception as error:  # each family checks its own config, with its own errors
        raise _unusable(loaded.name, layer, stack.n_layers, error) from error


def _bare(loaded: LoadedModel) -> Any:
    """The model without its head, of a kind that sentence-transformers reads."""
    import transformers

    model: Any = loaded.model
    if not isinstance(model, transformers.PreTrainedModel):
        raise BadInput(f"{loaded.name}: a {type(model).__name__} is not a transformers model, so it cannot be exported")
    if loaded.config.get("is_encoder_decoder"):
        raise BadInput(
            f"{loaded.name}: an encoder-decoder has no single output to pool; export an encoder or a decoder alone"
        )
    names = list(dict.fromkeys(stack.name for stack in loaded.stacks))
    if len(names) > 1:
        raise BadInput(f"{loaded.name}: has several streams ({', '.join(names)}); export a model that reads text alone")
    base: Any = model.base_model
    if not type(base).__module__.startswith("transformers."):
        raise BadInput(
            f"{loaded.name}: {type(base).__name__} is not a class of transformers, so sentence-transformers cannot read it; "
            f"export a model of a family that transformers has"
        )
    return base


def _config(base: Any, loaded: LoadedModel, stack: BoundStack, layer: int) -> Any:
    """A copy of its config with `layer` + 1 blocks."""
    config = base.config
    values = config.to_dict()
    key, n_blocks = stack.stack.layers, layer + 1
    declared = values.get(key, getattr(config, key, None))
    if not isinstance(declared, int) or declared < 1 or stack.n_layers % declared:
        raise BadInput(f"{loaded.name}: its config does not say how many blocks there are ({key} is {declared!r})")
    each = stack.n_layers // declared  # ALBERT may run several blocks a counted layer
    if n_blocks % each:
        raise BadInput(
            f"{loaded.name}: its blocks come {each} at a time, so it cannot end with layer {layer_name(layer)}; choose a "
            f"layer such as {each - 1} or {2 * each - 1}"
        )
    values[key] = n_blocks // each
    for name, value in values.items():
        # Lists that say something of each layer in turn: layer_types, no_rope_layers, …
        if "layer" in name and isinstance(value, list) and len(value) == declared:
            values[name] = value[: n_blocks // each]
    if shorten := arch.family_of(values).shorten:
        shorten(values, n_blocks)
    values["architectures"] = [type(base).__name__]
    values["dtype"] = "float32"
    values.pop("torch_dtype", None)
    return type(config).from_dict(values)


def _unusable(model: str, layer: int, of_blocks: int, error: Exception) -> BadInput:
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if layer == EMBEDDINGS:
        return BadInput(f"{model}: a model without blocks cannot be run ({text}); choose --layer 0 or later")
    if layer + 1 < of_blocks:
        return BadInput(f"{model}: the shortened model cannot be run ({text}); use --layer last")
    return BadInput(f"{model}: its output is not the pooled layer ({text}), so it cannot be exported")


# --- how it is made ----------------------------------------------------------------------------------------------


def check_place(folder: Path, *, overwrite: bool) -> None:
    """Raise BadInput where nothing may be written to `folder`: before long work, and again when it is done."""
    check_folder(folder, "exported embedder", MODULES, RESULT, replace=overwrite)


def export_embedder(
    loaded: LoadedModel,
    folder: Path,
    options: ExportOptions | None = None,
    *,
    fit: Texts | None = None,
    check: TextPairs | None = None,
    command: str = "",
) -> EmbedderExport:
    """Write a sentence-transformers model with the fix in it to `folder`, and read it back.

    `fit` is what the fix is fitted on; sentences of `check`, which the model is scored on, are left out of it. Nothing is left
    in `folder` unless that library reads back our own vectors.

    Raises:
        MissingExtra: sentence-transformers is not installed.
        BadInput: the model is not in float32, the folder exists, the model cannot be cut there or the fix cannot be made;
            see `shorter_model`, `make_fix`; or the tokenizer knows no token of `check`.
        BadFile: what was written reads back as another model.
    """
    import torch

    options = options or ExportOptions()
    library = need("sentence_transformers", "embed", "exporting an embedder")
    if (dtype := next(loaded.model.parameters()).dtype) != torch.float32:
        raise BadInput(
            f"{loaded.name} is loaded in {str(dtype).removeprefix('torch.')}, and an embedder is written in float32; load it "
            f"with LoadOptions(dtype='float32')"
        )
    refuse_offloaded(loaded.model, "an export")
    check_place(folder, overwrite=options.overwrite)
    unknown = _unknown(loaded, check)
    short = shorter_model(loaded, options.layer)
    ours = _OwnVectors(loaded, options, short.layer)
    fit, dropped = _fit_text(fit, options, check)
    fix, clipping = _fix(ours, short, fit)
    dims = clipping.at(short.name) if clipping else ()
    length = token_limit(loaded, options.max_length)
    made = EmbedderExport(
        provenance=loaded.provenance(command=command, seed=options.seed),
        about=About(
            dims=tuple(map(str, dims)), stack=loaded.stacks[0].name, max_length=length,
            layers=(short.layer,) if short.n_blocks else (),
        ),
        read_back=(), folder=str(folder), layer=short.name, n_blocks=short.n_blocks, of_blocks=short.stack.n_layers,
        final_norm=bool(short.stack.final_norm), fix=fix.name, clip=clipping.source if clipping else "",
        fit=fit.source if fit else "", fit_digest=fit.digest if fit else "", n_fitted=fix.n_fitted,
        shrinkage=fix.shrinkage, n_dropped=dropped, width=(len(fix.centre), len(fix.bias)),
        normalized=options.normalize, notes=(*loaded.notes, *unknown, *_notes(short, fix)),
    )  # fmt: skip
    check_place(folder, overwrite=options.overwrite)  # once more: the fit took its time
    with new_folder(folder) as part:
        _write(library, part, short, fix, made, loaded)
        made = _checked(made, ours, fix, _read_back(library, part, made), check)
        (part / CARD).write_text(card(made), "utf-8")
        save(made, part / RESULT)
    return made


@dataclass(frozen=True)
class _OwnVectors:
    """Our own pass over a layer: sentence vectors as the exported model makes them."""

    loaded: LoadedModel
    options: ExportOptions
    layer: int

    def of(self, texts: tuple[str, ...], label: str) -> np.ndarray:
        """[text, dim], without those of texts that have no token."""
        options = self.options
        read = ReadOptions(options.batch_size, None, (self.layer,), True, progress=options.progress).told(label)
        tokens = tokenise(self.loaded, texts, max_length=options.max_length)
        found = gather(self.loaded, tokens, tokens.sentences(), read, special=True)
        return found.values[0][found.n_tokens > 0]


def _unknown(loaded: LoadedModel, check: TextPairs | None) -> tuple[str, ...]:
    """A remark where many tokens of these sentences are unknown; raises BadInput where all are."""
    known = KnownTokens()
    for sentence in check.sentences if check else ():
        known.add(loaded.tokenizer, tokenizer_of(loaded)(sentence)["input_ids"])
    known.check(loaded.name)
    return (f"{check.source}: {known.note}",) if check and known.note else ()


def _fit_text(fit: Texts | None, options: ExportOptions, check: TextPairs | None) -> tuple[Texts | None, int]:
    """(what to fit on, texts that were left out because they are evaluated)."""
    if not options.needs_text:
        if fit is not None:
            raise BadInput(f"fix {options.fix.name} is not fitted on a text; leave {fit.source} out (--fit-data)")
        return None, 0
    if fit is None:
        raise BadInput(f"fix {options.fix.name} needs a text to fit on; name one (--fit-data)")
    return apart(fit, check.sentences if check else (), limit=options.fit_limit, seed=options.seed)


def _fix(ours: _OwnVectors, short: ShorterModel, fit: Texts | None) -> tuple[Fix, Clipping | None]:
    """The repair of the layer's vectors, and where its dimensions come from if it clips."""
    spec, loaded = ours.options.fix, ours.loaded
    width = stream_width(loaded.model, loaded.stacks[0])
    if spec.kind == "clip":
        clipping = resolve_clipping(ours.options.clip, loaded, fit_texts=fit)
        dims = clipping.at(short.name)
        if not dims:
            raise BadInput(
                f"{loaded.name}, layer {short.name}: nothing to clip ({clipping.source}); name dimensions with --clip, or use "
                f"--fix raw"
            )
        return make_fix(spec, width, dims=dims), clipping
    moments = None if fit is None else moments_of(ours.of(fit.texts, "fitting"))
    return make_fix(spec, width, moments=moments), None


def _write(library: Any, part: Path, short: ShorterModel, fix: Fix, made: EmbedderExport, loaded: LoadedModel) -> None:
    """The folder, as sentence-transformers writes it; its own way of padding is on the right, as the vectors were made."""
    import torch

    kinds = need("sentence_transformers.sentence_transformer.modules", "embed", "exporting an embedder")
    tokenizer: Any = copy.deepcopy(loaded.tokenizer)
    tokenizer.padding_side = "right"
    with tempfile.TemporaryDirectory(dir=part) as place, _reading(made):
        short.write(Path(place))
        tokenizer.save_pretrained(place)
        modules = [kinds.Transformer(place, max_seq_length=made.about.max_length), kinds.Pooling(made.width[0], "mean")]
        if fix.name != "raw":
            dense = kinds.Dense(*made.width, bias=True, activation_function=torch.nn.Identity())
            dense.linear.weight.data = torch.tensor(fix.weight, dtype=torch.float32)  # [kept, dim]
            dense.linear.bias.data = torch.tensor(fix.bias, dtype=torch.float32)
            modules.append(dense)
        modules += [kinds.Normalize()] if made.normalized else []
        library.SentenceTransformer(modules=modules, device="cpu").save(str(part), create_model_card=False)


def _read_back(library: Any, part: Path, made: EmbedderExport) -> Any:
    with _reading(made):
        return library.SentenceTransformer(str(part), device="cpu", local_files_only=True)


@contextmanager
def _reading(made: EmbedderExport) -> Iterator[None]:
    """Whatever that library and the family's own code raise, as one line."""
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        raise _unusable(made.provenance.model, made.n_blocks - 1, made.of_blocks, error) from error


def _checked(made: EmbedderExport, ours: _OwnVectors, fix: Fix, model: Any, check: TextPairs | None) -> EmbedderExport:
    """`made` with what the folder's own `model` gives; raises BadFile where that is not what we make."""

    def encode(texts: tuple[str, ...]) -> np.ndarray:
        with _reading(made):
            return np.asarray(model.encode(list(texts), batch_size=ours.options.batch_size, show_progress_bar=False))

    texts = tuple(text for name in (REVIEWS, EXCERPT) for text in read_texts(name, limit=CHECK_TEXTS).texts)
    for text in texts:
        if model.tokenizer(text)["input_ids"] != tokenizer_of(ours.loaded)(text)["input_ids"]:
            raise BadFile(
                f"{ours.loaded.name}: its tokenizer, written and read back as a {type(model.tokenizer).__name__}, gives other "
                f"tokens for {text[:40]!r}, so nothing is kept; use the tokenizer that belongs to this family"
            )
    wanted = fix.apply(ours.of(texts, "checking"))
    if made.normalized:
        wanted = wanted / np.maximum(np.linalg.norm(wanted, axis=1, keepdims=True), 1e-12)
    made = replace(made, read_back=(_compared(encode(texts), wanted, made),))
    if check is None:
        return made
    plain = ours.of(check.sentences, "scoring")
    if left := len(check.sentences) - len(plain):
        raise BadInput(f"{check.source}: {left} sentences have no token; leave their pairs out")
    scores = FolderScore(
        data=check.source, n_pairs=len(check), raw=spearman(check, plain), fixed=spearman(check, fix.apply(plain)),
        exported=spearman(check, encode(check.sentences)),
    )  # fmt: skip
    return replace(made, scores=(scores,))


def _compared(found: np.ndarray, wanted: np.ndarray, made: EmbedderExport) -> FolderCheck:
    reader = f"{LIBRARY} {metadata.version(LIBRARY)}"
    if found.shape != wanted.shape:
        error = ValueError(f"{found.shape[1]} dimensions instead of {wanted.shape[1]}")
        raise _unusable(made.provenance.model, made.n_blocks - 1, made.of_blocks, error)
    scale, difference = float(np.abs(wanted).max()), float(np.abs(found - wanted).max())
    relative = difference / scale if scale > 0 else difference
    if not relative <= TOLERANCE:
        remedy = (
            "the blocks that are left compute something else without the others: use --layer last"
            if made.n_blocks < made.of_blocks
            else "this family computes something else from a file than it did here, and cannot be exported"
        )
        raise BadFile(
            f"layer {made.layer}, fix {made.fix}: {reader} reads back vectors that differ by {difference:.3g} "
            f"({relative:.2g} of the largest entry; at most {TOLERANCE:g}), so nothing is kept. If it is little, the fix "
            f"divides by tiny variances: keep fewer directions, as in whiten:64. If it is much, {remedy}"
        )
    return FolderCheck(reader=reader, n_texts=len(wanted), difference=difference, relative=relative)


def _notes(short: ShorterModel, fix: Fix) -> Iterator[str]:
    width = len(fix.centre)
    if 0 < fix.n_fitted < ENOUGH * width:
        shrunk = f"; the covariance is shrunk by {fix.shrinkage:.3f}" if fix.shrinkage else ""
        yield f"fitted on {fix.n_fitted:,} vectors, fewer than {ENOUGH} for each of the {width} dimensions{shrunk}"
    if short.layer == EMBEDDINGS:
        yield "no block is left: a vector is the mean of the first block's input"


def card(found: EmbedderExport) -> str:
    """Markdown under the metadata that the hub reads: what the model is, its numbers, and how to load it."""
    yaml = need("yaml", "models", "a model card")
    base = found.provenance.model
    sample = SAMPLES.get(base)
    name = sample.hub_id if sample else base
    head: dict[str, Any] = {"library_name": LIBRARY, "pipeline_tag": "sentence-similarity"}
    if re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", name, re.ASCII) and not Path(name).exists():
        head["base_model"] = name  # the hub takes its own ids alone
    head["tags"] = [LIBRARY, "feature-extraction", "sentence-similarity", "outlierlens"]
    said = [*found.sentences(), *(f"Note: {note}." for note in found.notes)]
    said += [
        f"{one.reader} reads this folder back as outlierlens makes the vectors: largest difference {one.difference:.2g}, "
        f"{one.relative:.1g} of the largest entry ({one.n_texts} texts)."
        for one in found.read_back
    ]
    said += [
        f"Spearman × 100 of cosines on {one.n_pairs:,} pairs of {one.data}: {100 * one.raw:.2f} without the fix, "
        f"{100 * one.fixed:.2f} with it, {100 * one.exported:.2f} from this folder. None of its sentences was fitted on."
        for one in found.scores
    ]
    listed = "\n".join(f"- {markdown(one)}" for one in said[1:])
    return f"""---
{yaml.safe_dump(head, allow_unicode=True, sort_keys=False).strip()}
---
# {markdown(base)}, layer {found.layer}, {found.fix}

Sentence vectors of {found.width[1]} dimensions. Load them with sentence-transformers alone:

    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer({literal(Path(found.folder).name)})
    vectors = model.encode(["A plane is taking off."])

{listed}

The licence of the base model applies{f" ({sample.licence})" if sample else ""}: these are its weights.
Written by outlierlens {found.provenance.version}, again by:

    {printable(found.provenance.command or "outlierlens.export_embedder(…)")}
"""
