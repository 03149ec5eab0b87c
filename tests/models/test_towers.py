"""Models of texts and pictures: texts have the loss of the language tower, pictures run the vision tower by itself."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch.nn import functional

import media_models as made
from outlierlens import ablate, attention, geometry, observe, range_of, sweep, trace
from outlierlens.analyses.ablate import AblateOptions
from outlierlens.data.media import read_items
from outlierlens.data.media.read import ItemOptions
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.tasks.choice import make_task

TEXTS = Texts("six", tuple(" ".join(f"w{(7 * i + j) % 9}" for j in range(8 + i)) for i in range(6)))
VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
    "patch_size": 14,
}  # fmt: skip
TEXT = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
PICTURE = {"size": {"height": 56, "width": 56}, "image_mean": [0.5] * 3, "image_std": [0.1] * 3}


def llava() -> Any:
    vision, text = hf.CLIPVisionConfig(**VISION), hf.LlamaConfig(**TEXT)
    config = hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=39)
    return hf.LlavaForConditionalGeneration(config), hf.SiglipImageProcessorPil(**PICTURE)


def gemma3() -> Any:
    config = hf.Gemma3Config(
        text_config={**TEXT, "head_dim": 8, "sliding_window": 4}, vision_config=VISION, mm_tokens_per_image=4,
        image_token_index=39, boi_token_index=38, eoi_token_index=37,
    )  # fmt: skip
    return hf.Gemma3ForConditionalGeneration(config), hf.SiglipImageProcessorPil(**PICTURE)


def paligemma() -> Any:
    config = hf.PaliGemmaConfig(
        text_config={**TEXT, "model_type": "gemma", "head_dim": 8},
        vision_config={**VISION, "model_type": "siglip_vision_model", "projection_dim": 32}, image_token_index=39,
        projection_dim=32, hidden_size=32,
    )  # fmt: skip
    return hf.PaliGemmaForConditionalGeneration(config), hf.SiglipImageProcessorPil(**PICTURE)


def qwen2_vl() -> Any:
    config = hf.Qwen2VLConfig(
        text_config={**TEXT, "rope_parameters": ROPE}, image_token_id=39, vision_start_token_id=38, vision_end_token_id=37,
        vision_config={"embed_dim": 32, "hidden_size": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14},
    )  # fmt: skip
    processor = hf.Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=3136, patch_size=14, merge_size=2)
    return hf.Qwen2VLForConditionalGeneration(config), processor


def blip2() -> Any:
    text = {name: value for name, value in TEXT.items() if name not in ("intermediate_size", "num_key_value_heads")}
    config = hf.Blip2Config(
        text_config={**text, "model_type": "opt", "ffn_dim": 32, "word_embed_proj_dim": 32}, vision_config=VISION,
        qformer_config={**VISION, "encoder_hidden_size": 32, "vocab_size": 40}, num_query_tokens=4, image_token_index=39,
    )  # fmt: skip
    return hf.Blip2ForConditionalGeneration(config), hf.SiglipImageProcessorPil(**PICTURE)


def onevision() -> Any:
    config = hf.LlavaOnevisionConfig(
        text_config={**TEXT, "model_type": "qwen2"}, image_token_index=39, video_token_index=38,
        vision_config={**VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
        image_grid_pinpoints=[[56, 56], [56, 112]],
    )  # fmt: skip
    processor = hf.LlavaOnevisionImageProcessorPil(**PICTURE, image_grid_pinpoints=[[56, 56], [56, 112]])
    return hf.LlavaOnevisionForConditionalGeneration(config), processor


def idefics3() -> Any:
    config = hf.Idefics3Config(
        text_config={**TEXT, "model_type": "llama"},
        vision_config=VISION,
        scale_factor=2,
        image_token_id=39,
        pad_token_id=0,
    )
    longest = {"longest_edge": 56}
    return hf.Idefics3ForConditionalGeneration(config), hf.Idefics3ImageProcessorPil(
        size=longest, max_image_size=longest
    )


def clip() -> Any:
    text = {name: TEXT[name] for name in TEXT if name != "num_key_value_heads"}
    return hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=VISION)), hf.SiglipImageProcessorPil(**PICTURE)


@pytest.fixture(scope="module")
def tower(words: Any) -> Callable[[Callable[[], Any]], LoadedModel]:
    known: dict[str, LoadedModel] = {}

    def get(make: Callable[[], Any]) -> LoadedModel:
        name = make.__name__
        if name not in known:
            torch.manual_seed(0)
            model, processor = make()
            with torch.no_grad():
                for key, parameter in model.named_parameters():
                    if "norm" not in key:
                        parameter.normal_(0, 0.2)
            known[name] = from_objects(model.eval(), words(kind="causal"), processor=processor, name=name)
        return known[name]

    return get


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = made.write_photos(tmp_path_factory.mktemp("photos"), 5)
    return read_items("image", Path(folder), ItemOptions(labelled=False))


@pytest.mark.parametrize(("make", "head"), [
    (llava, "causal"), (gemma3, "causal"), (qwen2_vl, "causal"), (blip2, "causal"), (onevision, "causal"),
    (idefics3, "causal"), (paligemma, "other"), (clip, "none"),
])  # fmt: skip
def test_what_texts_are_measured_by_is_tried(tower: Any, make: Any, head: str) -> None:
    loaded = tower(make)  # PaliGemma looks both ways on text alone
    assert loaded.head == head
    streams = {"qwen2_vl": ["model"]}.get(make.__name__, ["text"])
    assert [stack.name for stack in loaded.text_stacks] == streams
    assert make_task(loaded, TEXTS).name == ("causal loss" if head == "causal" else "output change")


@pytest.mark.parametrize("make", [llava, blip2, qwen2_vl])
def test_texts_have_the_loss_of_the_language_tower(tower: Any, make: Any) -> None:
    loaded = tower(make)
    values, weights = make_task(loaded, TEXTS).per_text()
    words = loaded.model.language_model if make is blip2 else loaded.model
    by_hand = []
    for text in TEXTS:
        ids = torch.tensor([loaded.tokenizer(text, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            logits = words(input_ids=ids).logits
        by_hand.append(float(functional.cross_entropy(logits[0, :-1], ids[0, 1:])))
    assert values == pytest.approx(by_hand, rel=1e-4)
    assert weights.sum() == sum(len(loaded.tokenizer(text)["input_ids"]) - 1 for text in TEXTS)


@pytest.mark.parametrize("make", [llava, gemma3, blip2, qwen2_vl, paligemma])
def test_texts_alone_run_every_analysis_on_the_language_tower(tower: Any, make: Any) -> None:
    loaded = tower(make)
    stream = "model" if make is qwen2_vl else "text"
    assert [one.stack for one in observe(loaded, TEXTS).stacks] == [stream]
    assert {row.stack for row in range_of(loaded, TEXTS).tensors} == {stream}
    assert geometry(loaded, TEXTS, n_bootstrap=20).about.stack == stream
    assert attention(loaded, TEXTS, dims=(3,), n_random=1, n_bootstrap=20).about.stack == stream
    off = ablate(loaded, TEXTS, [3], AblateOptions(n_random=1, n_matched=0))
    swept = sweep(loaded, TEXTS, dims=(3,), n_random=1, n_matched=0, exact=True)
    assert (off.about.stack, swept.about.stack) == (stream, stream)  # the one that texts reach
    assert off.about.task == swept.about.task == ("output change" if make is paligemma else "causal loss")
    assert off.chosen.change.value != 0
    assert bool(off.replies) == (make is not paligemma)
    if make is blip2:
        notes = observe(loaded, TEXTS).notes
        assert "not observed: stream encoder, vision, which texts do not reach" in notes


@pytest.mark.parametrize("make", [llava, clip, onevision, idefics3, blip2])
def test_pictures_alone_run_the_vision_tower(tower: Any, photos: Any, make: Any) -> None:
    loaded = tower(make)
    found = ablate(loaded, photos, [3], AblateOptions(stack="vision", n_random=1, n_matched=0))
    assert (found.about.task, found.about.unit) == ("output change", "cosine distance")
    paths = dict.fromkeys((clip, blip2), "vision_model") | {idefics3: "model.vision_model"}
    vision = loaded.model.get_submodule(paths.get(make, "model.vision_tower"))
    by_hand = []
    for part in photos.parts:
        pixels = _pixels(loaded, part)
        with torch.no_grad():
            before = vision(pixels).last_hidden_state[0]
            with _off(loaded):
                after = vision(pixels).last_hidden_state[0]
        by_hand.append(float((1 - functional.cosine_similarity(before, after, dim=-1)).mean()))
    assert found.chosen.per_text == pytest.approx(by_hand, rel=1e-3, abs=1e-6)
    assert max(by_hand) > 1e-4
    assert [one.stack for one in observe(loaded, photos).stacks] == ["vision"]
    assert sweep(loaded, photos, dims=(3,), stack="vision", n_random=1, n_matched=0).effects[0].change.value > 0
    assert trace(loaded, photos, stack="vision", n_random=1).about.inputs == "images"
    tiles = any("the tiles that the processor would cut it into are not" in note for note in found.notes)
    assert tiles == (make in (onevision, idefics3))
    assert ablate(loaded, photos, [3], n_random=0, n_matched=0).about.stack == "vision"  # the one that they reach
    for call in (partial(attention, dims=(3,)), partial(ablate, dims=[3]), partial(sweep, dims=(3,)), observe):
        with pytest.raises(BadInput, match=r"images do not reach|these images do not reach it"):
            call(loaded, photos, stack="text")


def _off(loaded: LoadedModel) -> Any:
    from outlierlens.ablation.switches import zeroed_weights

    return zeroed_weights(loaded, [3], stack="vision")


def _pixels(loaded: LoadedModel, part: Any) -> torch.Tensor:
    from PIL import Image

    whole = {"do_image_splitting": False} if hasattr(loaded.processor, "do_image_splitting") else {}
    made = loaded.processor([Image.open(part.path).convert("RGB")], return_tensors="np", **whole)["pixel_values"]
    values = np.asarray(made)[0]
    return torch.from_numpy(values[0] if values.ndim == 4 else values)[None].float()


def test_pictures_without_a_vision_stream_are_refused_for_what_is_so(tower: Any, photos: Any) -> None:
    with pytest.raises(BadInput, match="reads images together with text alone: Qwen2VLModel wants token ids too"):
        observe(tower(qwen2_vl), photos)
