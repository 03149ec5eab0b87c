"""Find the handful of dimensions a Transformer cannot live without, switch them off, and measure what breaks."""
from outlierlens._version import __version__

__all__ = ["__version__"]
