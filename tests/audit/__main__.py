"""``python -m tests.audit``: advisories about the installed dependencies, and what each means for this project.

pip-audit asks PyPI's service which are known. Where that cannot be reached, those of ``advisories.toml`` are all.
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from pydantic import BaseModel


class Advisory(BaseModel, extra="forbid", frozen=True):
    """A known advisory and its assessment."""

    id: str
    aliases: tuple[str, ...] = ()
    package: str
    affected: str
    what: str
    matters: Literal["no", "prevented"]
    why: str
    test: str | None = None

    def concerns(self, version: str) -> bool:
        """Whether ``version`` of the package is affected."""
        # 2.13.0+cpu is 2.13.0.
        return SpecifierSet(self.affected).contains(version.partition("+")[0], prereleases=True)


def assessed() -> list[Advisory]:
    """The advisories of ``advisories.toml``."""
    raw = tomllib.loads(Path(__file__).with_name("advisories.toml").read_text(encoding="utf-8"))
    return [Advisory(**each) for each in raw["advisory"]]


def installed() -> dict[str, str]:
    """The versions of all packages of this environment, by name."""
    return {each.metadata["Name"].lower().replace("_", "-"): each.version for each in distributions()}


def asked() -> list[tuple[str, str, set[str]]] | None:
    """What the service knows: package, version, and the names of an advisory; None where it knows no package at all."""
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"],
        capture_output=True,
        text=True,
    )
    try:
        dependencies: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return None
    if all("skip_reason" in each for each in dependencies):
        return None
    return [
        (each["name"], each["version"], {found["id"], *found["aliases"]})
        for each in dependencies
        for found in each.get("vulns", ())
    ]


def report(known: Iterable[Advisory], versions: dict[str, str], found: list[tuple[str, str, set[str]]] | None) -> int:
    """Print each advisory that concerns an installed version; the number of those that are not assessed."""
    known = list(known)
    if found is None:
        print("PyPI's service cannot be reached: only the advisories of tests/audit/advisories.toml are looked at")
    for each in known:
        version = versions.get(each.package)
        if version is not None and each.concerns(version):
            matters = "does not matter" if each.matters == "no" else "prevented"
            print(f"{each.package} {version}: {each.id}: {each.what}\n  {matters}: {each.why}")
    names = {name for each in known for name in (each.id, *each.aliases)}
    missing = [one for one in found or () if not one[2] & names]
    for package, version, ids in missing:
        print(f"{package} {version}: {', '.join(sorted(ids))}: not assessed: update it, or add it to advisories.toml")
    return len(missing)


if __name__ == "__main__":
    sys.exit(1 if report(assessed(), installed(), asked()) else 0)
