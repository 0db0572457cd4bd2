"""Any command line: done, or refused in a few lines; nothing is trained."""

import contextlib
import io
import shutil
import types
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from cyclopts import App
from hypothesis import strategies as st

from pipeline.cli.app import app, main
from pipeline.records.ledger import Ledger
from pipeline.system.errors import printable
from stages.archives import export_artifact
from stages.pretrain import MaskedAccuracy, Pretrained
from tests.fuzz.fuzz_cases import fuzzed
from tests.fuzz.fuzz_documents import ODD_TEXTS, texts
from tests.fuzz.fuzz_stores import ADAPTERS, RUNS, make_reports, make_store
from tests.pipeline.records.artifacts import FUSED

MOST_LINES, MOST_LETTERS = 40, 500

FILES = [
    "data", "backbone", "store", "reports", "export.tar.xz", "task.toml", "recipe.toml", "study.toml",
    "data/films/train.csv", "data/pairs/dev.csv", "bytes.csv",
    "bytes.toml", "bytes.tar.xz", "new.csv", "new.parquet", "new/folder", "reports/own",
]  # fmt: skip
NAMES = [
    "films", "meals", "pairs", "films,meals", "films,pairs,films", "sst", "sts", "own", "best", "ensemble:best", "auto",
    "fusion", "full,adapter", "1,2", "0-1", "default", "demo", "study.toml", "full", "films@" + RUNS[0], FUSED,
    *ADAPTERS.values(), *RUNS, ",", "1,1", "a ||| b",
]  # fmt: skip
NUMBERS = [
    "0", "1", "2", "3", "0.5", "-1", "1e-3", "1e31", "nan", "inf", "9" * 30, "9" * 5000, "1_000", "٣", "0x10", "",
]  # fmt: skip

# An absolute path is the user's own affair: they may write there.
anything = (texts | st.sampled_from(ODD_TEXTS)).filter(lambda text: not text.startswith(("/", "~")))
# An argument of a process has no NUL, and half surrogates stand for bytes that are not UTF-8.
arguments = anything.filter(lambda text: "\0" not in text) | st.just("\udcff")


def verbs(parent: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command and subcommand."""
    names = [name for name in parent if not name.startswith("-")]
    for name in names:
        yield from verbs(parent[name], (*path, name))
    if not names:
        yield path, parent


def values_of(hint: Any) -> st.SearchStrategy[str]:
    """What one would give, most often, for an option of this type."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    known = [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    known += FILES if Path in kinds else []
    known += [*NAMES, *FILES[:3]] if str in kinds else []
    known += NUMBERS if {int, float} & set(kinds) else []
    usual = st.sampled_from(known or ["true"])
    return usual | usual | usual | arguments


def tokens_of(argument: Any) -> st.SearchStrategy[list[str]]:
    """An option with its value, together or apart; a flag mostly alone."""
    options = [name for name in argument.names if name.startswith("-")]
    if not options:
        return values_of(argument.hint).map(lambda value: [value])
    option = st.sampled_from(options)
    together = st.builds(lambda name, value: [f"{name}={value}"], option, values_of(argument.hint))
    if bool in (argument.hint, *get_args(argument.hint)):
        return option.map(lambda name: [name]) | together
    return together | st.builds(lambda name, value: [name, value], option, values_of(argument.hint))


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A verb with its required options, most often, some others, and now and then something that does not belong."""
    path, verb = draw(st.sampled_from(VERBS))
    options = [argument for argument in verb.assemble_argument_collection() if argument.names != ("*",)]
    places = {"--backbone": "backbone", "--data": "data", "--store": "store", "--reports": "reports"}
    line = list(path)
    for argument in options:
        if argument.required and draw(st.integers(0, 9)):
            line += draw(tokens_of(argument))
        elif (name := argument.names[0]) in places and draw(st.integers(0, 4)):
            line.append(f"{name}={places[name]}")
    for argument in draw(st.lists(st.sampled_from(options), max_size=4)) if options else ():
        line += draw(tokens_of(argument))
    if draw(st.integers(0, 4)) == 0:
        line.insert(draw(st.integers(0, len(line))), draw(arguments))
    return line


VERBS = list(verbs(app))


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path, data_folder: Path) -> Path:
    """A folder with one of everything."""
    folder = tmp_path_factory.mktemp("stocked") / "folder"
    shutil.copytree(backbone_folder, folder / "backbone")
    shutil.copytree(data_folder, folder / "data")
    export_artifact(make_store(folder / "store"), FUSED, folder / "export.tar.xz")
    make_reports(folder / "reports")
    (folder / "task.toml").write_bytes((data_folder / "films" / "task.toml").read_bytes())
    (folder / "recipe.toml").write_text("bottleneck = 8\nepochs = 1\n")
    (folder / "study.toml").write_text(
        'methods = ["full", "adapter", "fusion"]\ntargets = ["films", "meals"]\nseeds = [1]\nrecipe.bottleneck = 8\n'
    )
    for suffix in ("csv", "toml", "tar.xz"):
        (folder / f"bytes.{suffix}").write_bytes(b"\xff\0\x1b[31m\n" * 9)
    return folder


@pytest.fixture(autouse=True)
def nothing_trains(monkeypatch: pytest.MonkeyPatch, stocked: Path) -> None:
    """Everything is read and checked as it is, up to the point where training would begin."""
    record = Ledger(stocked / "reports").find(RUNS[0])
    for method in ("pipeline.runs.training_run.TrainingRun.train", "stages.prune._Pruning.train"):
        monkeypatch.setattr(method, lambda *_: record)
    pretrained = Pretrained.model_construct(
        run=RUNS[0],
        backbone="new",
        rows={"films": 9},
        masked_accuracy=MaskedAccuracy(before=0.1, after=0.2),
        best_epoch=1,
        seconds=1.0,
    )
    monkeypatch.setattr("stages.pretrain._Pretraining.train", lambda _: pretrained)
    result = types.SimpleNamespace(entries=[types.SimpleNamespace(error="failed")])
    monkeypatch.setattr("stages.compare.compare.compare", lambda *_: (result, Path("tables")))
    monkeypatch.setattr("stages.demo.demo", lambda *_: 0)
    if find_spec("fastapi"):  # else serve is refused
        for name in ("make_app", "_Server.run"):
            monkeypatch.setattr(f"stages.serve.serve.{name}", lambda *_: None)
    monkeypatch.setattr("pipeline.reporting.build.write_figures", lambda *_: ())


def run(line: list[str]) -> tuple[int, str, str]:
    """Exit status and what is printed: as Python has it, stdout refuses what is no UTF-8."""
    out, error = (_stream(errors) for errors in ("strict", "backslashreplace"))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            status = main(line)
        except SystemExit as left:
            status = left.code
    return status, *(stream.buffer.getvalue().decode() for stream in (out, error))


def _stream(errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)


@fuzzed(command_lines())
def test_any_command_line_is_done_or_refused_in_a_few_lines(room: Any, stocked: Path, line: list[str]) -> None:
    with room() as folder:
        shutil.copytree(stocked, folder, dirs_exist_ok=True)
        (folder / "tables").mkdir()
        (folder / "tables" / "tables.md").write_text("tables")
        status, _, error = run(line)
        assert status in ((0, 1, 2) if "doctor" in line else (0, 2)), error  # which has a status of its own
        assert "Traceback" not in error
        lines = error.splitlines()
        assert len(lines) <= MOST_LINES
        assert all(len(each) <= MOST_LETTERS for each in lines), max(lines, key=len)
        assert all(printable(each) == each for each in lines), error
        if status == 2:
            assert any(each.startswith("error: ") for each in lines)
