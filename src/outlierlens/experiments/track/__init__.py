"""When dimensions became outliers over a training run: what is asked, and what is said of it."""
