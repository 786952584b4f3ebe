"""What the examples' kernels cost by their text, and that ``benchmarks/static_cost.py`` counts it right."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import mlx.core as mx
import pytest

import enceladus
import enceladus.language as tl

PATH = Path(__file__).resolve().parent.parent / "benchmarks" / "static_cost.py"
SPEC = importlib.util.spec_from_file_location("static_cost", PATH)
assert SPEC is not None and SPEC.loader is not None
static_cost = importlib.util.module_from_spec(SPEC)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "static_cost", static_cost)  # dataclasses look it up
        patch.setattr(sys, "path", [*sys.path])  # the module adds the folder of the examples
        SPEC.loader.exec_module(static_cost)


@pytest.fixture(scope="module")
def costs() -> dict[str, object]:
    return {case.name: static_cost.measure(case) for case in static_cost.cases()}


def table(cost, kind: str) -> dict[str, float]:
    """Array → accesses per element of one kind, without those that are there once a program."""
    return {name: count for name, count in getattr(cost.accesses, kind).items() if count > 0.01}


@pytest.mark.parametrize("name", ["softmax 512", "softmax 4096", "softmax 4096 float16"])
def test_softmax_moves_each_element_once_by_vectors(costs, name: str) -> None:
    assert table(costs[name], "vector_reads") == {"x_ptr": 1.0}
    assert table(costs[name], "vector_writes") == {"out_ptr": 1.0}
    assert not table(costs[name], "single_reads") and not table(costs[name], "single_writes")


def test_softmax_of_a_ragged_row_moves_each_element_once(costs) -> None:
    accesses = costs["softmax 1000"].accesses
    assert accesses.reads("x_ptr") == 1.0 and accesses.writes("out_ptr") == 1.0


def test_softmax_has_one_barrier_a_reduction_and_none_in_one_simd_group(costs) -> None:
    assert (costs["softmax 4096"].barriers, costs["softmax 4096"].barriers_in_loops) == (2, 0)
    assert (costs["softmax 512"].barriers, costs["softmax 512"].threadgroup_bytes) == (0, 0)


def test_online_softmax_has_at_most_one_barrier_a_step(costs) -> None:
    online = costs["softmax 32768"]
    assert online.barriers_in_loops <= 1
    assert table(online, "vector_reads") == {"x_ptr": 2.0}
    assert table(online, "vector_writes") == {"out_ptr": 1.0}


@pytest.mark.parametrize(
    "name", ["layer norm 4096", "rms norm 4096", "layer norm backward 4096", "rms norm backward 4096"]
)
def test_norms_read_and_write_each_row_once(costs, name: str) -> None:
    reads = table(costs[name], "vector_reads")
    rows = [array for array in ("x_ptr", "dy_ptr") if array in reads]
    assert rows == (["x_ptr", "dy_ptr"] if "backward" in name else ["x_ptr"])
    assert all(reads[array] == 1.0 for array in rows)
    assert table(costs[name], "vector_writes")["dx_ptr" if "backward" in name else "out_ptr"] == 1.0
    if "backward" in name:
        assert reads["weight_ptr"] == 0.25, "once for the four rows of a program"


def test_cross_entropy_reads_short_rows_once_and_long_ones_twice(costs) -> None:
    for name, times in (("cross entropy 4096", 1.0), ("cross entropy 32768", 2.0)):
        assert table(costs[name], "vector_reads") == {"x_ptr": times}
        assert table(costs[name], "vector_writes") == {"dx_ptr": 1.0}
        assert costs[name].barriers_in_loops == 0


def test_sums_of_columns_and_rows_read_each_element_once(costs) -> None:
    assert table(costs["column sum 1024 x 1024"], "vector_reads") == {"x_ptr": 1.0}
    assert table(costs["logsumexp 32768"], "vector_reads") == {"x_ptr": 1.0}


@enceladus.jit
def shifted_kernel(x_ptr, flags_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Reads blocks in a loop, every second element once more, and at the end three elements."""
    offs = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x_ptr + start + offs, mask=start + offs < n)
        total += tl.load(x_ptr + start + offs * 2, mask=start + offs * 2 < n)
    total += tl.load(x_ptr + offs, mask=offs >= BLOCK - 3)
    if tl.load(flags_ptr) == 0:
        tl.store(out_ptr + offs, total)
    else:
        tl.store(out_ptr + offs, -total)


def test_the_count_follows_loops_masks_and_branches() -> None:
    n, block = 1000, 256
    arguments = (mx.zeros((n,)), mx.zeros((1,)), enceladus.empty((block,), mx.float32), n)
    case = static_cost.Case("", shifted_kernel, arguments, {"BLOCK": block}, elements=1, grid=(1,))
    accesses = static_cost.measure(case).accesses
    evens = sum(1 for start in range(0, n, block) for i in range(block) if start + 2 * i < n)
    assert accesses.vector_reads["x_ptr"] == 2 * block, "the turns in which both masks are full"
    assert accesses.single_reads["x_ptr"] == n - 2 * block + evens + 3
    assert accesses.single_reads["flags_ptr"] == 1
    assert accesses.writes("out_ptr") == block, "one side of the branch"


def test_barriers_in_loops_are_those_of_loops_that_run() -> None:
    lines = (
        "barrier();",
        "#pragma unroll",
        "for (int r = 0; r < 4; ++r) {",
        "  barrier();",
        "}",
        "for (int start = 0; start < n; start += 4) {",
        "  if (start < 7) {",
        "    barrier();",
        "  }",
        "  for (int r = 0; r < n; ++r) {",
        "    barrier();",
        "  }",
        "}",
        "barrier();",
    )
    assert static_cost.count_in_loops("\n".join(lines), "barrier()") == 2


def test_prints_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["static_cost.py", "--repeats", "1", "--only", "softmax 512"])
    static_cost.main()
    head, row = capsys.readouterr().out.splitlines()[-2:]
    assert head.split()[:4] == ["kernel", "warps", "body", "barriers"]
    assert row.startswith("softmax 512  ") and "1.00 (1.00)  1.00 (1.00)" in row
