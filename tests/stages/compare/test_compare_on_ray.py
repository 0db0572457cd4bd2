"""compare --executor ray on two nodes of this machine: one of them ends, then the driver; nothing is lost."""

import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.runs.workspace import Workspace
from pipeline.settings.study import Resources
from pipeline.system.errors import PipelineError
from tests.ray_cluster import TwoNodes, two_nodes
from tests.runs import final_numbers
from tests.stages.compare.commands import arguments, start, wait_for_a_checkpoint

pytest.importorskip("ray", reason="ray is not installed")

from stages.compare.executors.on_ray import ray_cluster

pytestmark = pytest.mark.long

SHORT = """
methods = ["full"]
targets = ["films", "meals"]
seeds = [1]
limit = 64
[recipe]
epochs = 40
batch_size = 8
"""
WHOLE = """
methods = ["frozen", "full", "sequential", "adapter", "fusion", "multitask"]
targets = ["films", "meals"]
seeds = [1, 2]
limit = 64
[recipe]
bottleneck = 8
epochs = 8
batch_size = 8
[resources]
cpus = 1
retries = 5
"""


def finished(folder: Path) -> int:
    return len(list(folder.glob("reports/runs/*/run.json")))


def compare_on(
    cluster: TwoNodes, text: str, workspace: Workspace, folder: Path, losses: Mapping[float, signal.Signals]
) -> str:
    """Compare here and on the cluster, and return what was told. A node ends in the middle.

    Before that the driver gets each of the signals ``losses``, when so large a share of the runs has finished.
    """
    study = folder / "cluster.toml"
    study.write_text(text)
    one, several = folder / "one", folder / "several"
    with start(*arguments(study, workspace, one)) as main:
        _, error = main.communicate(timeout=900)
    assert main.returncode == 0, error
    command = [*arguments(study, workspace, several), "--executor=ray", f"--address={cluster.address}"]
    for share, number in losses.items():
        with start(*command, "--checkpoint-seconds=0.1") as driver:
            while driver.poll() is None and finished(several) < share * finished(one):
                time.sleep(0.05)
            wait_for_a_checkpoint(driver, several)
            driver.send_signal(number)
            _, error = driver.communicate(timeout=100)
        assert finished(several) < finished(one)
        assert driver.returncode == (-number if number == signal.SIGKILL else 128 + number)
        assert "Traceback" not in error
    with start(*command, "--checkpoint-seconds=0.1") as driver:
        cluster.wait_until_busy()
        wait_for_a_checkpoint(driver, several)
        cluster.end_a_node()
        output, error = driver.communicate(timeout=900)
    assert driver.returncode == 0, error
    assert final_numbers(several) == final_numbers(one)
    assert "nodes: 2, with room for 2 at once" in error
    assert output.count("page: ") == 1
    assert not list(several.rglob("*.tmp")) and not list(several.rglob("checkpoint"))
    return error


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "127.0.0.1:99999"])
def test_no_cluster_is_one_message_at_once(address: str) -> None:
    with pytest.raises(PipelineError, match="no Ray cluster at "), ray_cluster(Resources(), address):
        pass


def test_a_study_on_two_nodes_of_which_one_ends(workspace: Workspace, tmp_path: Path) -> None:
    with two_nodes(tmp_path) as cluster:
        compare_on(cluster, SHORT, workspace, tmp_path, {})


@pytest.mark.timeout(2400)
def test_24_cells_on_two_nodes_while_the_driver_is_killed_and_a_node_ends(workspace: Workspace, tmp_path: Path) -> None:
    with two_nodes(tmp_path) as cluster:
        told = compare_on(cluster, WHOLE, workspace, tmp_path, {0.2: signal.SIGKILL, 0.4: signal.SIGTERM})
    # A cluster takes a while to notice; a study of two cells may be over by then.
    assert "nodes: 1, with room for 1 at once" in told
