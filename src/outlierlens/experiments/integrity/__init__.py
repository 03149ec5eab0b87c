"""Whether a model's sensitive values are still those that were recorded: fingerprint, verify, compare.

listed = sensitive.list_sensitive(checkpoint, bound, dims)     # what matters most, and where it is stored
"""
