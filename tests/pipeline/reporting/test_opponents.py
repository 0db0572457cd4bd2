"""A fusion is held against the best row of each kind, which the test rows do not choose."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.records.studies import Line
from pipeline.reporting.opponents import (
    OPPONENTS,
    Side,
    _selected,
    close_calls,
    duels,
    holds_fusion,
    leading_fusion,
    opponents_sentences,
    opponents_table,
)
from pipeline.reporting.runs import StudyRuns
from pipeline.stats.paired import mean_difference
from tests.pipeline.reporting.synthetic import Synthetic, make, predictions_of

WARM = {"warm": {"method": "adapter", "of": "adapter"}}


def runs_of(study: Synthetic) -> StudyRuns:
    return StudyRuns(study.result, study.ledger)


def only(side: Side) -> Line:
    """The line that represents all seeds."""
    (line,) = {*side.selected.values()}
    return line


@pytest.mark.parametrize("lines", [2, 3, 5, 11])
def test_a_side_gains_nothing_by_being_selected_from_more_lines(lines: int) -> None:
    """Equal lines; a good seed is good on the validation rows and on the test rows. In points, over 2,000 studies."""
    generator, studies = np.random.default_rng(lines), 2000
    quality = generator.normal(0, 2, (studies, lines, 5))
    dev, tested = (quality + generator.normal(0, deviation, quality.shape) for deviation in (1.5, 1))
    gained, lucky = list[float](), list[float]()
    for number in range(studies):
        scores = {Line(str(line)): dict(enumerate(dev[number, line].tolist())) for line in range(lines)}
        gained += [float(tested[number, int(line.row), seed]) for seed, line in _selected(scores).items()]
        lucky.append(float(tested[number, dev[number].mean(axis=1).argmax()].mean()))
    assert abs(np.mean(gained)) < 0.1 < 0.3 < np.mean(lucky)


def test_the_line_of_a_seed_is_selected_by_the_other_seeds() -> None:
    first, second = Line("first"), Line("second")
    scores = {first: {1: 0.9, 2: 0.5, 3: 0.5}, second: {1: 0.6, 2: 0.6, 3: 0.6}}
    assert _selected(scores) == {1: second, 2: first, 3: first}
    assert _selected({first: {1: 0.5}, second: {1: 0.6}}) == {1: second}  # of one seed there is no other


def small(folder: Path, **keys: object) -> Synthetic:
    methods = ["full", "sequential", "adapter", "warm", "fusion"]
    study = make(folder, methods=methods, targets=["sst", "mr"], rows=WARM, **{"scoring": "half", **keys})
    for target, source in (("sst", "mr"), ("mr", "sst")):
        for row, quality in (("full", 0.5), (f"sequential:{source}", 0.6), ("adapter", 0.55), ("fusion", 0.8)):
            study.add(row, target, 1, quality)
        study.add("warm", target, 1, 0.7 if target == "sst" else 0.4)
    return study


def test_the_best_row_of_each_kind_is_each_targets_own(tmp_path: Path) -> None:
    runs = runs_of(small(tmp_path))
    best = {duel.kind: {target: str(only(line)) for target, line in duel.best.items()} for duel in duels(runs)}
    assert best == dict(
        zip(
            OPPONENTS,
            (
                {"sst": "adapter", "mr": "adapter"},
                {"sst": "sequential:mr", "mr": "sequential:sst"},
                {"sst": "warm", "mr": "adapter"},
                {"sst": "warm", "mr": "sequential:sst"},
            ),
            strict=True,
        )
    )


def test_the_target_alone_is_what_no_other_task_reaches(tmp_path: Path) -> None:
    """Neither by extra rows, of a trial or of the row it starts from too, nor another backbone, nor a member; and no
    opponent contains a fusion."""
    rows = WARM | {
        "more": {"method": "full", "recipe": {"extra": [{"task": "imdb"}]}},
        "some": {"method": "full", "tune": {"extra": [{}, {"imdb": {}}]}},
        "probe": {"method": "frozen", "targets": ["mr"], "tasks": {"sst": {"extra": {"imdb": {}}}}},
        "started": {"method": "full", "of": "probe"},
        "lp-ft": {"method": "full", "of": "frozen"},
        "elsewhere": {"method": "full", "backbone": "other"},
        "bitfit": {"method": "adapter", "recipe": {"adapter": "bitfit"}},
        "soup": {"method": "merge", "of": "adapter", "experts": 2},
        "warm-soup": {"method": "merge", "of": "warm", "experts": 2},
        "either": {"method": "adapter", "tune": {"adapter": ["houlsby", "bitfit"]}},
        "alike": {"method": "ensemble", "of": ["full", "adapter"]},
        "mixed": {"method": "ensemble", "of": ["full", "warm"]},
        "whole": {"method": "ensemble", "of": ["full", "fusion"]},
    }
    methods = ["full", "sequential", "adapter", *rows, "fusion"]
    study = make(tmp_path, methods=methods, targets=["sst", "mr"], rows=rows, scoring="half").result.study
    kinds = {name: [kind for kind, is_kind in OPPONENTS.items() if is_kind(study, name)] for name in study.methods}
    alone = {name for name, own in kinds.items() if "the target alone" in own}
    assert alone == {"full", "adapter", "probe", "lp-ft", "bitfit", "soup", "either", "alike"}
    # BitFit adds no adapter: chosen by chance on dev, it would stand for adapters that are better on test.
    assert {name for name, own in kinds.items() if "one adapter" in own} == {"adapter", "warm"}
    assert [name for name in study.methods if holds_fusion(study, name)] == ["whole", "fusion"]


def test_the_mean_is_that_of_the_targets_and_is_tested(tmp_path: Path) -> None:
    runs = runs_of(small(tmp_path))
    table = opponents_table(runs)
    assert table is not None and table.columns == ("method", "against", "mean", "sst", "mr")
    for duel, row in zip(duels(runs), table.rows, strict=True):
        assert (row[0].text, row[1].text) == (runs.title(duel.line), duel.kind)
        cells = dict(zip(table.columns, row, strict=True))
        each = [runs.cell(duel.line, t)[0].value - runs.cell(only(duel.best[t]), t)[0].value for t in ("sst", "mr")]
        assert cells["mean"].sort == pytest.approx(sum(each) / 2)
        assert [cells[t].sort for t in ("sst", "mr")] == pytest.approx(each)
        assert cells["sst"].verdict is None and runs.title(only(duel.best["sst"])) in cells["sst"].detail
        assert duel.comparison == mean_difference([*duel.parts.values()]).comparison(len(table.rows))
        assert cells["mean"].verdict == duel.comparison.verdict == "better"


def test_rows_that_are_scored_do_not_choose_the_opponent(tmp_path: Path) -> None:
    """Of two rows the one is better on the validation rows, the other on the test rows."""
    study = make(tmp_path, methods=["full", "adapter", "fusion"], targets=["sst", "mr"], scoring="half", seeds=[1])
    for target in ("sst", "mr"):
        study.add("full", target, 1, predictions=predictions_of(target, 0.7, 1), own={"dev": 0.2})
        study.add("adapter", target, 1, predictions=predictions_of(target, 0.5, 2), own={"dev": 0.9})
        study.add("fusion", target, 1, 0.6)
    assert {str(only(each)) for duel in duels(runs_of(study)) for each in duel.best.values()} == {"adapter"}


def test_the_leading_fusion_is_a_family_of_its_own_and_has_the_only_sentence(tmp_path: Path) -> None:
    rows = {"other": {"method": "fusion", "title": "leading one"}, "second": {"method": "fusion"}}
    methods = ["full", "adapter", "other", "second"]
    study = make(tmp_path, methods=methods, targets=["sst"], sources=["imdb"], rows=rows, scoring="half")
    for row, quality in (("full", 0.5), ("adapter", 0.4), ("other", 0.8), ("second", 0.82)):
        study.add(row, "sst", 1, quality)
    runs = runs_of(study)
    assert leading_fusion(runs) == Line("other")
    for line in ("other", "second"):
        own = [duel for duel in duels(runs) if duel.line == Line(line)]
        assert [duel.comparison for duel in own] == [
            mean_difference([*duel.parts.values()]).comparison(len(own)) for duel in own
        ]
    (sentence,) = opponents_sentences(runs)
    assert sentence.startswith("On sst (one seed), leading one is better than the target alone")
    assert sentence.endswith(
        "Each kind is represented by its best method on the validation rows, whose seed may be lucky."
    )
    assert "second" not in sentence
    # Full fine-tuning is the best of the target alone and of all rows, and named once.
    assert sentence.count("full fine-tuning") == 1 and sentence.count("CI") == 1
    assert "is better than the target alone and the best method without fusion, here full fine-tuning (+" in sentence
    assert ") and one adapter (+" in sentence
    table = opponents_table(runs)
    assert table is not None and table.columns == ("method", "against", "sst")
    for duel, row in zip(duels(runs), table.rows, strict=True):
        assert row[-1].runs == tuple(
            runs.cell(line, "sst")[0].record.run for line in (duel.line, only(duel.best["sst"]))
        )
    assert any("Leading one is the fusion that the study asks about" in note for note in table.notes)
    assert any("corrected for their 3 comparisons together" in note for note in table.notes)


def test_a_fusion_that_lacks_a_target_does_not_lead(tmp_path: Path) -> None:
    study = make(
        tmp_path, methods=["full", "fusion", "second"], targets=["sst", "mr"], rows={"second": {"method": "fusion"}}
    )
    for row, target in (("full", "sst"), ("full", "mr"), ("fusion", "sst"), ("second", "sst"), ("second", "mr")):
        study.add(row, target, 1)
    assert leading_fusion(runs_of(study)) == Line("second")


def test_the_sentence_names_every_kind_with_its_verdict(tmp_path: Path) -> None:
    runs = runs_of(small(tmp_path))
    (sentence,), study = opponents_sentences(runs), runs.study
    for duel in duels(runs):
        assert duel.comparison is not None and duel.comparison.verdict == "better"
        rows = {only(each) for each in duel.best.values()}
        title = study.title(rows.pop().row) if len(rows) == 1 else ""
        same = f", here {title}" if title not in duel.kind else ""
        assert f"{duel.kind}{same} ({100 * duel.comparison.difference:+.1f}" in sentence


def test_a_variant_stands_for_its_fusion_where_the_rows_that_choose_prefer_it(tmp_path: Path) -> None:
    """On mr it is better on the test rows, which do not choose."""
    siamese = {"method": "fusion", "title": "siamese fusion", "variant_of": "fusion", "targets": ["sst", "mr"]}
    study = make(
        tmp_path,
        methods=["full", "fusion", "siamese"],
        targets=["sst", "mr", "rte"],
        rows={"siamese": siamese},
        scoring="half",
        seeds=[1],
    )
    for target in ("sst", "mr", "rte"):
        study.add("full", target, 1, 0.5)
        study.add("fusion", target, 1, predictions=predictions_of(target, 0.6, 1), own={"dev": 0.6})
    study.add("siamese", "sst", 1, predictions=predictions_of("sst", 0.7, 2), own={"dev": 0.7})
    study.add("siamese", "mr", 1, predictions=predictions_of("mr", 0.9, 3), own={"dev": 0.5})
    runs = runs_of(study)
    assert {duel.line for duel in duels(runs)} == {Line("fusion")}
    ours = {"sst": Line("siamese"), "mr": Line("fusion"), "rte": Line("fusion")}
    for duel in duels(runs):
        assert {target: only(each) for target, each in duel.ours.items()} == ours
        for target, line in ours.items():
            expected = runs.cell(line, target)[0].value - runs.cell("full", target)[0].value
            assert duel.parts[target].value == pytest.approx(expected)
    table = opponents_table(runs)
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert cells["sst"].detail.startswith("siamese fusion against") and cells["mr"].detail.startswith("against")
    (sentence,) = opponents_sentences(runs)
    assert "Its variants, selected in the same way: siamese fusion on sst." in sentence


def test_a_study_with_a_primary_comparison_tests_it_alone(tmp_path: Path) -> None:
    """So nothing is corrected for the other three."""
    (duel,) = duels(runs_of(small(tmp_path / "one", primary="one adapter")))
    (same,) = (each for each in duels(runs_of(small(tmp_path / "all"))) if each.kind == duel.kind == "one adapter")
    assert duel.comparison is not None and same.comparison is not None
    assert duel.comparison.p_value == pytest.approx(same.comparison.p_value / len(OPPONENTS))


def test_what_was_chosen_by_the_scores_that_are_shown_is_not_tested(tmp_path: Path) -> None:
    """One opponent is no choice."""
    runs = runs_of(small(tmp_path, scoring="dev"))
    tested = {duel.kind: duel.comparison is not None for duel in duels(runs)}
    assert tested == {kind: kind == "sequential fine-tuning" for kind in OPPONENTS}
    table = opponents_table(runs)
    assert table is not None and any(note.startswith("Not tested: methods that were selected") for note in table.notes)
    (sentence,) = opponents_sentences(runs)
    assert "sequential fine-tuning" in sentence and "the target alone" not in sentence


def test_a_row_that_lost_seeds_is_no_opponent(tmp_path: Path) -> None:
    """The mean of one seed is the best more easily by chance."""
    seeds = [1, 2, 3]
    study = make(tmp_path, methods=["full", "adapter", "fusion"], targets=["sst", "mr"], scoring="half", seeds=seeds)
    for target in ("sst", "mr"):
        for seed in seeds:
            study.add("full", target, seed, 0.5)
            study.add("fusion", target, seed, 0.7)
        study.add("adapter", target, 1, 0.9)
    best = {duel.kind: {str(only(each)) for each in duel.best.values()} for duel in duels(runs_of(study))}
    assert best["the target alone"] == best["the best method without fusion"] == {"full"}


def test_a_mean_of_targets_that_lack_seeds_is_not_tested(tmp_path: Path) -> None:
    study = make(tmp_path, methods=["full", "fusion"], targets=["sst", "mr"], scoring="half", seeds=[1, 2])
    for target, seeds in (("sst", [1, 2]), ("mr", [1])):
        for seed in seeds:
            study.add("full", target, seed, 0.5)
            study.add("fusion", target, seed, 0.7)
    runs = runs_of(study)
    assert [duel.comparison for duel in duels(runs)] == [None] * len(duels(runs))
    assert list(opponents_sentences(runs)) == []


@pytest.mark.parametrize(
    ("rows", "trials"),
    [
        (["frozen"], 2),
        (["frozen", "lp-ft"], 3),  # which starts from the same heads
        (["lp-ft"], 3),
        (["lp-ft", "again"], 4),
        (["frozen", "lp-ft", "both"], 3),  # an ensemble has the trials of its members
        (["both"], 3),
        (["sequential"], 2),  # a run for each source
    ],
)
def test_trials_that_several_opponents_share_count_once(rows: list[str], trials: int, tmp_path: Path) -> None:
    of_frozen = {"method": "full", "of": "frozen"}
    study = make(
        tmp_path,
        methods=["frozen", "full", "lp-ft", "again", "both", "sequential", "fusion"],
        sources=["imdb", "cola"],
        rows={"lp-ft": of_frozen, "again": of_frozen, "both": {"method": "ensemble", "of": ["frozen", "lp-ft"]}},
        tune={"frozen": {"learning_rate": [1e-4, 1e-3]}},
        scoring="half",
    )
    study.add("fusion", "sst", 1)
    for name in rows:
        for label in ("sequential:imdb", "sequential:cola") if name == "sequential" else (name,):
            study.add(label, "sst", 1)
    best = next(duel for duel in duels(runs_of(study)) if duel.kind == "the best method without fusion")
    assert best.trials == {"sst": (1, trials)}


@pytest.mark.parametrize(
    ("gap", "quality", "close", "looks"),
    [(0.009, 0.95, True, 1), (0.011, 0.95, False, 1), (0.009, 0.45, False, 1), (0.009, 0.95, True, 2)],
)
def test_a_verdict_that_depends_on_a_close_choice_is_told(
    gap: float, quality: float, close: bool, looks: int, tmp_path: Path
) -> None:
    """On mr the validation rows prefer a weak adapter; with full fine-tuning, which is strong there, the fusion is not
    better on the mean. Where the verdict stays, there is nothing to tell."""
    methods = ["full", "adapter", "fusion"]
    study = make(tmp_path, methods=methods, targets=["sst", "mr"], scoring="half", seeds=[1], looks=looks)
    for row, target, own, dev in (
        ("full", "sst", 0.5, 0.9),
        ("adapter", "sst", 0.5, 0.2),
        ("full", "mr", quality, 0.6 - gap),
        ("adapter", "mr", 0.4, 0.6),
        ("fusion", "sst", 0.7, 0.7),
        ("fusion", "mr", 0.62, 0.7),
    ):
        study.add(row, target, 1, predictions=predictions_of(target, own, (row, 1)), own={"dev": dev})
    runs = runs_of(study)
    calls = [call for call in close_calls(runs) if call.duel.kind == "the target alone"]
    table = opponents_table(runs)
    told = [note for note in table.notes if "depend on a choice between methods" in note]
    (sentence,) = opponents_sentences(runs)
    says = "that against the target alone on mr and that against the best method without fusion on mr." in sentence
    assert bool(calls) == bool(told) == says == close
    for call in calls:
        duel = call.duel
        assert (call.target, str(only(duel.best["mr"]))) == ("mr", "full")
        assert duel.comparison is not None and duel.comparison.verdict == "better" != call.comparison.verdict
        family = len([each for each in duels(runs) if each.comparison is not None])
        changed = mean_difference([*duel.parts.values()])
        assert changed is not None and call.comparison == changed.comparison(family * looks)
        assert (
            f"On mr, adapter was selected (0.600 on dev). With full fine-tuning ({0.6 - gap:.3f}) there, fusion"
            in told[0]
        )


@pytest.mark.parametrize("looks", [1, 50])
def test_close_choices_are_judged_as_the_verdict_is(looks: int, tmp_path: Path) -> None:
    """With so many looks, both are not significant, and there is nothing to tell; a second fusion is told apart."""
    rows = {"second": {"method": "fusion"}}
    methods = ["full", "adapter", "fusion", "second"]
    study = make(tmp_path, methods=methods, targets=["sst", "mr"], rows=rows, scoring="half", seeds=[1], looks=looks)
    for row, target, own, dev in (
        ("full", "sst", 0.5, 0.2),
        ("adapter", "sst", 0.5, 0.9),
        ("full", "mr", 0.7, 0.595),
        ("adapter", "mr", 0.5, 0.6),
        ("fusion", "sst", 0.9, 0.7),
        ("fusion", "mr", 0.9, 0.7),
        ("second", "sst", 0.52, 0.7),
        ("second", "mr", 0.7, 0.7),
    ):
        study.add(row, target, 1, predictions=predictions_of(target, own, (row, 1)), own={"dev": dev})
    runs = runs_of(study)
    calls = [*close_calls(runs)]
    assert {str(call.duel.line) for call in calls} == ({"second"} if looks == 1 else set())
    (sentence,) = opponents_sentences(runs)
    assert "depend on a choice" not in sentence
