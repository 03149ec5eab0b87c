"""How models read pictures and recordings."""
