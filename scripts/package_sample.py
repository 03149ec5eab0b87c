"""Make the sample that comes with the package from a finished pre-training run.

    python scripts/package_sample.py runs/mini-bert                          # into src/outlierlens/data_files/mini-bert
    python scripts/package_sample.py runs/mini-bert -o /tmp/elsewhere

A run folder is what `outlierlens lab pretrain` writes: model/, recipe.toml, watch.jsonl, outcome.json and the Trainer's log.
The same run gives the same bytes. What is written is read back and compared with the run before it takes its place: loss and
logits against the float32 weights, tokens, recorded norms, sizes, and that no path of this machine is in it.
"""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from outlierlens.analyses.scan import scan
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.samples import PACKAGED
from outlierlens.data.texts import SHIPPED, read_texts
from outlierlens.errors import BadFile, BadInput, OutlierlensError
from outlierlens.models.load import LoadedModel, LoadOptions, load_model
from outlierlens.results.document import load
from outlierlens.results.row_store import read_rows, row_line
from outlierlens.results.safe_files import new_folder, write_text
from outlierlens.tasks.base import TaskOptions, weighted_mean
from outlierlens.tasks.choice import make_task
from outlierlens.training.pretrain.loop import RECIPE, WATCH
from outlierlens.training.pretrain.recipe import Recipe, read_recipe
from outlierlens.training.pretrain.result import OUTCOME, Outcomes, TrainedModel
from outlierlens.training.watch_rows import read_watch, step_of

WEIGHTS = "model.safetensors"
NORMS_EVERY = 100  # steps between the recorded norms that are kept
KEPT_LOGS = ("loss", "eval_loss", "learning_rate")
MAX_BYTES, MAX_WATCH_BYTES = 12_000_000, 1_000_000
LOSS_TOLERANCE, LOGIT_TOLERANCE = 0.002, 0.1  # nats per token; the half precision of the matrices is all that differs
# Neither has a meaning outside the machine that saved it.
NOT_TOKENIZER = ("backend", "is_local", "local_files_only", "name_or_path")
NOT_CONFIG = ("_name_or_path", "transformers_version", "use_cache")
PROMPTS = (
    "This was the [MASK] movie I have ever [MASK].",
    "The acting was terrible and the plot made no [MASK].",
    "I would [MASK] this film to anyone who likes [MASK] movies.",
)


@dataclass(frozen=True)
class Source:
    """A finished run, its local texts replaced in the recipe by the public names of the shipped one."""

    run: Path
    recipe: Recipe
    log: list[dict[str, Any]]
    outcome: TrainedModel

    @property
    def model(self) -> Path:
        """The folder of the trained model."""
        return self.run / "model"

    @property
    def step(self) -> int:
        """The last step."""
        return self.recipe.training.steps


def main(arguments: list[str] | None = None) -> int:
    """Package what the command line names; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a pre-training run")
    parser.add_argument("-o", "--output", type=Path, help="default: the sample's place in the package")
    given = parser.parse_args(arguments)
    try:
        source = find(given.run)
        target = given.output or PACKAGED / source.recipe.name
        package(source, target)
    except OutlierlensError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{target}: step {source.step:,}, {sum(file.stat().st_size for file in target.iterdir()):,} bytes")
    return 0


def package(source: Source, target: Path) -> None:
    """Write the sample's folder, check it, and put it in the place of what was there.

    Raises:
        BadInput, BadFile: the run lacks something, or what was written does not equal the run.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(target) as making:
        write_weights(source.model / WEIGHTS, making / WEIGHTS)
        # float32 is what the model is meant to compute in: halves are how the matrices are stored.
        write_json(making / "config.json", {**without(source.model / "config.json", NOT_CONFIG), "dtype": "float32"})
        write_json(making / "tokenizer_config.json", without(source.model / "tokenizer_config.json", NOT_TOKENIZER))
        write_json(making / "tokenizer.json", without(source.model / "tokenizer.json", ()), indent=None)
        write_text(making / RECIPE, source.recipe.to_toml())
        write_text(making / "log.json", log_json(source.log))
        write_text(making / WATCH, thinned(source.run / WATCH, source.step))
        write_text(making / "README.md", card(source, compare(source, making)))
        check_files(source, making)


def find(run: Path) -> Source:
    """The finished run in a folder.

    Raises:
        BadInput: no such run, not finished or measured, or another recipe than the shipped one.
    """
    for name in (RECIPE, f"model/{WEIGHTS}", OUTCOME):
        if not (run / name).is_file():
            raise BadInput(f"{run}: holds no {name}; `outlierlens lab pretrain` writes it, at the latest at the end")
    ran = read_recipe(run / RECIPE)
    public = read_recipe(ran.name)
    recipe = ran.changed([f"data.source={json.dumps(public.data.source)}"])
    if recipe.changed([f"training.seed={public.training.seed}"]).digest != public.digest:
        raise BadInput(f"{run}: was trained by another recipe than the shipped {ran.name}; its card would be wrong")
    found = load(run / OUTCOME)
    assert isinstance(found, Outcomes)
    return Source(run, recipe, json.loads((run / "log.json").read_text("utf-8"))["log_history"], found.runs[0])


def write_weights(stored: Path, path: Path) -> None:
    """Matrices in half precision; vectors (norms, biases), which are what is looked at here, exactly as they are."""
    tensors = {}
    for name, values in sorted(load_file(stored).items()):
        if values.dtype != np.float32:
            raise BadInput(f"{stored}: {name} is {values.dtype}; a run stores float32")
        with np.errstate(over="ignore"):  # reported below, with the tensor's name
            tensors[name] = np.ascontiguousarray(values if values.ndim < 2 else values.astype(np.float16))
        if not np.isfinite(tensors[name]).all():
            raise BadInput(f"{stored}: {name} does not fit half precision (largest {np.abs(values).max():g})")
    save_file(tensors, path, metadata={"format": "pt"})


def without(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """The JSON object in a file, without some of its keys."""
    return {key: value for key, value in json.loads(path.read_text("utf-8")).items() if key not in keys}


def write_json(path: Path, value: dict[str, Any], *, indent: int | None = 2) -> None:
    """JSON in UTF-8, in the order that it had; without `indent` also without spaces."""
    separators = (",", ":") if indent is None else None
    write_text(path, json.dumps(value, indent=indent, separators=separators, ensure_ascii=False) + "\n")


def log_json(log: list[dict[str, Any]]) -> str:
    """Steps and losses alone, a row a line, in the form of a trainer_state.json."""
    rows = [{name: row[name] for name in ("step", "loss", "eval_loss") if name in row} for row in log]
    lines = ",\n".join(json.dumps(row) for row in rows if len(row) > 1)
    return f'{{"log_history": [\n{lines}\n]}}\n'


def thinned(path: Path, last: int) -> str:
    """The rows of a watch at every NORMS_EVERY-th step and at the `last`, with the losses that were logged beside them."""
    identity, rows = read_rows(path)
    if NORMS_EVERY % identity["every"]:
        raise BadInput(f"{path}: was recorded every {identity['every']} steps, not in parts of {NORMS_EVERY}")
    kept: list[dict[str, Any]] = [{"identity": {**identity, "every": NORMS_EVERY}}]
    for key, value in rows.items():
        norms = key.startswith("step ") and (step_of(key) % NORMS_EVERY == 0 or step_of(key) == last)
        if norms or (key.startswith("log ") and key.rpartition(" ")[2] in KEPT_LOGS):
            kept.append({"key": key, "value": value})
    return b"".join(map(row_line, kept)).decode("utf-8")


# --- checks ------------------------------------------------------------------------------------------------------


def compare(source: Source, packaged: Path) -> dict[str, Any]:
    """Losses and fills of the packaged model for its card, once they equal those of the run's float32 weights.

    Raises:
        BadFile: they differ by more than the rounding of the matrices explains.
    """
    torch.set_num_threads(1)
    load_as = LoadOptions(dtype="float32", device="cpu", offline=True)
    exact, stored = load_model(str(source.model), load_as), load_model(str(packaged), load_as)
    losses = {}
    for name in SHIPPED:
        texts = read_texts(name).texts
        ids = [loaded.tokenizer(list(texts))["input_ids"] for loaded in (exact, stored) if loaded.tokenizer]
        if len(ids) != 2 or ids[0] != ids[1]:
            raise BadFile(f"{packaged}: its tokenizer reads {name} differently from that of {source.model}")
        before, after = (masked_loss(loaded, texts, source.recipe.data.length) for loaded in (exact, stored))
        if not abs(before - after) <= LOSS_TOLERANCE:
            raise BadFile(f"{packaged}: loss on {name} is {after:.4f}, of the run's own weights {before:.4f}")
        losses[name] = after
    with torch.inference_mode():
        one, other = (logits(loaded) for loaded in (exact, stored))
        apart = float((one - other).abs().max())
    if not apart <= LOGIT_TOLERANCE:
        raise BadFile(f"{packaged}: logits differ by up to {apart:.3f} from those of the run's own weights")
    print(f"loss in float32 arithmetic: {losses}; logits differ by at most {apart:.4f} from the run's own weights")
    return {"losses": losses, "apart": apart, "fills": [fills(stored, prompt) for prompt in PROMPTS]}


def masked_loss(loaded: LoadedModel, texts: tuple[str, ...], length: int) -> float:
    """Mean nats per masked token of some texts, 15 % masked, the same tokens every time."""
    return weighted_mean(*make_task(loaded, texts, TaskOptions(max_length=length, seed=0)).per_text())


def logits(loaded: LoadedModel) -> Any:
    """Outputs for the prompts [prompt, token, vocabulary]."""
    tokenizer: Any = loaded.tokenizer
    return loaded.model(**tokenizer(list(PROMPTS), return_tensors="pt", padding=True)).logits


def fills(loaded: LoadedModel, prompt: str) -> dict[str, Any]:
    """A prompt and the three likeliest tokens of each of its blanks."""
    tokenizer: Any = loaded.tokenizer
    encoded = tokenizer(prompt, return_tensors="pt")
    with torch.inference_mode():
        there = loaded.model(**encoded).logits[0][encoded["input_ids"][0] == tokenizer.mask_token_id]
    best = there.topk(3).indices.tolist()
    return {"prompt": prompt, "blanks": [tokenizer.convert_ids_to_tokens(tokens) for tokens in best]}


def check_files(source: Source, packaged: Path) -> None:
    """Raise BadFile unless the norms agree with the weights, sizes keep their limits and nothing local is inside."""
    path = read_watch(packaged / WATCH)
    if path.steps[-1] != source.step:
        raise BadFile(
            f"{source.run / WATCH}: its last row is of step {path.steps[-1]}, the weights are of {source.step}"
        )
    names = [f"bert.encoder.layer.{layer}.output.LayerNorm.weight" for layer in range(path.n_layers)]
    with open_checkpoint(str(packaged)) as checkpoint:
        stored = np.stack([values for _, values in checkpoint.read(names)])
    if not np.array_equal(stored, path.scale[-1]):
        raise BadFile(f"{packaged}: the norms of the last recorded step are not those of the weights")
    sizes = {file.name: file.stat().st_size for file in packaged.iterdir()}
    if sum(sizes.values()) > MAX_BYTES or sizes[WATCH] > MAX_WATCH_BYTES:
        raise BadFile(f"{packaged}: {sum(sizes.values()):,} bytes, {WATCH} {sizes[WATCH]:,}; too large to ship")
    places = map(str, (source.run.absolute(), Path.home(), Path.cwd(), *read_recipe(source.run / RECIPE).data.source))
    local = {place for place in places if len(place) > 1} - set(source.recipe.data.source)
    for file in packaged.iterdir():
        text = file.read_bytes().decode("utf-8", "replace")
        if found := next((one for one in local if one in text), None):
            raise BadFile(f"{file}: names {found}, which is of this machine alone")


def card(source: Source, seen: dict[str, Any]) -> str:
    """The model card."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    environment.filters["signed"] = lambda value: f"{value:+.3f}"
    template = environment.from_string(Path(__file__).with_name("model_card.md.jinja").read_text("utf-8"))
    held_out = [(row["step"], row["eval_loss"]) for row in source.log if "eval_loss" in row]
    seen_z = np.abs(scan(str(source.model)).stacks[0].z_scale).mean(axis=0)  # [dim]
    return template.render(
        name=source.recipe.name, recipe=source.recipe, outcome=source.outcome, held_out=held_out,
        random=np.quantile(source.outcome.random, (0.5, 0.95)) if source.outcome.random else None,
        perplexity=math.exp(held_out[-1][1]) if held_out else None,
        largest=(int(seen_z.argmax()), float(seen_z.max())), **seen,
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
