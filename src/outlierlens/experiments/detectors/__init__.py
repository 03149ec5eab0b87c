"""Every published definition of an outlier dimension, applied to one model side by side: `measure.detectors`.

options        what is asked, thresholds by name with the published defaults; view: what is said of the result
table          what each definition looks at, when a dimension counts, where that is from
rules          the rules on arrays that only live here, and running sums over token vectors that they need; `detection.rules`
               and `detection.rules` hold the others
collection     one streaming pass over the texts, in the model's own basis and in a rotated one
from_weights   the rules on weights, why some say nothing of a model, and nulls: random initialisation, shuffled weights, a
               random rotation
linears        the last linear of every MLP, and single weights of it
super_weights  single weights behind spikes: the search on one prompt, and what the model loses without them
measure        all of it
"""
