"""Store: trained adapters and fusions on disk, as folders that stock AdapterHub loads where it knows their kind.

``<store>/adapters/<task>/<run>/`` and ``<store>/fusions/<target>/<run>/`` hold AdapterHub's files, the head and a
``manifest.json``. A folder appears complete or not at all; every file is checked against its sha256 before use.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.atomic import canonical_json, clear_leftovers, new_file, new_folder, sha256_file, sha256_text, write_json
from pipeline.errors import PipelineError, validation_problems, writing
from pipeline.ledger import SourceRun
from pipeline.models.tensors import fill, read_tensors
from pipeline.recipe import BOTTLENECKS, Recipe
from pipeline.tasks import Metric, Name

ArtifactKind = Literal["adapter", "fusion"]

MANIFEST = "manifest.json"
HEAD = "head.safetensors"
LAYERNORMS = "layernorms.safetensors"


class Manifest(BaseModel):
    """What an artifact is, what it was made from, and the sha256 of each of its files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    kind: ArtifactKind
    task: Name
    run: str = Field(pattern=r"^[0-9a-f]{12}$")
    seed: int
    limit: int | None
    recipe: Recipe
    train_rows: str = Field(description="fingerprint of the rows it was trained on")
    pair: bool = Field(description="whether the task compares two texts")
    meaning: dict[str, Any] = Field(description="kind of task, classes or range, metric")
    metric: Metric
    dev: float
    backbone: str
    backbone_weights: str = Field(description="sha256 over the backbone's tensors")
    sources: tuple[SourceRun, ...] = Field((), description="the adapters of a fusion, in its order")
    pruned_from: str | None = Field(None, description="the fusion whose sources these are some of")
    files: dict[str, str] = Field({}, description="file name -> sha256")

    @property
    def digest(self) -> str:
        """One hash for the contents of all files."""
        return sha256_text(canonical_json(self.files))


class Artifact(BaseModel):
    """A manifest and where it stands."""

    model_config = ConfigDict(frozen=True)

    folder: Path
    manifest: Manifest

    def verify(self) -> None:
        """Check every file against its sha256.

        Raises:
            PipelineError: a file is missing, its content has changed, or the manifest does not know it, though it would
                be loaded.
        """
        if not self.manifest.files:
            raise PipelineError(f"{self.folder / MANIFEST}: damaged: it lists no files: {self.remedy}")
        for name, expected in self.manifest.files.items():
            file = self.folder / name
            if not file.is_file():
                raise PipelineError(f"{file}: missing from the artifact: {self.remedy}")
            if sha256_file(file) != expected:
                raise PipelineError(f"{file}: damaged: its sha256 is not the manifest's: {self.remedy}")
        for file in sorted(self.folder.iterdir()):
            known = file.name.startswith(".") or file.name in {*self.manifest.files, MANIFEST}
            if file.suffix in (".json", ".safetensors") and not known:
                raise PipelineError(f"{file}: its manifest does not list it: delete it, or {self.remedy}")

    def load_head(self, head: nn.Module) -> None:
        """Load the stored head into ``head``.

        Raises:
            PipelineError: the file is not what the head needs; a head without weights (cosine) has none.
        """
        file, parameters = self.folder / HEAD, dict(head.named_parameters())
        if parameters:
            fill(parameters, read_tensors(file, parameters, self.remedy))
        elif file.exists():
            raise PipelineError(f"{file}: its recipe's head has no weights: {self.remedy}")

    @property
    def remedy(self) -> str:
        """What a user should do about a file that is damaged."""
        verb = "extract --task" if self.manifest.kind == "adapter" else "fuse --target"
        return (
            f"remove it (python -m pipeline store remove {self.manifest.run}) and train it again"
            f" (python -m pipeline {verb} {self.manifest.task})"
        )


class Store:
    """The artifacts of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, kind: ArtifactKind, task: str, run: str) -> Path:
        return self.root / f"{kind}s" / task / run

    def artifacts(self) -> list[Artifact]:
        """Every artifact, by kind, task and run. Folders without a manifest were never finished and do not count.

        Raises:
            PipelineError: a manifest is damaged.
        """
        return [_read(file.parent) for file in sorted(self.root.glob(f"*s/*/*/{MANIFEST}")) if _is_visible(file)]

    def find(self, run: str) -> Artifact | None:
        return next((artifact for artifact in self.artifacts() if artifact.manifest.run == run), None)

    def save(
        self, manifest: Manifest, write: Callable[[Path], None], head: dict[str, Tensor], layernorms: dict[str, Tensor]
    ) -> Artifact:
        """Write an artifact: ``write(folder)`` puts the modules' files there, head and manifest are added."""
        target = self.folder(manifest.kind, manifest.task, manifest.run)
        clear_leftovers(target.parent)
        with new_folder(target) as folder:
            write(folder)
            if head:
                save_file(head, folder / HEAD)
            if layernorms:
                save_file(layernorms, folder / LAYERNORMS)
            files = {file.name: sha256_file(file) for file in sorted(folder.iterdir())}
            manifest = manifest.model_copy(update={"files": files})
            self._check_replacement(manifest)
            write_json(folder / MANIFEST, manifest.model_dump(mode="json"))
        return Artifact(folder=target, manifest=manifest)

    def users_of(self, run: str) -> list[Artifact]:
        """The fusions that need the adapter ``run``."""
        return [a for a in self.artifacts() if run in {source.run for source in a.manifest.sources}]

    def _check_replacement(self, manifest: Manifest) -> None:
        """Refuse to put other contents in the place of an adapter that fusions are built on."""
        old = self.find(manifest.run)
        if old is not None and old.manifest.digest != manifest.digest and (users := self.users_of(manifest.run)):
            named = ", ".join(user.manifest.run for user in users)
            raise PipelineError(
                f"adapter {manifest.run} in {self.root} differs from the new one, and fusion {named} is built on it:"
                f" remove the fusion first (python -m pipeline store remove RUN)"
            )

    def remove(self, run: str) -> Artifact:
        """Delete an artifact.

        Raises:
            PipelineError: there is none, or a fusion needs it.
        """
        artifact = self._get(run)
        users = self.users_of(run)
        if users:
            named = ", ".join(user.manifest.run for user in users)
            raise PipelineError(f"adapter {run} is part of fusion {named}: remove that first")
        with writing(artifact.folder):
            shutil.rmtree(artifact.folder)
        return artifact

    def export(self, run: str, file: Path) -> list[Artifact]:
        """Write an artifact, with the adapters of a fusion, into one zip file."""
        artifact = self._get(run)
        packed = [*(self._get(source.run) for source in artifact.manifest.sources), artifact]
        with new_file(file) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for part in packed:
                part.verify()
                for name in (*part.manifest.files, MANIFEST):
                    archive.write(part.folder / name, (part.folder / name).relative_to(self.root).as_posix())
        return packed

    def import_from(self, file: Path) -> list[Artifact]:
        """Unpack an exported zip file, adapters before the fusion over them; each is checked before it appears.

        Raises:
            PipelineError: not an export of this project, or damaged.
        """
        try:
            with zipfile.ZipFile(file) as archive:
                return self._unpack(archive, file)
        except FileNotFoundError:
            raise PipelineError(f"{file}: no such file") from None
        except (zipfile.BadZipFile, KeyError, OSError, UnicodeDecodeError) as error:
            raise PipelineError(f"{file}: not a readable export ({error}): export it again") from error

    def _unpack(self, archive: zipfile.ZipFile, file: Path) -> list[Artifact]:
        folders: dict[PurePosixPath, list[str]] = {}
        for member in archive.namelist():
            path = PurePosixPath(member)
            # kind/task/run/file and nothing else: no "..", no absolute path, no deeper folder.
            if path.is_absolute() or len(path.parts) != 4 or ".." in path.parts:
                raise PipelineError(f"{file}: holds '{member}', which no export of this project does")
            folders.setdefault(path.parent, []).append(path.name)
        manifests = {
            folder: _parse(archive.read(str(folder / MANIFEST)).decode(), f"{file}:{folder}/{MANIFEST}")
            for folder in folders
        }
        found = []
        for folder, manifest in sorted(manifests.items(), key=lambda item: item[1].kind):
            if set(folders[folder]) != {*manifest.files, MANIFEST}:
                raise PipelineError(f"{file}: {folder} holds other files than its manifest names: export it again")
            self._check_replacement(manifest)
            target = self.folder(manifest.kind, manifest.task, manifest.run)
            with new_folder(target) as temporary:
                for name in folders[folder]:
                    (temporary / name).write_bytes(archive.read(str(folder / name)))
                Artifact(folder=temporary, manifest=manifest).verify()
            found.append(Artifact(folder=target, manifest=manifest))
        return found

    def _get(self, run: str) -> Artifact:
        artifact = self.find(run)
        if artifact is None:
            raise PipelineError(f"no artifact {run} in {self.root}: see python -m pipeline store list")
        return artifact


def why_not_fused(manifest: Manifest, backbone_weights: str, encoding: str, sites: str) -> str | None:
    """Why an adapter cannot be fused on this backbone, or None if it can.

    The backbone is known by the hash of its weights, never by name. A task with one text is encoded alike either way,
    so its adapters fit any encoding; the sites (Houlsby or Pfeiffer) must agree; an adapter that trained its own
    LayerNorms needs them and cannot share a layer.
    """
    return why_other_backbone(manifest, backbone_weights) or why_recipe_not_fused(
        manifest.recipe, manifest.pair, encoding, sites
    )


def why_other_backbone(manifest: Manifest, backbone_weights: str) -> str | None:
    """Why an artifact is none of the backbone with these weights, or None if it is."""
    if manifest.backbone_weights == backbone_weights:
        return None
    return f"was trained on another backbone ('{manifest.backbone}', {manifest.backbone_weights[:8]})"


def why_recipe_not_fused(recipe: Recipe, pair: bool, encoding: str, sites: str) -> str | None:
    """The same for an adapter that is yet to be trained by ``recipe``, on a task with pairs of texts or without."""
    if recipe.adapter not in BOTTLENECKS:
        return f"is of kind {recipe.adapter}: fusion mixes bottlenecks only ({' or '.join(sorted(BOTTLENECKS))})"
    if recipe.train_layernorm:
        return "trained its own LayerNorms, which fusion cannot share"
    if recipe.adapter != sites:
        return f"is of kind {recipe.adapter}, not {sites} (--adapter)"
    if pair and recipe.encoding != encoding:
        return f"encodes pairs as {recipe.encoding}, not {encoding} (--encoding)"
    return None


def fitting_adapters(
    artifacts: Iterable[Artifact], backbone_weights: str, encoding: str, sites: str
) -> dict[str, list[Artifact]]:
    """Adapters by task that can be fused on this backbone (:func:`why_not_fused`)."""
    found: dict[str, list[Artifact]] = {}
    for artifact in artifacts:
        manifest = artifact.manifest
        if manifest.kind == "adapter" and why_not_fused(manifest, backbone_weights, encoding, sites) is None:
            found.setdefault(manifest.task, []).append(artifact)
    return found


def _is_visible(file: Path) -> bool:
    # Folders being written or replaced start with a dot.
    return not file.parent.name.startswith(".")


def _read(folder: Path) -> Artifact:
    file = folder / MANIFEST
    return Artifact(folder=folder, manifest=_parse(file.read_text(encoding="utf-8", errors="replace"), str(file)))


def _parse(text: str, where: str) -> Manifest:
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise PipelineError(
            f"{where}: damaged ({validation_problems(error)[0]}): delete its folder and train it again"
        ) from error
