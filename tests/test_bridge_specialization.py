"""The specialization key: what changes it, what does not, and how it is used."""

from __future__ import annotations

import importlib.util
import sys
import threading

import mlx.core as mx
import pytest

import enceladus
import enceladus.language as tl
from enceladus.mlx_bridge import engines, specialization
from tests.bridge_helpers import add_kernel, scale_kernel, trace, values

X = mx.arange(16, dtype=mx.float32)


@pytest.fixture(autouse=True)
def cache_in(tmp_path, monkeypatch):
    monkeypatch.setenv("ENCELADUS_CACHE_DIR", str(tmp_path))


@enceladus.jit(do_not_specialize=["m"])
def keyed(x_ptr, n, m, flag, VALUE: tl.constexpr, num_stages: tl.constexpr = 2):
    pass


BASE = {"x_ptr": X, "n": 3, "m": 3, "flag": 2.5, "VALUE": 1}


def _key(kernel=keyed, **changes):
    return kernel.warmup(**{**BASE, **changes}).key


DIFFERENT = [
    {"x_ptr": X.astype(mx.float16)},
    {"x_ptr": None},
    {"n": 1},
    {"n": 16},
    {"n": 2**40},
    {"n": 2.0},
    {"n": True},
    {"m": 2**40},
    {"flag": 3},
    {"VALUE": 2},
    {"VALUE": 1.0},
    {"VALUE": True},
    {"VALUE": "1"},
    {"VALUE": tl.float32},
    {"VALUE": (1, 2)},
    {"num_stages": 3},
    {"num_warps": 8},
    {"grid": (2**31 - 1,)},
]


@pytest.mark.parametrize("changes", DIFFERENT, ids=str)
def test_what_changes_the_key(changes):
    kernel = enceladus.jit(do_not_specialize=["m"])(keyed.fn)  # a new one: seventeen keys would warn
    base, changed = _key(kernel), _key(kernel, **changes)
    assert base != changed
    assert base.digest() != changed.digest()
    assert base.difference(changed)


SAME = [
    {"x_ptr": X[:3]},
    {"x_ptr": enceladus.empty((4, 4))},
    {"n": 5},
    {"n": -7},
    {"m": 1},
    {"m": 16},
    {"flag": -1.0},
    {"num_ctas": 2},
    {"grid": (7, 7)},
    {"VALUE": tl.constexpr(1)},
]


@pytest.mark.parametrize("changes", SAME, ids=str)
def test_what_does_not_change_the_key(changes):
    assert _key() == _key(**changes)
    assert _key().digest() == _key(**changes).digest()


def test_the_two_dtype_spellings_are_one_constant():
    assert _key(VALUE=mx.float16) == _key(VALUE=tl.float16)


def test_environment_options_and_version_are_in_the_key(monkeypatch):
    base = _key()
    monkeypatch.setenv("ENCELADUS_DEBUG", "1")
    assert _key() != base
    monkeypatch.delenv("ENCELADUS_DEBUG")
    fast = enceladus.jit(math_mode="fast")(keyed.fn)
    assert "math_mode: relaxed → fast" in base.difference(_key(fast))
    digest = base.digest()
    monkeypatch.setattr(specialization, "compiler_fingerprint", lambda: "another compiler")
    assert base.digest() != digest


def test_a_difference_is_readable():
    assert _key(n=3).difference(_key(n=32)) == ["argument n: int32 → int32/16"]
    assert "argument VALUE: =int:1" in str(_key())


SOURCE = """
import enceladus
import enceladus.language as tl

SCALE = tl.constexpr({scale})

@enceladus.jit
def helper(x):
    return x * {factor}

@enceladus.jit
def kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, helper(tl.load(x_ptr + offsets)) * SCALE)
"""


def _module(tmp_path, name, **values):
    path = tmp_path / f"{name}.py"
    path.write_text(SOURCE.format(**values))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_helpers_and_globals_are_in_the_key(tmp_path):
    keys = {}
    for name, options in {
        "first": {"scale": 2, "factor": 3},
        "again": {"scale": 2, "factor": 3},
        "scale": {"scale": 5, "factor": 3},
        "factor": {"scale": 2, "factor": 7},
    }.items():
        module = _module(tmp_path, name, **options)
        keys[name] = module.kernel.warmup(X, enceladus.empty(16), BLOCK=16).key.source
        out = module.kernel[(1,)](X, enceladus.empty(16), BLOCK=16)
        assert values(out).tolist() == (values(X) * options["scale"] * options["factor"]).tolist()
    assert len({keys["first"], keys["scale"], keys["factor"]}) == 3


@pytest.mark.parametrize("engine", ["", "metal"])
def test_a_global_that_changes_between_launches_is_noticed(tmp_path, engine, monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", engine)
    module = _module(tmp_path, f"changing_{engine}", scale=2, factor=3)

    def launch():
        return module.kernel[(1,)](X, enceladus.empty(16), BLOCK=16)

    def seen():
        if engine:
            return [source for source, _, _ in trace(launch)[0]]
        return values(launch()).tolist()

    before = [seen(), seen()]
    module.SCALE = tl.constexpr(11)
    after = [seen(), seen()]
    assert before[0] == before[1] != after[0] == after[1]


# ------------------------------------------------------------------------------------- the hot path


def _sources(calls, monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")
    return [trace(call)[0] for call in calls]


def test_a_plan_is_not_shared_by_values_that_python_calls_equal(monkeypatch):
    @enceladus.jit
    def kernel(out_ptr, n, VALUE: tl.constexpr):
        tl.store(out_ptr, n * 0 + VALUE)

    def launch(n, value):
        return kernel[(1,)](enceladus.empty(9), n, VALUE=value)

    pairs = [(3, 1), (3, True), (3, 1.0), (3.0, 1), (3, 0.0), (3, -0.0), (True, 1), (1, 1)]
    twice = [lambda p=p: launch(*p) for p in pairs * 2]
    sources = [traced[0].source for traced in _sources(twice, monkeypatch)]
    first, second = sources[: len(pairs)], sources[len(pairs) :]
    assert first == second
    bodies = [source.partition("[[kernel]]")[2] for source in first]
    assert bodies[0] != bodies[3]
    assert bodies[4] != bodies[2]


def test_a_repeated_launch_goes_by_its_plan_where_the_device_decides(monkeypatch):
    @enceladus.jit
    def kernel(out_ptr, n):
        tl.store(out_ptr, n)

    monkeypatch.delenv("ENCELADUS_ENGINE", raising=False)
    monkeypatch.setattr(engines, "choose", lambda interpret=False: "metal")
    trace(lambda: [kernel[(1,)](enceladus.empty(9), 3) for _ in range(5)][-1])
    assert len(kernel._plans) == 1


def test_scalars_are_packed_for_each_launch(monkeypatch):
    """Plans keep integers and repack floats; both must arrive."""
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")
    out = enceladus.empty(16)
    packed = []

    def note(event):
        if event["type"] == "constants":
            packed.append([values(array) for _, array in event["constants"] if array.dtype == mx.int32])

    cases = [(16, 0.5), (16, 0.5), (16, -0.0), (16, 0.0), (13, 0.5), (15, 1e300), (13, -0.0)]
    for n, factor in cases:
        mx.export_function(note, lambda n=n, factor=factor: scale_kernel[(1,)](X, out, n, factor, BLOCK=16))
    found = [(int(words[0][0]), words[0][1:2].view("float32")[0]) for words in packed]
    wanted = [(n, mx.array(factor).item()) for n, factor in cases]
    assert [(n, str(f)) for n, f in found] == [(n, str(type(found[0][1])(f))) for n, f in wanted]


@pytest.mark.parametrize("engine", ["", "interpret"])
def test_ignored_launch_options(engine, monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", engine)
    out = add_kernel[(1,)](X, X, enceladus.empty(16), 16, BLOCK=16, num_stages=3, num_ctas=1, maxnreg=64)
    assert values(out).tolist() == (2 * values(X)).tolist()


def test_a_constexpr_named_like_a_launch_option_receives_it():
    @enceladus.jit
    def kernel(out_ptr, num_warps: tl.constexpr, num_stages: tl.constexpr = 1):
        tl.store(out_ptr, num_warps * 100 + num_stages)

    for _ in range(2):
        assert values(kernel[(1,)](enceladus.empty(1), num_warps=8, num_stages=3)).tolist() == [803]
    assert kernel.warmup(enceladus.empty(1), num_warps=8).kernel.num_warps == 8


def test_the_seventeenth_compile_warns_and_names_the_argument():
    @enceladus.jit
    def kernel(out_ptr, n, VALUE: tl.constexpr):
        tl.store(out_ptr, n + VALUE)

    def compile_with(value):
        kernel.warmup(enceladus.empty(1), 3 + value % 2 * 29, VALUE=value)

    for value in range(16):
        compile_with(value)
    with pytest.warns(enceladus.EnceladusWarning, match="kernel has been compiled 17 times.*argument VALUE"):
        compile_with(16)
    compile_with(17)  # once is enough


def test_threads_share_one_compile():
    kernel = enceladus.jit(scale_kernel.fn)
    compiled = []
    start = threading.Barrier(8)

    def work():
        start.wait()
        compiled.append(kernel.warmup(X, enceladus.empty(16), 16, 2.0, BLOCK=16).kernel)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 8
    assert len({id(found) for found in compiled}) == 1
