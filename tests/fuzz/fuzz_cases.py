"""How many cases a property gets: ``FUZZ_CASES`` over all of them together.

In the suite they are few, and the same each time; ``make fuzz`` draws more at random, from a seed that it prints.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

SUITE_CASES = 100

# Settings are fixed when a test is decorated, before pytest knows how many there are.
_PROPERTIES = sum(
    file.read_text(encoding="utf-8").count("\n@fuzzed(") for file in Path(__file__).parent.glob("test_*.py")
)
_SETTINGS = settings(
    max_examples=max(1, int(os.environ.get("FUZZ_CASES", SUITE_CASES)) // _PROPERTIES),
    deadline=None,
    database=None,
    derandomize="FUZZ_CASES" not in os.environ,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


def fuzzed(*strategies: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As :func:`hypothesis.given`, for a property's share of the cases."""
    return lambda test: _SETTINGS(given(*strategies)(test))
