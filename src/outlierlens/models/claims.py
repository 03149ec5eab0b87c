"""What a config promises, held against the files beside it before a model is made of it.

refuse_claims(BertModel, "runs/bert", config, {"subfolder": ""})
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.formats import native
from outlierlens.errors import BadFile, need

SPARE = 20_000_000  # parameters that files may lack altogether: 80 MB
MAX_DEPTH = 2000  # layers; the deepest Transformer that was published has 1,000
MAX_LABELS = 250_000  # classes of a head; the largest that was published tells 200,000 landmarks apart
_LABELS = re.compile(r"^_?num_labels$")
_DEPTH = re.compile(r"(^|_)(layers?|n_layer|depth|blocks)$")


def refuse_claims(cls: Any, source: str, config: Any, options: dict[str, Any]) -> None:
    """Raise BadFile where a config makes a far larger model than the files can hold: it would be built, and filled, first."""
    torch = need("torch", "models", "running a model")
    deepest = max(_numbers(config.to_dict(), _DEPTH), default=0)
    if deepest > MAX_DEPTH:
        raise BadFile(f"{source}: config.json says {deepest:,.6g} layers, more than {MAX_DEPTH:,}; fetch it again")
    folder = Path(source) / options["subfolder"]
    if not folder.is_dir():
        return
    held = sum(file.stat().st_size for row in native() for file in folder.glob(f"*{row.ending}") if file.is_file())
    try:
        with torch.device("meta"):
            trusted = {"trust_remote_code": options["trust_remote_code"]}  # not said, transformers would ask
            model = cls(config) if hasattr(cls, "config_class") else cls.from_config(config, **trusted)
    except Exception:
        return  # loading says what is wrong
    wanted = sum(parameter.numel() for parameter in model.parameters())
    if wanted > SPARE + 8 * held:  # no format has more than a weight a bit
        raise BadFile(
            f"{source}: config.json asks for {wanted:,} parameters, and the weight files have {held:,} bytes; use the "
            f"config.json that belongs to these weights"
        )


def refuse_labels(source: str, given: Any) -> None:
    """Raise BadFile where a config.json names more labels than any head has: each gets a name before a model is made."""
    most = max(_numbers(given, _LABELS), default=0)
    if most > MAX_LABELS:
        raise BadFile(f"{source}: config.json says {most:,} labels, more than {MAX_LABELS:,}; fetch it again")


def _numbers(config: Any, keys: re.Pattern[str]) -> Iterator[int]:
    """Every whole number under such a key of a config, in those of its parts too."""
    if isinstance(config, dict):
        for key, value in config.items():
            if isinstance(value, int) and keys.search(str(key)):
                yield value
            yield from _numbers(value, keys)
