"""Which adapters fuse takes out of a store, and what it says where none fits; nothing is trained."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from pipeline.records.store import MANIFEST, Artifact, Manifest
from pipeline.runs.sources import Fusion, dropped_layers, parse_sources, starting_adapters
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import sha256_text
from pipeline.system.errors import PipelineError
from stages.fuse import fuse
from tests.pipeline.records.artifacts import manifest

FUSION = Recipe(trainable="fusion", fusion="anchored")


def keep(workspace: Workspace, run: str, task: str = "films", **values: Any) -> Manifest:
    """The manifest of an adapter, in the store without its files; ``recipe`` holds what differs in its recipe."""
    recipe = Recipe(trainable="adapter", **{"encoding": "cross", **values.pop("recipe", {})})
    settings = {
        "train_rows": sha256_text("rows"),
        "pair": task == "pairs",
        "backbone_weights": workspace.backbone.weights_hash,
        "files": {"head.safetensors": sha256_text(run)},
    }
    kept = manifest(named(run), task, recipe=recipe, **settings | values)
    folder = workspace.store_root / kept.place
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(kept.model_dump_json())
    return kept


def named(run: str) -> str:
    return run.ljust(12, "0")


def fusion(workspace: Workspace, recipe: Recipe = FUSION, target: str = "films") -> Fusion:
    return Fusion(workspace.task(target), recipe, workspace)


def chosen(workspace: Workspace, text: str | None, recipe: Recipe = FUSION, seed: int = 1) -> list[Manifest]:
    names = None if text is None else parse_sources(text, workspace)
    return [each.manifest for each in fusion(workspace, recipe).choose(names, seed)]


def test_of_any_two_adapters_the_better_one_is_taken(workspace: Workspace, tmp_path: Path) -> None:
    """First those of the recipe's layers, then those with more, then the seed, the score and the age."""
    best_first: list[dict[str, Any]] = [
        {"drop": (0,), "seed": 1, "dev": 0.6},
        {"drop": (0,), "seed": 1, "dev": 0.6},
        {"drop": (0,), "seed": 1, "dev": 0.5},
        {"drop": (0,), "seed": 2, "dev": 0.9},
        {"drop": (), "seed": 1, "dev": 0.6},
        {"drop": (), "seed": 2, "dev": 0.95},
        {"drop": (0, 1), "seed": 1, "dev": 0.97},
        {"drop": (1,), "seed": 2, "dev": 0.99},
    ]
    recipe = FUSION.changed({"drop_layers": (0,)})
    ranked = dict(zip("89abcdef", best_first, strict=True))
    for number, pair in enumerate(itertools.combinations(ranked, 2)):
        place = Workspace(workspace.backbone_name, workspace.data, tmp_path / str(number), tmp_path)
        keep(place, "1", "meals")
        for run in pair:
            values = ranked[run]
            drop = {"drop_layers": values["drop"]}
            keep(place, run, recipe=drop, seed=values["seed"], dev=values["dev"])
        films, meals = chosen(place, None, recipe)
        assert (films.run, meals.run) == (named(pair[0]), named("1"))
        films, _ = chosen(place, f"meals,films@{named(pair[1])}", recipe)
        assert films.run == named(pair[1])  # the one that is named, whatever is better


def test_an_adapter_of_permuted_labels_is_taken_only_where_it_is_named_or_alone(workspace: Workspace) -> None:
    keep(workspace, "1", "meals", recipe={"permute_labels": True}, seed=1, dev=0.9)
    keep(workspace, "2", "songs", seed=1)
    keep(workspace, "3", "films")
    assert [each.run for each in chosen(workspace, None)] == [named("3"), named("1"), named("2")]
    keep(workspace, "4", "meals", seed=2, dev=0.5)
    assert [each.run for each in chosen(workspace, None)] == [named("3"), named("4"), named("2")]
    assert [each.run for each in chosen(workspace, f"films,meals@{named('1')}")] == [named("3"), named("1")]


def test_of_the_task_itself_the_last_adapter_that_is_no_control_is_continued(workspace: Workspace) -> None:
    task, recipe = workspace.task("films"), Recipe(trainable="adapter")
    read = {"head": task.head, "pooling": task.pooling}
    for run, controls in (("1", False), ("3", False), ("2", False), ("4", True)):
        values = {"meaning": task.meaning, "finished_at": f"2026-01-0{run}T00:00:00+00:00", "dev": 1 / int(run)}
        keep(workspace, run, recipe={**read, "permute_labels": controls}, **values)
    (taken,) = starting_adapters("films", task, recipe, workspace, seed=1)
    assert taken.manifest.run == named("3")


@pytest.mark.parametrize("command", ["fuse", "--start-from"])
def test_an_unnamed_adapter_of_permuted_labels_is_told(
    command: str, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(text: str, recipe: Recipe = FUSION) -> str:
        again = dataclasses.replace(workspace)
        if command == "fuse":
            chosen(again, text, recipe)
        else:
            starting_adapters(text, again.task("films"), Recipe(trainable="adapter"), again, seed=1)
        return capsys.readouterr().err

    keep(workspace, "1", "meals", recipe={"permute_labels": True}, dev=0.9)
    keep(workspace, "2", "sst")
    films = "films," if command == "fuse" else ""
    if films:
        keep(workspace, "3", "films", recipe={"permute_labels": True})
        assert "adapter 300000000000 of films was trained on permuted labels" in told("films,sst")
        assert told("films,sst", FUSION.changed({"permute_labels": True})) == ""
        keep(workspace, "4", "films")
    note = (
        f"note: adapter {named('1')} of meals was trained on permuted labels, as a control, and none on real ones"
        " fits: extract --task meals trains one\n"
    )
    assert told(f"{films}sst,meals") == note
    assert told(f"{films}sst,meals@{named('1')}") == told(f"{films}sst") == ""
    keep(workspace, "5", "meals", dev=0.1)
    assert told(f"{films}sst,meals") == ""


def test_without_names_every_task_with_an_adapter_that_fits_takes_part(workspace: Workspace) -> None:
    for task in ("pairs", "meals", "films"):
        keep(workspace, task[0].replace("p", "b").replace("m", "c"), task)
    keep(workspace, "1", "songs", recipe={"adapter": "pfeiffer"})
    keep(workspace, "2", "songs", backbone_weights=sha256_text("another"))
    assert [each.task for each in chosen(workspace, None)] == ["films", "meals", "pairs"]
    assert [each.task for each in chosen(workspace, "pairs,films")] == ["films", "pairs"]


def test_tasks_that_are_named_twice_are_all_listed(workspace: Workspace) -> None:
    with pytest.raises(PipelineError) as raised:
        parse_sources("pairs,films,meals,films@a,meals", workspace, "--start-from")
    message = "--start-from names films, meals more than once: one adapter a task can be used"
    assert str(raised.value) == message
    with pytest.raises(PipelineError, match=r"^--sources names no task: write for example --sources sst"):
        parse_sources(" , ", workspace)


def problems(workspace: Workspace, text: str, recipe: Recipe = FUSION, target: str = "films") -> list[str]:
    """What fuse finds missing, the command that makes it cut down to what follows the backbone."""
    with pytest.raises(PipelineError) as raised:
        fusion(workspace, recipe, target).choose(parse_sources(text, workspace), 1)
    first, *found = str(raised.value).replace(f" --backbone {workspace.backbone_name}", "").splitlines()
    assert first == f"fuse: {len(found)} problem{'s' * (len(found) > 1)}"
    return [line.strip() for line in found]


def test_what_is_missing_is_named_with_the_command_that_makes_it(workspace: Workspace) -> None:
    store = workspace.store_root
    options = f"--data {workspace.data} --store {store}"
    keep(workspace, "a", "films", recipe={"adapter": "pfeiffer"})
    keep(workspace, "b", "films", recipe={"train_layernorm": True})
    keep(workspace, "c", "meals", kind="fusion")
    films, meals = f"extract --task films {options}", f"extract --task meals {options}"
    pfeiffer = f"films: adapter {named('a')} is of kind pfeiffer, not houlsby (--adapter): python -m pipeline {films}"
    layernorm = f"films: adapter {named('b')} trained its own LayerNorms, which fusion cannot share:"
    assert problems(workspace, f"films@{named('a')},meals") == [
        f"{pfeiffer} --adapter houlsby",
        f"meals: no adapter in {store}: python -m pipeline {meals}",
    ]
    assert problems(workspace, f"films@{named('b')}") == [f"{layernorm} python -m pipeline {films}"]
    assert problems(workspace, f"films@{named('d')},meals@{named('c')}") == [
        f"films: no adapter {named('d')} in {store}: see python -m pipeline store list",
        f"meals: no adapter {named('c')} in {store}: see python -m pipeline store list",
    ]
    keep(workspace, "e", "pairs")
    (problem,) = problems(workspace, "pairs", FUSION.changed({"encoding": "siamese"}), "pairs")
    assert "encodes pairs as cross, not siamese" in problem and problem.endswith(" --encoding siamese")


def test_one_adapter_is_too_few(workspace: Workspace) -> None:
    keep(workspace, "a")
    with pytest.raises(PipelineError, match="at least two tasks, but only 'films' is here.* pipeline extract --task "):
        chosen(workspace, None)


def test_pairs_are_encoded_as_the_target_does_and_else_as_the_recipe_says(workspace: Workspace) -> None:
    siamese = FUSION.model_copy(update={"encoding": "siamese"})
    for task in ("films", "pairs"):
        assert [fusion(workspace, recipe, task).encoding for recipe in (FUSION, siamese)] == ["cross", "siamese"]
    assert fusion(workspace, FUSION.model_copy(update={"head": "cosine"}), "pairs").encoding == "siamese"


def leaving_out(*layers: int) -> Recipe:
    return Recipe(trainable="adapter", drop_layers=layers)


def test_the_layers_without_fusion_are_those_of_the_recipe_and_of_all_adapters() -> None:
    same = {"films": leaving_out(1, 4), "meals": leaving_out(1, 4)}
    assert dropped_layers(FUSION, same) == (1, 4)
    assert dropped_layers(leaving_out(3, 0), same) == (0, 1, 3, 4)
    assert dropped_layers(leaving_out(8), {"films": leaving_out(1)}) == (1, 8)
    # The recipe may leave out what tells them apart.
    assert dropped_layers(leaving_out(1), {"films": leaving_out(1), "meals": leaving_out()}) == (1,)
    with pytest.raises(PipelineError, match=r"films: 2, meals: none, pairs: 0-1\): give --drop-layers 0-2"):
        dropped_layers(FUSION, {"films": leaving_out(2), "meals": leaving_out(), "pairs": leaving_out(0, 1)})


def artifacts(workspace: Workspace) -> list[Artifact]:
    return list(fusion(workspace).choose(None, 1))


def test_a_fusion_is_not_in_the_layers_its_adapters_leave_out(workspace: Workspace) -> None:
    for task, run in (("films", "a"), ("meals", "b")):
        keep(workspace, run, task, recipe={"drop_layers": (1,)})
    listed = artifacts(workspace)
    request = fusion(workspace).request(listed, seed=3, limit=7)
    assert TrainingRun(request, workspace).recipe.adapter.drop_layers == (1,)
    (part,) = request.parts
    assert (request.kind, part.task, request.seed, part.limit) == ("fusion", workspace.task("films"), 3, 7)
    assert request == fusion(workspace).request(tuple(listed), seed=3, limit=7)
    assert list(request.adapters) == listed


def test_fuse_asks_for_the_run_of_what_was_chosen(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anew only where that is said, and on the rows that the target's own adapter read, not another's."""
    asked: list[tuple[list[str], int | None, bool]] = []
    monkeypatch.setattr(
        "stages.fuse.trained",
        lambda run, force, probed: asked.append(
            ([a.manifest.run for a in run.request.adapters], run.request.parts[0].limit, force)
        ),
    )
    for run, task, limit in (("a", "films", 50), ("b", "meals", 40), ("c", "pairs", 30)):
        keep(workspace, run, task, limit=limit)
    a, b, c = map(named, "abc")
    fuse("films", FUSION, workspace, seed=1)
    fuse("films", FUSION, workspace, seed=1, limit=20, sources="meals,films", force=True)
    fuse("films", FUSION, workspace, seed=1, sources="meals,pairs")
    fuse("pairs", FUSION, workspace, seed=1)
    assert asked == [([a, b, c], 50, False), ([a, b], 20, True), ([a, b, c], 50, False), ([a, b, c], 30, False)]


@pytest.mark.parametrize("limit", [None, 50])
def test_other_rows_than_stage_ones_are_said(
    limit: int | None, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stages.fuse.trained", lambda run, *rest: run.data[run.task.name].fingerprint["train"])
    keep(workspace, "b", "meals")
    keep(workspace, "a", "films", limit=limit)
    read: Any = fuse("films", FUSION, workspace, seed=1)
    assert capsys.readouterr().err == (
        f"note: stage two should read the rows of stage one, but adapter {named('a')} of films was trained on others"
        f" (--seed 1, --limit {limit or 'all'}; compare --data and --drop-overlap too)\n"
    )
    keep(workspace, "c", "films", limit=limit, train_rows=read, dev=0.6)  # the better of two
    fuse("films", FUSION, workspace, seed=1)
    assert capsys.readouterr().err == ""


# What can be fused.
