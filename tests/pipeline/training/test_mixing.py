"""Mixing: every step holds what its rule says, wherever training was taken up again."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import numpy as np
import pytest
import torch

from pipeline.data.batches import Piece
from pipeline.data.tasks import find_task
from pipeline.settings.parts import Mixing
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.training.fit import TrainingData
from pipeline.training.mixing import Joint, TaskBatches, by_temperature, mixed, probabilities, sampled

COUNTS = {"large": 7, "small": 3, "middle": 4}
EPOCHS = 6
RULES = get_args(Mixing)
ONE_A_STEP = [rule for rule in RULES if rule != "simultaneous"]
ROWS = {"sst": 8544, "quora": 141498, "sts": 6040}
STEPS = 40_000

Step = list[tuple[str, list[int]]]


def numbered(count: int) -> TaskBatches:
    """Batches that say which they are: pass and number, in two pieces."""

    def batches(epoch: int, first: int) -> Iterator[list[Piece]]:
        for number in range(first, count):
            yield [Piece({"rows": torch.tensor([epoch, number, piece])}) for piece in range(2)]

    return TaskBatches(batches, count)


def joint(
    mixing: Any = "simultaneous", counts: Mapping[str, int] = COUNTS, seed: int = 1, **recipe: Any
) -> TrainingData:
    """Tasks of ``counts`` batches of ten rows each."""
    settings = Recipe(trainable="full", mixing=mixing, **{"epochs": EPOCHS, **recipe})
    parts = {name: numbered(count) for name, count in counts.items()}
    return mixed(parts, {name: 10 * count for name, count in counts.items()}, settings, seed)


def steps(data: TrainingData, epoch: int, first: int = 0) -> list[Step]:
    return [[(piece.task, piece.batch["rows"].tolist()) for piece in step] for step in data.batches(epoch, first)]


def drawn(data: TrainingData) -> list[tuple[str, tuple[int, int]]]:
    """Each batch of the whole training: its task, its pass and its number there."""
    every = [step for epoch in range(1, data.epochs + 1) for step in steps(data, epoch)]
    return [(task, (rows[0], rows[1])) for step in every for task, rows in step[::2]]


def test_simultaneous_steps_have_a_batch_of_every_task_and_the_smallest_makes_the_epoch() -> None:
    data = joint()
    assert (data.batches_per_epoch, data.epochs) == (3, EPOCHS)
    for epoch in range(1, EPOCHS + 1):
        found = steps(data, epoch)
        assert len(found) == 3
        for step in found:
            assert [task for task, _ in step] == ["large", "large", "small", "small", "middle", "middle"]
            assert [rows[2] for _, rows in step] == [0, 1] * 3


@pytest.mark.parametrize("rule", ONE_A_STEP)
def test_the_other_rules_have_one_batch_a_step(rule: str) -> None:
    for epoch in range(1, EPOCHS + 1):
        for step in steps(joint(rule), epoch):
            assert len({task for task, _ in step}) == 1
            assert [rows[2] for _, rows in step] == [0, 1]


@pytest.mark.parametrize("steps_per_epoch", [None, 2, 5, 30])
@pytest.mark.parametrize("rule", RULES)
def test_every_batch_of_a_pass_comes_once_before_the_next_pass_begins(rule: str, steps_per_epoch: int | None) -> None:
    data = joint(rule, steps_per_epoch=steps_per_epoch)
    found = drawn(data)
    for task, count in COUNTS.items():
        own = [batch for name, batch in found if name == task]
        assert own == [(1 + number // count, number % count) for number in range(len(own))]
    assert {task for task, _ in found} == set(COUNTS) or steps_per_epoch == 2


@pytest.mark.covering(1)
@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("epoch", range(1, EPOCHS + 1))
@pytest.mark.parametrize("rule", RULES)
def test_an_epoch_taken_up_in_the_middle_goes_on_as_it_would_have(rule: str, epoch: int, first: int) -> None:
    assert steps(joint(rule), epoch, first) == steps(joint(rule), epoch)[first:]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("simultaneous", 3), ("round-robin", 9), *((rule, 14) for rule in ONE_A_STEP if rule != "round-robin")],
)
def test_the_rule_says_how_long_an_epoch_is_unless_the_recipe_does(rule: str, expected: int) -> None:
    assert joint(rule).batches_per_epoch == expected
    data = joint(rule, steps_per_epoch=5)
    assert (data.batches_per_epoch, data.epochs) == (5, EPOCHS)
    assert joint(rule, steps_per_epoch=5, min_steps=31).epochs == 7


def test_shuffled_passes_every_task_once_an_epoch_in_an_order_of_its_own() -> None:
    data = joint("shuffled")
    orders = []
    for epoch in range(1, EPOCHS + 1):
        tasks = [step[0][0] for step in steps(data, epoch)]
        assert Counter(tasks) == COUNTS
        assert {step[0][1][0] for step in steps(data, epoch)} == {epoch}
        orders.append(tuple(tasks))
    assert len(set(orders)) == EPOCHS
    assert any(order != tuple(sorted(order)) for order in orders)


@pytest.mark.parametrize("rule", ["proportional", "square-root", "annealed", "shuffled"])
def test_the_seed_decides_what_is_drawn(rule: str) -> None:
    assert drawn(joint(rule)) == drawn(joint(rule))
    assert drawn(joint(rule, seed=2)) != drawn(joint(rule))


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [(1, (0.0547, 0.9066, 0.0387)), (0.5, (0.1692, 0.6885, 0.1423)), (0.2, (0.2713, 0.4756, 0.2531))],
)
def test_probabilities_are_the_sizes_to_the_power_of_alpha(alpha: float, expected: tuple[float, ...]) -> None:
    assert list(probabilities(ROWS, alpha).values()) == pytest.approx(expected, abs=5e-5)


def training(temperature: float) -> Joint:
    return Joint(dict.fromkeys(ROWS, 100), ROWS, STEPS // 4, epochs=4, seed=3, temperature=temperature)


@pytest.mark.parametrize("limit", [2**21, 10_000, 1])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 8.0])
def test_tasks_are_drawn_as_often_as_the_temperature_says(temperature: float, limit: int) -> None:
    drawn = Counter(task for (task,) in by_temperature(training(temperature), limit))
    sizes = {task: min(count, limit) ** (1 / temperature) for task, count in ROWS.items()}
    for task, size in sizes.items():
        chance = size / sum(sizes.values())
        # Four standard deviations of a binomial count.
        assert drawn[task] == pytest.approx(chance * STEPS, abs=4 * np.sqrt(STEPS * chance * (1 - chance)))


@pytest.mark.parametrize(("temperature", "alpha"), [(1.0, 1.0), (2.0, 0.5), (5.0, 0.2)])
def test_a_temperature_is_the_inverse_of_the_power_of_the_sizes(temperature: float, alpha: float) -> None:
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


def test_each_sampling_rule_has_its_alpha() -> None:
    counts = {"large": 100, "small": 1}

    def share(rule: str, epoch: int) -> float:
        data = joint(rule, counts, steps_per_epoch=1500)
        return float(np.mean([step[0][0] == "small" for step in steps(data, epoch)]))

    assert share("proportional", 6) == pytest.approx(1 / 101, abs=0.01)
    assert share("square-root", 6) == pytest.approx(1 / 11, abs=0.03)
    assert share("annealed", 1) == pytest.approx(1 / 101, abs=0.01)
    assert share("annealed", 6) == pytest.approx(1 / (1 + 100**0.2), abs=0.045)


@pytest.mark.parametrize(("mixing", "steps"), [("simultaneous", 1068), ("round-robin", 3 * 1068)])
def test_the_steps_of_an_epoch_can_be_a_named_tasks(mixing: Any, steps: int) -> None:
    """Wang 2024: an epoch is a pass over SST, 1,068 steps of 8 rows; ten of them read 30.2 % of Quora's rows."""
    rows = {"quora": 283_010, "sst": 8_544, "sts": 6_040}
    recipe = Recipe(trainable="full", batch_size=8, epochs=10, mixing=mixing, epoch_of="sst")
    batches = {task: recipe.steps_over(count) for task, count in rows.items()}
    assert recipe.joint_steps(batches) == steps
    assert recipe.changed({"epoch_of": None}).joint_steps(batches) == steps * 755 / 1068
    read = recipe.epochs * recipe.joint_steps(batches) * recipe.batch_size / (3 if mixing == "round-robin" else 1)
    assert read / rows["quora"] == pytest.approx(0.302, abs=5e-4)


@pytest.mark.parametrize("mixing", ["shuffled", "annealed", "proportional"])
def test_where_an_epoch_is_a_pass_over_all_tasks_no_task_counts_it(mixing: Any) -> None:
    with pytest.raises(ValueError, match="the rows of all tasks"):
        Recipe(mixing=mixing, epoch_of="sst")


def test_an_epoch_may_have_a_most_of_steps() -> None:
    """Liu & Shen 2023: 25 epochs of 2,400 steps are six passes over their rows; of few rows an epoch is a pass."""
    recipe = Recipe(trainable="full", batch_size=16, epochs=25, mixing="annealed", max_steps_per_epoch=2400)
    batches = {task: recipe.steps_over(count) for task, count in ROWS.items()}
    assert recipe.joint_steps(batches) == 2400
    assert recipe.epochs_of(2400) * 2400 / sum(batches.values()) == pytest.approx(6.15, abs=0.01)
    assert recipe.joint_steps({"sst": 19, "sts": 19}) == 38
