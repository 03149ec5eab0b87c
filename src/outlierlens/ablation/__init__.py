"""Switch dimensions off and put them back, beside controls."""
