"""Studies of these tests are reported without figures, whose drawing would take a third of the time."""

from collections.abc import Iterator

import pytest

from pipeline.reporting import build


@pytest.fixture(scope="module", autouse=True)
def no_figures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(build, "FIGURES", ())
        yield
