"""The proofs that an access touches each element at most once and none outside of its array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import enceladus
from enceladus.autodiff.injective import Prover
from enceladus.ir import ops
from enceladus.passes.affine import Analysis
from tests.engines import kernel_from_source

#: name → (offset, mask) of a load; ``pid`` and ``qid`` are the program's indices.
ACCESSES = {
    "blocks": ("pid * B + i", "pid * B + i < n"),
    "blocks without a mask": ("pid * B + i", "i >= 0"),
    "overlapping blocks": ("pid * (B // 2) + i", "i >= 0"),
    "a mask that makes blocks apart": ("pid * (B // 2) + i", "i < B // 2"),
    "the same block in all programs": ("i", "i < n"),
    "every other element": ("(pid * B + i) * 2", "i < n"),
    "rows": ("pid * stride + i", "i < n"),
    "backwards": ("n - 1 - pid * B - i", "pid * B + i < n"),
    "two axes": ("pid * stride + qid * B + i", "qid * B + i < n"),
    "two axes without a mask": ("pid * stride + qid * B + i", "i >= 0"),
    "modulo": ("(pid * B + i) % 8", "i >= 0"),
}


def prover(offset: str, mask: str, grid: tuple[int, ...], numbers: dict[str, int]) -> tuple[Prover, Any]:
    kernel = kernel_from_source(
        "@enceladus.jit(do_not_specialize=['n', 'stride'])\n"
        "def kernel(x, out, n, stride, B: tl.constexpr):\n"
        "    pid, qid, i = tl.program_id(0), tl.program_id(1), tl.arange(0, B)\n"
        f"    v = tl.load(x + {offset}, mask={mask}, other=0.0)\n"
        "    tl.store(out + i, v)\n"
    )
    fresh = enceladus.empty((8,))
    call = kernel._inspect((fresh, fresh, numbers["n"], numbers["stride"]), grid, {"B": 8}, "graph")
    function = kernel.derivative(call.key).function()
    (load,) = (op for op in function.walk() if isinstance(op, ops.ArrayLoad))
    return Prover(function, Analysis(function), grid, numbers), load


def elements(offset: str, mask: str, grid: tuple[int, ...], numbers: dict[str, int]) -> np.ndarray:
    """All elements that the access touches, by counting."""
    pid, qid, i = np.meshgrid(np.arange(grid[0]), np.arange(grid[1]), np.arange(8), indexing="ij")
    names = {"pid": pid, "qid": qid, "i": i, "B": 8, **numbers}
    where = np.broadcast_to(eval(offset, names), i.shape)
    return where[np.broadcast_to(eval(mask, names), i.shape)]


@pytest.mark.parametrize("name", ACCESSES)
@settings(max_examples=30, deadline=None)
@given(grid=st.tuples(st.integers(1, 4), st.integers(1, 3)), n=st.integers(0, 40), stride=st.integers(0, 40))
def test_never_claims_what_is_not_so(name: str, grid: tuple[int, int], n: int, stride: int) -> None:
    numbers = {"n": n, "stride": stride}
    proof, load = prover(*ACCESSES[name], (*grid, 1), numbers)
    touched = elements(*ACCESSES[name], grid, numbers)
    if proof.touches_once(load):
        assert np.unique(touched).size == touched.size
    for size in (0, 8, 16, 40, 200):
        if proof.stays_inside(load, size):
            assert touched.size == 0 or (touched.min() >= 0 and touched.max() < size)


@pytest.mark.parametrize(
    ("name", "grid", "n", "stride", "once", "size"),
    [
        ("blocks", (4, 1), 30, 0, True, 30),
        ("blocks without a mask", (4, 1), 30, 0, True, 32),
        ("overlapping blocks", (4, 1), 30, 0, False, 20),
        ("the same block in all programs", (1, 1), 30, 0, True, 8),
        ("the same block in all programs", (2, 1), 30, 0, False, 8),
        ("every other element", (4, 1), 30, 0, True, 63),
        ("rows", (4, 1), 5, 5, True, 20),
        ("rows", (4, 1), 6, 5, False, 21),
        ("two axes", (4, 2), 11, 11, True, 44),
        ("two axes without a mask", (4, 2), 11, 11, False, 49),
        ("two axes without a mask", (4, 2), 11, 16, True, 64),
    ],
)
def test_proves_what_kernels_usually_do(
    name: str, grid: tuple[int, int], n: int, stride: int, once: bool, size: int
) -> None:
    proof, load = prover(*ACCESSES[name], (*grid, 1), {"n": n, "stride": stride})
    assert proof.touches_once(load) is once
    assert proof.stays_inside(load, size)
    assert not proof.stays_inside(load, size - 1)


JOINT = {
    "halves": ("pid * n + i", "pid * n + n // 2 + i", "i < n // 2", 12, True),
    "halves that overlap": ("pid * n + i", "pid * n + n // 2 + i", "i < n // 2 + 1", 12, False),
    "the same twice": ("pid * n + i", "pid * n + i + 0 * n", "i < n", 8, False),
    "different strides": ("pid * n + i", "pid * n + 2 * i + 8", "i < 4", 32, False),
}


@pytest.mark.parametrize("name", JOINT)
def test_several_accesses_together(name: str) -> None:
    first, second, mask, n, expected = JOINT[name]
    kernel = kernel_from_source(
        "@enceladus.jit(do_not_specialize=['n'])\n"
        "def kernel(x, out, n, B: tl.constexpr):\n"
        "    pid, i = tl.program_id(0), tl.arange(0, B)\n"
        f"    tl.store(out + {first}, 1.0, mask={mask})\n"
        f"    tl.store(out + {second}, 2.0, mask={mask})\n"
    )
    fresh = enceladus.empty((8,))
    call = kernel._inspect((fresh, fresh, n), (3,), {"B": 8}, "graph")
    function = kernel.derivative(call.key).function()
    stores = [op for op in function.walk() if isinstance(op, ops.ArrayStore)]
    proof = Prover(function, Analysis(function), (3, 1, 1), {"n": n})
    assert [proof.touches_once(store) for store in stores] == [True, True]
    assert proof.touches_once(*stores) is expected
