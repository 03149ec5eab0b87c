"""What a model is made of, derived by experiment on a small random copy."""
