"""Tables of messages and queues, as people have them, to propose tasks for."""

from typing import Any

import pandas as pd

from pipeline.data.propose import Proposal, propose
from pipeline.data.tasks import NewTask

SIZE = 40


def table(**columns: Any) -> pd.DataFrame:
    """Rows of different messages and two queues, with further or other columns; a list is repeated to the size."""
    given = {
        "date": [f"2024-01-{row % 28 + 1:02}" for row in range(SIZE)],
        "message": [f"the long message of row {row}" for row in range(SIZE)],
        "queue": ["bill", "bug"],
        **columns,
    }
    return pd.DataFrame(
        {name: [values[row % len(values)] for row in range(SIZE)] for name, values in given.items() if values},
        dtype=object,
    )


def proposed(rows: pd.DataFrame, **options: Any) -> Proposal:
    return propose(rows.set_axis(rows.index + 2), "rows.csv", NewTask(**options))  # rows of a csv are numbered from 2


COMMAS = [f"{row},5" for row in range(SIZE)]
SENTENCES = [f"a sentence of row {row}" for row in range(SIZE)]
