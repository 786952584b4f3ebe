"""Linear layouts: pure mathematics about who holds which element of a tile. Start reading in `linear`."""

from .conversion import Nothing, Plan, RegisterRename, plan_conversion
from .dims import Dim, LayoutError
from .hardware import SIMD_WIDTH, SIMDGROUP_8X8, Fragment, blocked
from .linear import LinearLayout
from .shared import Conflicts, SharedAccess, SharedTrip, bank_conflicts, plan_shared
from .shuffle import SelectStage, ShuffleStep, SimdShuffle, plan_shuffle
from .tiles import (
    bits_along,
    broadcast,
    drop_duplicate_registers,
    expand_dims,
    reshape,
    slice_axis,
    transpose,
    vector_width,
)

__all__ = [
    "SIMDGROUP_8X8",
    "SIMD_WIDTH",
    "Conflicts",
    "Dim",
    "Fragment",
    "LayoutError",
    "LinearLayout",
    "Nothing",
    "Plan",
    "RegisterRename",
    "SelectStage",
    "SharedAccess",
    "SharedTrip",
    "ShuffleStep",
    "SimdShuffle",
    "bank_conflicts",
    "bits_along",
    "blocked",
    "broadcast",
    "drop_duplicate_registers",
    "expand_dims",
    "plan_conversion",
    "plan_shared",
    "plan_shuffle",
    "reshape",
    "slice_axis",
    "transpose",
    "vector_width",
]
