"""What a person with a few hundred labelled rows could do instead: scores on the same test rows, and processor seconds.

``--data`` is a folder of tasks. Those with a labelled test split are targets, the others sources, whose adapters are
trained once before. Finished measurements are kept in ``<output>/peers``: an interrupted benchmark resumes, and one
with more ``--repeats`` measures only the new seeds. ``BENCH_SETFIT`` names a Python that has SetFit, in an environment
of its own, since it needs other versions of the same libraries; without it, SetFit is left out.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from pipeline.data.task_data import has_labelled_test, load_split
from pipeline.data.tasks import Task
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import RunRequest, Workspace
from pipeline.settings.parts import USUAL_FORM
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import ScoredRows
from pipeline.stats.metrics import score
from pipeline.system import atomic
from stages.demo import write_tasks
from stages.evaluate import evaluate
from stages.extract import extract
from stages.fuse import fuse

from .backbones import NANO, backbone_folder, worded
from .report import Report
from .setting import Setting
from .timing import Row, Sample

SETFIT = Path(__file__).with_name("setfit_child.py")
STEPS = 300
"""SetFit's optimiser steps. Its default, all pairs of 300 rows, would take hours on a CPU."""
Peer = Callable[[Task, Workspace, int], float]
"""Trains on a target's rows with a seed, and scores its test rows."""


def run(setting: Setting) -> Report:
    if setting.data is None or setting.backbone is None:
        kept = setting.scratch
        backbone, data = worded(setting, backbone_folder(setting, NANO)), setting.scratch / "tasks"
        write_tasks(data)
        for source in ("reviews", "orders", "coins"):
            next((data / source).glob("test.*")).unlink()
    else:
        kept, backbone, data = setting.output / "peers", setting.backbone, setting.data
    whole = Workspace(str(backbone), data, kept / "store", kept / "reports")
    names = sorted(folder.name for folder in data.iterdir() if folder.is_dir())
    targets = [name for name in names if has_labelled_test(whole.task(name), whole.splits.folder_of(whole.task(name)))]
    apart = whole.apart_from(targets)
    quick = {"epochs": 1, "bottleneck": 8} if setting.quick else {}
    for source in (name for name in names if name not in targets):
        extract(source, Recipe.parse({**quick, "trainable": "adapter"}, "source"), apart, seed=1)
    peers = _peers(quick)
    rows: list[Row] = []
    for name in targets:
        task = whole.task(name)
        for peer, train in peers.items():
            measured = []
            for seed in range(1, setting.repeats + 1):
                file = kept / "measured" / f"{name}-{peer}-{seed}.json".replace(" ", "-")
                if not file.exists():
                    place = _copy(whole, setting.scratch / file.stem)
                    started = _processor_seconds()
                    result = {"score": train(task, place, seed)}
                    atomic.write_json(file, {**result, "seconds": _processor_seconds() - started})
                measured.append(json.loads(file.read_text()))
            scores, seconds = (Sample(tuple(one[key] for one in measured)) for key in ("score", "seconds"))
            rows.append({"task": name, "peer": peer, task.metric: scores, "processor s": seconds})
    without = "" if "SetFit" in peers else " SetFit is left out: BENCH_SETFIT names no Python that has it."
    notes = (
        "Every peer has the same labelled rows, train and dev; ours select on dev, the others cross-validate on both or"
        " take all. Scores on test rows that chose nothing, and processor seconds from the rows to the score on them,"
        " which other work on the machine hardly changes. Adapters of the sources are trained once before and not"
        f" counted.{without}",
        f"Medians (lowest to highest) of {setting.repeats} seeds.",
    )
    return Report(notes, (rows,))


def _processor_seconds() -> float:
    """User and system time of this process and of its finished children."""
    return sum(os.times()[:4])


def _copy(whole: Workspace, folder: Path) -> Workspace:
    """A workspace with the sources' adapters and nothing else."""
    if whole.store_root.exists():
        shutil.copytree(whole.store_root, folder / "store")
    return Workspace(whole.backbone_name, whole.splits.folders[0], folder / "store", folder / "reports")


def _peers(quick: dict[str, int]) -> dict[str, Peer]:
    adapter, experts = ({**quick, "trainable": trains} for trains in ("adapter", "fusion"))

    def extracted(start_from: str | None, soup: int = 1) -> Peer:
        def peer(task: Task, place: Workspace, seed: int) -> float:
            recipe = Recipe.parse(adapter, "adapter")
            made = extract(task.name, recipe, place, seed=seed, start_from=start_from, soup=soup)
            return _scored(task, place, made.record.run)

        return peer

    def fused(form: str) -> Peer:
        def peer(task: Task, place: Workspace, seed: int) -> float:
            made = fuse(task.name, Recipe.parse({**experts, "fusion": form}, form), place, seed=seed)
            return _scored(task, place, made.record.run)

        return peer

    setfit: dict[str, Peer] = {"SetFit": _setfit} if os.environ.get("BENCH_SETFIT") else {}
    return {
        "TF-IDF, logistic regression": _tf_idf,
        "frozen vectors, logistic regression": _probe,
        **setfit,
        "extract": extracted(None),
        "extract --start-from best": extracted("best"),
        "extract --start-from best --soup 3": extracted("best", 3),
        "fuse --fusion gated": fused("gated"),
        "fuse": fused(USUAL_FORM),
    }


def _scored(task: Task, place: Workspace, run: str) -> float:
    return evaluate(task.name, place, using=run, split="test").score


def _rows(task: Task, place: Workspace) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All labelled rows that are no test rows, and the test rows."""
    data, folder = place.splits.of(task, None, 0), place.splits.folder_of(task)
    return pd.concat([data.train, data.dev]), load_split(task, folder, "test", "", is_scored=True)


def _texts(rows: pd.DataFrame) -> list[str]:
    pairs = rows["text_b"] if "text_b" in rows else [""] * len(rows)
    return [f"{one} {other}".strip() for one, other in zip(rows["text_a"], pairs, strict=True)]


def _tf_idf(task: Task, place: Workspace, seed: int) -> float:
    train, test = _rows(task, place)
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    regression = LogisticRegression(max_iter=2000, random_state=seed)
    model = make_pipeline(vectors, GridSearchCV(regression, {"C": np.logspace(-4, 4, 10)}, cv=5))
    model.fit(_texts(train), train["label"])
    return score(task.metric, model.predict(_texts(test)), test["label"].to_numpy())


def _probe(task: Task, place: Workspace, seed: int) -> float:
    scored = Workspace(
        place.backbone_name, place.splits.folders[0], place.store_root, place.reports, scoring=ScoredRows(rows="test")
    )
    request = RunRequest.single("probe", task, Recipe.parse({"trainable": "probe"}, "probe"), seed)
    value = TrainingRun(request, scored).get().own.test
    assert value is not None
    return value


def _setfit(task: Task, place: Workspace, seed: int) -> float:
    train, test = _rows(task, place)
    given = {
        "backbone": place.backbone_name,
        "train": {"text": _texts(train), "label": train["label"].tolist()},
        "test": _texts(test),
        "seed": seed,
        "steps": STEPS,
    }
    command = [os.environ["BENCH_SETFIT"], str(SETFIT)]
    done = subprocess.run(command, input=json.dumps(given), stdout=subprocess.PIPE, text=True, check=True)
    return score(task.metric, np.array(json.loads(done.stdout.splitlines()[-1])), test["label"].to_numpy())
