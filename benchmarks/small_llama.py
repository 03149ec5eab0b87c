"""Pre-train a small Llama in float32: a gated pre-norm model whose weights lie on no grid, as those of a GGUF file do.

    python benchmarks/small_llama.py imdb/train.parquet -o small-llama          # 8 x 320, 11 M parameters; hours on two cores
    python benchmarks/small_llama.py imdb/train.parquet -o small-llama --seconds 300   # on a GPU, then as far as it came

Tokens are a byte-level BPE of 8,192, made of the same texts; they are kept beside the model, and a rerun reads them there.
Weights and optimizer are float32; on a GPU, products are computed in bfloat16. Blocks of 256 tokens, AdamW (0.9, 0.95),
weight decay 0.1, 1e-3 after a warm-up of 200 steps, falling linearly, to nothing where --seconds end. Prints loss by step.
"""

import time
from pathlib import Path

import numpy as np
import torch
from timing import asked
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from outlierlens.data.texts import read_texts

LENGTH, WARMUP, PEAK = 256, 200, 1e-3


def tokens_of(data: str, folder: Path) -> np.ndarray:
    """Ids of all texts [token], each text begun by <bos>; made once, and kept in `folder` with their tokenizer."""
    kept = folder / "tokens.npy"
    if not kept.exists():
        read = read_texts(data).texts
        byte_level = ByteLevelBPETokenizer()
        byte_level.train_from_iterator(read, vocab_size=8192, special_tokens=["<bos>"], show_progress=False)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=byte_level._tokenizer, bos_token="<bos>", pad_token="<bos>"
        )
        tokenizer.save_pretrained(folder)
        ids = [one for text in byte_level.encode_batch(list(read)) for one in (0, *text.ids)]
        np.save(kept, np.array(ids, np.uint16))
    read_back: np.ndarray = np.load(kept)
    return read_back


def main() -> None:
    """Train, save, and print."""
    given = asked(
        __doc__,
        {"data": str},
        steps=6000,
        seconds=float("inf"),
        batch=64,
        only_tokens=False,
        output=Path("small-llama"),
    )
    given.output.mkdir(parents=True, exist_ok=True)
    ids = tokens_of(given.data, given.output)
    print(f"{len(ids):,} tokens", flush=True)
    if given.only_tokens:
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192, hidden_size=320, intermediate_size=864, num_hidden_layers=8, num_attention_heads=5,
        num_key_value_heads=1, max_position_embeddings=LENGTH, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95), weight_decay=0.1)
    blocks = torch.from_numpy(ids[: len(ids) // LENGTH * LENGTH].astype(np.int64).reshape(-1, LENGTH)).to(device)
    begin = time.monotonic()
    for step in range(given.steps):
        passed = max(step / given.steps, (time.monotonic() - begin) / given.seconds)
        if passed >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min((step + 1) / WARMUP, 1 - passed)
        some = blocks[torch.randint(len(blocks), (given.batch,), device=device)]
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(input_ids=some, labels=some).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 200 == 0:
            print(f"step {step:6,}  loss {loss.item():.4f}  {time.monotonic() - begin:,.0f} s", flush=True)
    print(f"step {step:6,}  loss {loss.item():.4f}", flush=True)
    model.save_pretrained(given.output, max_shard_size="14MB")


if __name__ == "__main__":
    main()
