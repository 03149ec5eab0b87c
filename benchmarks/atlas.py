"""`outlierlens atlas build` against a hub on this machine: thousands of tiny models of all families, and what goes wrong there.

    python benchmarks/atlas.py                          # 100 models, 50 ms before each answer, faults: pace, memory, finds
    python benchmarks/atlas.py --models 10000           # the same, larger: memory beside that of 1,000
    python benchmarks/atlas.py --kills 30 --models 1000 # killed with SIGKILL 30 times on the way; then every row once
    python benchmarks/atlas.py --ray --models 300       # one Ray worker of one thread, then two, then one again
    python benchmarks/atlas.py --sizes                  # requests and bytes of models of real size (files with holes)

One in a hundred models is broken in each of the ways of `atlas_hub.WAYS`; of a thousand requests five get 429, five 503, and
five are cut off. The hub is a process of its own, on the same processors. What is not planted is normal noise, so that
dimensions pass the rule at its own level in models without one; all of them are printed.
"""

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from timing import asked

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from atlas_hub import SIZES, Catalogue, Faults, real_size
from hub_server import FakeHub, Handler, Seen
from outlierlens.analyses.atlas import HubAccess, look
from outlierlens.analyses.atlas_rows import ListEntry, read_rows, write_part
from outlierlens.checkpoints.ranges import Rate

LATENCY = 0.05  # seconds before each answer


def serve(models: int, pipe: Connection) -> None:
    """A hub that says where it is, and how many requests it had when it is asked."""
    catalogue = Catalogue(models, normal=True)
    faults = Faults(catalogue)
    count = [0]

    def late(handler: Handler, seen: Seen) -> bool:
        time.sleep(LATENCY)
        hub.seen.clear()  # a benchmark of 10,000 models would keep 60,000 of them
        count[0] += 1
        return faults(handler, seen)

    with FakeHub() as hub:
        hub.models, hub.tamper[""] = catalogue, late
        pipe.send(hub.endpoint)
        with contextlib.suppress(EOFError):  # the other end is done
            while pipe.recv():
                pipe.send((count[0], faults.spoilt, time.process_time()))


class Run:
    """One `atlas build`, its memory watched."""

    def __init__(self, folder: Path, endpoint: str, names: Path, *options: str):
        command = [
            sys.executable,
            "-m",
            "outlierlens",
            "atlas",
            "build",
            str(names),
            "-o",
            str(folder),
            "--rate",
            "none",
        ]
        more = {"HF_ENDPOINT": endpoint, "NO_PROXY": "*", "OMP_NUM_THREADS": "1", "HF_HUB_CACHE": f"{folder}-cache"}
        self.began, self.peaks, self.processor = time.perf_counter(), list[int](), 0.0
        self.process = subprocess.Popen(
            [*command, "--json", *options], env=os.environ | more, stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        me = psutil.Process(self.process.pid)
        while self.process.poll() is None:
            try:
                self.peaks.append(me.memory_info().rss)
                self.processor = sum(me.cpu_times()[:2])
            except psutil.Error:
                return
            time.sleep(0.5)

    def end(self) -> dict[str, Any]:
        """What it printed, and its seconds, MB and seconds of processor."""
        said, _ = self.process.communicate()
        if self.process.returncode:
            return {"code": self.process.returncode}
        own = {"wall": time.perf_counter() - self.began, "peak_mb": max(self.peaks) / 1e6, "processor": self.processor}
        return json.loads(said) | own


def check(catalogue: Catalogue, folder: Path) -> dict[str, Any]:
    """What the rows say against what was planted; raises where a row is missing, twice or wrong in its reason."""
    seen = Counter[str]()
    keys = Counter[tuple[str, str, str]]()
    found = Counter[str]()
    for row in read_rows(folder, ["revision", "stack", "outliers", "reason", "failure", "bytes_read"]):
        keys[row.model, row.revision, row.stack] += 1
        seen[row.model] += 1
        wanted = catalogue.broken(row.model)
        found["wrong reason"] += (row.reason or "") != wanted
        if (row.reason or "") != wanted:
            print("wrong reason", row.model, catalogue.way(row.model), row.reason, row.failure)
        if row.reason is None:
            planted = catalogue.planted(row.model)
            dims = {one.dim for one in row.outliers}
            if planted:
                found["streams with a planted dimension"] += 1
                found["of them found"] += planted[row.stack] in dims
                found["others found beside it"] += len(dims - {planted[row.stack]})
            else:
                found["streams without"] += 1
                found["of them with one"] += bool(dims)
                found["of them with one of Holm p below 0.05"] += any(one.p_holm < 0.05 for one in row.outliers)
    return {"models with rows": len(seen), "rows twice": sum(n - 1 for n in keys.values()), **found}


def sizes() -> None:
    """A line for each shape of `atlas_hub.SIZES`: what one model costs."""
    os.environ["NO_PROXY"] = "*"
    with FakeHub() as hub, tempfile.TemporaryDirectory() as place:
        os.environ |= {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": f"{place}/cache"}
        for name in SIZES:
            config, path = real_size(Path(place) / name, name, planted=309)
            hub.models[f"org/{name}"] = {"config.json": config, "model.safetensors": path}
            hub.seen.clear()
            (row,) = look(ListEntry(f"org/{name}"), HubAccess(max_bytes=8_000_000_000), Rate())
            to_hub = sum(seen.server == "hub" for seen in hub.seen)
            part = write_part(Path(place) / f"{name}.parquet", [row]).stat().st_size
            print(
                f"{name}: {row.requests} requests ({to_hub} to the hub, others to its store), {row.bytes_read:,} of "
                f"{row.bytes_total:,} bytes ({row.bytes_read / row.bytes_total:.4%}), a row of {part:,} bytes, "
                f"found {[one.dim for one in row.outliers]}"
            )


def main() -> None:
    options = asked(__doc__, models=100, parallel=24, kills=0, ray=False, sizes=False)
    if options.sizes:
        sizes()
        return
    catalogue = Catalogue(options.models, normal=True)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    hub = multiprocessing.get_context("spawn").Process(target=serve, args=(options.models, theirs), daemon=True)
    hub.start()
    endpoint = ours.recv()
    with tempfile.TemporaryDirectory() as place:
        names = Path(place) / "names.txt"
        names.write_text("\n".join(catalogue) + "\n")
        if options.ray:
            pace = {}
            for turn, workers in enumerate((1, 2, 1)):
                how = ("--ray", f"local,workers={workers},cpus=0.5", "--parallel", "1")
                done = Run(Path(place) / f"ray-{turn}", endpoint, names, *how).end()
                pace[turn] = options.models / done["seconds"]
                print(f"{workers} Ray worker(s) of one thread: {pace[turn]:.2f} models a second", flush=True)
            print(f"two against the mean of one before and after: {pace[1] / ((pace[0] + pace[2]) / 2):.2f} times")
            return
        folder = Path(place) / "atlas"
        for kill in range(options.kills):
            going = Run(folder, endpoint, names, "--parallel", str(options.parallel))
            held = sum(1 for _ in read_rows(folder, ["model"])) if folder.exists() and any(folder.glob("*.*")) else 0
            ours.send(True)
            start = ours.recv()[0]
            wanted = start + random.Random(kill).randint(20, 6 * options.models // options.kills)
            while going.process.poll() is None:
                ours.send(True)
                if ours.recv()[0] >= wanted:
                    going.process.send_signal(signal.SIGKILL)
                    break
                time.sleep(0.02)
            print(f"kill {kill + 1}: code {going.end().get('code')}, {held} rows before it", flush=True)
        done = Run(folder, endpoint, names, "--parallel", str(options.parallel)).end()
        ours.send(True)
        requests, spoilt, processor = ours.recv()
        print(json.dumps(done))
        print(
            f"{options.models / done['seconds']:.1f} models a second, peak memory {done['peak_mb']:.0f} MB, "
            f"{1000 * done['processor'] / options.models:.1f} ms of processor a model; "
            f"hub: {requests:,} requests, {processor:.0f} s of processor, spoilt {spoilt}; load {os.getloadavg()[0]:.1f}"
        )
        print(json.dumps(check(catalogue, folder), indent=1))


if __name__ == "__main__":
    main()
