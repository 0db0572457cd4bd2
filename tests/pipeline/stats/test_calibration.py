"""Calibration: the temperature, the expected calibration error, and how many rows are surer than a threshold."""

import math

import numpy as np
import pytest
from scipy.special import softmax

from pipeline.data.labels import Prediction
from pipeline.stats.metrics import Surer, calibration_error, fit_temperature, surer

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_that_made_the_labels_is_found_and_undoes_what_it_did(temperature: float) -> None:
    logits = RNG.normal(size=(8_000, 4)) * 3
    likely = softmax(logits / temperature, axis=1)
    labels = (likely.cumsum(axis=1) < RNG.random((len(logits), 1))).sum(axis=1)
    raw = Prediction(logits.argmax(axis=1), softmax(logits, axis=1).astype(np.float32))
    found = fit_temperature(raw, labels)
    assert found == pytest.approx(temperature, rel=0.05)
    calibrated = raw.calibrated(found)
    assert (calibrated.values == calibrated.probabilities.argmax(axis=1)).all()
    assert calibrated.probabilities == pytest.approx(softmax(logits / found, axis=1), abs=1e-5)
    assert calibration_error(calibrated, labels) < 0.02
    if temperature != 1:
        assert calibration_error(raw, labels) > 0.05


@pytest.mark.parametrize(("right", "rows"), [(30, 40), (40, 40), (20, 20), (0, 20)])
def test_with_one_confidence_for_all_rows_the_temperature_is_known(right: int, rows: int) -> None:
    """The cross entropy is least where the confidence is the share of right rows, of which one row is spread."""
    logit, labels = 2.0, (np.arange(rows) >= right).astype(int)
    prediction = Prediction(np.zeros(rows, int), np.tile(softmax([logit, 0]), (rows, 1)))
    share = (right * (rows + 1) + (rows - right)) / (rows * (rows + 2))
    expected = logit / math.log(share / (1 - share)) if share > 0.5 else 20  # no temperature swaps the classes
    assert fit_temperature(prediction, labels) == pytest.approx(expected, rel=1e-3)


def test_few_rows_fit_no_temperature_and_certain_answers_no_endless_one() -> None:
    certain = Prediction(np.arange(60) % 3, np.eye(3, dtype=np.float32)[np.arange(60) % 3])
    assert fit_temperature(certain.on(np.arange(60) < 19), np.arange(19) % 3) == 1
    for labels in (np.arange(60) % 3, (np.arange(60) + 1) % 3):
        found = fit_temperature(certain, labels)
        assert 0.05 <= found <= 20 and fit_temperature(certain, labels) == found
        assert np.isfinite(certain.calibrated(found).probabilities).all()
    scores = Prediction(np.ones(60), None)
    assert (scores.calibrated(2).values == 1).all() and fit_temperature(scores, np.ones(60)) == 1


def test_the_calibration_error_and_the_surest_rows_are_those_counted_by_hand() -> None:
    sure = np.array([0.95, 0.95, 0.91, 0.6, 0.55, 0.51])
    prediction = Prediction(np.array([0, 0, 0, 1, 1, 1]), np.stack([sure, 1 - sure], axis=1))
    prediction.probabilities[3:] = prediction.probabilities[3:, ::-1]
    labels = np.array([0, 0, 1, 1, 0, 0])
    # bins: (.9, 1] has 2 of 3 right at a mean of .9367; (.5, .6] 1 of 3 at .5533
    assert calibration_error(prediction, labels) == pytest.approx((3 * (2.81 / 3 - 2 / 3) + 3 * (1.66 / 3 - 1 / 3)) / 6)
    assert surer(prediction, labels) == (
        Surer(0.5, 1.0, 0.5),
        Surer(0.8, 0.5, pytest.approx(2 / 3)),
        Surer(0.9, 0.5, pytest.approx(2 / 3)),
        Surer(0.95, 0.0, None),
        Surer(0.99, 0.0, None),
    )
