"""`disable`: dimensions switched off beside controls, and what breaks."""
