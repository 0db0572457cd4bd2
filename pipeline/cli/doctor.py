"""The verb doctor."""

from pathlib import Path

from pipeline.cli.options import REPORTS, STORE, Json, ReportsFolder, StoreFolder
from pipeline.cli.printing import print_findings
from pipeline.system.streams import LIBRARIES, announce


def doctor(*, store: StoreFolder = STORE, reports: ReportsFolder = REPORTS, json: Json = False) -> int:
    """Check versions, hardware, the Hub, disks, store and ledger: what is fine, and what to mend.

    The exit status is 1 if there is a problem. Nothing is changed.
    """
    announce(LIBRARIES)
    from stages.doctor import examine

    return print_findings(examine(Path(reports), Path(store)), json)
