"""Studies of generated tasks that train in seconds."""

from typing import Any

from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import Study

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16, "bottleneck": 8, "learning_rate": 5e-3}


def study(**values: Any) -> Study:
    given = {"name": "small", "methods": ["full"], "targets": ["films"], "seeds": [0], "recipe": QUICK}
    return parse_study(given | values, "test")
