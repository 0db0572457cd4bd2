"""``python -m pipeline``."""

import os
import sys

# OpenMP's threads spin while they wait for each other. On a machine that is shared, long spinning made a training step
# up to 15 times slower; sleeping at once costs a fifth on a free machine, half with small models. A short spin costs
# next to nothing and gives way soon. Read when torch is imported; the user's own settings hold.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
