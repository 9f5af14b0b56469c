"""`python -m fedsolve`: the same command as `fedsolve`."""

import sys

from fedsolve.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
