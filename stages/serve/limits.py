"""The limits of the server, which are also its options; imports no web framework."""

from dataclasses import dataclass

from pipeline.system.errors import PipelineError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server takes."""

    max_batch: int = 64
    "Texts or pairs in a request, and in a forward pass."
    max_queue: int = 1024
    "Texts or pairs that may wait; further requests get 429."
    max_body: int = 2**20
    "Bytes of a request."
    max_text: int = 2**16
    "Characters in a text, even if it may be cut."
    max_wait: float = 4.0
    "Milliseconds that a request waits for others to share its forward pass."
    poll: float = 2.0
    "Seconds between two checks of the store."
    max_models: int = 64
    "Models in memory; others are loaded when they are requested, and replace the least recently used."

    def check(self) -> None:
        """Raise a :class:`PipelineError` for the first limit that makes no sense."""
        for name, least, most in (
            ("max_body", 1, 2**30),
            ("max_text", 1, 2**30),
            ("max_batch", 1, 2**16),
            ("max_queue", 1, 2**24),
            ("max_wait", 0, 60_000),
            ("poll", 0.05, 86_400),
            ("max_models", 1, 2**20),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise PipelineError(f"--{name.replace('_', '-')} {value:g}: give {least} to {most}")
        if self.max_queue < self.max_batch:
            raise PipelineError(f"--max-queue {self.max_queue}: give at least --max-batch ({self.max_batch})")
