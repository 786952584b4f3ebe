"""The laws of linear layouts, tile operations and fragments."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import itertools
import pickle
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enceladus.layout import (
    SIMDGROUP_8X8,
    Dim,
    Fragment,
    LayoutError,
    LinearLayout,
    bits_along,
    blocked,
    broadcast,
    drop_duplicate_registers,
    expand_dims,
    gf2,
    reshape,
    slice_axis,
    transpose,
    vector_width,
)

LANE_TABLE = """0:0,0 1:0,2 2:1,0 3:1,2 4:2,0 5:2,2 6:3,0 7:3,2 8:0,4 9:0,6 10:1,4 11:1,6 12:2,4 13:2,6 14:3,4
15:3,6 16:4,0 17:4,2 18:5,0 19:5,2 20:6,0 21:6,2 22:7,0 23:7,2 24:4,4 25:4,6 26:5,4 27:5,6 28:6,4 29:6,6
30:7,4 31:7,6"""


@st.composite
def dims(draw, names, max_bits=3):
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=len(names)))
    return tuple(Dim(name, draw(st.integers(0, max_bits))) for name in chosen)


@st.composite
def maps(draw, ins=None, outs=None):
    ins = draw(dims(["register", "lane", "warp"])) if ins is None else ins
    outs = draw(dims(["dim0", "dim1", "dim2"])) if outs is None else outs
    top = (1 << sum(dim.bits for dim in outs)) - 1
    bits = sum(dim.bits for dim in ins)
    columns = draw(st.lists(st.integers(0, top), min_size=bits, max_size=bits))
    return LinearLayout(ins, outs, tuple(columns))


@st.composite
def bijections(draw):
    bits = draw(st.integers(0, 9))
    split = sorted(draw(st.lists(st.integers(0, bits), min_size=2, max_size=2)))
    cut = draw(st.integers(0, bits))
    rng = random.Random(draw(st.integers(0, 2**32)))
    columns: list[int] = []
    while len(columns) < bits:
        columns += gf2.new_modulo(columns, [rng.getrandbits(bits)])
    ins = (Dim("register", split[0]), Dim("lane", split[1] - split[0]), Dim("warp", bits - split[1]))
    return LinearLayout(ins, (Dim("dim0", cut), Dim("dim1", bits - cut)), tuple(columns))


def identity_like(ins):
    return LinearLayout(ins, ins[::-1], tuple(1 << i for i in range(sum(dim.bits for dim in ins))))


def inputs(layout):
    names = [dim.name for dim in layout.ins]
    points = itertools.product(*(range(dim.size) for dim in layout.ins))
    return [dict(zip(names, point, strict=True)) for point in points]


def same_bases(a, b, name):
    """Equal coordinates by output name; an output that one lacks counts as zero."""

    def named(layout):
        outs = [dim.name for dim in layout.outs]
        return [
            {out: c for out, c in zip(outs, base, strict=True) if c} for base in layout.bases().get(name, ())
        ]

    return named(a) == named(b)


def same_map(a, b):
    """Equal up to the order of dimensions."""
    aligned = b.permute_ins([d.name for d in a.ins]).permute_outs([d.name for d in a.outs])
    return a == aligned


@pytest.mark.parametrize("name", ["gf2", "linear", "tiles", "hardware", "conversion"])
def test_worked_examples(name):
    result = doctest.testmod(importlib.import_module(f"enceladus.layout.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_4x4_table_of_the_docstring():
    module = importlib.import_module("enceladus.layout.linear")
    layout = LinearLayout.from_bases(
        {"register": [(0, 1), (1, 0)], "lane": [(0, 2), (2, 0)]}, {"dim0": 4, "dim1": 4}
    )
    rows = re.findall(r"row (\d) +(l.*)", module.__doc__)
    assert len(rows) == 4
    for row, entries in rows:
        for column, (lane, register) in enumerate(re.findall(r"l(\d) r(\d)", entries)):
            assert layout.apply(lane=int(lane), register=int(register)) == (int(row), column)


@given(maps(), st.data())
def test_linearity(layout, data):
    top = (1 << layout.in_bits) - 1
    a, b = data.draw(st.integers(0, top)), data.draw(st.integers(0, top))
    assert layout.apply_flat(a ^ b) == layout.apply_flat(a) ^ layout.apply_flat(b)
    assert layout.apply_flat(0) == 0


@settings(max_examples=60, deadline=None)
@given(maps())
def test_apply_agrees_with_flat_bases_exhaustively(layout):
    assert LinearLayout.from_bases(layout.bases(), {d.name: d.size for d in layout.outs}) == layout
    for point in inputs(layout):
        flat, position = 0, 0
        for dim in layout.ins:
            flat |= point[dim.name] << position
            position += dim.bits
        expected = [0] * len(layout.outs)
        for name, value in point.items():
            for bit, base in enumerate(layout.bases()[name]):
                if value >> bit & 1:
                    expected = [e ^ b for e, b in zip(expected, base, strict=True)]
        assert layout.apply(**point) == tuple(expected) == layout.unflatten(layout.apply_flat(flat))


@settings(deadline=None)
@given(st.data())
def test_compose_is_associative_and_means_application(data):
    first, second, third, fourth = (data.draw(dims([a, b, c])) for a, b, c in ("abc", "def", "ghi", "jkl"))
    f = data.draw(maps(first, second))
    g = data.draw(maps(tuple(data.draw(st.permutations(second))), third))
    h = data.draw(maps(tuple(data.draw(st.permutations(third))), fourth))
    assert (h @ g) @ f == h @ (g @ f)
    assert f @ identity_like(first) == f
    assert same_map(identity_like(second) @ f, f)
    for point in inputs(f)[:64]:
        middle = dict(zip([d.name for d in second], f.apply(**point), strict=True))
        assert (g @ f).apply(**point) == g.apply(**middle)


@given(bijections())
def test_inverse(layout):
    inverse = layout.invert()
    assert inverse @ layout == identity_like(layout.ins)
    assert layout @ inverse == identity_like(inverse.ins)
    assert inverse.invert() == layout


@settings(max_examples=60, deadline=None)
@given(maps())
def test_pseudo_inverse_finds_the_owner(layout):
    if not layout.is_surjective():
        with pytest.raises(LayoutError, match="surjective"):
            layout.pseudo_invert()
        return
    owner = layout.pseudo_invert()
    assert layout @ owner == identity_like(owner.ins)
    first = {}
    for flat in range(1 << layout.in_bits):
        first.setdefault(layout.apply_flat(flat), flat)
    assert all(owner.apply_flat(element) == flat for element, flat in first.items())
    free = layout.free_masks()
    free_flat, position = 0, 0
    for dim in layout.ins:
        free_flat |= free[dim.name] << position
        position += dim.bits
    assert sorted(first.values()) == [flat for flat in range(1 << layout.in_bits) if not flat & free_flat]


@settings(max_examples=80, deadline=None)
@given(maps())
def test_rank_counts_the_image(layout):
    image = [layout.apply_flat(flat) for flat in range(1 << layout.in_bits)]
    assert len(set(image)) == 1 << layout.rank()
    assert layout.is_surjective() == (len(set(image)) == 1 << layout.out_bits)
    assert layout.is_injective() == (len(set(image)) == len(image))
    kernel = layout.kernel()
    assert set(gf2.span(kernel)) == {flat for flat, element in enumerate(image) if element == 0}
    assert len(kernel) == layout.in_bits - layout.rank()
    assert len(kernel) == sum(mask.bit_count() for mask in layout.free_masks().values())


@given(maps(), maps(), maps())
def test_product(a, b, c):
    assert (a * b) * c == a * (b * c)
    empty = LinearLayout((), (), ())
    assert empty * a == a == a * empty
    assert (a * b).rank() == a.rank() + b.rank()


@given(maps(), maps())
def test_divide_left_undoes_product(a, b):
    quotient = (a * b).divide_left(a)
    assert quotient is not None
    assert same_map(a * quotient, a * b)
    assert {d.name: d.bits for d in b.ins}.items() <= {d.name: d.bits for d in quotient.ins}.items()
    for dim in b.ins:
        assert same_bases(quotient, b, dim.name)


@given(maps(), maps())
def test_divide_left_is_sound(layout, divisor):
    quotient = layout.divide_left(divisor)
    if quotient is not None:
        assert same_map(divisor * quotient, layout)


def test_divide_left_refuses():
    layout = LinearLayout.from_bases({"register": [(1,), (2,)], "lane": [(1,)]}, {"dim0": 4})
    assert layout.divide_left(LinearLayout.identity("register", "dim0", 2)) is None  # the lane reaches below
    assert layout.divide_left(LinearLayout.identity("lane", "dim0", 4)) is None
    assert layout.divide_left(LinearLayout.identity("register", "dim1", 2)) is None


def test_values_are_immutable_hashable_and_picklable():
    layout = blocked((8, 8), (1, 0), 2, 32, 2)
    again = LinearLayout(layout.ins, layout.outs, layout.columns)
    assert layout == again
    assert hash(layout) == hash(again)
    assert pickle.loads(pickle.dumps(layout)) == layout
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.columns = ()
    assert str(layout) == "register[(0,1)] lane[(0,2) (0,4) (1,0) (2,0) (4,0)] warp[(0,0)] -> 8x8"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LinearLayout((Dim("lane", 1),), (), ()), "bases"),
        (lambda: LinearLayout((Dim("lane", 1),), (Dim("dim0", 1),), (2,)), "outside"),
        (lambda: LinearLayout((), (Dim("a", 1), Dim("a", 1)), ()), "unique"),
        (lambda: LinearLayout.from_bases({"lane": [(4,)]}, {"dim0": 4}), "coordinate"),
        (lambda: LinearLayout.identity("lane", "dim0", 4).apply(lane=4), "outside"),
        (lambda: LinearLayout.identity("a", "b", 4) @ LinearLayout.identity("a", "b", 4), "fit"),
        (lambda: LinearLayout.zeros("lane", 2).invert(), "bijective"),
        (lambda: reshape(blocked((8,), (0,), 1), (4, 4)), "reshape"),
        (lambda: broadcast(blocked((8,), (0,), 1), 0, 2), "broadcasts"),
        (lambda: slice_axis(blocked((8,), (0,), 1), 1), "axis"),
        (lambda: transpose(blocked((8,), (0,), 1), (1,)), "permute"),
        (lambda: blocked((8, 8), (1,), 1), "order"),
        (lambda: blocked((6,), (0,), 1), "power of two"),
    ],
)
def test_bad_requests_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@st.composite
def tiles(draw):
    shape = tuple(1 << bits for bits in draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    order = tuple(draw(st.permutations(range(len(shape)))))
    return blocked(shape, order, 1 << draw(st.integers(0, 2)), 32, 1 << draw(st.integers(0, 2)))


@settings(deadline=None, max_examples=60)
@given(tiles(), st.data())
def test_tile_operations_elementwise(layout, data):
    rank = len(layout.outs)
    axis = data.draw(st.integers(0, rank - 1))
    order = data.draw(st.permutations(range(rank)))
    turned, sliced = transpose(layout, order), slice_axis(layout, axis)
    kept, grown = slice_axis(layout, axis, keepdims=True), expand_dims(layout, axis)
    flattened = reshape(layout, (1 << layout.out_bits,))
    for point in data.draw(st.lists(st.sampled_from(inputs(layout)), max_size=8)):
        at = layout.apply(**point)
        assert turned.apply(**point) == tuple(at[i] for i in order)
        assert sliced.apply(**point) == at[:axis] + at[axis + 1 :]
        assert kept.apply(**point) == (*at[:axis], 0, *at[axis + 1 :])
        assert grown.apply(**point) == (*at[:axis], 0, *at[axis:])
        flat = 0
        for coordinate, size in zip(at, layout.shape, strict=True):
            flat = flat * size + coordinate
        assert flattened.apply(**point) == (flat,)
    assert reshape(flattened, layout.shape) == layout
    inverse = [order.index(i) for i in range(rank)]
    assert transpose(turned, inverse) == layout
    assert slice_axis(grown, axis) == layout


@given(tiles(), st.data())
def test_slice_without_copies_keeps_every_element_in_each_thread(layout, data):
    sliced = slice_axis(layout, data.draw(st.integers(0, len(layout.outs) - 1)))
    unique = drop_duplicate_registers(sliced)
    assert unique.is_surjective()
    registers = unique.columns_of("register")
    assert gf2.rank(registers) == len(registers)
    assert set(gf2.span(registers)) == set(gf2.span(sliced.columns_of("register")))
    assert unique.columns_of("lane") == sliced.columns_of("lane")
    assert drop_duplicate_registers(unique) is unique


@settings(deadline=None)
@given(tiles())
def test_blocked_covers_the_tile_and_copies_only_over_threads(layout):
    assert layout.is_surjective()
    assert layout.free_masks()["register"] == 0
    assert layout.in_size("lane") == 32


def test_blocked_deals_in_order():
    assert str(blocked((4, 64), (1, 0), 4, 32, 2)) == (
        "register[(0,1) (0,2)] lane[(0,4) (0,8) (0,16) (0,32) (1,0)] warp[(2,0)] -> 4x64"
    )
    assert blocked((1024,), (0,), 4, 32, 2).bases()["register"] == ((1,), (2,), (256,), (512,))
    small = blocked((2,), (0,), 4, 32, 2)
    assert small.bases() == {"register": ((1,),), "lane": ((0,),) * 5, "warp": ((0,),)}
    assert blocked((), (), 4).shape == ()


def test_vector_width_and_axis_bits():
    layout = blocked((4, 64), (1, 0), 4, 32, 2)
    assert vector_width(layout) == 4
    assert vector_width(transpose(layout, (1, 0))) == 1
    assert bits_along(layout, 1) == {"register": 3, "lane": 15, "warp": 0}
    assert bits_along(layout, 0) == {"register": 0, "lane": 16, "warp": 1}
    skewed = LinearLayout.from_bases({"register": [(1,)], "lane": [(3,)]}, {"dim0": 4})
    assert vector_width(skewed) == 1


def test_fragment_lane_table():
    layout = SIMDGROUP_8X8.layout()
    entries = [tuple(map(int, re.split("[:,]", entry))) for entry in LANE_TABLE.split()]
    assert len(entries) == 32
    for lane, row, column in entries:
        assert layout.apply(lane=lane, register=0) == (row, column)
        assert layout.apply(lane=lane, register=1) == (row, column + 1)
        b = [lane >> bit & 1 for bit in range(5)]
        assert (row, column) == (4 * b[4] + 2 * b[2] + b[1], 4 * b[3] + 2 * b[0])
    assert bits_along(layout, 1) == {"register": 1, "lane": 1 | 8}  # the shuffles of a row reduction
    assert bits_along(layout, 0) == {"register": 0, "lane": 2 | 4 | 16}


def test_fragment_constructor_checks():
    good = dataclasses.asdict(SIMDGROUP_8X8)
    for change, message in [
        ({"lane_bases": ((0, 2), (1, 0))}, "lanes"),
        ({"rows": 16}, "fill"),
        ({"register_bases": ((0, 2),)}, "twice"),
    ]:
        with pytest.raises(LayoutError, match=message):
            Fragment(**(good | change))


def test_fragment_tiles():
    result = SIMDGROUP_8X8.tiled((32, 64), ((1, 2), (0, 2)))
    assert result.is_injective()
    assert result.is_surjective()
    assert result.divide_left(SIMDGROUP_8X8.layout()) is not None
    assert result.apply(warp=1) == (0, 32)
    assert result.apply(warp=2) == (16, 0)
    assert result.apply(register=2) == (0, 8)
    left = SIMDGROUP_8X8.tiled((32, 16), ((None, 2), (0, 2)))
    assert left.free_masks()["warp"] == 1
    right = SIMDGROUP_8X8.tiled((16, 64), ((1, 2), (None, 2)))
    assert right.free_masks()["warp"] == 2
    narrow = SIMDGROUP_8X8.tiled((8, 8), ((1, 2), (0, 2)))
    assert narrow.free_masks() == {"register": 0, "lane": 0, "warp": 3}
    with pytest.raises(LayoutError, match="smaller"):
        SIMDGROUP_8X8.tiled((4, 8), ())
