"""Invalid options and files are refused in a line or two, with status 2."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.cli.app import main

LONG = "a" * 5000
DEEP = 10**5
HUGE = "9" * 5000

Refused = Callable[..., str]


@pytest.fixture
def refused(run: Callable[..., tuple[int, str, str]]) -> Refused:
    """The message of a command that ends with status 2, without ``error: ``."""

    def message(*arguments: object) -> str:
        status, _, printed = run(*arguments)
        assert status == 2
        assert printed.startswith("error: ")
        assert len(printed) < 1000
        return printed.removeprefix("error: ").rstrip("\n")

    return message


TRAIN = ["extract", "--task", "sst"]
COMPARE = ["compare", "--dry-run"]
PREDICT = ["predict", "--target", "sst", "--input", "in.csv", "--output", "out.csv"]
ENSEMBLE = ["ensemble", "--target", "sst", "--name", "best"]

OPTIONS: dict[str, tuple[list[str], str]] = {
    **{
        f"{verb} {option} of 5,000 letters": ([verb, *others, option, LONG], "the name is too long")
        for verb, option, *others in (
            ("extract", "--data", "--task", "sst"),
            ("extract", "--recipe", "--task", "sst"),
            ("predict", "--input", *PREDICT[1:3], *PREDICT[5:]),
            ("demo", "--output"),
            ("report", "--study"),
            ("pool", "--studies"),
            ("compare", "--study"),
        )
    },
    "extract --task of 5,000 letters": (["extract", "--data", ".", "--task", LONG], "unknown task 'aaa"),
    "a task file of 5,000 letters": (["tasks", "check", f"{LONG}.toml"], "the name is too long"),
    "extract --backbone of 5,000 letters": ([*TRAIN, "--backbone", LONG], "neither a folder nor a Hub id"),
    "ensemble --name of 5,000 letters": ([*ENSEMBLE[:3], "--name", LONG], "up to 32 of a-z"),
    "ensemble --runs of 5,000 letters": ([*ENSEMBLE, "--runs", LONG], "no run aaa"),
    "extract --adapter of 5,000 letters": ([*TRAIN, "--adapter", LONG], "Choose from"),
    "store list --store of 5,000 letters": (["store", "list", "--store", LONG], "the name is too long"),
    "a path with a null byte": ([*TRAIN, "--store", "a\0b"], r"argument 'a\x00b': not UTF-8 text"),
    "a task file with a null byte": (["tasks", "check", "a\0b.toml"], r"argument 'a\x00b.toml': not UTF-8 text"),
    "a path that is not UTF-8": (["demo", "--output", "/tmp/a\udcffb"], r"argument '/tmp/a\udcffb': not UTF-8 text"),
    "layers that are not UTF-8": ([*TRAIN, "--drop-layers", "\udcff"], "not UTF-8 text"),
    "a seed of 5,000 digits": ([*TRAIN, "--seed", HUGE], "--seed"),
    "seeds of 5,000 digits": ([*COMPARE, "--seeds", HUGE], "write whole numbers with commas"),
    "no rate": ([*TRAIN, "--learning-rate", "nan"], "learning_rate: Input should be a finite number"),
    "no time between checkpoints": ([*TRAIN, "--checkpoint-seconds", "nan"], "Give 0 or more"),
    "a time before now": ([*TRAIN, "--checkpoint-seconds", "-1"], "Give 0 or more"),
    "no memory": ([*TRAIN, "--cache-gb", "nan"], "Give 0 to"),
    "endless memory": ([*TRAIN, "--cache-gb", "inf"], "Give 0 to"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_cannot_be(name: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, expected = OPTIONS[name]
    message = refused(*arguments)
    assert expected in message
    assert not list(tmp_path.iterdir())


def recipe(content: str) -> tuple[list[str], bytes]:
    return [*TRAIN, "--recipe"], content.encode()


def task(**keys: str) -> tuple[list[str], bytes]:
    values = {"name": '"own"', "kind": '"score"', "text": '["a"]', "label": '"b"', "metric": '"pearson"', **keys}
    return ["tasks", "check"], "\n".join(f"{key} = {value}" for key, value in values.items()).encode()


def study(content: str = "", **keys: str) -> tuple[list[str], bytes]:
    values = {"methods": '["full"]', "targets": '["sst"]', "seeds": "[1]", **keys}
    lines = [*(f"{key} = {value}" for key, value in values.items()), content]
    return [*COMPARE, "--study"], "\n".join(lines).encode()


def grid(content: str) -> tuple[list[str], bytes]:
    return study(f"[rows.full]\n{content}")


TEN = str([*range(10)])

FILES: dict[str, tuple[tuple[list[str], bytes], str]] = {
    "a recipe nested 10^5 deep": (recipe(f"a = {'[' * DEEP}{']' * DEEP}"), "nested too deeply"),
    "epochs of 5,000 digits": (recipe(f"epochs = {HUGE}"), "Exceeds the limit"),
    "epochs of 4,000 digits": (recipe(f"epochs = {HUGE[:4000]}"), "epochs: Input should be less than"),
    "a rate of 400 digits": (recipe(f"learning_rate = {HUGE[:400]}"), "learning_rate: Input should be a valid number"),
    **{
        f"{key} = 1e31": (recipe(f"{key} = 1e31"), f"{key}: ")
        for key in (
            "max_length", "bottleneck", "pal_size", "pal_heads", "prefix_length", "fusion_rank", "epochs", "min_steps",
            "batch_size", "gradient_accumulation_steps", "early_stopping_patience", "evaluations", "steps_per_epoch",
            "split_layers",
        )
    },
    **{
        f"{key} = 1e300": (recipe(f"{key} = 1e300"), f"{key}: Input should be less than")
        for key in (
            "anchor", "fusion_regularization", "learning_rate", "backbone_learning_rate", "head_learning_rate",
            "embedding_learning_rate", "weight_decay", "max_grad_norm", "smart", "smart_radius", "bregman",
            "l2_sp", "loss_weight", "temperature",
        )
    },
    "layers that are a number": (recipe("drop_layers = 3"), "write layers as 0-4"),
    "a task without end": (task(range="[-inf, inf]"), "range.0: Input should be a finite number"),
    "a task as wide as double precision": (task(range="[-1e308, 1e308]"), "range.0: Input should be greater than"),
    "a task nested 10^5 deep": (task(range=f"{'[' * DEEP}{']' * DEEP}"), "nested too deeply"),
    "a recipe that is a text": (study(recipe='"x"'), "recipe: Input should be a valid dictionary"),
    "a recipe that is a text, and a grid": (
        study('[rows.full]\ngrid = { epochs = [1, 2] }', recipe='"x"'), "recipe: Input should be a valid dictionary"),
    "a row's recipe that is a text, with a grid": (
        grid('recipe = "x"\ngrid = { epochs = [1, 2] }'), "rows.full.recipe: Input should be a valid dictionary"),
    "a grid that is a text": (grid('grid = "x"'), "rows.full.grid: Input should be a valid dictionary"),
    "a grid of 10^7 cells": (
        grid(f"grid = {{ {', '.join(f'k{key} = {TEN}' for key in range(7))} }}"), "10000000 combinations are too many"),
    "a title of 5,000 letters": (grid(f'title = "{LONG}"'), "rows.full.title: String should have at most 300"),
    "a backbone with a null byte": (grid(r'backbone = "a\u0000b"'), "rows.full.backbone: String should match"),
    "a limit of 10^30": (study(limit=str(10**30)), "limit: Input should be less than"),
    "a dev limit of 10^30": (study(dev_limit=str(10**30)), "dev_limit: Input should be less than"),
    "a curve of 10^30 rows": (study(f"[curve]\nrows = [{10**30}]"), "curve.rows.0: Input should be less than"),
    "a seed of 10^30": (study(seeds=f"[{10**30}]"), "seeds.0: Input should be less than"),
    "a study nested 10^5 deep": (study(seeds=f"{'[' * DEEP}{']' * DEEP}"), "nested too deeply"),
    "a study that is not UTF-8": (([*COMPARE, "--study"], b'name = "\xff"'), "not UTF-8 text (byte 8)"),
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be(name: str, refused: Refused, tmp_path: Path) -> None:
    (arguments, content), expected = FILES[name]
    file = tmp_path / "given.toml"
    file.write_bytes(content)
    message = refused(*arguments, file)
    assert message.startswith(f"{file}: ")
    assert expected in message


REPORTS_JSON = {
    "study.json": ("mine/study.json", ["report", "--study", "mine"], "run compare again"),
    "study.json of several": ("mine/study.json", ["pool", "mine"], "run compare again"),
    "ensemble.json": (
        "ensembles/mine/ensemble.json", [*PREDICT, "--using", "ensemble:mine"], "make the ensemble again"),
    "run.json": ("runs/mine/run.json", [*ENSEMBLE, "--runs", "mine"], "the run is trained again"),
}  # fmt: skip
CONTENTS: dict[str, bytes | None] = {
    "cut off": b'{"a": ',
    "not UTF-8": b"\xff",
    "nested 10^5 deep": b"[" * DEEP + b"]" * DEEP,
    "a number of 5,000 digits": b'{"schema_version": ' + HUGE.encode() + b"}",
    "another file": b"{}",
    "a folder": None,
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("name", REPORTS_JSON)
def test_a_damaged_record_is_named_with_the_remedy(
    name: str, content: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("sentence\na film\n")
    place, arguments, remedy = REPORTS_JSON[name]
    file = tmp_path / "reports" / place
    file.parent.mkdir(parents=True)
    written = CONTENTS[content]
    if written is None:
        file.mkdir()
    else:
        file.write_bytes(written)
    message = refused(*arguments, "--reports", tmp_path / "reports")
    assert str(file) in message
    assert (remedy if written is not None else "there is a folder where a file is needed") in message


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "permission denied"),
        (errno.EMFILE, "too many open files: raise the limit (ulimit -n)"),
        (errno.EIO, "the disk fails"),
    ],
)
def test_what_the_machine_refuses_anywhere_is_one_line(
    number: int, reason: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(number, os.strerror(number), "/some/file")

    monkeypatch.setattr("pipeline.cli.tasks.built_in_tasks", refuse)
    message = refused("tasks", "list")
    assert message == f"/some/file: {reason}. Finished work is kept; fix this and run the same command again"


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "no", "/x"), OSError("?"), ZeroDivisionError()])
def test_a_bug_stays_a_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("pipeline.cli.tasks.built_in_tasks", fail)
    with pytest.raises(type(error)):
        main(["tasks", "list"])


def test_a_message_cannot_steer_the_terminal(refused: Refused, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(r'"\u001b[2J" = 1')
    assert "\x1b" not in refused("tasks", "check", file)


def test_all_that_a_command_line_misspells_is_told_at_once(refused: Refused, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    told = refused("fuse", "--target", "sst", "--data", nowhere, "--backbone", nowhere)
    assert told.splitlines() == [
        "command line: 2 problems",
        f"  {nowhere}: no such folder (--data, or data in pipeline.toml)",
        f"  backbone '{nowhere}': no such folder (--backbone takes a folder or a Hub id)",
    ]
    told = refused("fuse", "--target", "films", "--sources", "sst,meals@0123456789ab")
    assert re.findall(r"^  unknown task '(\w+)'", told, re.MULTILINE) == ["films", "meals"]
