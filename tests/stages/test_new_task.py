"""tasks new and tasks check: from any table to a task that loads, and to what its data holds."""

import csv
import random
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from pipeline.data.canonical import canonical_rows
from pipeline.data.cells import is_code, text_key
from pipeline.data.tables import FORMATS, read_table, write_table
from pipeline.data.task_data import load_all_rows
from pipeline.data.tasks import NewTask, find_task
from pipeline.runs.workspace import Workspace
from pipeline.settings.study import ScoredRows
from pipeline.system.errors import PipelineError
from stages.check_task import check_task
from stages.new_task import new_task
from tests.nano import BAD, GOOD, THINGS

Command = Callable[..., tuple[int, str, str]]


def tickets(folder: Path, rows: int = 240, opening: str = "the") -> Path:
    """Messages as a spreadsheet program saves them: semicolons, cp1252, columns besides text and label."""
    rng = random.Random(0)
    lines = [["date", "message", "queue", "price"]]
    for row in range(rows):
        words, queue = rng.choice([(GOOD, "praise"), (BAD, "complaint")])
        text = f"{opening} {rng.choice(THINGS)} is {rng.choice(words)} and {rng.choice(words)}"
        lines.append([f"2024-01-{row % 28 + 1:02}", text, queue, "1 €"])
    file = folder / "Support Tickets.csv"
    with file.open("w", encoding="cp1252", newline="") as opened:
        csv.writer(opened, delimiter=";").writerows(lines)
    return file


def test_tasks_of_the_users_own_are_the_sources_to_begin_with(run: Command, tmp_path: Path) -> None:
    def made(name: str, **options: Any) -> str:
        status, out, _ = run("tasks", "new", tickets(tmp_path, **options), "--name", name, "--data", tmp_path / "data")
        assert status == 0
        return str(out)

    for name in ("orders", "reviews"):
        made(name, opening=name)
    out = made("tickets")
    tasks = ("tickets --data", "orders --data", "reviews --data", "tickets --start-from best --data")
    steps = [out.index(f"extract --task {task}") for task in tasks]
    assert steps == sorted(steps)
    assert "extract --task sst" not in out
    assert "too few rows" not in out


@pytest.mark.parametrize("split", ["80/10/10", "80/20"])
def test_pairs_that_share_texts_with_train_are_counted(split: str, tmp_path: Path) -> None:
    """One query with many passages: no split keeps all pairs of a text together."""
    pairs = [(f"query {row % 4}", f"passage {row} in words", ("yes", "no")[row % 3 == 0]) for row in range(120)]
    pairs += [(f"own query {row}", f"own passage {row}", ("yes", "no")[row % 2]) for row in range(80)]
    pd.DataFrame(pairs, columns=["query", "passage", "label"]).to_csv(tmp_path / "mine.csv", index=False)
    lines = new_task(tmp_path / "mine.csv", tmp_path / "data", NewTask(split=split)).splitlines()
    parts = {
        part: read_table(tmp_path / "data" / "mine" / f"{part}.csv")
        for part in ("train", "dev", "test")[: split.count("/") + 1]
    }
    known = set(parts["train"]["query"])
    said = [
        f"{own['query'].isin(known).sum()} of {len(own)} rows of {part}"
        for part, own in parts.items()
        if part != "train"
    ]
    assert not any(line.startswith("0 of") for line in said)
    counted = f"airs share texts, so only equal pairs are in one split: {' and '.join(said)}"
    assert f"p{counted} have a text that is also in train" in lines
    assert (
        f"# P{counted} have a text that is also in train."
        in (tmp_path / "data" / "mine" / "task.toml").read_text().splitlines()
    )


def test_a_csv_of_tickets_becomes_a_task_and_the_next_commands_are_told(run: Command, tmp_path: Path) -> None:
    data = tmp_path / "data"
    status, out, _ = run("tasks", "new", tickets(tmp_path), "--data", data)
    assert status == 0
    assert "240 rows (csv, cp1252, semicolon)" in out
    assert "text: 'message'; label: 'queue'; not used: date, price" in out
    assert [line.strip() for line in out.splitlines()[-7:]] == [
        "next:",
        f"python -m pipeline tasks check {data}/support-tickets  # repeats; with --backbone, what is cut",
        f"python -m pipeline extract --task support-tickets --data {data}",
        f"python -m pipeline evaluate --target support-tickets --data {data} --split test",
        f"python -m pipeline extract --task sst --limit 5000 --data {data}  # may help",
        f"python -m pipeline extract --task support-tickets --start-from best --data {data}  # keep the better",
        f"python -m pipeline predict --target support-tickets --input FILE --output FILE --data {data}",
    ]


labels = st.sampled_from(["bug", "bill", "other", "Größe", 'a "quoted" one', " spaced "])
numbers = st.sampled_from(["1", "2", "3.0", "-1", "7", "07"])
scores = st.floats(-1e6, 1e6).map(str)
cells = st.one_of(labels, st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12), st.just(""))


@st.composite
def tables(draw: st.DrawFn) -> pd.DataFrame:
    """Rows of one text or two, with equal texts, blank cells and labels of one sort, under any names of columns."""
    of = draw(st.sampled_from([labels, numbers, scores, st.sampled_from(["yes", "no"])]))
    size = draw(st.integers(10, 60))
    texts = st.one_of(st.integers(0, 80).map(lambda number: f"text {number}"), cells)
    pairs = draw(st.booleans())
    names = draw(
        st.lists(st.sampled_from(["text", "x y", "a\tb", 'q"q', "te,xt", "ü"]), min_size=2, max_size=2, unique=True)
    )
    columns = {name: draw(st.lists(texts, min_size=size, max_size=size)) for name in (names if pairs else names[:1])}
    columns["label"] = draw(st.lists(st.one_of(of, of, of, of, st.just("")), min_size=size, max_size=size))
    if draw(st.booleans()):
        columns["id"] = draw(
            st.lists(st.integers(0, 999).map(str), min_size=size, max_size=size, unique=draw(st.booleans()))
        )
    return pd.DataFrame(columns, dtype=object)


@settings(max_examples=12, deadline=None)
@given(
    tables(),
    st.sampled_from([suffix for suffix, form in FORMATS.items() if form.is_exact]),
    st.sampled_from(["80/10/10", "50/25/25", "70/30"]),
    st.integers(0, 2),
)
def test_whatever_table_goes_in_the_task_loads_and_nothing_but_dropped_rows_is_lost(
    table: pd.DataFrame, suffix: str, split: str, seed: int
) -> None:
    text = [column for column in table if column not in ("label", "id")]
    wanted = NewTask(text=",".join(text), label="label", split=split)
    with TemporaryDirectory() as folder:
        file, data = Path(folder) / f"mine{suffix}", Path(folder) / "data"
        write_table(table, file)
        try:
            new_task(file, data, wanted, seed=seed)
        except PipelineError as error:
            assert "\n" not in str(error)
            assert not data.exists()
            reject()
        task = find_task("mine", data)
        loaded = load_all_rows(task, data, test=len(split) > 5)
        parts = [part for part in (loaded.train, loaded.dev, loaded.test) if part is not None]
        written = [read_table(data / "mine" / f"{part}{suffix}") for part in ("train", "dev", "test")[: len(parts)]]
        again = Path(folder) / "again"
        new_task(file, again, wanted, seed=seed)
        for new in (again / "mine").iterdir():
            assert new.read_bytes() == (data / "mine" / new.name).read_bytes()

    # Every row of the file is in one split, with its text and label, or has a reason not to be.
    rows = {str(number): row for number, row in enumerate(table.to_dict("records"))}
    if "id" in table and table["id"].is_unique:
        rows = {row["id"]: row for row in rows.values()}
    ids = Counter(one for part in parts for one in part["id"])
    assert set(ids.values()) == {1} and set(ids) <= set(rows)
    for raw, part in zip(written, parts, strict=True):
        for cell, row in zip(raw["label"], part.to_dict("records"), strict=True):
            before = rows[row["id"]]
            assert [row[name] for name in ("text_a", "text_b")[: len(text)]] == [before[column] for column in text]
            if task.range is None:
                assert task.classes[row["label"]] == str(cell)
                own = before["label"].strip()
                assert cell == own or (not is_code(own) and float(cell) == float(own))
            else:
                assert row["label"] == pytest.approx(float(before["label"]))

    def key(row: dict[str, Any]) -> tuple[str, ...]:
        return tuple(text_key(row[column]) for column in text)

    usable = [row for row in rows.values() if all(row[c].strip() for c in text) and row["label"].strip()]
    for one, row in rows.items():
        if one not in ids and row in usable:
            assert any(other["label"] != row["label"] and key(other) == key(row) for other in usable)
    # No text is in two splits; the classes have their shares.
    keys = [set(map(tuple, part.filter(regex="text_").map(text_key).to_numpy().tolist())) for part in parts]
    assert not any(keys[a] & keys[b] for a in range(len(keys)) for b in range(a))
    if task.range is None:
        assert set(loaded.train["label"]) == set(range(len(task.classes)))


@pytest.mark.parametrize("column", ["the comment, in full", " comment", "comment"])
def test_a_longer_column_is_taken_as_it_is_advised(column: str, run: Command, tmp_path: Path) -> None:
    rows = [(f"note {row}", f"a much longer comment of row {row} in so many words", "ab"[row % 2]) for row in range(40)]
    pd.DataFrame(rows, columns=["text", column, "label"]).to_csv(tmp_path / "mine.csv", index=False)
    _, out, _ = run("tasks", "new", tmp_path / "mine.csv", "--data", tmp_path / "data")
    (advice,) = re.findall(r"is not used: (--text .*) takes it", out)
    again = ["tasks", "new", tmp_path / "mine.csv", "--name", "again", "--data", tmp_path / "data"]
    assert run(*again, *shlex.split(advice))[0] == 0
    assert find_task("again", tmp_path / "data").text == (column.strip(),)


def test_the_task_file_is_what_a_person_would_write(tmp_path: Path) -> None:
    file = tmp_path / "mail.csv"
    rows = [f"message number {row} in words,{('bill', 'bug', 'bug', 'bug')[row % 4]}" for row in range(40)]
    file.write_text("\n".join(["body,queue", *rows, ",bug", "unlabelled,"]))
    new_task(file, tmp_path / "data")
    assert (tmp_path / "data" / "mail" / "task.toml").read_text() == (
        "# Made from mail.csv by tasks new (split 80/10/10, seed 0).\n"
        "# Left out: 1 row without text.\n"
        "# Left out: 1 row without a label.\n"
        'name = "mail"\n'
        'kind = "classes"\n'
        'text = ["body"]\n'
        'label = "queue"\n'
        "classes = [\n"
        '    "bill",\n'
        '    "bug",\n'
        "]\n"
        'metric = "macro-f1"  # or accuracy, balanced-accuracy, matthews, kappa (unbalanced classes)\n'
        "max_length = 128  # tokens; longer texts are cut: tasks check counts them\n"
    )


def test_classes_that_are_numbers_are_listed_in_their_order_and_not_taken_for_counts(tmp_path: Path) -> None:
    file, stars = tmp_path / "stars.csv", ["5"] * 25 + ["4"] * 20 + ["10"] * 7
    file.write_text("\n".join(["review,stars", *(f"review number {row},{one}" for row, one in enumerate(stars))]))
    lines = new_task(file, tmp_path).splitlines()
    assert "3 classes: '4': 20, '5': 25, '10': 7; metric: accuracy" in lines
    assert "classes with too few rows to be learned or scored (train/dev/test): '10': 5/1/1" in lines
    lines = check_task(tmp_path / "stars").splitlines()
    assert lines[1] == "train: 41 rows: '4': 16 (39%), '5': 20 (49%), '10': 5 (12%)"
    assert "classes with fewer than 10 training rows: '10': 5" in lines


def test_rows_without_ids_have_those_of_predictions(tmp_path: Path) -> None:
    file = tmp_path / "mail.csv"
    file.write_text("\n".join(["text,label", *(f"text number {row},{'ab'[row % 2]}" for row in range(40))]))
    new_task(file, tmp_path)
    written = read_table(tmp_path / "mail" / "train.csv")
    assert written["id"].tolist() == [text.split()[-1] for text in written["text"]]
    predicted = canonical_rows(find_task("mail", tmp_path), read_table(file), str(file))
    assert predicted["id"].iloc[[0, -1]].tolist() == ["0", "39"]


ENOUGH = "\n".join(["text,label", *(f"text number {row},{'ab'[row % 2]}" for row in range(40))])
PAIRS = "\n".join(["text_a,text_b,label", *(f"number {row},and {row},{'ab'[row % 2]}" for row in range(40))])
FEW_ROWS = "text,label\na b,x\nc d,y\ne f,x\ng h,y\n"
REFUSED: dict[str, tuple[str, list[str], str]] = {
    "a folder that exists": (ENOUGH, ["--name", "old"], "exists already and stays as it is: move it away"),
    "a folder that exists, and no rows": ("text,label\n", ["--name", "old"], "mine.csv: no rows"),
    "a built-in task's name": ("text,label\n", ["--name", "sst"], "'sst' names a built-in task"),
    "a built-in task's alias": ("text,label\n", ["--name", "qqp"], "'qqp' names a built-in task"),
    "a word that chooses among tasks": ("text,label\n", ["--name", "best"], "'best' names a built-in task"),
    "a bad name": ("text,label\n", ["--name", "Mine!"], "--name 'Mine!': give up to 32 of a-z"),
    "no rows": ("text,label\n", [], "mine.csv: no rows"),
    "an empty file": ("", [], "no rows: the file is empty"),
    "too few rows": (FEW_ROWS, [], "too few for 3 splits"),
    "labels alone": ("text,id\na b,1\nc d,2\n", ["--label", "text"], "no column is left for the texts"),
    "three text columns": ("text,label\na b,x\n", ["--text", "a,b,c"], "no column 'a', 'b', 'c'"),
    "a split that is none": ("text,label\na b,x\n", ["--split", "80/10"], "--split '80/10': write percentages"),
    "a split of words": ("text,label\na b,x\n", ["--split", "most"], "--split 'most': write percentages"),
    "a similar class of one text": (ENOUGH, ["--similar", "a"], "--similar 'a': give one of two classes of pairs"),
    "a similar class that is none": (PAIRS, ["--similar", "x"], "give one of two classes of pairs, 'a' or 'b'"),
    "a label to rename that is none": (ENOUGH, ["--rename", "c=a"], "--rename: no row has 'c'"),
    "a label without a new name": (ENOUGH, ["--rename", "a"], "--rename 'a': write OLD=NEW"),
    "a folder to replace that is no task": (ENOUGH, ["--name", "old", "--replace"], "would delete"),
    "another kind": ("text,label\na b,x\n", ["--kind", "ranking"], "--kind"),
    "a score that is none": ("text,label\na b,x\nc d,y\n", ["--kind", "score"], "'x' is not a score"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_table_or_option_is_one_message_and_leaves_nothing(name: str, run: Command, tmp_path: Path) -> None:
    content, options, said = REFUSED[name]
    file, data = tmp_path / "mine.csv", tmp_path / "data"
    file.write_text(content)
    (data / "old").mkdir(parents=True)
    status, out, error = run("tasks", "new", file, "--data", data, *options)
    assert (status, out) == (2, "")
    assert error.startswith("error: ") and error.count("\n") == 1
    assert said in error
    assert [one.name for one in data.iterdir()] == ["old"] and not list((data / "old").iterdir())


def test_labels_are_mended_and_the_task_replaced_without_an_editor(run: Command, tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "mail.csv"
    names = ["Rechnung", "Rechnung", "Bug, urgent", "Bug, urgent", "Rechnug", "bug"]
    rows = [["text", "label"], *([f"text number {row}", names[row % 6]] for row in range(60))]
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows(rows)
    command = ["tasks", "new", file, "--data", data]
    assert run(*command)[0] == 0
    (data / "mail" / "kept.txt").touch()
    mends = ["--rename", "Rechnug=Rechnung", "--rename", "bug=Bug, urgent"]
    assert run(*command, *mends)[0] == 2
    assert find_task("mail", data).classes == ("bug", "Bug, urgent", "Rechnug", "Rechnung")
    assert run(*command, *mends, "--replace")[0] == 0
    assert not (data / "mail" / "kept.txt").exists()
    task = find_task("mail", data)
    assert task.classes == ("Bug, urgent", "Rechnung")
    assert Counter(load_all_rows(task, data).train["label"]) == {0: 24, 1: 24}
    later = canonical_rows(task, read_table(file), str(file), source=task.files)  # which has the old names
    assert Counter(later["label"]) == {0: 30, 1: 30}
    file.rename(inside := data / "mail" / "all.csv")
    assert run("tasks", "new", inside, "--name", "mail", "--data", data, "--replace")[0] == 2 and inside.exists()


# tasks check and tasks list.


@pytest.fixture
def made(tmp_path: Path) -> Path:
    new_task(tickets(tmp_path), tmp_path / "data", NewTask(name="mine"))
    return tmp_path / "data" / "mine"


def test_check_tells_balance_rare_classes_and_repeats(made: Path) -> None:
    train, dev = pd.read_csv(made / "train.csv"), pd.read_csv(made / "dev.csv")
    long = "one two three four five six seven eight nine"
    extra = [("r1", long, "praise"), ("r2", train["message"][0].upper() + "!", train["queue"][0])]
    pd.concat([train, pd.DataFrame(extra, columns=train.columns)]).to_csv(made / "train.csv", index=False)
    shared = [("r3", train["message"][0], train["queue"][0]), ("r4", long.replace("four", "fore"), "praise")]
    pd.concat([dev, pd.DataFrame(shared, columns=dev.columns)]).to_csv(made / "dev.csv", index=False)
    toml = (made / "task.toml").read_text()
    (made / "task.toml").write_text(toml.replace("classes = [", 'classes = [\n    "unseen",'))
    lines = check_task(made).splitlines()
    assert f"train: {len(train) + 2} rows: " in lines[1] and f"dev: {len(dev) + 2} rows: " in lines[2]
    assert "classes with fewer than 10 training rows: unseen 0" in lines
    repeated = train["message"].duplicated().sum() + 1
    assert f"equal texts: {repeated} of the train rows repeat an earlier row" in lines
    assert "equal texts: 1 of the dev rows are also in train (extract --drop-overlap drops these)" in lines
    assert "near-duplicates: 1 of the dev rows differ from a row of train in one word (of at least 8)" in lines


def test_check_with_a_backbone_counts_what_max_length_cuts(made: Path, backbone_folder: Path) -> None:
    toml = (made / "task.toml").read_text()
    (made / "task.toml").write_text(toml.replace("max_length = 128", "max_length = 6"))
    train = pd.read_csv(made / "train.csv")
    # [CLS] the THING is WORD and WORD [SEP]: 8 tokens, of which 2 are cut.
    size = len(train)
    assert (
        f"train: {size} of {size} rows are longer than 6 tokens; {2 * size} of {8 * size:,} tokens (25.0%) are cut;"
        " the longest row has 8"
    ) in check_task(made, str(backbone_folder)).splitlines()


def test_check_tells_that_a_test_split_has_no_labels_and_compares_its_texts(made: Path, backbone_folder: Path) -> None:
    test, train = made / "test.csv", pd.read_csv(made / "train.csv")
    labelled = check_task(made, str(backbone_folder)).splitlines()
    rows = pd.read_csv(test).rename(columns={"queue": "Queues"})
    rows.loc[0, "message"] = train["message"][0]
    rows.to_csv(test, index=False)
    lines = check_task(made, str(backbone_folder)).splitlines()
    assert lines[3] == f"test: {len(rows)} rows, no column 'queue' (it has 'id', 'message', 'Queues'): not scored"
    assert lines[:3] == labelled[:3] and lines[-2].startswith(f"test: 0 of {len(rows)} rows are longer")
    assert "equal texts: 1 of the test rows are also in train (delete these from train)" in lines
    rows.rename(columns={"Queues": "queue"}).assign(queue=None).to_csv(test, index=False)
    assert check_task(made).splitlines()[3] == f"test: {len(rows)} rows, column 'queue' is blank: not scored"
    rows.drop(columns="message").to_csv(test, index=False)
    with pytest.raises(PipelineError, match=r"test.csv: column 'message' is missing; the columns are 'id', 'Queues'"):
        check_task(made)
    test.write_text("message;queue\nfine;praise\n")
    with pytest.raises(PipelineError, match="the columns are 'message;queue'"):
        check_task(made)


def test_what_check_advises_drops_training_rows_that_are_also_in_test(made: Path) -> None:
    train, test = (pd.read_csv(made / f"{split}.csv") for split in ("train", "test"))
    test.loc[0, ["message", "queue"]] = train.loc[0, ["message", "queue"]]
    test.to_csv(made / "test.csv", index=False)
    told = "equal texts: 1 of the test rows are also in train (delete these from train, or score test with compare"
    assert f"{told} --scoring test --drop-overlap: it drops these)" in check_task(made).splitlines()
    task, scored = find_task("mine", made.parent), ScoredRows(rows="test")
    for drop_overlap, left in ((False, 1), (True, 0)):
        place = Workspace("", made.parent, made, made, drop_overlap=drop_overlap, scoring=scored)
        assert place.splits.of(task, None, 0).test_in_train == left


def test_check_reads_what_is_held_out_of_train_only_where_no_file_is_dev(made: Path) -> None:
    sizes = {split: len(pd.read_csv(made / f"{split}.csv")) for split in ("train", "dev")}
    toml = (made / "task.toml").read_text()
    (made / "task.toml").write_text(f"{toml}\n[files]\ndev_fraction = 0.25\n")
    lines = check_task(made).splitlines()
    assert lines[1].startswith(f"train: {sizes['train']} rows") and lines[2].startswith(f"dev: {sizes['dev']} rows")
    (made / "dev.csv").write_text("id,message,queue\n1,a,praise\n2,b,prase\n")
    with pytest.raises(PipelineError, match="row 3: 'prase'"):
        check_task(made)
    (made / "dev.csv").unlink()
    held_out = round(sizes["train"] / 4)
    assert check_task(made).splitlines()[2].startswith(f"dev: {held_out} rows")


def test_check_reports_the_mistakes_of_all_splits(made: Path, run: Command) -> None:
    for split in ("train", "dev"):
        (made / f"{split}.csv").write_text("id,message,queue\n1,a,praise\n2,b,prase\n")
    (made / "test.csv").unlink()
    status, _, error = run("tasks", "check", made)
    assert status == 2
    assert "2 problems" in error and error.count("row 3: 'prase'") == 2
    (made / "task.toml").unlink()
    assert f"{made}: no task.toml: make one with tasks new" in run("tasks", "check", made)[2]


def test_check_of_what_is_no_task_says_what_to_give(made: Path, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, error = run("tasks", "check", made.parent)
    assert (status, error) == (2, f"error: {made.parent}: a folder of tasks: check each by itself: {made}\n")
    monkeypatch.chdir(made.parent)
    assert "none: no such file\n" in run("tasks", "check", "none")[2]


def test_check_counts_tokens_with_the_backbone_of_the_settings_file(
    made: Path, backbone_folder: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made.parent)
    assert "longer than" not in run("tasks", "check", "mine")[1]
    (made.parent / "pipeline.toml").write_text(f'backbone = "{backbone_folder}"\n')
    assert "longer than 34 tokens" in run("tasks", "check", "mine")[1]
    assert "may not know this language" in run("tasks", "check", "mine")[1]  # it does not know "and"
    for file in made.glob("*.csv"):
        file.write_text(file.read_text().replace(" and ", " "))
    assert "tokens a word: 1.00, of which unknown: 0.0%" in run("tasks", "check", "mine")[1].splitlines()
    (made.parent / "pipeline.toml").write_text('backbone = "no/such-encoder"\n')
    status, out, _ = run("tasks", "check", "mine")
    assert status == 0 and out.splitlines()[-1].startswith("tokens not counted: ")
    assert run("tasks", "check", "mine", "--backbone", "no/such-encoder")[0] == 2
    assert run("tasks", "check", "mine/task.toml")[:2] == (0, "mine/task.toml: task 'mine' is fine\n")


def test_list_shows_the_tasks_of_the_folder_beside_the_built_in(made: Path, run: Command) -> None:
    (made.parent / "broken").mkdir()
    (made.parent / "broken" / "task.toml").write_text("name = 3")
    status, out, _ = run("tasks", "list", "--data", made.parent)
    assert status == 0
    broken, own, *others = [line.split() for line in out.splitlines()]
    assert own[:2] == ["mine", "accuracy"] and broken[0] == "broken"
    assert others == [line.split() for line in run("tasks", "list")[1].splitlines()]
