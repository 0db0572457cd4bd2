"""The server's socket."""

from contextlib import closing

import pytest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from pipeline.system.errors import PipelineError
from stages.serve.door import hosts_of, listen


def test_of_two_servers_that_start_at_once_on_one_port_the_second_is_refused_before_it_loads() -> None:
    with closing(listen("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(PipelineError, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "expected"), [("LocalHost", "127.0.0.1"), ("127.0.0.2", "127.0.0.2"), ("0.0.0.0", "*")]
)
def test_a_server_that_only_this_machine_can_reach_knows_its_names(host: str, expected: str) -> None:
    with closing(listen(host, 0)) as bound:
        hosts = hosts_of(bound, host)
    assert expected in hosts and ("localhost" in hosts) == (expected != "*")
