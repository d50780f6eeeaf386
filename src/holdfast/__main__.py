"""`python -m holdfast`: the command line, if `holdfast` is not on `PATH`."""

import sys

from holdfast.front.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
