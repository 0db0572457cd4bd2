"""Where caches live: data that can be recomputed at any time."""

import os
from pathlib import Path


def token_cache() -> Path | None:
    """The folder for tokenised texts: ``$PIPELINE_CACHE``, or the user's cache; None for a user without a home."""
    if named := os.environ.get("PIPELINE_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  (Path.home would raise)
    return Path(base) / "adapter-fusion-pipeline" / "tokens" if Path(base).is_absolute() else None
