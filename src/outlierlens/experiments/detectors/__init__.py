"""Every published definition of an outlier dimension, applied to one model side by side: `run.detectors`.

settings     thresholds by name, with the published defaults
table        what each definition looks at, when a dimension counts, where that is from
rules        the rules on arrays that only live here; `detect` and `activation_rules` hold the others
sums         running sums over token vectors that those rules need
options      what is asked; view: what is said of the result
collect      one streaming pass over the texts, in the model's own basis and in a rotated one
from_weights the rules on weights, and why some say nothing of a model
nulls        random initialisation, shuffled weights, a random rotation
spikes       super weights: the search on one prompt; trials: what the model loses without them
run          all of it
"""
