"""Load, place and run a model: the only hooks, what it is fed, its attention maps."""
