"""The shape of the package: which room imports which, and no operation that an engine forgot."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from enceladus.ir import exchange, laid_out, ops
from enceladus.ir.core import OPERATIONS
from enceladus.mlx_bridge.targets import graph

PACKAGE = Path(__file__).parent.parent / "enceladus"

#: room → the rooms it may import (docs/architecture.md)
ALLOWED = {
    "ir": {"ir", "errors", "frontend.signature"},
    "layout": {"layout"},
    "language": {"language", "ir", "errors"},
    "frontend": {"frontend", "language", "ir", "errors"},
    "interpreter": {"interpreter", "frontend", "language", "ir", "errors"},
    "passes": {"passes", "ir", "layout", "errors", "frontend.signature", "codegen.kernel"},
    "autodiff": {"autodiff", "passes", "ir", "errors"},
    "codegen": {"codegen", "passes", "ir", "layout", "errors"},
}


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def modules(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_point_one_way(room):
    for path in modules(room):
        for name in imported_modules(path):
            if name.startswith("enceladus."):
                inner = name.removeprefix("enceladus.")
                rooms = ALLOWED[room]
                near = [a for a in rooms if f"{inner}.".startswith(a + ".") or a.startswith(inner + ".")]
                assert near, f"{path.relative_to(PACKAGE)} imports {name}"


@pytest.mark.parametrize("room", [*ALLOWED, "compiler.py", "errors.py"])
def test_only_the_bridge_imports_mlx(room):
    paths = [PACKAGE / room] if room.endswith(".py") else modules(room)
    for path in paths:
        names = {name.split(".")[0] for name in imported_modules(path)}
        assert "mlx" not in names, path
        if room != "interpreter":
            assert not names & {"numpy", "ml_dtypes"}, f"{path}: the compile path needs no NumPy"


def test_compiling_to_text_loads_neither_mlx_nor_numpy():
    code = (
        "import sys, types\n"
        "package = types.ModuleType('enceladus')\n"
        f"package.__path__ = [{str(PACKAGE)!r}]\n"
        "sys.modules['enceladus'] = package\n"  # the public face imports MLX; everything below must not
        "import enceladus.compiler, enceladus.frontend.build, enceladus.language\n"
        "assert 'mlx' not in sys.modules and 'numpy' not in sys.modules, sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------------------ operations

#: Operations that an engine handles by control flow, or that cannot reach it, with the reason.
CONTROL_FLOW = {ops.For, ops.If, ops.Yield}
LAID_OUT = {cls for cls in vars(laid_out).values() if cls in OPERATIONS}
POINTERS = {ops.AddPointer, ops.Load, ops.Store, exchange.Atomic, exchange.AtomicCas}


def test_every_operation_class_is_known_here():
    modules = (ops, exchange, laid_out)
    declared = {cls for module in modules for cls in vars(module).values() if cls in OPERATIONS}
    assert declared == set(OPERATIONS)


def test_the_graph_engine_knows_every_operation():
    missing = set(OPERATIONS) - set(graph.HANDLERS) - LAID_OUT - POINTERS - {ops.IsAligned}
    assert not missing - CONTROL_FLOW, missing


@pytest.mark.parametrize("cls", OPERATIONS, ids=lambda c: c.mnemonic)
def test_every_operation_states_its_fields_and_prints(cls):
    fields = (*cls.operand_fields, *cls.operand_list_fields, *cls.block_fields, *cls.attribute_fields)
    assert set(fields) == set(cls.__annotations__)
    assert cls.mnemonic
    assert cls.__doc__ or cls in (ops.Unary, ops.Binary, ops.Compare), "an operation says what it means"
