"""Several labels a row, or none: read from lists, texts and columns of 0 and 1, told if wrong, split by class."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.data.canonical import canonical_rows
from pipeline.data.labels import are_sets, as_matrix, as_sets, names_in
from pipeline.data.split import cut, split_rows, strata, stratified
from pipeline.data.tables import read_table, write_table
from pipeline.data.task_data import extra_rows, has_labelled_test
from pipeline.data.tasks import Extra, Task
from pipeline.system.errors import PipelineError
from tests.loading import MOOD

LABELS = MOOD | {"kind": "labels", "classes": ["joy", "fear", "awe"], "metric": "micro-f1"}


def task(**changes: Any) -> Task:
    return Task.parse(LABELS | changes, "test")


def read(own: Task, cells: list[Any] | dict[str, list[Any]]) -> list[str]:
    columns = cells if isinstance(cells, dict) else {"label": cells}
    size = len(next(iter(columns.values())))
    table = pd.DataFrame({"text": [f"text {row}" for row in range(size)], **columns}).set_axis(range(1, size + 1))
    return canonical_rows(own, table, "here", source=own.files)["label"].tolist()


SAME = ["110", "000", "001", "100"]
FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lists": ([["fear", "joy"], [], ("awe",), np.array(["joy"])], {}),
    "lists, spelt": (["['joy', 'fear']", "[]", '["awe"]', "joy"], {}),
    "joined": (["joy | fear", "", "awe|", " JOY".lower()], {}),
    "another separator": (["joy;fear", None, "awe", "joy;joy"], {"files": {"separator": ";"}}),
    "numbers of classes": (["0|1", float("nan"), 2, "0"], {}),
    "raw labels": (["j|f", "", "a", "j"], {"files": {"labels": {"j": 0, "f": 1, "a": 2}}}),
    "flags": ({"joy": [1, 0, 0, 1], "awe": ["0", "0", "1", "0"], " fear": [True, False, False, False]}, {}),
}


@pytest.mark.parametrize(("cells", "changes"), FORMS.values(), ids=[*FORMS])
def test_the_same_label_sets_are_read_whatever_form_they_come_in(cells: Any, changes: dict[str, Any]) -> None:
    assert read(task(**changes), cells) == SAME


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_files_hold_lists_or_texts_and_a_test_split_may_have_flags(suffix: str, tmp_path: Path) -> None:
    own, folder = task(), tmp_path / "mood"
    folder.mkdir()
    cells = [["joy", "fear"], [], ["awe"], ["joy"]]
    table = pd.DataFrame({"text": list("abcd"), "label": ["|".join(c) for c in cells] if suffix == ".csv" else cells})
    write_table(table, folder / f"train{suffix}")
    assert canonical_rows(own, read_table(folder / f"train{suffix}"), "train")["label"].tolist() == SAME
    for name, labelled in (("joy", False), ("fear", False), ("awe", True)):
        table[name] = 1
        write_table(table.drop(columns="label"), folder / f"test{suffix}")
        assert has_labelled_test(own, tmp_path) is labelled


BAD: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "unknown label": (["fear|joyy", "awe", "glee"], {}, ["row 1: 'joyy' (did you mean 'joy'?)", "row 3: 'glee'"]),
    "unknown in a list": ([["joy"], ["awe", 7]], {}, ["row 2: 7"]),
    "separator missing": (["joy;fear", "awe"], {}, ["row 1: 'joy;fear'"]),
    "2 in a flag": ({"joy": [0, 2], "fear": [1, ""], "awe": [0, 1]}, {}, ["'joy': neither", "row 2: 2", "'fear'"]),
    "a flag missing": ({"joy": [0, 1], "fear": [1, 0]}, {}, ["column 'label' is missing"]),
    "one label set": (["joy", "joy"], {}, ["a single label: all 2 rows have 'joy'"]),
    "no class": ([], {"classes": []}, ["kind 'labels' names at least two classes"]),
    "separator in a class": ([], {"classes": ["a|b", "c"]}, ["files.separator: is in class 'a|b'"]),
    "a class metric": ([], {"metric": "accuracy"}, ["use micro-f1 or macro-f1 for kind 'labels'"]),
    "similar": ([], {"similar": "joy", "classes": ["joy", "fear"], "text": ["a", "b"]}, ["similar: belongs to pairs"]),
}


@pytest.mark.parametrize(("cells", "changes", "said"), BAD.values(), ids=[*BAD])
def test_what_is_no_label_set_is_told_by_row_and_label(cells: Any, changes: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(PipelineError) as caught:
        read(task(**changes), cells)
    assert all(part in str(caught.value) for part in said), caught.value


def test_label_sets_and_matrices_are_two_forms_of_one_thing() -> None:
    matrix = np.random.default_rng(0).random((2, 5, 7)) < 0.4
    sets = as_sets(matrix)
    assert sets.shape == (2, 5) and are_sets(sets)
    np.testing.assert_array_equal(as_matrix(sets), matrix)
    np.testing.assert_array_equal(as_matrix(pd.Series(sets[0]).to_numpy()), matrix[0])
    assert names_in("0101", "abcd") == ("b", "d")


@pytest.mark.parametrize("seed", range(3))
def test_every_class_is_in_every_part_in_its_share(seed: int) -> None:
    matrix = np.random.default_rng(seed).random((400, 6)) < [0.5, 0.3, 0.2, 0.1, 0.06, 0.03]
    names = [tuple(name for name, one in zip("abcdef", row, strict=True) if one) for row in matrix]
    rows = pd.DataFrame({"text_a": [f"text {row}" for row in range(400)], "label": as_sets(matrix).astype(object)})
    assert strata(rows["label"]).min() == -1  # rows without labels are a stratum too
    sampled = np.isin(np.arange(400), stratified(rows["label"], 100, seed))
    parts = split_rows(rows.assign(label=pd.Series(names)), [0.5, 0.25, 0.25], seed, "test")
    assert sorted(np.concatenate(parts)) == list(range(400))
    chosen = [(sampled, 0.25), (cut(rows, 0.5, seed, "test"), 0.5), (np.isin(np.arange(400), parts[0]), 0.5)]
    for mask, share in chosen:
        held = matrix[mask].sum(axis=0)
        assert (held > 0).all() and abs(held - share * matrix.sum(axis=0)).max() < 12
        assert abs(held[-1] - share * matrix[:, -1].sum()) <= 2  # the rarest class, exactly


def test_extra_data_needs_the_same_classes() -> None:
    rows = canonical_rows(task(), pd.DataFrame({"text": list("ab"), "label": ["joy", "fear|awe"]}), "here")
    added = extra_rows(task(), rows, task(name="other"), Extra(task="mood"))
    assert added["label"].tolist() == ["100", "011"]
    for source in (task(classes=["joy", "fear"]), Task.parse(MOOD, "test")):
        with pytest.raises(PipelineError, match="the same classes"):
            extra_rows(source, rows, task(), Extra(task="mood"))
