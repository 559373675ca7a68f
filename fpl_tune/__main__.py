"""`python -m fpl_tune` is `fpl-tune`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))  # the current folder, at the end, so that no file of it hides a library

from fpl_tune.cli import main

if __name__ == "__main__":
    main()
