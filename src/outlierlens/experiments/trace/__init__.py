"""The life of a dimension: which parts of a model write it, what it does to norms, which heads read it."""
