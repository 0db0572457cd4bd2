"""What is computed once and kept: a cache that belongs to an object, for keys that it chooses."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Memo:
    """Results by key, kept until the object that owns them goes."""

    def __init__(self) -> None:
        self._results: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What ``make`` returned when ``key`` was first asked for."""
        if key not in self._results:
            self._results[key] = make()
        return self._results[key]
