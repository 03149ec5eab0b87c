"""What only the site needs; see conf.py."""
