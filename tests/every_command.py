"""Every command once, at its cheapest: `run_all()`, in a folder that `fill(folder)` gave a little of all data."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

M = "mini-planted"  # eight outlier dimensions; it comes with the package
FEW = ("--data", "texts.txt", "--limit", "4", "--max-length", "16", "--dims", "8,24")
QUIET = ("--device", "cpu", "--dtype", "float32")
LABELLED = ("--task", "classify", "--data", "labelled", "--max-length", "16", "--device", "cpu")
# A tokenizer that is there: where merges tie, one that is trained is another each time.
SMALL = (
    "tokenizer.source='mini-planted'", "model.layers=2", "model.width=16", "data.length=16", "training.batch=4",
    "data.source=['texts.txt']", "data.validation=0.3", "training.log_every=1", "training.save_every=1",
)  # fmt: skip
# In the order in which one reads what another wrote.
RUNS: dict[str, tuple[str, ...]] = {
    "scan": (M,),
    "atlas build": ("names.txt", "-o", "atlas"),
    "atlas page": ("atlas",),
    "atlas lookup": (M,),
    "compare": (M, "mini-bert", "--dims", "8", "--chart", "compared.html"),
    "fingerprint": (M, "-o", "print.json"),
    "verify": (M, "--baseline", "print.json"),
    "observe": (M, *FEW[:6], *QUIET),
    "ablate": (M, *FEW, "--random", "1", "--matched", "1", "--save", "off", "-o", "off.json", *QUIET),
    "sweep": (M, *FEW[:6], "--dims", "8", "--random", "2", "--matched", "0", "--windows", "single",
              "--chart", "sweep.html", "-o", "swept.json", *QUIET),
    "prune check": (M, "off", "--dims", "8"),
    "prune protect": (M, "--export", "sparsegpt"),
    "prune test": (M, *FEW[:6], "--dims", "8", "--random", "1", "--scattered", "0", "--matched", "0", *QUIET),
    "lab pretrain": ("mini-short", *(word for one in SMALL for word in ("--set", one)), "--set",
                 "training.steps=2", "-o", "run",
                 "--device", "cpu"),
    "track": ("run", "-o", "track.json"),
    "lab finetune": (M, *LABELLED, "--epochs", "1", "--batch-size", "8", "-o", "tuned", "--precision", "float32"),
    "replicate kovaleva-glue": (M, "--tasks", "sst2:labels=negative,positive", "--tuned",
                                "sst2=tuned/seed-42/model", "--data", "paper/glue",
                                "--random", "1", "--matched", "0",
                                "-o", "kovaleva", *QUIET),
    "replicate puccetti-glue": (M, "--tasks", "sst2:labels=negative,positive", "--tuned",
                                "sst2=tuned/seed-42/model", "--data", "paper/glue",
                                "--random", "1", "--matched", "0",
                                "-o", "puccetti-glue", *QUIET),
    "replicate luo": (M, "--data", "paper", "--parts", "origin", "-o", "luo", *QUIET),
    "replicate puccetti": (M, *FEW[:4], "--parts", "attention", "-o", "puccetti", *QUIET),
    "embed": (M, "--data", "paper/sts", "--sets", "sickr", "--fixes", "clip", "--clip", "8", "--chart", "embed.html", *QUIET),
    "origin": (M, "--chart", "origin.html"),
    "geometry": (M, *FEW[:2], "--limit", "8", "--pairs", "8", "--words", "0",
                 "--tokens", "40", "--fixes", "raw", "--dims", "8", "--chart", "geometry.html", *QUIET),
    "frequency": (M, "--counts", "counts.parquet", *FEW[:2], "--dims", "8", "--max-length", "16",
                  "-o", "frequency.json", *QUIET),
    "attention": (M, *FEW, "--random", "1", "--chart", "attention.html", *QUIET),
    "probe": (M, *FEW[:2], "--limit", "8", "--max-length", "16", "--clip", "8", *QUIET),
    "quantize": (M, *FEW, "--schemes", "int8-tensor/none", "--smooth", "none", "--random", "1", *QUIET),
    "plan": (M, *FEW[:4], "--max-length", "16", "--scheme", "int4-tensor/none", "--keep", "20%", "--candidates", "1",
             "--random", "1", *QUIET),
    "repair": ("decoder", "--fit", "fp8", *FEW[:6], "-o", "repaired", *QUIET[:2]),
    "range": (M, *FEW[:6], "--chart", "range.html", *QUIET),
    "mask": (M, *FEW[:6], "--export", "steering:steering.py", "--chart", "mask.html", *QUIET),
    "trace": (M, *FEW[:6], "--dims", "8", "--random", "1", "--chart", "life.html", *QUIET),
    "lab attack": (M, *FEW[:2], "--limit", "6", *FEW[4:], "--budget", "1", "--kinds", "zero", "--tries", "2",
                   "--sets", "1", "--random", "1", *QUIET),
    "report": (M, *FEW, "--random", "1", "--matched", "1", "--result", "off.json", "--result", "swept.json",
               "--card", "card.md", "-o", "report", *QUIET),
    "explore": (M, "--text", "A film worth seeing.", "--show", "loss", *QUIET[:4]),
    "doctor": (),
    "fetch": (M,),
}  # fmt: skip
FOUND = {"verify": 0, "prune check": 3, "doctor": 0}  # exit codes that say what was found; else 0


def fill(folder: Path) -> None:
    """Write a little of all data that commands read."""
    kinds = ("film", "book", "song", "play")
    said = [f"The {kinds[i % 4]} was {'good' if i % 3 else 'bad'}, and number {i} of it was better." for i in range(24)]
    (folder / "texts.txt").write_text("\n".join(said) + "\n")
    (folder / "names.txt").write_text(f"{M}\n")

    def rows(path: str, made: list[dict[str, Any]]) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("".join(json.dumps(row) + "\n" for row in made))

    labelled = [{"sentence": text, "text": text, "label": int("good" in text)} for text in said]
    pairs = [{"sentence1": a, "sentence2": b, "score": 1 + i % 5} for i, (a, b) in enumerate(pairwise(said))]
    same = [
        {"word": "was", "sentence1": a, "sentence2": b, "index1": 2, "index2": 2, "label": bool(i % 2)}
        for i, (a, b) in enumerate(pairwise(said))
    ]
    for number, split in enumerate(("train", "validation")):
        rows(f"labelled/{split}.jsonl", labelled[number::2])
        rows(f"paper/glue/sst2/{split}.jsonl", labelled[number::2])
        rows(f"paper/wic/{split}.jsonl", same)
    for split in ("train", "validation", "test"):
        rows(f"paper/sts/sickr/{split}.jsonl", pairs)
        rows(f"paper/sts/stsb/{split}.jsonl", pairs)
    decoder(folder / "decoder")
    counts(folder / "counts.parquet", said)


def counts(path: Path, texts: list[str]) -> None:
    """Write how often the tokens of `M` occur in the texts."""
    from transformers import AutoTokenizer

    from outlierlens.analyses.frequency_counts import count_texts
    from outlierlens.checkpoints.samples import directory
    from outlierlens.data.token_counts import write_counts

    write_counts(count_texts(AutoTokenizer.from_pretrained(directory(M)), texts), path)


def decoder(folder: Path) -> None:
    """Write a pre-norm model whose hidden states are too large for fp8, with the tokenizer of `M`."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from outlierlens.checkpoints.samples import directory

    tokenizer = AutoTokenizer.from_pretrained(directory(M))
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes))
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(2**13)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@dataclass(frozen=True)
class Said:
    """What a command ended with: its exit code and what it wrote."""

    code: int
    out: str
    err: str


def call(*words: str) -> Said:
    """Run the command line in this process."""
    from outlierlens.cli import main

    before, out, err = sys.argv, io.StringIO(), io.StringIO()
    sys.argv = ["outlierlens", *words]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = stop.code
    else:
        code = 0
    finally:
        sys.argv = before
    return Said(code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue())


def run_all(*, json_where: set[str] | None = None) -> dict[str, Said]:
    """What each command said, in the current folder; with --json those that `json_where` names."""
    more = {name: ("--json",) if name in (json_where or set()) else () for name in RUNS}
    return {name: call(*name.split(), *words, *more[name]) for name, words in RUNS.items()}
