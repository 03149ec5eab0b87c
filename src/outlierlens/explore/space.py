"""Write a folder that, pushed to the Hugging Face hub as a Space, serves the page of a model there.

written = write_space(Path("space"), "mini-planted", LoadOptions())
# then: hf upload OWNER/NAME space --repo-type space

The folder holds this package too, so the Space runs what wrote it. A Space is public: anyone can use the page.
"""

import json
import re
import shutil
from importlib import metadata
from pathlib import Path

from outlierlens import __version__
from outlierlens.checkpoints.samples import SAMPLES
from outlierlens.errors import BadInput, need
from outlierlens.models.load import LoadOptions
from outlierlens.results.safe_files import new_folder

PACKAGE = Path(__file__).parents[1]
_HUB_ID = re.compile(r"\w[\w.-]{,95}(/\w[\w.-]{,95})?", re.ASCII)
_APP = '''"""The live page of {model}, written by `outlierlens explore --space`."""

{imports}from outlierlens.explore.look import open_explorer
from outlierlens.explore.page import launch_options, page
from outlierlens.models.load import LoadOptions

{fetch}explorer = open_explorer({model!r}, {options})
demo = page(explorer, explorer.start())

if __name__ == "__main__":
    demo.launch(**launch_options())  # a Space names the address and the port in the environment
'''
_README = """---
title: {title}
emoji: 🔎
colorFrom: gray
colorTo: blue
sdk: gradio
sdk_version: {gradio}
python_version: "3.11"
app_file: app.py
pinned: false
license: apache-2.0
short_description: Switch dimensions off and watch what the model says
{models}---

# Outlier dimensions of {model}

Type a sentence, switch the handful of dimensions off that stand out, and see the model with random ones off beside it.
Written by outlierlens {version}, whose code is in `outlierlens/`; start it at home with `python app.py`.
"""


def write_space(folder: Path, model: str, options: LoadOptions) -> Path:
    """Write the Space's files for `model` (a sample or a hub id) to `folder`, which must be new or empty.

    Raises:
        BadInput: the folder holds something, or the model is a folder of this machine, which a Space cannot read.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is not empty; name a new folder")
    names = (model, options.tokenizer) if options.tokenizer else (model,)
    for name in names:
        if not _HUB_ID.fullmatch(name) or Path(name).exists():
            raise BadInput(
                f"{name} is on this machine, where a Space cannot read it; push it to the hub and give its id"
            )
    if isinstance(options.row, Path):
        raise BadInput("--arch names a file of this machine; a Space takes models of the architecture table")
    fetched = [name for name in names if name in SAMPLES and not SAMPLES[name].packaged]
    on_hub = "".join(f"- {json.dumps(name)}\n" for name in names if name not in SAMPLES)
    title = json.dumps(f"Outlier dimensions of {model}")
    models = f"models:\n{on_hub}" if on_hub else ""
    texts = {
        "README.md": _README.format(
            title=title, gradio=_gradio_version(), models=models, model=model, version=__version__
        ),
        "app.py": _APP.format(
            model=model,
            options=_options(options),
            imports="from outlierlens.checkpoints.samples import fetch\n" if fetched else "",
            fetch="".join(f"fetch({name!r})  # once: a Space that sleeps loses it\n" for name in fetched),
        ),
        "requirements.txt": "\n".join(requirements(("models", "samples") if fetched else ("models",))) + "\n",
        ".gitattributes": "*.safetensors filter=lfs diff=lfs merge=lfs -text\n",
    }
    with new_folder(folder) as making:
        _copy_package(making / "outlierlens", names)
        for name, text in texts.items():
            (making / name).write_text(text, "utf-8")
    return folder


def _gradio_version() -> str:
    try:
        return metadata.version("gradio")
    except metadata.PackageNotFoundError:
        return str(need("gradio", "explore", "a Space").__version__)


def _options(options: LoadOptions) -> str:
    plain, names = LoadOptions(), ("revision", "subfolder", "dtype", "trust_remote_code", "row", "tokenizer")
    changed = [f"{name}={getattr(options, name)!r}" for name in names if getattr(options, name) != getattr(plain, name)]
    return f"LoadOptions({', '.join(changed)})"


def requirements(extras: tuple[str, ...]) -> list[str]:
    """What the package and these extras of it need, as its own metadata says; gradio comes with the Space."""
    from packaging.requirements import Requirement

    needed: dict[str, str] = {}
    wanted, done = ["", *extras], set()
    while wanted:
        extra = wanted.pop()
        done.add(extra)
        for line in metadata.requires("outlierlens") or ():
            one = Requirement(line)
            of_extra = "extra" in str(one.marker or "")
            if of_extra != bool(extra) or (one.marker and not one.marker.evaluate({"extra": extra})):
                continue
            if one.name == "outlierlens":
                wanted += [inner for inner in one.extras if inner not in done]
            else:
                needed[one.name] = f"{one.name}{one.specifier}"
    return sorted(needed.values())


def _copy_package(folder: Path, served: tuple[str, ...]) -> None:
    """The package without caches, and without the packaged samples that the Space does not serve."""
    others = {name for name, sample in SAMPLES.items() if sample.packaged and name not in served}

    def skipped(where: str, names: list[str]) -> set[str]:
        inside = others if Path(where).name == "data_files" else set()
        return {name for name in names if name == "__pycache__" or name in inside or name.endswith((".pyc", ".part"))}

    shutil.copytree(PACKAGE, folder, ignore=skipped)
