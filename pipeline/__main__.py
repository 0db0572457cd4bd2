"""``python -m pipeline``, and the console script ``adapter-fusion``."""

import sys

from pipeline.system import process


def main() -> int:
    """Run the command of ``sys.argv`` as a process of its own; returns the exit status."""
    try:
        process.handle_signals()
        # Imported here, so that an interrupt during the imports, which take a moment, is handled too.
        from pipeline.system import streams

        process.set_up()
        streams.set_up()
        from pipeline.cli import app

        return app.main()
    except KeyboardInterrupt as interrupt:
        return process.report_interrupt(interrupt, sys.argv[1:])
    except Exception:
        if not process.was_interrupted():
            raise
        return process.report_interrupt(KeyboardInterrupt(), sys.argv[1:])
    finally:
        process.end_at_signals()


if __name__ == "__main__":
    sys.exit(main())
