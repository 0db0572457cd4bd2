"""Tell whether ``--backbone`` names a folder or a Hub id, without importing a library that reads models."""

from pathlib import Path

from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import read_json


def refused(name: str, problem: str) -> PipelineError:
    """The error for a backbone that cannot be used."""
    return PipelineError(f"backbone '{name}': {problem}")


def is_folder(name: str) -> bool:
    """Whether ``name`` is a folder with a readable configuration; otherwise it is a Hub id.

    Raises:
        PipelineError: a folder without a configuration, or neither a folder nor an id.
    """
    try:
        is_directory = Path(name).is_dir()
    except (OSError, ValueError):  # a name too long, or one with a null byte
        raise PipelineError(f"backbone {shortened(name)}: neither a folder nor a Hub id (--backbone)") from None
    if not is_directory:
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise refused(name, "no such folder (--backbone takes a folder or a Hub id)")
        return False
    file = Path(name) / "config.json"
    if not file.exists():
        raise refused(name, "the folder has no config.json: give the folder of an encoder")
    if not isinstance(read_json(file, remedy := "copy it again"), dict):
        raise PipelineError(f"{file}: not a configuration: {remedy}")
    return True


def backbone_text(name: str) -> str:
    """A Hub id, or the folder's name without its path, which only matters on this machine."""
    return Path(name).name if Path(name).is_absolute() else name
