"""What a model is given: texts, labelled examples, pictures, sound, counts of tokens."""
