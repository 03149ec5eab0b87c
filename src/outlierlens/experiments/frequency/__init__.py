"""How closely each dimension follows how frequent a token is.

measure.py        frequency(loaded, texts, counts): the one pass over texts
sums.py           weighted sums of all layers and dimensions, for every draw of a bootstrap over texts at once; a seeded sample
                  of tokens, for rank correlations; mean |h| of a seeded sample of types (vocabulary entries)
correlations.py   from sums, sample and table to correlations, their errors and their p-values; named dimensions against all
                  others
outcome.py        what comes out of it
"""
