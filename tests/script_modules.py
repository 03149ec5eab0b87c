"""Scripts of benchmarks/ and examples/ as modules; those of scripts/ are imported by name (pythonpath, pyproject.toml)."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def script(path: str) -> ModuleType:
    """One of them, by its path from the repository's root. What stands beside it is found, as when it is run."""
    name = path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up
    sys.path.append(str((ROOT / path).parent))  # last: benchmarks/coverage.py is no coverage
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop()
    return module
