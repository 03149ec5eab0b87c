"""Which dimensions are clipped in which layer: what papers name, what `observe` finds, or what a user writes.

    clipping = resolve_clipping("auto", loaded, fit_texts=read_texts("train.jsonl"))
    clipping.at("3")                                   # dimensions that are set to zero in vectors of layer "3"
    resolve_clipping("luo-bert-large", loaded)         # a table of a paper, for that shape alone
    resolve_clipping("0-9:896;9-16:678", loaded)       # layers from 0; "557,143" is every block

Clipping is Luo et al.'s (2021, section 4): dimensions of *extracted* vectors are zero, the network itself runs unchanged. A
file (.toml or .json) holds the same: `"0-9" = [896]` a line, `embeddings` for what goes into the first block.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outlierlens.ablation.switches import check_dims
from outlierlens.architectures import ARCHITECTURES, BoundStack
from outlierlens.architectures.stack import Specification
from outlierlens.data.texts import Data
from outlierlens.errors import BadFile, BadInput
from outlierlens.models.hooks import EMBEDDINGS, layer_name
from outlierlens.models.load import LoadedModel
from outlierlens.results.row_store import UnitCache
from outlierlens.results.safe_files import read_json, read_toml
from outlierlens.vectors.read import stack_of

AUTO_TEXTS = 1000  # texts that "auto" observes at most: shares of token vectors settle long before
MAX_FILE_BYTES = 2**20
WRITTEN = "write 557,143 (every block), 0-9:896;9-16:678 (layers from 0), auto, none, a named specification or a file"


# What papers name, by the name to ask for.
SPECIFICATIONS: dict[str, Specification] = {
    name: spec for row in ARCHITECTURES.values() for name, spec in row.clipped.items()
}


@dataclass(frozen=True)
class Clipping:
    """Dimensions to clip, layer by layer.

    Attributes:
        name: as asked for: "auto", "luo-bert-large", "557".
        dims: by the layer's name ("embeddings", "0", "1", …), ascending; a layer without any is absent.
        source: where they come from, in words.
    """

    name: str
    dims: dict[str, tuple[int, ...]]
    source: str

    def at(self, layer: str) -> tuple[int, ...]:
        """Dimensions to clip in vectors of `layer`; () for none."""
        return self.dims.get(layer, ())

    @property
    def every(self) -> tuple[int, ...]:
        """All dimensions that are clipped in some layer, ascending."""
        return tuple(sorted({dim for dims in self.dims.values() for dim in dims}))


def resolve_clipping(
    asked: str, loaded: LoadedModel, *, fit_texts: Data | None = None, stack: str | None = None
) -> Clipping:
    """What `asked` means for this model: "auto", "none", dimensions, layers with dimensions, a specification or a file.

    "auto" takes the dimensions of Luo's rule (`ActivationRules`) on `fit_texts`, each in the layers where it holds: never
    in the embeddings, as in the paper. Where there is none, the clipping is empty and its source says so.

    Raises:
        BadInput: text that cannot be read so, a layer or dimension that the model does not have, a specification for
            another shape, or "auto" without texts.
        BadFile: a file that is missing, malformed or too large.
    """
    from outlierlens.models.load import stream_width

    bound = stack_of(loaded, fit_texts, stack)
    width = stream_width(loaded.model, bound)
    if asked == "none":
        return Clipping(asked, {}, "nothing is clipped, as asked for")
    if asked == "auto":
        return _observed(loaded, bound, fit_texts)
    if asked in SPECIFICATIONS:
        return _specified(asked, SPECIFICATIONS[asked], loaded, (bound.n_layers, width))
    if asked.lower().endswith((".toml", ".json")):
        found, source = _file(Path(asked), bound.n_layers)
    else:
        found, source = _written(asked, bound.n_layers), "named by hand"
    for layer, dims in found.items():
        check_dims(dims, width, f"clipping {asked!r}, layer {layer}")
    return Clipping(asked, found, source)


def kept_clipping(
    kept: UnitCache, asked: str, loaded: LoadedModel, texts: Callable[[], Data], stack: str | None = None
) -> Clipping:
    """`resolve_clipping`, with “auto” observed on `texts()` once; raises the same errors."""
    if asked != "auto":
        return resolve_clipping(asked, loaded, stack=stack)
    found = kept("clipped", lambda: asdict(resolve_clipping(asked, loaded, fit_texts=texts(), stack=stack)))
    return Clipping(asked, {layer: tuple(dims) for layer, dims in found["dims"].items()}, found["source"])


def _observed(loaded: LoadedModel, bound: BoundStack, texts: Data | None) -> Clipping:
    from outlierlens.detection.activations import ObserveOptions, Observer
    from outlierlens.models.inputs import reading_of

    if texts is None or not len(texts):
        raise BadInput(
            "--clip auto finds the dimensions on a text to fit on; name one with --fit-data, or the dimensions"
        )
    options = ObserveOptions(passage_tokens=0, table_cells=1)
    some = texts.first(AUTO_TEXTS)
    observer = Observer(loaded, options, reading_of(loaded, some, options.max_length))
    (mine,) = (one for one in observer.measured(some) if one.stack == bound.name)
    found: dict[str, set[int]] = {}
    for outlier in mine.outliers:
        for layer in outlier.layers if outlier.rule == "luo" else ():
            found.setdefault(layer, set()).add(outlier.dim)
    dims = {layer: tuple(sorted(found[layer])) for layer in mine.layers if layer in found}
    rule = options.rules
    said = (
        f"smallest or largest entry of at least {rule.luo_share:.0%} of a layer's token vectors in at least "
        f"{rule.luo_layer_fraction:.0%} of the blocks, observed on {len(some):,} {some.plural} ({observer.n_tokens:,} tokens) "
        f"of {texts.source}"
    )
    return Clipping("auto", dims, said if dims else f"no dimension is the {said}; nothing is clipped")


def _specified(name: str, spec: Specification, loaded: LoadedModel, shape: tuple[int, int]) -> Clipping:
    family = str(loaded.config.get("model_type"))
    if (family, *shape) != (spec.model_type, spec.n_layers, spec.hidden_size):
        raise BadInput(
            f"clipping {name} is for a {spec.model_type} of {spec.n_layers} blocks and {spec.hidden_size} dimensions; "
            f"{loaded.name} is a {family} of {shape[0]} blocks and {shape[1]} dimensions; use --clip auto, which finds the "
            f"dimensions of any model"
        )
    return Clipping(name, spec.dims, "; ".join(filter(None, (spec.source, spec.note))))


def _written(text: str, n_layers: int) -> dict[str, tuple[int, ...]]:
    """ "557,143" or "0-9:896;9-16:678" as {layer's name: dimensions}."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts:
        raise BadInput(f"cannot read the clipping {text!r}; {WRITTEN}")
    found = []
    for part in parts:
        layers, colon, dims = part.rpartition(":")
        numbers = dims.split(",")
        if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", number) for number in numbers):
            known = ", ".join(SPECIFICATIONS)
            raise BadInput(f"cannot read the clipping {part!r}; {WRITTEN}; specifications are {known}")
        wanted = _layers(layers, n_layers) if colon else range(n_layers)
        found.append((wanted, tuple(int(number) for number in numbers)))
    return _by_layer(found)


def _layers(text: str, n_layers: int) -> range:
    """ "0-9", "4" or "embeddings"."""
    if text.strip() == "embeddings":
        return range(EMBEDDINGS, EMBEDDINGS + 1)
    read = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", text)
    if not read:
        raise BadInput(f"cannot read the layers {text!r} of a clipping; write 4, 0-9 or embeddings (layers from 0)")
    first, last = int(read[1]), int(read[2] or read[1])
    if last < first:
        raise BadInput(f"layers {text.strip()} of a clipping run backwards; write {last}-{first}")
    if last >= n_layers:
        raise BadInput(f"layer {last} cannot be clipped; the model has blocks 0 to {n_layers - 1}")
    return range(first, last + 1)


def _file(path: Path, n_layers: int) -> tuple[dict[str, tuple[int, ...]], str]:
    """({layer's name: dimensions}, where they come from) of a TOML or JSON file: at its top, or under `dims` and `source`."""
    if not path.is_file():
        raise BadFile(f"{path}: no such file of a clipping; {WRITTEN}")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise BadFile(f"{path}: {path.stat().st_size:,} bytes is too large for a clipping")
    document: Any = read_json(path, WRITTEN) if path.suffix.lower() == ".json" else read_toml(path, BadFile)
    entries = document.get("dims", document) if isinstance(document, Mapping) else None
    if not isinstance(entries, Mapping) or (not entries and "dims" not in document):  # nothing may be what was found
        raise BadFile(f'{path}: holds no layer with dimensions; write "0-9" = [896] (TOML) or {{"0-9": [896]}} (JSON)')
    found = []
    for layers, dims in entries.items():
        if not isinstance(dims, list) or not all(type(dim) is int for dim in dims):
            raise BadFile(f"{path}: {layers} = {str(dims)[:60]}; it must be a list of dimensions, [896, 678]")
        found.append((_layers(layers, n_layers), tuple(dims)))
    said = document.get("source") if "dims" in document else None
    return _by_layer(found), str(said)[:500] if said else f"file {path.name}"


def _by_layer(entries: Iterable[tuple[Sequence[int], tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """{layer's name: dimensions, each once and ascending}, layers in order, of (layers, dimensions)."""
    found: dict[int, set[int]] = {}
    for layers, dims in entries:
        for layer in layers:
            found.setdefault(layer, set()).update(dims)
    return {layer_name(layer): tuple(sorted(found[layer])) for layer in sorted(found) if found[layer]}
