"""Several studies together say what one study of all their targets says."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.records.run_record import run_name
from pipeline.records.store import SourceRun
from pipeline.records.studies import StudyResult
from pipeline.reporting.duels import OPPONENTS, duels
from pipeline.reporting.pooled import pool
from pipeline.reporting.runs import StudyRuns
from pipeline.settings.parse_study import parse_study
from pipeline.system.errors import PipelineError
from tests.pipeline.reporting.synthetic import CLASSES, Synthetic, make

TARGETS = ["sst", "mr", "rte"]
METHODS = ["full", "sequential", "adapter", "warm", "fusion"]
KEYS: dict[str, Any] = {
    "methods": METHODS,
    "rows": {"warm": {"method": "adapter", "of": "adapter"}},
    "scoring": "half",
    "seeds": [1, 2, 3],
}


def whole(folder: Path, **keys: Any) -> Synthetic:
    """One study of three targets, whose fusions of a seed share the adapter of imdb."""
    study = make(folder, targets=TARGETS, sources=["imdb"], **KEYS | keys)
    for seed in study.study.seeds:
        adapter = study.record("adapter", "imdb", seed)
        for number, target in enumerate(TARGETS):
            study.add("full", target, seed, 0.5)
            study.add("sequential:imdb", target, seed, 0.6)
            study.add("adapter", target, seed, 0.55)
            study.add("warm", target, seed, 0.7 - number / 10)
            source = SourceRun(task="imdb", run=adapter.run, digest="a" * 64)
            study.add("fusion", target, seed, 0.6 + seed / 20, sources=(source,))
    return study


def part(study: Synthetic, name: str, targets: list[str], **keys: Any) -> StudyRuns:
    """The cells of some targets as a study of their own."""
    sources = [task for task in (*TARGETS, "imdb") if task not in targets]
    values = {"name": name, "targets": targets, "sources": sources, **KEYS, **keys}
    parsed = parse_study(values, "test", known_tasks=["quora"])
    own = (entry for entry in study.entries if entry.target in targets and entry.line.row in parsed.methods)
    return StudyRuns(StudyResult(study=parsed, backbone="nano", entries=tuple(own)), study.ledger)


@pytest.mark.parametrize("keys", [{}, {"source_seed": 7}, {"looks": 2}], ids=str)
def test_the_parts_of_a_study_pooled_are_the_study(keys: dict[str, int], tmp_path: Path) -> None:
    study = whole(tmp_path, **keys)
    pooled = pool([part(study, "first", ["sst"], **keys), part(study, "second", ["mr", "rte"], **keys)])
    expected = duels(StudyRuns(study.result, study.ledger))
    assert [each.kind for each in pooled] == [duel.kind for duel in expected] == [*OPPONENTS]
    for each, duel in zip(pooled, expected, strict=True):
        assert each.comparison is not None and each.comparison == duel.comparison
        assert {target: one.difference for target, one in each.parts.items()} == duel.parts
        assert each.difference == pytest.approx(each.comparison.difference)


def test_the_most_looks_of_a_study_correct_the_whole(tmp_path: Path) -> None:
    study = whole(tmp_path)
    rest = part(study, "second", ["mr", "rte"])
    once, thrice = (pool([part(study, "first", ["sst"], looks=looks), rest]) for looks in (1, 3))
    for one, three in zip(once, thrice, strict=True):
        assert one.comparison is not None and three.comparison is not None
        assert three.comparison.p_value == pytest.approx(min(1, 3 * one.comparison.p_value))
        (low, high), (lower, higher) = one.comparison.interval, three.comparison.interval
        assert lower < low and higher > high


def test_some_targets_alone(tmp_path: Path) -> None:
    study = whole(tmp_path)
    studies = [part(study, "first", ["sst"]), part(study, "second", ["mr", "rte"])]
    alone = pool([part(study, "third", ["sst", "mr"])])
    for some, each in zip(pool(studies, ["sst", "mr"]), alone, strict=True):
        assert [*some.parts] == ["sst", "mr"] and some.comparison == each.comparison


def test_a_kind_that_a_study_lacks_is_left_out(tmp_path: Path) -> None:
    study = whole(tmp_path)
    without = part(study, "second", ["mr"], methods=["full", "adapter", "warm", "fusion"])
    kinds = [each.kind for each in pool([part(study, "first", ["sst"]), without])]
    assert kinds == [kind for kind in OPPONENTS if kind != "sequential fine-tuning"]


def test_lines_and_summary_agree(tmp_path: Path) -> None:
    study = whole(tmp_path)
    for each in pool([part(study, "first", ["sst"]), part(study, "second", ["mr", "rte"])]):
        summary, (mean, of_each) = each.summary(), each.lines
        assert mean.startswith(f"{100 * summary['difference']:+.1f} points against {each.kind}, 95 % CI")
        low, high = summary["interval"]
        assert low < summary["difference"] < high
        assert (summary["verdict"] == "not significant") == (low <= 0 <= high)
        for target, one in summary["targets"].items():
            assert f"{target} {100 * one['difference']:+.1f} ({one['against']})" in of_each


def test_a_mean_with_a_target_of_one_seed_is_not_tested(tmp_path: Path) -> None:
    study = whole(tmp_path)
    single = part(study, "first", ["sst"])
    entries = tuple(entry for entry in single.result.entries if entry.seed == 1)
    first = StudyRuns(single.result.model_copy(update={"entries": entries}), study.ledger)
    for each in pool([first, part(study, "second", ["mr", "rte"])]):
        assert each.comparison is None and each.summary()["verdict"] is None
        assert "not tested: some targets have one seed alone" in each.lines[0]


def refusals(study: Synthetic) -> list[tuple[list[StudyRuns], list[str] | None, str]]:
    first, second = part(study, "first", ["sst"]), part(study, "second", ["mr", "rte"])
    empty = StudyRuns(second.result.model_copy(update={"entries": ()}), study.ledger)
    other = make(study.reports.parent, name="other", targets=["cola"], sources=["imdb"], **KEYS)
    for label in ("full", "sequential:imdb", "adapter", "warm", "fusion"):
        for seed in KEYS["seeds"]:
            tasks = {"cola": {"meaning": {"classes": CLASSES}}}
            identity = {"backbone": {"weights": "c" * 64}, "label": label, "seed": seed, "tasks": tasks}
            other.add(label, "cola", seed, run=run_name(identity), identity=identity)
    on_dev = make(study.reports.parent, name="on-dev", targets=["subj"], sources=["imdb"], **KEYS | {"scoring": "dev"})
    for label in ("full", "adapter", "warm", "fusion"):
        on_dev.add(label, "subj", 1)
    return [
        ([first, part(study, "again", ["sst", "mr"])], None, "target sst is in two studies, first and again"),
        ([first, second], ["sst", "cola"], "--targets cola: studies first and second have sst, mr and rte"),
        ([first, empty], None, "study second: it needs runs of a fusion and of a row without it on all of its targets"),
        (
            [first, StudyRuns(other.result, study.ledger)],
            None,
            "studies first and other have fusions on different backbones",
        ),
        ([first, StudyRuns(on_dev.result, study.ledger)], None, "no kind of rows in common that can be tested"),
    ]


@pytest.mark.parametrize("case", range(5))
def test_what_cannot_be_pooled_is_refused(case: int, tmp_path: Path) -> None:
    studies, targets, message = refusals(whole(tmp_path))[case]
    with pytest.raises(PipelineError) as refused:
        pool(studies, targets)
    assert message in str(refused.value)
