"""Sequential fine-tuning: on a source, or several in turn, then on the target (Phang et al. 2019)."""

from pipeline.settings.kind import Kind


class Sequential(Kind):
    trains = ("full",)
    title = "sequential"
    keys = frozenset({"order", "through"})
    base = "full"
    joining = "sequential fine-tuning"
    takes = "weights"
    is_by_source = True
