"""LayerScale: the factors behind a block's linears are a part of its last operation, and of the fingerprint."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from architectures import FAMILIES, build
from outlierlens.analyses.fingerprint_values import list_sensitive
from outlierlens.analyses.observe import observe
from outlierlens.analyses.scan import scan
from outlierlens.architectures import bound_stacks
from outlierlens.checkpoints import open_checkpoint
from outlierlens.data.media import read_items
from outlierlens.data.media.read import ItemOptions
from outlierlens.detection.activations import ObserveOptions
from outlierlens.errors import BadInput
from outlierlens.models.load import from_objects
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task


def test_files_that_call_it_otherwise_have_it_too(tmp_path: Path) -> None:
    """The hub's files of this type call blocks and scales by other names than the model does."""
    config = transformers.Tipsv2VisionConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, image_size=16, patch_size=4, n_register_tokens=1
    )
    torch.manual_seed(0)
    model: Any = transformers.Tipsv2VisionModel(config).float()
    with torch.no_grad():
        for block in model.encoder.layer:
            block.layer_scale2.lambda1.normal_()
            block.mlp.fc2.bias.normal_(std=0.1)
    model.save_pretrained(tmp_path)
    assert "blocks.1.ls2.gamma" in load_file(tmp_path / "model.safetensors")
    (found,) = scan(str(tmp_path)).stacks
    wanted = np.stack([
        (block.mlp.fc2.weight.norm(dim=1) * block.layer_scale2.lambda1.abs()).detach().double().numpy()
        for block in model.encoder.layer
    ])  # fmt: skip
    z = (wanted - wanted.mean(1, keepdims=True)) / wanted.std(1, keepdims=True)
    np.testing.assert_allclose(found.z_scale, z[:, list(found.map_dims)], atol=1e-4)


def planted(folder: Path) -> Any:
    """Dimension 3 is written strongly and scaled to nothing; 5 is strong by its factor alone."""
    model: Any = build(FAMILIES["dinov2"])
    with torch.no_grad():
        for block in model.encoder.layer:
            block.mlp.fc2.bias.normal_(std=0.1)
            block.layer_scale2.lambda1.fill_(0.5)
            block.mlp.fc2.weight[3] *= 40
            block.mlp.fc2.bias[3] = 4
            block.layer_scale2.lambda1[3] = 1e-3
            block.layer_scale2.lambda1[5] = -60.0
            block.mlp.fc2.bias[5] = 1.0
    model.save_pretrained(folder)
    return model


def test_what_is_measured_is_what_reaches_the_stream(tmp_path: Path) -> None:
    planted(tmp_path)
    found = scan(str(tmp_path)).stacks[0]
    assert found.site == "mlp.fc2 × layer_scale2.lambda1"
    assert found.dims == (5,)


def test_the_factors_are_sensitive_values(tmp_path: Path) -> None:
    planted(tmp_path)
    with open_checkpoint(str(tmp_path)) as checkpoint:
        entries = list_sensitive(checkpoint, bound_stacks(checkpoint), {})
    names = {entry.name for entry in entries if "lambda1" in entry.name}
    assert names == {f"encoder.layer.{layer}.layer_scale{part}.lambda1" for layer in range(3) for part in (1, 2)}


@pytest.mark.parametrize(("family", "is_read"), [("dinov2", True), ("vit", False)])
def test_a_picture_of_another_size_is_read_where_positions_are_interpolated(
    family: str, is_read: bool, tmp_path: Path
) -> None:
    from PIL import Image
    from transformers import ViTImageProcessor

    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (3, 40, 40, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    pictures = read_items("image", str(tmp_path), ItemOptions(labelled=False))
    processor = ViTImageProcessor(size={"height": 32, "width": 32})  # the config says 16
    loaded = from_objects(build(FAMILIES[family]), processor=processor)
    if is_read:
        assert observe(loaded, pictures).about.n_tokens == 3 * (1 + 4 * 4)
    else:
        with pytest.raises(BadInput, match="the image processor makes"):
            observe(loaded, pictures)


def test_pictures_of_several_shapes_share_no_batch(tmp_path: Path) -> None:
    from PIL import Image
    from transformers import BitImageProcessor

    sides = np.random.default_rng(0)
    for number, shape in enumerate([(40, 40, 3), (40, 60, 3), (60, 40, 3), (40, 40, 3)]):
        Image.fromarray(sides.integers(0, 255, shape, dtype=np.uint8)).save(tmp_path / f"{number}.png")
    processor = BitImageProcessor(size={"shortest_edge": 32}, do_center_crop=False)
    loaded = from_objects(build(FAMILIES["dinov2"]), processor=processor)
    pictures = read_items("image", str(tmp_path), ItemOptions(labelled=False))
    together, alone = (observe(loaded, pictures, ObserveOptions(batch_size=size)) for size in (4, 1))
    assert together.about.n_tokens == alone.about.n_tokens == 4 + 4 * 4 + 2 * 4 * 6 + 4 * 4
    np.testing.assert_allclose(together.stacks[0].view().mean, alone.stacks[0].view().mean, atol=1e-5)
    task = make_task(loaded, pictures, TaskOptions(batch_size=4))
    slots = [feed.slots for feed in task.feeds(task.texts)]
    assert sorted(map(sorted, slots)) == [[0, 3], [1], [2]]
