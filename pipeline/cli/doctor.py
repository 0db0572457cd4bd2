"""The verb doctor."""

from pipeline.cli.options import Json, Places
from pipeline.cli.printing import print_findings
from pipeline.system.streams import LIBRARIES, announce


def doctor(*, json: Json = False, places: Places = Places()) -> int:
    """Check versions, hardware, the Hub, backbone, data, disks, store and runs: what is fine, and what to fix.

    The exit status is 1 if there is a problem. Nothing is changed.
    """
    announce(LIBRARIES)
    from stages.doctor import examine

    return print_findings(examine(places.reports, places.store, places.backbone, places.data), json)
