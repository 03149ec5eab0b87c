"""Whether a fine-tuned model recovers from losing dimensions: what is asked, and what is said of it."""
