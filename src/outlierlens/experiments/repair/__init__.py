"""Rewrite a model so that it fits a number format, exactly."""
