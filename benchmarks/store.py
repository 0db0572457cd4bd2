"""A store of thousands of artifacts: the time to list them, to look one up and to choose adapters to fuse."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.records.store import MANIFEST, Artifact, Manifest, SourceRun, Store
from pipeline.runs.sources import why_other_backbone, why_recipe_not_fused
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import sha256_text

from .report import Report
from .setting import Setting
from .timing import Row, interleave, milliseconds

TASKS = ("films", "meals", "songs", "books")


def run(setting: Setting) -> Report:
    return Report(
        (
            "ms. First listing: without an index, which is then written. Next: by another process. Again: by the same.",
            "Only manifests, in the file cache; every fifth artifact is a fusion. Fusing chooses one adapter for"
            f" each of {len(TASKS)} tasks.",
            "Medians (lowest to highest); peers of a row ran in turn.",
        ),
        ([_row(setting, count) for count in ([50, 300] if setting.quick else [500, 5000])],),
    )


def write_artifacts(root: Path, count: int, backbone_weights: str = "hash") -> list[Manifest]:
    """Write the manifests of ``count`` artifacts, without files, as after a study with several seeds."""
    manifests: list[Manifest] = []
    for number in range(count):
        is_fusion = number % 5 == 4
        manifest = manifest_of(
            number,
            kind="fusion" if is_fusion else "adapter",
            task=TASKS[number % len(TASKS)],
            seed=number // 20,
            recipe=Recipe(trainable="fusion" if is_fusion else "adapter", encoding="cross"),
            dev=0.5 + number / (4 * count),
            backbone_weights=backbone_weights,
            sources=_sources(manifests[-4:]) if is_fusion else (),
        )
        manifests.append(manifest)
        folder = root / manifest.place
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_text(json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True))
    return manifests


def run_of(number: int) -> str:
    return sha256_text(str(number))[:12]


def manifest_of(number: int, **values: Any) -> Manifest:
    """A manifest with ``values`` and a unique run and files; a store does not care about the rest."""
    return Manifest(
        run=run_of(number),
        limit=None,
        train_rows=sha256_text("rows"),
        pair=False,
        meaning={"kind": "classes", "classes": ["bad", "good"], "range": None, "metric": "accuracy"},
        metric="accuracy",
        dev_rows=100,
        dev_fingerprint="",
        backbone="nano",
        files={name: sha256_text(f"{name} {number}") for name in ("adapter.safetensors", "head.safetensors")},
        **values,
    )


def _sources(adapters: Sequence[Manifest]) -> tuple[SourceRun, ...]:
    return tuple(SourceRun(task=each.task, run=each.run, digest=each.digest) for each in adapters)


def _row(setting: Setting, count: int) -> Row:
    root = setting.scratch / f"store-{count}"
    runs = [manifest.run for manifest in write_artifacts(root, count)]
    again = Store(root)

    peers: dict[str, Callable[[], object]] = {
        "list": lambda: Store(root).artifacts(),
        "list again": again.artifacts,
        "look up": lambda: Store(root).find(runs[count // 2]),
        "choose to fuse": lambda: _choose(Store(root)),
    }
    found = interleave({name: milliseconds(step) for name, step in peers.items()}, setting.repeats)
    return {"artifacts": count, **found}


def _choose(store: Store) -> list[Artifact]:
    fitting: dict[str, list[Artifact]] = {}
    for each in store.artifacts():
        made = each.manifest
        if not (why_other_backbone(made, "hash") or why_recipe_not_fused(made.recipe, made.pair, "cross", "houlsby")):
            fitting.setdefault(made.task, []).append(each)
    return [max(artifacts, key=lambda each: each.manifest.dev) for artifacts in fitting.values()]
