"""A study on Ray clusters of one and of two nodes, with one core per node, and in one process without Ray."""

from collections.abc import Iterator
from contextlib import contextmanager

from .report import Report
from .setting import Setting
from .timing import Row, interleave, ratio
from .whole_studies import WholeStudy

_TWO = "Ray, two nodes"


def run(setting: Setting) -> Report:
    study = (
        WholeStudy(setting, ["adapter"], [1], 32)
        if setting.quick
        else WholeStudy(setting, ["adapter", "full"], [1, 2, 3], 300)
    )

    def seconds_on(nodes: int) -> float:
        with _cluster(nodes) as address:
            return study.seconds(1, "--executor=ray", f"--address={address}")

    found = interleave(
        {"one process": lambda: study.seconds(1), "Ray, one node": lambda: seconds_on(1), _TWO: lambda: seconds_on(2)},
        setting.repeats,
    )
    table: list[Row] = [
        {"where": name, "s": sample, "times as long as two nodes": ratio(sample, found[_TWO])}
        for name, sample in found.items()
    ]
    return Report(
        (
            f"{study.runs} runs of 2 epochs on {study.limit} rows, one core and thread each; seconds of the whole"
            " command, with start and report. Both nodes are on this machine, so they share its memory.",
            "Medians (lowest to highest); peers ran in turn.",
        ),
        (table,),
    )


@contextmanager
def _cluster(nodes: int) -> Iterator[str]:
    """The address of a Ray cluster of ``nodes`` nodes with one core each, all on this machine."""
    from ray.cluster_utils import Cluster

    room = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**room, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**room)
        yield cluster.address
    finally:
        cluster.shutdown()
