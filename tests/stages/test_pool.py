"""Several studies together say what one study of all their targets says."""

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from pipeline.records.run_record import run_name
from pipeline.records.store import SourceRun
from pipeline.records.studies import Line, StudyResult
from pipeline.reporting.opponents import OPPONENTS, duels, duels_of_leading, leading_fusion
from pipeline.reporting.runs import StudyRuns
from pipeline.settings.parse_study import parse_study
from pipeline.stats.paired import mean_difference
from pipeline.system.errors import PipelineError
from stages.pool import Pool, pool, with_opponents, with_targets, with_variants
from tests.pipeline.reporting.synthetic import CLASSES, Synthetic, make, predictions_of

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


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Synthetic:
    """Read by tests that add nothing to it."""
    return whole(tmp_path_factory.mktemp("pool"))


def part(study: Synthetic, name: str, targets: list[str], **keys: Any) -> StudyRuns:
    """The cells of some targets as a study of their own."""
    sources = [task for task in (*TARGETS, "imdb") if task not in targets]
    values = {"name": name, "targets": targets, "sources": sources, **KEYS, **keys}
    parsed = parse_study(values, "test", known_tasks=["quora"])
    own = (entry for entry in study.entries if entry.target in targets and entry.line.row in parsed.methods)
    return StudyRuns(StudyResult(study=parsed, backbone="nano", entries=tuple(own)), study.ledger)


@pytest.mark.parametrize("keys", [{}, {"source_seed": 7}], ids=str)
def test_the_parts_of_a_study_pooled_are_the_study(keys: dict[str, int], tmp_path: Path) -> None:
    study = whole(tmp_path, **keys)
    pooled = pool([part(study, "first", ["sst"], **keys), part(study, "second", ["mr", "rte"], **keys)])
    expected = duels(StudyRuns(study.result, study.ledger))
    assert [each.kind for each in pooled] == [duel.kind for duel in expected] == [*OPPONENTS]
    for each, duel in zip(pooled, expected, strict=True):
        assert each.comparison is not None and each.comparison == duel.comparison
        assert {target: one.difference for target, one in each.parts.items()} == duel.parts
        assert each.difference == pytest.approx(each.comparison.difference)


@pytest.mark.parametrize(("looks", "together"), [((1, 1), 1), ((3, 1), 3), ((1, 3), 3), ((2, 3), 4)])
def test_the_looks_of_all_studies_correct_the_whole(looks: tuple[int, int], together: int, study: Synthetic) -> None:
    """Each study may have been looked at by itself, in turn."""
    both = [("first", ["sst"]), ("second", ["mr", "rte"])]
    once = pool([part(study, name, targets) for name, targets in both])
    more = pool([part(study, name, targets, looks=each) for (name, targets), each in zip(both, looks, strict=True)])
    for one, corrected in zip(once, more, strict=True):
        assert corrected.comparison.p_value == pytest.approx(min(1, together * one.comparison.p_value))
        (low, high), (lower, higher) = one.comparison.interval, corrected.comparison.interval
        assert (lower < low and higher > high) == (together > 1)


def test_a_variant_stands_for_the_first_fusion_where_the_validation_rows_prefer_it(tmp_path: Path) -> None:
    """Named here or by the study, it makes no difference; the trials of both count."""
    study = whole(tmp_path, methods=[*METHODS, "even"], rows=KEYS["rows"] | {"even": {"method": "fusion"}})
    for seed in study.study.seeds:
        for target in TARGETS:
            study.add("even", target, seed, 0.9 if target == "sst" else 0.4)
    own = {"sst": ["sst"], "others": ["mr", "rte"]}

    def both(**even: str) -> list[StudyRuns]:
        rows = KEYS["rows"] | {"even": {"method": "fusion", **even}}
        return [part(study, name, targets, methods=[*METHODS, "even"], rows=rows) for name, targets in own.items()]

    named = pool([StudyRuns(with_variants(runs.result, ["even"]), study.ledger) for runs in both()])
    assert named == pool(both(variant_of="fusion")) != pool(both())
    for each in named:
        assert [each.parts[target].fusion for target in TARGETS] == ["even", "fusion", "fusion"]
        assert {each.parts[target].trials[0] for target in TARGETS} == {2}
    runs = StudyRuns(study.result, study.ledger)
    for target, one in next(each for each in named if each.kind == "the target alone").parts.items():
        values = [[scored.value for scored in runs.cell(line, target)] for line in (one.fusion, "adapter")]
        assert one.difference.value == pytest.approx(mean(values[0]) - mean(values[1]))


def test_rows_of_another_study_are_opponents_where_both_have_the_target(study: Synthetic) -> None:
    own = part(study, "first", TARGETS, methods=["full", "fusion"], rows={})
    other = part(study, "second", TARGETS[:2])
    joined = with_opponents(own.result, other.result)
    assert {entry.line.row for entry in joined.entries} == {*METHODS}
    added = StudyRuns(joined, study.ledger)
    assert {target for target in TARGETS if added.cell("warm", target)} == {*TARGETS[:2]}
    assert len(added.cell("full", TARGETS[0])) == len(own.cell("full", TARGETS[0]))  # which both have
    alone, more = ({each.kind: each for each in pool([runs])} for runs in (own, added))
    assert "one adapter" not in alone and "one adapter" not in more  # on rte there is none
    of_other = {duel.kind: duel for duel in duels_of_leading(StudyRuns(study.result, study.ledger))}
    for kind in ("the target alone", "the best method without fusion"):
        for target in TARGETS[:2]:
            expected = of_other[kind].parts[target].value
            assert more[kind].parts[target].difference.value == pytest.approx(expected)
    assert with_opponents(own.result, part(study, "third", ["mr"]).result).entries != own.result.entries


def test_a_row_of_another_study_stays_what_it_is_there(study: Synthetic) -> None:
    own = part(study, "first", TARGETS, methods=["full", "fusion"], rows={}, looks=2)
    rows = {"warm": {"method": "adapter", "of": "base"}, "base": {"method": "adapter"}}
    other = part(study, "second", TARGETS, methods=["warm"], rows=rows, looks=2, recipe={"adapter": "lora"})
    joined = with_opponents(own.result, other.result).study
    assert (
        joined.recipe_for("warm", "sst") == other.study.recipe_for("warm", "sst") != own.study.recipe_for("full", "sst")
    )
    assert {kind: is_one(joined, "warm") for kind, is_one in OPPONENTS.items()} == {
        kind: is_one(other.study, "warm") for kind, is_one in OPPONENTS.items()
    }
    assert joined.looks == 3
    with pytest.raises(PipelineError, match="backbones"):
        with_opponents(own.result, other.result.model_copy(update={"backbone": "other"}))


@pytest.mark.parametrize("row", ["adapter", "fusion", "evne"])
def test_what_is_no_other_row_of_fusion_is_no_variant(row: str, study: Synthetic) -> None:
    with pytest.raises(PipelineError, match=f"^--variants {row}: study first has no such row of fusion .* of none$"):
        with_variants(part(study, "first", ["sst"]).result, [row])


def test_a_kind_that_a_study_lacks_is_left_out_and_named(study: Synthetic) -> None:
    studies = [
        part(study, "first", ["sst"]),
        part(study, "second", ["mr"], methods=["full", "adapter", "warm", "fusion"]),
    ]
    assert [each.kind for each in pool(studies)] == [kind for kind in OPPONENTS if kind != "sequential fine-tuning"]
    assert Pool(studies, ()).untested == ["sequential fine-tuning"] and Pool(studies[:1], ()).untested == []


def test_sources_with_one_seed_for_all_move_nothing_beside_those_with_their_own(study: Synthetic) -> None:
    """Only within the study whose sources have a seed of their own do targets share what a seed changes."""
    first = part(study, "first", ["sst"], source_seed=7)
    free, fixed = (part(study, "second", ["mr", "rte"], **keys) for keys in ({}, {"source_seed": 7}))
    for kind, own in {each.kind: each for each in pool([first, free])}.items():
        parts = [one.difference for one in own.parts.values()]
        expected = {of: mean_difference(parts, of) for of in ("sources", "nothing")}
        assert own.comparison == expected["sources"].comparison(4)
        beside = next(each for each in pool([first, fixed]) if each.kind == kind)
        assert beside.comparison == expected["nothing"].comparison(4)
    # Of one target alone nothing is shared, whatever another study with a seed for its sources reads.
    single = pool([first, part(study, "third", ["mr"])])
    for each in single:
        expected_alone = mean_difference([one.difference for one in each.parts.values()])
        assert expected_alone is not None and each.comparison == expected_alone.comparison(4)


def test_some_targets_are_as_if_the_studies_had_no_others(study: Synthetic) -> None:
    """A study that is left out adds no looks, lacks no row, and has no target twice."""
    results = [
        part(study, "first", ["sst"]).result,
        part(study, "second", ["mr", "rte"]).result,
        part(study, "left-out", ["rte"], methods=["adapter", "warm", "fusion"], looks=5).result,
    ]
    some = [StudyRuns(own, study.ledger) for each in results if (own := with_targets(each, ["sst", "mr"])) is not None]
    assert [runs.study.targets for runs in some] == [("sst",), ("mr",)]
    for each, alone in zip(pool(some), pool([part(study, "third", ["sst", "mr"])]), strict=True):
        assert [*each.parts] == ["sst", "mr"] and each.comparison == alone.comparison


def test_a_variant_never_leads_wherever_it_is_listed(tmp_path: Path) -> None:
    rows = KEYS["rows"] | {name: {"method": "fusion", "variant_of": "fusion"} for name in ("even", "plain")}
    results = []
    for place, methods in enumerate((["fusion", "even", "plain"], ["even", "fusion", "plain"])):
        study = whole(tmp_path / str(place), methods=[*METHODS[:-1], *methods], rows=rows)
        for seed in study.study.seeds:
            for target in TARGETS:
                study.add("even", target, seed, 0.9 if target == "sst" else 0.4)
                study.add("plain", target, seed, 0.5)
        runs = StudyRuns(study.result, study.ledger)
        assert leading_fusion(runs) == Line("fusion")
        results.append((pool([runs]), duels_of_leading(runs)))
    assert results[0] == results[1]


def test_of_equal_sources_the_same_one_is_taken_whatever_the_other_targets_are(tmp_path: Path) -> None:
    """mr has it first from sst in a study of both, from imdb in its own."""
    study = make(tmp_path, targets=["sst", "mr"], sources=["imdb"], **KEYS | {"seeds": [1]})
    for target in ("sst", "mr"):
        study.add("fusion", target, 1, 0.6)
    for source, target in (("sst", "mr"), ("imdb", "mr"), ("imdb", "sst")):
        study.add(f"sequential:{source}", target, 1, predictions=predictions_of(target, 0.5, source), own={"dev": 0.5})
    both = StudyRuns(study.result, study.ledger)
    study.entries.sort(key=lambda entry: entry.line.source)
    alone = StudyRuns(study.result, study.ledger)
    assert both.lines != alone.lines
    assert [duel.parts for duel in duels(both)] == [duel.parts for duel in duels(alone)]


@pytest.mark.parametrize("gap", [0.005, 0.015])
def test_a_verdict_that_depends_on_a_close_choice_is_told(gap: float, tmp_path: Path) -> None:
    """Of two studies, one has a strong row that the validation rows place just behind a weak one."""
    studies = []
    for target, full in (("sst", 0.4), ("mr", 0.97)):
        study = make(
            tmp_path, name=f"of-{target}", targets=[target], sources=["imdb"], methods=["full", "adapter", "fusion"],
            scoring="half", seeds=[1],
        )  # fmt: skip
        study.add("full", target, 1, full, own={"dev": 0.6 - gap})
        study.add("adapter", target, 1, 0.4, own={"dev": 0.6})
        study.add("fusion", target, 1, 0.6, own={"dev": 0.7})
        studies.append(StudyRuns(study.result, study.ledger))
    alone = next(each for each in pool(studies) if each.kind == "the target alone")
    assert alone.comparison is not None and alone.comparison.verdict == "better"
    assert bool(alone.close) == (gap < 0.01)
    for text in alone.close:
        assert text.startswith("On mr, adapter was selected (0.600 on dev). With full fine-tuning (0.595) there")
        assert text in alone.lines[-1] and alone.summary()["close"] == [*alone.close]


def test_a_mean_with_a_target_of_one_seed_is_not_tested(study: Synthetic) -> None:
    single = part(study, "first", ["sst"])
    entries = tuple(entry for entry in single.result.entries if entry.seed == 1)
    first = StudyRuns(single.result.model_copy(update={"entries": entries}), study.ledger)
    for each in pool([first, part(study, "second", ["mr", "rte"])]):
        assert each.comparison is None and each.summary()["verdict"] is None
        assert "not tested: too few seeds are on all targets" in each.lines[0]


def refusals(study: Synthetic) -> list[tuple[list[StudyRuns], str]]:
    first, second = part(study, "first", ["sst"]), part(study, "second", ["mr", "rte"])
    two = {"methods": ["full", "fusion", "plain"], "rows": {"plain": {"method": "fusion"}}}
    lacking = part(study, "lacking", ["mr", "rte"], **two)
    kept = tuple(entry for entry in lacking.result.entries if (entry.method, entry.target) != ("fusion", "rte"))
    lacking = StudyRuns(lacking.result.model_copy(update={"entries": kept}), study.ledger)
    other = make(study.reports.parent, name="other", targets=["cola"], sources=["imdb"], **KEYS)
    for label in ("full", "sequential:imdb", "adapter", "warm", "fusion"):
        for seed in KEYS["seeds"]:
            tasks = {"cola": {"meaning": {"classes": CLASSES}}}
            identity = {"backbone": {"weights": "c" * 64}, "label": label, "seed": seed, "tasks": tasks}
            other.add(label, "cola", seed, run=run_name(identity), identity=identity)
    on_dev = make(study.reports.parent, name="on-dev", targets=["subj"], sources=["imdb"], **KEYS | {"scoring": "dev"})
    for label in ("full", "adapter", "warm", "fusion"):
        on_dev.add(label, "subj", 1)
    without = part(study, "without", ["mr"], methods=["full", "adapter"], rows={})
    return [
        ([first, part(study, "again", ["sst", "mr"])], "target sst is in two of the studies first and again"),
        ([first, lacking], "study lacking: its first fusion, fusion, has no run on rte"),
        ([first, without], "study without: it has no row of fusion"),
        ([first, StudyRuns(other.result, study.ledger)], "studies first and other have fusions on different backbones"),
        (
            [first, StudyRuns(on_dev.result, study.ledger)],
            "first and on-dev: no kind of rows without fusion can",
        ),
        ([StudyRuns(on_dev.result, study.ledger)], "on-dev: no kind of rows without fusion"),
        (
            [second, StudyRuns(second.result.model_copy(update={"entries": ()}), study.ledger)],
            "target mr is in two",
        ),
    ]


def test_what_cannot_be_pooled_is_refused(tmp_path: Path) -> None:
    for studies, message in refusals(whole(tmp_path)):
        with pytest.raises(PipelineError) as refused:
            pool(studies)
        assert message in str(refused.value)
