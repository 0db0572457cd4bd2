"""An adapter may begin as another task's: as which, that it does, and what is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.initial import Chooser
from pipeline.runs.scoring import features_of
from pipeline.runs.workspace import RunRequest, Workspace, resolve_parts
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError
from pipeline.training.devices import make_accelerator
from stages.compare.compare import compare
from stages.extract import extract
from tests.nano import save_backbone

pytestmark = pytest.mark.usefixtures("trained_once")

Quick = Callable[..., Recipe]
LEARNED = {"epochs": 30, "learning_rate": 1e-2, "bottleneck": 32}
QUICK = {"epochs": 2, "batch_size": 16, "bottleneck": 8, "learning_rate": 5e-3}
UNTRAINED = {"epochs": 1, "learning_rate": 1e-30, "weight_decay": 0}


def artifact(workspace: Workspace, record: RunRecord) -> Artifact:
    return workspace.store.find(record.run)


def weights(workspace: Workspace, record: RunRecord) -> dict[str, torch.Tensor]:
    """Of the adapter, under names without its task."""
    tensors = load_file(artifact(workspace, record).folder / "adapter.safetensors")
    return {name.replace(f".adapters.{record.task}.", "."): tensor for name, tensor in tensors.items()}


def chosen(monkeypatch: pytest.MonkeyPatch, best: str | None) -> None:
    """Judge so, whatever the candidates are."""
    monkeypatch.setattr("pipeline.runs.initial.most_explaining", lambda *_: best)


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta"])
def test_it_begins_bit_for_bit_as_the_other(
    family: str, workspace: Workspace, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Workspace(
        str(save_backbone(tmp_path / family, family)), workspace.data, workspace.store_root, workspace.reports
    )
    source = extract("meals", quick("adapter", **(LEARNED | {"epochs": 1})), places, seed=0).record
    chosen(monkeypatch, None)  # which only decides where none is named
    begun = extract("films", quick("adapter", bottleneck=32, **UNTRAINED), places, seed=0, start_from="meals").record
    assert begun.anchor == "meals"
    ours, theirs = weights(places, begun), weights(places, source)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(("gain", "is_clear"), [(0.01, False), (0.5, True)])
def test_a_source_that_helps_less_than_its_standard_error_is_taken_and_said_to_be_unclear(
    gain: float, is_clear: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(0).normal(size=100)
    probes = iter([np.zeros(100), noise - noise.mean() + gain])
    monkeypatch.setattr("pipeline.runs.initial.Chooser._vectors", lambda *_: None)
    monkeypatch.setattr("pipeline.runs.initial.probe", lambda *_: next(probes))
    candidate = SimpleNamespace(manifest=SimpleNamespace(task="meals"))
    request, scoring = SimpleNamespace(adapters=[candidate], tested=False), cast(Any, SimpleNamespace(accelerator=None))
    data = {"films": SimpleNamespace(train=pd.DataFrame({"text_a": ["a"] * 100}))}
    run: Any = SimpleNamespace(request=request, task=SimpleNamespace(name="films"), data=data, title="title")
    run.recipe = run.backbone = run.workspace = None
    assert Chooser(run, scoring).choose_start() is candidate
    assert ("no source clearly helps" in capsys.readouterr().err) != is_clear


def test_the_last_model_of_the_task_itself_goes_on_with_its_head(workspace: Workspace, quick: Quick) -> None:
    def made(settings: dict[str, Any], **options: Any) -> RunRecord:
        return extract("films", quick("adapter", **{"bottleneck": 32, **settings}), workspace, seed=0, **options).record

    extract("meals", quick("adapter", **LEARNED | {"epochs": 1}), workspace, seed=0)
    before = made(LEARNED | {"epochs": 1}, limit=40)
    begun = made(UNTRAINED, start_from="films")
    assert begun.started_from is not None and begun.started_from.run == before.run
    ours, theirs = weights(workspace, begun), weights(workspace, before)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    heads = [load_file(artifact(workspace, record).folder / "head.safetensors") for record in (begun, before)]
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[1])
    assert made(UNTRAINED, start_from="films") == begun  # the same command finds its run finished
    further = made(UNTRAINED | {"epochs": 2}, start_from=f"films@{begun.run}")
    assert further.started_from is not None and further.started_from.run == begun.run
    with pytest.raises(PipelineError, match="has another head"):
        made(UNTRAINED | {"head": "mlp"}, start_from="films")
    with pytest.raises(PipelineError, match="was trained on the present rows"):
        extract("meals", quick("adapter", bottleneck=32), workspace, seed=0, start_from="meals")


def test_the_task_is_best_read_off_the_adapter_of_one_that_is_like_it(workspace: Workspace, quick: Quick) -> None:
    """films and meals share their words' meaning; pairs is about something else, and hardly trained."""
    extract("meals", quick("adapter", **LEARNED), workspace, seed=0)
    extract("pairs", quick("adapter", bottleneck=32, **UNTRAINED), workspace, seed=0)
    settings = {"epochs": 1, "bottleneck": 32}
    begun = extract("films", quick("adapter", **settings), workspace, seed=0, start_from="best").record
    assert begun.anchor == "meals"
    assert [source.task for source in begun.sources] == ["meals", "pairs"]
    fresh = extract("films", quick("adapter", **settings), workspace, seed=0).record
    assert begun.dev > fresh.dev


def test_a_probe_reads_what_the_head_reads(workspace: Workspace, quick: Quick) -> None:
    """For a cosine that is the cosine alone."""
    task, backbone, accelerator = workspace.task("pairs"), workspace.backbone, make_accelerator("fp32")
    rows, encoder = workspace.splits.of(task, None, 0).dev, backbone.load()
    read = {}
    for head in ("linear", "cosine"):
        recipe = workspace.resolve(quick("adapter", encoding="siamese", head=head), task)
        read[head] = torch.from_numpy(features_of(encoder, recipe, rows, backbone, accelerator))
    width = encoder.config.hidden_size
    u, v = read["linear"][:, :width], read["linear"][:, width : 2 * width]
    assert read["cosine"].shape == (len(rows), 1)
    torch.testing.assert_close(read["cosine"][:, 0], torch.cosine_similarity(u, v))


def test_where_none_is_better_than_the_bare_backbone_it_begins_fresh(
    workspace: Workspace, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract("meals", quick("adapter"), workspace, seed=0)
    chosen(monkeypatch, None)
    begun = extract("films", quick("adapter"), workspace, seed=0, start_from="best").record
    fresh = extract("films", quick("adapter"), workspace, seed=0).record
    assert (begun.anchor, begun.dev) == (None, fresh.dev)
    assert begun.run != fresh.run
    one, other = weights(workspace, begun), weights(workspace, fresh)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_it_is_one_run_however_its_sources_are_named_and_needs_them_no_more(
    workspace: Workspace, quick: Quick, forbid_training: Callable[[], None]
) -> None:
    source = extract("meals", quick("adapter"), workspace, seed=0).record
    begun = extract("films", quick("adapter"), workspace, seed=0, start_from=f"meals@{source.run}").record
    forbid_training()
    assert extract("films", quick("adapter"), workspace, seed=0, start_from="meals").record.run == begun.run
    assert artifact(workspace, begun).manifest.sources == ()
    workspace.store.remove(source.run)
    artifact(workspace, begun).verify()


@pytest.mark.parametrize(
    ("made", "wanted", "start_from", "message"),
    [
        ({}, {}, "sst", "sst: no adapter in"),
        ({}, {}, "nothing", "unknown task 'nothing'"),
        ({}, {}, "films", "films: no adapter in"),
        ({}, {}, "meals,films", "--start-from meals,films: name films, the task itself, alone"),
        ({}, {}, ",", "--start-from names no task"),
        ({}, {}, "meals,meals", "--start-from names meals more than once"),
        ({}, {}, "meals@0123456789ab", "meals: no adapter 0123456789ab in"),
        ({"bottleneck": 4}, {}, "meals@0123456789ab", "meals: no adapter 0123456789ab in"),
        ({"bottleneck": 4}, {}, "meals", "meals: adapter [0-9a-f]+ is 4 wide, not 8"),
        ({"bottleneck": 4}, {}, "best", "no other task's adapter"),
        ({"adapter": "pfeiffer"}, {}, "meals", "is of kind pfeiffer, not houlsby"),
        ({"drop_layers": "0"}, {}, "meals", "leaves out layers 0"),
        ({"train_layernorm": True}, {}, "meals", "trained its own LayerNorms"),
        (
            {},
            {"adapter": "pal", "pal_size": 8, "pal_heads": 2},
            "meals",
            "an adapter of kind pal cannot be warm-started",
        ),
    ],
)
def test_what_it_cannot_begin_as_is_told(
    made: dict[str, Any], wanted: dict[str, Any], start_from: str, message: str, workspace: Workspace, quick: Quick
) -> None:
    extract("meals", quick("adapter", epochs=1, **made), workspace, seed=0)
    with pytest.raises(PipelineError, match=message):
        extract("films", quick("adapter", **wanted), workspace, seed=0, start_from=start_from)


def small(**rows: dict[str, Any]) -> Study:
    values = {
        "name": "small",
        "methods": ["adapter", "begun", "fusion"],
        "reference": "adapter",
        "targets": ["films"],
        "sources": ["meals", "pairs"],
        "seeds": [0],
        "target_limit": 24,
        "recipe": {"epochs": 2, "batch_size": 16, "bottleneck": 8, "learning_rate": 5e-3},
        "rows": {
            "begun": {"method": "adapter", "of": "adapter", "sources": ["meals"]},
            "fusion": {"own": ["begun"], "recipe": {"fusion": "anchored"}},
            **rows,
        },
    }
    return parse_study(values, "test")


def test_a_study_has_adapters_that_begin_as_others_and_fuses_them(workspace: Workspace) -> None:
    result, folder = compare(small(), workspace)
    assert [entry.error for entry in result.entries] == [None] * 3
    records = {entry.method: workspace.ledger.find(entry.run) for entry in result.entries if entry.run}
    begun, fusion = records["begun"], records["fusion"]
    assert [source.task for source in begun.sources] == ["meals"]
    assert (begun.own.train_rows, begun.own.limit) == (24, 24)
    assert {source.task: source.run for source in fusion.sources}["films"] == begun.run
    source = workspace.ledger.find(begun.sources[0].run)
    assert source is not None and source.own.train_rows > 24 and source.sources == ()
    seconds = {entry.method: entry.total_seconds for entry in result.entries}
    assert seconds["begun"] == pytest.approx(begun.cost.seconds + source.cost.seconds)
    start = begun.anchor or "fresh"
    told = f"Start of begun, selected on training rows, with the number of runs: films: {start} 1."
    assert told in (folder / "tables.md").read_text()


@pytest.mark.parametrize("slow", ["adapter", pytest.param("begun", marks=pytest.mark.long)])
def test_of_a_targets_own_adapters_a_fusion_takes_the_best_on_dev(
    slow: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen(monkeypatch, "meals")
    rows: dict[str, dict[str, Any]] = {
        "adapter": {"recipe": {"epochs": 8}},
        "begun": {"method": "adapter", "of": "adapter", "recipe": {"epochs": 8}},
        "fusion": {"own": ["adapter", "begun"], "recipe": {"fusion": "anchored"}},
    }
    rows[slow]["recipe"] = UNTRAINED
    result, _ = compare(small(**rows), workspace)
    records = {entry.method: found for entry in result.entries if (found := workspace.ledger.find(entry.run or ""))}
    own = {source.task: source.run for source in records["fusion"].sources}["films"]
    assert own == max((records["adapter"], records["begun"]), key=lambda record: record.dev).run
    everything = [workspace.ledger.find(file.parent.name) for file in workspace.ledger.root.glob("*/run.json")]
    (seconds,) = (entry.total_seconds for entry in result.entries if entry.method == "fusion")
    assert seconds == pytest.approx(sum(record.cost.seconds for record in everything if record))


def test_a_row_that_makes_no_test_is_the_run_of_extract(workspace: Workspace, quick: Quick) -> None:
    extract("meals", quick("adapter"), workspace, seed=0, without_rows_of=["films"])
    begun = extract("films", quick("adapter"), workspace, seed=0, start_from="best").record
    rows = {"source": {"method": "adapter"}, "warm": {"method": "adapter", "of": "source"}}
    values = {"methods": ["warm"], "targets": ["films"], "sources": ["meals"], "seeds": [0], "reference": "warm"}
    runs = {}
    for tested in (True, False):
        made = {**rows, "warm": {**rows["warm"], "tested": tested}}
        whole = {**values, "name": "starts", "recipe": QUICK, "rows": made}
        (entry,) = compare(parse_study(whole, "test"), workspace)[0].entries
        runs[tested] = entry.run
    assert runs[False] == begun.run != runs[True]


@pytest.mark.parametrize(
    ("given", "least", "evaluations"),
    [({}, 200, 10), ({"evaluations": 3}, 200, 3), ({"epochs": 5}, 0, None), ({"min_steps": 9}, 9, None)],
)
def test_a_warm_started_adapter_trains_for_half_the_usual_steps(
    given: dict[str, Any], least: int, evaluations: int | None, workspace: Workspace, quick: Quick
) -> None:
    adapters = (artifact(workspace, extract("meals", quick("adapter"), workspace, seed=0).record),)
    task, recipe = workspace.task("films"), Recipe.parse({"trainable": "adapter", **given}, "test")
    new, warm = (
        resolve_parts(RunRequest.single("adapter", task, recipe, 0, adapters=start), workspace)["films"].recipe
        for start in ((), adapters)
    )
    assert (warm.min_steps, warm.evaluations) == (least, evaluations)
    assert new.min_steps == (400 if least == 200 else least)


@pytest.mark.parametrize(
    ("limit", "why"), [(None, r"no source helps with \d+ rows"), (8, "8 rows are too few to select a source")]
)
def test_a_start_that_changes_nothing_is_said_to(
    limit: int | None, why: str, workspace: Workspace, quick: Quick, monkeypatch, capsys
) -> None:
    extract("meals", quick("adapter", **UNTRAINED), workspace, seed=0)
    chosen(monkeypatch, None)
    recipe = quick("adapter", **UNTRAINED)
    begun = extract("films", recipe, workspace, seed=0, limit=limit, start_from="best").record
    message = f"adapter films seed 0 starts from a new adapter: {why}, and this equals a run without a warm start"
    assert re.search(message, capsys.readouterr().err)
    plain = extract("films", recipe, workspace, seed=0, limit=limit).record
    assert all(torch.equal(one, weights(workspace, plain)[name]) for name, one in weights(workspace, begun).items())
