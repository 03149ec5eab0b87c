"""Which linears must stay in high precision, how surely, and in the words of the tool that will quantize."""
