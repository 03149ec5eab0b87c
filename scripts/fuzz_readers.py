"""Every place where a file of a stranger enters, with small good files to start from.

    reader = READERS["safetensors"]()        # makes the files
    reader.read(path)                        # what is found in the file, or an error of ours

A reader reads all that the file offers: names, values, rows in blocks, single rows.
"""

import csv
import dataclasses
import io
import json
import re
import struct
import sys
import tempfile
import warnings
import wave
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pyarrow.parquet
import safetensors.numpy
import torch
import torch.distributed.checkpoint
from fuzz_mutants import Seed, length_first
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.torch import save
from transformers import BertConfig, BertForMaskedLM

from outlierlens.analyses.embed_pairs import read_sts, read_wic, sts_tasks
from outlierlens.analyses.embed_pass import own_pooling
from outlierlens.analyses.finetune import MODEL, ROWS, SeedFolder
from outlierlens.analyses.fingerprint import digest_of, fingerprint, load_fingerprint
from outlierlens.analyses.fingerprint_verify import verify
from outlierlens.analyses.prune_evidence import held, open_source
from outlierlens.analyses.scan import scan
from outlierlens.architectures import bind, load_toml, stacks_of, to_toml
from outlierlens.checkpoints import TensorInfo, open_checkpoint
from outlierlens.checkpoints.gguf import read_imatrix
from outlierlens.checkpoints.gguf_model import read_tokenizer
from outlierlens.checkpoints.samples import PACKAGED, Sample, _unpack
from outlierlens.data.labelled.examples import read_examples
from outlierlens.data.labelled.labels import LabelledTask, plain_task
from outlierlens.data.media.items import FORMATS, picture, recording
from outlierlens.data.media.read import ItemOptions, kind_of, read_items
from outlierlens.data.texts import read_texts
from outlierlens.data.token_counts import TokenCounts, compat_counts, read_counts, write_counts
from outlierlens.errors import OutlierlensError
from outlierlens.models.load import LoadOptions, load_model, load_tokenizer
from outlierlens.models.weight_copy import copy_gguf
from outlierlens.report.files import _stale
from outlierlens.results.document import from_json, load, to_json
from outlierlens.results.row_store import RowStore, read_rows, row_line
from outlierlens.training.pretrain.recipe import read_recipe, shipped
from outlierlens.training.run_files import find_log, find_saved, loss_curves, read_log
from outlierlens.training.watch_rows import read_activity, read_watch
from outlierlens.vectors.clip import _file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import gguf_files
from flax_files import packed_arrays
from imatrix_files import write_gguf
from tiny_tokenizers import pieces_backend, word_pieces

BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16, "type_vocab_size": 2, "pad_token_id": 0,
    "layer_norm_eps": 1e-12, "hidden_act": "gelu", "id2label": {"0": "no", "1": "yes"},
}  # fmt: skip
CONFIG = {"config.json": json.dumps(BERT).encode()}
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three", "four", "##s", ".", "a")
LOAD = LoadOptions(offline=True, device="cpu", notice=lambda _: None)
LABELLED = [
    {"text": "one two", "label": "yes", "words": ["one", "two"]},
    {"text": "three", "label": "no", "words": ["three"]},
] * 2
COLUMNS = {"text": [row["text"] for row in LABELLED], "label": [0, 1, 1, 0]}


@dataclass(frozen=True)
class Reader:
    """What is read from a file of this name, beside others that are good."""

    file: str
    seeds: tuple[Seed, ...]
    read: Callable[[Path], Any]
    beside: dict[str, bytes] = field(default_factory=dict)


def seeds(*contents: Seed | bytes | str) -> tuple[Seed, ...]:
    """Files as they are."""
    raw = (content.encode() if isinstance(content, str) else content for content in contents)
    return tuple(content if isinstance(content, Seed) else Seed(content) for content in raw)


def lines(rows: Iterable[Any]) -> str:
    """A row of JSON on each line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(write: Callable[[Path], Any]) -> bytes:
    """What a function writes into a file."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "file.gguf")
        return (Path(folder) / "file.gguf").read_bytes()


# --- weights -----------------------------------------------------------------------------------------------------


@cache
def bert() -> dict[str, torch.Tensor]:
    """The weights of a tiny BERT by name, float32."""
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**{k: v for k, v in BERT.items() if k not in ("model_type", "architectures")}))
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    del state["cls.predictions.decoder.weight"], state["cls.predictions.decoder.bias"]  # shared with others
    return state


def packed() -> dict[str, bytes]:
    """The tiny BERT as safetensors."""
    return {"model.safetensors": save(bert(), metadata={"format": "pt"})}


SEVERAL = {
    "a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2, dtype=torch.bfloat16),
    "b": torch.ones(2, 2, dtype=torch.float16).t(), "c": torch.ones(1, dtype=torch.float64), "d": torch.zeros(0, 3),
    "e": torch.tensor([1, 2]), "f": torch.tensor(True),
}  # fmt: skip
SMALL = save({name: value.contiguous() for name, value in SEVERAL.items()}, metadata={"format": "pt"})


def all_of(path: Path, adapter: str | None = None) -> int:
    """Everything that a weight file offers, by each way of reading."""
    with open_checkpoint(str(path), adapter=adapter) as checkpoint:
        names = list(checkpoint.tensors)
        found = sum(values.size for _, values in checkpoint.read(names))
        for name in names[:4]:
            if len(checkpoint.tensors[name].shape) > 1 and checkpoint.tensors[name].size:
                found += sum(rows.size for rows in checkpoint.read_rows(name, 3))
                found += checkpoint.take_rows(name, (0,)).size
        checkpoint.header_digest()
    return found


def headed(file: bytes) -> Seed:
    """The header of a safetensors file, which mutants change; its length is put right, its values stay."""
    head = file[8 : 8 + struct.unpack("<Q", file[:8])[0]]
    return Seed(head, lambda new: length_first(new, file[8 + len(head) :]))


def safetensors_index() -> Reader:
    shards = {"model-1.safetensors": ("a.weight", "a.bias"), "model-2.safetensors": ("c", "d")}
    placed = {name: file for file, names in shards.items() for name in names}
    index = json.dumps({"metadata": {"total_size": 50}, "weight_map": placed})
    beside = {file: save({name: SEVERAL[name] for name in names}) for file, names in shards.items()}
    return Reader("model.safetensors.index.json", seeds(index), all_of, beside)


def codes() -> Reader:
    """Weights that are stored as codes with scales: by row, by block, two in a byte, four bits with their state."""
    byte, half = torch.uint8, torch.full((1,), 2.0)
    state = {"shape": [4, 16], "blocksize": 32, "quant_type": "nf4", "nested_blocksize": 2, "nested_offset": 0.5}
    kinds = {
        "rows": {"weight": torch.ones(4, 8, dtype=torch.int8), "weight_scale": torch.ones(4, 1),
                 "weight_zero_point": torch.ones(4, 1, dtype=torch.int8)},
        "vector": {"weight": torch.ones(4, 8, dtype=torch.int8), "SCB": torch.ones(4)},
        "blocks": {"weight": torch.ones(4, 8).to(torch.float8_e4m3fn), "weight_scale_inv": torch.ones(2, 2)},
        "nvfp4": {"weight_packed": torch.ones(2, 16, dtype=byte), "weight_scale": torch.ones(2, 2).to(torch.float8_e4m3fn),
                  "weight_global_scale": half},
        "mxfp4": {"weight_packed": torch.ones(2, 16, dtype=byte), "weight_scale": torch.full((2, 1), 127, dtype=byte)},
        "experts": {"weight_blocks": torch.ones(2, 2, 1, 16, dtype=byte),
                    "weight_scales": torch.full((2, 2, 1), 127, dtype=byte)},
        "nf4": {"weight": torch.ones(32, 1, dtype=byte), "weight.absmax": torch.ones(2, dtype=byte),
                "weight.quant_map": torch.arange(16.0), "weight.nested_absmax": half,
                "weight.nested_quant_map": torch.arange(256.0),
                "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=byte)},
    }  # fmt: skip
    files = [save({f"{kind}.{name}": value for name, value in parts.items()}) for kind, parts in kinds.items()]
    config = {**BERT, "quantization_config": {"quant_method": "compressed-tensors", "weight_block_size": [2, 4]}}
    beside = {"config.json": json.dumps(config).encode()}
    return Reader("model.safetensors", seeds(*files, *map(headed, files)), all_of, beside)


def adapter(file: str) -> Reader:
    """A LoRA on the tiny BERT, with a bias that was trained whole: its tensors, or its settings."""
    module = "base_model.model.bert.encoder.layer.0.output.dense"
    n_out, n_in = bert()[f"{module.removeprefix('base_model.model.')}.weight"].shape
    parts = {
        "lora_A.weight": torch.ones(2, n_in),
        "lora_B.weight": torch.ones(n_out, 2),
        "base_layer.bias": torch.ones(n_out),
    }
    told = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "rank_pattern": {"query": 4}, "alpha_pattern": {"output.dense": 8},
            "modules_to_save": ["classifier"], "use_rslora": True, "fan_in_fan_out": False, "bias": "all"}  # fmt: skip
    files = {
        "adapter_model.safetensors": save({f"{module}.{name}": value for name, value in parts.items()}),
        "adapter_config.json": json.dumps(told).encode(),
    }
    content = files.pop(file)
    mutated = seeds(content, headed(content)) if file.endswith(".safetensors") else seeds(content)
    return Reader(file, mutated, lambda path: all_of(path.parent, str(path.parent)), files | packed())


def pickled(state: dict[str, torch.Tensor], *, new: bool = True) -> bytes:
    """What torch.save writes, as a zip archive or as it was before."""
    content = io.BytesIO()
    torch.save(state, content, _use_new_zipfile_serialization=new)
    return content.getvalue()


def torch_bin() -> Reader:
    whole = pickled(SEVERAL)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    data = next(entry for entry in entries if entry.endswith("data.pkl"))
    inner = Seed(entries[data], lambda content: zipped({**entries, data: content}))
    old = pickled({name: SEVERAL[name] for name in ("a.weight", "a.bias")}, new=False)
    return Reader("pytorch_model.bin", seeds(whole, old, inner), all_of)


def bin_index() -> Reader:
    index = json.dumps({"metadata": {}, "weight_map": {"a.bias": "pytorch_model-1.bin"}})
    beside = {"pytorch_model-1.bin": pickled({"a.bias": torch.ones(2)})}
    return Reader("pytorch_model.bin.index.json", seeds(index), all_of, beside)


def ranks(file: str) -> Reader:
    """Two ranks of a model under Llama's own names, with its params.json; mutants change this file."""
    layer = {"attention.wq": (2, 4), "attention.wk": (2, 4), "attention.wv": (2, 4), "attention.wo": (4, 2),
             "feed_forward.w1": (3, 4), "feed_forward.w2": (4, 3), "feed_forward.w3": (3, 4), "attention_norm": (4,),
             "ffn_norm": (4,)}  # fmt: skip
    shapes = {"tok_embeddings": (6, 2), "norm": (4,), "output": (3, 4)}
    shapes |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    raw = pickled({f"{name}.weight": torch.ones(shape) for name, shape in shapes.items()})
    params = {"dim": 4, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "norm_eps": 1e-5}
    files = {"consolidated.00.pth": raw, "consolidated.01.pth": raw, "params.json": json.dumps(params).encode()}
    mutated = files.pop(file)

    def read(path: Path) -> int:
        return all_of(path.with_name("consolidated.00.pth"))

    return Reader(file, seeds(mutated), read, files)


def distributed(file: str) -> Reader:
    """A checkpoint of torch.distributed, of which mutants change this file."""
    state = {"model": {name: SEVERAL[name] for name in ("a.weight", "a.bias", "c", "e")}, "step": 3}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.distributed.checkpoint.save(state, checkpoint_id=folder, no_dist=True)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    return Reader(file, seeds(files.pop(file)), all_of, files)


def arrays() -> dict[str, np.ndarray]:
    """A few, by names of Flax."""
    return {"h.0.ln.scale": np.ones(3, np.float16), "h.0.mlp.kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}


def numpy_archive() -> Reader:
    made = io.BytesIO()
    np.savez(made, **arrays(), columns=np.asfortranarray(np.ones((2, 3))))
    with zipfile.ZipFile(made) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    last = list(entries)[-1]
    return Reader(
        "model.npz",
        seeds(made.getvalue(), Seed(entries[last], lambda content: zipped({**entries, last: content}))),
        all_of,
    )


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return made.getvalue()


def gguf_of(kind: str) -> bytes:
    """A tiny GGUF file with a tokenizer, of types plain and packed."""
    random, llama = np.random.default_rng(0), kind == "llama"
    header = {
        "block_count": 1, "context_length": 16, "embedding_length": 32, "feed_forward_length": 64, "head_count": 2,
        "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "layer_norm_eps": 1e-5, "rope_dimension_count": 16, "vocab_size": 4,
        "tokenizer_model": kind, "token_list": ["<unk>", "<s>", "▁one", "▁two"] if llama else ["[PAD]", "[UNK]", "▁one", "two"],
        "token_scores": [0.0, 0.0, -1.0, -2.0], "token_types": [2, 3, 1, 1], "unk_token_id": 0, "bos_token_id": 1,
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (4, 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,),
        **{f"blk.0.attn_{part}": (32, 32) for part in ("q", "k", "v", "output")},
        "blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64),
    }  # fmt: skip

    def write(path: Path) -> None:
        writer = gguf.GGUFWriter(path, kind)
        for name, value in header.items():
            getattr(writer, f"add_{name}")(value)
        for number, (name, shape) in enumerate(shapes.items()):
            values = random.normal(size=shape).astype(np.float32)
            packing = (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0, None)[number % 3]
            if packing is None or len(shape) == 1:
                writer.add_tensor(f"{name}.weight", values)
            else:
                writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, packing), raw_dtype=packing)
        gguf_files.write(writer)

    return written(write)


def imatrix() -> Reader:
    sums = {"blk.0.ffn_up.weight": (np.arange(1.0, 5.0).reshape(2, 2), np.ones(2))}
    made = written(lambda path: write_gguf(path, sums))
    return Reader("m.imatrix", seeds(made), lambda path: len(read_imatrix(path).entries))


def made_model(path: Path) -> int:
    """The folder that is made of a GGUF file which runs in every command."""
    with tempfile.TemporaryDirectory() as folder:
        copy_gguf(path, Path(folder), weights=True, notice=LOAD.notice)
        return len(list(Path(folder).iterdir()))


def onnx() -> Reader:
    kinds = enumerate((np.float32, np.int8, np.float16))
    weights = [numpy_helper.from_array(np.arange(8, dtype=kind).reshape(2, 4), f"w{n}") for n, kind in kinds]
    scale = numpy_helper.from_array(np.array([0.5, 0.25], np.float32), "s")
    zero = numpy_helper.from_array(np.array([1, 2], np.int8), "z")
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["y"], name="/layer/MatMul"),
        helper.make_node("DequantizeLinear", ["w1", "s", "z"], ["d"], axis=0, name="/layer/weight/Dequantize"),
        helper.make_node("MatMul", ["y", "d"], ["u"], name="/other/MatMul"),
        helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.FLOAT, [2], [1.0, 2.0])),
    ]
    graph = helper.make_graph(nodes, "g", [], [], initializer=[*weights, scale, zero])
    outside = numpy_helper.from_array(np.ones((2, 2), np.float32), "layer.weight")
    outside.ClearField("raw_data")
    outside.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "model.data"), ("offset", "0"), ("length", "16")):
        outside.external_data.add(key=key, value=value)
    other = helper.make_graph(nodes[:1], "g", [], [], initializer=[outside, *weights])
    files = [helper.make_model(one).SerializeToString() for one in (graph, other)]
    return Reader("model.onnx", seeds(*files), all_of, {"model.data": b"\0" * 16} | CONFIG)


def masks() -> Reader:
    def read(path: Path) -> int:
        with open_source(str(path)) as source:
            held(source)
            return sum(values.size for _, values in source.read(source.tensors))

    made = safetensors.numpy.save({"a.weight": np.ones((2, 3), bool), "b.weight_mask": np.arange(4.0)})
    return Reader("masks.safetensors", seeds(made), read)


# --- models ------------------------------------------------------------------------------------------------------


def tokenized(path: Path) -> list[int]:
    """What the tokenizer in the file's folder makes of a text."""
    found = load_tokenizer(str(path.parent), LOAD)
    return list(found("one twos.", truncation=True, max_length=8)["input_ids"])


def tokenizer_file(file: str) -> Reader:
    """A tokenizer's own file, or its settings."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 16, "do_lower_case": True}
    settings |= {f"{word.strip('[]').lower()}_token": word for word in WORDS[:5]}
    files = {
        "tokenizer.json": pieces_backend(WORDS).to_str().encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
    }
    return Reader(file, seeds(files.pop(file)), tokenized, files | CONFIG)


def pooling(file: str) -> Reader:
    """What sentence-transformers puts beside a model, by which its vectors are made."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    modules += [{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    way = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    lengths = {"max_seq_length": 16, "do_lower_case": False}
    settings = {"1_Pooling/config.json": way, "sentence_bert_config.json": lengths}
    beside = {name: json.dumps(value).encode() for name, value in settings.items() if name != file} | CONFIG
    content = json.dumps(modules if file == "modules.json" else settings[file])
    return Reader(file, seeds(content), lambda path: own_pooling(str(path.parent), LOAD), beside)


def architecture_row() -> Reader:
    tensors = {name: TensorInfo("F32", np.shape(value), 0) for name, value in bert().items()}
    (whole,) = stacks_of({"model_type": "bert"})
    one = dataclasses.replace(whole, other_writes=whole.other_writes[:1], other_norms=whole.other_norms[:1])
    plain = to_toml((one,))  # no cross-attention
    loose = to_toml((whole,)).replace("[[stack]]", "[[stack]]\nexact = false")
    return Reader("row.toml", seeds(plain, loose), lambda path: len(bind(load_toml(path), tensors, BERT)))


# --- texts and tables --------------------------------------------------------------------------------------------


def texts_of(path: Path) -> int:
    """The texts of a file."""
    return len(read_texts(path, limit=100).texts)


def examples_of(path: Path) -> int:
    """Labelled examples of a file, one label a text."""
    return len(read_examples(plain_task("classify", "text", "label"), path))


def comma_separated() -> str:
    """The labelled rows as a .csv."""
    made = io.StringIO()
    rows = [[f'{row["text"]}, "said"\nhe', row["label"]] for row in LABELLED]
    csv.writer(made).writerows([["text", "label"], *rows])
    return made.getvalue()


def parquets(columns: dict[str, list[Any]]) -> list[bytes]:
    """Parquet files of these columns: plain, packed, with a dictionary, with names of labels."""
    table = pyarrow.table(columns)
    features = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["no", "yes"]}}}}
    noted = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    made = []
    for one, how in (
        (table, {"compression": "none", "use_dictionary": False}), (table, {"compression": "snappy"}),
        (noted, {"compression": "zstd", "store_schema": True, "row_group_size": 2}),
    ):  # fmt: skip
        file = io.BytesIO()
        pyarrow.parquet.write_table(one, file, **how)
        made.append(file.getvalue())
    return made


def labelled_words() -> Reader:
    task = LabelledTask("words", "words", None, (), ("accuracy",), "", label="tags", level="token")
    rows = [{"words": ["one", "two"], "tags": ["A", "B"]}, {"words": ["three"], "tags": ["A"]}]
    return Reader("rows.jsonl", seeds(lines(rows)), lambda path: len(read_examples(task, path)))


def words_in_context() -> Reader:
    row = {"word": "two", "sentence1": "one two", "sentence2": "two three", "label": "true"}
    by_index = lines([{**row, "index1": 1, "index2": 0}] * 2)
    by_place = lines([{**row, "start1": 4, "end1": 7, "start2": 0, "end2": 3}] * 2)
    return Reader("train.jsonl", seeds(by_index, by_place), lambda path: len(read_wic(path).words))


def similarity() -> Reader:
    (task,) = sts_tasks("stsb")
    rows = ({"sentence1": "one two", "sentence2": "two", "score": n / 2, "subset": "x"} for n in range(4))
    return Reader("stsb/test.jsonl", seeds(lines(rows)), lambda path: len(read_sts(task, path.parents[1])))


def token_counts() -> Reader:
    tokenizer, n = word_pieces(WORDS), len(WORDS)
    counts = TokenCounts(np.arange(n), np.zeros(n, np.int64), WORDS, 3, "texts", ("a note",), (5,))
    content = written(lambda path: write_counts(counts, path))
    return Reader("counts.parquet", seeds(content), lambda path: read_counts(path, tokenizer).counts.sum())


def published_counts() -> Reader:
    """Counts by text, brought to the ids of a tokenizer."""
    tokenizer = word_pieces(WORDS)

    def read(path: Path) -> int:
        return int(read_counts(path, tokenizer).counts.sum() + compat_counts(path, tokenizer).counts.sum())

    return Reader("counts.parquet", seeds(*parquets({"token": ["one", "two", "##s"], "count": [7, 3, 2]})), read)


# --- pictures and recordings -------------------------------------------------------------------------------------


def pictures() -> Reader:
    pixels, made = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8), []
    for kind in FORMATS:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        made.append(file.getvalue())
    return Reader("picture", seeds(*made), lambda path: picture(path.read_bytes(), path.name).sum())


def recordings() -> Reader:
    made = []
    for width in (1, 2, 3, 4):
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setnchannels(2)
            out.setsampwidth(width)
            out.setframerate(8000)
            out.writeframes(bytes(range(24)) * width)
        made.append(file.getvalue())
    try:
        import soundfile
    except ImportError:
        pass
    else:
        for kind in ("FLAC", "OGG", "AIFF"):
            file = io.BytesIO()
            soundfile.write(file, np.sin(np.arange(400) / 9).astype(np.float32), 8000, format=kind)
            made.append(file.getvalue())

    def read(path: Path) -> int:
        return int(recording(path.read_bytes(), path.name, max_seconds=30).samples.sum())

    return Reader("recording", seeds(*made), read)


def media_table() -> Reader:
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PNG")

    def read(path: Path) -> int:
        kind_of(path)
        found = read_items("image", path, ItemOptions(labelled=True))
        return len(found.digest) + sum(len(part.content()) for part in found.parts if part.path)

    columns = {"image": [{"bytes": file.getvalue(), "path": "a.png"}] * 4, "label": [0, 1, 1, 0]}
    return Reader("pictures.parquet", seeds(*parquets(columns)), read)


# --- what outlierlens wrote --------------------------------------------------------------------------------------


def results() -> Reader:
    """One of every kind of result."""
    from every_result import made_in

    with tempfile.TemporaryDirectory() as folder:
        made = [to_json(value) for value in made_in(Path(folder)).values()]
    return Reader("results.json", seeds(*made), lambda path: len(to_json(load(path))))


def fingerprints() -> Reader:
    files = packed() | CONFIG
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        text = to_json(fingerprint(folder)).encode()

    def read(path: Path) -> Any:
        return verify(str(path.parent), load_fingerprint(path))

    return Reader("fingerprint.json", seeds(text, Seed(text, digested)), read, files)


def digested(content: bytes) -> bytes:
    """A fingerprint with the digest that belongs to it, where it can be read."""
    try:
        found = from_json(content)
        provenance = dataclasses.replace(found.provenance, fingerprint=digest_of(found))
        return to_json(dataclasses.replace(found, provenance=provenance)).encode()
    except (OutlierlensError, ValueError, TypeError, AttributeError):
        return content


def signed(content: bytes) -> bytes:
    """Rows with the checksums that belong to them."""
    made = []
    for line in content.split(b"\n"):
        body = re.sub(rb',"crc32":"[0-9a-f]*"}$', b"", line)
        made.append(body + b',"crc32":"%08x"}' % zlib.crc32(body) if body else b"")
    return b"\n".join(made)


def rows_of(file: str, content: bytes, read: Callable[[Path], Any]) -> Reader:
    """A file of rows with checksums, which mutants change, and with checksums that are right again."""
    return Reader(file, seeds(content, Seed(content, signed)), read)


ROWS_OF_A_RUN = signed(
    b'{"identity":{"model":"m","seed":0}\n{"key":"a 1","value":[1.5,null]\n{"key":"b","value":{"x":1}\n'
)


def watch() -> Reader:
    content = b"\n".join((PACKAGED / "mini-bert" / "watch.jsonl").read_bytes().split(b"\n")[:4]) + b"\n"
    return rows_of("watch.jsonl", content, lambda path: len(read_watch(path).steps) + len(read_activity(path).steps))


def manifest() -> Reader:
    files = {name: {"bytes": 1, "sha256": "0" * 64} for name in ("charts/weights.svg", "charts/old.png", "index.html")}
    document = json.dumps({"format_version": 1, "kind": "Manifest", "files": files})
    return Reader("manifest.json", seeds(document), lambda path: len(_stale(path.parent, {})), {"charts/old.png": b"x"})


def trainer_state() -> Reader:
    history = [{"step": n, "loss": 4.0 / n, "eval_loss": 3.5} for n in (1, 10, 20)]
    state = json.dumps({"global_step": 20, "log_history": history})
    return Reader(
        "trainer_state.json", seeds(state), lambda path: len(find_log(find_saved([str(path.parent)]))), packed()
    )


def training_log() -> Reader:
    made = lines({"step": n, "train/loss": 4.0 / n, "val_loss": 3.5} for n in (1, 10, 20))
    return Reader("log.jsonl", seeds(made), lambda path: len(loss_curves(read_log(path))))


def finished_run() -> Reader:
    epochs = {
        f"epoch {n}": {"epoch": n, "step": n * 3, "loss": 0.5, "scores": {"accuracy": n / 9}, "train_loss": None}
        for n in (1, 2)
    }
    done = {"low": 0.1, "high": 0.3, "fingerprint": "0", "base_fingerprint": "1", "seconds": 2.0}
    kept = [{"identity": {}}, *({"key": key, "value": value} for key, value in (epochs | {"done": done}).items())]

    def read(path: Path) -> Any:
        with RowStore.open(path, {}) as rows:
            return SeedFolder(path.parent, rows, "accuracy").run(1)

    return Reader(ROWS, seeds(b"".join(map(row_line, kept))), read, {f"{MODEL}/config.json": b"{}"})


# --- what users write, and samples -------------------------------------------------------------------------------


def clipping(file: str, *contents: str) -> Reader:
    return Reader(file, seeds(*contents), lambda path: _file(path, 12))


def archive() -> Reader:
    sample = Sample("x", "", "", "", inside="model", files={"config.json": 160, "model.safetensors": 100})

    def read(path: Path) -> int:
        with tempfile.TemporaryDirectory() as folder:
            _unpack(path, sample, Path(folder))
            return len(list(Path(folder).iterdir()))

    entries = {"model/config.json": b'{"a": 1}' * 20, "model/model.safetensors": b"\0" * 100, "README": b"x"}
    return Reader("sample.zip", seeds(zipped(entries), zipped(entries, zipfile.ZIP_DEFLATED)), read)


READERS: dict[str, Callable[[], Reader]] = {
    "safetensors": lambda: Reader("model.safetensors", seeds(SMALL, headed(SMALL)), all_of),
    "safetensors-index": safetensors_index,
    "codes": codes,
    "adapter": lambda: adapter("adapter_model.safetensors"),
    "adapter-config": lambda: adapter("adapter_config.json"),
    "bin": torch_bin,
    "bin-index": bin_index,
    "bin-ranks": lambda: ranks("consolidated.00.pth"),
    "params": lambda: ranks("params.json"),
    "dcp": lambda: distributed(".metadata"),
    "dcp-pieces": lambda: distributed("__0_0.distcp"),
    "npz": numpy_archive,
    "flax": lambda: Reader(
        "flax_model.msgpack",
        seeds(packed_arrays({"params": {"h": arrays()}, "step": 3, "lr": 0.5, "on": True})),
        all_of,
    ),
    "gguf": lambda: Reader("model.gguf", seeds(gguf_of("llama"), gguf_of("bert")), all_of),
    "imatrix": imatrix,
    "gguf-tokenizer": lambda: Reader(
        "model.gguf", seeds(gguf_of("llama")), lambda path: len(read_tokenizer(path)("one two"))
    ),
    "gguf-model": lambda: Reader("model.gguf", seeds(gguf_of("llama")), made_model),
    "onnx": onnx,
    "masks": masks,
    "config": lambda: Reader("config.json", seeds(json.dumps(BERT)), lambda path: scan(str(path.parent)), packed()),
    "config-to-run": lambda: Reader(
        "config.json",
        seeds(json.dumps(BERT)),
        lambda path: load_model(str(path.parent), LOAD),
        packed() | {"vocab.txt": "\n".join(WORDS).encode()},
    ),
    "vocabulary": lambda: Reader("vocab.txt", seeds("\n".join(WORDS)), tokenized, CONFIG),
    "tokenizer": lambda: tokenizer_file("tokenizer.json"),
    "tokenizer-config": lambda: tokenizer_file("tokenizer_config.json"),
    "pooling-modules": lambda: pooling("modules.json"),
    "pooling-config": lambda: pooling("sentence_bert_config.json"),
    "architecture-row": architecture_row,
    "txt": lambda: Reader(
        "texts.txt",
        seeds("one two three\ntwo three four, five\n\nsix\n", "\ufeffone\r\ntwo\x85three\u2028four"),
        texts_of,
    ),
    "jsonl": lambda: Reader("texts.jsonl", seeds(lines(LABELLED)), texts_of),
    "csv": lambda: Reader("texts.csv", seeds(comma_separated()), texts_of),
    "tsv": lambda: Reader("texts.tsv", seeds('text\tlabel\none "two\tyes\nthree\tno\n'), texts_of),
    "parquet": lambda: Reader(
        "texts.parquet", seeds(*parquets({**COLUMNS, "words": [row["words"] for row in LABELLED]})), texts_of
    ),
    "labelled": lambda: Reader("rows.jsonl", seeds(lines(LABELLED)), examples_of),
    "labelled-csv": lambda: Reader("rows.csv", seeds(comma_separated()), examples_of),
    "labelled-parquet": lambda: Reader("rows.parquet", seeds(*parquets(COLUMNS)), examples_of),
    "labelled-words": labelled_words,
    "words-in-context": words_in_context,
    "similarity": similarity,
    "token-counts": token_counts,
    "published-counts": published_counts,
    "picture": pictures,
    "recording": recordings,
    "media-table": media_table,
    "results": results,
    "fingerprint": fingerprints,
    "rows": lambda: rows_of("rows.jsonl", ROWS_OF_A_RUN, lambda path: len(read_rows(path))),
    "watch": watch,
    "manifest": manifest,
    "trainer-state": trainer_state,
    "training-log": training_log,
    "finished-run": finished_run,
    "recipe": lambda: Reader(
        "recipe.toml",
        seeds(*(read_recipe(name).to_toml() for name in shipped()[:3])),
        lambda path: read_recipe(path).to_toml(),
    ),
    "clipping-toml": lambda: clipping(
        "clip.toml", '"0-9" = [896, 678]\nembeddings = [3]\n', 'source = "x"\n[dims]\n4 = [1]\n'
    ),
    "clipping-json": lambda: clipping(
        "clip.json", json.dumps({"source": "x", "dims": {"0-9": [896], "embeddings": [3]}})
    ),
    "archive": archive,
}  # what is read, by name
