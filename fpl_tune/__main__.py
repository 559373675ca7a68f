"""`python -m fpl_tune` is `fpl-tune`."""

from fpl_tune.cli import main

if __name__ == "__main__":
    main()
