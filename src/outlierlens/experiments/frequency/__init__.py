"""How closely each dimension follows how frequent a token is.

run.py          frequency(loaded, texts, counts): the one pass over texts, and what comes out of it
sums.py         weighted sums of all layers and dimensions, for every draw of a bootstrap over texts at once
token_sample.py a seeded sample of tokens, for rank correlations
type_table.py   mean |h| of a seeded sample of types (vocabulary entries)
correlate.py    from sums, sample and table to correlations, their errors and their p-values
contrast.py     named dimensions against all others
"""
