"""The server's socket."""

from contextlib import closing

import pytest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from pipeline.serving.server import listen, own_names
from pipeline.system.errors import PipelineError


def test_of_two_servers_that_start_at_once_on_one_port_the_second_is_refused_before_it_loads() -> None:
    with closing(listen("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(PipelineError, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use"):
            listen("127.0.0.1", port)


def test_a_server_that_only_this_machine_can_reach_knows_its_names() -> None:
    with closing(listen("LocalHost", 0)) as bound:
        assert own_names(bound, "LocalHost") == {"localhost"}
    with closing(listen("127.0.0.2", 0)) as bound:
        assert own_names(bound, "127.0.0.2") == {"localhost", "127.0.0.2"}
    with closing(listen("0.0.0.0", 0)) as bound:
        assert own_names(bound, "0.0.0.0") is None
