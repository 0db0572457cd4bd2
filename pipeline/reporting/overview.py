"""index.html of a folder of reports: every study that was reported there, with what it found."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline.reporting.report import Report
from pipeline.reporting.tables import TEMPLATES
from pipeline.system.atomic import write_json, write_text
from pipeline.system.errors import PipelineError, printable
from pipeline.system.locks import locked
from pipeline.system.reading import read_model

FILE = "summary.json"


class Summary(BaseModel):
    """What the overview says of a study; stored as ``summary.json`` beside its page."""

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    finished: str
    """When its last run was finished: an ISO date and time, or empty without any."""
    verdict: str
    """The first sentence of what it found."""
    runs: int
    missing: int


def write_overview(report: Report, folder: Path) -> None:
    """Write ``summary.json`` into a study's ``folder``, and ``index.html`` over all studies into the folder above.

    A study whose summary cannot be read, or that was reported before there were summaries, has a link and no more.
    """
    summary = Summary(
        name=report.study.name,
        description=report.study.description,
        finished=max((record.finished_at for record in report.records.values()), default=""),
        verdict=next(iter(report.verdict), ""),
        runs=len(report.records),
        missing=len(report.missing),
    )
    write_json(folder / FILE, summary.model_dump())
    # Under a lock: of two studies that end at once, the one that writes last has read both.
    with locked(folder.parent / ".overview.lock"):
        studies = {page.parent.name: _read(page.parent) for page in sorted(folder.parent.glob("*/index.html"))}
        names = sorted(studies, key=lambda name: study.finished if (study := studies[name]) else "", reverse=True)
        page = TEMPLATES.get_template("overview.html").render(studies={name: studies[name] for name in names})
        write_text(folder.parent / "index.html", printable(page))


def _read(folder: Path) -> Summary | None:
    try:
        return read_model(Summary, folder / FILE, "report the study again")
    except PipelineError:
        return None
