"""Figures of a study, as SVG and PNG, each with a CSV of its numbers."""

from pipeline.system.errors import PipelineError

try:
    import matplotlib  # noqa: F401  (here, before any module of this folder)
except OSError as error:
    # It needs a folder for its settings, in the home folder or a temporary one, and says so.
    raise PipelineError(str(error)) from error

from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.reporting.figures.drawing import Drawing, drawing_style, write
from pipeline.reporting.figures.models import attention_maps, confusions, fusion_attention, scatters
from pipeline.reporting.figures.scores import (
    contrast_map,
    forest,
    forgetting_map,
    learning_curves,
    low_resource_curves,
    pareto,
)
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import StudyRuns
from pipeline.system.atomic import new_folder

FIGURES: tuple[Callable[[StudyRuns], Iterator[Drawing]], ...] = (
    forest,
    pareto,
    low_resource_curves,
    contrast_map,
    forgetting_map,
    learning_curves,
    attention_maps,
    confusions,
    scatters,
    fusion_attention,
)
"""In the order of the report; one yields nothing where the study has no numbers for it."""


def write_figures(runs: StudyRuns, folder: Path) -> tuple[Figure, ...]:
    """Draw every figure that there are numbers for; the folder holds these and no others."""
    figures = []
    with drawing_style(), new_folder(folder) as fresh:
        for drawing in (drawing for draw in FIGURES for drawing in draw(runs)):
            write(drawing, fresh)
            figures.append(drawing.figure)
    return tuple(figures)
