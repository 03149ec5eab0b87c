"""What every command finds on the smallest model with the smallest data, as its JSON says it."""

import json
from pathlib import Path
from typing import Any

import every_command
from gold.files import brief

# When, how long, where and with what it was measured: not what was found.
ASIDE = frozenset(("created", "libraries", "version", "command", "path", "folder", "platform"))
# Commands that see a model trained here: on another processor its weights have other last bits.
TRAINED = frozenset(("lab pretrain", "track", "lab finetune",
                     "replicate kovaleva-glue", "replicate puccetti-glue"))  # fmt: skip
# Counts of comparisons between float32 numbers that are nearly equal here: the last bits of a processor decide them.
COUNTED = {"attention": {"p"}, "replicate puccetti": {"p"}, "probe": {"weight_rank"}}
PAPERS = {"replicate luo", "replicate puccetti"}
MACHINE = {"doctor", "fetch"}  # what they say is of this machine


def results(said: dict[str, every_command.Said], folder: Path) -> dict[str, Any]:
    """{command: its result, or the lines that it printed}, without what a machine and a moment bring."""
    found: dict[str, Any] = {}
    for name, one in said.items():
        if name in MACHINE:
            continue
        try:
            document = json.loads(one.out)
        except ValueError:
            document = one.out.splitlines()
        if name == "report":
            document = json.loads((folder / "report" / "results.json").read_text("utf-8"))
            document["findings"] = [one["kind"] for one in document["findings"]]  # each is a run of its own
        if name in PAPERS:  # each part is a run of its own, asked otherwise
            document["parts"] = [{"kind": one["kind"], "about": one["about"]} for one in document["parts"]]
        aside = ASIDE | COUNTED.get(name, set()) | ({"fingerprint"} if name in TRAINED else set())
        found[name] = brief(lasting(document, str(folder), aside))
    return found


def lasting(value: Any, folder: str, aside: frozenset[str]) -> Any:
    """A document without what lasts no longer than its run, without where it ran, and without what it was not about."""
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if key not in aside and not key.startswith("seconds")}
        if isinstance(about := kept.get("about"), dict):
            kept["about"] = {key: one for key, one in about.items() if one}
        return {key: lasting(one, folder, aside) for key, one in kept.items()}
    if isinstance(value, list):
        return [lasting(one, folder, aside) for one in value]
    return value.replace(folder, "FOLDER") if isinstance(value, str) else value
