"""What a model says with dimensions off: corpus frequency, distribution and parts of speech of its predicted tokens.

said.py        the inputs, and the logits of every predicted position
switches.py    the interventions: in all layers, in the last hidden state, in the product with the vocabulary
unigram.py     the corpus' token frequencies, and what predictions are compared with them by
tally.py       what is kept of the logits: sums by text, counts by group of texts
run.py         the run
speech.py      parts of speech
"""
