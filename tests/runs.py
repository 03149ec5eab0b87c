"""Small training runs on disk: checkpoints in which planted dimensions emerge, with a trainer's log beside them."""

import json
import struct
from pathlib import Path

import numpy as np

NORM = "bert.encoder.layer.{layer}.output.LayerNorm.{part}"


def config(n_layers, width, **more):
    return {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "num_hidden_layers": n_layers,
        "hidden_size": width,
        "num_attention_heads": 2,
        "intermediate_size": 4 * width,
        "vocab_size": 40,
        **more,
    }


def bert_tensors(n_layers, width, vocabulary):
    """Name and shape of every tensor of a BERT encoder, so that a file has a real model's size and header."""
    shapes = {
        "bert.embeddings.word_embeddings.weight": (vocabulary, width),
        "bert.embeddings.position_embeddings.weight": (512, width),
        "bert.embeddings.token_type_embeddings.weight": (2, width),
        "bert.embeddings.LayerNorm.weight": (width,),
        "bert.embeddings.LayerNorm.bias": (width,),
    }
    for layer in range(n_layers):
        block = f"bert.encoder.layer.{layer}."
        for name, out, into in (
            ("attention.self.query", width, width),
            ("attention.self.key", width, width),
            ("attention.self.value", width, width),
            ("attention.output.dense", width, width),
            ("intermediate.dense", 4 * width, width),
            ("output.dense", width, 4 * width),
        ):
            shapes |= {f"{block}{name}.weight": (out, into), f"{block}{name}.bias": (out,)}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{block}{name}.weight": (width,), f"{block}{name}.bias": (width,)}
    return shapes


def write_sparse(path, shapes, values):
    """A safetensors file of F32 tensors in which only `values` take disk space: the rest are holes, read as zeros."""
    header, start, places = {}, 0, {}
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, start + size]}
        places[name], start = start, start + size
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for name, array in values.items():
            file.seek(8 + len(raw) + places[name])
            file.write(np.asarray(array, dtype="<f4").tobytes())
        file.truncate(8 + len(raw) + start)


def norms_at(step, *, n_layers, width, needles, part, seed=0):
    """Scale or bias [layer, dim] at a step: slow drift of all, and needles {dim: step of onset} that leave after it."""
    random = np.random.default_rng(seed + (part == "bias"))
    direction = random.normal(0, 1, (n_layers, width))
    noise = np.random.default_rng(seed + 7 * step + (part == "bias")).normal(0, 0.002, (n_layers, width))
    values = direction * 0.05 * (1 - np.exp(-step / 2000)) + noise
    for dim, onset in needles.items():
        values[:, dim] = -0.4 * (1 - np.exp(-max(step - onset, 0) / 600))
    return values + (part == "scale")


def loss_at(step, *, fall=2500, vocabulary=8000):
    """Unigram plateau of 6.1 nats until `fall`, then down to about 4."""
    first = (np.log(vocabulary) - 6.1) * np.exp(-step / 120)
    return 6.1 + first - 2.1 * (1 - np.exp(-max(step - fall, 0) / 700))


def write_run(folder, steps, *, needles=None, n_layers=4, width=48, vocabulary=40, log=True, fall=2500, drop=()):
    """`folder`/checkpoint-N for each step, and the last one's trainer_state.json with training and evaluation loss."""
    needles = {7: 2500} if needles is None else needles
    shapes = {k: v for k, v in bert_tensors(n_layers, width, vocabulary).items() if k not in drop}
    for step in steps:
        inside = Path(folder) / f"checkpoint-{step}"
        inside.mkdir(parents=True)
        values = {}
        for part, name in (("scale", "weight"), ("bias", "bias")):
            rows = norms_at(step, n_layers=n_layers, width=width, needles=needles, part=part)
            for layer in range(n_layers):
                tensor = NORM.format(layer=layer, part=name)
                if tensor in shapes:
                    values[tensor] = rows[layer]
        write_sparse(inside / "model.safetensors", shapes, values)
        (inside / "config.json").write_text(json.dumps(config(n_layers, width, vocab_size=vocabulary)))
    if log:
        random = np.random.default_rng(1)
        history = []
        for step in range(0, max(steps) + 1, 50):
            history.append({"step": step, "loss": float(loss_at(step, fall=fall) + random.normal(0, 0.05))})
            if step % 250 == 0:
                history.append({"step": step, "eval_loss": float(loss_at(step, fall=fall) + random.normal(0, 0.01))})
        history.append({"step": max(steps), "train_loss": 5.0, "train_runtime": 10.0})
        state = {"global_step": max(steps), "log_history": history}
        (Path(folder) / f"checkpoint-{max(steps)}" / "trainer_state.json").write_text(json.dumps(state))
    return folder
