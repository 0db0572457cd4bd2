"""The whole report: what it says follows from the runs, its holes are told, and equal runs give equal files."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.data.tables import write_table
from pipeline.reporting import build
from pipeline.reporting.build import build_report
from pipeline.reporting.figures import Drawing
from pipeline.reporting.figures.drawings import forest, forgetting_map, learning_curves, pareto, scatters
from pipeline.reporting.notes import notes
from pipeline.reporting.published import published_mistakes, published_values
from pipeline.reporting.report import Cell, Report
from pipeline.reporting.rows import low_resource_sentences
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.transfer import fusion_gain_table
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import Published
from pipeline.system.atomic import locked
from pipeline.system.errors import PipelineError
from stages.report import report as report_again
from stages.studies import find_study, study_names
from tests.pipeline.reporting.synthetic import Synthetic, make, predictions_of, whole_study


def rows_of(report: Report, name: str) -> list[dict[str, Cell]]:
    table = next(table for table in report.tables if table.name == name)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_every_table_and_figure_of_a_whole_study_is_there(report: Report, folder: Path) -> None:
    assert [table.name for table in report.tables] == [
        "main", "choices", "opponents", "cost", "low-resource", "fusion-gain", "built-on", "forgetting", "published",
        "published-differences", "published-unstated", "published-setting", "epochs",
    ]  # fmt: skip
    names = [figure.name for figure in report.figures]
    assert names == [
        "forest", "pareto", "low-resource", "built-on", "forgetting", "learning-curves", "confusion-sst",
        "confusion-imdb", "scatter-sts", "fusion-attention",
    ]  # fmt: skip
    assert {file.name for file in (folder / "figures").iterdir()} == {
        f"{name}{suffix}" for name in names for suffix in (".svg", ".png", ".csv")
    }
    for figure in report.figures:
        assert figure.title
        assert figure.caption
        assert len(pd.read_csv(folder / "figures" / f"{figure.name}.csv")) > 0
    for table in report.tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that read texts and tables alone: drawing takes most of a report's time."""
    monkeypatch.setattr(build, "FIGURES", ())


ONE_OF_EACH_KIND = (forest, pareto, learning_curves, forgetting_map, scatters)
"""Intervals, labelled points, lines, a heat map, and density."""


def test_the_study_comes_out_the_same_twice_but_for_the_date(own: Synthetic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FIGURES", ONE_OF_EACH_KIND)
    folder = own.reports / own.study.name
    folder.mkdir()
    (folder / "study.json").write_text(own.result.model_dump_json())

    def written() -> dict[str, bytes]:
        report_again(own.study.name, own.reports)
        return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}

    first, second = written(), written()
    assert list(first) == list(second)
    assert {"index.html", "results.csv", "tables.md", "tables.tex", "tables/main.csv"} <= set(first)
    assert {"figures/pareto.svg", "figures/pareto.png", "figures/scatter-sts.svg"} <= set(first)

    def dateless(page: bytes) -> str:
        return re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?( UTC)?", "", page.decode())

    assert dateless(first.pop("index.html")) == dateless(second.pop("index.html"))
    assert [name for name in first if first[name] != second[name]] == []


@pytest.mark.usefixtures("no_figures")
def test_a_compare_that_ends_before_the_report_is_written_is_in_it(
    own: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own.reports / own.study.name
    folder.mkdir()
    older = own.result.model_copy(update={"entries": own.result.entries[:-1]})
    (folder / "study.json").write_text(older.model_dump_json())

    @contextmanager
    def after_compare(file: Path) -> Iterator[None]:
        """The lock, which another command has held until it wrote its result."""
        with locked(file):
            (folder / "study.json").write_text(own.result.model_dump_json())
            yield

    monkeypatch.setattr("stages.report.locked", after_compare)
    report_again(own.study.name, own.reports)
    assert len(pd.read_csv(folder / "results.csv")) == sum(entry.run is not None for entry in own.entries)


# Summary.


@pytest.mark.usefixtures("no_figures")
def test_the_verdict_has_two_sentences_that_follow_from_the_tests(tmp_path: Path) -> None:
    study = whole_study(tmp_path, scoring="half")
    fusion, overview = build_report(study.result, study.ledger, tmp_path / "out").verdict
    assert fusion.startswith("On the mean of sst and sts, fusion is better than ")
    # Sequential fine-tuning has two lines, which stand in the table alone.
    assert overview.startswith("Compared with full fine-tuning on the mean of sst and sts, better: fusion (+")


def test_the_summary_says_what_the_tests_found(report: Report, runs: StudyRuns) -> None:
    assert any(s.startswith("With 100 training rows, on the mean of sst and sts") for s in report.summary)
    assert any("lowered the score on an earlier one in 4 of 4 pairs" in s for s in report.summary)
    assert any(s.startswith("Adapter and fusion forget nothing") for s in report.summary)
    assert report.summary[-1] == f"1 of {len(runs.result.entries)} cells have no run: see the notes."


@pytest.mark.usefixtures("no_figures")
def test_equal_methods_are_never_called_better_in_the_summary(tmp_path: Path) -> None:
    study = make(tmp_path, targets=["sst", "sts"])
    for target, quality in (("sst", 0.6), ("sts", 1.5)):
        for label in ("full", "adapter"):
            study.add(label, target, 1, predictions=predictions_of(target, quality, label), trained=10)
    report = build_report(study.result, study.ledger, tmp_path / "out")
    verdict = report.verdict[0]
    assert verdict.startswith(
        "Compared with full fine-tuning on the mean of sst and sts (one seed), not significant: adap"
    )
    assert report.summary == ()


# Notes.


@pytest.mark.usefixtures("no_figures")
def test_the_notes_say_what_a_reader_must_know(tmp_path: Path) -> None:
    study = make(tmp_path, seeds=[1, 2])
    study.add("full", "sst", 1)
    leaky = study.record("adapter", "sst", 1)
    changed = leaky.model_copy(
        update={
            "scores": {
                "sst": leaky.own.model_copy(
                    update={
                        "train_rows": 900,
                        "dev_in_train": 17,
                        "recipe": leaky.recipe.model_copy(update={"precision": "bf16"}),
                    }
                )
            },
            "provenance": {"hardware": "CPU, 2 threads"},
        }
    )
    (study.ledger.folder(leaky.run) / "run.json").write_text(changed.model_dump_json())
    study.serve(leaky, "adapter", "sst")
    study.fail("adapter", "sst", 2)
    report = build_report(study.result, study.ledger, tmp_path / "out")
    told = report.notes
    assert "nano" in told[0]
    assert "Training rows: sst 900/1000; scored rows: sst 400." in told
    assert "Computed in auto by unknown hardware; in bf16 by CPU, 2 threads." in told
    (kinds,) = [note for note in told if "kinds of hardware" in note]
    assert "2 kinds of hardware: unknown hardware (1 run); CPU, 2 threads (1 run)" in kinds
    assert "0.02 in bf16" in kinds
    assert "Precisions are mixed (full fine-tuning auto; adapter bf16): give --precision" in " ".join(told)
    assert "Texts of scored rows that are also in train: sst 17." in told
    assert report.missing == ("adapter sst seed 2: no memory",)
    # In batches of 32, 1,000 rows are 32 steps an epoch and 900 are 29: 32 is more than 1.1 times 29.
    assert "Optimiser steps of a run differ on sst: full fine-tuning 96; adapter 87." in told


@pytest.mark.parametrize(("best_epoch", "rows", "is_told"), [(4, 100, True), (3, 100, False), (4, 10_000, False)])
def test_a_row_that_was_still_rising_when_short_training_ended_is_told(
    best_epoch: int, rows: int, is_told: bool, tmp_path: Path
) -> None:
    study = make(tmp_path, methods=["adapter"])
    recipe = Recipe(trainable="adapter", epochs=4)
    study.add("adapter", "sst", 1, recipe=recipe, best_epoch=best_epoch, own={"train_rows": rows})
    told = [note for note in notes(StudyRuns(study.result, study.ledger)) if "still rising" in note]
    assert len(told) == is_told
    assert all("adapter 1 of 1" in note for note in told)


@pytest.mark.parametrize("seeds", [[1], [1, 2]])
def test_notes_name_rows_as_the_tables_do(seeds: list[int], tmp_path: Path) -> None:
    """Rows that have a title in common are told apart, and one with commas stays one of a list."""
    rows: dict[str, dict[str, Any]] = {
        f"from-{source}": {"method": "sequential", "sources": [source], "title": "sequential"}
        for source in ("imdb", "sts")
    }
    rows["warm"] = {"method": "adapter", "of": "adapter", "title": "adapter, warm"}
    rows["warmer"] = rows["warm"]
    tune = {"sequential": {"learning_rate": [1e-5, 2e-5, 3e-5]}}
    methods = ["full", *list(rows)[:2], "adapter", "warm", "warmer"]
    study = make(tmp_path, methods=methods, sources=["imdb", "sts"], seeds=seeds, rows=rows, tune=tune)
    study.add("full", "sst", 1, recipe=Recipe(trainable="full", precision="fp32"))
    for source in ("imdb", "sts"):
        recipe = Recipe(trainable="full", learning_rate=3e-5, precision="bf16")
        study.add(f"from-{source}:{source}", "sst", 1, recipe=recipe, own={"train_rows": 500})
    for name in ("warm", "warmer"):
        study.add(name, "sst", 1, recipe=Recipe(trainable="adapter", precision="bf16"))
    told = list(notes(StudyRuns(study.result, study.ledger)))
    both = [f"sequential, from {source}" for source in ("imdb", "sts")]
    warm = [f"adapter, warm ({name})" for name in ("warm", "warmer")]
    reused = "; other seeds reuse the choice" if len(seeds) > 1 else ""
    assert [note for note in told if " was tuned on " in note] == [
        f"{title} was tuned on the validation rows (learning_rate 1e-05, 2e-05, 3e-05; 3 trials on seed 1{reused})."
        " Its seconds count all trials, and no table shows the scores of the others."
        for title in both
    ]
    assert [note for note in told if note.startswith("Start of ")] == [
        f"Start of {title}, selected on training rows, with the number of runs: sst: new adapter 1." for title in warm
    ]
    for expected in (
        f"Precisions are mixed (full fine-tuning fp32; {'; '.join(f'{title} bf16' for title in both + warm)}):",
        f"Optimiser steps of a run differ on sst: full fine-tuning 96; {both[0]} 48; {both[1]} 48; {warm[0]} 96;"
        f" {warm[1]} 96. Methods that start from trained models: {'; '.join(both + warm)}.",
        f"{both[0]}, learning_rate 3e-05 (highest) in 1 of 1; {both[1]}, learning_rate 3e-05 (highest) in 1 of 1.",
        f"(full fine-tuning 1; adapter 1; {warm[0]} 1; {warm[1]} 1; {both[0]} 3; {both[1]} 3)",
    ):
        assert [note for note in told if expected in note], told


def test_a_fusion_that_took_no_source_is_told(tmp_path: Path) -> None:
    rows = {"joined": {"method": "fusion"}, "alone": {"method": "fusion"}}
    methods, targets = ["full", "joined", "alone"], ["sst", "sts"]
    study = make(tmp_path, methods=methods, targets=targets, sources=["imdb"], seeds=[1, 2], rows=rows)
    for target in targets:
        for seed in (1, 2):
            study.add("full", target, seed)
            study.add("joined", target, seed, gates={"imdb": float(seed - 1), "sts": 0.0})
            study.add("alone", target, seed, gates={target: 1.0, "imdb": 0.0})
    told = [note for note in notes(StudyRuns(study.result, study.ledger)) if "took no source" in note]
    assert told == [
        f"{title} took no source on {where}: probes set all gates of sources to 0, so it starts as the target's own"
        " adapter alone."
        for title, where in (
            ("Joined", "sst (1 of 2 runs) and sts (1 of 2 runs)"),
            ("Alone", "sst (2 of 2 runs) and sts (2 of 2 runs)"),
        )
    ]


@pytest.mark.parametrize(
    ("kept", "edges"),
    [
        ([1e-3, 1e-3, 3e-3], "full fine-tuning, learning_rate 0.001 (lowest) in 2 of 3"),
        ([3e-3, 3e-3, 3e-3], "full fine-tuning, learning_rate 0.003 (highest) in 3 of 3"),
        ([1e-3, 2e-3, 3e-3], ""),
    ],
)
def test_a_row_that_kept_an_end_of_what_it_tried_is_told(kept: list[float], edges: str, tmp_path: Path) -> None:
    # Of two values some are an end whatever happens, and below a dropout of 0 there is nothing.
    tune = {
        "full": {"learning_rate": [2e-3, 1e-3, 3e-3], "precision": ["fp32", "bf16"]},
        "frozen": {"learning_rate": [1e-3, 1e-2]},
        "adapter": {"epochs": [4], "hidden_dropout": [0.0, 0.1, 0.2]},
    }
    methods, targets = ["full", "frozen", "adapter"], ["sst", "mr", "trec"]
    study = make(tmp_path, methods=methods, targets=targets, seeds=[1, 2], tune=tune)
    for target, rate in zip(study.study.targets, kept, strict=True):
        study.add("full", target, 1, recipe=Recipe(trainable="full", epochs=4, learning_rate=rate))
        study.add("full", target, 2, recipe=Recipe(trainable="full", epochs=4, learning_rate=1e-3))
        study.add("frozen", target, 1, recipe=Recipe(trainable="head", learning_rate=1e-3 if target == "mr" else 1e-2))
        study.add("adapter", target, 1, recipe=Recipe(trainable="adapter", epochs=4, hidden_dropout=0.0))
    told = [
        note for note in notes(StudyRuns(study.result, study.ledger)) if note.startswith("Most selected values were")
    ]
    assert [note.split(": ")[1].rstrip(".") for note in told] == ([edges] if edges else [])


@pytest.mark.parametrize(
    ("seeds", "source_seed", "is_told"), [([1, 2], 7, True), ([1, 2], None, False), ([1], 7, False)]
)
def test_what_no_interval_covers_is_told_where_there_are_intervals_over_seeds(
    seeds: list[int], source_seed: int | None, is_told: bool, tmp_path: Path
) -> None:
    given = {} if source_seed is None else {"source_seed": source_seed}
    study = make(tmp_path, methods=["full", "fusion"], sources=["imdb"], seeds=seeds, **given)
    for seed in seeds:
        study.add("full", "sst", seed)
        study.add("fusion", "sst", seed)
    caveat = (
        "The models of other tasks were trained once, with seed 7: no interval covers how much another seed would"
        " change them."
    )
    assert [note for note in notes(StudyRuns(study.result, study.ledger)) if "models of other tasks" in note] == (
        [caveat] if is_told else []
    )


@pytest.mark.parametrize(
    ("row", "other", "expected"),
    [
        ({"trainable": "full"}, {"trainable": "adapter"}, None),  # none of it is unusual
        ({"trainable": "full"}, {"trainable": "adapter", "adapter": "lora"}, {"adapter": ["-", "lora"]}),
        (
            {"trainable": "adapter", "bottleneck": 8},
            {"trainable": "fusion", "fusion": "gated", "own_adapter": "none", "gate": "matrix", "gate_rank": 4},
            {"bottleneck": ["8", "-"], "gate": ["-", "matrix"], "gate rank": ["-", "4"], "own adapter": ["-", "none"]},
        ),
        ({"trainable": "full", "smart": 1.0}, {"trainable": "full"}, {"smart": ["1.0", "0.0"]}),
    ],
)
@pytest.mark.usefixtures("no_figures")
def test_only_settings_with_an_effect_are_told(
    row: dict[str, Any], other: dict[str, Any], expected: dict[str, list[str]] | None, tmp_path: Path
) -> None:
    study = make(tmp_path)
    for name, values in (("full", row), ("adapter", other)):
        study.add(name, "sst", 1, recipe=Recipe.parse(values, name))
    report = build_report(study.result, study.ledger, tmp_path / "out")
    if expected is None:
        assert "settings" not in [table.name for table in report.tables]
        return
    settings = rows_of(report, "settings")
    assert {key: [line[key].text for line in settings] for key in settings[0] if key != "method"} == expected


@pytest.mark.usefixtures("no_figures")
def test_a_model_of_several_tasks_has_a_recipe_for_each(tmp_path: Path) -> None:
    study = make(tmp_path, methods=["full", "multitask"], targets=["sst", "sts"])
    for target in ("sst", "sts"):
        study.add("full", target, 1, 1.0)
    shared = study.record("multitask", "sst", 1, others={"sts": (predictions_of("sts", 1.0, 3), None)})
    siamese = shared.scores["sts"].model_copy(update={"recipe": Recipe(encoding="siamese")})
    changed = shared.model_copy(update={"scores": shared.scores | {"sts": siamese}})
    (study.ledger.folder(shared.run) / "run.json").write_text(changed.model_dump_json())
    for target in ("sst", "sts"):
        study.serve(shared, "multitask", target)
    settings = rows_of(build_report(study.result, study.ledger, tmp_path / "out"), "settings")
    assert settings[1]["encoding"].text == "- (sst); siamese (sts)"


@pytest.mark.usefixtures("no_figures")
def test_where_a_backbone_stands_on_this_machine_is_not_told(tmp_path: Path) -> None:
    study = make(tmp_path)
    study.add("full", "sst", 1)
    for name, told in (("/home/someone/nano", "nano"), ("google-bert/bert-base-uncased",) * 2):
        report = build_report(study.result.model_copy(update={"backbone": name}), study.ledger, tmp_path / "out")
        assert report.backbone == told
        assert report.notes[0].startswith(f"Backbone {told}.")


# Holes.


def test_a_study_with_no_finished_run_is_a_report_of_holes(tmp_path: Path) -> None:
    study = make(tmp_path, methods=["full", "sequential", "adapter", "fusion"], targets=["sst", "sts"])
    for label in ("full", "sequential:sts", "adapter", "fusion"):
        study.fail(label, "sst", 1)
    report = build_report(study.result, study.ledger, tmp_path / "out")
    assert report.figures == ()
    assert len(rows_of(report, "main")) == 4
    assert len(report.missing) == 4
    assert (report.verdict, report.summary) == ((), ("4 of 4 cells have no run: see the notes.",))
    assert len(report.results) == 0


# Other tables.


def test_published_numbers_stand_beside_ours(report: Report, runs: StudyRuns) -> None:
    rows = {row["method"].text: row for row in rows_of(report, "published")}
    full = rows["full FT, mean"]
    assert full["sst, Xu"].text == "0.518"
    assert full["sst, ours"].runs == tuple(s.record.run for s in runs.cell("full", "sst"))
    assert rows["SST then task"]["sst, Xu"].text == "-"
    assert rows["SST then task"]["sts, ours"].text != "-"
    assert rows["full FT, CLS"]["sst, ours"].text == "-"
    # quora is no target of this study.
    assert not [column for column in full if "quora" in column]
    setting = {row["setting"].text: row for row in rows_of(report, "published-setting")}
    assert (setting["sst, training rows"]["Xu"].text, setting["sst, training rows"]["ours"].text) == ("8,544", "1,000")


@pytest.mark.usefixtures("no_figures")
def test_several_published_tables_stand_each_for_itself(tmp_path: Path) -> None:
    source = {"report": "LiuShen", "table": ["Table 10", "Table 11"], "tasks": {"sst": "sst"}}
    study = make(tmp_path, rows={"full": {"published": ["annealed", "default"]}}, published=source)
    study.add("full", "sst", 1)
    report = build_report(study.result, study.ledger, tmp_path)
    rows = {
        (table, row["method"].text): row
        for table in ("Table 10", "Table 11")
        for row in rows_of(report, f"published-{table.lower().replace(' ', '-')}")
    }
    assert rows["Table 10", "annealed"]["sst, LiuShen"].text == "0.498"
    assert rows["Table 11", "default"]["sst, LiuShen"].text == "0.510"
    ours = [rows[name]["sst, ours"].text for name in (("Table 10", "annealed"), ("Table 11", "default"))]
    assert ours[0] == ours[1] != "-"
    assert rows["Table 11", "+SICK"]["sst, ours"].text == "-"


def test_a_published_table_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(PipelineError, match=r"no table 'Table 99' \(dev\) of 'Xu': there are .*Xu, Table 1 \(dev\)"):
        published_values(Published(report="Xu", table=("Table 1", "Table 99"), tasks={"sst": "sst"}))


def test_every_shipped_study_names_what_its_published_table_has(whole: Synthetic) -> None:
    for study in (whole.study, *(find_study(name) for name in study_names())):
        assert published_mistakes(study) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"table": "Table 99"}, ["published: no table 'Table 99' (dev) of 'Xu'"]),
        (
            {"tasks": {"sst": "sst", "f1": "sts"}},
            ["published: no column 'f1' in Xu, Table 1 (dev): there are"],
        ),
        ({"split": "test", "table": "Table 2"}, ["published: no row 'full FT, mean' in Xu, Table 2 (test)"] * 5),
    ],
)
def test_what_the_published_table_does_not_have_is_told_before_training(
    change: dict[str, object], told: list[str], whole: Synthetic
) -> None:
    published = whole.study.published.model_copy(update=change)
    found = published_mistakes(whole.study.model_copy(update={"published": published}))
    assert len(found) == len(told)
    assert found[0].startswith(told[0])


def test_the_low_resource_table_has_every_point_and_marks_of_its_own(report: Report, runs: StudyRuns) -> None:
    rows = rows_of(report, "low-resource")
    assert [(row["training rows"].text, row["method"].text) for row in rows] == [
        (size, method) for size in ("100", "1,000") for method in ("full fine-tuning", "sequential", "fusion")
    ]
    fusion = next(row for row in rows if (row["training rows"].text, row["method"].sort) == ("100", "fusion"))
    assert fusion["sst (accuracy)"].verdict == "better"
    assert fusion["sst (accuracy)"].runs == tuple(s.record.run for s in runs.cell("fusion", "sst", 100))
    # Sequential fine-tuning is one line over its two sources and two seeds.
    assert len(next(row for row in rows if row["method"].sort == "sequential")["sst (accuracy)"].runs) == 4


def test_few_training_rows_and_unscored_starts_name_each_row(tmp_path: Path) -> None:
    rows = {name: {"method": "fusion", "title": f"fusion, {name}"} for name in ("one", "two")}
    curve = {"rows": [100], "methods": ["full", *rows]}
    study = make(tmp_path, methods=["full", *rows], sources=["imdb"], rows=rows, curve=curve)
    standard = Recipe.parse({"trainable": "fusion", "fusion": "standard"}, "test")
    for name in ("full", *rows):
        for points in (100, None):
            study.add(name, "sst", 1, rows=points, predictions=predictions_of("sst", 0.6, name), recipe=standard)
    runs = StudyRuns(study.result, study.ledger)
    (sentence,) = low_resource_sentences(runs)
    assert sentence.endswith(": the difference is not significant for fusion, one; fusion, two.")
    table = fusion_gain_table(runs)
    assert any(note.startswith("fusion, one; fusion, two: not scored before training") for note in table.notes)


def test_the_epoch_table_reads_each_task_of_a_model_of_several(report: Report) -> None:
    rows = {(row["method"].sort, row["task"].text): row for row in rows_of(report, "epochs")}
    assert [rows["multitask", "sst"][f"epoch {epoch}"].text for epoch in (1, 2, 3)] == ["0.250"] * 3
    full = [rows["full", "sst"][f"epoch {epoch}"].sort for epoch in (1, 2, 3)]
    assert full[1] == pytest.approx(full[0] + 0.1) == pytest.approx(full[2] + 0.1)


def test_the_tables_show_the_rows_that_are_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every score of a study is the same whether its rows chose too, or others did that are of no worth."""

    def write_numbers(drawing: Drawing, folder: Path) -> None:
        write_table(drawing.numbers, folder / f"{drawing.figure.name}.csv")

    monkeypatch.setattr(build, "write", write_numbers)
    reports = {}
    for scoring in ("dev", "half"):
        study = whole_study(tmp_path / scoring, scoring=scoring)
        reports[scoring] = build_report(study.result, study.ledger, tmp_path / scoring / "out")
    same, apart = ({table.name: table for table in report.tables} for report in reports.values())
    assert same.keys() - apart.keys() == {"choices"}
    assert apart.keys() <= same.keys()
    # Opponents are chosen by scores: where the same methods are compared, they are not tested.
    for name, table in apart.items():
        if name == "opponents":
            continue
        texts = [
            [[(cell.text, cell.verdict, cell.detail) for cell in row] for row in each.rows]
            for each in (table, same[name])
        ]
        assert texts[0] == texts[1], name
    verdicts = [report.verdict[-1] for report in reports.values()]
    assert verdicts[0] == verdicts[1] and reports["dev"].summary == reports["half"].summary
    results = {scoring: report.results for scoring, report in reports.items()}
    assert (set(results["dev"]["split"]), set(results["half"]["split"])) == ({"dev"}, {"test"})
    assert results["dev"]["value"].tolist() == results["half"]["value"].tolist()
    scored = ("main", "low-resource", "fusion-gain", "built-on", "forgetting", "published")
    for name in scored:
        assert apart[name].notes[0].startswith("Scores are on one half of dev; "), name
        assert same[name].notes[0].startswith("Scores are on dev, where"), name
    for figure in ("pareto", "low-resource", "confusion-sst", "scatter-sts", "built-on", "forgetting"):
        numbers = [(tmp_path / scoring / "out/figures" / f"{figure}.csv").read_text() for scoring in reports]
        assert numbers[0] == numbers[1], figure


@pytest.mark.parametrize(
    ("provenance", "hardware"),
    [
        ({}, "unknown hardware"),
        ({"hardware": None, "processor": "Xeon"}, "unknown hardware"),
        ({"hardware": "CPU, 2 threads"}, "CPU, 2 threads"),
        ({"hardware": "CPU, 2 threads", "processor": "Xeon"}, "CPU, 2 threads (Xeon)"),
        ({"hardware": "1 x NVIDIA H100", "processor": "Xeon"}, "1 x NVIDIA H100"),
    ],
)
def test_a_record_says_what_computed_it(tmp_path: Path, provenance: dict[str, Any], hardware: str) -> None:
    record = make(tmp_path).record("full", "sst", 1).model_copy(update={"provenance": provenance})
    assert record.hardware == hardware
