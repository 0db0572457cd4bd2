"""Figures of a study, as SVG and PNG, each with a CSV of its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pipeline.system.atomic import new_folder
from pipeline.system.errors import PipelineError

try:
    import matplotlib  # noqa: F401
except OSError as error:
    # It wants a folder for its settings, in the home folder or a temporary one, and says so.
    raise PipelineError(str(error)) from error

from pipeline.reporting.built_on import Contrast
from pipeline.reporting.figures.answers import confusions, scatters
from pipeline.reporting.figures.attention import fusion_attention
from pipeline.reporting.figures.attention_maps import AttentionMap, attention_drawing
from pipeline.reporting.figures.curves import learning_curves, low_resource_curves
from pipeline.reporting.figures.drawing import Drawing, drawing_style, write
from pipeline.reporting.figures.matrices import contrast_map, forgetting_map
from pipeline.reporting.figures.pareto import pareto
from pipeline.reporting.forgetting import Change
from pipeline.reporting.low_resource import LowResource
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import StudyRuns


@dataclass(frozen=True)
class Findings:
    """What figures are drawn from beside the runs; computed once for them and the tables."""

    epochs: pd.DataFrame
    curve: LowResource
    changes: Sequence[Change]
    contrasts: Sequence[Contrast]
    maps: Sequence[AttentionMap] = ()


def write_figures(runs: StudyRuns, findings: Findings, folder: Path) -> tuple[Figure, ...]:
    """Draw every figure that there are numbers for; the folder holds these and no others."""
    figures = []
    with drawing_style(), new_folder(folder) as fresh:
        for drawing in _drawings(runs, findings):
            write(drawing, fresh)
            figures.append(drawing.figure)
    return tuple(figures)


def _drawings(runs: StudyRuns, findings: Findings) -> Iterator[Drawing]:
    single = (
        pareto(runs),
        low_resource_curves(findings.curve),
        contrast_map(runs, findings.contrasts),
        forgetting_map(runs, findings.changes),
        learning_curves(runs, findings.epochs),
        attention_drawing(findings.maps),
    )
    yield from (drawing for drawing in single if drawing is not None)
    yield from confusions(runs)
    yield from scatters(runs)
    yield from fusion_attention(runs)
