"""Rows arrive canonical and checked, samples are exact and seeded, and bad data is told by file, row and value."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.data import canonical
from pipeline.data.canonical import canonical_rows, fingerprint
from pipeline.data.task_data import load_split, read_test_texts
from pipeline.data.tasks import Files, Task
from pipeline.system.errors import PipelineError
from tests.loading import LIKENESS, MOOD, load_task_data

CLASSES: dict[str, Any] = {**MOOD, "aliases": ["temper"]}
GOOD = "text,label\nfine,1\npoor,0\n"


def task(**changes: Any) -> Task:
    return Task.parse(CLASSES | changes, "test")


def pair_task(**changes: Any) -> Task:
    return Task.parse(LIKENESS | changes, "test")


def write(data: Path, name: str, splits: dict[str, pd.DataFrame]) -> Path:
    (data / name).mkdir(parents=True)
    for split, rows in splits.items():
        rows.to_csv(data / name / f"{split}.csv", index=False)
    return data


def labelled(counts: dict[int, int], seed: int = 0) -> pd.DataFrame:
    """Rows with the given number of each label, shuffled; ids are row numbers."""
    labels = np.random.default_rng(seed).permutation([label for label, count in counts.items() for _ in range(count)])
    return pd.DataFrame({"id": range(len(labels)), "text": [f"text {i}" for i in range(len(labels))], "label": labels})


def problem(data: Path, of: Task, **options: Any) -> str:
    with pytest.raises(PipelineError) as caught:
        load_task_data(of, data, **options)
    return str(caught.value)


# Canonical rows.


@pytest.mark.parametrize("part", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"text": ["fine", " ", None, 3.5, "poor", "so so", "\ud800"], "label": ["1", "x", "7", None, 0, "0", 1]},
        {"id": ["a", "b", "a", None, ["c"], "\udfff", "b"], "label": [1, 0, 2, 0.5, 1, 1, 0]},
    ],
    ids=["good", "texts and labels", "ids"],
)
def test_rows_are_the_same_read_part_by_part(
    changed: dict[str, Any], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"id": [7, 5, 3, 1, 2, 4, 6], "text": [f"text {i}" for i in range(7)], "label": [0, 1, 1, 0, 1, 0, 0]}
    table = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in (columns | changed).items()})

    def found() -> Any:
        try:
            rows = canonical_rows(task(), table, "here")
        except PipelineError as error:
            return str(error)
        texts = canonical_rows(task(), table.drop(columns="id").astype({"text": str}), "here")
        return rows.to_dict("list"), rows.dtypes.to_dict(), fingerprint(rows), texts.to_dict("list"), fingerprint(texts)

    whole = found()
    assert isinstance(whole, str) == bool(changed)
    monkeypatch.setattr(canonical, "_PART", part)
    assert found() == whole


def test_rows_have_ids_texts_and_whole_labels(tmp_path: Path) -> None:
    file = tmp_path / "mood" / "train.csv"
    file.parent.mkdir()
    file.write_text("extra,label,text,id\nx,1,fine,b\ny,0.0,poor,a\n")
    rows = load_split(task(), tmp_path, "train")
    assert rows.to_dict("list") == {"id": ["b", "a"], "text_a": ["fine", "poor"], "label": [1, 0]}
    assert rows["label"].dtype == np.int64


def test_pairs_have_two_texts_and_real_scores(tmp_path: Path) -> None:
    file = tmp_path / "likeness" / "dev.jsonl"
    file.parent.mkdir()
    lines = [{"first": "a", "second": "b", "score": 5}, {"first": "c", "second": "d", "score": "0.5"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    rows = load_split(pair_task(), tmp_path, "dev")
    assert rows.to_dict("list") == {"id": ["0", "1"], "text_a": ["a", "c"], "text_b": ["b", "d"], "label": [5.0, 0.5]}
    assert rows["label"].dtype == np.float64


def test_unlabelled_rows_need_no_label_and_have_none() -> None:
    table = pd.DataFrame({"text": ["fine"], "label": ["whatever"]})
    assert list(canonical_rows(task(), table, "input", labelled=False)) == ["id", "text_a"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_the_same_rows_are_the_same_whatever_form_they_come_in(suffix: str, tmp_path: Path) -> None:
    from pipeline.data.tables import write_table

    rows = labelled({0: 5, 1: 5})
    write_table(rows.astype({"id": str}), tmp_path / "mood" / f"train{suffix}")
    expected = canonical_rows(task(), rows.astype({"id": str}), "here")
    assert fingerprint(load_split(task(), tmp_path, "train")) == fingerprint(expected)


def test_files_may_stand_in_the_folder_of_an_alias_and_under_other_stems(tmp_path: Path) -> None:
    own = task(files={"train": "training", "dev": "validation"})
    write(tmp_path, "temper", {"training": labelled({0: 3, 1: 3}), "validation": labelled({0: 2, 1: 2})})
    data = load_task_data(own, tmp_path)
    assert (len(data.train), len(data.dev)) == (6, 4)


XYZ = ["x", "y", "z"]


@pytest.mark.parametrize(
    ("classes", "mapping", "raw", "labels"),
    [
        (XYZ, {"neg": 0, "pos": 1}, ["pos", "neg", "pos"], [1, 0, 1]),
        (XYZ, {"1": 0, "2": 1}, ["2", "1.0", "2.0"], [1, 0, 1]),
        (XYZ, {"-1": 0, "1": 1}, ["1", "-1", "-1"], [1, 0, 0]),
        (XYZ, {"1.0": 0, "2.0": 1}, ["2.0", "1.0", "1"], [1, 0, 0]),
        (XYZ, {"0.5": 0, "1.5": 1}, ["1.5", "0.5", "0.5"], [1, 0, 0]),
        (XYZ, {"a": 1, "b": 1, "c": 0}, ["a", "b", "c"], [1, 1, 0]),
        (XYZ, {"007": 0, "07": 1, "7": 2}, ["7.0", "007", "07"], [2, 0, 1]),
        (XYZ, {"1_0": 0, "10": 1, "1E1": 2}, ["10", "1E1", "1_0"], [1, 2, 0]),
        (["0", "1"], {}, ["0", "1"], [0, 1]),  # a class may be called by its own number, or by any with labels
        (["no", "1"], {}, ["0", "1"], [0, 1]),
        (["1", "0"], {"1": 0, "0": 1}, ["0", "1"], [1, 0]),
        (["1", "0"], {"0": 0, "1": 1}, ["0", "1"], [0, 1]),
        (["01", "00"], {}, ["01", "00", "1"], [0, 1, 1]),  # a code with leading zeros is a name
    ],
    ids=str,
)
def test_raw_labels_are_mapped_as_the_task_says(
    classes: list[str], mapping: dict[str, int], raw: list[str], labels: list[int], tmp_path: Path
) -> None:
    write(tmp_path, "mood", {"train": pd.DataFrame({"text": XYZ[: len(raw)], "label": raw})})
    rows = load_split(task(classes=classes, files={"labels": mapping}), tmp_path, "train")
    assert rows["label"].tolist() == labels


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (["1", "0"], "classes: '1' is a number and could mean class 1: write labels = { \"1\" = 0, ... }"),
        (["a", "0", "b"], "classes: '0' is a number and could mean class 0"),
        (["2", "1", "0"], "classes: '2' is a number and could mean class 2"),
        (["a", "1.0", "1"], "classes: '1' is a number and could mean class 1"),
        (["10", "20"], "classes: '10' is a number and could mean class 10: write labels"),
    ],
    ids=str,
)
def test_a_class_that_is_called_by_the_number_of_another_one_needs_labels(
    classes: list[str], said: str, tmp_path: Path
) -> None:
    write(tmp_path, "mood", {"train": pd.DataFrame({"text": list("wxyz"), "label": ["0", "1", "0", "1"]})})
    with pytest.raises(PipelineError) as caught:
        load_split(task(classes=classes), tmp_path, "train")
    assert said in str(caught.value) and "train.csv: 1 problem" in str(caught.value)


@pytest.mark.parametrize(("one", "other"), [("1", "1.0"), ("yes", " yes")])
def test_labels_that_are_the_same_may_not_mean_two_classes(one: str, other: str, tmp_path: Path) -> None:
    write(tmp_path, "mood", {"train": pd.DataFrame({"text": list("xy"), "label": [one, "b"]})})
    same = task(files={"labels": {one: 0, "b": 1, other: 0}})
    assert load_split(same, tmp_path, "train")["label"].tolist() == [0, 1]
    with pytest.raises(PipelineError, match=f"files.labels: '{one}' and '{other}' are the same label: keep one"):
        load_split(task(files={"labels": {one: 0, "b": 1, other: 1}}), tmp_path, "train")


def test_scores_are_rescaled_and_rounding_at_the_ends_is_forgiven(tmp_path: Path) -> None:
    raw = pd.DataFrame({"first": list("abc"), "second": list("def"), "score": ["0.1", "0.2", "0.4"]})
    write(tmp_path, "likeness", {"train": raw})
    scale = (1 / 0.3, -0.1 / 0.3 * (1 - 1e-12))
    assert scale[0] * 0.4 + scale[1] > 1
    rows = load_split(pair_task(range=[0.0, 1.0], files={"scale": scale}), tmp_path, "train")
    assert rows["label"].tolist() == pytest.approx([0, 1 / 3, 1])
    assert rows["label"].between(0, 1).all()


def test_rows_with_a_blank_text_are_left_out_where_the_task_says_so(tmp_path: Path) -> None:
    rows = pd.DataFrame(
        {"id": list("abcd"), "first": ["x", " ", "y", "z"], "second": ["x", "y", None, "z"], "score": [1, 2, 9, 3]}
    )
    write(tmp_path, "likeness", {"train": rows})
    assert load_split(pair_task(files={"drop_blank": True}), tmp_path, "train")["id"].tolist() == ["a", "d"]
    with pytest.raises(PipelineError, match="3 problems"):
        load_split(pair_task(), tmp_path, "train")


def test_ids_of_rows_without_any_count_the_rows_that_are_read(tmp_path: Path) -> None:
    write(tmp_path, "mood", {"train": pd.DataFrame({"text": ["", "b", "c", "d"], "label": [1, -1, 1, 0]})})
    rows = load_split(task(files={"drop_blank": True, "drop_labels": ["-1"]}), tmp_path, "train")
    assert rows.to_dict("list") == {"id": ["0", "1"], "text_a": ["c", "d"], "label": [1, 0]}
    assert rows.index.tolist() == [0, 1]


def test_what_stays_where_blanks_are_left_out_is_known_by_its_row_in_the_table() -> None:
    source = Files(drop_blank=True, drop_labels=("-1",))
    table = pd.DataFrame({"text": ["", "b", "c", "d", "e"], "label": [1, -1, 1, None, 0]}, index=range(2, 7))
    rows = canonical_rows(task(), table, "here", source=source, leave_out_blank=True)
    assert rows["text_a"].to_dict() == {4: "c", 6: "e"}


# Samples.


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """231 rows of three classes, one of them rare."""
    rows = labelled({0: 150, 1: 70, 2: 11})
    return write(tmp_path_factory.mktemp("data"), "mood", {"train": rows, "dev": labelled({0: 5, 1: 5, 2: 5})})


THREE = task(classes=["bad", "so-so", "good"])


@pytest.mark.parametrize("limit", [2, 3, 10, 33, 100, 230])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_limit_keeps_exactly_so_many_rows_each_class_in_its_share_in_file_order(
    limit: int, seed: int, uneven: Path
) -> None:
    whole = load_task_data(THREE, uneven).train
    part = load_task_data(THREE, uneven, limit=limit, seed=seed).train
    assert len(part) == limit
    assert part.index.tolist() == list(range(limit))
    ids = part["id"].astype(int)
    assert ids.is_monotonic_increasing
    assert ids.is_unique
    assert part.drop(columns="id").to_dict("list") == whole.iloc[ids].drop(columns="id").to_dict("list")
    counts = Counter(part["label"])
    assert all(
        abs(counts[label] - limit * size / len(whole)) < 1 for label, size in whole["label"].value_counts().items()
    )


def test_permuted_labels_are_the_same_labels_of_other_rows_by_the_seed_in_train_alone(uneven: Path) -> None:
    whole = load_task_data(THREE, uneven)
    first, again, other = (whole.permuted(seed) for seed in (1, 1, 2))
    assert first.fingerprint == again.fingerprint
    assert len({each.fingerprint["train"] for each in (whole, first, other)}) == 3
    assert first.fingerprint["dev"] == whole.fingerprint["dev"]
    pd.testing.assert_frame_equal(first.train.drop(columns="label"), whole.train.drop(columns="label"))
    assert Counter(first.train["label"]) == Counter(whole.train["label"])
    # Rows keep their label as often as chance has it: the sum of squared shares.
    kept = np.mean([(whole.permuted(seed).train["label"] == whole.train["label"]).mean() for seed in range(30)])
    assert kept == pytest.approx((whole.train["label"].value_counts(normalize=True) ** 2).sum(), abs=0.03)


def test_a_part_of_dev_is_stratified_and_the_same_for_every_run(uneven: Path) -> None:
    whole = load_task_data(THREE, uneven)
    parts = [load_task_data(THREE, uneven, limit=60, seed=seed, dev_limit=len(whole.dev) // 2) for seed in (1, 2)]
    assert parts[0].fingerprint["dev"] == parts[1].fingerprint["dev"] != whole.fingerprint["dev"]
    assert parts[0].fingerprint["train"] != parts[1].fingerprint["train"]
    dev = parts[0].dev
    assert len(dev) == len(whole.dev) // 2
    assert set(dev["id"]) < set(whole.dev["id"])
    shares = [rows["label"].value_counts(normalize=True).sort_index().to_numpy() for rows in (dev, whole.dev)]
    assert shares[0] == pytest.approx(shares[1], abs=1 / len(dev))
    assert load_task_data(THREE, uneven, dev_limit=10**6).fingerprint == whole.fingerprint


def test_a_limit_on_scores_keeps_the_shares_of_low_and_high_ones(tmp_path: Path) -> None:
    # Skewed: without strata a sample of 50 would often miss the mean by more.
    scores = 5 * np.random.default_rng(0).random(1000) ** 3
    rows = pd.DataFrame({"first": [f"a{i}" for i in range(1000)], "second": "b", "score": scores})
    write(tmp_path, "likeness", {"train": rows, "dev": rows[:10]})
    fifths = np.quantile(scores, [0.2, 0.4, 0.6, 0.8])
    for seed in range(5):
        part = load_task_data(pair_task(), tmp_path, limit=50, seed=seed).train
        assert np.bincount(np.digitize(part["label"], fifths)).tolist() == [10] * 5


def test_a_limit_that_leaves_one_class_is_refused(uneven: Path) -> None:
    assert "a limit of 1 leaves a single class of task 'mood'" in problem(uneven, THREE, limit=1)


def test_a_task_without_dev_holds_out_a_share_of_train_that_no_seed_and_no_limit_changes(tmp_path: Path) -> None:
    own = task(files={"dev_fraction": 0.2})
    rows = labelled({0: 60, 1: 40})
    write(tmp_path, "mood", {"train": rows})
    whole = load_task_data(own, tmp_path, seed=0)
    assert Counter(whole.dev["label"]) == {0: 12, 1: 8}
    assert sorted([*whole.train["id"], *whole.dev["id"]], key=int) == rows["id"].astype(str).tolist()
    for seed in range(1, 4):
        data = load_task_data(own, tmp_path, seed=seed, limit=30)
        assert data.fingerprint["dev"] == whole.fingerprint["dev"]
        assert set(data.train["id"]) < set(whole.train["id"])
        assert len(data.train) == 30


def test_a_task_without_dev_that_is_too_small_to_share_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "mood", {"train": labelled({0: 1, 1: 1})})
    message = problem(tmp_path, task(files={"dev_fraction": 0.9}))
    assert "task 'mood': dev_fraction 0.9 of 2 rows leaves 0 to train on and 2 for dev" in message


def test_rows_in_both_splits_are_counted_and_dropped_from_train_alone_when_asked(tmp_path: Path) -> None:
    train = pd.DataFrame({"text": ["a good one", "bad", "so so", "other"], "label": [1, 0, 1, 0]})
    dev = pd.DataFrame({"text": ["A good one!", "a GOOD one", "new", "newer"], "label": [1, 1, 0, 1]})
    write(tmp_path, "mood", {"train": train, "dev": dev})
    kept, dropped = (load_task_data(task(), tmp_path, drop_overlap=drop) for drop in (False, True))
    assert (kept.dev_in_train, kept.dropped) == (2, {})
    assert (dropped.dev_in_train, dropped.dropped) == (0, {"mood": 1})
    assert len(kept.train) == 4
    assert dropped.train["text_a"].tolist() == ["bad", "so so", "other"]
    assert len(dropped.dev) == len(kept.dev) == 4


def test_dropping_down_to_a_single_class_is_refused(tmp_path: Path) -> None:
    rows = labelled({0: 3, 1: 3})
    new = pd.DataFrame({"id": [99], "text": ["new"], "label": [1]})
    write(tmp_path, "mood", {"train": rows, "dev": pd.concat([rows[rows["label"] == 0], new])})
    message = problem(tmp_path, task(), drop_overlap=True)
    assert "occur in dev or test of 'mood', 3 training rows are left, too few" in message


def test_a_row_that_two_tasks_hold_out_counts_for_the_first(tmp_path: Path) -> None:
    write(tmp_path, "mood", {"train": labelled({0: 3, 1: 3}), "dev": labelled({0: 1, 1: 1})})
    whole = load_task_data(task(), tmp_path)
    first, second, last = (whole.train.iloc[rows] for rows in ([0], [0, 4], []))
    kept = whole.without({"first": first, "second": second, "last": last})
    assert kept.dropped == {"first": 1, "second": 1}
    assert kept.train["text_a"].tolist() == whole.train["text_a"].drop([0, 4]).tolist()
    assert whole.without({"last": last}) is whole
    with pytest.raises(PipelineError, match="occur in dev or test of 'second', 1 training rows are left"):
        whole.without({"last": last, "second": whole.train.iloc[:5]})


# Fingerprints.


def rows_of(*texts: str, labels: list[int] | None = None) -> pd.DataFrame:
    return pd.DataFrame(
        {"id": [str(i) for i in range(len(texts))], "text_a": texts, "label": labels or [0] * len(texts)}
    )


@pytest.mark.parametrize(
    "other",
    [
        rows_of("c", "ab"),
        rows_of("a", "bc"),
        rows_of("ab", "c", labels=[0, 1]),
        rows_of("ab", "c").assign(id=["1", "0"]),
        rows_of("ab", "c").rename(columns={"text_a": "text_b"}),
        rows_of("ab", "c").drop(columns="label"),
        rows_of("ab"),
        rows_of("ab", "c", ""),
        rows_of("ab", "C"),
        rows_of("ab", "c ").assign(text_b="x"),
    ],
    ids=["order", "border", "label", "id", "column", "no label", "fewer", "more", "case", "pair"],
)
def test_any_change_of_the_rows_changes_their_fingerprint(other: pd.DataFrame) -> None:
    assert fingerprint(other) != fingerprint(rows_of("ab", "c"))


# Bad data. Files by name and content; then what the message says, all of it.

BAD: dict[str, tuple[Task, dict[str, str], list[str]]] = {
    "no folder of the task": (task(), {"other/train.csv": GOOD}, ["mood: no such folder", "<task>/train"]),
    "no dev split": (
        task(),
        {"mood/train.csv": GOOD},
        ["mood: split 'dev' is missing", "dev{.parquet,.csv,.tsv,.jsonl"],
    ),
    "two train splits": (
        task(),
        {"mood/train.csv": GOOD, "mood/train.tsv": GOOD.replace(",", "\t"), "mood/dev.csv": GOOD},
        ["mood: split 'train' is ambiguous", "train.csv, train.tsv", "keep one"],
    ),
    "columns missing": (
        pair_task(),
        {"likeness/train.csv": "sentence,second\na,b\n"},
        ["train.csv: column 'first', 'score' is missing", "the columns are 'sentence', 'second'"],
    ),
    "header only": (task(), {"mood/train.csv": "text,label\n"}, ["train.csv: no rows"]),
    "header only, and rows to leave out": (
        task(files={"drop_blank": True, "drop_labels": ["-1"]}),
        {"mood/train.csv": "text,label\n"},
        ["train.csv: no rows"],
    ),
    "empty and blank text": (
        task(),
        {"mood/train.csv": 'text,label\n,1\nfine,0\n"  ",1\n,0\n\t,1\n'},
        ["train.csv: 1 problem", "column 'text': empty or null text (4 in all): row 2: None, row 4: '  ', row 5: None"],
    ),
    "null text": (
        task(),
        {"mood/train.jsonl": '{"text": "fine", "label": 1}\n{"text": null, "label": 0}\n{"label": 0}\n'},
        ["train.jsonl: 1 problem", "column 'text': empty or null text (2 in all): row 2: None, row 3: nan"],
    ),
    "no text": (
        task(),
        {"mood/train.jsonl": '{"text": 7, "label": 1}\n{"text": ["a"], "label": 0}\n'},
        ["column 'text': not text (2 in all): row 1: 7, row 2: ['a']"],
    ),
    "blank lines between rows": (
        task(),
        {"mood/train.csv": "\nid,text,label\n7,fine,1\n\n8,poor,0\n\n\n"},
        [
            "train.csv: 3 problems",
            "'id': empty (1 in all): row 4",
            "'text': empty or null text (1 in all): row 4: None",
        ],
    ),
    "lists, deep and not": (
        task(files={"labels": {"neg": 0, "pos": 1}}),
        {
            "mood/train.jsonl": '{"id": [1], "text": "a", "label": "pos"}\n'
            f'{{"id": {"[" * 900}{"]" * 900}, "text": {"[" * 900}{"]" * 900}, "label": {"[" * 900}{"]" * 900}}}\n'
        },
        ["'id': neither text nor a number (2 in all): row 1: [1], row 2", "'text': not text (1 in all): row 2"],
    ),
    "a label of 400 digits": (
        task(),
        {"mood/train.jsonl": f'{{"text": "a", "label": 1{"0" * 400}}}\n{{"text": "b", "label": 1}}\n'},
        ["label is neither a number nor in ['bad', 'good'] (1 in all): row 1: 1000", "..."],
    ),
    "an unpaired surrogate": (
        task(),
        {"mood/train.jsonl": '{"text": "a\\ud83d", "label": 1}\n{"text": "\\ud83d\\ude42", "label": 0}\n'},
        [
            "train.jsonl: 1 problem",
            "column 'text': invalid Unicode (an unpaired surrogate), which no encoding can write",
            "(1 in all): row 1: 'a\\ud83d'",
        ],
    ),
    "an unpaired surrogate in an id": (
        task(),
        {"mood/train.jsonl": '{"id": "a\\ud83d", "text": "a", "label": 1}\n{"id": "b", "text": "b", "label": 0}\n'},
        ["train.jsonl: 1 problem", "column 'id'", "(1 in all): row 1: 'a\\ud83d'"],
    ),
    "nothing but blank text": (
        task(files={"drop_blank": True}),
        {"mood/train.csv": "text,label\n ,1\n,0\n"},
        ["train.csv: no rows"],
    ),
    "rows after some that are left out": (
        task(files={"drop_blank": True, "drop_labels": ["-1"]}),
        {"mood/train.csv": "id,text,label\na,,1\nb,b,-1\nc,c,1\n,d,0\nc,e,bad?\nf,f,7\n"},
        [
            "train.csv: 4 problems",
            "column 'id': empty (1 in all): row 5: None",
            "column 'id': duplicate ids (1 in all): row 6: 'c'",
            "(1 in all): row 6: 'bad?'",
            "label out of range 0..1 or not whole (1 in all): row 7: 7.0",
        ],
    ),
    "both texts of a pair": (
        pair_task(),
        {"likeness/train.csv": "first,second,score\n,b,1\na,,2\n"},
        [
            "train.csv: 2 problems",
            "'first': empty or null text (1 in all): row 2",
            "'second': empty or null text (1 in",
        ],
    ),
    "labels out of range": (
        task(),
        {"mood/train.csv": "text,label\na,0\nb,2\nc,1\nd,-1\ne,0.5\nf,9\n"},
        [
            "train.csv: 1 problem",
            "column 'label': label out of range 0..1 or not whole (4 in all): row 3: 2.0, row 5: -1.0, row 6: 0.5",
        ],
    ),
    "scores out of range": (
        pair_task(),
        {"likeness/train.csv": "first,second,score\na,b,5.1\nc,d,0\ne,f,-0.001\n"},
        ["column 'score': score out of range 0..5 in the task's file (2 in all): row 2: 5.1, row 4: -0.001"],
    ),
    "labels that are neither numbers nor names": (
        task(),
        {"mood/train.csv": "text,label\na,Good\nb,1\nc,\nd,inf\ne,nan\nf,good\n"},
        [
            "train.csv: 1 problem",
            "nor in ['bad', 'good'] (4 in all): row 2: 'Good' (did you mean 'good'?), row 4: None, row 5: 'inf'",
        ],
    ),
    "codes with leading zeros": (
        task(),
        {"mood/train.csv": "text,label\na,01\nb,00\nc,1\n"},
        ["(2 in all): row 2: '01', row 3: '00'"],
    ),
    "labels that are nearly names": (
        task(classes=["billing", "kat 34"]),
        {"mood/train.csv": "text,label\na,biling\nb,Kat-34\nc,kat 35\n"},
        ["(3 in all): row 2: 'biling' (did you mean 'billing'?), row 3: 'Kat-34' (did you mean 'kat 34'?), row 4: 'k"],
    ),
    "scores that are no numbers": (
        pair_task(),
        {"likeness/train.csv": "first,second,score\na,b,good\nc,d,0\ne,f,1\n"},
        ["'score': label is not a number (1 in all): row 2: 'good'"],
    ),
    "labels not in the mapping": (
        task(files={"labels": {"neg": 0, "pos": 1}}),
        {"mood/train.csv": "text,label\na,pos\nb,neg\nc,POS\nd,\n"},
        ["label not in ['neg', 'pos'] (2 in all): row 4: 'POS' (did you mean 'pos'?), row 5: None"],
    ),
    "a mapping to no class": (
        task(files={"labels": {"neg": 0, "pos": 2}}),
        {"mood/train.csv": "text,label\na,pos\nb,neg\n"},
        ["label out of range 0..1", "(1 in all): row 2: 2.0"],
    ),
    "a single class": (
        task(),
        {"mood/train.csv": "text,label\na,1\nb,1\nc,1.0\n"},
        ["column 'label': a single label: all 3 rows have 'good'"],
    ),
    "duplicate ids": (
        task(),
        {"mood/train.csv": "id,text,label\n7,a,1\n8,b,0\n7,c,1\n7,d,0\n8,e,1\n8,f,1\n"},
        ["column 'id': duplicate ids (4 in all): row 4: '7', row 5: '7', row 6: '8'"],
    ),
    "empty id": (task(), {"mood/train.csv": "id,text,label\n7,a,1\n,b,0\n"}, ["column 'id': empty (1 in all): row 3"]),
    "no columns": (task(), {"mood/train.jsonl": "{}\n{}\n"}, ["column 'text', 'label' is missing; the columns are"]),
    "semicolons": (task(), {"mood/train.csv": "text;label\na;1\nb;0\n"}, ["the columns are 'text;label'"]),
    "bad dev": (
        task(),
        {"mood/train.csv": GOOD, "mood/dev.csv": "text,label\na,3\nb,0\n"},
        ["dev.csv: 1 problem", "row 2: 3.0"],
    ),
    "everything at once": (
        task(),
        {"mood/train.csv": "id,text,label\n1,,5\n1,b,0\n2,c,x\n"},
        [
            "train.csv: 4 problems",
            "'id': duplicate ids (1 in all): row 3: '1'",
            "'text': empty or null text (1 in all): row 2: None",
            "'label': label is neither a number nor in ['bad', 'good'] (1 in all): row 4: 'x'",
            "'label': label out of range 0..1 or not whole (1 in all): row 2: 5.0",
        ],
    ),
}


@pytest.mark.timeout(20)  # an opened pipe would wait for ever
def test_what_is_no_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "mood").mkdir()
    os.mkfifo(tmp_path / "mood" / "train.csv")
    (tmp_path / "mood" / "test.csv").mkdir()
    for read, reason in (
        (lambda: load_task_data(task(), tmp_path), "train.csv: not a regular file"),
        (lambda: read_test_texts(task(), tmp_path), "test.csv: there is a folder where a file is needed"),
        (lambda: load_task_data(task(), tmp_path / ("x" * 5000)), "the name is too long"),
    ):
        with pytest.raises(PipelineError, match=reason) as caught:
            read()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("of", "files", "said"), BAD.values(), ids=list(BAD))
def test_bad_data_is_told_by_file_row_first_three_values_and_count(
    of: Task, files: dict[str, str], said: list[str], tmp_path: Path
) -> None:
    for name, content in files.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    message = problem(tmp_path, of)
    assert message.startswith(str(tmp_path / of.name))
    assert not [part for part in said if part not in message], message
    assert all(line.count("row ") <= 3 for line in message.splitlines()[1:])


def test_a_data_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    told = "no such folder (--data, or data in pipeline.toml)"
    assert problem(tmp_path / "nowhere", task()) == f"{tmp_path / 'nowhere'}: {told}"
