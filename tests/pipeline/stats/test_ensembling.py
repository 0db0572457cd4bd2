"""Ensembles: what models say together, who is chosen, and the traps of mode and median."""

import numpy as np
import pandas as pd
import pytest
import torch

from pipeline.data.labels import Prediction
from pipeline.data.tasks import find_task
from pipeline.stats.ensembling import choose, combine, first_half
from pipeline.stats.metrics import accuracy
from stages.ensemble import SavedPredictions

ROWS = 60


def classes(*probabilities: list[float]) -> Prediction:
    table = np.array(probabilities, dtype=np.float32)
    return Prediction(table.argmax(axis=-1), table)


def one_row(*votes: int, probabilities: list[list[float]] | None = None) -> list[Prediction]:
    """A vote of each model for the only row; probabilities say the same unless given."""
    tables = probabilities or [np.eye(5)[vote].tolist() for vote in votes]
    return [
        Prediction(np.array([vote]), np.array([row], dtype=np.float32)) for vote, row in zip(votes, tables, strict=True)
    ]


def equal(count: int) -> list[float]:
    return [1 / count] * count


def test_a_tied_vote_goes_to_the_larger_sum_of_probabilities_and_not_to_the_smaller_label() -> None:
    votes = [1, 1, 3, 3, 2]
    assert torch.mode(torch.tensor(votes)).values.item() == 1  # the trap: a bias towards the negative classes
    sure = [[0.1, 0.3, 0.2, 0.2, 0.2]] * 2 + [[0.0, 0.0, 0.1, 0.9, 0.0]] * 2 + [[0.0, 0.2, 0.5, 0.3, 0.0]]
    assert combine(one_row(*votes, probabilities=sure), equal(5), "mode").values.tolist() == [3]
    other = [[0.0, 0.9, 0.1, 0.0, 0.0]] * 2 + [[0.3, 0.1, 0.2, 0.4, 0.0]] * 2 + [[0.0, 0.2, 0.5, 0.3, 0.0]]
    assert combine(one_row(*votes, probabilities=other), equal(5), "mode").values.tolist() == [1]


def test_the_median_of_an_even_number_is_the_middle_of_the_middle_two() -> None:
    scores = [1.0, 2.0, 4.0, 5.0]
    assert torch.median(torch.tensor(scores)).item() == 2.0  # the trap: the lower one
    found = combine([Prediction(np.array([score]), None) for score in scores], equal(4), "median")
    assert found.values.tolist() == [3.0]
    assert combine([Prediction(np.array([s]), None) for s in (9.0, 1.0, 2.0)], equal(3), "median").values == [2.0]


def simulated(skills: list[float], seed: int = 0) -> tuple[list[Prediction], np.ndarray]:
    """Models that are right with some probability, independently of each other."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, ROWS)
    found = []
    for skill in skills:
        said = np.where(rng.random(ROWS) < skill, labels, (labels + rng.integers(1, 3, ROWS)) % 3)
        noise = rng.random((ROWS, 3)) + 1.5 * np.eye(3)[said]
        found.append(classes(*(noise / noise.sum(axis=1, keepdims=True)).tolist()))
    return found, labels


def test_the_forward_pass_starts_at_the_best_and_never_lets_the_score_fall() -> None:
    predictions, labels = simulated([0.55, 0.8, 0.4, 0.7, 0.34, 0.6])
    weights = choose(predictions, labels, "accuracy", "mean")
    alone = [accuracy(prediction.values, labels) for prediction in predictions]
    order = list(weights)
    assert order[0] == int(np.argmax(alone))
    assert [alone[index] for index in order] == sorted((alone[index] for index in order), reverse=True)
    assert len(set(weights.values())) == 1
    assert sum(weights.values()) == pytest.approx(1)
    reached = [
        accuracy(combine([predictions[i] for i in order[:n]], equal(n), "mean").values, labels)
        for n in range(1, len(order) + 1)
    ]
    assert reached == sorted(reached)
    # Each one that was left out would have lowered the score of those chosen before it.
    for left in sorted(set(range(6)) - set(order), key=lambda index: -alone[index]):
        before = [
            index for index in order if alone[index] > alone[left] or (alone[index] == alone[left] and index < left)
        ]
        members = [*before, left]
        value = accuracy(combine([predictions[i] for i in members], equal(len(members)), "mean").values, labels)
        assert value < accuracy(combine([predictions[i] for i in before], equal(len(before)), "mean").values, labels)


@pytest.mark.parametrize("seed", range(5))
def test_weights_add_up_to_one_and_never_do_worse_than_the_best_where_they_are_chosen(seed: int) -> None:
    predictions, labels = simulated([0.5, 0.6, 0.7, 0.65], seed)
    weights = choose(predictions, labels, "accuracy", "weighted")
    assert sum(weights.values()) == pytest.approx(1)
    assert min(weights.values()) > 0
    together = combine([predictions[index] for index in weights], list(weights.values()), "weighted")
    best = max(accuracy(prediction.values, labels) for prediction in predictions)
    assert accuracy(together.values, labels) >= best


def test_weights_find_how_two_noisy_scores_are_best_mixed() -> None:
    """Errors of variance 1 and 4 that know nothing of each other are mixed 4 : 1."""
    rng = np.random.default_rng(0)
    labels = rng.normal(size=20_000)
    predictions = [Prediction(labels + noise * rng.normal(size=len(labels)), None) for noise in (1.0, 2.0)]
    weights = choose(predictions, labels, "pearson", "weighted")
    assert weights[0] == pytest.approx(0.8, abs=0.03)


def test_mode_and_median_take_the_best_ones() -> None:
    predictions, labels = simulated([0.4, 0.9, 0.5, 0.8, 0.7, 0.6, 0.3])
    weights = choose(predictions, labels, "accuracy", "mode", best=3)
    assert set(weights) == {1, 3, 4}
    assert list(weights.values()) == pytest.approx(equal(3))
    assert len(choose(predictions, labels, "accuracy", "mode")) == 5


def test_rows_that_do_not_choose_have_no_say_and_are_predicted_all_the_same() -> None:
    predictions, labels = simulated([0.4, 0.9, 0.6])
    choosing, task = first_half(labels, seed=0), find_task("trec")

    def joined(labels: np.ndarray) -> tuple[dict[str, float], Prediction]:
        rows = pd.DataFrame({"id": range(ROWS), "label": labels})
        return SavedPredictions(rows, choosing, dict(zip("abc", predictions, strict=True))).join(
            task, choosing, "mean", 5
        )

    weights, prediction = joined(labels)
    assert weights == joined(np.where(choosing, labels, (labels + 1) % 3))[0]
    together = combine([predictions["abc".index(run)] for run in weights], [*weights.values()], "mean")
    np.testing.assert_array_equal(prediction.values, together.values)
    assert len(prediction.values) == ROWS


def sure_of(rows: int, *sure: int) -> Prediction:
    """Right on ``sure`` rows of class 0, wrong on the others by a little, so that one sure model outweighs two."""
    return classes(*([1.0, 0.0] if row in sure else [0.4, 0.6] for row in range(rows)))


def test_the_forward_pass_asks_what_a_model_adds_and_not_how_good_it_is_alone() -> None:
    predictions = [sure_of(7, 0, 1, 2), sure_of(7, 3, 4), sure_of(7, 5, 6)]
    labels = np.zeros(7, dtype=int)
    assert [accuracy(each.values, labels) for each in predictions] == pytest.approx([3 / 7, 2 / 7, 2 / 7])
    assert choose(predictions, labels, "accuracy", "mean") == dict.fromkeys(range(3), pytest.approx(1 / 3))


def test_weights_are_those_of_the_fewest_members_that_reach_the_score() -> None:
    """Later rounds are as good, in other proportions."""
    labels = np.zeros(4, dtype=int)
    assert choose([sure_of(4, 0, 1), sure_of(4, 2, 3)], labels, "accuracy", "weighted") == {0: 0.5, 1: 0.5}
    # In equal parts the second model is wrong about the first row, with a third of the weight about none.
    predictions = [classes([0.8, 0.2], [0.35, 0.65], [1, 0]), classes([0.1, 0.9], [0.9, 0.1], [1, 0])]
    found = choose(predictions, np.zeros(3, dtype=int), "accuracy", "weighted")
    assert found == {0: pytest.approx(2 / 3), 1: pytest.approx(1 / 3)}


@pytest.mark.parametrize("rows", [7, 40])
def test_the_halves_are_alike_and_hold_every_row(rows: int) -> None:
    labels = np.random.default_rng(1).integers(0, 2, rows)
    chosen = first_half(labels, 0)
    assert chosen.sum() == (rows + 1) // 2
    assert abs(labels[chosen].sum() - labels[~chosen].sum()) <= 1
    np.testing.assert_array_equal(first_half(labels, 0), chosen)
    assert (first_half(labels, 1) != chosen).any()
    scores = np.random.default_rng(2).normal(size=200)
    half = first_half(scores, 0)
    assert abs(scores[half].mean() - scores[~half].mean()) < 0.05
