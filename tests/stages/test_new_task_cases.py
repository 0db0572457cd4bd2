"""Tables as people have them: which task each becomes, what is said of it, and what is refused."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.data.canonical import canonical_rows
from pipeline.data.tables import read_foreign
from pipeline.data.task_data import load_all_rows
from pipeline.data.tasks import NewTask, find_task
from pipeline.system.errors import PipelineError
from stages.new_task import new_task

Rows = dict[str, list[Any]]


def rows_of(values: list[Any], label: str = "label", size: int = 60, **columns: list[Any]) -> Rows:
    """Different texts, and labels and other columns that are repeated to ``size`` rows."""
    given = {"text": [f"unique text number {row} here" for row in range(size)], **columns, label: values}
    return {name: [cells[row % len(cells)] for row in range(size)] for name, cells in given.items()}


def sentences(word: str, size: int = 60) -> list[str]:
    return [f"{word} in several words {row}" for row in range(size)]


def repeated(text: str, *counts: tuple[Any, int], others: tuple[Any, ...] = ("good", "bad"), size: int = 100) -> Rows:
    """``size`` rows a label of ``others``, and rows of one text with the labels in ``counts``."""
    pairs = [(f"unique text number {row} of {label}", label) for row in range(size) for label in others]
    pairs += [(text, label) for label, count in counts for _ in range(count)]
    return {"text": [text for text, _ in pairs], "label": [label for _, label in pairs]}


def pairs_of(first: str, second: str, **others: list[Any]) -> Rows:
    table = {first: sentences("first"), second: sentences("other"), "label": ["x", "y"] * 30}
    return others | table


@dataclass(frozen=True)
class Case:
    """A table, and the task that it becomes."""

    rows: Rows
    classes: tuple[str, ...] = ()
    """None of a task of scores."""
    text: tuple[str, ...] = ("text",)
    said: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    size: int | None = None
    """Rows of the task, if not all."""
    options: dict[str, Any] = field(default_factory=dict)
    suffix: str = ".csv"


NUMBERS = tuple(map(str, range(1, 31)))
ASKED = ("--kind classes",)
LONG = [
    f"Retail > Kitchen appliances and accessories > Department {n} > Shelf {chr(97 + n % 26) * 3}" for n in range(240)
]
OTHER_LONG = [name.replace("Department", "Section") + " b" for name in LONG]
CASES = {
    # Which of two classes of pairs is that of similar texts.
    "pairs with yes and no": Case(
        {**pairs_of("question1", "question2"), "label": ["yes", "no"] * 30}, ("no", "yes"), ("question1", "question2"),
        unsaid=("--similar",),
    ),
    **{
        f"pairs with {one} and {other}": Case(
            {**pairs_of("question1", "question2"), "label": [one, other] * 30}, (one, other),
            ("question1", "question2"), said=said, unsaid=unsaid, options={"kind": "classes"},
        )
        for one, other, said, unsaid in (
            ("0", "1", (), ("--similar",)),
            ("-1", "1", (), ("--similar",)),
            ("1", "2", ("--similar 1",), ()),
            ("is_duplicate", "original", (), ("--similar",)),
            ("entailment", "not_entailment", (), ("--similar",)),
        )
    },
    "pairs with names that do not say": Case(
        pairs_of("question1", "question2"), ("x", "y"), ("question1", "question2"), said=("--similar x",),
    ),
    # Rows of one text with several labels.
    "a stray label beside a clear majority": Case(
        repeated("thank you", ("thanks", 30), ("good", 1)), ("bad", "good", "thanks"),
        said=("left out: 1 row ", "good 1 of 101"), unsaid=("WARNING",), size=230,
    ),
    "a text of over a quarter of the rows": Case(
        repeated("ok", ("yes", 40), ("p", 1), others=("p", "q"), size=40), ("p", "q", "yes"), said=("p 1 of 41",),
        size=120,
    ),
    "no majority, and a class that is nowhere else": Case(
        repeated("thank you", ("thanks", 3), ("good", 3)), ("bad", "good"),
        said=("WARNING: class 'thanks' is lost", "thanks 3 of 3, good 3 of 103"), size=200,
    ),
    "a class without texts": Case(
        repeated(" ", ("empty", 5)), ("bad", "good"), size=200,
        said=("WARNING: class 'empty' is lost", "left out: 5 rows"),
    ),
    "a named text column by which a class is lost": Case(
        repeated("thank you", ("thanks", 90), ("good", 80)), ("bad", "good"), options={"text": "text"},
        said=("WARNING: class 'thanks' is lost",), size=200,
    ),
    "three labels of a text in another case": Case(
        repeated("Danke  sch\u00f6n", ("dank", 10), ("good", 1), ("bad", 1)), ("bad", "dank", "good"),
        said=("left out: 2 rows", "good 1 of 101", "bad 1 of 101"), size=210,
    ),
    "stars with a stray": Case(
        repeated("fine by me", (5, 8), (1, 1), others=(1, 2, 3), size=20), ("1", "2", "3", "5"),
        said=("'1': 1 of 21",), size=68,
    ),
    "scores with a stray": Case(
        repeated("fine", (4.5, 20), (0.5, 1), others=(0.25, 1.5, 5.0), size=20), said=("left out: 1 row ",), size=80,
    ),
    # Numbers that are names.
    **{
        f"whole numbers in {name}": Case(rows_of(list(NUMBERS), name, 960), NUMBERS, unsaid=("scores",))
        for name in ("class_id", "label_id", "intent_id", "labelId", "icd_code", "postcode", "classid", "Label ID",
                     "label_idx", "class_index", "topic_no", "zip", "PLZ")
    },
    "classes with few rows each in class_id": Case(rows_of(list(NUMBERS), "class_id", 180), NUMBERS),
    "more than 500 numbers in class_id": Case(rows_of(list(range(501)), "class_id", 2004), tuple(map(str, range(501)))),
    **{
        f"whole numbers in {name}": Case(rows_of([*range(1000, 1030)], name, 960), said=ASKED)
        for name in ("target", "y", "votes")
    },
    "whole numbers of a score": Case(rows_of([*range(100)], "score", 300), unsaid=ASKED),
    "whole numbers said to be classes": Case(
        rows_of(list(NUMBERS), "target", 960), NUMBERS, options={"kind": "classes"}, unsaid=("--kind score",)
    ),
    "numbers of sections": Case(rows_of(["1.1", "1.10", "2.0"], "section"), ("1.1", "1.10", "2.0")),
    "codes with a point": Case(rows_of(["1.1", "1.2", "2.0"], "code"), ("1.1", "1.2", "2.0")),
    "few fractions": Case(rows_of(["1.1", "1.2", "2.0"], "target"), said=ASKED),
    "fractions of a score": Case(rows_of([0.5, 1.0, 2.5], "similarity"), unsaid=ASKED),
    "signs": Case(rows_of(["+1", "-1"]), ("-1", "+1"), unsaid=("drop",)),
    "signs and a zero": Case(rows_of(["+1", "0", "-1"]), ("-1", "0", "+1"), unsaid=("drop",)),
    "whole numbers with a point": Case(rows_of(["1.0", "0.0"]), ("0", "1")),
    # Lists of one label each.
    "lists of one label in jsonl": Case(rows_of([["good"], ["bad"], "bad"]), ("bad", "good"), suffix=".jsonl"),
    "arrays of one label in parquet": Case(
        rows_of([["good"], ["bad"], []]), ("bad", "good"), size=40, suffix=".parquet"
    ),
    "Python lists of one label": Case(rows_of(["['good']", '["it\'s bad"]', "[]"]), ("good", "it's bad"), size=40),
    "JSON lists of one number": Case(rows_of(["[1]", "[0]"]), ("0", "1")),
    "arrays of one label": Case(rows_of(["array(['a'], dtype='<U1')", "np.array(['b'])"]), ("a", "b")),
    "calls of one label": Case(rows_of(["list(['a'])", "frozenset({'b'})", "set()"]), ("a", "b"), size=40),
    "nulls in lists": Case(rows_of(["[null]", '["a"]', '["b"]']), ("a", "b"), size=40),
    "nested lists of one label": Case(rows_of(["[['a']]", "[['b']]"]), ("a", "b")),
    "a call of a number": Case(rows_of(["array(3)", "set(x)"]), ("array(3)", "set(x)")),
    "names with a slash": Case(rows_of(["a/b", "a", "b"]), ("a", "a/b", "b"), options={"kind": "classes"}),
    "names in brackets": Case(rows_of(["[a]", "(b)", "{c}"]), ("(b)", "[a]", "{c}")),
    "one fastText label": Case(rows_of(["__label__a", "__label__b"]), ("__label__a", "__label__b")),
    "a delimiter at the end": Case(rows_of(["a;", "b;"]), ("a;", "b;")),
    # Two columns of texts.
    **{
        f"{first} and {second}": Case(pairs_of(first, second), ("x", "y"), text=(first, second), unsaid=("not used",))
        for first, second in [
            ("text", "text_pair"), ("query", "document"), ("anchor", "positive"), ("claim", "evidence"),
            ("left_text", "right_text"), ("Text A", "Text B"),
            ("q1", "q2"), ("text", "text2"), ("sentenceA", "sentenceB"),
            ("first_sentence", "second_sentence"), ("Claim Text", "Evidence Text"), ("question", "context"),
        ]
    },
    "numbered columns and ids": Case(
        pairs_of("#1 String", "#2 String", **{"#1 ID": [f"a{row}" for row in range(60)], "#2 ID": [*range(60)]}),
        ("x", "y"), text=("#1 String", "#2 String"), said=("not used: #1 ID, #2 ID",),
    ),
    "parses beside sentences": Case(
        pairs_of("sentence1", "sentence2", sentence1_parse=sentences("( S ( NP"), sentence2_parse=sentences("( S")),
        ("x", "y"), text=("sentence1", "sentence2"),
    ),
    **{
        f"{text} and {other}, perhaps": Case(
            pairs_of(*names), ("x", "y"), text=(text,), said=(f"--text {other} ", f"--text {','.join(names)} ")
        )
        for text, other, names in [
            ("story", "headline", ("story", "headline")), ("text", "background", ("text", "background")),
            ("text_en", "text_de", ("text_en", "text_de")),
        ]
    },
    "a column of two words": Case(rows_of(["x", "y"], city=["New York", "The Hague"]), ("x", "y"), unsaid=("--text",)),
    # Columns without a name.
    "a blank column amid others": Case(
        {"text": sentences("one"), "Unnamed: 1": [None] * 60, "label": ["a", "b"] * 30}, ("a", "b"),
        said=("not used: 1 column without a name",),
    ),
    "a filled column without a name": Case(
        {"text": sentences("one"), "Unnamed: 1": ["x"] * 60, "label": ["a", "b"] * 30}, ("a", "b"),
        said=("not used: Unnamed: 1",), suffix=".xlsx",
    ),
    "blank columns at the end": Case(
        {"text": sentences("one"), "label": ["a", "b"] * 30, "Unnamed: 2": [None] * 60, "Unnamed: 3": [None] * 60,
         "Unnamed: 4": ["extra", *[None] * 59]},
        ("a", "b"), said=("not used: 3 columns without a name",),
    ),
    "a blank column in front": Case(
        {"Unnamed: 0": [None] * 60, "v1": ["ham", "spam"] * 30, "v2": sentences("one")}, ("ham", "spam"), text=("v2",),
        said=("not used: 1 column without a name",), suffix=".xlsx",
    ),
    "the index that pandas writes": Case(
        {"Unnamed: 0": [*range(60)], "text": sentences("one"), "label": ["a", "b"] * 30}, ("a", "b"),
        said=("not used: Unnamed: 0",), suffix=".tsv",
    ),
    "two columns of ids": Case(
        {"ID": [*range(60)], "id": [*range(60)], "text": sentences("one"), "label": ["a", "b"] * 30}, ("a", "b"),
        said=("not used: ID",),
    ),
    "many columns": Case(
        rows_of(["a", "b"], **{f"x{n}": ["0.5"] for n in range(30)}), ("a", "b"), said=("x7, 22 more",)
    ),
    # Many classes.
    "600 classes": Case(
        rows_of([f"cat {n}" for n in range(600)], "category", 3600), tuple(sorted(f"cat {n}" for n in range(600))),
    ),
    "600 classes of another column": Case(
        rows_of([f"cat {n}" for n in range(600)], "product", 1800), tuple(sorted(f"cat {n}" for n in range(600))),
        options={"label": "product", "kind": "classes"},
    ),
    "classes of which most have one row": Case(
        rows_of(["a", "b", "a", "b", *(f"rare {n}" for n in range(16))], size=24),
        tuple(sorted(["a", "b", *(f"rare {n}" for n in range(16))])), options={"kind": "classes"},
    ),
    # Labels that may stand for none.
    "-1 beside whole numbers": Case(
        rows_of([-1, 0, 1, 2]), ("-1", "0", "1", "2"), said=("--drop-labels=-1", "drop_labels"), suffix=".parquet"
    ),
    "a hyphen": Case(
        rows_of(["-", "neutral", "entailment"], "gold_label"), ("-", "entailment", "neutral"),
        said=("--drop-labels=-",), suffix=".jsonl",
    ),
    **{
        f"{name} for no label": Case(
            rows_of([name, "x", "y"]), tuple(sorted([name, "x", "y"])), said=("may mean that there is no label",)
        )
        for name in ("n/a", "#N/A", "<NA>", "None", "?", "\u2014", "...", "no_label", "Not labeled", "unassigned")
    },
    **{
        f"{name} for a label": Case(rows_of([name, "x", "y"]), tuple(sorted([name, "x", "y"])), unsaid=("drop",))
        for name in ("neutral", "Nantes", "unlike", ":)", "nothing")
    },
    "-100 beside whole numbers from 1": Case(
        rows_of([-100, 1, 2, 3]), ("-100", "1", "2", "3"), said=("--drop-labels=-100",)
    ),
    "-1 beside names": Case(rows_of(["-1", "x", "y"]), ("-1", "x", "y"), said=("--drop-labels=-1",)),
    "-1 beside scores": Case(rows_of([-1, 0, *(n / 10 for n in range(10, 50))], "score"), said=("--drop-labels=-1",)),
    "-1 and 1": Case(rows_of([-1, 1]), ("-1", "1"), unsaid=("drop",)),
    "-1 that is dropped": Case(
        rows_of([-1.0, 0.0, 1.0, 2.0]), ("0", "1", "2"), options={"drop_labels": ["-1"]}, size=45,
        said=("left out: 15 rows with a label that --drop-labels names",), unsaid=("WARNING",), suffix=".parquet",
    ),
    # Labels that are long, or spelt nearly alike.
    "long labels with other words": Case(
        rows_of([*LONG * 6, *OTHER_LONG], "category", 1680), tuple(sorted([*LONG, *OTHER_LONG], key=str.casefold)),
        unsaid=("did you mean",),
    ),
    "letters that tell labels apart": Case(
        rows_of(["variant a", "variant a", "type II", "type II"]),
        ("type II", "variant a"), unsaid=("did you mean",),
    ),
    "a misspelt word in a long label": Case(
        repeated("one more", ("Retail > Kichen appliances and accessories", 1),
                 others=("Retail > Kitchen appliances and accessories", "Garden"), size=30),
        ("Garden", "Retail > Kichen appliances and accessories", "Retail > Kitchen appliances and accessories"),
        said=("did you mean 'Retail > Kitchen appliances and accessories'?",),
    ),
}  # fmt: skip


def write(rows: Rows, file: Path) -> None:
    table = pd.DataFrame(rows, dtype=None if file.suffix == ".parquet" else object)
    if file.suffix == ".parquet":
        table.to_parquet(file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in table.to_dict("records")))
    else:
        names = ["" if name.startswith("Unnamed: ") else name for name in table]
        if file.suffix == ".xlsx":
            table.to_excel(file, index=False, header=names)
        else:
            table.to_csv(file, index=False, header=names, sep="\t" if file.suffix == ".tsv" else ",")


@pytest.mark.parametrize("name", CASES)
def test_a_table_becomes_the_task_that_its_author_means(name: str, tmp_path: Path) -> None:
    case, file = CASES[name], tmp_path / f"mine{CASES[name].suffix}"
    write(case.rows, file)
    said = new_task(file, tmp_path / "data", NewTask(**case.options))
    task = find_task("mine", tmp_path / "data")
    assert (task.text, task.classes) == (case.text, case.classes)
    assert [part for part in case.said if part not in said] == []
    assert [part for part in case.unsaid if part in said] == []
    loaded = load_all_rows(task, tmp_path / "data", test=True)
    size = len(next(iter(case.rows.values())))
    assert len(loaded.train) + len(loaded.dev) + len(loaded.test) == (case.size if case.size is not None else size)


SEVERAL: dict[str, tuple[Rows, str]] = {
    cell if isinstance(cell, str) else "lists": (rows_of([cell, *alone]), separator)
    for cell, separator, *alone in [
        ("['pos', 'neg']", "|", "['pos']"), ('["pos", "neg"]', "|", '["pos"]'), ("{'pos', 'neg'}", "|", "{'pos'}"),
        ("['pos' 'neg']", "|", "[]"), ("('pos', 'neg')", "|", "('pos',)"), ("[pos, neg]", "|", "pos"),
        ("pos#neg", "#", "pos", "neg"), ("pos\nneg", "\n", "pos", "neg"),
        ("pos;neg;", ";", "pos;", "neg;"), ("pos\tneg", "\t", "pos", "neg"), ("pos/neg", "/", "pos", "neg"),
        ("pos + neg", "+", "pos", "neg"), ("pos & neg", "&", "pos", "neg"), ("pos|neg", "|", "pos", "neg", ""),
        ("array(['pos', 'neg'], dtype='<U3')", "|", "pos"), ("[['pos'], ['neg']]", "|", "pos"),
    ]
} | {"flags": ({"text": sentences("one"), "pos": [1, 0, 1] * 20, "neg": [1, 0, 0] * 20}, "|")}  # fmt: skip


@pytest.mark.parametrize(("table", "separator"), SEVERAL.values(), ids=[*SEVERAL])
@pytest.mark.parametrize("option", [{}, {"kind": "labels"}], ids=str)
def test_several_labels_a_row_are_a_task_however_they_are_spelt(table, separator, option, tmp_path) -> None:
    write(table, tmp_path / "mine.csv")
    given = option | ({"separator": separator} if separator not in "|;" and option else {})
    said = new_task(tmp_path / "mine.csv", tmp_path / "data", NewTask(**given))
    task = find_task("mine", tmp_path / "data")
    assert (task.kind, task.classes, task.files.separator) == ("labels", ("neg", "pos"), separator)
    assert "--kind classes" not in said or not option
    loaded = load_all_rows(task, tmp_path / "data", test=True)
    rows = pd.concat([loaded.train, loaded.held_out])
    assert len(rows) == 60 and {"11"} < {*rows["label"]} <= {"11", "01", "10", "00"}
    # Later files are read as this one was.
    again = canonical_rows(task, read_foreign(tmp_path / "mine.csv").rows, "mine.csv", source=task.files)
    pairs = [{*zip(each["text_a"], each["label"], strict=True)} for each in (again, rows)]
    assert pairs[0] == pairs[1]


def test_lists_of_labels_that_hold_every_separator_have_none(tmp_path: Path) -> None:
    write(rows_of(['["a || b | c", "d;e"]', '["d;e"]']), tmp_path / "mine.csv")
    with pytest.raises(PipelineError, match="separator"):
        new_task(tmp_path / "mine.csv", tmp_path / "data", NewTask())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"label": "pos,neg"}, "2 classes, any number of them a row: pos 40, neg 20"),
        ({"label": "pos,neg", "rename": ["neg=bad"]}, "bad 20"),
        ({"label": "pos"}, "'0': 20, '1': 40"),
        ({"label": "pos,neg", "drop_labels": ["neg"]}, "one label a row"),
        ({"label": "pos,nag"}, "no column 'pos,nag'"),
        ({"label": "pos,odd"}, "column 'odd': neither 0 nor 1 (20 in all): row 4: '2', row 7: '2', row 10: '2': "),
    ],
)
def test_columns_of_0_and_1_may_be_named(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    write(SEVERAL["flags"][0] | {"odd": [0, 1, 2] * 20}, tmp_path / "mine.csv")
    try:
        assert said in new_task(tmp_path / "mine.csv", tmp_path / "data", NewTask(**options))
    except PipelineError as error:
        assert said in str(error)


QUESTION = repeated("thank you", ("thanks", 40), ("good", 30), others=("good",), size=60)
REFUSED: dict[str, tuple[Rows, tuple[str, ...]]] = {
    "lists of 0 and 1": (rows_of(["[0, 1, 0]", "[1, 0, 0]"]), ("the labels 0, 1 alone",)),
    **{
        f"an object as {cell}": (rows_of([cell, "pos"]), ("holds objects", "--label"))
        for cell in ["{'label': 'pos'}", '{"choices": ["pos", "neg"]}', '[{"label": "pos"}]']
    },
    "titles above the header": (
        {"Tickets of May": sentences("one"), "Unnamed: 1": ["a", "b"] * 30, "Unnamed: 2": ["x"] * 60},
        ("names only 1 of 3 columns", "name the columns"),
    ),
    "texts that do not say the label": (QUESTION, ("70 of 130 rows", "leaves out 70 rows", "'thanks'")),
    "few texts with a label that is rare for each": (
        {"question": [f"question {n % 12} in words" for n in range(120)], "label": ["no"] * 108 + ["yes"] * 12},
        ("--text A,B", "'yes'"),
    ),
    "every row another class": (rows_of(sentences("one"), "category"), ("60 different values", "--kind classes")),
    "a blank label in most rows": (rows_of(["a", *[None] * 59]), ("blank in 59 of 60 rows",)),
    "too few texts of a class for three splits": (
        rows_of([f"c{n}" for n in range(25)], "category", 50), ("too few for 3 splits", "80/20")
    ),
    "words among scores": (rows_of([*range(59), "-"], "score"), ("'-' in another", "--drop-labels=-")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_one_label_is_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    rows, said = REFUSED[name]
    write(rows, tmp_path / "mine.csv")
    with pytest.raises(PipelineError) as caught:
        new_task(tmp_path / "mine.csv", tmp_path / "data")
    assert [part for part in said if part not in str(caught.value)] == []
    assert not (tmp_path / "data").exists()


def test_a_label_to_drop_that_no_row_has_is_refused(tmp_path: Path) -> None:
    write(rows_of(["a", "b"]), tmp_path / "mine.csv")
    with pytest.raises(PipelineError, match="no row has '-1'"):
        new_task(tmp_path / "mine.csv", tmp_path / "data", NewTask(drop_labels=("-1",)))


@pytest.mark.parametrize(
    ("values", "options", "later", "numbers"),
    [
        (["+1", "-1"], {}, ["+1", 1, "1.0", -1], [1, 1, 1, 0]),
        (["1.1", "1.10", "2.0"], {}, ["2.0", 2, "1.10", "1.1"], [2, 2, 1, 0]),
        (["['a']", "['b']"], {}, ["['b']", "a", ["b"]], [1, 0, 1]),
        (["-1", "a", "b"], {"drop_labels": ["-1"]}, ["-1", "b", "a", "-1"], [1, 0]),
    ],
)
def test_later_rows_are_read_by_the_labels_of_the_file(
    values: list[str], options: dict[str, Any], later: list[Any], numbers: list[int], tmp_path: Path
) -> None:
    write(rows_of(values), tmp_path / "mine.csv")
    new_task(tmp_path / "mine.csv", tmp_path / "data", NewTask(**options))
    task = find_task("mine", tmp_path / "data")
    table = pd.DataFrame({"text": [f"text {row}" for row in range(len(later))], "label": later}, dtype=object)
    assert canonical_rows(task, table, "later", source=task.files)["label"].tolist() == numbers
