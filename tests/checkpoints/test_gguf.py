"""GGUF: files made byte by byte, files of the gguf package as an oracle, hostile files, and a real model."""

import math
import re
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gguf_files
from gguf_files import ARRAY, BOOL, F32, STRING, U64, array, floats, gguf_file, info, llama, number, string, text
from llama_cpp import CONVERTED
from outlierlens import architectures as arch
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.gguf import FAMILIES as GGUF_FAMILIES
from outlierlens.checkpoints.gguf import TYPES, GGUFCheckpoint, read_header
from outlierlens.errors import BadFile, MissingExtra, OutlierlensError, UnknownArchitecture


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def save(raw: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        return path

    return save


Write = Callable[[bytes], Path]


@pytest.mark.parametrize("version", [2, 3])
def test_hand_made_file(write: Write, version: int) -> None:
    down = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]  # [out, in]; the file says (3, 2)
    head = gguf_file(
        [
            *llama(),
            number("llama.embedding_length", 2),
            array("tokenizer.ggml.tokens", STRING, 2, text("a") + text("é")),
        ],
        [
            floats("blk.0.ffn_down.weight", down),
            floats("blk.0.attn_norm.weight", [7, 8]),
            floats("rope_freqs.weight", [9]),
        ],
        version=version,
    )
    with open_checkpoint(str(write(head))) as checkpoint:
        assert checkpoint.kind == "gguf"
        assert list(checkpoint.tensors) == [
            "model.layers.0.mlp.down_proj.weight",
            "model.layers.0.input_layernorm.weight",
            "rope_freqs.weight",
        ]
        assert checkpoint.tensors["model.layers.0.mlp.down_proj.weight"].shape == (2, 3)
        assert checkpoint.config == {
            "model_type": "llama",
            "num_hidden_layers": 1,
            "hidden_size": 2,
            "tie_word_embeddings": True,
        }
        n_header = checkpoint.bytes_read
        values = dict(checkpoint.read(["model.layers.0.mlp.down_proj.weight", "rope_freqs.weight"]))
        assert values["model.layers.0.mlp.down_proj.weight"].tolist() == down
        assert values["rope_freqs.weight"].tolist() == [9.0]
        assert checkpoint.bytes_read == n_header + 24 + 4
        assert checkpoint.total_bytes == len(head)
        # Three tensors of 32 aligned bytes each; what stands before them is padded from the header's own length.
        assert len(head) - 96 - 32 < n_header <= len(head) - 96
        assert checkpoint.notes == ()


def test_float_types_and_alignment(write: Write) -> None:
    bf16 = struct.pack("<2H", 0x3FC0, 0xC000)  # 1.5 and -2 cut from 0x3FC00000 and 0xC0000000
    raw = gguf_file(
        [number("general.alignment", 64)],
        [
            ("a", (2,), 1, np.array([0.5, -3], "<f2").tobytes()),
            ("b", (2,), 30, bf16),
            ("c", (), 28, struct.pack("<d", 0.1)),
        ],
        alignment=64,
    )
    checkpoint = GGUFCheckpoint(write(raw), name="x")
    values = dict(checkpoint.read(["c", "a", "b"]))
    assert {name: (array.dtype.name, array.tolist()) for name, array in values.items()} == {
        "a": ("float32", [0.5, -3.0]),
        "b": ("float32", [1.5, -2.0]),
        "c": ("float64", 0.1),
    }
    assert checkpoint.config == {}
    assert checkpoint.tensors["a"].dtype == "F16"


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q4_0", "Q5_K", "Q6_K", "MXFP4"])
def test_quantized_values_are_those_of_the_gguf_package(tmp_path: Path, kind: str) -> None:
    import gguf

    quantized = gguf.GGMLQuantizationType[kind]
    path = tmp_path / "model.gguf"
    # More values than are dequantized at a time, so that the seams are seen; random bytes serve where the package
    # cannot quantize, small enough that no half-float scale is infinite.
    random = np.random.default_rng(3)
    shape = (900, 1280)
    try:
        blocks = gguf.quants.quantize(random.standard_normal(shape, dtype=np.float32), quantized)
    except NotImplementedError:
        _, n, n_bytes = TYPES[quantized.value]
        blocks = random.integers(0, 60, (shape[0], shape[1] // n * n_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_token_list(["a", "b", "ü"])
    writer.add_tensor("blk.0.ffn_down.weight", blocks, raw_dtype=quantized)
    writer.add_tensor("blk.0.attn_norm.weight", np.arange(5, dtype=np.float32))
    gguf_files.write(writer)
    with open_checkpoint(str(path)) as checkpoint:
        assert checkpoint.config["model_type"] == "qwen3"
        assert checkpoint.config["rms_norm_eps"] == pytest.approx(1e-6)
        values = dict(checkpoint.read(checkpoint.tensors))
        assert checkpoint.notes == (f"values are dequantized from {kind}",)
    (stored,) = [tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "blk.0.ffn_down.weight"]
    expected = gguf.quants.dequantize(stored.data, stored.tensor_type)
    assert values["model.layers.0.mlp.down_proj.weight"].shape == shape
    np.testing.assert_array_equal(values["model.layers.0.mlp.down_proj.weight"], expected)
    assert values["model.layers.0.input_layernorm.weight"].tolist() == [0, 1, 2, 3, 4]


def test_types_agree_with_the_gguf_package() -> None:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    assert {number: (GGMLQuantizationType(number).name, *GGML_QUANT_SIZES[number]) for number in TYPES} == TYPES


def test_every_family_of_the_table_is_covered() -> None:
    assert set(CONVERTED.values()) == set(GGUF_FAMILIES)


def test_experts_stored_one_by_one(write: Write) -> None:
    tensors = [
        floats(f"blk.0.ffn_{what}.{expert}.weight", [[expert]]) for what in ("gate", "down", "up") for expert in (0, 1)
    ]
    raw = gguf_file([*llama(), number("llama.expert_count", 2)], [floats("blk.0.ffn_gate_inp.weight", [[1]]), *tensors])
    checkpoint = GGUFCheckpoint(write(raw), name="x")
    assert checkpoint.config["model_type"] == "mixtral"
    assert checkpoint.config["num_local_experts"] == 2
    assert "model.layers.0.block_sparse_moe.experts.1.w2.weight" in checkpoint.tensors
    (bound,) = arch.bind(arch.stacks_of(checkpoint.config), checkpoint.tensors, checkpoint.config)
    assert [param.name for param in bound.scale[0]] == [
        f"model.layers.0.block_sparse_moe.experts.{expert}.w2.weight" for expert in (0, 1)
    ]


def test_unknown_architecture_keeps_its_names_and_is_refused_by_the_table(write: Write) -> None:
    raw = gguf_file([string("general.architecture", "rwkv6")], [floats("blk.0.ffn_norm.weight", [1])])
    checkpoint = GGUFCheckpoint(write(raw), name="x")
    assert list(checkpoint.tensors) == ["blk.0.ffn_norm.weight"]
    assert checkpoint.config == {"model_type": "rwkv6"}
    with pytest.raises(UnknownArchitecture, match="rwkv6"):
        arch.stacks_of(checkpoint.config)


def test_unknown_type_is_listed_and_refused_only_when_read(write: Write) -> None:
    raw = gguf_file(llama(), [("future", (5,), 99, b"x" * 40), floats("b", [2])])
    checkpoint = GGUFCheckpoint(write(raw), name="x")
    assert dict(checkpoint.read(["b"]))["b"].tolist() == [2]
    assert (checkpoint.tensors["future"].dtype, checkpoint.tensors["future"].nbytes) == ("type 99", 64)
    with pytest.raises(BadFile, match=r"model\.gguf: future: is stored as ggml type 99, which is not known"):
        list(checkpoint.read(["future"]))


def test_type_without_dequantizer(write: Write) -> None:
    checkpoint = GGUFCheckpoint(write(gguf_file(llama(), [("q", (32,), 9, b"\1" * 40)])), name="x")
    with pytest.raises(BadFile, match=r"q: the gguf package cannot dequantize Q8_1; run: pip install -U gguf"):
        list(checkpoint.read(["q"]))


def test_missing_gguf_package(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = gguf_file(llama(), [("q", (32,), 8, b"\1" * 34), floats("b", [2])])
    monkeypatch.setitem(sys.modules, "gguf", None)
    checkpoint = GGUFCheckpoint(write(raw), name="x")
    assert dict(checkpoint.read(["b"]))["b"].tolist() == [2]
    with pytest.raises(MissingExtra, match=r"reading Q8_0 values needs gguf.*pip install \."):
        list(checkpoint.read(["q"]))


def test_floats_need_neither_gguf_nor_torch(write: Write) -> None:
    path = write(gguf_file(llama(), [floats("b", [2])]))
    code = (
        "import sys; from outlierlens.checkpoints import open_checkpoint\n"
        f"print([v.tolist() for _, v in open_checkpoint({str(path)!r}).read(['b'])],"
        " {'gguf', 'torch', 'transformers', 'scipy', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[[2.0]] set()"


def test_infinite_scale_is_passed_on_without_a_warning(write: Write) -> None:
    block = struct.pack("<H", 0x7C00) + bytes(range(32))  # half-float infinity times 0 and times 1
    checkpoint = GGUFCheckpoint(write(gguf_file(llama(), [("q", (32,), 8, block)])), name="x")
    values = dict(checkpoint.read(["q"]))["q"]
    assert math.isnan(values[0])
    assert math.isinf(values[1])


def test_file_that_shrinks_after_opening(write: Write) -> None:
    raw = gguf_file(llama(), [floats("b", [1] * 64)])
    checkpoint = GGUFCheckpoint(write(raw), name="x")
    write(raw[:-100])
    with pytest.raises(BadFile, match="b: the file became shorter while it was read"):
        list(checkpoint.read(["b"]))


def test_a_tokenizer_of_half_a_million_strings_is_stepped_over_quickly(write: Write) -> None:
    n = 500_000  # a vocabulary and merges as large as the largest
    raw = gguf_file(
        [*llama(), array("t.tokens", STRING, n, text("abcde") * n), array("t.scores", F32, n, b"\0" * 4 * n)],
        [floats("b", [2])],
    )
    path = write(raw)
    start = time.process_time()
    header = read_header(path)
    assert time.process_time() - start < 1.0  # 0.1 s on a quiet machine
    assert "t.tokens" not in header.metadata
    tracemalloc.start()
    read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


GOOD = floats("b", [1.0])
ENDLESS = 2**64 - 1
_INFO = info("b", (1,), 0, 0)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes is too short for a GGUF file"),
    "magic only": (b"GGUF\3\0\0\0", "8 bytes is too short"),
    "other magic": (b"GGML" + bytes(40), "begins with b'GGML', not with b'GGUF'"),
    "version 1": (gguf_file([], [GOOD], version=1), "is GGUF version 1; versions 2 and 3 are read"),
    "version 4": (gguf_file([], [GOOD], version=4), "is GGUF version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + bytes(40), "is a big-endian GGUF file"),
    "no tensors": (gguf_file(llama(), []), "holds no tensors"),
    "endless tensors": (gguf_file([], [GOOD], counts=(ENDLESS, None)), f"claims {ENDLESS:,} tensors, at most"),
    "endless metadata": (
        gguf_file([], [GOOD], counts=(None, ENDLESS)),
        f"claims {ENDLESS:,} metadata entries, at most",
    ),
    "more tensors than there are": (
        gguf_file([], [GOOD], counts=(2, None)),
        "tensor '' claims 4,161,536 dimensions",  # 1.0 read as the second tensor's rank
    ),
    "key past the end": (
        gguf_file([], [GOOD], counts=(None, 1), infos=struct.pack("<Q", 5_000) + bytes(40)),
        r"the key of metadata entry 0 needs 5,000 bytes at byte 32, the file ends at",
    ),
    "endless key": (
        gguf_file([], [GOOD], counts=(None, 1), infos=struct.pack("<Q", ENDLESS) + bytes(40)),
        f"the key of metadata entry 0 claims {ENDLESS:,} bytes",
    ),
    "key not UTF-8": (gguf_file([], [GOOD], counts=(None, 1), infos=text(b"\xff\xfe") + bytes(40)), "is not UTF-8"),
    "repeated key": (gguf_file([number("a", 1), number("a", 1)], [GOOD]), "metadata key 'a' stands there twice"),
    "string past the end": (
        gguf_file([("a", STRING, struct.pack("<Q", ENDLESS))], [GOOD]),
        f"the text of metadata 'a' needs {ENDLESS:,} bytes",
    ),
    "unknown value type": (gguf_file([("a", 13, b"\0" * 8)], [GOOD]), "metadata 'a' has the unknown type 13"),
    "bool of 2": (gguf_file([("a", BOOL, b"\2")], [GOOD]), "metadata 'a' is a bool of value 2"),
    "endless array of bytes": (
        gguf_file([array("a", 0, ENDLESS, b"")], [GOOD]),
        f"metadata 'a', an array of {ENDLESS:,} items, needs {ENDLESS:,} bytes",
    ),
    "endless array of strings": (
        gguf_file([array("a", STRING, 2**61, b"")], [GOOD]),
        f"claims {2**61:,} strings in metadata 'a', at most",
    ),
    "strings past the end": (
        gguf_file([array("a", STRING, 3, text("x") + struct.pack("<Q", ENDLESS) + bytes(40))], [GOOD]),
        "the 3 strings of metadata 'a' run past the end of the file",
    ),
    "strings that end between two": (
        gguf_file([array("a", STRING, 3, text("") + struct.pack("<Q", 130))], [floats("b", [1.0] * 12)]),
        "the 3 strings of metadata 'a' run past the end of the file",
    ),
    "array of arrays": (
        gguf_file([array("a", ARRAY, 1, struct.pack("<IQ", ARRAY, 1) * 10)], [GOOD]),
        "metadata 'a' is an array of arrays",
    ),
    "array of an unknown type": (
        gguf_file([array("a", 77, 2**62, b"")], [GOOD]),
        "'a' has items of the unknown type 77",
    ),
    "alignment 0": (gguf_file([number("general.alignment", 0)], [GOOD]), "general.alignment is 0, not a power of two"),
    "alignment 48": (
        gguf_file([number("general.alignment", 48)], [GOOD]),
        "general.alignment is 48, not a power of two",
    ),
    "alignment as text": (gguf_file([string("general.alignment", "32")], [GOOD]), "general.alignment is '32'"),
    "alignment beyond the file": (
        gguf_file([number("general.alignment", 2**31)], [GOOD]),
        r"tensor 'b' \(F32\[1\]\) lies outside the file: 4 bytes at byte 2,147,483,648",
    ),
    "repeated tensor": (
        gguf_file([], [GOOD, GOOD], infos=_INFO + info("b", (1,), 0, 32)),
        "tensor 'b' stands there twice",
    ),
    "rank 5": (gguf_file([], [("b", (1,) * 5, 0, b"\0" * 4)]), "tensor 'b' claims 5 dimensions, more than 4"),
    "endless rank": (
        gguf_file([], [GOOD], infos=text("b") + struct.pack("<I", 2**32 - 1) + bytes(40)),
        "tensor 'b' claims 4,294,967,295 dimensions",
    ),
    "dimension of 0": (gguf_file([], [GOOD], infos=info("b", (4, 0), 0, 0)), r"impossible shape \[0, 4\]"),
    "dimensions overflow": (
        gguf_file([], [GOOD], infos=info("b", (2**33, 2**31), 0, 0)),
        "'b' has the impossible shape",
    ),
    "dimensions wrap to 4": (
        gguf_file([], [GOOD], infos=info("b", (2**62 + 1, 4), 0, 0)),
        "'b' has the impossible shape",
    ),
    "tensor of a terabyte": (
        gguf_file([], [GOOD], infos=info("b", (2**38,), 0, 0)),
        r"tensor 'b' \(F32\[274877906944\]\) lies outside the file: 1,099,511,627,776 bytes",
    ),
    "offset past the end": (gguf_file([], [GOOD], infos=info("b", (1,), 0, 2**63)), "'b' .* lies outside the file"),
    "unknown type past the end": (
        gguf_file([], [GOOD], infos=info("b", (1,), 99, 2**63)),
        r"'b' \(type 99\[1\]\) lies outside",
    ),
    "offset not aligned": (gguf_file([], [GOOD], infos=info("b", (1,), 0, 4)), "'b' has offset 4, not aligned to 32"),
    "overlap": (
        gguf_file([], [floats("a", [1.0] * 16), GOOD], infos=info("a", (16,), 0, 0) + info("b", (1,), 0, 32)),
        "tensor 'a' overlaps 'b'",
    ),
    "same place": (gguf_file([], [GOOD, GOOD], infos=_INFO + info("c", (1,), 0, 0)), "tensor 'b' overlaps 'c'"),
    "half a block": (
        gguf_file([], [("b", (40,), 8, b"\0" * 68)]),
        "rows of 40 values, no multiple of Q8_0's blocks of 32",
    ),
    "block without rows": (gguf_file([], [("b", (), 8, b"\0" * 68)]), "rows of 1 values, no multiple of Q8_0's blocks"),
    "two names for one": (
        gguf_file(llama(), [floats("output_norm.weight", [1]), floats("model.norm.weight", [1])]),
        "tensor 'model.norm.weight' and another are both 'model.norm.weight'",
    ),
    "vector for a linear": (
        gguf_file([string("general.architecture", "gpt2")], [floats("blk.0.ffn_down.weight", [1])]),
        r"'blk.0.ffn_down.weight' has shape \[1\], not that of a linear",
    ),
    "architecture is a number": (gguf_file([number("general.architecture", 7)], [GOOD]), "general.architecture is 7"),
    "layers are text": (
        gguf_file([llama()[0], string("llama.block_count", "30")], [GOOD]),
        "metadata llama.block_count is '30', not of type int",
    ),
    "one part of several": (
        gguf_file([("split.count", 2, struct.pack("<H", 3))], [GOOD]),
        "is one part of a model in 3 files; merge them",
    ),
    "line breaks in a name": (
        gguf_file([], [GOOD, GOOD], infos=info("x\n\r" * 999, (1,), 0, 0) + info("x\n\r" * 999, (1,), 0, 32)),
        r"tensor 'x\\n\\rx.*\.\.\. stands there twice",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file(name: str, write: Write) -> None:
    raw, message = HOSTILE[name]
    path = write(raw)
    error, seconds, peak = refusal(path)
    assert re.search(message, error)
    assert error.startswith(f"{path}: ")
    assert "\n" not in error
    assert len(error) < 400 + len(str(path))
    assert seconds < 0.5
    assert peak < 200_000


def refusal(path: Path) -> tuple[str, float, int]:
    """(message of the BadFile, seconds, bytes allocated at most) of opening a hostile file."""
    tracemalloc.start()
    start = time.process_time()
    try:
        GGUFCheckpoint(path, name="x")
    except BadFile as error:
        return str(error), time.process_time() - start, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    raise AssertionError("the file was accepted")


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("MAX_STRINGS", "claims 3 strings in metadata 'b', at most 2 can be"),  # 'a' has used three of five
        ("MAX_ENTRIES", "claims 6 metadata entries, at most 5 can be"),
        ("MAX_TENSORS", "claims 6 tensors, at most 5 can be"),
    ],
)
def test_more_than_any_model_has(limit: str, message: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    strings = [array(key, STRING, 3, text("x") * 3) for key in "ab"]
    path = write(gguf_file([*strings, *(number(key, 1) for key in "cdef")], [floats(f"t{n}", [n]) for n in range(6)]))
    assert len(read_header(path).tensors) == 6
    monkeypatch.setattr(f"outlierlens.checkpoints.gguf.{limit}", 5)
    with pytest.raises(BadFile, match=message):
        read_header(path)


def _sound() -> bytes:
    return gguf_file(
        [
            *llama(),
            number("llama.embedding_length", 4),
            number("general.alignment", 32),
            ("llama.rope.freq_base", F32, struct.pack("<f", 1e4)),
            ("flag", BOOL, b"\1"),
            ("big", U64, struct.pack("<Q", 3)),
            array("t.tokens", STRING, 4, text("a") + text("bc") + text("") + text("é")),
            array("t.scores", F32, 4, bytes(16)),
        ],
        [
            floats("blk.0.ffn_down.weight", np.ones((4, 3))),
            ("token_embd.weight", (32, 2), 8, bytes(range(68))),
            ("output.weight", (32, 2), 3, bytes(range(40))),
            ("half", (8,), 1, bytes(range(16))),
        ],
    )


SOUND = _sound()


def test_the_file_that_is_broken_below_is_sound(write: Write) -> None:
    checkpoint = GGUFCheckpoint(write(SOUND), name="x")
    assert [array.shape for _, array in checkpoint.read(checkpoint.tensors)] == [(4, 3), (2, 32), (2, 32), (8,)]


@settings(max_examples=400)
@given(
    flips=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=4),
    length=st.one_of(st.just(len(SOUND)), st.integers(0, len(SOUND))),
)
def test_a_damaged_file_is_read_or_refused(
    flips: list[tuple[int, int]], length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = bytearray(SOUND)
    for position, byte in flips:
        raw[position] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(raw[:length])
    try:
        with GGUFCheckpoint(path, name="x") as checkpoint:
            for name, values in checkpoint.read(checkpoint.tensors):
                assert values.shape == checkpoint.tensors[name].shape
            assert checkpoint.bytes_read <= checkpoint.total_bytes == length
    except OutlierlensError:
        return


def test_every_truncation_is_refused(write: Write) -> None:
    # The last tensor ends 16 bytes before the file: padding alone may be missing.
    for length in range(len(SOUND) - 16):
        with pytest.raises(BadFile):
            GGUFCheckpoint(write(SOUND[:length]), name="x")


@pytest.mark.real
def test_outliers_of_a_real_model(sample: Any) -> None:
    with open_checkpoint(sample("smollm2-135m")) as checkpoint:
        (bound,) = arch.bind(arch.stacks_of(checkpoint.config), checkpoint.tensors, checkpoint.config)
        names = [param.name for (param,) in bound.scale]
        values = dict(checkpoint.read(names))
        norms = np.stack([np.linalg.norm(values[name].astype(np.float64), axis=1) for name in names])  # [layer, dim]
        assert checkpoint.notes == ("values are dequantized from Q4_1",)
        assert checkpoint.bytes_read < 0.2 * checkpoint.total_bytes
    assert norms.shape == (30, 576)
    z = (norms - norms.mean(axis=1, keepdims=True)) / norms.std(axis=1, keepdims=True)
    assert np.flatnonzero((np.abs(z) >= 3).sum(axis=0) >= 15).tolist() == [100, 247, 507]
