"""``python -m pipeline``."""

import sys

from pipeline.system import interrupts

if __name__ == "__main__":
    interrupts.handle()
    try:
        # Imported here, so that an interrupt during the imports, which take a moment, is handled too.
        from pipeline.system import process, streams

        process.set_up()
        streams.set_up()
        from pipeline.cli.app import main

        status = main()
    except KeyboardInterrupt as interrupt:
        status = interrupts.report(interrupt, sys.argv[1:])
    sys.exit(status)
