"""The demo, as a newcomer runs it: the whole pipeline, and its tasks show what they were made to show."""

import itertools
import subprocess
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from pipeline.system.errors import PipelineError
from stages import demo as demo_tasks
from stages.demo import demo
from stages.studies import find_study

ROOT = Path(__file__).parent.parent.parent


def test_the_demo_goes_from_tables_to_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two of its rows, few words, texts and steps: what it shows is seen in the whole one alone."""
    for words in ("OPINIONS", "PRODUCTS"):
        monkeypatch.setattr(demo_tasks, words, dict(itertools.islice(getattr(demo_tasks, words).items(), 20)))
    for task, (*what, _) in demo_tasks.TASKS.items():
        monkeypatch.setitem(demo_tasks.TASKS, task, (*what, dict.fromkeys(("train", "dev", "test"), 60)))
    monkeypatch.setattr("stages.demo.corpus", partial(demo_tasks.corpus, rows=600))
    study = find_study("demo")
    recipe, tasks = {**study.recipe, "epochs": 1, "min_steps": 5}, {"coins": {"epochs": 1}}
    rows = {"methods": ("adapter", "fusion"), "reference": "adapter"}
    study = study.model_copy(update={**rows, "recipe": recipe, "tasks": tasks})
    monkeypatch.setattr("stages.demo.find_study", lambda _: study)
    assert demo(tmp_path / "demo", 0) == 0
    report = tmp_path / "demo" / "reports" / "demo"
    assert (report / "index.html").is_file()
    assert set(pd.read_csv(report / "results.csv")["method"]) == {"adapter", "fusion"}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_fusion_joins_what_two_sources_know_where_no_single_one_helps(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline", "demo", "--output", str(tmp_path / "demo")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stderr[-2000:]
    report = tmp_path / "demo" / "reports" / "demo"
    assert str(report / "index.html") in done.stdout
    results = pd.read_csv(report / "results.csv").set_index("method")["value"]
    # Neither what 300 rows teach, nor one source, nor an adapter through both, comes near. A whole model of both does.
    rivals = {"multitask", "in-turn"}
    others = results.drop(["fusion", *rivals])
    weaker = {"full", "adapter", "adapter-transfer", "adapter-in-turn", "sequential:reviews", "sequential:orders"}
    assert weaker <= set(others.index)
    assert results["fusion"] > others.max() + 0.1
    assert results[list(rivals)].min() > 0.85
    assert 0.25 < results["adapter"] < 0.6
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0
    assert "epoch" not in again.stderr  # nothing is trained twice


def test_a_demo_folder_keeps_to_its_seed(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text('{"seed": 3}')
    with pytest.raises(PipelineError, match="another seed"):
        demo(tmp_path, 0)


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    rows = tmp_path / "data" / "tickets" / "train.csv"
    rows.parent.mkdir(parents=True)
    rows.write_text("id,sentence,label\n")
    with pytest.raises(PipelineError, match=r"holds other files: give another folder \(--output\)"):
        demo(tmp_path, 0)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [rows]
    assert rows.read_text() == "id,sentence,label\n"


def test_a_demo_that_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(folder: Path, _seed: int) -> list[str]:
        (folder / "tickets").mkdir(parents=True, exist_ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("stages.demo.write_tasks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo(tmp_path / "demo", 0)
    reached: list[Path] = []
    monkeypatch.setattr("stages.demo.write_tasks", lambda folder, _seed: reached.append(folder) or [])
    monkeypatch.setattr("stages.demo.corpus", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo(tmp_path / "demo", 0)
    assert reached == [tmp_path / "demo" / "data"]
