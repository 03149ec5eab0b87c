"""ONNX files: names and layouts as torch has them, dequantized values, and no way out of the folder."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_files import ONE_NODE, initializer, save
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.onnx import OnnxCheckpoint
from outlierlens.errors import BadFile

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - only where onnx is installed

IN_OUT = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32)  # two inputs, three outputs


def opened(path: Path) -> OnnxCheckpoint:
    return OnnxCheckpoint(path, name="m", config={"model_type": "distilbert"})


def read_all(path: Path) -> dict[str, np.ndarray]:
    with opened(path) as checkpoint:
        values = dict(checkpoint.read(checkpoint.tensors))
        assert {name: array.shape for name, array in values.items()} == {
            name: info.shape for name, info in checkpoint.tensors.items()
        }
        assert all(array.dtype == np.float32 for array in values.values())
        return values


def refused(path: Path) -> str:
    with pytest.raises(BadFile) as caught:
        opened(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


# --- names and layouts -------------------------------------------------------------------------------------------


def test_named_tensors_keep_their_names_and_anonymous_linears_get_theirs(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        [
            helper.make_node(
                "LayerNormalization",
                ["x", "m.layer.0.norm.weight", "m.layer.0.norm.bias"],
                ["h"],
                name="/m/layer.0/norm/LN",
            ),
            helper.make_node("MatMul", ["h", "onnx::MatMul_753"], ["a"], name="/m/layer.0/ffn/lin1/MatMul"),
            helper.make_node("Gemm", ["a", "onnx::Gemm_9"], ["b"], name="/m/pooler/Gemm", transB=1),
            helper.make_node("Gemm", ["b", "onnx::Gemm_10"], ["c"], name="/m/head/Gemm"),
            helper.make_node("MatMul", ["c", "m.kept.weight"], ["d"], name="/m/kept/MatMul"),
            helper.make_node("MatMul", ["d", "d"], ["y"], name="/m/attention/MatMul"),
        ],
        [
            initializer("m.layer.0.norm.weight", [1, 2]),
            initializer("m.layer.0.norm.bias", [3, 4]),
            initializer("onnx::MatMul_753", IN_OUT),
            initializer("onnx::Gemm_9", IN_OUT),
            initializer("onnx::Gemm_10", IN_OUT),
            initializer("m.kept.weight", IN_OUT),
        ],
    )
    values = read_all(path)
    assert set(values) == {
        "m.layer.0.norm.weight", "m.layer.0.norm.bias", "m.layer.0.ffn.lin1.weight", "m.pooler.weight", "m.head.weight",
        "m.kept.weight",
    }  # fmt: skip
    assert values["m.layer.0.norm.weight"].tolist() == [1, 2]
    assert values["m.layer.0.ffn.lin1.weight"].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert values["m.pooler.weight"].tolist() == IN_OUT.tolist()
    assert values["m.head.weight"].tolist() == IN_OUT.T.tolist()
    assert values["m.kept.weight"].tolist() == IN_OUT.tolist()


def test_a_weight_used_by_two_modules_appears_under_both_names(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "onnx::MatMul_1"], ["a"], name="/m/q/MatMul"),
        helper.make_node(
            "MatMul", ["a", "onnx::MatMul_1"], ["b"], name="/m/m.0/layer.1/k/MatMul_1"
        ),  # m is a Sequential
    ]
    values = read_all(save(tmp_path / "m.onnx", nodes, [initializer("onnx::MatMul_1", IN_OUT)]))
    assert list(values) == ["m.q.weight", "m.0.layer.1.k.weight"]
    assert values["m.0.layer.1.k.weight"].tolist() == IN_OUT.T.tolist()


def test_equal_tensors_that_the_exporter_merged_are_found_by_identity_nodes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["m.layer.0.norm.weight"], ["m.layer.1.norm.weight"], name="Identity_0"),
        *ONE_NODE,
    ]
    values = read_all(save(tmp_path / "m.onnx", nodes, [initializer("m.layer.0.norm.weight", [5, 6])]))
    assert values["m.layer.1.norm.weight"].tolist() == values["m.layer.0.norm.weight"].tolist() == [5, 6]


def test_weights_in_constant_nodes_count_and_shape_constants_do_not(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["/m/Constant_output_0"], value=initializer("", [2, 3], np.int64)),
        helper.make_node("Constant", [], ["/m/lin/Constant_output_0"], value=initializer("", IN_OUT)),
        helper.make_node("MatMul", ["x", "/m/lin/Constant_output_0"], ["y"], name="/m/lin/MatMul"),
    ]
    values = read_all(save(tmp_path / "m.onnx", nodes, []))
    assert {name: array.tolist() for name, array in values.items()} == {"m.lin.weight": IN_OUT.T.tolist()}


def test_typed_fields_and_half_floats_are_widened(tmp_path: Path) -> None:
    bfloat16 = TensorProto(name="b", data_type=TensorProto.BFLOAT16, dims=[2], int32_data=[0x3FC0, 0xC010])
    float16 = TensorProto(name="h", data_type=TensorProto.FLOAT16, dims=[1], raw_data=np.float16([0.5]).tobytes())
    typed = TensorProto(name="f", data_type=TensorProto.FLOAT, dims=[2], float_data=[1.25, -8])
    values = read_all(save(tmp_path / "m.onnx", ONE_NODE, [bfloat16, float16, typed]))
    assert {name: array.tolist() for name, array in values.items()} == {"b": [1.5, -2.25], "h": [0.5], "f": [1.25, -8]}


# --- quantized ---------------------------------------------------------------------------------------------------


def test_dequantized_by_hand_one_scale_and_one_scale_a_column(tmp_path: Path) -> None:
    int8 = np.array([[1, -2, 3], [4, 5, -6]], dtype=np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["m.emb.weight_quantized", "s", "z"], ["e"], name="dq0"),
        helper.make_node("DequantizeLinear", ["onnx::MatMul_7_quantized", "s3", "z3"], ["w"], name="dq1", axis=1),
        helper.make_node("QuantizeLinear", ["x", "act_scale", "act_zero"], ["xq"], name="q"),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="/m/lin/MatMul"),
    ]
    stored = [
        initializer("m.emb.weight_quantized", int8, np.int8),
        initializer("s", 0.5),
        initializer("z", 1, np.int8),
        initializer("onnx::MatMul_7_quantized", int8, np.int8),
        initializer("s3", [1, 10, 100]),
        initializer("z3", [0, 0, 1], np.int8),
        initializer("act_scale", 0.1),
        initializer("act_zero", 0, np.int8),
    ]
    values = read_all(save(tmp_path / "m.onnx", nodes, stored))
    assert set(values) == {"m.emb.weight", "m.lin.weight"}
    assert values["m.emb.weight"].tolist() == [[0, -1.5, 1], [1.5, 2, -3.5]]
    # (q - z) * s a column, then [in, out] -> [out, in]
    assert values["m.lin.weight"].tolist() == [[1, 4], [-20, 50], [200, -700]]


def test_weights_of_dynamic_quantization_find_their_scale_by_name(tmp_path: Path) -> None:
    name = "onnx::MatMul_7"
    nodes = [
        helper.make_node(
            "MatMulInteger",
            ["xq", f"{name}_quantized", "xz", f"{name}_zero_point"],
            ["y"],
            name="/m/layer.3/lin/MatMul_quant",
        )
    ]
    stored = [
        initializer(f"{name}_quantized", [[130, 127], [128, 129]], np.uint8),
        initializer(f"{name}_zero_point", 128, np.uint8),
        initializer(f"{name}_scale", 0.25),
    ]
    values = read_all(save(tmp_path / "m.onnx", nodes, stored))
    assert {key: array.tolist() for key, array in values.items()} == {"m.layer.3.lin.weight": [[0.5, 0], [-0.25, 0.25]]}


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 5), st.sampled_from(["tensor", "axis", "block"]), st.data())
def test_dequantized_as_the_reference_evaluator_does(rows: int, columns: int, way: str, data: st.DataObject) -> None:
    from tempfile import TemporaryDirectory

    from onnx.reference import ReferenceEvaluator

    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    axis = data.draw(st.sampled_from([0, 1, -1, -2]))
    block = data.draw(st.integers(1, 4)) if way == "block" else 0
    shape = [rows, columns]
    if way == "block":
        shape[axis] *= block  # the evaluator demands whole blocks
    quantized = generator.integers(-128, 128, shape, dtype=np.int8)
    scale_shape = {"tensor": [], "axis": [shape[axis]], "block": [rows, columns]}[way]
    node = helper.make_node("DequantizeLinear", ["w_quantized", "s", "z"], ["w"], axis=axis, block_size=block)
    stored = [
        numpy_helper.from_array(quantized, "w_quantized"),
        numpy_helper.from_array(np.asarray(generator.uniform(0.01, 3, scale_shape), dtype=np.float32), "s"),
        numpy_helper.from_array(np.asarray(generator.integers(-5, 6, scale_shape), dtype=np.int8), "z"),
    ]
    output = helper.make_tensor_value_info("w", TensorProto.FLOAT, shape)
    model = helper.make_model(
        helper.make_graph([node], "g", [], [output], initializer=stored), opset_imports=[helper.make_opsetid("", 21)]
    )
    (expected,) = ReferenceEvaluator(model).run(None, {})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(model.SerializeToString())
        np.testing.assert_array_equal(read_all(path)["w"], expected)


# --- external data -----------------------------------------------------------------------------------------------


def external(location: str, name: str = "m.norm.weight", dims: tuple[int, ...] = (3,), **more: object) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_external_data_beside_the_model_is_read_at_its_offset(tmp_path: Path) -> None:
    (tmp_path / "m.onnx_data").write_bytes(np.arange(10, dtype="<f4").tobytes())
    path = save(tmp_path / "m.onnx", ONE_NODE, [external("m.onnx_data", offset=8, length=12)])
    with opened(path) as checkpoint:
        before = checkpoint.bytes_read
        assert checkpoint.total_bytes == path.stat().st_size + 40
        assert before == path.stat().st_size
        assert dict(checkpoint.read(["m.norm.weight"]))["m.norm.weight"].tolist() == [2, 3, 4]
        assert checkpoint.bytes_read - before == 12


@pytest.mark.parametrize("location", ["../secret", "a/../../secret", "/etc/passwd", "C:\\secret", "..\\secret", ""])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(12))
    (tmp_path / "model" / "a").mkdir(parents=True)
    assert "outside the model's folder; refused" in refused(
        save(tmp_path / "model" / "m.onnx", ONE_NODE, [external(location)])
    )


def test_external_data_through_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(12))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "data").symlink_to(tmp_path / "secret")
    message = refused(save(tmp_path / "model" / "m.onnx", ONE_NODE, [external("data")]))
    assert "'data', a link out of the model's folder" in message


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (external("missing"), "needs the external data 'missing', which is missing"),
        (external("data", offset=32), "declared as bytes 32 to 44 of 'data', which has 40"),
        (external("data", offset=-4), "declared as bytes -4 to 8"),
        (external("data", length=40), "needs 12 bytes"),
        (external("data", dims=(10**9, 10**9)), "needs 4,000,000,000,000,000,000 bytes"),
        (external("data", offset="x"), "offset or length of its external data is no number"),
        (external("."), "which is missing"),
    ],
)
def test_external_data_that_does_not_fit_is_refused(tmp_path: Path, tensor: TensorProto, expected: str) -> None:
    (tmp_path / "data").write_bytes(bytes(40))
    assert expected in refused(save(tmp_path / "m.onnx", ONE_NODE, [tensor]))


# --- hostile and broken files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (
            TensorProto(name="w", data_type=1, dims=[10**6, 10**6], raw_data=bytes(16)),
            "bytes, but holds 16; truncated?",
        ),
        (TensorProto(name="w", data_type=1, dims=[4], raw_data=bytes(15)), "16 bytes, but holds 15"),
        (TensorProto(name="w", data_type=1, dims=[3], float_data=[1, 2]), "12 bytes, but holds 8"),
        (TensorProto(name="w", data_type=1, dims=[-1, -4], raw_data=bytes(16)), "declares the shape [-1, -4]"),
        (TensorProto(name="w", data_type=1, dims=[1] * 9, raw_data=bytes(4)), "declares the shape"),
    ],
)
def test_shapes_that_the_bytes_do_not_bear_out_are_refused(tmp_path: Path, tensor: TensorProto, expected: str) -> None:
    message = refused(save(tmp_path / "m.onnx", ONE_NODE, [tensor]))
    assert "tensor 'w'" in message
    assert expected in message


@pytest.mark.parametrize("raw", [b"", b"\xff" * 50, b"\x0a\xff\xff\xff\xff\x0f", b"GGUF", b"\x3a" * 100_000])
def test_what_is_no_onnx_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(raw)
    assert "export or fetch it again" in refused(path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", ONE_NODE, [initializer("w", np.ones(1000))])
    path.write_bytes(path.read_bytes()[:-500])
    assert "not a readable ONNX file" in refused(path)


def test_a_file_beyond_protobuf_s_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # sparse: takes no space
    assert "more than an ONNX file can have" in refused(path)


def test_a_tensor_stored_twice_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", ONE_NODE, [initializer("w", [1]), initializer("w", [2])])
    assert "tensor 'w' is stored twice" in refused(path)


def test_a_scale_that_is_not_stored_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("DequantizeLinear", ["w_quantized", "s"], ["w"])]
    path = save(tmp_path / "m.onnx", nodes, [initializer("w_quantized", [1], np.int8)])
    assert "scale or zero point 's' of 'w_quantized' is not stored" in refused(path)


@pytest.mark.parametrize("axis", [0, 1, 7, -9])
def test_scales_that_do_not_fit_fail_when_the_tensor_is_asked_for(tmp_path: Path, axis: int) -> None:
    nodes = [helper.make_node("DequantizeLinear", ["w_quantized", "s"], ["w"], axis=axis)]
    stored = [initializer("w_quantized", [[1, 2], [3, 4]], np.int8), initializer("s", [1, 2, 3])]
    with (
        opened(save(tmp_path / "m.onnx", nodes, stored)) as checkpoint,
        pytest.raises(BadFile, match=r"scales of shape \(3,\) do not fit values of shape \(2, 2\)"),
    ):
        dict(checkpoint.read(["w"]))


def test_a_type_that_cannot_be_read_fails_only_when_asked_for(tmp_path: Path) -> None:
    packed = TensorProto(name="int4", data_type=TensorProto.INT4, dims=[4], raw_data=bytes(2))
    with opened(save(tmp_path / "m.onnx", ONE_NODE, [packed, initializer("w", [1])])) as checkpoint:
        assert dict(checkpoint.read(["w"]))["w"].tolist() == [1]
        with pytest.raises(BadFile, match="int4: cannot read type INT4; known types: FLOAT"):
            dict(checkpoint.read(["int4"]))


# --- the family --------------------------------------------------------------------------------------------------


def test_a_config_beside_the_file_is_believed(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", ONE_NODE, [initializer("bert.a.weight", [1])])
    (tmp_path / "config.json").write_text('{"model_type": "distilbert"}')
    with open_checkpoint(str(tmp_path)) as checkpoint:
        assert (checkpoint.kind, checkpoint.config, checkpoint.notes) == ("onnx", {"model_type": "distilbert"}, ())
