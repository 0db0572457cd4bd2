"""``python -m pipeline``."""

import os
import sys

# On a shared machine OpenMP's threads, spinning while they wait for each other, made a training step up to 15 times
# slower than its share of the cores would; sleeping costs little when the cores are free. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
