"""Which dimensions: rules, scan, observe."""
