"""What a model says with dimensions off: corpus frequency and distribution of its predicted tokens.

words.py        the inputs, the logits of every predicted position, and the interventions: in all layers, in the last hidden
                state, in the product with the vocabulary
tally.py        the corpus' token frequencies, and what is kept of the logits: sums by text, counts by group of texts
measure.py      the run
"""
