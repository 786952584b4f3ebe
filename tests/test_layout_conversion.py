"""Conversion plans, executed on simulated threads: every element arrives, and no bank is hit twice."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from enceladus.layout import (
    SIMDGROUP_8X8,
    Dim,
    LayoutError,
    LinearLayout,
    Nothing,
    RegisterRename,
    SharedAccess,
    SharedTrip,
    SimdShuffle,
    blocked,
    broadcast,
    expand_dims,
    plan_conversion,
    plan_shared,
    plan_shuffle,
    reshape,
    slice_axis,
    transpose,
)

SIZES = st.sampled_from([1, 2, 4, 8])
LANES, WARPS = st.integers(0, 4), st.integers(0, 2)


def held(layout):
    """values[warp][lane][register]: the element's coordinates stand for its value."""
    return [
        [
            [layout.apply(register=r, lane=lane, warp=w) for r in range(layout.in_size("register"))]
            for lane in range(layout.in_size("lane"))
        ]
        for w in range(layout.in_size("warp"))
    ]


def require_delivers(plan, src, dst):
    assert plan.execute(held(src)) == held(dst), f"{plan}"


def places_of(registers, lanes, warps):
    return (Dim("register", registers), Dim("lane", lanes), Dim("warp", warps))


def surjective(rng, bits, registers, lanes, warps):
    """A random map onto the tile (registers are added where the places do not suffice), copies included."""
    registers = max(registers, bits - lanes - warps)
    places = registers + lanes + warps
    rank_part = list(range(places))
    rng.shuffle(rank_part)
    while True:
        columns = [rng.getrandbits(bits) if bits else 0 for _ in range(places)]
        if rng.random() < 0.6:  # unit vectors and zeros: what compilers make
            columns = [0] * places
            for bit, place in enumerate(rank_part[:bits]):
                columns[place] = 1 << bit
        layout = LinearLayout(places_of(registers, lanes, warps), (Dim("dim0", bits),), tuple(columns))
        if layout.is_surjective():
            return layout


def anything(rng, bits, registers, lanes, warps):
    columns = tuple([rng.getrandbits(bits) if bits else 0 for _ in range(registers + lanes + warps)])
    return LinearLayout(places_of(registers, lanes, warps), (Dim("dim0", bits),), columns)


@st.composite
def pairs(draw, lanes=LANES, warps=WARPS, max_bits=7):
    rng = random.Random(draw(st.integers(0, 2**32)))
    lane_bits, warp_bits, bits = draw(lanes), draw(warps), draw(st.integers(0, max_bits))
    src = surjective(rng, bits, draw(st.integers(0, 3)), lane_bits, warp_bits)
    make = draw(st.sampled_from([surjective, anything]))
    return src, make(rng, bits, draw(st.integers(0, 3)), lane_bits, warp_bits)


@settings(max_examples=200, deadline=None)
@given(pairs(), SIZES)
def test_any_pair_is_converted(pair, element_bytes):
    src, dst = pair
    require_delivers(plan_conversion(src, dst, element_bytes), src, dst)


@settings(max_examples=250, deadline=None)
@given(pairs(warps=st.integers(0, 1)))
def test_shuffle_exists_whenever_no_data_crosses(pair):
    src, dst = pair
    inside = LinearLayout(src.ins[:2], src.outs, (*src.columns_of("register"), *src.columns_of("lane")))
    reach = {inside.apply_flat(i) for i in range(1 << inside.in_bits)}
    stays = all(c in reach for c in dst.columns_of("register") + dst.columns_of("lane")) and all(
        a ^ b in reach for a, b in zip(src.columns_of("warp"), dst.columns_of("warp"), strict=True)
    )
    plan = plan_shuffle(src, dst)
    assert (plan is not None) == stays
    if plan is not None:
        require_delivers(plan, src, dst)


@settings(max_examples=250, deadline=None)
@given(pairs(lanes=st.integers(0, 5), warps=st.integers(0, 0)))
def test_one_simdgroup_never_needs_shared_memory(pair):
    src, dst = pair
    plan = plan_shuffle(src, dst)
    assert plan is not None
    require_delivers(plan, src, dst)


def turns_by_hand(access: SharedAccess, element_bytes: int, warps: int) -> int:
    """The worst number of turns beyond one, counted word by word."""
    worst = 0
    width = len(access.vector) * element_bytes
    lanes = min(32, max(1, 128 // width))
    total = access.offsets.in_size("lane")
    for warp, base, first in itertools.product(range(warps), access.bases, range(0, total, lanes)):
        words = set()
        for lane in range(first, min(total, first + lanes)):
            if access.is_active(lane, warp):
                start = access.offset(base, lane, warp) * element_bytes
                assert start % width == 0
                words |= {byte // 4 for byte in range(start, start + width)}
        if words:
            worst = max(worst, max(Counter(word % 32 for word in words).values()) - 1)
    return worst


@settings(max_examples=200, deadline=None)
@given(pairs(lanes=st.just(5), warps=st.integers(0, 2), max_bits=9), SIZES)
def test_shared_trip_delivers_without_conflicts(pair, element_bytes):
    src, dst = pair
    plan = plan_shared(src, dst, element_bytes)
    require_delivers(plan, src, dst)
    assert plan.swizzle.invert() @ plan.swizzle == LinearLayout(
        plan.swizzle.ins, plan.swizzle.ins[::-1], tuple(1 << i for i in range(plan.swizzle.in_bits))
    )
    warps = src.in_size("warp")
    assert plan.conflicts() == (0, 0)
    assert turns_by_hand(plan.store, element_bytes, warps) == 0
    assert turns_by_hand(plan.load, element_bytes, warps) == 0


@settings(max_examples=150, deadline=None)
@given(pairs(lanes=st.just(5), warps=st.integers(0, 1), max_bits=9), SIZES)
def test_conflict_count_agrees_with_counting_words(pair, element_bytes):
    layout = pair[0]
    flat = LinearLayout(layout.ins, (Dim("offset", layout.out_bits),), layout.columns)
    access = SharedAccess(flat, (0,), (0,), 0, 0)
    assert access.conflicts(element_bytes) == turns_by_hand(access, element_bytes, layout.in_size("warp"))


def test_unswizzled_transpose_conflicts_and_the_swizzle_removes_it():
    rows = blocked((32, 32), (1, 0), 1, 32, 4)
    columns = blocked((32, 32), (0, 1), 1, 32, 4)
    row_major = LinearLayout(columns.ins, (Dim("offset", 10),), columns.columns)
    assert SharedAccess(row_major, (0,), (0,), 0, 0).conflicts(4) == 31
    plan = plan_conversion(rows, columns, 4)
    assert isinstance(plan, SharedTrip)
    assert plan.conflicts() == (0, 0)
    assert plan.crosses_simdgroups
    assert plan.shared_bytes == 4096


def test_vectors_are_used_where_both_sides_hold_them():
    src = blocked((64, 64), (1, 0), 4, 32, 4)
    dst = LinearLayout(src.ins, src.outs, (*src.columns[:5], *src.columns[10:12], *src.columns[5:10]))
    plan = plan_shared(src, dst, 4)
    require_delivers(plan, src, dst)
    assert len(plan.store.vector) == len(plan.load.vector) == 4
    assert plan.conflicts() == (0, 0)


def test_equal_layouts_need_nothing():
    layout = blocked((16, 16), (1, 0), 4, 32, 2)
    assert isinstance(plan_conversion(layout, layout), Nothing)


def test_same_thread_is_a_renaming():
    src = blocked((4, 64), (1, 0), 4, 32, 1)
    first, second, *rest = src.columns
    dst = LinearLayout(src.ins, src.outs, (second, first, *rest))
    plan = plan_conversion(src, dst)
    assert isinstance(plan, RegisterRename)
    assert plan.sources[:4] == (0, 2, 1, 3)
    require_delivers(plan, src, dst)


def test_broadcast_of_a_slice_back_to_its_parent_is_free():
    parent = blocked((16, 32), (1, 0), 4, 32, 2)
    column = slice_axis(parent, 1, keepdims=True, unique_registers=True)
    assert column.shape == (16, 1)
    plan = plan_conversion(column, slice_axis(parent, 1, keepdims=True))
    assert isinstance(plan, RegisterRename)
    require_delivers(plan, column, slice_axis(parent, 1, keepdims=True))
    grown = broadcast(column, 1, 32)
    require_delivers(plan_conversion(grown, parent), grown, parent)


def test_lane_exchange_is_one_xor_shuffle():
    src = LinearLayout.from_bases({"register": [(0, 1)], "lane": [(1, 0), (2, 0)]}, {"dim0": 4, "dim1": 2})
    dst = LinearLayout.from_bases({"register": [(1, 1)], "lane": [(1, 0), (2, 0)]}, {"dim0": 4, "dim1": 2})
    plan = plan_conversion(src, dst)
    assert isinstance(plan, SimdShuffle)
    assert plan.is_xor
    assert (plan.shuffles, plan.selects) == (1, 0)
    assert [(step.register, step.lane_xor) for step in plan.steps] == [(0, 0), (1, 1)]


def test_transpose_in_a_simdgroup_is_one_shuffle_per_register():
    src, dst = blocked((4, 4), (0, 1), 4, 4, 1), blocked((4, 4), (1, 0), 4, 4, 1)
    plan = plan_shuffle(src, dst)
    assert plan is not None
    assert plan.is_xor
    assert plan.shuffles == 3
    assert (len(plan.select_in), len(plan.select_out)) == (2, 2)
    require_delivers(plan, src, dst)


def test_expensive_shuffles_go_through_shared_memory_with_simdgroup_barriers():
    src, dst = blocked((64, 32), (1, 0), 32, 32, 2), blocked((64, 32), (0, 1), 32, 32, 2)
    inside = LinearLayout(dst.ins, dst.outs, (*dst.columns[:5], *src.columns[:5], src.columns[10]))
    plan = plan_conversion(src, inside)
    require_delivers(plan, src, inside)
    trip = plan_shared(src, inside)
    assert not trip.crosses_simdgroups
    assert isinstance(plan, SimdShuffle) == (plan_shuffle(src, inside).cycles() <= trip.cycles())


FRAGMENT_TILES = [
    blocked((32, 32), (1, 0), 4, 32, 4),
    SIMDGROUP_8X8.tiled((32, 32), ((1, 2), (0, 2))),
    SIMDGROUP_8X8.tiled((32, 32), ((None, 2), (0, 2))),
    SIMDGROUP_8X8.tiled((32, 32), ((1, 2), (None, 2))),
    transpose(blocked((32, 32), (1, 0), 2, 32, 4), (1, 0)),
    reshape(blocked((1024,), (0,), 4, 32, 4), (32, 32)),
    blocked((32, 32), (0, 1), 1, 32, 4),
]


@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8])
def test_layouts_of_real_kernels(element_bytes):
    for src, dst in itertools.product(FRAGMENT_TILES, repeat=2):
        plan = plan_conversion(src, dst, element_bytes)
        require_delivers(plan, src, dst)
        if isinstance(plan, SharedTrip):
            assert plan.conflicts() == (0, 0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2), st.integers(0, 2))
@example(0, 0, 2, 0)
def test_small_tiles_with_copies(rows, columns, vector, warps):
    shape = (1 << rows, 1 << columns)
    src, dst = (blocked(shape, order, 1 << vector, 32, 1 << warps) for order in ((1, 0), (0, 1)))
    require_delivers(plan_conversion(src, dst), src, dst)
    trip = plan_shared(src, dst)
    require_delivers(trip, src, dst)
    assert trip.conflicts() == (0, 0)


def test_refusals():
    tile = blocked((8, 8), (1, 0), 1, 32, 1)
    with pytest.raises(LayoutError, match="differ"):
        plan_conversion(tile, expand_dims(tile, 0))
    with pytest.raises(LayoutError, match="exchange"):
        plan_conversion(tile, blocked((8, 8), (1, 0), 1, 32, 2))
    with pytest.raises(LayoutError, match="every element"):
        zeros = LinearLayout.zeros("lane", 32, {"dim0": 8, "dim1": 8})
        plan_conversion(zeros, LinearLayout(tile.ins[1:2], tile.outs, tile.columns_of("lane")))
    with pytest.raises(LayoutError, match="order"):
        plan_conversion(tile, tile.permute_ins(["lane", "register", "warp"]))


@settings(max_examples=150, deadline=None)
@given(pairs(warps=st.integers(0, 2)))
def test_crossing_is_known_exactly(pair):
    src, dst = pair
    plan = plan_shared(src, dst)
    writers = [[[warp for _ in registers] for registers in lanes] for warp, lanes in enumerate(held(src))]
    read_own = all(
        writer == warp
        for warp, lanes in enumerate(plan.execute(writers))
        for registers in lanes
        for writer in registers
    )
    assert plan.crosses_simdgroups == (not read_own)
