"""A Ray cluster of two nodes on this machine, in a separate process, so that a test can end a node."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from tests.processes import in_a_process, line_of

_CLUSTER = """
import psutil, time
from ray.cluster_utils import Cluster
ray = {"object_store_memory": 80 * 2**20, "num_cpus": 1, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=ray)
other = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
print(cluster.address, flush=True)
def workers():
    return [worker for each in other.all_processes["raylet"]
            for worker in psutil.Process(each.process.pid).children(recursive=True)]
def is_busy():
    try:
        return any(" seed " in "".join(worker.cmdline()[:1]) for worker in workers())  # Ray names it after its task
    except psutil.Error:  # one has just ended
        return False
for line in sys.stdin:
    if line == "wait\\n":
        while not is_busy():
            time.sleep(0.02)
        print("busy", flush=True)
        continue
    # Kill the workers too, as a power cut would: otherwise they would finish their work.
    for worker in workers():
        worker.kill()
    cluster.remove_node(other, allow_graceful=False)
    print("removed", flush=True)
cluster.shutdown()
"""


class TwoNodes:
    """The cluster's address, and a way to end its second node as if its machine failed."""

    def __init__(self, process: Popen[str]) -> None:
        self._process = process
        self.address = line_of(process)

    def wait_until_busy(self) -> None:
        """Return when the second node is running a cell."""
        self._ask("wait", "busy")

    def end_a_node(self) -> None:
        self._ask("end", "removed")

    def _ask(self, question: str, answer: str) -> None:
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        assert line_of(self._process) == answer


@contextmanager
def two_nodes(folder: Path) -> Iterator[TwoNodes]:
    """Two nodes with room for one cell each; both end with the block."""
    with in_a_process(_CLUSTER, folder) as process:
        yield TwoNodes(process)
        process.stdin.close()
        process.wait(60)
