"""Tiny classifiers of pictures and of recordings that depend on dimensions planted in them, and data for them.

A red picture or a blue one; a low tone or a high one. `PLANTED` alone carries the answer, `INERT` has weights as extreme and
nothing to say.
"""

import io
import wave
from pathlib import Path

import numpy as np

WIDTH, LAYERS = 32, 3
SOURCE, PLANTED, INERT = 3, 11, 20
COLOURS, TONES = ("blue", "red"), ("high", "low")
RATE, SIDE = 1000, 16


def save_vit(folder, *, names=COLOURS, head=True, planted=True, seed=0):
    """A ViT in `folder` with its image processor: every MLP writes to PLANTED what attention gathered in SOURCE."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=8, image_size=SIDE, patch_size=4,
        id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)},
    )  # fmt: skip
    model = ViTForImageClassification(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layernorm" not in name:
                parameter.normal_(0, 0.02)
        projection = model.vit.embeddings.patch_embeddings.projection
        projection.weight[SOURCE] = torch.tensor([1.0, 0.0, -1.0])[:, None, None] / 16
        for layer in model.vit.layers:
            layer.layernorm_after.weight.add_(0.02 * torch.randn(WIDTH))
            layer.attention.v_proj.weight[SOURCE, SOURCE] = layer.attention.o_proj.weight[SOURCE, SOURCE] = 1.0
            layer.mlp.fc1.weight[0, SOURCE], layer.mlp.fc1.weight[1, SOURCE] = 1.0, -1.0
            if planted:
                layer.mlp.fc2.weight[PLANTED, 0], layer.mlp.fc2.weight[PLANTED, 1] = 2.0, -2.0
                layer.mlp.fc2.weight[INERT, 2:4] = 2.0
                layer.mlp.fc2.bias[[PLANTED, INERT]] = 0.5
        values = model.classifier.weight
        values.zero_()
        values[1, PLANTED], values[0, PLANTED] = 3.0, -3.0
        model.classifier.bias.zero_()
    processor = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    _centre(model, processor(list(pictures(60, seed=9)[0]), return_tensors="pt"))
    (model if head else model.vit).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def save_speech(folder, *, names=TONES, norm="layer", head=True, stable=False, seed=0):
    """A wav2vec2 in `folder` with its feature extractor: PLANTED is the low tone's strength minus the high one's."""
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForSequenceClassification

    torch.manual_seed(seed)
    config = Wav2Vec2Config(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=8, conv_dim=(8, 8),
        conv_kernel=(4, 2), conv_stride=(4, 2), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, classifier_proj_size=4, feat_extract_norm=norm, do_stable_layer_norm=stable,
        id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)},
    )  # fmt: skip
    model = Wav2Vec2ForSequenceClassification(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and "parametrizations" not in name:
                parameter.normal_(0, 0.02)
        first, second = (one.conv for one in model.wav2vec2.feature_extractor.conv_layers)
        low, high = torch.ones(4) / 4, torch.tensor([1.0, -1.0, 1.0, -1.0]) / 4
        for channel, kernel in enumerate((low, -low, high, -high)):
            first.weight[channel, 0] = kernel
            second.weight[channel, channel] = 0.5
        projection = model.wav2vec2.feature_projection.projection.weight
        projection[PLANTED, :4] = torch.tensor([1.0, 1.0, -1.0, -1.0])
        for layer in model.wav2vec2.encoder.layers:
            layer.final_layer_norm.weight.add_(0.02 * torch.randn(WIDTH))
            layer.final_layer_norm.bias.add_(0.02 * torch.randn(WIDTH))
            layer.final_layer_norm.weight[[PLANTED, INERT]] = 3.0
            layer.final_layer_norm.bias[[PLANTED, INERT]] = 1.0
        model.projector.weight.zero_()
        model.projector.weight[0, PLANTED] = 1.0
        model.classifier.weight.zero_()
        model.classifier.weight[1, 0], model.classifier.weight[0, 0] = 1.0, -1.0
        model.classifier.bias.zero_()
    extractor = Wav2Vec2FeatureExtractor(sampling_rate=RATE, return_attention_mask=norm == "layer")
    made = extractor(list(sounds(40, seed=9)[0]), sampling_rate=RATE, return_tensors="pt", padding=True)
    _centre(model, made)
    (model if head else model.wav2vec2).save_pretrained(folder)
    extractor.save_pretrained(folder)
    return folder


def _centre(model, inputs):
    """Half of these inputs are of each class, and the model is as sure as its wrong labels allow."""
    import torch

    with torch.no_grad():
        model.classifier.weight.div_(model(**inputs).logits.std())
        model.classifier.bias.sub_(model(**inputs).logits.median(0).values)


def pictures(n, *, seed):
    """(pixels uint8 [item, height, width, channel], label [item]): red is 1, blue 0; every tenth label is wrong."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(n) % 2)
    pixels = random.integers(60, 196, (n, SIDE, SIDE, 3))
    shift = np.where(labels == 1, 40, -40)[:, None, None]
    pixels[..., 0] += shift
    pixels[..., 2] -= shift
    return pixels.astype(np.uint8), _some_wrong(labels)


def sounds(n, *, seed, shortest=60, longest=120):
    """(recordings float32 [sample] of different lengths, label [item]): low is 1, high 0; every tenth label is wrong."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(n) % 2)
    made = []
    for label in labels:
        time = np.arange(random.integers(shortest, longest + 1)) / RATE
        tone = np.sin(
            2 * np.pi * (random.uniform(20, 60) if label else random.uniform(440, 480)) * time + random.uniform(0, 6)
        )
        made.append((0.5 * tone + 0.1 * random.normal(size=len(time))).clip(-1, 1).astype(np.float32))
    return made, _some_wrong(labels)


def _some_wrong(labels):
    labels = labels.copy()
    labels[::10] = 1 - labels[::10]
    return labels


def png(pixels):
    """A picture as the bytes of a file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def write_pictures(folder, pixels, labels, names=COLOURS):
    """One .png a picture, in one sub-folder per class."""
    from PIL import Image

    for number, (one, label) in enumerate(zip(pixels, labels, strict=True)):
        path = Path(folder) / names[label] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(one).save(path)
    return folder


def write_wav(path, samples, rate=RATE, *, width=2, channels=1):
    """A PCM .wav of samples in [−1, 1]."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = np.round(np.asarray(samples, dtype=np.float64) * (2 ** (8 * width - 1) - 1)).astype("<i4")
    if width == 1:
        raw = (whole + 128).astype(np.uint8).tobytes()
    else:
        raw = whole.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(raw)
    return path


def write_sounds(folder, recordings, labels, names=TONES):
    """One .wav a recording, in one sub-folder per class."""
    for number, (one, label) in enumerate(zip(recordings, labels, strict=True)):
        write_wav(Path(folder) / names[label] / f"{number:03}.wav", one)
    return folder


def save_whisper(folder, *, seed=0):
    """A Whisper that reads one second, 16,000 samples, as 50 tokens; neuron 3 of block 1 writes SOURCE far above fp16."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )

    torch.manual_seed(seed)
    config = WhisperConfig(
        vocab_size=40, num_mel_bins=8, d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, max_source_positions=50, max_target_positions=12,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, init_std=0.2,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        layer = model.model.encoder.layers[1]
        layer.fc1.weight[3] *= 30
        layer.fc2.weight[SOURCE, 3] = 40_000
    letters = {name: number for number, name in enumerate(("<pad>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz"))}
    inner = Tokenizer(models.BPE(vocab=letters, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


ROW, COLUMN, NEURON, BLOCK = 2, 1, 5, 1  # of the needle: a patch, a neuron, and the block that it is in
WRITTEN = (11, 20)  # dimensions that it writes


def save_dinov2(folder, *, planted=True, registers=0, whole=False, seed=0):
    """A DINOv2 of 4 × 4 patches in `folder`; NEURON of BLOCK writes 300 times its value to WRITTEN at patches of plain red.

    `whole`: its processor leaves pictures in their size.
    """
    import torch
    from transformers import (
        BitImageProcessorPil,
        Dinov2Config,
        Dinov2Model,
        Dinov2WithRegistersConfig,
        Dinov2WithRegistersModel,
    )

    torch.manual_seed(seed)
    shape = {
        "hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 2, "mlp_ratio": 1, "image_size": 56,
        "patch_size": 14,
    }  # fmt: skip
    model = Dinov2Model(Dinov2Config(**shape))
    if registers:
        model = Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**shape, num_register_tokens=registers))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and "lambda" not in name:
                parameter.normal_(0, 1.0 if "embeddings." in name and "patch" not in name else 0.02)
        patches = model.embeddings.patch_embeddings.projection
        patches.weight[SOURCE] = torch.tensor([1.0, -1.0, -1.0])[:, None, None] / 196
        patches.bias.normal_(0, 1.0)
        patches.bias[SOURCE] = 0.0
        blocks = model.layers if hasattr(model, "layers") else model.encoder.layer
        mlp = blocks[BLOCK].mlp
        mlp.fc1.weight[NEURON] = 0.0
        mlp.fc1.weight[NEURON, SOURCE], mlp.fc1.bias[NEURON] = 5.0, -9.0
        if planted:
            mlp.fc2.weight[list(WRITTEN), NEURON] = torch.tensor([300.0, -150.0])
    model.eval().save_pretrained(folder)
    BitImageProcessorPil(
        do_resize=not whole, do_center_crop=not whole, size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56},
        image_mean=[0.5] * 3, image_std=[0.1] * 3,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def write_photos(folder, n=8, *, red=((ROW, COLUMN),), height=4, width=4, seed=0):
    """`n` pictures of grey noise of `height` × `width` patches, with plain red where `red` says (row, column)."""
    from PIL import Image

    random = np.random.default_rng(seed)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number in range(n):
        pixels = random.integers(110, 146, (14 * height, 14 * width, 3)).astype(np.uint8)
        for row, column in red:
            pixels[14 * row : 14 * row + 14, 14 * column : 14 * column + 14] = (230, 40, 40)
        Image.fromarray(pixels).save(Path(folder) / f"{height}x{width}-{number}.png")
    return folder
