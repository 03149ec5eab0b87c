"""What `range` costs beside the bare forward pass, head included.

    OMP_NUM_THREADS=1 python benchmarks/range.py                       # a random model of SmolLM2-135M's shape
    python benchmarks/range.py --model smollm2-135m --repeats 7

Each pair is one batch, bare and measured, one after the other in one process; the ratio is the median over pairs.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from observe import texts


def loaded_model(name: str, layers: int) -> Any:
    """The model of that name; without one, a random Llama of SmolLM2-135M's shape with the tokenizer of a sample."""
    from outlierlens.models.load import LoadOptions, from_objects, load_model

    options = LoadOptions(device="cpu", dtype="float32", offline=True)
    if name:
        return load_model(name, options)
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    return from_objects(model, load_model("mini-planted", options).tokenizer, name=f"random, {layers} layers")


def main() -> None:
    """Print the times of both and their ratio."""
    import torch

    from outlierlens.analyses.range_pass import Pass
    from outlierlens.data.texts import Texts
    from outlierlens.models.passes import TextReading

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="sample or folder; by default a random one")
    parser.add_argument("--layers", type=int, default=30, help="of the random model")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    loaded = loaded_model(asked.model, asked.layers)
    reading = TextReading(loaded, asked.max_length)
    measured = Pass(loaded, reading)
    read = Texts("benchmark", texts(asked.batch_size * (asked.repeats + 1), asked.max_length))
    warm, *fresh = reading.batches(read, batch_size=asked.batch_size)

    def bare(batch: Any) -> None:
        with torch.inference_mode():
            loaded.model(**reading.arguments(batch))

    bare(warm)
    measured.consume(warm)
    pairs = [(_seconds(lambda b=b: bare(b)), _seconds(lambda b=b: measured.consume(b))) for b in fresh]
    ratios = sorted(ours / theirs for theirs, ours in pairs)
    print(
        f"{loaded.name}: batch {asked.batch_size} x {warm.valid.shape[1]} tokens, 1 thread, float32, {len(pairs)} pairs"
    )
    print(
        f"processor time: bare {statistics.median(one for one, _ in pairs):.2f} s, measured "
        f"{statistics.median(one for _, one in pairs):.2f} s, ratio {statistics.median(ratios):.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def _seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


if __name__ == "__main__":
    main()
