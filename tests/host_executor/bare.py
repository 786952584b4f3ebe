"""A hand-written kernel body, from source to result: what tests of bodies need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

from .buffers import HostArray
from .capture import CapturedKernel, capture
from .execution import Facts
from .graph import to_dtype
from .kernel import HostKernel, Input, Schedule, compile_source


def to_mlx(array: np.ndarray) -> mx.array:
    """An MLX array with the same elements; ``ml_dtypes.bfloat16`` is known."""
    if array.dtype == ml_dtypes.bfloat16:
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    return mx.array(array)


class BareKernel:
    """``mx.fast.metal_kernel`` with the host executor behind it.

    Inputs are named a, b, c, ... and outputs o, p, q, ... unless names are given.
    """

    def __init__(
        self,
        body: str,
        *,
        inputs: Sequence[str] = ("a",),
        outputs: Sequence[str] = ("o",),
        header: str = "",
        atomic_outputs: bool = False,
        contract: bool = False,
    ) -> None:
        self._kernel: Any = mx.fast.metal_kernel(
            name="bare", input_names=list(inputs), output_names=list(outputs), source=body, header=header,
            atomic_outputs=atomic_outputs,
        )  # fmt: skip
        self._contract = contract
        self.last_run: Facts | None = None

    def captured(
        self,
        inputs: Sequence[Input],
        shapes: Any,
        dtypes: Any,
        grid: Any,
        threadgroup: Any,
        template: Any = (),
    ) -> CapturedKernel:
        """The launch as MLX records it."""
        arrays = [to_mlx(np.asarray(x.array if isinstance(x, HostArray) else x)) for x in inputs]

        def call(*arguments: mx.array) -> Any:
            return self._kernel(
                inputs=list(arguments), output_shapes=list(shapes), output_dtypes=list(dtypes),
                grid=tuple(grid),
                threadgroup=tuple(threadgroup), template=list(template),
            )  # fmt: skip

        return capture(call, *arrays)[0]

    def __call__(
        self,
        *inputs: Input,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        template: Sequence[tuple[str, Any]] = (),
        init_value: float | None = None,
        schedules: Sequence[Schedule] = ("forward", "reverse", 1),
        **options: Any,
    ) -> list[np.ndarray]:
        """Run under every schedule; see :meth:`HostKernel.run_schedules` for ``options``."""
        launch = self.captured(inputs, shapes, dtypes, grid, threadgroup, template)
        kernel: HostKernel = compile_source(launch.source, contract=self._contract)
        results = kernel.run_schedules(
            inputs,
            shapes,
            [to_dtype(dtype) for dtype in dtypes],
            grid,
            threadgroup,
            init_value,
            schedules,
            **options,
        )
        self.last_run = kernel.last_run
        return results
