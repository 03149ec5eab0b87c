"""Turn a fetched sample into a folder that transformers' `from_pretrained` loads; once, beside the fetched files.

    model = AutoModelForCausalLM.from_pretrained(model_directory("smollm2-135m"))

`CONVERSIONS` names the ways; a sample whose files already are such a folder needs none.
"""

import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path

from outlierlens.errors import need
from outlierlens.samples.cache import (
    Progress,
    being_made,
    check_space,
    directory,
    folder_of,
    locked,
    megabytes,
    sample_named,
    silent,
)

RECIPE = 1  # part of the folder's name: a change below that alters the result must raise it


def model_directory(name: str, progress: Progress = silent) -> Path:
    """A folder with float32 safetensors, config and tokenizer of sample `name`, made on first need.

    Raises:
        UnknownModel: no such sample, or it has not been fetched.
        MissingExtra: the conversion needs a library that is not installed.
        BadInput: the disk is too small.
    """
    sample = sample_named(name)
    fetched = directory(name)
    if not sample.conversion:
        return fetched
    target = folder_of(sample).with_name(f"{fetched.name}-transformers-{RECIPE}")
    # A folder under its final name is whole: it got the name in one step.
    if target.is_dir():
        return target
    with locked(sample):
        if not target.is_dir():
            progress(f"{name}: converting once to {megabytes(sample.converted_bytes)} of safetensors in {target}")
            check_space(sample.converted_bytes, target.parent, f"converting {name}")
            with being_made(target) as making:
                CONVERSIONS[sample.conversion](fetched, making)
    return target


def _gguf(fetched: Path, making: Path) -> None:
    """Dequantize a GGUF file with transformers' own reader; the tokenizer is rebuilt from the file's metadata."""
    torch = need("torch", "models", "converting a GGUF sample")
    need("gguf", "gguf", "converting a GGUF sample")
    transformers = need("transformers", "models", "converting a GGUF sample")
    (file,) = fetched.glob("*.gguf")
    auto = transformers.AutoModelForCausalLM
    # The libraries' own progress bars would ignore what the caller chose about progress.
    with contextlib.redirect_stderr(io.StringIO()):
        transformers.AutoTokenizer.from_pretrained(fetched, gguf_file=file.name).save_pretrained(making)
        read = auto.from_pretrained(fetched, gguf_file=file.name, dtype=torch.float32)
        # `read` counts as quantized although its values are plain float32, and transformers refuses to save that.
        settings = {key: value for key, value in read.config.to_dict().items() if key != "quantization_config"}
        with torch.device("meta"):  # no random weights for 135 million parameters that are replaced at once
            model = auto.from_config(type(read.config).from_dict(settings), dtype=torch.float32)
        model.load_state_dict(read.state_dict(), assign=True)
        model.tie_weights()
        model.generation_config = read.generation_config
        model.save_pretrained(making)


def _distilbert_onnx(fetched: Path, making: Path) -> None:
    """Dequantize the ONNX file tensor by tensor, without torch, under the names transformers uses."""
    from outlierlens.checkpoint.onnx import OnnxCheckpoint
    from outlierlens.checkpoint.safetensors import write_header

    (file,) = fetched.glob("*.onnx")
    with OnnxCheckpoint(file, name=fetched.name, config={}) as checkpoint:
        wanted = [name for name in checkpoint.tensors if name.startswith(("distilbert.", "classifier."))]
        header = write_header(
            {name: ("F32", info.shape, info.size * 4) for name in wanted for info in [checkpoint.tensors[name]]}
        )
        with (making / "model.safetensors").open("wb") as out:
            out.write(header)
            for _, values in checkpoint.read(wanted):
                out.write(values.astype("<f4").tobytes())
    for json_file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(fetched / json_file, making / json_file)


CONVERSIONS: dict[str, Callable[[Path, Path], None]] = {"gguf": _gguf, "distilbert_onnx": _distilbert_onnx}
