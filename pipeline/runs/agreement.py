"""How well a ranking of sources agrees with the truth, where finished runs tell it: what each source alone came to."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress

from scipy.stats import spearmanr

from pipeline.records.ledger import Ledger
from pipeline.system.atomic import canonical_json
from pipeline.system.errors import PipelineError

LEAST_SOURCES = 4
"""Fewest sources whose order is worth a correlation."""
_NEWEST = 1000
"""Runs that are looked at: reading more would take longer than it tells."""


def trained_alone(ledger: Ledger, task: str) -> list[dict[str, float]]:
    """Scores of finished runs on ``task`` that were given one source each, by source.

    Each group has runs that differ in nothing but the source: fusions over one adapter, or sequential fine-tuning.
    """
    groups = defaultdict[str, dict[str, float]](dict)
    for name in ledger.newest(_NEWEST):
        with suppress(PipelineError):  # a damaged record is reported by the command that needs it
            record = ledger.find(name)
            if record is None or record.kind not in ("fusion", "sequential") or record.trained_on != (task,):
                continue
            # Those that it was given: of many, it may have kept one.
            others = [source["task"] for source in record.chosen_from if source["task"] != task]
            if len(others) == 1:
                rest = {key: value for key, value in record.identity.items() if key != "sources"}
                groups[canonical_json(rest)].setdefault(others[0], record.scores[task].value)
    return list(groups.values())


def agreement(fits: Mapping[str, float], groups: list[dict[str, float]]) -> str | None:
    """In words, how ``fits`` rank sources as the scores of each group do; None where no group has enough of them.

    Where several do, the mean of their rank correlations.
    """
    correlations, sources = [], set[str]()
    for scores in groups:
        shared = [source for source in fits if source in scores]
        guessed, true = [fits[source] for source in shared], [scores[source] for source in shared]
        if len(shared) >= LEAST_SOURCES and len(set(guessed)) > 1 and len(set(true)) > 1:
            correlations.append(float(spearmanr(guessed, true).statistic))
            sources.update(shared)
    if not correlations:
        return None
    mean = sum(correlations) / len(correlations)
    return f"{len(sources)} of these sources have a run of their own: the rankings agree by {mean:.2f} (Spearman)"
