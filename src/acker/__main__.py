"""The `acker` command as `python -m acker`."""

from acker.cli import main

if __name__ == "__main__":
    main()
