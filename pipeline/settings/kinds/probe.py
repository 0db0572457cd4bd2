"""A linear probe in closed form: logistic or ridge regression on the frozen backbone's sentence vectors."""

from pipeline.settings.kind import Kind


class Probe(Kind):
    trains = ("probe",)
    title = "regression on frozen vectors"
    keeps_weights = True
