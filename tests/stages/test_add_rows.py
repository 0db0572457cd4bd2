"""tasks add: new rows join a task, and its old rows, above all those of test, stay where they are."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.data.split import row_hashes
from pipeline.data.tables import read_table, write_table
from pipeline.data.task_data import load_all_rows
from pipeline.data.tasks import NewTask, find_task
from pipeline.runs.outcome import seen_by
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.add_rows import add_rows
from stages.evaluate import evaluate
from stages.extract import extract
from stages.new_task import SPLITS, new_task

Command = Callable[..., tuple[int, str, str]]
NAMES = ("Bug", "Lob", "Rechnung")


def mails(kind: str, count: int, **columns: Any) -> pd.DataFrame:
    texts = [f"{kind} mail number {row} in words" for row in range(count)]
    return pd.DataFrame({"text": texts, "label": [NAMES[row % 3] for row in range(count)], **columns}, dtype=object)


def task_of(rows: pd.DataFrame, folder: Path, suffix: str = ".csv", **options: Any) -> Path:
    write_table(rows, folder / f"mails{suffix}")
    new_task(folder / f"mails{suffix}", folder / "data", NewTask(**options))
    return folder / "data" / "mails"


def added(folder: Path, rows: pd.DataFrame, suffix: str = ".csv", **options: Any) -> str:
    write_table(rows, file := folder.parents[1] / f"more{suffix}")
    return add_rows(folder, file, **options)


def texts_of(folder: Path) -> dict[str, list[str]]:
    return {split: read_table(next(folder.glob(f"{split}.*")))["text"].tolist() for split in SPLITS}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize("more", [".csv", ".xlsx", ".jsonl"])
def test_many_small_additions_keep_all_splits_and_the_proportions(suffix: str, more: str, tmp_path: Path) -> None:
    folder = task_of(mails("old", 90), tmp_path, suffix)
    before = texts_of(folder)
    for month in range(10):
        added(folder, mails(f"month {month}", 9), more)
    after = texts_of(folder)
    assert {split: texts[: len(before[split])] for split, texts in after.items()} == before
    assert len(after["test"]) == 9 and 9 + 5 <= len(after["dev"]) <= 9 + 15  # 10 on average
    data = load_all_rows(find_task("mails", folder.parent), folder.parent, test=True)
    ids = [one for part in (data.train, data.dev, data.test) if part is not None for one in part["id"]]
    assert sorted(map(int, ids)) == list(range(180))


def test_what_is_known_is_left_out_and_all_else_is_counted(tmp_path: Path) -> None:
    folder = task_of(mails("old", 90), tmp_path)
    known = {
        split: read_table(folder / f"{split}.csv")[["text", "label"]].head(2).reset_index(drop=True) for split in SPLITS
    }
    known["test"]["text"] = known["test"]["text"].str.upper() + "!"
    known["train"].loc[0, "label"] = next(name for name in NAMES if name != known["train"]["label"][0])
    odd = mails("odd", 6)
    odd.loc[1, "text"], odd.loc[2, "label"], odd.loc[4, "text"] = " ", None, odd.loc[3, "text"]
    odd.loc[4, "label"] = odd.loc[3, "label"]
    report = added(folder, pd.concat([mails("new", 30), *known.values(), odd]), split="80/20")
    lines = set(report.splitlines())
    assert {
        "left out: 1 row whose text is in train with another label, which stays (row 32)",
        "left out: 1 row whose text is in train already (row 33)",
        "left out: 2 rows whose text is in dev already (rows 34, 35)",
        "left out: 2 rows whose text is in test already (rows 36, 37)",
        "left out: 2 rows without text or label (rows 39, 40)",
        "left out: 1 row with the text of an earlier row (row 42)",
    } < lines  # the header is row 1
    train, dev, test = (len(texts) for texts in texts_of(folder).values())
    assert (train + dev, test) == (81 + 33, 9) and 5 <= dev - 9 <= 9
    told = f"train {train - 72} rows, dev {dev - 9} rows; now train {train}, dev {dev}, test 9"
    assert f"added to {folder}: {told}" in lines
    state = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert "nothing is new" in added(folder, pd.concat([mails("new", 30)]))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == state


def test_no_test_row_is_ever_trained_on(workspace: Workspace, quick: Callable[..., Recipe], tmp_path: Path) -> None:
    """Two additions, each followed by training that continues the last model."""
    folder = task_of(mails("old", 120), tmp_path, split="60/20/20")
    place, recipe = dataclasses.replace(workspace, data=folder.parent), quick("adapter", epochs=1)
    models = [extract("mails", recipe, place, seed=0).record]
    for month in ("may", "june"):
        spoiled = read_table(folder / "test.csv").sample(6, random_state=1)[["text", "label"]]
        added(folder, pd.concat([mails(month, 30), spoiled]))
        place = dataclasses.replace(place)  # which reads the task anew
        models.append(extract("mails", recipe, place, seed=0, start_from="mails").record)
        assert models[-1].started_from is not None and models[-1].started_from.run == models[-2].run
        assert not extract("mails", recipe, place, seed=0, start_from="mails").is_new
    data = load_all_rows(place.task("mails"), folder.parent, test=True)
    assert data.test is not None and len(data.test) == 24
    seen = seen_by("mails", models[-1].run, place)
    assert set(row_hashes(data.train)) <= set(seen["hash"][seen["use"] == "trained"])
    assert not set(row_hashes(data.test)) & set(seen["hash"])
    for model in models:
        scored = evaluate("mails", place, using=model.run, split="test")
        assert (scored.seen, scored.rows) == (0, 24)
    last, first = models[-1].run, models[0].run
    both = evaluate("mails", place, using=last, against=first, split="test")
    assert both.rows == 24 and both.baselines[0].gain is not None
    # Whatever becomes of the splits, a continued model knows what the first one was trained on.
    table = read_table(folder / "train.csv")
    write_table(table.head(20)[["text", "label"]], file := tmp_path / "old.csv")
    write_table(table.iloc[20:], folder / "train.csv")
    place = dataclasses.replace(place)
    last = extract("mails", recipe, place, seed=0, start_from="mails").record.run
    with pytest.raises(PipelineError, match="20 of these 20 rows trained or selected the model"):
        evaluate("mails", place, using=last, input_file=file)


def test_new_rows_join_the_test_split_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = task_of(mails("old", 90), tmp_path)
    added(folder, mails("new", 40), split="50/25/25")
    assert [len(texts) for texts in texts_of(folder).values()] == [72 + 20, 9 + 10, 9 + 10]


def test_columns_ids_and_misspelt_labels_are_those_of_the_task(tmp_path: Path) -> None:
    rows = mails("old", 60, id=[f"a{row}" for row in range(60)])
    folder = task_of(rows, tmp_path, rename=["Lob=Praise"])
    (folder / "train.csv").rename(tmp_path / "elsewhere.csv")
    (folder / "train.csv").symlink_to(tmp_path / "elsewhere.csv")
    new = mails("new", 30, id=[f"b{row}" for row in range(30)]).rename(columns={"text": "TEXT"})
    new.loc[0, "label"] = "Bugg"
    with pytest.raises(PipelineError, match="row 2: 'Bugg' \\(did you mean 'Bug'"):
        added(folder, new)
    added(folder, new, rename=["Bugg=Bug"])
    written = pd.concat([read_table(folder / f"{split}.csv") for split in SPLITS])
    assert set(written["id"]) == {*rows["id"], *new["id"]} and list(written) == ["id", "text", "label"]
    assert len(read_table(tmp_path / "elsewhere.csv")) == 48
    data = load_all_rows(find_task("mails", folder.parent), folder.parent)
    assert data.train["label"].value_counts().tolist() == [25, 25, 25]
    added(folder, mails("newer", 3, id=["b1", "b2", "c"]))
    assert len(set(pd.concat([read_table(folder / f"{split}.csv") for split in SPLITS])["id"])) == 93


def test_scores_and_pairs_are_added_within_the_range(tmp_path: Path) -> None:
    pairs = pd.DataFrame(
        {"text_a": [f"one {row}" for row in range(60)], "text_b": "other", "score": [row / 10 for row in range(60)]}
    )
    folder = task_of(pairs.assign(text_b=[f"other {row}" for row in range(60)]), tmp_path)
    new = pairs.assign(text_a=[f"new {row}" for row in range(60)], text_b="same text", score=2.5)
    with pytest.raises(PipelineError, match=r"beyond 0 and 5.9, the range of the task: row 3$"):
        added(folder, new.assign(score=[1, 7.5, *[2] * 58]))
    added(folder, new)
    data = load_all_rows(find_task("mails", folder.parent), folder.parent)
    assert len(data.train) + len(data.dev) + len(read_table(folder / "test.csv")) == 60 + 60


REFUSED: dict[str, tuple[Callable[[Path], pd.DataFrame], dict[str, Any], str]] = {
    **{
        f"another label than in {split}": (
            lambda folder, split=split: pd.concat([  # type: ignore[misc]
                mails("new", 2), read_table(folder / f"{split}.csv")[["text"]].iloc[2:3].assign(label="Lob")
            ]),
            {}, rf"row 4: 'Lob', but '(Bug|Rechnung)' in row 4 of .*mails/{split}\.csv",
        )
        for split in ("dev", "test")
    },
    "another column": (lambda _: mails("new", 9).rename(columns={"text": "words"}), {}, "column 'text' is missing"),
    "a class that is new": (lambda _: mails("new", 9).replace("Bug", "Storno"), {}, "row 2: 'Storno'"),
    "no test rows to add to": (lambda _: mails("new", 9), {"split": "80/10/10"}, "no labelled test rows"),
    "dev held out of train": (lambda _: mails("new", 9), {"dev": False}, "0 files of split 'dev'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_spoil_a_score_is_refused_and_nothing_changes(name: str, tmp_path: Path) -> None:
    rows, options, said = REFUSED[name]
    folder = task_of(mails("old", 90), tmp_path)
    for split in ("dev", "test"):  # its third row is no Lob
        table = read_table(folder / f"{split}.csv").sort_values("label", ascending=split == "dev")
        table = pd.concat([table[table["label"] != "Lob"], table[table["label"] == "Lob"]])
        write_table(table, folder / f"{split}.csv")
    if options.pop("dev", True) is False:
        (folder / "dev.csv").unlink()
    if "split" in options:
        (folder / "test.csv").unlink()
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(PipelineError, match=said):
        added(folder, rows(folder), **options)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_an_interrupted_addition_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = task_of(mails("old", 90), tmp_path)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def interrupted(rows: pd.DataFrame, file: Path) -> None:
        write_table(rows, file)
        if file.name == "dev.csv":
            raise KeyboardInterrupt

    monkeypatch.setattr("stages.add_rows.write_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        added(folder, mails("new", 30))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    monkeypatch.undo()
    added(folder, mails("new", 30))
    assert sum(map(len, texts_of(folder).values())) == 120


def test_the_command_says_what_comes_next(run: Command, tmp_path: Path) -> None:
    folder = task_of(mails("old", 90), tmp_path)
    write_table(mails("new", 30), tmp_path / "more.csv")
    status, out, _ = run("tasks", "add", folder, tmp_path / "more.csv")
    assert status == 0
    assert f"extract --task mails --start-from mails --data {folder.parent}" in out
    assert "new rows by class (train/dev): Bug 9/1, Lob 9/1, Rechnung 9/1" in out.splitlines()
    assert run("tasks", "add", folder.parent, tmp_path / "more.csv")[0] == 2


@pytest.mark.parametrize("made_of", ["flags", "texts"])
@pytest.mark.parametrize("more", ["flags", "texts"])
def test_rows_with_several_labels_join_those_of_the_other_form(made_of: str, more: str, tmp_path: Path) -> None:
    def form(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
        flags = rows.pop("label").str.get_dummies("|")[["Bug", "Lob"]]
        return rows.join(
            flags
            if kind == "flags"
            else flags.apply(lambda row: "|".join(flags.columns[row == 1]), axis=1).rename("labels")
        )

    old, new = (
        mails(name, 90).assign(label=["Bug|Lob", "Lob", "", "Bug"] * 22 + ["Bug", "Lob"]) for name in ("old", "new")
    )
    folder = task_of(form(old.copy(), made_of), tmp_path)
    if made_of == "flags":  # as someone writes splits by hand
        for split in SPLITS:
            rows = read_table(folder / f"{split}.csv").rename(columns={"labels": "label"}).fillna("")
            write_table(form(rows, "flags"), folder / f"{split}.csv")
    added(folder, form(new[:1].copy(), "texts"))  # dev gets none of it
    added(folder, form(new.copy(), more))
    data = load_all_rows(find_task("mails", folder.parent), folder.parent, test=True)
    rows = pd.concat([data.train, data.held_out]).set_index("text_a")["label"]
    sets = {"Bug|Lob": "11", "Lob": "01", "": "00", "Bug": "10"}
    assert rows.to_dict() == {row.text: sets[row.label] for row in pd.concat([old, new]).itertuples()}
