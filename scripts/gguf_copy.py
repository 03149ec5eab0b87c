"""A model's copy in GGUF, its matrices rounded by the gguf package: python scripts/gguf_copy.py smollm2-135m Q4_0 copy.gguf

Models of the Llama family. The file is written by the tests' own converter; claims about quantized copies use it.
"""

import sys
from pathlib import Path

from outlierlens.models.load import load_model

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from llama_cpp import write_gguf

    name, kind, file = sys.argv[1:]
    write_gguf(Path(file), load_model(name).model, "llama", quantize=kind)
