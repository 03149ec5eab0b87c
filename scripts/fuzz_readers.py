"""Every place where a file of a stranger enters, with small good files to start from.

    reader = READERS["safetensors"]()        # imports what it takes, and makes the files
    reader.read(path)                        # what is found in the file, or an error of ours

A reader reads all that the file offers: names, values, rows in blocks, single rows.
"""

import csv
import io
import json
import re
import struct
import tempfile
import wave
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fuzz_mutants import Seed, length_first

SEEN = "one two three\ntwo three four, five\n\nsix\n"
BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16, "type_vocab_size": 2, "pad_token_id": 0,
    "layer_norm_eps": 1e-12, "hidden_act": "gelu", "id2label": {"0": "no", "1": "yes"},
}  # fmt: skip
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three", "four", "##s", ".", "a")


@dataclass(frozen=True)
class Reader:
    """What is read from a file of this name, beside others that are good."""

    file: str
    seeds: tuple[Seed, ...]
    read: Callable[[Path], Any]
    beside: dict[str, bytes] = field(default_factory=dict)


READERS: dict[str, Callable[[], Reader]] = {}


def reader(made: Callable[[], Reader]) -> Callable[[], Reader]:
    """List a maker under its name."""
    READERS[made.__name__.strip("_").replace("_", "-")] = made
    return made


def seeds(*contents: bytes | str) -> tuple[Seed, ...]:
    """Files as they are."""
    return tuple(Seed(content.encode() if isinstance(content, str) else content) for content in contents)


def dumped(value: Any) -> str:
    """JSON."""
    return json.dumps(value)


# --- weights -----------------------------------------------------------------------------------------------------


def bert_tensors() -> dict[str, Any]:
    """The weights of a tiny BERT by name, float32."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**{k: v for k, v in BERT.items() if k not in ("model_type", "architectures")}))
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    del state["cls.predictions.decoder.weight"], state["cls.predictions.decoder.bias"]  # shared with others
    return state


def all_of(path: Path) -> int:
    """Everything that a weight file offers, by each way of reading."""
    from outlierlens.checkpoints import open_checkpoint

    with open_checkpoint(str(path)) as checkpoint:
        names = list(checkpoint.tensors)
        found = sum(values.size for _, values in checkpoint.read(names))
        for name in names[:4]:
            if len(checkpoint.tensors[name].shape) > 1 and checkpoint.tensors[name].size:
                found += sum(rows.size for rows in checkpoint.read_rows(name, 3))
                found += checkpoint.take_rows(name, (0,)).size
        checkpoint.header_digest()
    return found


def packed() -> bytes:
    """The tiny BERT as safetensors."""
    from safetensors.torch import save

    return save(bert_tensors(), metadata={"format": "pt"})


def several() -> dict[str, Any]:
    """A few small tensors of several types."""
    import torch

    return {
        "a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2, dtype=torch.bfloat16),
        "b": torch.ones(2, 2, dtype=torch.float16).t(), "c": torch.ones(1, dtype=torch.float64), "d": torch.zeros(0, 3),
        "e": torch.tensor([1, 2]), "f": torch.tensor(True),
    }  # fmt: skip


@reader
def safetensors() -> Reader:
    from safetensors.torch import save

    small = save({name: value.contiguous() for name, value in several().items()}, metadata={"format": "pt"})
    return Reader("model.safetensors", (*seeds(small), headed(small)), all_of)


def headed(file: bytes) -> Seed:
    """The header of a safetensors file, which mutants change; its length is put right, its values stay."""
    head = file[8 : 8 + struct.unpack("<Q", file[:8])[0]]
    return Seed(head, lambda new: length_first(new, file[8 + len(head) :]))


@reader
def safetensors_index() -> Reader:
    from safetensors.torch import save

    state = several()
    shards = {"model-1.safetensors": ("a.weight", "a.bias"), "model-2.safetensors": ("c", "d")}
    beside = {file: save({name: state[name] for name in names}) for file, names in shards.items()}
    index = {
        "metadata": {"total_size": 50},
        "weight_map": {name: file for file, names in shards.items() for name in names},
    }
    return Reader("model.safetensors.index.json", seeds(dumped(index)), all_of, beside)


@reader
def codes() -> Reader:
    """Weights that are stored as codes with scales: by row, by block, two in a byte, four bits with their state."""
    import torch
    from safetensors.torch import save

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
                "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(dumped(state).encode()), dtype=byte)},
    }  # fmt: skip
    files = [save({f"{kind}.{name}": value for name, value in parts.items()}) for kind, parts in kinds.items()]
    config = {**BERT, "quantization_config": {"quant_method": "compressed-tensors", "weight_block_size": [2, 4]}}
    beside = {"config.json": dumped(config).encode()}
    return Reader("model.safetensors", (*seeds(*files), *(headed(file) for file in files)), all_of, beside)


@reader
def bin() -> Reader:
    import torch

    new, old = io.BytesIO(), io.BytesIO()
    torch.save(several(), new)
    torch.save({name: several()[name] for name in ("a.weight", "a.bias")}, old, _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(new) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    pickled = next(entry for entry in entries if entry.endswith("data.pkl"))
    inner = Seed(entries[pickled], lambda content: zipped({**entries, pickled: content}))
    return Reader("pytorch_model.bin", (*seeds(new.getvalue(), old.getvalue()), inner), all_of)


@reader
def bin_index() -> Reader:
    import torch

    content = io.BytesIO()
    torch.save({"a.bias": torch.ones(2)}, content)
    index = {"metadata": {}, "weight_map": {"a.bias": "pytorch_model-1.bin"}}
    return Reader(
        "pytorch_model.bin.index.json", seeds(dumped(index)), all_of, {"pytorch_model-1.bin": content.getvalue()}
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
    import tempfile

    import gguf
    import numpy as np

    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        writer = gguf.GGUFWriter(path, kind)
        writer.add_block_count(1)
        writer.add_context_length(16)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(64)
        writer.add_head_count(2)
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_layer_norm_eps(1e-5)
        writer.add_rope_dimension_count(16)
        writer.add_vocab_size(4)
        writer.add_tokenizer_model("llama" if kind == "llama" else "bert")
        writer.add_token_list(
            ["<unk>", "<s>", "▁one", "▁two"] if kind == "llama" else ["[PAD]", "[UNK]", "▁one", "two"]
        )
        writer.add_token_scores([0.0, 0.0, -1.0, -2.0])
        writer.add_token_types([2, 3, 1, 1])
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (4, 32), "output_norm.weight": (32,)}
        shapes |= {f"blk.0.{part}.weight": (32,) for part in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.0.attn_{part}.weight": (32, 32) for part in ("q", "k", "v", "output")}
        shapes |= {
            "blk.0.ffn_gate.weight": (64, 32),
            "blk.0.ffn_up.weight": (64, 32),
            "blk.0.ffn_down.weight": (32, 64),
        }
        for number, (name, shape) in enumerate(shapes.items()):
            values = random.normal(size=shape).astype(np.float32)
            packing = (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0, None)[number % 3]
            if packing is None or len(shape) == 1:
                writer.add_tensor(name, values)
            else:
                writer.add_tensor(name, gguf.quants.quantize(values, packing), raw_dtype=packing)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


@reader
def gguf() -> Reader:
    return Reader("model.gguf", seeds(gguf_of("llama"), gguf_of("bert")), all_of)


@reader
def imatrix() -> Reader:
    import gguf
    import numpy as np

    from outlierlens.checkpoints.imatrix import read_imatrix

    values = np.arange(1, 5, dtype="<f4")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_type("imatrix")
        writer.add_array("imatrix.datasets", ["a.b"])
        writer.add_tensor("blk.0.ffn_up.weight.in_sum2", values.reshape(2, 2))
        writer.add_tensor("blk.0.ffn_up.weight.counts", np.ones((2, 1), "<f4"))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        made = path.read_bytes()
    return Reader("m.imatrix", seeds(made), lambda path: len(read_imatrix(path).entries))


@reader
def gguf_tokenizer() -> Reader:
    from outlierlens.checkpoints.gguf_tokenizer import read_tokenizer

    return Reader("model.gguf", seeds(gguf_of("llama")), lambda path: len(read_tokenizer(path)("one two")))


@reader
def gguf_model() -> Reader:
    return Reader("model.gguf", seeds(gguf_of("llama")), made_model)


def made_model(path: Path) -> int:
    """The folder that is made of a weight file which runs in every command."""
    import tempfile

    from outlierlens.models.weight_copy import copy_file, copy_gguf

    with tempfile.TemporaryDirectory() as folder:
        if path.suffix == ".onnx":
            copy_file(path, Path(folder), notice=quiet)
        else:
            copy_gguf(path, Path(folder), weights=True, notice=quiet)
        return len(list(Path(folder).iterdir()))


def quiet(_: str) -> None:
    """Say nothing."""


@reader
def onnx() -> Reader:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    weights = [
        numpy_helper.from_array(np.arange(8, dtype=dtype).reshape(2, 4), f"w{n}")
        for n, dtype in enumerate((np.float32, np.int8, np.float16))
    ]
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
    return Reader("model.onnx", seeds(*files), all_of, {"model.data": b"\0" * 16, "config.json": dumped(BERT).encode()})


@reader
def masks() -> Reader:
    import numpy as np
    from safetensors.numpy import save

    from outlierlens.analyses.prune_evidence import held, open_source

    def read(path: Path) -> int:
        with open_source(str(path)) as source:
            held(source)
            return sum(values.size for _, values in source.read(source.tensors))

    made = save({"a.weight": np.ones((2, 3), bool), "b.weight_mask": np.arange(4.0)})
    return Reader("masks.safetensors", seeds(made), read)


# --- models ------------------------------------------------------------------------------------------------------


@reader
def config() -> Reader:
    from outlierlens.analyses.scan import scan

    return Reader(
        "config.json", seeds(dumped(BERT)), lambda path: scan(str(path.parent)), {"model.safetensors": packed()}
    )


@reader
def config_to_run() -> Reader:
    return Reader(
        "config.json",
        seeds(dumped(BERT)),
        loaded,
        {"model.safetensors": packed(), "vocab.txt": "\n".join(WORDS).encode()},
    )


def loaded(path: Path) -> Any:
    """The model in the file's folder, ready to run."""
    from outlierlens.models.load import LoadOptions, load_model

    return load_model(str(path.parent), LoadOptions(offline=True, device="cpu", notice=quiet))


def tokenizer_of(path: Path) -> list[int]:
    """What the tokenizer in the file's folder makes of a text."""
    from outlierlens.models.load import LoadOptions, load_tokenizer

    found = load_tokenizer(str(path.parent), LoadOptions(offline=True, notice=quiet))
    return list(found("one twos.", truncation=True, max_length=8)["input_ids"])


@reader
def vocabulary() -> Reader:
    return Reader("vocab.txt", seeds("\n".join(WORDS)), tokenizer_of, {"config.json": dumped(BERT).encode()})


def tokenizer_files() -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    inner = Tokenizer(WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = BertPreTokenizer()
    inner.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    inner.add_special_tokens(list(WORDS[:5]))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 16, "do_lower_case": True}
    settings |= {f"{word.strip('[]').lower()}_token": word for word in WORDS[:5]}
    return {"tokenizer.json": inner.to_str().encode(), "tokenizer_config.json": dumped(settings).encode()}


@reader
def tokenizer() -> Reader:
    files = tokenizer_files()
    return Reader(
        "tokenizer.json",
        seeds(files.pop("tokenizer.json")),
        tokenizer_of,
        {**files, "config.json": dumped(BERT).encode()},
    )


@reader
def tokenizer_config() -> Reader:
    files = tokenizer_files()
    beside = {**files, "config.json": dumped(BERT).encode()}
    return Reader("tokenizer_config.json", seeds(beside.pop("tokenizer_config.json")), tokenizer_of, beside)


@reader
def pooling_modules() -> Reader:
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    modules += [{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    return Reader("modules.json", seeds(dumped(modules)), pooling_of, sentence_files())


@reader
def pooling_config() -> Reader:
    files = sentence_files()
    return Reader(
        "sentence_bert_config.json", seeds(files.pop("sentence_bert_config.json").decode()), pooling_of, files
    )


def sentence_files() -> dict[str, bytes]:
    """What sentence-transformers puts beside a model."""
    pooling = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    return {
        "1_Pooling/config.json": dumped(pooling).encode(), "config.json": dumped(BERT).encode(),
        "sentence_bert_config.json": dumped({"max_seq_length": 16, "do_lower_case": False}).encode(),
    }  # fmt: skip


def pooling_of(path: Path) -> Any:
    """How the model in the file's folder makes a sentence's vector."""
    from outlierlens.analyses.embed_pass import own_pooling
    from outlierlens.models.load import LoadOptions

    return own_pooling(str(path.parent), LoadOptions(offline=True, notice=quiet))


@reader
def architecture_row() -> Reader:
    import numpy as np

    from outlierlens.architectures import bind, load_toml, stacks_of, to_toml
    from outlierlens.checkpoints import TensorInfo

    tensors = {name: TensorInfo("F32", np.shape(value), 0) for name, value in bert_tensors().items()}

    def read(path: Path) -> int:
        return len(bind(load_toml(path), tensors, BERT))

    (whole,) = stacks_of({"model_type": "bert"})
    plain = replace(whole, other_writes=whole.other_writes[:1], other_norms=whole.other_norms[:1])  # no cross-attention
    loose = to_toml((whole,)).replace("[[stack]]", "[[stack]]\nexact = false")
    return Reader("row.toml", seeds(to_toml((plain,)), loose), read)


# --- texts and tables --------------------------------------------------------------------------------------------


def texts_of(path: Path) -> int:
    """The texts of a file."""
    from outlierlens.data.texts import read_texts

    return len(read_texts(path, limit=100).texts)


LABELLED = [
    {"text": "one two", "label": "yes", "words": ["one", "two"]},
    {"text": "three", "label": "no", "words": ["three"]},
] * 2


@reader
def txt() -> Reader:
    return Reader("texts.txt", seeds(SEEN, "\ufeffone\r\ntwo\x85three\u2028four"), texts_of)


@reader
def jsonl() -> Reader:
    return Reader("texts.jsonl", seeds("".join(dumped(row) + "\n" for row in LABELLED)), texts_of)


def separated(mark: str) -> str:
    """Rows as a .csv or .tsv."""
    made = io.StringIO()
    writer = csv.writer(made, delimiter=mark)
    writer.writerows([["text", "label"], *([row["text"] + ', "said"\nhe', row["label"]] for row in LABELLED)])
    return made.getvalue()


@reader
def csv_() -> Reader:
    return Reader("texts.csv", seeds(separated(",")), texts_of)


@reader
def tsv() -> Reader:
    return Reader("texts.tsv", seeds('text\tlabel\none "two\tyes\nthree\tno\n'), texts_of)


def parquets(columns: dict[str, list[Any]]) -> list[bytes]:
    """Parquet files of these columns: plain, packed, with a dictionary, with names of labels."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table(columns)
    features = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["no", "yes"]}}}}
    noted = table.replace_schema_metadata({"huggingface": dumped(features)})
    made = []
    for one, how in (
        (table, {"compression": "none", "use_dictionary": False}), (table, {"compression": "snappy"}),
        (noted, {"compression": "zstd", "store_schema": True, "row_group_size": 2}),
    ):  # fmt: skip
        file = io.BytesIO()
        pyarrow.parquet.write_table(one, file, **how)
        made.append(file.getvalue())
    return made


@reader
def parquet() -> Reader:
    columns = {
        "text": [row["text"] for row in LABELLED],
        "label": [0, 1, 1, 0],
        "words": [row["words"] for row in LABELLED],
    }
    return Reader("texts.parquet", seeds(*parquets(columns)), texts_of)


def examples_of(path: Path) -> int:
    """Labelled examples of a file, one label a text."""
    from outlierlens.data.labelled.examples import read_examples
    from outlierlens.data.labelled.table import plain_task

    return len(read_examples(plain_task("classify", "text", "label"), path))


@reader
def labelled() -> Reader:
    return Reader("rows.jsonl", seeds("".join(dumped(row) + "\n" for row in LABELLED)), examples_of)


@reader
def labelled_csv() -> Reader:
    return Reader("rows.csv", seeds(separated(",")), examples_of)


@reader
def labelled_parquet() -> Reader:
    columns = {"text": [row["text"] for row in LABELLED], "label": [0, 1, 1, 0]}
    return Reader("rows.parquet", seeds(*parquets(columns)), examples_of)


@reader
def labelled_words() -> Reader:
    from outlierlens.data.labelled.examples import read_examples
    from outlierlens.data.labelled.table import LabelledTask

    task = LabelledTask("words", "words", None, (), ("accuracy",), "", label="tags", level="token")
    rows = [{"words": ["one", "two"], "tags": ["A", "B"]}, {"words": ["three"], "tags": ["A"]}]
    return Reader(
        "rows.jsonl", seeds("".join(dumped(row) + "\n" for row in rows)), lambda path: len(read_examples(task, path))
    )


@reader
def words_in_context() -> Reader:
    from outlierlens.analyses.embed_pairs import read_wic

    row = {"word": "two", "sentence1": "one two", "sentence2": "two three", "label": "true"}
    by_index = dumped({**row, "index1": 1, "index2": 0}) + "\n"
    by_place = dumped({**row, "start1": 4, "end1": 7, "start2": 0, "end2": 3}) + "\n"
    return Reader("train.jsonl", seeds(by_index * 2, by_place * 2), lambda path: len(read_wic(path).words))


@reader
def similarity() -> Reader:
    from outlierlens.analyses.embed_pairs import read_sts, sts_tasks

    (task,) = sts_tasks("stsb")
    rows = [{"sentence1": "one two", "sentence2": "two", "score": n / 2, "subset": "x"} for n in range(4)]
    return Reader(
        "stsb/test.jsonl",
        seeds("".join(dumped(row) + "\n" for row in rows)),
        lambda path: len(read_sts(task, path.parents[1])),
    )


@reader
def token_counts() -> Reader:
    import tempfile

    import numpy as np

    from outlierlens.data.token_counts import TokenCounts, read_counts, write_counts

    _tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts.parquet"
        n = len(WORDS)
        write_counts(TokenCounts(np.arange(n), np.zeros(n, np.int64), WORDS, 3, "texts", ("a note",), (5,)), path)
        content = path.read_bytes()
    return Reader("counts.parquet", seeds(content), lambda path: read_counts(path, WITH[0]).counts.sum())


def published(path: Path) -> int:
    """Counts by text, brought to the ids of a tokenizer."""
    from outlierlens.data.token_counts import compat_counts, read_counts

    return int(read_counts(path, WITH[0]).counts.sum() + compat_counts(path, WITH[0]).counts.sum())


WITH: list[Any] = []  # the tokenizer, made once


def _tokenizer() -> None:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer.from_str(tokenizer_files()["tokenizer.json"].decode())
    names = {f"{word.strip('[]').lower()}_token": word for word in WORDS[:5]}
    WITH[:] = [PreTrainedTokenizerFast(tokenizer_object=inner, **names)]


@reader
def published_counts() -> Reader:
    _tokenizer()
    return Reader("counts.parquet", seeds(*parquets({"token": ["one", "two", "##s"], "count": [7, 3, 2]})), published)


# --- pictures and recordings -------------------------------------------------------------------------------------


@reader
def picture() -> Reader:
    import numpy as np
    from PIL import Image

    from outlierlens.data.media.items import FORMATS
    from outlierlens.data.media.items import picture as decoded

    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    made = []
    for kind in FORMATS:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        made.append(file.getvalue())
    return Reader("picture", seeds(*made), lambda path: decoded(path.read_bytes(), path.name).sum())


@reader
def recording() -> Reader:
    import numpy as np

    from outlierlens.data.media.items import recording as decoded

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
    return Reader(
        "recording", seeds(*made), lambda path: decoded(path.read_bytes(), path.name, max_seconds=30).samples.sum()
    )


@reader
def media_table() -> Reader:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PNG")
    columns = {"image": [{"bytes": file.getvalue(), "path": "a.png"}] * 4, "label": [0, 1, 1, 0]}
    return Reader("pictures.parquet", seeds(*parquets(columns)), items_of("image"))


def items_of(kind: Any, *, labelled: bool = True) -> Callable[[Path], int]:
    """Reads every picture or recording of a file."""
    from outlierlens.data.media.read import ItemOptions, kind_of, read_items

    def read(path: Path) -> int:
        kind_of(path)
        found = read_items(kind, path, ItemOptions(labelled=labelled))
        return len(found.digest) + sum(len(part.content()) for part in found.parts if part.path)

    return read


# --- what outlierlens wrote --------------------------------------------------------------------------------------


@reader
def results() -> Reader:
    from outlierlens.results.document import load, to_json

    return Reader("results.json", seeds(*written_results()), lambda path: len(to_json(load(path))))


def written_results() -> list[str]:
    """One of every kind of result."""
    import sys
    import tempfile

    from outlierlens.results.document import to_json

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from every_result import made_in

    with tempfile.TemporaryDirectory() as folder:
        return [to_json(value) for value in made_in(Path(folder)).values()]


@reader
def fingerprint() -> Reader:
    import tempfile

    from outlierlens.analyses.fingerprint import fingerprint as taken
    from outlierlens.analyses.fingerprint import load_fingerprint
    from outlierlens.analyses.fingerprint_verify import verify
    from outlierlens.results.document import to_json

    files = {"model.safetensors": packed(), "config.json": dumped(BERT).encode()}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        text = to_json(taken(folder)).encode()

    def read(path: Path) -> Any:
        return verify(str(path.parent), load_fingerprint(path))

    return Reader("fingerprint.json", (*seeds(text), Seed(text, digested)), read, files)


def digested(content: bytes) -> bytes:
    """A fingerprint with the digest that belongs to it, where it can be read."""
    import dataclasses

    from outlierlens.analyses.fingerprint import digest_of
    from outlierlens.errors import OutlierlensError
    from outlierlens.results.document import from_json, to_json

    try:
        found = from_json(content)
        provenance = dataclasses.replace(found.provenance, fingerprint=digest_of(found))
        return to_json(dataclasses.replace(found, provenance=provenance)).encode()
    except (OutlierlensError, ValueError, TypeError, AttributeError):
        return content


def signed(content: bytes) -> bytes:
    """Rows with the checksums that belong to them."""
    lines = []
    for line in content.split(b"\n"):
        body = re.sub(rb',"crc32":"[0-9a-f]*"}$', b"", line)
        lines.append(body + b',"crc32":"%08x"}' % zlib.crc32(body) if body else b"")
    return b"\n".join(lines)


@reader
def rows() -> Reader:
    from outlierlens.results.row_store import read_rows

    content = signed(
        b'{"identity":{"model":"m","seed":0}\n{"key":"a 1","value":[1.5,null]\n{"key":"b","value":{"x":1}\n'
    )
    return Reader("rows.jsonl", (*seeds(content), Seed(content, signed)), lambda path: len(read_rows(path)))


@reader
def watch() -> Reader:
    from outlierlens.checkpoints.samples.cache import PACKAGED
    from outlierlens.training.watch_rows import read_activity, read_watch

    content = b"\n".join((PACKAGED / "mini-bert" / "watch.jsonl").read_bytes().split(b"\n")[:4]) + b"\n"

    def read(path: Path) -> int:
        return len(read_watch(path).steps) + len(read_activity(path).steps)

    return Reader("watch.jsonl", (*seeds(content), Seed(content, signed)), read)


@reader
def manifest() -> Reader:
    from outlierlens.report.files import _stale

    files = {name: {"bytes": 1, "sha256": "0" * 64} for name in ("charts/weights.svg", "charts/old.png", "index.html")}
    document = dumped({"format_version": 1, "kind": "Manifest", "files": files})
    return Reader("manifest.json", seeds(document), lambda path: len(_stale(path.parent, {})), {"charts/old.png": b"x"})


@reader
def trainer_state() -> Reader:
    from outlierlens.training.run_files import find_log, find_saved

    state = {"global_step": 20, "log_history": [{"step": n, "loss": 4.0 / n, "eval_loss": 3.5} for n in (1, 10, 20)]}

    def read(path: Path) -> int:
        return len(find_log(find_saved([str(path.parent)])))

    return Reader("trainer_state.json", seeds(dumped(state)), read, {"model.safetensors": packed()})


@reader
def training_log() -> Reader:
    from outlierlens.training.run_files import loss_curves, read_log

    lines = "".join(dumped({"step": n, "train/loss": 4.0 / n, "val_loss": 3.5}) + "\n" for n in (1, 10, 20))
    return Reader("log.jsonl", seeds(lines), lambda path: len(loss_curves(read_log(path))))


@reader
def finished_run() -> Reader:
    from outlierlens.analyses.finetune import MODEL, ROWS, SeedFolder
    from outlierlens.results.row_store import RowStore, row_line

    scores = {
        f"epoch {n}": {"epoch": n, "step": n * 3, "loss": 0.5, "scores": {"accuracy": n / 9}, "train_loss": None}
        for n in (1, 2)
    }
    done = {"low": 0.1, "high": 0.3, "fingerprint": "0", "base_fingerprint": "1", "seconds": 2.0}
    lines = [{"identity": {}}, *({"key": key, "value": value} for key, value in (scores | {"done": done}).items())]

    def read(path: Path) -> Any:
        with RowStore.open(path, {}) as rows:
            return SeedFolder(path.parent, rows, "accuracy").run(1)

    return Reader(ROWS, seeds(b"".join(map(row_line, lines))), read, {f"{MODEL}/config.json": b"{}"})


# --- what users write --------------------------------------------------------------------------------------------


@reader
def recipe() -> Reader:
    from outlierlens.training.pretrain.recipe import read_recipe, shipped

    return Reader(
        "recipe.toml",
        seeds(*(read_recipe(name).to_toml() for name in shipped()[:3])),
        lambda path: read_recipe(path).to_toml(),
    )


@reader
def clipping_toml() -> Reader:
    from outlierlens.vectors.clip import _file

    return Reader(
        "clip.toml",
        seeds('"0-9" = [896, 678]\nembeddings = [3]\n', 'source = "x"\n[dims]\n4 = [1]\n'),
        lambda path: _file(path, 12),
    )


@reader
def clipping_json() -> Reader:
    from outlierlens.vectors.clip import _file

    return Reader(
        "clip.json",
        seeds(dumped({"source": "x", "dims": {"0-9": [896], "embeddings": [3]}})),
        lambda path: _file(path, 12),
    )


# --- samples -----------------------------------------------------------------------------------------------------


@reader
def archive() -> Reader:
    from outlierlens.checkpoints.samples import Sample
    from outlierlens.checkpoints.samples.download import _unpack

    sample = Sample("x", "", "", "", inside="model", files={"config.json": 160, "model.safetensors": 100})

    def read(path: Path) -> int:
        with tempfile.TemporaryDirectory() as folder:
            _unpack(path, sample, Path(folder))
            return len(list(Path(folder).iterdir()))

    entries = {"model/config.json": b'{"a": 1}' * 20, "model/model.safetensors": b"\0" * 100, "README": b"x"}
    return Reader("sample.zip", seeds(zipped(entries), zipped(entries, zipfile.ZIP_DEFLATED)), read)
