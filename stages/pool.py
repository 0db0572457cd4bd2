"""The fusions of several studies, tested together over the targets of all."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.records.ledger import Ledger
from pipeline.reporting.notes import missing
from pipeline.reporting.pooled import Pooled, pool
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.text import listed
from pipeline.system.errors import PipelineError
from stages.report import result_of


@dataclass(frozen=True)
class Pool:
    """What several studies found together."""

    studies: tuple[str, ...]
    seeds: tuple[tuple[int, ...], ...]
    """Of each study."""
    looks: int
    """How often results were looked at, for which the tests are corrected."""
    pooled: tuple[Pooled, ...]
    missing: tuple[str, ...]
    """The cells without a run, each with the reason."""

    @property
    def lines(self) -> list[str]:
        targets = self.pooled[0].parts
        fusions = dict.fromkeys(part.fusion for part in targets.values())
        where = f"the mean of {len(targets)} targets" if len(targets) > 1 else next(iter(targets))
        heading = f"{', '.join(fusions)} of {listed(self.studies)}, on {where}:"
        return [heading, *(line for pooled in self.pooled for line in pooled.lines)]

    def summary(self) -> dict[str, Any]:
        return {
            "studies": [*self.studies],
            "seeds": [[*seeds] for seeds in self.seeds],
            "looks": self.looks,
            "against": {pooled.kind: pooled.summary() for pooled in self.pooled},
            "missing": [*self.missing],
        }


def pool_studies(studies: Sequence[str], reports: Path, targets: Sequence[str] | None = None) -> Pool:
    """Test the leading fusions of several studies over all their targets, from their reports alone.

    Args:
        studies: names or TOML files; each was compared, and no two have the same target.
        targets: only these; None: all.

    Raises:
        PipelineError: as :func:`pipeline.reporting.pooled.pool`, a study is named twice or was never compared here, or
            its runs are gone.
    """
    if len(set(studies)) < len(studies):
        raise PipelineError(f"pool: {next(name for name in studies if studies.count(name) > 1)} twice: name each once")
    ledger = Ledger(reports)
    opened = [StudyRuns(result_of(study, reports), ledger) for study in studies]
    pooled = pool(opened, targets)
    return Pool(
        tuple(runs.study.name for runs in opened),
        tuple(runs.study.seeds for runs in opened),
        max(runs.study.looks for runs in opened),
        tuple(pooled),
        tuple(f"{runs.study.name}: {cell}" for runs in opened for cell in missing(runs)),
    )
