"""What `range` costs beside the bare forward pass, head included.

    OMP_NUM_THREADS=1 python benchmarks/range.py                       # a random model of SmolLM2-135M's shape
    OMP_NUM_THREADS=1 python benchmarks/range.py --model smollm2-135m --repeats 7

Each repeat is one batch, bare and measured, one after the other in one process; ratios are taken batch by batch.
"""

import torch
from timing import Way, asked, compare, load, made_up, random_llama, table

from outlierlens.analyses.range_pass import RangePass
from outlierlens.data.texts import Texts
from outlierlens.models.load import from_objects
from outlierlens.models.passes import TextReading


def main() -> None:
    """Print the times of both and their ratio."""
    given = asked(__doc__, model=str, layers=30, batch_size=8, max_length=128, repeats=5)
    torch.set_num_threads(1)
    loaded = load(given.model or "mini-planted")
    if not given.model:
        model = random_llama(given.layers)
        loaded = from_objects(model, loaded.tokenizer, name=f"random, {given.layers} layers")
    reading = TextReading(loaded, given.max_length)
    measured = RangePass(loaded, reading)
    texts = made_up(given.batch_size * (given.repeats + 1), given.max_length, given.max_length)
    bare, ours = Way("bare", lambda: None), Way("measured", lambda: None)
    batches = list(reading.batches(Texts("benchmark", texts), batch_size=given.batch_size))
    for number, batch in enumerate(batches):
        arguments = reading.arguments(batch)
        bare.work = torch.inference_mode()(lambda arguments=arguments: loaded.model(**arguments))
        ours.work = lambda batch=batch: measured.consume(batch)
        for way in (bare, ours):
            way.timed(counts=bool(number))
    n_tokens = int(batches[0].valid.sum())
    print(f"{loaded.name}: batch {given.batch_size} x {batches[0].valid.shape[1]} tokens, 1 thread, float32")
    table([bare, ours], n_tokens, "tokens")
    compare("measured over bare:", ours, bare)


if __name__ == "__main__":
    main()
