"""How much space runs, models and caches take, and what can be deleted."""

from dataclasses import dataclass

from pipeline.system.atomic import CLEARED, leftovers, size_of
from pipeline.system.caches import token_cache
from stages.runs import Runs


@dataclass(frozen=True)
class Share:
    """What ``count`` things of one kind take."""

    name: str
    count: int
    bytes: int
    where: str


@dataclass(frozen=True)
class Spare:
    """What can be deleted, and how."""

    what: str
    names: tuple[str, ...]
    bytes: int
    how: str


@dataclass(frozen=True)
class Usage:
    parts: tuple[Share, ...]
    may_go: tuple[Spare, ...]


def usage_of(runs: Runs) -> Usage:
    """The bytes of everything, and of what can be deleted."""
    folders = {run: runs.ledger.folder(run) for run in (*runs.records, *runs.unfinished)}
    sizes = {run: size_of(folder) for run, folder in folders.items()}
    checkpoints = {run: size for run in folders if (size := size_of(runs.ledger.checkpoint_file(run).parent))}
    weights = {run: size for run in folders if (size := size_of(runs.ledger.weights_file(run)))}
    artifacts = runs.store.artifacts()
    busy = {run for run in runs.unfinished if runs.ledger.is_busy(run)}
    stopped = {run: sizes[run] for run in runs.unfinished if run not in busy}
    needless = {run: size for run, size in checkpoints.items() if run in runs.records and not runs.ledger.is_busy(run)}
    unused = {run: sizes[run] for run in runs.records if run not in runs.uses}
    staged = {str(folder): size_of(folder) for root in (runs.reports, runs.store.root) for folder in leftovers(root)}
    cache = token_cache()
    cached = 0 if cache is None else size_of(cache)
    whole = sum(sizes.values()) - sum(checkpoints.values()) - sum(weights.values())
    return Usage(
        parts=(
            Share("store", len(artifacts), size_of(runs.store.root), str(runs.store.root)),
            Share("runs", len(folders), whole, f"{runs.ledger.root}: records, curves, predictions"),
            Share("checkpoints", len(checkpoints), sum(checkpoints.values()), f"{runs.ledger.root}/RUN/checkpoint"),
            Share("kept weights", len(weights), sum(weights.values()), f"{runs.ledger.root}/RUN/weights.safetensors"),
            Share("token cache", len(list(cache.iterdir())) if cache and cached else 0, cached, str(cache or "-")),
        ),
        may_go=tuple(
            Spare(what, tuple(names), sum(names.values()), how)
            for what, names, how in (
                ("runs that nothing needs", unused, "runs list --unused, then runs remove RUN"),
                ("unfinished runs", stopped, "run their commands again to resume, or runs remove RUN"),
                ("checkpoints of finished runs", needless, f"delete {runs.ledger.root}/RUN/checkpoint"),
                ("half-written files of killed commands", staged, CLEARED),
                ("tokenised texts", {str(cache): cached} if cached else {}, "delete the folder; it is a cache"),
            )
            if names
        ),
    )
