"""The limits of the server, and their defaults; imports no web framework."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What the server takes."""

    body: int = 2**20
    """Bytes of a request."""
    text: int = 2**16
    """Characters of a text; to count the tokens of one takes up to a thousand bytes for each."""
    batch: int = 64
    """Texts or pairs of a request, and of a forward pass."""
    queue: int = 1024
    """Texts or pairs that wait."""
    wait: float = 0.004
    """Seconds that a request waits for others to be computed with."""
    poll: float = 2.0
    """Seconds between two looks at the store."""
    models: int = 64
    """Models in memory."""
