"""The shipped studies, one TOML file each."""

from pathlib import Path

from pipeline.settings.study import Study, read_study

STUDIES = Path(__file__).parent


def find_study(name: str, **overrides: object) -> Study:
    """A shipped study or a study file, with the given keys in place of its own; None leaves a key alone."""
    return read_study(name, STUDIES, {key: value for key, value in overrides.items() if value is not None})
