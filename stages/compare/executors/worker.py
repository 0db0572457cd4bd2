"""``python -m stages.compare.executors.worker``: carries out cells that it reads from standard input, one at a time.

Standard input is closed when the main process closes the pool, or however it ends. A cell that runs then is
interrupted as by SIGTERM. Imports neither torch nor the stages: a cell brings what it needs.
"""

import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection

from pipeline.system import process, streams
from stages.compare.executors.pool import carried_out


def main() -> int:
    process.handle_signals()
    process.set_up()
    # Outcomes have standard output's place to themselves.
    tasks, outcomes = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    streams.set_up()
    waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    busy = threading.Event()

    def read() -> None:
        try:
            while True:
                work = tasks.recv_bytes()
                busy.set()  # here: the main process may be gone before the other thread has woken up
                waiting.put(work)
        except (EOFError, OSError):
            waiting.put(None)
            if busy.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    try:
        threading.Thread(target=read, daemon=True).start()
        while (work := waiting.get()) is not None:
            outcome = carried_out(work)
            busy.clear()
            outcomes.send(outcome)
    except KeyboardInterrupt as interrupt:
        return process.interrupt_status(interrupt)
    except BrokenPipeError:  # the main process was killed; what the cell finished is in the ledger
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
