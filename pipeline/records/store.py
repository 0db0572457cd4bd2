"""Store: trained adapters and fusions on disk, in folders that stock AdapterHub can load if it knows their kind.

``<store>/adapters/<task>/<run>/`` and ``<store>/fusions/<target>/<run>/`` hold AdapterHub's files, the head and a
``manifest.json``. A folder appears complete or not at all; every file is checked against its sha256 before use.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AwareDatetime, BaseModel, Field, field_validator

from pipeline.data.tasks import Metric, Name, meaning_problems
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import (
    canonical_json,
    clear_leftovers,
    new_folder,
    remove_folder,
    sha256_file,
    sha256_text,
    write_json,
)
from pipeline.system.errors import PipelineError, noted, raise_all, writing
from pipeline.system.reading import ModelFiles, reading
from pipeline.system.streams import notice

ArtifactKind = Literal["adapter", "fusion"]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=64)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

DEFAULT_STORE = "adapters_store"
MANIFEST = "manifest.json"
HEAD = "head.safetensors"
LAYERNORMS = "layernorms.safetensors"
SEEN = "seen.parquet"
"""Hashes of the rows that a model and its sources were trained and selected on; see :mod:`pipeline.runs.seen`."""

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

    @field_validator("files")
    @classmethod
    def _check_names(cls, files: dict[str, str]) -> dict[str, str]:
        lowered = [name.lower() for name in files]
        if MANIFEST in lowered:
            raise ValueError(f"{MANIFEST} cannot list itself")
        if len(set(lowered)) < len(lowered):
            raise ValueError("two names differ by case alone, which are one file on some systems")
        return files

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

    def verify(self) -> None:
        """Raise a :class:`PipelineError` if a file is missing, has changed, or would be loaded but is not listed."""
        if not self.manifest.files:
            raise PipelineError(f"{self.folder / MANIFEST}: damaged: it lists no files: {self.remedy}")
        with reading(self.folder, self.remedy):  # another process may remove it meanwhile
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

    @property
    def remedy(self) -> str:
        """Advice to the user about a damaged file."""
        verb = "extract --task" if self.manifest.kind == "adapter" else "fuse --target"
        return (
            f"remove it (python -m pipeline store remove {self.manifest.run}) and train it again"
            f" (python -m pipeline {verb} {self.manifest.task})"
        )


class Store:
    """The artifacts of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        remedy = "delete its folder (python -m pipeline store remove RUN) and train it again"
        self._manifests = ModelFiles(Manifest, remedy)
        self._warnings: set[str] = set()
        self._kinds = [root / f"{kind}s" for kind in get_args(ArtifactKind)]

    def check(self) -> None:
        """Raise a :class:`PipelineError` unless the store is a readable folder."""
        if _subfolders(self.root) is None:
            raise PipelineError(f"{self.root}: no such folder (--store)")

    def artifacts(self) -> list[Artifact]:
        """Every artifact by kind, task and run, to choose from; call :meth:`current` on the chosen ones.

        Folders without a manifest are unfinished and do not count. A note names unreadable folders, once.
        """
        artifacts, problems = self._listed()
        for problem in problems.values():
            if problem not in self._warnings:
                notice(f"warning: left out: {problem}")
        self._warnings.update(problems.values())
        return artifacts

    def current(self, chosen: Artifact) -> Artifact:
        """``chosen`` from :meth:`artifacts`; a :class:`PipelineError` if its manifest is gone, damaged or changed."""
        artifact = self._read(chosen.folder)
        if artifact != chosen:
            raise PipelineError(f"{chosen.folder / MANIFEST}: changed since it was listed: run the command again")
        return artifact

    def find(self, run: str) -> Artifact | None:
        """The artifact of ``run``, read from its manifest; a :class:`PipelineError` if that is damaged."""
        problems: list[str] = []
        for folder in self._places_of(run):
            with noted(problems):
                if (artifact := self._read(folder)) is not None:
                    return artifact
        if problems:
            raise PipelineError(problems[0])
        return None

    def find_unchanged(self, run: str, digest: str | None) -> Artifact | None:
        """The artifact of ``run`` if its contents have this digest, else None; see :meth:`find`."""
        artifact = self.find(run)
        return artifact if artifact is not None and artifact.manifest.digest == digest else None

    def save(self, manifest: Manifest, write: Callable[[Path], None]) -> Artifact:
        """Write an artifact: ``write(folder)`` puts its files there; a manifest with their hashes is added."""
        target = self.root / manifest.place
        clear_leftovers(target.parent)
        with new_folder(target) as folder:
            write(folder)
            files = {file.name: sha256_file(file) for file in sorted(folder.iterdir())}
            manifest = manifest.model_copy(update={"files": files, "finished_at": datetime.now(UTC)})
            self._check_replacement(manifest)
            write_json(folder / MANIFEST, manifest.model_dump(mode="json"))
        return Artifact(folder=target, manifest=manifest)

    def users_of(self, run: str, unless: str | None = None) -> list[str]:
        """The fusions that need the adapter ``run``; with ``unless``, only those trained over other contents."""
        manifests = [artifact.manifest for artifact in self._listed()[0]]
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
        folders, unread = self._folders()
        problems = [*unread.values()]
        for folder in folders:
            with noted(problems):
                if (artifact := self._read(folder)) is None:
                    raise PipelineError(f"{folder}: has no {MANIFEST}, so it was never finished: delete it")
                with noted(problems):
                    artifact.verify()
                with reading(folder):
                    self.adapters_of(artifact.manifest)
        places = Counter(folder.name for folder in folders)
        problems += [
            f"run {run} is in {count} folders: delete all but one" for run, count in places.items() if count > 1
        ]
        raise_all(str(self.root), problems)
        return len(folders)

    def remove(self, run: str, force: bool = False, kept_for: Sequence[str] = ()) -> Path:
        """Delete an artifact, even a damaged one; returns its folder.

        Args:
            kept_for: why users outside the store need it.

        Raises:
            PipelineError: it is needed, or an unreadable fusion may need it; ``force`` makes that a warning.
        """
        self.check()
        folders = [folder for folder in self._places_of(run) if os.path.isdir(folder)]  # noqa: PTH112  (False where it may not be read)
        if not folders:
            raise self.missing(run)
        if len(folders) > 1:
            listed = " and ".join(map(str, folders))
            raise PipelineError(f"run {run} is in {listed}: delete the wrong one by hand")
        reasons = [*kept_for, *filter(None, [self._why_kept(folders[0])])]
        if reasons and not force:
            raise PipelineError(f"{'; '.join(reasons)}: remove what needs it first, or give --force")
        for reason in reasons:
            notice(f"warning: {reason}")
        delete(folders[0])
        return folders[0]

    def _why_kept(self, folder: Path) -> str:
        """Why the artifact in ``folder`` may be needed; empty if it is not."""
        if not folder.is_relative_to(self.root / "adapters"):  # fusions are never part of another artifact
            return ""
        if users := self.users_of(folder.name):
            return f"adapter {folder.name} is part of {_fusions(users)}"
        _, problems = self._listed()
        unread = [problem for place, problem in problems.items() if place.is_relative_to(self.root / "fusions")]
        return f"cannot tell whether a fusion needs adapter {folder.name}: {unread[0]}" if unread else ""

    def _check_replacement(self, manifest: Manifest) -> None:
        """Refuse to replace the contents of an adapter that fusions are built on."""
        if not (self.root / manifest.place).is_dir():
            return
        if users := self.users_of(manifest.run, unless=manifest.digest):
            raise PipelineError(
                f"adapter {manifest.run} in {self.root} differs from the new one, and is part of"
                f" {_fusions(users)}: remove what needs it first (python -m pipeline store remove RUN)"
            )

    def _listed(self) -> tuple[list[Artifact], dict[Path, str]]:
        """Every readable artifact, and for other folders why they cannot be read."""
        folders, problems = self._folders()
        artifacts = []
        for file, manifest in self._manifests.read_all(folder / MANIFEST for folder in folders).items():
            try:
                artifacts.append(_artifact(file.parent, manifest))
            except PipelineError as error:
                problems[file.parent] = str(error)
        return artifacts, problems

    def _folders(self) -> tuple[list[Path], dict[Path, str]]:
        """Every folder that holds or may hold an artifact, in order, and why others cannot be read."""
        problems: dict[Path, str] = {}

        def inside(folder: Path) -> list[Path]:
            try:
                return _subfolders(folder) or []
            except PipelineError as error:
                problems[folder] = str(error)
                return []

        return [run for kind in self._kinds for task in inside(kind) for run in inside(task)], problems

    def _places_of(self, run: str) -> list[Path]:
        """The folders where the artifact of ``run`` may be."""
        if not _RUN.fullmatch(run):
            return []
        return [task / run for kind in self._kinds for task in _subfolders(kind) or []]

    def _read(self, folder: Path) -> Artifact | None:
        """The artifact in ``folder``; None without a manifest."""
        manifest = self._manifests.read(folder / MANIFEST)
        return None if manifest is None else _artifact(folder, manifest)

    def missing(self, run: str) -> PipelineError:
        """The error that there is no artifact of ``run``."""
        return PipelineError(f"no artifact {run} in {self.root}: see python -m pipeline store list")


def by_age(artifacts: Iterable[Artifact]) -> list[Artifact]:
    """Sorted by age, oldest first, so that ``max`` takes the oldest of equally good ones.

    So a new run replaces the one in use only if it is better.
    """
    return sorted(artifacts, key=lambda artifact: (artifact.manifest.finished_at, artifact.manifest.run))


def _artifact(folder: Path, manifest: Manifest | PipelineError) -> Artifact:
    """The artifact of a manifest read from ``folder``; raises if reading failed or it belongs elsewhere."""
    if isinstance(manifest, PipelineError):
        raise manifest
    if folder.parts[-3:] != tuple(manifest.place.split("/")):
        what = f"says that its place is {manifest.place}"
        raise PipelineError(f"{folder / MANIFEST}: {what}: move its folder there or delete it")
    return Artifact(folder=folder, manifest=manifest)


def _fusions(runs: Sequence[str]) -> str:
    return f"fusion{'' if len(runs) == 1 else 's'} {', '.join(runs)}"


def _subfolders(folder: Path) -> list[Path] | None:
    """The subfolders of ``folder`` by name, without hidden ones, which are being written; None if it does not exist."""

    def is_folder(entry: os.DirEntry[str]) -> bool:
        with suppress(OSError):  # a circular link
            return entry.is_dir()
        return False

    with reading(folder):
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if not entry.name.startswith(".") and is_folder(entry)]
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise PipelineError(f"{folder}: there is a file where a folder is needed") from None
    return [folder / name for name in sorted(names)]


def delete(folder: Path) -> None:
    """Delete an artifact at once, even if this process is killed meanwhile; of a link, only the link."""
    with writing(folder):
        if folder.is_symlink():
            folder.unlink()
        else:
            remove_folder(folder)
