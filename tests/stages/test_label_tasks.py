"""Rows with several labels from training to predictions: every verb reads and writes label sets."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import f1_score

from pipeline import load
from pipeline.runs.build import restore_run
from pipeline.runs.scoring import Scoring, probe_score
from pipeline.runs.workspace import Workspace
from pipeline.system.errors import PipelineError
from pipeline.training.devices import make_accelerator
from stages.check_task import check_task
from stages.ensemble import ensemble
from stages.evaluate import evaluate
from stages.explain import listed
from stages.export.export import export, script_of
from stages.extract import extract
from stages.fuse import fuse
from stages.predict import predict
from stages.prune import prune
from tests.nano import BAD, GOOD, THINGS
from tests.runs import places, single_run

CLASSES = ["good", "bad", "film"]
TASK = (
    'kind = "labels"\ntext = ["sentence"]\nlabel = "labels"\nmetric = "micro-f1"\nmax_length = 24\n'
    '[files]\nseparator = "; "\n'
)


def rows(size: int, seed: int) -> pd.DataFrame:
    """Texts with a good word, a bad one, both or none, of a film or another thing; a flag for each."""
    rng, found = random.Random(seed), []
    for number in range(size):
        held = [rng.random() < 0.5, rng.random() < 0.4, rng.random() < 0.3]
        words = [rng.choice(own) for own, one in zip((GOOD, BAD), held, strict=False) if one] or ["very"]
        thing = "film" if held[2] else rng.choice(THINGS[1:])
        found.append(
            {"sentence": f"the {thing} is {' '.join(words)} {seed} {number}", **dict(zip(CLASSES, held, strict=True))}
        )
    return pd.DataFrame(found)


@pytest.fixture(scope="module")
def own(place: Workspace, data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with the task ``moods``, and ``alone``: the task films with one label a row."""
    data = tmp_path_factory.mktemp("labels")
    for name, classes in (("moods", CLASSES), ("alone", ["bad", "good"])):
        (data / name).mkdir()
        (data / name / "task.toml").write_text(f'name = "{name}"\nclasses = {classes}\n{TASK}')
    for split, size in (("train", 96), ("dev", 40)):
        table, films = rows(size, size), pd.read_csv(data_folder / f"films/{split}.csv")
        labels = ["; ".join(name for name in CLASSES if row[name]) for row in table.to_dict("records")]
        table[["sentence"]].assign(labels=labels).to_csv(data / f"moods/{split}.csv", index=False)
        films = films.rename(columns={"label": "labels"}).replace({"labels": {0: "bad", 1: "good"}})
        films.to_csv(data / f"alone/{split}.csv", index=False)
    return dataclasses.replace(place, data=data, more_data=(data_folder,))


@pytest.fixture(scope="module")
def adapter(own: Workspace, quick: Any) -> Any:
    return extract("moods", quick("adapter", learning_rate=3e-2, epochs=16), own, seed=0).record


def test_a_model_answers_everywhere_with_the_label_sets_that_it_was_scored_by(own, adapter, tmp_path) -> None:
    """predict, evaluate, load and the saved predictions agree; the threshold that dev chose is kept with the model."""
    saved = pd.read_parquet(own.reports / f"runs/{adapter.run}/predictions.parquet")
    (name,) = adapter.trained_on
    unseen = rows(60, 1)
    unseen.astype({"film": int}).to_csv(tmp_path / "new.csv", index=False)
    scores = evaluate(name, own, using="adapter", input_file=tmp_path / "new.csv", with_baselines=True)
    predict(name, tmp_path / "new.csv", tmp_path / "out.csv", own, using="adapter", batch_size=64, precision="auto")
    table = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    probabilities = table[[f"probability_{each}" for each in CLASSES]].to_numpy()
    assert {"", "film"} < {*table["prediction"]} and table["prediction"].str.contains("; ").any()
    assert [cell.split("; ") if cell else [] for cell in table["prediction"]] == [
        [each for each, p in zip(CLASSES, row, strict=True) if p > 0.5] for row in probabilities
    ]
    assert table["confidence"].to_numpy() == pytest.approx(np.maximum(probabilities, 1 - probabilities).min(axis=1))
    right = unseen[CLASSES].to_numpy(bool)
    assert scores.score == pytest.approx(f1_score(right, probabilities > 0.5, average="micro"))
    assert scores.interval[0] < scores.score < scores.interval[1]
    always, words, vectors = scores.baselines
    assert always.score < scores.score and 0 <= words.score <= 1 and 0 <= vectors.score <= 1
    assert (scores.confusion, scores.calibration_error, scores.temperature) == ((), None, 1) and scores.surer
    assert [one.rows for one in scores.classes] == right.sum(axis=0).tolist()
    model = load(name, store=own.store_root, data=own.data, backbone=own.backbone_name)
    texts = [*pd.read_csv(own.data / "moods/dev.csv")["sentence"]]
    answers = model.predict(texts)
    assert [answer.labels for answer in answers] == [
        tuple(each for each, digit in zip(CLASSES, cell, strict=True) if digit == "1") for cell in saved["prediction"]
    ]
    assert answers[0].label is answers[0].score is None
    assert {each["label"]: each["score"] for each in listed(answers[0])} == dict(answers[0].probabilities)
    assert model._model.head.threshold is not None and model._model.head.threshold.item() != 0
    assert "without a label" in check_task(own.data / "moods")


@pytest.mark.parametrize(
    ("sources", "form"), [("films", "gated"), ("films,moods", "standard"), ("films", "experts")], ids=str
)
def test_fusions_of_every_form_learn_label_sets(sources, form, own, adapter, quick) -> None:
    recipe = quick("fusion", fusion=form, epochs=4, learning_rate=3e-2)
    record = fuse("moods", recipe, own, seed=0, sources=sources, experts=2).record
    assert 0.5 < record.dev == evaluate("moods", own, using=record.run).score
    if len(record.sources) > 1:
        pruned, task = prune("moods", own, keep=1, using=record.run).record, own.task("moods")
        model = restore_run(pruned, task, own)
        scoring = Scoring(task, own.splits.of(task, None, 0).dev, pruned.recipe, own.backbone, make_accelerator("fp32"))
        assert pruned.dev == scoring.value(scoring.predict_choosing(model))


def test_one_label_a_row_is_learned_as_classes_are(own, quick) -> None:
    """A solved probe has the decision of two classes; a trained adapter comes as close as another seed would."""
    found = {}
    for name in ("films", "alone"):
        probe = single_run(own, "probe", name, quick("probe"), 0).get()
        table = own.ledger.predictions(probe.run, name, "dev")
        found[name] = table[["probability_0", "probability_1"]].to_numpy().argmax(axis=1)
        trained = extract(name, quick("adapter", learning_rate=3e-2, epochs=16), own, seed=0).record
        found[f"{name} trained"] = trained.dev
    assert np.mean(found["films"] == found["alone"]) > 0.95
    assert found["alone trained"] == pytest.approx(found["films trained"], abs=0.1)


def test_members_of_an_ensemble_vote_on_every_label(own, adapter, quick) -> None:
    other = extract("moods", quick("adapter", learning_rate=3e-2, epochs=16), own, seed=1).record
    for rule in ("mean", "mode"):
        kept = ensemble(own.task("moods"), f"both-{rule}", own.reports, runs=[adapter.run, other.run], rule=rule)
        assert kept.held_out is not None and kept.held_out.ensemble > 0.5
    with pytest.raises(PipelineError, match="median"):
        ensemble(own.task("moods"), "x", own.reports, rule="median")


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"one_logit": True}, "one_logit separates two classes"), ({"head": "cosine"}, "two sentences")],
)
def test_what_has_no_labels_a_class_is_refused_before_training(settings, said, own, quick) -> None:
    with pytest.raises(PipelineError, match=said):
        extract("moods", quick("adapter", **settings), own, seed=0)
    recipe = quick("adapter", smart=0.1, contrastive=0.1, label_smoothing=0.1, epochs=1)
    assert extract("moods", recipe, own, seed=0).record.recipe.label_smoothing == 0  # no effect


@pytest.mark.parametrize("form", ["onnx", "adapterhub"])
def test_the_exported_model_gives_the_same_labels(form, own, adapter, tmp_path) -> None:
    pytest.importorskip(f"stages.export.{form}", reason="the extra export is not installed")
    export("moods", tmp_path / "out", own, form)
    texts = [*pd.read_csv(own.data / "moods/dev.csv")["sentence"]]
    answers = script_of(tmp_path / "out")([(text,) for text in texts])["probabilities"]
    model = load("moods", store=own.store_root, data=own.data, backbone=own.backbone_name)
    expected = [[*answer.probabilities.values()] for answer in model.predict(texts)]
    np.testing.assert_allclose(answers, expected, atol=1e-4)


def test_a_score_of_rows_without_labels_is_told_beside_its_baselines(own, adapter, run, tmp_path) -> None:
    rows(40, 2).assign(labels="").to_csv(tmp_path / "none.csv", index=False)
    given = ["--target", "moods", "--using", adapter.run, "--input", str(tmp_path / "none.csv")]
    status, out, err = run("evaluate", *given, "--errors", str(tmp_path / "wrong.csv"), *places(own))
    assert status == 0, err
    assert "micro-f1 0.0000" in out and "words (TF-IDF)" in out and "all rows have" not in out
    wrong = pd.read_csv(tmp_path / "wrong.csv", keep_default_na=False)
    assert (
        {*wrong["labels"]} == {""} and wrong["confidence"].is_monotonic_decreasing and "" not in {*wrong["prediction"]}
    )


def test_a_baseline_tunes_its_threshold_as_the_model_does(own, adapter) -> None:
    *_, vectors = evaluate("moods", own, using=adapter.run, split="dev", with_baselines=True).baselines
    task = own.task("moods")
    recipe = own.resolve(adapter.recipe.as_probe, task)
    data = own.splits.of(task, adapter.own.limit, adapter.seed)
    probe = probe_score(task, data, recipe, own.backbone, make_accelerator(recipe.precision))
    assert vectors.score == pytest.approx(probe.dev, abs=1e-6)


def test_a_study_compares_methods_on_label_sets(own, run, data_folder, tmp_path) -> None:
    (tmp_path / "study.toml").write_text(
        'name = "sets"\ntargets = ["moods", "films"]\nsources = ["meals"]\nseeds = [1]\nscoring = "half"\n'
        'methods = ["probe", "adapter", "full", "fusion", "multitask", "joined"]\nreference = "full"\n'
        "[recipe]\nlearning_rate = 0.03\nepochs = 1\nbottleneck = 8\n"
        '[rows.joined]\nmethod = "ensemble"\nmembers = ["adapter", "full"]\n'
    )
    status, out, err = run("compare", "--study", str(tmp_path / "study.toml"), *places(own), f"--data={data_folder}")
    assert status == 0, err
    assert "moods (micro-f1)" in out and "films (accuracy)" in out
