"""A study in one process with a thread per core, against one process per core with one thread each."""

from pipeline.system.process import cores

from .report import Report
from .setting import Setting
from .timing import Row, columns, interleave
from .whole_studies import WholeStudy


def run(setting: Setting) -> Report:
    seeds, limit = ([1], 32) if setting.quick else ([1, 2], 500)
    studies = [
        WholeStudy(setting, [method], seeds, limit)
        for method in (["adapter"] if setting.quick else ["adapter", "full"])
    ]
    runs = studies[0].runs
    jobs = min(max(2, cores()), runs)
    return Report(
        (
            f"{runs} runs of 2 epochs on {limit} rows; seconds of the whole command, with start and report: in one"
            f" process with {jobs} threads, and in {jobs} processes (--jobs {jobs}) with one thread each, on {cores()}"
            " cores.",
            "Medians (lowest to highest); peers of a row ran in turn.",
        ),
        ([_row(study, jobs) for study in studies],),
    )


def _row(study: WholeStudy, jobs: int) -> Row:
    peers = {f"1 x {jobs} threads": lambda: study.seconds(jobs), "ours": lambda: study.seconds(1, f"--jobs={jobs}")}
    found = interleave(peers, study.setting.repeats)
    return {"method": study.methods[0], "runs": study.runs, "jobs": jobs, **columns(found, "s")}
