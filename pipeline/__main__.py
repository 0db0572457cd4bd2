"""``python -m pipeline``."""

import sys

from pipeline import process
from pipeline.cli import main

if __name__ == "__main__":
    process.set_up()
    sys.exit(main())
