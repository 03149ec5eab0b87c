"""A token's position, predicted from its hidden state by one linear probe a layer (Luo et al. 2021, section 3).

    split = split_texts(read_texts("train.jsonl"), read_texts("dev.jsonl"), seed=0)
    found = probe_positions(loaded, split, resolve_clipping("557", loaded), ProbeOptions())
    found.layers[0].raw.accuracy

`texts` says what is trained on and what is evaluated, `flow` brings shuffled tokens of all layers out of one forward pass
an epoch, `joint` trains all probes at once, `judge` evaluates them, `kind` looks how positions get into the model at all.
"""

from outlierlens.experiments.probe.measure import probe_positions
from outlierlens.experiments.probe.options import ProbeOptions
from outlierlens.experiments.probe.texts import Split, split_texts

__all__ = ["ProbeOptions", "Split", "probe_positions", "split_texts"]
