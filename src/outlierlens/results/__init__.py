"""What a finding is: dataclasses to versioned JSON and back, rows that survive an interrupt, files that are whole."""
