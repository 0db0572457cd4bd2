"""Temperature mixing draws each task as often as the formula says."""

from collections import Counter

import numpy as np
import pytest

from pipeline.data.tasks import find_task
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.training.mixing import Joint, by_temperature, sampled

ROWS = {"sst": 8_544, "quora": 141_498, "sts": 6_040}
STEPS = 40_000


def training(temperature: float) -> Joint:
    return Joint(dict.fromkeys(ROWS, 100), ROWS, STEPS // 4, epochs=4, seed=3, temperature=temperature)


@pytest.mark.parametrize("limit", [2**21, 10_000, 1])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 8.0])
def test_tasks_are_drawn_as_often_as_expected(temperature: float, limit: int) -> None:
    drawn = Counter(task for (task,) in by_temperature(training(temperature), limit))
    sizes = {task: min(count, limit) ** (1 / temperature) for task, count in ROWS.items()}
    for task, size in sizes.items():
        chance = size / sum(sizes.values())
        # Four standard deviations of a binomial count.
        assert drawn[task] == pytest.approx(chance * STEPS, abs=4 * np.sqrt(STEPS * chance * (1 - chance)))


def test_temperature_1_is_proportional_and_2_is_square_root_mixing() -> None:
    for temperature, alpha in ((1.0, 1.0), (2.0, 0.5)):
        joint = training(temperature)
        assert list(by_temperature(joint)) == list(sampled(joint, [alpha] * 4))


def test_the_temperature_tells_recipes_apart_only_where_it_is_used() -> None:
    def identity(joint: bool = True, **settings: object) -> dict[str, object]:
        recipe = Recipe(trainable="full", **settings)
        return resolve(recipe, find_task("sst"), "fp32", joint=joint).identity

    assert identity(mixing="temperature", temperature=2.0)["temperature"] == 2
    assert "temperature" not in identity(mixing="temperature")
    assert identity(mixing="annealed", temperature=2.0) == identity(mixing="annealed")
    assert identity(False, mixing="temperature", temperature=2.0) == identity(False)
