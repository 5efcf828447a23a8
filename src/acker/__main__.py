"""`python -m acker` is the `acker` command."""

from acker.cli import main

if __name__ == "__main__":
    main()
