"""A "fine-tuned" model that depends on dimensions planted in it, with data in the columns of CoLA and SST-2.

`CARRIERS` carry the label, each a part of it; `INERT` has weights as extreme and nothing to say.
"""

import json

import numpy as np

CARRIERS = (5, 11)
INERT = 20
PLANTED = (*CARRIERS, INERT)
WIDTH, LAYERS, WORDS = 64, 4, 30


def save_model(folder, words, *, planted=True, names=("unacceptable", "acceptable"), seed=0):
    """A BERT for two classes in `folder`: [CLS] gathers the mean of all words, layer after layer."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=WORDS + 5, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, num_labels=2, id2label=dict(enumerate(names)),
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    values = word_values()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name or "key" in name or name.endswith("intermediate.dense.weight"):
                parameter.zero_()  # attention to all alike, and no feed-forward
            elif "attention.self.value.weight" in name or "attention.output.dense.weight" in name:
                parameter.copy_(torch.eye(WIDTH))
            elif "output.dense.weight" in name:
                parameter.zero_()
            elif name.endswith("LayerNorm.weight"):
                parameter.add_(0.02 * torch.randn(WIDTH))
            elif name.endswith("bias"):
                parameter.copy_(0.02 * torch.randn(parameter.shape))
        embeddings = model.bert.embeddings
        embeddings.word_embeddings.weight.normal_(0, 0.3)
        embeddings.position_embeddings.weight.zero_()
        embeddings.token_type_embeddings.weight.zero_()
        for column, dim in enumerate(CARRIERS):
            embeddings.word_embeddings.weight[5:, dim] = torch.tensor(values[:, column], dtype=torch.float32)
        for layer in model.bert.encoder.layer if planted else ():
            layer.output.LayerNorm.weight[list(PLANTED)] = 5.0
            layer.output.LayerNorm.bias[list(PLANTED)] = 1.0
        dense, head = model.bert.pooler.dense, model.classifier
        dense.weight.zero_()
        dense.weight[0, list(CARRIERS)] = 0.3
        head.weight.copy_(torch.zeros_like(head.weight))
        head.weight[1, 0] = 4.0
        head.weight[0, 0] = -4.0
        head.bias.zero_()
        tokenizer = words(WORDS)
        inputs = tokenizer(texts(200, seed=9), return_tensors="pt", padding=True)
        states = model.bert(**inputs).last_hidden_state[:, 0]
        dense.bias[0] = -float((states @ dense.weight[0]).median())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def word_values():
    """What each word says in the two carriers, [word, carrier]."""
    return np.random.default_rng(1).normal(0, 1, (WORDS, len(CARRIERS)))


def texts(n, *, seed):
    random = np.random.default_rng(seed)
    return [" ".join(f"w{word}" for word in random.integers(0, WORDS, 5)) for _ in range(n)]


def write_data(folder, tasks=("cola", "sst2"), n=80):
    """One folder per task, with `validation.jsonl` and `train.jsonl`; every tenth label is wrong."""
    for number, task in enumerate(tasks):
        for split, seed in (("validation", number), ("train", 50 + number)):
            said = texts(n, seed=seed)
            sums = [sum(word_values()[int(word[1:])].sum() for word in text.split()) for text in said]
            middle = float(np.median(sums))
            rows = [
                {"sentence": text, "label": int((value > middle) != (place % 10 == 9))}
                for place, (text, value) in enumerate(zip(said, sums, strict=True))
            ]
            path = folder / task / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(map(json.dumps, rows)) + "\n", "utf-8")
    return folder
