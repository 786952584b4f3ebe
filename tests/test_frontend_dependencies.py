"""What a kernel reads at compile time, and that a change of it is noticed."""

from __future__ import annotations

import subprocess
import sys
import types
from enum import Enum
from functools import partial, wraps

import pytest

from enceladus.frontend.function import KernelFunction
from tests.frontend_helpers import define

SOURCE = """
SIZE = 4
TABLE = {"a": [1, 2]}
FLAG = tl.constexpr(True)

def plain(v, extra=2):
    return v + SIZE + settings.level

@jit
def helper(v):
    return v * FACTOR

FACTOR = 3.0

@jit
def kernel(x, out):
    size = plain(SIZE)
    tl.store(out, helper(tl.load(x)) + TABLE["a"][0])
    if FLAG and settings.deep.value and Mode.FAST:
        tl.store(out, tl.exp(size))
"""


class Mode(Enum):
    FAST = 1


@pytest.fixture
def kernel():
    settings = types.ModuleType("settings")
    settings.level = 1
    settings.deep = types.ModuleType("settings.deep")
    settings.deep.value = 1
    kernel = define(SOURCE, settings=settings, Mode=Mode)
    kernel.source_hash  # noqa: B018 - so that every change comes after a first look
    return kernel


def test_stable_while_nothing_changes(kernel):
    assert kernel.dependency_values() is kernel.dependency_values()
    assert kernel.source_hash == define(SOURCE, settings=kernel.lookup("settings"), Mode=Mode).source_hash


def test_values_are_named(kernel):
    values = dict(kernel.dependency_values())
    assert values["test_kernels.kernel: SIZE"] == "int 4"
    assert values["test_kernels.helper: FACTOR"] == "float 3.0"
    assert values["test_kernels.kernel: settings.deep.value"] == "int 1"
    assert values["test_kernels.kernel: Mode.FAST"] == "Mode.FAST = 1"
    assert values["test_kernels.kernel: FLAG"] == "constexpr bool True"
    assert not [name for name in values if "tl" in name.split(": ")[-1].split(".")]


def _globals(kernel):
    return kernel.function.__globals__


def _redefine(kernel, name, source):
    fresh = define(source, name, FACTOR=3.0, SIZE=4, settings=kernel.lookup("settings"))
    _globals(kernel)[name] = fresh


CHANGES = {
    "global": lambda k: _globals(k).update(SIZE=5),
    "same number, other type": lambda k: _globals(k).update(SIZE=4.0),
    "sign of zero": lambda k: _globals(k).update(SIZE=-0.0),
    "global of a helper": lambda k: _globals(k).update(FACTOR=4.0),
    "in place": lambda k: _globals(k)["TABLE"]["a"].append(3),
    "constexpr": lambda k: setattr(_globals(k)["FLAG"], "value", False),
    "module attribute": lambda k: setattr(k.lookup("settings").deep, "value", 2),
    "module attribute of a plain function": lambda k: setattr(k.lookup("settings"), "level", 2),
    "deleted": lambda k: _globals(k).pop("SIZE"),
    "jit helper": lambda k: _redefine(k, "helper", "@jit\ndef helper(v):\n    return v / FACTOR\n"),
    "plain helper": lambda k: _redefine(k, "plain", "def plain(v, extra=2):\n    return v - SIZE\n"),
    "default of a plain helper": lambda k: _redefine(
        k, "plain", "def plain(v, extra=3):\n    return v + SIZE + settings.level\n"
    ),
    "shadowed builtin": lambda k: _globals(k).update(Mode=types.SimpleNamespace(FAST=2)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changes_are_noticed(kernel, change):
    before, values = kernel.source_hash, kernel.dependency_values()
    change(kernel)
    assert kernel.source_hash != before and kernel.dependency_values() != values
    assert kernel.dependency_values() is kernel.dependency_values()


def test_changing_back_restores_the_hash(kernel):
    before = kernel.source_hash
    _globals(kernel)["SIZE"] = 5
    assert kernel.source_hash != before
    _globals(kernel)["SIZE"] = 4
    assert kernel.source_hash == before


def test_own_text_matters_but_not_its_place():
    source = "@jit\ndef kernel(x):\n    tl.store(x, 1.0)\n"
    assert define(source).source_hash == define("\n\n" + source).source_hash
    assert define(source).source_hash != define(source.replace("1.0", "2.0")).source_hash


def test_closures_and_defaults():
    def make(value, default=1):
        def kernel(x, k=default):
            x + value

        return KernelFunction(kernel)

    hashes = {make(1).source_hash, make(2).source_hash, make(1.0).source_hash, make(1, 2).source_hash}
    assert len(hashes) == 4 and make(1).source_hash in hashes


def test_wrapped_functions_are_followed():
    def decorate(function):
        @wraps(function)
        def inner(*args):
            return function(*args)

        return inner

    def body(k):
        return k

    def other(k):
        return k + 1

    source = "@jit\ndef kernel(x):\n    tl.store(x, f(1))\n"
    hashes = {
        define(source, f=f).source_hash
        for f in (decorate(body), decorate(other), partial(body, 1), partial(body, 2), partial(other, 1))
    }
    assert len(hashes) == 5


def test_recursion_and_unsupported_helpers_do_not_matter_here():
    source = """
@jit
def helper(v):
    while v:
        v = helper(v)

@jit
def kernel(x):
    kernel(x)
    if False:
        helper(x)
"""
    assert len(define(source).source_hash) == 64


def test_equal_in_other_processes():
    program = """
from tests.frontend_helpers import define
source = '''
WORDS = ("b", "a")
def plain(v):
    return v in {"x", "y", "z"}
@jit
def kernel(x):
    tl.store(x, plain("x") + len(WORDS))
'''
print(define(source).source_hash)
"""
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            text=True, capture_output=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(hashes) == 1
