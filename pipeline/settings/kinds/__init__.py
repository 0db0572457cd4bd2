"""The kinds of rows under the names that studies use: a file each, and a line here."""

from pipeline.settings.kind import Kind
from pipeline.settings.kinds.adapter import Adapter
from pipeline.settings.kinds.ensemble import Ensemble
from pipeline.settings.kinds.frozen import Frozen
from pipeline.settings.kinds.full import Full
from pipeline.settings.kinds.fusion import Fusion
from pipeline.settings.kinds.merge import Merge
from pipeline.settings.kinds.multitask import Multitask
from pipeline.settings.kinds.probe import Probe
from pipeline.settings.kinds.sequential import Sequential

KINDS: dict[str, Kind] = {
    "frozen": Frozen(),
    "probe": Probe(),
    "full": Full(),
    "sequential": Sequential(),
    "multitask": Multitask(),
    "adapter": Adapter(),
    "merge": Merge(),
    "fusion": Fusion(),
    "ensemble": Ensemble(),
}
