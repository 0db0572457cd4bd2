"""Read a split of a Hub data set. Loading scripts are never run."""

import pandas as pd

from pipeline.data.tasks import Hub, Split
from pipeline.system.errors import PipelineError


def read_hub_split(hub: Hub, split: Split) -> pd.DataFrame:
    """One split as a raw table, from the local cache when the Hub has been read before.

    Raises:
        PipelineError: the split is not published, or the Hub cannot be reached.
    """
    if split not in hub.splits:
        raise PipelineError(f"{hub.dataset}: publishes no '{split}' split: give the files with --data DIR")
    # Here, not above: importing it takes half a second, and only tasks without files need it.
    import datasets

    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(hub.dataset, hub.config, split=hub.splits[split], revision=hub.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise PipelineError(
            f"data set '{hub.dataset}' cannot be had from the Hub: connect, or give its files with --data DIR"
            f" ({reason})"
        ) from error
    table = loaded.to_pandas()
    # Without ids, use the row numbers ("idx") that some Hub data sets have.
    if "id" not in table.columns and "idx" in table.columns:
        table = table.rename(columns={"idx": "id"})
    return table
