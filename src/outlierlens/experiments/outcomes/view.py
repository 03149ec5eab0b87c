"""What is said of pre-training runs side by side: as of one."""

from outlierlens.training.pretrain.view import sections

__all__ = ["sections"]
