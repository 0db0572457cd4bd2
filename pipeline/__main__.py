"""``python -m pipeline``."""

import sys

from pipeline.system import process

if __name__ == "__main__":
    process.handle_signals()
    try:
        # Imported here, so that an interrupt during the imports, which take a moment, is handled too.
        from pipeline.system import streams

        process.set_up()
        streams.set_up()
        from pipeline.cli.app import main

        status = main()
    except KeyboardInterrupt as interrupt:
        status = process.report_interrupt(interrupt, sys.argv[1:])
    sys.exit(status)
