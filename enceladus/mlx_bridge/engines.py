"""Which engine runs a launch."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from enceladus import knobs
from enceladus.codegen.kernel import CompiledKernel


def choose(interpret: bool = False) -> str:
    """``"interpret"``, ``"metal"``, ``"cuda"`` or ``"graph"``: what was asked for, else by MLX's device."""
    if interpret or knobs.interpret():
        return "interpret"
    asked = knobs.engine()
    if asked:
        return asked
    if mx.default_device().type != mx.gpu:
        return "graph"
    return "metal" if mx.metal.is_available() else "cuda"


def register(engine: str, compiled: CompiledKernel) -> Callable[..., list[mx.array]]:
    """MLX's kernel object for ``metal`` or ``cuda``."""
    if engine == "cuda":
        from enceladus.mlx_bridge.targets import cuda

        return cuda.register(compiled)
    from enceladus.mlx_bridge.targets import metal

    return metal.register(compiled)
