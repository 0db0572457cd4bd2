"""Store: trained adapters and fusions on disk, in folders that stock AdapterHub can load if it knows their kind.

``<store>/adapters/<task>/<run>/`` and ``<store>/fusions/<target>/<run>/`` hold AdapterHub's files, the head and a
``manifest.json``. A folder appears complete or not at all; every file is checked against its sha256 before use.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AwareDatetime, BaseModel, Field, field_validator

from pipeline.data.labels import LEAST_TEMPERATURE, MOST_TEMPERATURE
from pipeline.data.tasks import Metric, Name, meaning_problems
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import canonical_json, new_folder, remove_folder, sha256_file, sha256_text, write_json
from pipeline.system.errors import PipelineError, noted, raise_all, writing
from pipeline.system.reading import ModelFiles, reading
from pipeline.system.streams import notice

ArtifactKind = Literal["adapter", "fusion"]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=64)]
Temperature = Annotated[float, Field(strict=True, ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

DEFAULT_STORE = "adapters_store"
MANIFEST = "manifest.json"
HEAD = "head.safetensors"
LAYERNORMS = "layernorms.safetensors"
SEEN = "seen.parquet"
"""Hashes of the rows that a model and its sources were trained and selected on; see :mod:`pipeline.runs.outcome`."""

_RUN = re.compile(r"[0-9a-f]{12}")


class SourceRun(BaseModel, frozen=True):
    """A run that another one is built on: an adapter of a fusion, or the previous step of sequential fine-tuning."""

    task: Name
    run: str
    digest: str = Field(description="sha256 over what was taken from it")
    tensors: str | None = Field(None, description="sha256 over an adapter's tensors as they were before training")


class Manifest(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What an artifact is, what it was made from, and the sha256 of its files."""

    schema_version: int = 1
    kind: ArtifactKind
    task: Name
    run: str = Field(pattern=rf"^{_RUN.pattern}$")
    seed: int
    limit: int | None
    recipe: Recipe
    train_rows: str = Field(description="fingerprint of the rows it was trained on")
    pair: bool = Field(description="whether the task compares two texts")
    meaning: dict[str, Any] = Field(description="kind of task, classes or range, metric")
    metric: Metric
    dev: float
    dev_rows: int = Field(description="how many rows dev is a score of")
    dev_fingerprint: str = Field(description="fingerprint of these rows")
    part_of_dev: bool = Field(False, description="whether these are a part of the dev split, or rows cut from train")
    dev_interval: tuple[float, float] | None = Field(None, description="95 % interval of dev over other rows")
    temperature: Temperature = Field(1.0, description="of its probabilities, fitted on these rows; 1: none")
    backbone: str
    backbone_weights: str = Field(description="sha256 over the backbone's tensors")
    sources: tuple[SourceRun, ...] = Field((), description="the adapters of a fusion, in its order")
    pruned_from: str | None = Field(None, description="the fusion whose sources these are some of")
    finished_at: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC), description="when it was made")
    files: dict[FileName, Sha256] = Field({}, description="file name -> sha256")

    @field_validator("meaning")
    @classmethod
    def _check_meaning(cls, meaning: dict[str, Any]) -> dict[str, Any]:
        # Every prediction builds a task from it; a server does so for all artifacts that it holds.
        if problems := meaning_problems(meaning):
            raise ValueError("; ".join(problems))
        return meaning

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Sort key, larger is better: the dev score, but after all others if only a part of dev selected the artifact.

        Scores on few rows are often equal; :func:`by_age` then decides.
        """
        return not self.part_of_dev, self.dev, self.dev_rows

    @property
    def digest(self) -> str:
        """One hash for all files of the model, without :data:`SEEN`, which describes the model but is no part of it."""
        return sha256_text(canonical_json({name: value for name, value in self.files.items() if name != SEEN}))

    @property
    def as_source(self) -> SourceRun:
        """The entry for this artifact in runs that are built on it."""
        return SourceRun(task=self.task, run=self.run, digest=self.digest)

    @property
    def place(self) -> str:
        """The artifact's folder within a store."""
        return f"{self.kind}s/{self.task}/{self.run}"


class Artifact(BaseModel, frozen=True):
    """A manifest and the folder that it describes."""

    folder: Path
    manifest: Manifest

    @property
    def is_whole(self) -> bool:
        """Whether no file is missing; unlike :meth:`verify`, does not read the contents."""
        with reading(self.folder):
            return all((self.folder / name).is_file() for name in self.manifest.files)

    def verify(self, remedy: str | None = None) -> None:
        """Raise a :class:`PipelineError` if a file is missing, has changed, or would be loaded but is not listed."""
        remedy = remedy or self.remedy
        for name, expected in self.manifest.files.items():
            with reading(file := self.folder / name, remedy):
                if sha256_file(file) != expected:
                    raise PipelineError(f"{file}: damaged: its sha256 is not the manifest's: {remedy}")
        with reading(self.folder, remedy):
            for file in sorted(self.folder.iterdir()):
                known = file.name.startswith(".") or file.name in {*self.manifest.files, MANIFEST}
                if file.suffix in (".json", ".safetensors") and not known:
                    raise PipelineError(f"{file}: its manifest does not list it: delete it, or {remedy}")

    @property
    def remedy(self) -> str:
        """Advice to the user about a damaged file."""
        verb = "extract --task" if self.manifest.kind == "adapter" else "fuse --target"
        return (
            f"remove it (python -m pipeline store remove {self.manifest.run}) and train it again"
            f" (python -m pipeline {verb} {self.manifest.task})"
        )


class Store:
    """The artifacts of one folder.

    Args:
        remedy: what to do about a damaged manifest.
    """

    def __init__(
        self, root: Path, remedy: str = "delete its folder (python -m pipeline store remove RUN) and train it again"
    ) -> None:
        self.root = root
        self._manifests = ModelFiles(Manifest, remedy)
        self._warnings: set[str] = set()

    def check(self) -> None:
        """Raise a :class:`PipelineError` unless the store is a folder."""
        if not self.root.is_dir():
            raise PipelineError(f"{self.root}: no such folder (--store)")

    def artifacts(self) -> list[Artifact]:
        """Every artifact by kind, task and run. A note names those that cannot be read, once."""
        artifacts, problems = self.listed()
        for problem in problems:
            if problem not in self._warnings:
                notice(f"warning: left out: {problem}")
        self._warnings.update(problems)
        return artifacts

    def listed(self) -> tuple[list[Artifact], list[str]]:
        """Every readable artifact by kind, task and run, and why the others cannot be read."""
        artifacts, problems = list[Artifact](), list[str]()
        for folder in self._folders("*"):
            with noted(problems):
                if (artifact := self._read(folder)) is not None:
                    artifacts.append(artifact)
        return artifacts, problems

    def find(self, run: str) -> Artifact | None:
        """The artifact of ``run``, read from its manifest; a :class:`PipelineError` if that is damaged."""
        return next(filter(None, map(self._read, self._folders(run))), None) if _RUN.fullmatch(run) else None

    def find_unchanged(self, run: str, digest: str | None) -> Artifact | None:
        """The artifact of ``run`` if its contents have this digest, else None; see :meth:`find`."""
        artifact = self.find(run)
        return artifact if artifact is not None and artifact.manifest.digest == digest else None

    def save(self, manifest: Manifest, write: Callable[[Path], None]) -> Artifact:
        """Write an artifact: ``write(folder)`` puts its files there; a manifest with their hashes is added."""
        with new_folder(self.root / manifest.place) as folder:
            write(folder)
            files = {file.name: sha256_file(file) for file in sorted(folder.iterdir())}
            manifest = manifest.model_copy(update={"files": files, "finished_at": datetime.now(UTC)})
            if users := self.users_of(manifest.run, unless=manifest.digest):
                raise PipelineError(
                    f"adapter {manifest.run} in {self.root} differs from the new one, and is part of"
                    f" {_fusions(users)}: remove what needs it first (python -m pipeline store remove RUN)"
                )
            write_json(folder / MANIFEST, manifest.model_dump(mode="json"))
        return Artifact(folder=self.root / manifest.place, manifest=manifest)

    def users_of(self, run: str, unless: str | None = None) -> list[str]:
        """The fusions that need the adapter ``run``; with ``unless``, only those trained over other contents."""
        manifests = [artifact.manifest for artifact in self.listed()[0]]
        return [m.run for m in manifests if any(s.run == run and s.digest != unless for s in m.sources)]

    def adapters_of(self, fusion: Manifest) -> list[Artifact]:
        """The adapters of a fusion in its order; empty for an adapter. See :meth:`source`."""
        return [self.source(source, fusion) for source in fusion.sources]

    def source(self, source: SourceRun, fusion: Manifest) -> Artifact:
        """An adapter of ``fusion``; a :class:`PipelineError` if the one it was trained over is not in the store."""
        artifact = self.find_unchanged(source.run, source.digest)
        if artifact is None:
            raise PipelineError(
                f"fusion {fusion.run} needs adapter {source.run} of task '{source.task}', which is not in {self.root}:"
                f" import it, or fuse again (python -m pipeline fuse --target {fusion.task})"
            )
        return artifact

    def verify(self) -> int:
        """Check every manifest, every file against its sha256, and that fusions have their adapters.

        Returns the number of artifacts, or raises a :class:`PipelineError` that names every problem.
        """
        self.check()
        artifacts, problems = self.listed()
        for artifact in artifacts:
            with noted(problems):
                artifact.verify()
            with noted(problems):
                self.adapters_of(artifact.manifest)
        raise_all(str(self.root), problems)
        return len(artifacts)

    def remove(self, run: str, force: bool = False, kept_for: Sequence[str] = ()) -> Path:
        """Delete an artifact, even a damaged one; returns its folder.

        Args:
            kept_for: why users outside the store need it.

        Raises:
            PipelineError: it is needed; ``force`` makes that a warning.
        """
        self.check()
        folder = next(iter(self._folders(run)), None) if _RUN.fullmatch(run) else None
        if folder is None:
            raise self.missing(run)
        users = self.users_of(run)
        reasons = [*kept_for, *([f"adapter {run} is part of {_fusions(users)}"] if users else [])]
        if reasons and not force:
            raise PipelineError(f"{'; '.join(reasons)}: remove what needs it first, or give --force")
        for reason in reasons:
            notice(f"warning: {reason}")
        with writing(folder):
            remove_folder(folder)
        return folder

    def _folders(self, run: str) -> list[Path]:
        """The folders called ``run``, a pattern, that may hold an artifact."""
        kinds = [f"{kind}s" for kind in get_args(ArtifactKind)]
        found = (folder for kind in kinds for folder in sorted(self.root.glob(f"{kind}/*/{run}")))
        return [folder for folder in found if folder.is_dir()]

    def _read(self, folder: Path) -> Artifact | None:
        """The artifact in ``folder``; None without a manifest."""
        manifest = self._manifests.read(folder / MANIFEST)
        if manifest is not None and folder.parts[-3:] != tuple(manifest.place.split("/")):
            what = f"says that its place is {manifest.place}"
            raise PipelineError(f"{folder / MANIFEST}: {what}: move its folder there or delete it")
        return None if manifest is None else Artifact(folder=folder, manifest=manifest)

    def missing(self, run: str) -> PipelineError:
        """The error that there is no artifact of ``run``."""
        return PipelineError(f"no artifact {run} in {self.root}: see python -m pipeline store list")


def by_age(artifacts: Iterable[Artifact]) -> list[Artifact]:
    """Sorted by age, oldest first, so that ``max`` takes the oldest of equally good ones.

    So a new run replaces the one in use only if it is better.
    """
    return sorted(artifacts, key=lambda artifact: (artifact.manifest.finished_at, artifact.manifest.run))


def _fusions(runs: Sequence[str]) -> str:
    return f"fusion{'' if len(runs) == 1 else 's'} {', '.join(runs)}"
