"""The files of docs/production do what they say: the steps of the Dockerfile, the unit, and retraining with a gate."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from packaging.requirements import Requirement

from stages.serve.door import listen
from tests.nano import BAD, GOOD, THINGS
from tests.stages.conftest import Shop

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs/production"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONS = "--bottleneck 8 --epochs 15 --batch-size 16 --learning-rate 1e-2"


def steps() -> dict[str, list[str]]:
    """The Dockerfile's instructions by name."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (FILES / "Dockerfile").read_text(), flags=re.MULTILINE))
    found: dict[str, list[str]] = {}
    for name, rest in re.findall(r"^([A-Z]+) +(.+)$", text, re.MULTILINE):
        found.setdefault(name, []).append(rest)
    return found


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables in which ``python`` and ``adapter-fusion`` are those of the tests."""
    (tmp_path / "bin").mkdir()
    for name, command in (("python", ""), ("adapter-fusion", "-m pipeline ")):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {command}"$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPTIONS": OPTIONS}


def test_the_image_is_built_from_what_is_there() -> None:
    ignored = (FILES / "Dockerfile.dockerignore").read_text().splitlines()
    for copied in " ".join(steps()["COPY"]).split():
        assert copied == "./" or ((ROOT / copied).exists() and f"!{copied}" in ignored)
    for extras in re.findall(r"\.\[([\w,]+)\]", " ".join(steps()["RUN"])):
        assert {*extras.split(",")} <= {*PROJECT["optional-dependencies"]}
    (version,) = (argument.removeprefix("TORCH=") for argument in steps()["ARG"])
    (torch,) = (each for each in map(Requirement, PROJECT["dependencies"]) if each.name == "torch")
    assert torch.specifier.contains(version)
    assert steps()["USER"] == ["serve"]


@pytest.mark.slow
def test_the_container_serves_the_pinned_run_and_stops_when_told(
    shop: Shop, environment: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    (command,), (health,) = steps()["CMD"], steps()["HEALTHCHECK"]
    health = health.partition("CMD ")[2].replace("timeout=9", "timeout=1")
    (tmp_path / "models").mkdir()
    (tmp_path / "models/adapters_store").symlink_to(shop.store)
    (tmp_path / "models/backbone").symlink_to(shop.workspace.backbone_name)
    with listen("127.0.0.1", 0) as free:
        port = str(free.getsockname()[1])
    run = f"films@{shop.adapters['films'].run}"  # not the task's best
    environment |= {"MODELS": str(tmp_path / "models"), "MODEL": "", "PORT": port}
    assert subprocess.run(["sh", "-c", command], env=environment, capture_output=True).returncode == 2
    server = subprocess.Popen(["sh", "-c", command], env={**environment, "MODEL": run}, text=True)
    try:
        until = time.monotonic() + 120
        while subprocess.run(["sh", "-c", health], env=environment, capture_output=True).returncode:
            assert server.poll() is None and time.monotonic() < until
        asked = f'curl -s -D - http://127.0.0.1:{port}/models/films/predict -d \'{{"inputs": "the film is good"}}\''
        assert f"x-model: {run}" in subprocess.check_output(["sh", "-c", asked], text=True)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
    assert subprocess.run(["sh", "-c", health], env=environment, capture_output=True).returncode


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_no_mistake_in_the_unit(tmp_path: Path) -> None:
    unit = (FILES / "adapter-fusion.service").read_text()
    (program,) = re.findall(r"^ExecStart=(\S+/adapter-fusion) serve .*--model \$\{MODEL\}$", unit, re.MULTILINE)
    (tmp_path / "adapter-fusion.service").write_text(unit.replace(program, sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / "adapter-fusion.service"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def sentences(count: int) -> pd.DataFrame:
    """Different texts of two things that are both good, or both bad."""
    rng, rows = random.Random(0), dict[str, str]()
    while len(rows) < count:
        label, words = rng.choice([("good", GOOD), ("bad", BAD)])
        one, other = (f"the {rng.choice(THINGS)} is {rng.choice(words)}" for _ in range(2))
        rows[f"{one} {other}"] = label
    return pd.DataFrame(rows.items(), columns=["text", "label"])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("flock") is None, reason="retrain.sh needs flock")
def test_only_a_model_that_is_not_shown_worse_goes_live(
    backbone_folder: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    rows = sentences(560)
    turned = rows.assign(label=rows["label"].map({"good": "bad", "bad": "good"}))
    rows[:200].to_csv(tmp_path / "words.csv", index=False)
    rows[200:260].to_csv(tmp_path / "more.csv", index=False)
    turned[260:].to_csv(tmp_path / "wrong.csv", index=False)
    (tmp_path / "pipeline.toml").write_text(f'backbone = "{backbone_folder}"\n')
    environment |= {"ON_PROMOTE": "cat live.env >>restarts"}

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(arguments, cwd=tmp_path, env=environment, start_new_session=True)

    def done(*arguments: str) -> int:
        return start(*arguments).wait(300)

    def live() -> str:
        return (tmp_path / "live.env").read_text()

    retrain = str(FILES / "retrain.sh")
    assert done("adapter-fusion", "tasks", "new", "words.csv", "--split", "30/20/50") == 0
    assert done("adapter-fusion", "extract", "--task", "words", *OPTIONS.split()) == 0
    (first,) = (folder.name for folder in (tmp_path / "adapters_store/adapters/words").iterdir())
    test = (tmp_path / "data/words/test.csv").read_bytes()
    assert done(retrain, "words", "more.csv") == 2  # nothing is live
    assert done(retrain, "--promote", f"words@{first}") == 0
    assert live() == f"MODEL=words@{first}\n"
    (tmp_path / "live.env").write_text(f"MODEL=films@0a,words@{first},meals@0b\n")
    stopped = start(retrain, "words", "more.csv")
    while not (runs := {*(tmp_path / "reports/runs").iterdir()} - {tmp_path / "reports/runs" / first}):
        assert stopped.poll() is None
        time.sleep(0.05)
    os.killpg(stopped.pid, signal.SIGTERM)
    assert stopped.wait(60) != 0
    assert first in live()
    assert done(retrain, "words", "more.csv") == 0
    (second,) = (folder.name for folder in runs)
    assert live() == f"MODEL=films@0a,meals@0b,words@{second}\n"
    assert (
        len(pd.read_csv(tmp_path / "data/words/train.csv")) + len(pd.read_csv(tmp_path / "data/words/dev.csv")) == 160
    )
    assert done(retrain, "words", "wrong.csv") == 0
    assert second in live()
    assert done(retrain, "--promote", f"words@{first}") == 0
    assert live() == f"MODEL=films@0a,meals@0b,words@{first}\n"
    assert (tmp_path / "restarts").read_text().count("MODEL=") == 3
    decisions = [line.split("\t")[2:] for line in (tmp_path / "history.tsv").read_text().splitlines()]
    assert [word for _, word in decisions] == ["promoted", "promoted", "rejected", "promoted"]
    assert (tmp_path / "data/words/test.csv").read_bytes() == test
    kept = {folder.name for folder in (tmp_path / "adapters_store/adapters/words").iterdir()}
    assert kept == {first, second}  # what was rejected is gone
    assert {file.name for file in (tmp_path / "exports").iterdir()} == {f"words-{run}.tar.xz" for run in kept}
