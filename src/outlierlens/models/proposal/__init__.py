"""A row for an architecture that has none: proposed from its modules, and tried."""
