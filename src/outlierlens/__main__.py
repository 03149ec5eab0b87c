"""`python -m outlierlens` is the command line."""

from outlierlens.cli import main

if __name__ == "__main__":
    main()
