"""report --attention: maps of the models that are there, in the page, the folder and a table of their numbers."""

from collections.abc import Callable, Iterator
from xml.etree import ElementTree

import pandas as pd
import pytest

from pipeline.cli.app import main
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import Entry, StudyResult
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import write_json
from pipeline.system.errors import PipelineError
from stages.extract import extract
from stages.report import maps_of, parse_sentences, report
from tests.runs import single_run

HOSTILE = 'good <script>alert(1)</script> $x_1$ --> "film" &amp;'


@pytest.fixture(scope="module")
def records(place: Workspace, quick: Callable[..., Recipe]) -> dict[str, RunRecord]:
    recipe = quick("full", epochs=1)
    apart = quick("full", epochs=1, encoding="siamese", head="cosine", pooling="cls")
    return {
        "full": single_run(place, "full", "pairs", recipe, seed=1).get(),
        "apart": single_run(place, "full", "pairs", apart, seed=1).get(),
        "adapter": extract("pairs", quick("adapter", epochs=1), place, seed=1).record,
    }


@pytest.fixture
def result(place: Workspace, records: dict[str, RunRecord]) -> Iterator[StudyResult]:
    study = parse_study(
        {
            "name": "looks",
            "methods": list(records),
            "rows": {"apart": {"method": "full", "recipe": {"encoding": "siamese", "head": "cosine"}}},
            "targets": ["pairs"],
            "seeds": [1],
        },
        "test",
    )
    entries = tuple(Entry(method=row, target="pairs", seed=1, run=record.run) for row, record in records.items())
    found = StudyResult(study=study, backbone=place.backbone_name, entries=entries)
    write_json(place.reports / "looks" / "study.json", found.model_dump(mode="json"))
    yield found


def test_every_row_of_a_study_has_a_map_and_a_pair_apart_has_two(result, records, place) -> None:
    maps = maps_of("the film is good ||| the meal", None, result, place.ledger)
    assert [found.run for found in maps] == [records[name].run for name in ("full", "apart", "apart", "adapter")]
    assert [len(found.tokens) for found in maps] == [9, 6, 4, 9]
    assert [found.text for found in maps][1:3] == ["the film is good", "the meal"]
    for found in maps:
        assert list(found.layers) == [1, 2]
        for layer, values in found.layers.items():
            assert values.shape == (len(found.tokens), len(found.keys(layer)))
            assert values.sum(axis=1) == pytest.approx(1, abs=1e-5)
    full, adapter = maps[0], maps[3]
    assert abs(full.layers[2] - adapter.layers[2]).max() > 1e-3


def test_the_report_has_picture_and_numbers_and_a_hostile_sentence_stays_text(result, place, records) -> None:
    chosen = [records[name].run for name in ("full", "adapter")]
    folder = report("looks", place.reports, HOSTILE, chosen)
    figures = folder / "figures"
    assert {".svg", ".png", ".csv"} == {file.suffix for file in figures.glob("attention-maps.*")}
    numbers = pd.read_csv(figures / "attention-maps.csv", keep_default_na=False)
    assert numbers.groupby(["run", "layer", "position"])["attention"].sum().to_numpy() == pytest.approx(1, abs=1e-5)
    assert set(numbers["run"]) == set(chosen)
    assert set(numbers["text"]) == {HOSTILE}
    page = (folder / "index.html").read_text()
    assert "Where the models look" in page
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    tags = [element.tag for element in ElementTree.parse(figures / "attention-maps.svg").iter()]
    assert not [tag for tag in tags if tag.endswith("script")]
    report("looks", place.reports)
    assert not (figures / "attention-maps.svg").exists()
    assert "Where the models look" not in (folder / "index.html").read_text()


def test_runs_that_kept_no_model_are_named_and_left_out(result, records, place, capsys) -> None:
    bare = records["full"].model_copy(update={"run": "0" * 12, "weights_sha256": None})
    place.ledger.finish(bare, [{"epoch": 1.0, "dev": 0.5}], {})
    maps = maps_of("good", ["0" * 12, records["adapter"].run], result, place.ledger)
    assert [found.run for found in maps] == [records["adapter"].run]
    said = capsys.readouterr().err
    assert "no attention map of run 000000000000 (full for pairs, seed 1)" in said
    assert "kept no model that is still there" in said
    with pytest.raises(PipelineError, match="no run here kept its model: name others with --runs"):
        maps_of("good", ["0" * 12], result, place.ledger)


@pytest.mark.parametrize("text", ["", "  ", "a ||| ", "||| b", "a ||| b ||| c"])
def test_what_is_no_sentence_and_no_pair_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match="give a sentence, or two as 'a ||| b'".replace("|", r"\|")):
        parse_sentences(text)


def test_what_cannot_be_drawn_is_told_in_one_line(result, records, place, capsys, monkeypatch) -> None:
    where = ["report", "--study", "looks", "--reports", str(place.reports)]
    assert main([*where, "--runs", "abc"]) == 2
    assert "give --attention with it" in capsys.readouterr().err
    assert main([*where, "--attention", "good", "--runs", "nobody"]) == 2
    assert "--runs nobody: no such run" in capsys.readouterr().err
    monkeypatch.setattr("stages.report.MOST_TOKENS", 5)
    assert main([*where, "--attention", "the film is good"]) == 2
    assert "6 tokens are more than a picture can show (5)" in capsys.readouterr().err
