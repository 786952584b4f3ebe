"""``@enceladus.jit``, ``warmup``, the environment variables and the public face."""

from __future__ import annotations

import os
import subprocess
import sys

import mlx.core as mx
import pytest

import enceladus
import enceladus.language as tl
from enceladus import knobs
from enceladus.mlx_bridge import engines
from tests.bridge_helpers import add_kernel, increment_kernel, trace, values

X = mx.arange(16, dtype=mx.float32)


@pytest.fixture(autouse=True)
def cache_in(tmp_path, monkeypatch):
    monkeypatch.setenv("ENCELADUS_CACHE_DIR", str(tmp_path))


def test_a_kernel_keeps_the_function_s_identity():
    @enceladus.jit
    def documented(x_ptr):
        """What it does."""

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "What it does."
    assert documented.__module__ == __name__
    assert documented.fn.__name__ == "documented"
    assert "documented" in repr(documented)


def test_decorator_options_of_triton_are_accepted():
    @enceladus.jit(noinline=True, debug=False, repr=lambda _: "name", do_not_specialize_on_alignment=[0])
    def kernel(x_ptr):
        tl.store(x_ptr, 1.0)

    assert values(kernel[(1,)](enceladus.empty(1))).tolist() == [1]


def test_warmup_compiles_without_launching():
    out = mx.zeros(16)
    warm = add_kernel.warmup(X, X, out, 16, BLOCK=16, grid=(1,))
    assert values(out).tolist() == [0] * 16
    assert warm.roles == {"x_ptr": "read", "y_ptr": "read", "out_ptr": "written"}
    assert "load" in warm.ir
    assert "threadgroup_position_in_grid" in warm.body
    assert warm.body in warm.metal
    assert warm.header.strip() in warm.metal
    assert "[[kernel]] void custom_kernel_add_kernel" in warm.metal
    assert "const device float* x_ptr" in warm.metal
    assert warm.registers > 0
    assert warm.threadgroup_bytes == 0
    assert warm.key.num_warps == 4
    assert increment_kernel.warmup(X, 16, BLOCK=16).roles == {"x_ptr": "read-written"}


def test_the_metal_source_declares_small_inputs_constant():
    few = mx.zeros(3)
    source = add_kernel.warmup(few, few, few, 3, BLOCK=16).metal
    assert "const constant float* x_ptr" in source
    # Fewer than 4 bytes each: padded, because constant space has an alignment of 4 bytes.
    few = mx.zeros(3, dtype=mx.float16)
    assert "const device float16_t* x_ptr" in add_kernel.warmup(few, few, few, 3, BLOCK=16).metal


def test_the_body_is_pure_ascii_and_has_no_accidental_parameters():
    warm = add_kernel.warmup(X, X, X, 16, BLOCK=16)
    assert (warm.body + warm.header).isascii()
    for word in ("grid_size", "grid_origin", "_shape", "_strides", "_ndim"):
        assert word not in warm.body


def test_compilation_errors_come_through():
    @enceladus.jit
    def kernel(x_ptr):
        while True:
            pass

    for launch in (lambda: kernel[(1,)](X), lambda: kernel.warmup(X)):
        with pytest.raises(enceladus.CompilationError, match="while"):
            launch()


def test_interpret_on_the_decorator(capsys):
    @enceladus.jit(interpret=True)
    def kernel(x_ptr):
        print("program", int(tl.program_id(0)))
        tl.store(x_ptr + tl.program_id(0), 1.0)

    assert values(kernel[(2,)](enceladus.zeros(3))).tolist() == [1, 1, 0]
    assert capsys.readouterr().out == "program 0\nprogram 1\n"


# ------------------------------------------------------------------------------------- knobs


def test_which_engine_runs(monkeypatch):
    monkeypatch.delenv("ENCELADUS_ENGINE", raising=False)
    monkeypatch.delenv("ENCELADUS_INTERPRET", raising=False)
    with mx.stream(mx.cpu):
        assert engines.choose() == "graph"
    assert engines.choose(interpret=True) == "interpret"
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")
    assert engines.choose() == "metal"
    monkeypatch.setenv("ENCELADUS_ENGINE", "interpreter")
    assert engines.choose() == "interpret"
    monkeypatch.setenv("ENCELADUS_ENGINE", "graph")
    monkeypatch.setenv("ENCELADUS_INTERPRET", "1")
    assert engines.choose() == "interpret"
    monkeypatch.setenv("ENCELADUS_INTERPRET", "0")
    assert engines.choose() == "graph"
    monkeypatch.setenv("ENCELADUS_ENGINE", "gpu")
    with pytest.raises(ValueError, match="ENCELADUS_ENGINE is 'gpu'; it takes metal, cuda, graph, interpret"):
        engines.choose()
    monkeypatch.setenv("ENCELADUS_INTERPRET", "perhaps")
    with pytest.raises(ValueError, match="ENCELADUS_INTERPRET is 'perhaps'"):
        engines.choose()


def test_an_engine_chosen_between_launches_is_used(monkeypatch):
    def launch():
        return add_kernel[(1,)](X, X, enceladus.empty(16), 16, BLOCK=16)

    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")
    assert "CustomKernel" in trace(launch)[1]
    monkeypatch.setenv("ENCELADUS_ENGINE", "graph")
    assert "CustomKernel" not in trace(launch)[1]
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")
    assert "CustomKernel" in trace(launch)[1]


def test_an_unknown_variable_is_mentioned_once(monkeypatch):
    monkeypatch.setattr(knobs, "_suggested", set())
    monkeypatch.setenv("ENCELADUS_ENGIN", "metal")
    with pytest.warns(enceladus.EnceladusWarning, match="ENCELADUS_ENGIN; did you mean ENCELADUS_ENGINE"):
        knobs.warn_about_unknown()
    knobs.warn_about_unknown()


def test_the_dump_holds_the_ir_of_every_pass_and_the_body(tmp_path, monkeypatch):
    monkeypatch.setenv("ENCELADUS_DUMP", str(tmp_path / "dump"))
    warm = enceladus.jit(add_kernel.fn).warmup(X, X, X, 16, BLOCK=16)
    (folder,) = (tmp_path / "dump").iterdir()
    names = sorted(file.name for file in folder.iterdir())
    assert "00-frontend.ir" in names
    assert (folder / "body.metal").read_text() == warm.body
    assert (folder / "key.txt").read_text() == str(warm.key)
    assert len([name for name in names if name.endswith(".ir")]) > 3


# ------------------------------------------------------------------------------------ public face


def test_the_public_names_exist():
    assert all(hasattr(enceladus, name) for name in enceladus.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = enceladus.nonsense


def test_importing_is_light():
    script = (
        "import sys, mlx.core; before = set(sys.modules); import enceladus;"
        "print([m for m in ('numpy', 'ml_dtypes') if m in sys.modules and m not in before],"
        "'enceladus.compiler' in sys.modules)"
    )
    root = os.path.dirname(os.path.dirname(__file__))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[] False\n", done.stderr
