"""The command line: every mistake gives one clear message and status 2; a killed command resumes where it stopped."""

import errno
import json
import operator
import os
import pty
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.records.store import Store
from pipeline.runs.training_run import TrainingRun
from tests import forked
from tests.groups import ON_CPUS, group, statuses
from tests.pipeline.records.artifacts import save

ROOT = Path(__file__).parent.parent
Command = Callable[..., tuple[int, str, str]]
"""From a command's arguments to its status, stdout and stderr."""

# Small enough to be quick, long enough to be killed half way.
QUICK = ["--epochs", "2", "--batch-size", "16"]


@pytest.fixture
def places(backbone_folder: Path, data_folder: Path, tmp_path: Path) -> list[str]:
    return [
        f"--backbone={backbone_folder}", f"--data={data_folder}",
        f"--store={tmp_path / 'store'}", f"--reports={tmp_path / 'reports'}",
    ]  # fmt: skip


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """A recipe file; the nano backbone is narrower than the default bottleneck."""
    file = tmp_path / "recipe.toml"
    file.write_text("bottleneck = 8\n")
    return str(file)


def but(places: list[str], **changes: object) -> list[str]:
    """``places`` with other values: ``but(places, data=folder)``; None leaves the option out."""
    kept = [place for place in places if place[2:].partition("=")[0] not in changes]
    return kept + [f"--{name}={value}" for name, value in changes.items() if value is not None]


def assert_refused(result: tuple[int, str, str], *expected: str) -> None:
    status, _, error = result
    assert status == 2, error
    assert error.startswith("error: ") or "\nerror: " in error
    assert "Traceback" not in error
    for text in expected:
        assert text in error


def test_extract_fuse_predict_from_end_to_end(
    places: list[str], recipe: str, run: Command, data_folder: Path, tmp_path: Path
) -> None:
    results = {}
    for task in ("films", "meals", "pairs"):
        status, out, _ = run("extract", "--task", task, *places, *QUICK, "--recipe", recipe, "--json")
        assert status == 0
        results[task] = json.loads(out.splitlines()[-1])
        assert results[task].keys() == {
            "run", "kind", "task", "metric", "dev", "trainable_parameters",
            "seconds", "examples_per_second", "peak_memory_mb", "artifact", "probe",
        }  # fmt: skip
        assert (Path(results[task]["artifact"]) / "adapter.safetensors").is_file()
        assert " on 40 rows (epoch " in out and "nothing was computed" not in out
    _, out, _ = run("extract", "--task", "pairs", *places, *QUICK, "--recipe", recipe)
    assert "nothing was computed. --force runs it again" in out
    fuse = ["fuse", "--target", "pairs", "--fusion", "gated", "--sources", "films", "--recipe", recipe]
    status, out, _ = run(*fuse, *places, *QUICK, "--json")
    fused = json.loads(out.splitlines()[-1])
    assert (status, fused["kind"], fused["metric"]) == (0, "fusion", "pearson")
    source = data_folder / "pairs" / "dev.csv"
    pd.read_csv(source).drop(columns=["score", "id"]).to_json(tmp_path / "in.jsonl", orient="records", lines=True)
    status, out, _ = run(
        "predict", "--target=pairs", f"--input={tmp_path / 'in.jsonl'}", f"--output={tmp_path / 'o.tsv'}", *places
    )
    assert status == 0
    assert fused["run"] in out
    predictions = pd.read_csv(tmp_path / "o.tsv", sep="\t")
    assert predictions.columns.tolist() == ["id", "sentence1", "sentence2", "prediction"]
    assert predictions["id"].tolist() == list(range(40))
    assert run("store", "verify", places[2])[0] == 0
    assert run("store", "list", places[2])[1].count("adapter ") == 3
    assert_refused(run("store", "remove", results["films"]["run"], places[2]), "is part of fusion")
    assert run("store", "export", fused["run"], tmp_path / "fusion.tar.xz", places[2])[0] == 0
    assert run("store", "import", tmp_path / "fusion.tar.xz", "--store", tmp_path / "other")[0] == 0
    assert run("store", "verify", "--store", tmp_path / "other")[1].startswith("2 artifacts")


def test_fuse_says_which_flags_have_no_effect(places: list[str], run: Command, recipe: str) -> None:
    """A flag that the sources' adapters read has an effect, even if none of them has to be trained."""
    for task in ("pairs", "films"):
        assert run("extract", "--task", task, *places, *QUICK, "--recipe", recipe)[0] == 0
    fuse = ["fuse", "--target", "pairs", "--fusion", "gated", *places, *QUICK, "--recipe", recipe]
    for more, told in (
        ([], ["note: --class-weights: no effect on fusion 'gated' for task 'pairs'"]),
        (["--sources", "films"], []),
        (["--sources", "best:1"], ["note: --class-weights: no effect on fusion 'gated' for task 'pairs'"]),
    ):
        status, _, error = run(*fuse, "--class-weights", "balanced", *more)
        assert (status, [line for line in error.splitlines() if "no effect" in line]) == (0, told)


def test_compare_and_report(places: list[str], run: Command, tmp_path: Path) -> None:
    study = tmp_path / "tiny.toml"
    study.write_text(
        'methods = ["full", "adapter"]\ntargets = ["films"]\nseeds = [1]\n[recipe]\nbottleneck = 8\nepochs = 1\n'
    )
    narrow = ["--limit", "32", "--targets", "films,meals", "--batch-size", "8"]
    status, out, _ = run("compare", "--study", study, *narrow, *places, "--json")
    assert status == 0
    assert json.loads(out.splitlines()[-1])["runs"] == 4
    tables = (tmp_path / "reports" / "tiny" / "tables.md").read_text(encoding="utf-8")
    assert tables.startswith(out[: out.index("\n\nall tables: ")]) and out.count("\n## ") == 1 < tables.count("\n## ")
    assert "| full fine-tuning |" in out and "page: " in out
    assert (tmp_path / "reports" / "tiny" / "tables.tex").is_file()
    assert run("report", "--study", "tiny", places[3])[0] == 0


def test_studies_of_one_target_each_are_tested_together(
    places: list[str], run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.reporting.build.FIGURES", ())
    recipe = '[recipe]\nbottleneck = 8\nepochs = 1\nfusion = "gated"\n'
    for name, target, source in (("first", "films", "meals"), ("second", "meals", "films")):
        text = f'targets = ["{target}"]\nsources = ["{source}"]\nseeds = [1]\nscoring = "half"\n{recipe}'
        (tmp_path / f"{name}.toml").write_text(f'methods = ["full", "fusion"]\n{text}')
        compared = run("compare", "--study", tmp_path / f"{name}.toml", "--limit", "32", "--batch-size", "8", *places)
        assert compared[0] == 0, compared[2]
    status, out, error = run("pool", "first", "second", places[3], "--json")
    assert (status, error) == (0, "")
    assert out.startswith("fusion of first and second, on the mean of 2 targets (one seed):\n")
    found = json.loads(out.splitlines()[-1])
    assert (found["studies"], found["seeds"], found["looks"]) == (["first", "second"], [[1], [1]], 1)
    assert found["missing"] == [] and [*found["against"]] == ["the target alone", "the best method without fusion"]
    alone = found["against"]["the target alone"]
    assert alone["difference"] == pytest.approx(sum(each["difference"] for each in alone["targets"].values()) / 2)
    assert alone["interval"][0] <= alone["difference"] <= alone["interval"][1]
    assert json.loads(run("pool", "first", "second", "--targets", "meals", places[3], "--json")[1].splitlines()[-1])[
        "against"
    ]["the target alone"]["targets"] == {"meals": alone["targets"]["meals"]}
    for arguments, message in (
        (["first", "first"], "in two of the studies"),
        (["first", tmp_path / "first.toml"], "in two of the studies"),
        (["first", "second", "--targets", ","], "--targets"),
        (["first", "third"], "no such study here: run python -m pipeline compare --study third first"),
        (["first", "second", "--targets", "films,sst"], "--targets sst: name some of films, meals"),
    ):
        status, _, error = run("pool", *arguments, places[3])
        assert status == 2 and message in error


def test_a_run_that_failed_by_a_bug_is_told_from_one_that_the_user_can_fix(
    places: list[str], run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves a gap, and later runs are trained."""
    seen: list[int] = []

    def fail(training: TrainingRun) -> None:
        seen.append(training.request.seed)
        operator.truediv(1, 0)

    monkeypatch.setattr(TrainingRun, "get", fail)
    study = tmp_path / "tiny.toml"
    study.write_text('methods = ["full"]\ntargets = ["films"]\nseeds = [1, 2]\n')
    status, _, error = run("compare", "--study", study, *places)
    assert (status, seen) == (1, [1, 2])
    assert error.count("failed: a bug: ZeroDivisionError: division by zero") == 2
    assert error.count("Traceback (most recent call last)") == 2


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=type)
def test_a_full_disk_and_an_interrupt_end_a_study(
    error: BaseException, places: list[str], run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def fail(training: TrainingRun) -> None:
        seen.append(training.request.seed)
        raise error

    monkeypatch.setattr(TrainingRun, "get", fail)
    study = tmp_path / "tiny.toml"
    study.write_text('methods = ["full"]\ntargets = ["films"]\nseeds = [1, 2]\n')
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            run("compare", "--study", study, *places)
    else:
        status, _, message = run("compare", "--study", study, *places)
        assert (status, "the disk is full" in message) == (2, True)
    assert seen == [1]


def test_a_failed_run_shows_in_the_status_and_the_rest_is_reported(
    places: list[str], run: Command, tmp_path: Path
) -> None:
    study = tmp_path / "tiny.toml"
    study.write_text(
        'methods = ["full", "broken"]\ntargets = ["films"]\nseeds = [1]\n[recipe]\nepochs = 1\n'
        '[rows.broken]\nmethod = "full"\nrecipe = { learning_rate = 1e30, max_grad_norm = 1e30 }\n'
    )
    status, out, error = run("compare", "--study", study, *places, "--json")
    assert status == 2
    assert "broken films seed 1: failed: " in error
    assert "error: 1 of 2 cells have no run" in error
    assert "Traceback" not in error
    assert json.loads(out.splitlines()[-1])["failed"] == 1


UNKNOWN = "unknown task 'tickts'"
EVALUATE = ["evaluate", "--target", "sst"]
EXPLAIN = ["explain", "--target", "sst", "--store", "kept"]
EXPORT = ["export", "--target", "sst", "--store", "kept", "--output"]
SERVE = ["serve", "--store", "kept", "--port", "0"]


def to_predict(target: str = "sst", output: str = "out.csv", store: str = "kept") -> list[str]:
    return ["predict", "--target", target, "--input", "-", "--output", output, "--store", store]


HEAVY = ("torch", "transformers", "datasets", "pandas", "scipy")
# The message of each command, or None if it succeeds.
SLIPS: list[tuple[list[str], str | None]] = [
    (["extract", "--help"], None),
    (["tasks", "list"], None),
    (["extract", "--task", "tickts"], UNKNOWN),
    (["extract", "--task", "sst", "--learning-rate", "-1"], "learning_rate"),
    (["fuse", "--target", "sst", "--sources", "quora,tickts"], UNKNOWN),
    (["fuse", "--target", "sst", "--data", "/nowhere"], "/nowhere: no such folder"),
    (["fuse", "--target", "sst", "--backbone", "/nowhere"], "'/nowhere': no such folder"),
    (["predict", "--target", "sst", "--input", "nowhere.csv", "--output", "-"], "nowhere.csv: no such file"),
    (["evaluate", "--target", "sst", "--input", "-", "--split", "test"], "each name the rows to score"),
    (["export", "--output", "x", "--target", "tickts", "--format", "adapterhub"], UNKNOWN),
    (["compare", "--study", "tickts"], "tickts"),
    (["extract", "--task", "sst", "--seed", "-1"], "for --seed. Give 0 to"),
    (["extract", "--task", "sst", "--without-rows-of", "mrpc,sst"], "sst is the task itself: --drop-overlap drops"),
    (["extract", "--task", "quora", "--without-rows-of", "qqp"], "--without-rows-of: qqp is the task itself"),
    (["fuse", "--target", "sst", "--target-limit", "0"], "--target-limit"),
    (["fuse", "--target", "sst", "--cache-gb", "-1"], "--cache-gb"),
    (["prune", "--target", "sst", "--keep", "1", "--dev-limit", "0"], "--dev-limit"),
    (to_predict(output="out.foo"), "out.foo: unknown suffix '.foo'"),
    (to_predict(output="/proc/none/out.csv"), "cannot write /proc/none"),
    (to_predict(store="none"), "no model of 'sst' in none: no such folder (--store)"),
    (to_predict("sst,quora,sick"), "--target sst,quora,sick: 2 problems"),
    (to_predict("sst,sst"), "--target names sst more than once"),
    (to_predict("tickets"), "unknown task 'tickets'"),
    (to_predict(","), "--target names no task"),
    ([*to_predict(), "--batch-size", "0"], "--batch-size"),
    ([*to_predict(), "--drop-layers", "x"], "--drop-layers x: 'x' is not a layer"),
    ([*to_predict(), "--using", "fusion"], "no fusion of 'sst' in kept"),
    ([*EXPLAIN, "--text", "-5 is cold", "--using", "fusion"], "no fusion of 'sst' in kept"),
    (["explain", "--target", "tickts", "--text", "a", "--store", "kept"], "in kept: there are those of sst"),
    ([*EXPLAIN, "--text", "a", "--backbone", "./none"], "backbone './none': no such folder"),
    ([*EXPORT, "file"], "--output file: this is a file"),
    ([*EXPORT, "kept"], "--output kept: holds"),
    ([*EXPORT, "new", "--push-to-hub", "a"], "--push-to-hub a: write OWNER/NAME"),
    ([*EXPORT, "new", "--using", "ensemble:mine"], "an ensemble is several models"),
    (["serve", "--store", "kept", "--port", "99999"], "for --port. Give 0 to 65,535"),
    ([*SERVE, "--host", "none.invalid"], "--host none.invalid"),
    ([*SERVE, "--max-batch", "0"], "--max-batch 0: give 1 to 65536"),
    ([*SERVE, "--model", "tickts"], "no model of 'tickts' in kept: there are those of sst"),
    ([*SERVE, "--model", "sst@mine"], "--model sst@mine: kept has no such run"),
    ([*SERVE, "--model", f"sst,sst@{'0' * 12}"], "--model names two models of sst"),
    ([*SERVE, "--model", ""], "--model names no model"),
    ([*SERVE, "--model", f"sts@{'0' * 12}"], f"run {'0' * 12} was trained for 'sst', not 'sts'"),
]
# Commands that read reports and tables.
SLIPS_WITH_PANDAS: list[tuple[list[str], str | None]] = [
    ([*to_predict(), "--using", "mine"], "no run 'mine' in kept or reports/runs"),
    ([*to_predict(), "--using", "ensemble:mine"], "no ensemble 'mine' in reports/ensembles"),
    (["predict", "--target", "sst", "--store", "kept", "--input", "file", "--output", "o.csv"], "file: "),
    ([*EVALUATE, "--using", "mine"], "no run 'mine' in adapters_store or reports/runs"),
]
# Runs each command in a new process, forked before anything heavy is imported.
FORKS = """
import json, os, sys
from pipeline.cli.app import main
ends = []
for number, (arguments, heavy) in enumerate(json.load(sys.stdin)):
    if os.fork() == 0:
        sys.stdout, sys.stderr = open(os.devnull, "w"), open(f"{number}.err", "w")
        status = main(arguments)
        print(*(name for name in heavy if name in sys.modules), sep="\\n", file=sys.stderr, flush=True)
        os._exit(status)
    ends.append(os.waitstatus_to_exitcode(os.wait()[1]))
print(json.dumps(ends))
"""


@pytest.fixture(scope="module")
def slips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """By command, its status and its messages, followed by modules that it should not have imported."""
    folder = tmp_path_factory.mktemp("slips")
    save(Store(folder / "kept"), "0" * 12)  # of sst
    save(Store(folder / "moved"), "0" * 12, "tickets")
    (folder / "file").write_bytes(bytes(range(256)))
    tasks = [
        (arguments, heavy)
        for slips, heavy in ((SLIPS, HEAVY), (SLIPS_WITH_PANDAS, HEAVY[:3]))
        for arguments, _ in slips
    ]
    done = subprocess.run(
        [sys.executable, "-c", FORKS], cwd=folder, input=json.dumps(tasks), capture_output=True, text=True, check=True
    )
    ends = zip(tasks, json.loads(done.stdout), strict=True)
    return {
        shlex.join(task[0]): (end, (folder / f"{number}.err").read_text()) for number, (task, end) in enumerate(ends)
    }


@pytest.mark.parametrize(("arguments", "expected"), SLIPS + SLIPS_WITH_PANDAS)
def test_help_and_slips_of_the_pen_need_no_heavy_import(
    arguments: list[str], expected: str | None, slips: dict[str, list[Any]]
) -> None:
    if arguments[0] == "serve":
        pytest.importorskip("fastapi", reason="the extra serve is not installed")
    status, error = slips[shlex.join(arguments)]
    assert status == (0 if expected is None else 2), error
    assert (expected or "") in error
    assert not {*HEAVY} & {*error.splitlines()}


@pytest.mark.skipif(shutil.which("bash") is None, reason="runs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ext"], {"extract"}),
        (["runs", ""], {"list", "show", "compare", "remove"}),
        (["runs", "list", "--so"], {"--sort"}),
        (["runs", "list", "--sort", "s"], {"score", "size", "seconds"}),
        (["fuse", "--fusion", "a"], {"anchored"}),
    ],
)
def test_a_shell_completes_verbs_options_and_values(words: list[str], expected: set[str], run: Command) -> None:
    status, script, _ = run("completion", "bash")
    typed = shlex.join(["adapter-fusion", *words])
    asked = f'COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _adapter_fusion; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True)
    assert (status, done.stderr) == (0, "")
    assert expected <= {line.strip() for line in done.stdout.splitlines()}
    assert all(line.startswith(words[-1]) for line in done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="opens a terminal")
def test_a_terminal_shows_at_once_what_is_done(places: list[str], recipe: str, tmp_path: Path) -> None:
    """From the start until Ctrl-C; no number is shown before it is known."""
    ours, theirs = pty.openpty()
    arguments = ["extract", "--task", "films", *places, "--recipe", recipe, "--epochs", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments, "--checkpoint-seconds", "0.1"], cwd=ROOT,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    os.close(theirs)
    shown, interrupted = b"", False
    try:
        with suppress(OSError):  # Linux raises it when the other side is closed
            while part := os.read(ours, 4096):
                shown += part
                if not interrupted and b" left " in shown and any(tmp_path.glob("reports/runs/*/checkpoint/*")):
                    interrupted = True
                    process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    text = shown.decode()
    expected = ("loading torch", "reading task films", "reading backbone", " loss ", " left ", "interrupted: finished")
    places_of = [text.find(part) for part in expected]
    assert -1 not in places_of, text[:2000]
    assert places_of[0] == 0
    assert places_of[0] < min(places_of[1:3]) < places_of[3] < places_of[-1]
    assert "loss nan" not in text and "Traceback" not in text
    assert text.count("interrupted") == 1
    assert any(tmp_path.glob("reports/runs/*/checkpoint/state.safetensors"))
    assert "run the same command again to resume" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["extract", "--task", "flims"], ["unknown task 'flims' (did you mean 'films'?)"]),
        (["evaluate", "--target", "sst@abc"], ["unknown task 'sst@abc'"]),
        (["extrat", "--task", "films"], ["extrat"]),
        (["extract"], ["--task"]),
        (["extract", "--task", "films", "--limit", "0"], ["for --limit"]),
        (["extract", "--task", "films", "--limit", "1"], ["single class"]),
        (["extract", "--task", "films", "--epochs", "0", "--batch-size", "0"], ["2 problems", "epochs", "batch_size"]),
        (["extract", "--task", "films", "--epochs", "two"], ["--epochs", "two"]),
        (["extract", "--task", "films", "--head", "round"], ["--head"]),
        (["extract", "--task", "films", "--head", "cosine"], ["compares two sentences"]),
        (["extract", "--task", "pairs", "--head", "cosine", "--encoding", "cross"], ["siamese"]),
        (["extract", "--task", "films", "--max-length", "999"], ["--max-length 34"]),
        (["extract", "--task", "films", "--precision", "fp16"], ["needs a GPU"]),
        (["extract", "--task", "films"], ["bottleneck 64 is more than the backbone's width"]),
        (["extract", "--task", "films", "--start-from", "meals"], ["--start-from", "meals: no adapter in"]),
        (["fuse", "--target", "films", "--sources", "meals@a,pairs@b"], ["2 problems", "no adapter a in"]),
        (["extract", "--task", "films", "--label-smoothing", "1"], ["label_smoothing", "less than 1"]),
        (["compare", "--seeds", "1,two"], ["--seeds 1,two"]),
        (["compare", "--methods", "magic"], ["methods"]),
        (["compare", "--batch-size", "-1", "--learning-rate", "-1"], ["2 problems", "batch_size", "learning_rate"]),
        (["compare", "--seeds", "1,1"], ["study 'default' with --seeds: 1 problem", "seeds: 1 is listed twice"]),
    ],
)  # fmt: skip
def test_bad_options_are_refused_in_one_message(
    arguments: list[str], expected: list[str], places: list[str], run: Command
) -> None:
    verb = arguments[0]
    assert_refused(run(*arguments, *(places if verb in ("extract", "fuse", "compare", "predict") else [])), *expected)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8])


@pytest.mark.covering(1)
@pytest.mark.parametrize("harm", [damage, truncate, Path.unlink])
@pytest.mark.parametrize("name", ["adapter.safetensors", "head.safetensors", "adapter_config.json"])
def test_a_damaged_store_is_noticed_before_it_is_used(
    name: str, harm: Callable[[Path], None], places: list[str], run: Command, recipe: str, tmp_path: Path
) -> None:
    extract = ["extract", "--task", "films", *places, "--epochs", "1", "--recipe", recipe, "--json"]
    artifact = Path(json.loads(run(*extract)[1].splitlines()[-1])["artifact"])
    harm(artifact / name)
    (tmp_path / "in.csv").write_text("sentence\nthe film is good\n")
    predict = ["predict", "--target=films", f"--input={tmp_path / 'in.csv'}", f"--output={tmp_path / 'out.csv'}"]
    fuse = ["fuse", "--target=pairs", "--sources=films@" + artifact.name, "--recipe", recipe]
    for command in ([*predict, *places], ["store", "verify", places[2]], [*fuse, *places]):
        assert_refused(run(*command), name, f"store remove {artifact.name}", "extract --task films")
    again = run(*extract)
    if harm is Path.unlink:
        assert again[0] == 0 and "nothing was computed" not in again[1]
        assert run("store", "verify", places[2])[0] == 0
    else:
        assert_refused(again, name, f"store remove {artifact.name}", "extract --task films")


def test_a_file_where_a_folder_should_be_is_named(places: list[str], run: Command, recipe: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for option in ("store", "reports"):
        taken = but(places, **{option: tmp_path / "taken"})
        result = run("extract", "--task", "films", *taken, *QUICK, "--recipe", recipe)
        assert_refused(result, "cannot write", "taken")


def limit_file_size() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))


@pytest.mark.skipif(os.name != "posix", reason="sets a limit on the size of files")
def test_a_disk_that_fills_up_while_saving_loses_nothing_finished(
    places: list[str], run: Command, recipe: str, tmp_path: Path
) -> None:
    """A limit on file size refuses writes as a full disk does, and works everywhere."""
    arguments = ["extract", "--task", "films", *places, *QUICK, "--recipe", recipe]

    status, printed = forked.run(arguments, prepare=limit_file_size)
    assert_refused((status, "", printed), "cannot write", "limit")
    assert not list((tmp_path / "store").rglob("manifest.json"))
    assert not list((tmp_path / "reports").rglob("*.tmp"))
    assert run(*arguments)[0] == 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_launcher_starts_processes_that_train_as_one_does(
    places: list[str], recipe: str, run: Command, tmp_path: Path
) -> None:
    """Without dropout the result equals that of one process, up to rounding; see also ``tests/test_groups.py``."""
    (tmp_path / "recipe.toml").write_text("bottleneck = 8\nhead_dropout = 0.0\nlearning_rate = 1e-2\n")
    arguments = ["extract", "--task", "pairs", "--epochs", "2", "--batch-size", "10", "--recipe", recipe, "--json"]
    alone = json.loads(run(*arguments, *places)[1].splitlines()[-1])
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "pipeline",
         *arguments, *but(places, store=tmp_path / "store2", reports=tmp_path / "reports2")],
        cwd=ROOT, capture_output=True, text=True, timeout=200, env=os.environ | ON_CPUS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    together = json.loads(done.stdout.splitlines()[-1])
    assert together["run"] == alone["run"]
    assert together["dev"] == pytest.approx(alone["dev"], abs=1e-4)
    record = json.loads((tmp_path / "reports2" / "runs" / together["run"] / "run.json").read_text())
    assert record["provenance"]["processes"] == 2
    assert done.stdout.count('"kind": "adapter"') == 1


@pytest.mark.slow
def test_two_processes_read_as_one_does(places: list[str], run: Command, tmp_path: Path) -> None:
    arguments = ["pretrain", "--tasks", "films,pairs", "--epochs", "2", "--batch-size", "10", "--json"]
    status, out, error = run(*arguments, "--output", tmp_path / "one", *places)
    assert status == 0, error
    alone = json.loads(out.splitlines()[-1])
    elsewhere = but(places, output=tmp_path / "two", reports=tmp_path / "reports2")
    with group([*arguments, *elsewhere], 2) as members:
        assert statuses(members, 120) == [0, 0], members[0].printed()
        printed = [member.printed() for member in members]
    assert json.loads(printed[0].splitlines()[-1])["run"] == alone["run"]
    assert printed[0].count("a new one is trained") == 1
    assert printed[1] == ""
    curves = [json.loads((tmp_path / name / "pretraining.json").read_text())["curve"] for name in ("one", "two")]
    losses = [[point["loss"] for point in curve[1:]] for curve in curves]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
