"""A head on the frozen backbone: the linear probe."""

from pipeline.settings.kind import Kind


class Frozen(Kind):
    trains = ("head",)
    title = "head only"
    keeps_weights = True
