"""The record of a finished run: what it was trained on and how, its scores, cost and provenance."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from pipeline.data.task_data import Added
from pipeline.data.tasks import Metric, Name
from pipeline.records.store import Manifest, SourceRun, Temperature
from pipeline.settings.kinds import Method
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import canonical_json, sha256_text
from pipeline.system.errors import PipelineError

SCHEMA = 6
"""Part of every run's name. Raised when equal settings come to train or to be identified differently, so that unlike
runs are not mixed. A record stores its number; a run with another number is trained again.
"""

Reading = Literal["same", "probability", "middle", "cosine"]
"""How a model predicts another task: as it is; a probability as a score; a score as a class, by the middle of its
range; or with the other task's head, a cosine without weights."""


# Bounded, so that products and sums of them are finite.
Count = Annotated[int, Field(ge=0, le=10**15)]
Amount = Annotated[float, Field(ge=0, le=1e15)]


class Cost(BaseModel, frozen=True):
    trainable_parameters: Count
    seconds: Amount = Field(description="choice of sources, training and evaluation, without start-up")
    examples_per_second: Amount = Field(description="training steps alone")
    peak_memory_mb: Amount


class Parameters(BaseModel, frozen=True):
    """The parts of a run's model, to be added up to its storage."""

    backbone: Count = Field(description="of the pretrained encoder, without adapters")
    head: Count = Field(description="of the heads")
    model: Count = Field(description="of the whole model, frozen ones too")


class TaskScore(BaseModel, frozen=True, populate_by_name=True):
    """The score of a run's model on one task."""

    metric: Metric
    dev: float = Field(description="the metric on dev, the validation rows, at the kept epoch")
    rows: Count = Field(description="dev rows")
    dev_interval: tuple[float, float] | None = Field(None, description="95 % interval of dev over other rows")
    temperature: Temperature = Field(1.0, description="of the model's probabilities, fitted on dev; 1: none")
    test: float | None = Field(None, description="the metric on the test rows, where dev only chooses")
    test_rows: Count = Field(0, description="test rows, where dev only chooses")
    start: float | None = Field(None, description="the metric on these before the first step, where that is scored")
    recipe: Recipe | None = Field(None, description="how the run trained on the task; None: it did not")
    pair: bool | None = Field(None, description="whether it is of pairs, where it did")
    train_rows: Count = Field(0, description="training rows, where it did")
    limit: int | None = Field(None, description="what these were limited to, without those added from other tasks")
    dev_in_train: Count = Field(0, description="dev rows that are also in train")
    test_in_train: Count = Field(0, description="test rows that are also in train, where dev only chooses")
    added: dict[Name, Added] = Field({}, description="training rows of other tasks, and what was left out of them")
    dropped: dict[Name, Count] | None = Field(
        None,
        description="training rows left out because their text is in validation or test rows, by the task of these;"
        " unset: not counted",
    )
    reading: Reading | None = Field(None, description="how a model that did not train on the task is read on it")
    scored_fingerprint: str | None = Field(
        None, alias="dev_rows", description="fingerprint of the rows that are scored, where others may come to be"
    )
    read_as: str | None = Field(
        None,
        description="hash of what such a score depends on beside the model and the rows: the meaning of the task, and"
        " the cosine that it is read by",
    )
    before: float | None = Field(None, description="the score when it was learned: forgetting is before - value")

    @property
    def value(self) -> float:
        """The score that tables show: on test rows if there are any, else on dev."""
        return self.dev if self.test is None else self.test

    @property
    def scored_rows(self) -> int:
        """Number of rows behind :attr:`value`."""
        return self.rows if self.test is None else self.test_rows


class RunRecord(BaseModel, frozen=True):
    """The content of ``run.json``."""

    schema_version: int = SCHEMA
    run: str
    kind: Method
    seed: int
    identity: dict[str, Any] = Field(description="everything that determines the run; its hash is the run's name")
    sources: tuple[SourceRun, ...] = ()
    anchor: str | None = Field(None, description="the task whose adapter the run started as, if it may start as one")
    started_from: SourceRun | None = Field(
        None, description="the adapter of that task; it need not be one of the sources"
    )
    anchor_candidates: dict[Name, float] = Field(
        {}, description="dev scores of the adapters that a fusion's anchor was chosen from, where there were several"
    )
    anchor_scores: dict[Name, float] = Field({}, description="of the same on the test rows, where dev only chooses")
    gates: dict[Name, float] = Field({}, description="where the gates of a fusion started, if probes chose them")
    backbone: str
    best_epoch: int
    scores: dict[Name, TaskScore] = Field(
        description="of the tasks that the run trained on, those before it in sequential fine-tuning, or any asked for"
    )
    unchanged: dict[str, str] = Field(
        {}, description="sha256, measured after training, of what stayed bit for bit as it was: backbone, adapters"
    )
    cost: Cost
    parameters: Parameters
    artifact: str | None = Field(None, description="folder of the trained artifact, as given on the command line")
    artifact_digest: str | None = None
    manifest: Manifest | None = Field(
        None, description="of the artifact: what is built on it can be identified without it"
    )
    weights_sha256: str | None = Field(None, description="of weights.safetensors beside run.json, where kept")
    provenance: dict[str, Any] = Field(description="commit, dirty flag, versions, hardware")
    finished_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        described = dict(self.identity.get("tasks", {}))
        if not self.trained_on or not all("meaning" in described.get(task, ()) for task in self.trained_on):
            raise ValueError("scores: no task that it trained on, or identity: without it")
        return self

    def score(self, task: str) -> TaskScore:
        """The score of the run's model on ``task``; a :class:`PipelineError` if it was not scored on it."""
        if task not in self.scores:
            raise PipelineError(f"run {self.run} was not scored on task '{task}', only on {', '.join(self.scores)}")
        return self.scores[task]

    @property
    def trained_on(self) -> tuple[str, ...]:
        """The tasks that the run trained on, by name."""
        return tuple(sorted(task for task, score in self.scores.items() if score.recipe is not None))

    @property
    def task(self) -> str:
        """The tasks that the run trained on in one word: ``sst``, or ``quora+sst`` for joint training."""
        return "+".join(self.trained_on)

    @property
    def metric(self) -> str:
        """The metric of :attr:`dev`: that of the only task, or ``mean``."""
        return self.own.metric if len(self.trained_on) == 1 else "mean"

    @property
    def dev(self) -> float:
        """The dev score by which the kept epoch was selected: on the only task, or the mean over several."""
        return sum(self.scores[task].dev for task in self.trained_on) / len(self.trained_on)

    @property
    def model_sha256(self) -> str | None:
        """A hash of the model that the run kept, if any."""
        return self.artifact_digest or self.weights_sha256

    @property
    def value(self) -> float:
        """As :attr:`dev`, but on the scored rows: test if there are any, else dev."""
        return sum(self.scores[task].value for task in self.trained_on) / len(self.trained_on)

    @property
    def test(self) -> float | None:
        """As :attr:`dev`, but on the test rows; None if dev itself is scored."""
        return None if all(self.scores[task].test is None for task in self.trained_on) else self.value

    @property
    def hardware(self) -> str:
        """The hardware it ran on: ``1 x NVIDIA H100``, or ``CPU, 2 threads (Intel Xeon)`` if the CPU is known."""
        device, processor = (self.provenance.get(key) for key in ("hardware", "processor"))
        known = str(device or "unknown hardware")
        return f"{known} ({processor})" if processor and known.startswith("CPU") else known

    @property
    def epochs(self) -> int:
        """Epochs that it ran; 0 if it took no steps."""
        recipe = self.recipe
        steps = {task: self.recipe_of(task).steps_over(self.scores[task].train_rows) for task in self.trained_on}
        planned = recipe.planned_epochs(steps)
        stop = self.best_epoch + (recipe.early_stopping_patience or planned)
        return next((epoch for epoch in range(stop, planned) if recipe.scored(epoch, planned)), planned)

    @property
    def own(self) -> TaskScore:
        """Its score on the only task that it trained on, or on the first by name."""
        return self.scores[self.trained_on[0]]

    @property
    def is_continued_adapter(self) -> bool:
        """Whether it is an adapter that always continues its source; for others, a warm start is only an option."""
        return self.kind == "adapter" and "start" in self.identity

    @property
    def start_candidates(self) -> tuple[SourceRun, ...]:
        """The candidates for a warm start if probes on training rows showed that one helps; see :attr:`anchor`."""
        return self.sources if self.kind == "adapter" and not self.is_continued_adapter else ()

    @property
    def continued(self) -> tuple[SourceRun, ...]:
        """The runs whose models it continues or reads, once each, without :attr:`start_candidates`."""
        taken = () if self.start_candidates else self.sources
        start = () if self.started_from is None else (self.started_from,)
        return tuple({each.run: each for each in (*start, *taken)}.values())

    @property
    def recipe(self) -> Recipe:
        """The settings that the recipes of its tasks share: encoder and training."""
        return self.recipe_of(self.trained_on[0])

    def recipe_of(self, task: str) -> Recipe:
        """How a task of :attr:`trained_on` was trained."""
        recipe = self.score(task).recipe
        assert recipe is not None
        return recipe

    @property
    def backbone_weights(self) -> str | None:
        """The hash of the pretrained encoder's weights; None for an ensemble, whose members may differ."""
        return None if self.kind == "ensemble" else self.identity["backbone"]["weights"]

    @property
    def chosen_from(self) -> list[dict[str, str]]:
        """``task`` and ``digest`` of each source on offer; :attr:`sources` are those that it used."""
        return self.identity.get("sources", [])

    def described(self, task: str) -> dict[str, Any]:
        """What identified a task of :attr:`trained_on` when the run was made: ``meaning`` (classes, range, metric),
        ``recipe`` and ``data``, the fingerprints of its rows."""
        return self.identity["tasks"][task]

    def fingerprints(self, task: str) -> dict[str, str]:
        """Fingerprints of the rows of a task of :attr:`trained_on`, by split; empty for an ensemble."""
        return self.described(task).get("data", {})

    def summary(self) -> dict[str, Any]:
        """The object that the training verbs print with ``--json``."""
        named = {key: getattr(self, key) for key in ("run", "kind", "task", "metric", "dev")}
        return {**named, **self.cost.model_dump(), "artifact": self.artifact}


def run_name(identity: dict[str, Any]) -> str:
    """The name of the run that ``identity`` determines: 12 hex digits of its sha256."""
    return sha256_text(canonical_json({"schema": SCHEMA, **identity}))[:12]
