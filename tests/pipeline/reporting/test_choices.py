"""Every line says what it chose on the rows that it is scored on, and from how many."""

from pathlib import Path

from pipeline.records.store import SourceRun
from pipeline.reporting.rows import choices_table
from pipeline.reporting.runs import StudyRuns
from tests.pipeline.reporting.synthetic import Synthetic, make, predictions_of

ONCE = [{"epoch": 0, "loss": None, "dev": 0.5}]


def choices_of(study: Synthetic) -> dict[object, str]:
    table = choices_table(StudyRuns(study.result, study.ledger))
    return {row[0].sort: row[1].text for row in table.rows}


def read(*records: object) -> tuple[SourceRun, ...]:
    return tuple(SourceRun(task=r.task, run=r.run, digest="a" * 64) for r in records)


def test_what_each_method_chose_is_counted_from_its_records(tmp_path: Path) -> None:
    study = make(
        tmp_path,
        methods=["frozen", "full", "multitask", "adapter", "warm", "fusion", "cycle", "missing"],
        targets=["sst", "sts"],
        sources=["imdb"],
        rows={
            "warm": {"method": "adapter", "of": "adapter"},
            "fusion": {"own": ["adapter", "warm"], "recipe": {"fusion": "anchored"}},
            "cycle": {"method": "sequential", "order": ["sst", "sts"]},
            "missing": {"method": "full"},
        },
    )
    imdb = study.record("adapter", "imdb", 1)
    both = {"sts": (predictions_of("sts", 1.0, 3), None)}
    joint = study.record("multitask", "sst", 1, others=both)
    tuned = {}
    for target in ("sst", "sts"):
        study.add("frozen", target, 1, trained=0, curve=ONCE)
        tuned[target] = study.add("full", target, 1)
        study.serve(joint, "multitask", target)
        study.add("adapter", target, 1)
        warm = study.add("warm", target, 1, sources=read(imdb), anchor="imdb")
        candidates = {"sst": 0.3, "imdb": 0.4, "more": 0.2} if target == "sst" else {}
        study.add("fusion", target, 1, sources=read(imdb, warm), start=0.1, anchor_candidates=candidates)
        study.fail("missing", target, 1)
    last = study.record(
        "cycle", "sts", 1, others={"sst": (predictions_of("sst", 0.5, 7), 0.6)}, sources=read(tuned["sst"])
    )
    for target in ("sst", "sts"):
        study.serve(last, "cycle", target)
    assert choices_of(study) == {
        "frozen": "nothing",
        "full": "epoch (3)",
        "multitask": "epoch for all its tasks (3)",
        "adapter": "epoch (3)",
        "warm": "epoch (3)",  # its start was selected on training rows
        "fusion": "own adapter's epoch (3), own adapter (2), anchor (sst 3), epoch or start (4)",
        "cycle": "earlier epoch (sst 3), epoch (sts 3)",
        "missing": "-",
    }
