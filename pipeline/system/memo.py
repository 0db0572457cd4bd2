"""A cache that belongs to an object, which chooses the keys."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Memo:
    """Results by key, kept for the lifetime of the object that owns them."""

    def __init__(self) -> None:
        self._results: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """The result of ``make`` from the first call with ``key``."""
        if key not in self._results:
            self._results[key] = make()
        return self._results[key]
