"""Study: methods x targets x seeds, read from a short TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import PipelineError, raise_all, validation_problems
from pipeline.recipe import Recipe, Trainable
from pipeline.tasks import Name

Method = Literal["frozen", "full", "sequential", "adapter", "fusion"]
TRAINABLE: dict[Method, Trainable] = {
    "frozen": "head",
    "full": "full",
    "sequential": "full",
    "adapter": "adapter",
    "fusion": "fusion",
}


class Study(BaseModel):
    """What is compared. ``recipe`` holds for every method, ``recipes.<method>`` for one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64)
    description: str = ""
    methods: tuple[Method, ...] = Field(min_length=1)
    reference: Method = Field("full", description="what the others are tested against")
    targets: tuple[Name, ...] = Field(min_length=1)
    sources: tuple[Name, ...] = Field((), description="tasks beside the targets whose adapters are fused too")
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = Field(min_length=1)
    limit: int | None = Field(None, ge=1, description="training rows of every task")
    target_limit: int | None = Field(None, ge=1, description="training rows of the target, sources keep `limit`")
    recipe: dict[str, Any] = {}
    recipes: dict[Method, dict[str, Any]] = {}

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str) -> Self:
        """Validate a study with all its recipes; every mistake is reported at once.

        Raises:
            PipelineError: naming ``where`` and all mistakes.
        """
        problems = _repeats(values) + _recipe_problems(values)
        methods = values.get("methods")
        if "reference" not in values and isinstance(methods, list | tuple) and "full" not in methods:
            # Something has to be compared against; of what there is, the first single method.
            values = {**values, "reference": next((method for method in methods if method != "sequential"), "full")}
        study = None
        try:
            study = cls.model_validate(dict(values))
        except ValidationError as error:
            problems = validation_problems(error) + problems
        if study is not None:
            if study.reference not in study.methods or study.reference == "sequential":
                problems.append(f"reference: '{study.reference}' must be one of the methods, and not sequential")
            if "fusion" in study.methods and len({*study.targets, *study.sources}) < 2:
                problems.append("targets: fusion needs at least two tasks; add a target or sources")
            if "sequential" in study.methods and len(study.targets) < 2:
                problems.append("targets: sequential tuning needs at least two; add one or leave the method out")
        raise_all(where, problems)
        assert study is not None
        return study

    def with_recipe(self, **values: Any) -> Self:
        """The same study with ``values`` in every method's recipe, over what the study says.

        Raises:
            PipelineError: the values are no recipe's.
        """
        if not values:
            return self
        recipes = {method: {k: v for k, v in own.items() if k not in values} for method, own in self.recipes.items()}
        changed = self.model_dump() | {"recipe": {**self.recipe, **values}, "recipes": recipes}
        return type(self).parse(changed, f"study {self.name}")

    def recipe_for(self, method: Method) -> Recipe:
        return Recipe.parse(self._recipe_values(method), f"study {self.name}, recipe of {method}")

    def _recipe_values(self, method: Method) -> dict[str, Any]:
        return {**self.recipe, **self.recipes.get(method, {}), "trainable": TRAINABLE[method]}


def read_study(name: str, folder: Path, overrides: Mapping[str, Any]) -> Study:
    """The study called ``name`` in ``folder``, or in the file it names, with ``overrides`` in place of its keys.

    Raises:
        PipelineError: there is no such study, or it has mistakes.
    """
    file = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(study_names(folder))
        raise PipelineError(f"unknown study '{name}': name one of {known}, or a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise PipelineError(f"{file}: not a readable TOML file: {error}") from None
    values.setdefault("name", file.stem)
    return Study.parse({**values, **overrides}, str(file))


def study_names(folder: Path) -> list[str]:
    return [file.stem for file in sorted(folder.glob("*.toml"))]


def _recipe_problems(values: Mapping[str, Any]) -> list[str]:
    """Mistakes in the shared recipe, and those that a method's own keys add to it."""
    shared, recipes = values.get("recipe", {}), values.get("recipes", {})
    shared = shared if isinstance(shared, Mapping) else {}
    known = Recipe.problems(shared)
    problems = [f"recipe: {problem}" for problem in known]
    for method, own in recipes.items() if isinstance(recipes, Mapping) else ():
        if method in TRAINABLE and isinstance(own, Mapping):
            found = Recipe.problems({**shared, **own})
            problems += [f"recipe of {method}: {problem}" for problem in found if problem not in known]
    return problems


def _repeats(values: Mapping[str, Any]) -> list[str]:
    """Lists in which a value stands twice would run, and count, the same runs twice."""
    problems = []
    for key in ("methods", "targets", "seeds"):
        listed = values.get(key)
        if isinstance(listed, list | tuple) and len({str(item) for item in listed}) < len(listed):
            problems.append(f"{key}: a value stands twice (got {list(listed)!r})")
    return problems
