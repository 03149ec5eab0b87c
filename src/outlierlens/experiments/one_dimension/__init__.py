"""How much of a task one dimension carries: what is asked, and what is said of it."""
