"""A model read block by block beside the model whole, and beside accelerate's disk offload: bytes, memory, seconds.

    python benchmarks/by_block.py bytes                    # what is read at the source, for 1, 4 and 20 conditions
    python benchmarks/by_block.py speed --rounds 2         # three ways in turn, from a local disk
    python benchmarks/by_block.py link                     # from a source of 100 MB/s; accelerate's conditions are extrapolated
    python benchmarks/by_block.py breaks                   # 20 connections break; the values stay the same
    python benchmarks/by_block.py memory                   # 20 conditions x 16 texts x 64 tokens, above torch and transformers;
                                                           # states that wait in memory, and in a file

The model is a random Llama of TinyLlama's shape (1.1 B, bfloat16, computed in float32) with a tokenizer of words, written to
--folder once (2.2 GB); --layers makes it shallower. A condition is a dimension's weights at zero, its value `ablate`'s causal
loss; accelerate's conditions set nothing, which is cheaper for it. Each way runs in a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from timing import asked, largest_memory, ratios, spread

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

WORDS, LAYERS = 32000, 22
MODEL, LINK = "local/model", 100e6
WAYS = ("whole", "disk offload", "by block")


def written(folder: Path, n_layers: int) -> Path:
    """The folder of the model, written where it is not there."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = folder / f"llama-{n_layers}"
    if (folder / "tokenizer.json").exists():
        return folder
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=2048, intermediate_size=5632, num_hidden_layers=n_layers, num_attention_heads=32,
        num_key_value_heads=4, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model: Any = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="800MB")
    inner = Tokenizer(models.WordLevel({f"w{number}": number for number in range(WORDS)}, "w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0", pad_token="w1").save_pretrained(folder)
    return folder


# --- in a process of its own -----------------------------------------------------------------------------------------


def child(given: argparse.Namespace) -> None:
    """Run one way and print what it took."""
    import torch
    import transformers

    from outlierlens.ablation.switches import zeroed_weights
    from outlierlens.models.load import LoadOptions, load_model
    from outlierlens.tasks.base import TaskOptions
    from outlierlens.tasks.language_model import CausalLoss

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(given.threads)
    Path("/proc/self/clear_refs").write_text("5")  # the largest memory begins anew
    base, began = largest_memory(), time.perf_counter()
    places = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    places |= {f"model.layers.{layer}": "disk" for layer in range(given.layers)}
    how: dict[str, Any] = dict(
        zip(WAYS, ({"by_block": False}, {"device_map": places}, {"by_block": True}), strict=True)
    )
    loaded = load_model(given.source, LoadOptions(notice=lambda _: None, **how[given.way]))
    if given.filed and loaded.blocks is not None:
        loaded.blocks.memory = loaded.blocks.bytes_for(0, 0)
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(0, WORDS, (given.texts, given.tokens), generator=random)
    texts = [" ".join(f"w{one}" for one in row) for row in ids.tolist()]
    task = CausalLoss(loaded, texts, TaskOptions(max_length=given.tokens, batch_size=given.texts))
    ready, busy, read = time.perf_counter(), time.process_time(), read_so_far()

    def condition(number: int) -> list[float]:
        changes = number and given.way != "disk offload"
        with zeroed_weights(loaded, [100 * number]) if changes else nullcontext():
            return [float(one) for one in task.per_text()[0]]

    with slow_reads(given.rate) if given.way == "disk offload" and given.rate else nullcontext():
        values = loaded.run([partial(condition, number) for number in range(given.conditions)])
    took = {"load": ready - began, "run": time.perf_counter() - ready, "busy": time.process_time() - busy}
    print(json.dumps(took | {"read": read_so_far() - read, "peak": largest_memory() - base, "values": values}))


def read_so_far() -> int:
    """Bytes that this process has read by calls; what is mapped does not count."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


@contextmanager
def slow_reads(rate: float) -> Iterator[None]:
    """Inside, what accelerate reads takes as long as it would from a source of so many bytes a second."""
    from accelerate.utils import OffloadedWeightsLoader

    own = OffloadedWeightsLoader.__getitem__

    def get(loader: Any, key: str) -> Any:
        began, found = time.perf_counter(), own(loader, key)
        stored = 2 * found.numel() if key in loader.index else 0  # bfloat16 in the file
        time.sleep(max(0.0, stored / rate - (time.perf_counter() - began)))
        return found

    with patch.object(OffloadedWeightsLoader, "__getitem__", get):
        yield


def run(given: argparse.Namespace, way: str, source: str, conditions: int, **more: Any) -> dict[str, Any]:
    """What `child` prints of a process of its own."""
    more = {"texts": 1, "conditions": conditions, "way": way, "source": source} | more
    words = [f"--{name}={value}" for name, value in (vars(given) | more).items() if name not in ("what", "folder")]
    done = subprocess.run([sys.executable, __file__, "child", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"  {way:13} {conditions:3} conditions: loaded in {found['load']:5.1f} s, run in {found['run']:6.1f} s "
        f"({found['busy']:6.1f} s processor), {found['read'] / 2**20:6,.0f} MiB read by calls, {found['peak']:5,.0f} MiB at "
        f"most, load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return found


# --- a source on this machine ----------------------------------------------------------------------------------------


class Throttled:
    """A socket's file; all of one link take so many bytes a second together."""

    def __init__(self, file: Any, rate: float, link: dict[str, float]):
        self.file, self.rate, self.link = file, rate, link

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self.link["due"] = max(self.link["due"], time.perf_counter() - 0.05) + len(data) / self.rate
        if (wait := self.link["due"] - time.perf_counter()) > 0.01:
            time.sleep(wait)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@contextmanager
def served(folder: Path, *, rate: float = 0.0, breaks: int = 0) -> Iterator[Any]:
    """A hub that has the model: large files at `rate` bytes a second, the first `breaks` ranges broken halfway."""
    from hub_server import FakeHub

    left, link = [breaks], {"due": 0.0}

    def answer(handler: Any, seen: Any) -> bool:
        if handler.server.name != "cdn":
            return False
        if rate and not isinstance(handler.wfile, Throttled):
            handler.wfile = Throttled(handler.wfile, rate, link)
        if not left[0] or not seen.span or seen.span[1] - seen.span[0] < 2**20:
            return False
        left[0] -= 1
        path, (first, end) = folder / seen.path.rpartition("/")[2], seen.span
        where = {"Content-Range": f"bytes {first}-{end - 1}/{path.stat().st_size}", "ETag": f'"{path.stat().st_size}"'}
        half = np.fromfile(path, np.uint8, (end - first) // 2, offset=first).tobytes()
        handler.reply(206, half, {"Content-Length": str(end - first)} | where)
        handler.close_connection = True
        return True

    with FakeHub() as hub, tempfile.TemporaryDirectory() as cache:
        hub.add(MODEL, {path.name: path for path in folder.iterdir()})
        hub.tamper[".safetensors"] = answer
        os.environ |= {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": cache, "NO_PROXY": "*", "HF_HUB_OFFLINE": "0"}
        yield hub
        print(f"  {breaks - left[0]} connections broken, {len(hub.requests('.safetensors'))} requests for large files")


# --- what is measured ------------------------------------------------------------------------------------------------


def count(given: argparse.Namespace, folder: Path, size: int) -> None:
    for n in (1, 4, 20):
        found = run(given, "by block", str(folder), n)
        print(f"    read from disk over the weights: {found['read'] / size:.3f}")
        with served(folder) as hub:
            run(given, "by block", MODEL, n)
            print(f"    sent by the source over the weights: {hub.sent / size:.3f}")


def compare(given: argparse.Namespace, folder: Path, _: int) -> None:
    found: dict[str, list[Any]] = {way: [] for way in WAYS}
    for number in range(given.rounds):
        for way in WAYS[:: 1 if number % 2 == 0 else -1]:
            found[way].append(run(given, way, str(folder), given.conditions or 4))
    intact = {json.dumps(one["values"][0]) for each in found.values() for one in each}
    print(f"  intact values equal: {'yes' if len(intact) == 1 else 'NO'}")
    kinds = {"by the clock": ("run",), "by the processor": ("busy",), "loading counted": ("run", "load")}
    for what, times in kinds.items():
        took = [[sum(one[key] for key in times) for one in found[way]] for way in WAYS]
        theirs, whole = spread(ratios(took[1], took[2])), spread(ratios(took[2], took[0]))
        print(f"  {what}: disk offload over by block {theirs}; by block over whole {whole}")


def weigh(given: argparse.Namespace, folder: Path, _: int) -> None:
    found = [
        run(given, "by block", str(folder), given.conditions or 20, texts=given.texts, filed=filed) for filed in (0, 1)
    ]
    print(f"  values equal: {'yes' if found[0]['values'] == found[1]['values'] else 'NO'}")


def from_link(given: argparse.Namespace, folder: Path, _: int) -> None:
    theirs, n = run(given, "disk offload", str(folder), 2, rate=LINK), given.conditions or 20
    with served(folder, rate=LINK):
        ours = run(given, "by block", MODEL, n)
    print(f"  {n} conditions: disk offload (from 2) over by block {theirs['run'] / 2 * n / ours['run']:.2f}")


def break_off(given: argparse.Namespace, folder: Path, size: int) -> None:
    here = run(given, "by block", str(folder), 2)
    with served(folder, breaks=20) as hub:
        there = run(given, "by block", MODEL, 2)
        equal = here["values"] == there["values"]
        print(f"    values equal: {equal}; sent by the source over the weights: {hub.sent / size:.3f}")


MEASURES = {"bytes": count, "speed": compare, "link": from_link, "breaks": break_off, "memory": weigh}


def main() -> None:
    given = asked(
        __doc__, {"what": "bytes"}, folder=tempfile.gettempdir(), layers=LAYERS, rounds=2, threads=1, conditions=0, texts=16,
        tokens=64, way="", source="", rate=0.0, filed=0,
    )  # fmt: skip
    if given.what == "child":
        return child(given)
    folder = written(Path(given.folder), given.layers)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    print(f"{given.what}: {size / 2**20:,.0f} MiB of weights, {given.layers} layers, {given.tokens} tokens a text")
    return MEASURES[given.what](given, folder, size)


if __name__ == "__main__":
    main()
