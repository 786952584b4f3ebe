"""Run a traced MLX graph whose work is done by kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

from .capture import CapturedKernel, CapturedOp, trace
from .errors import ExecutorError
from .kernel import HostKernel, Schedule, compile_source

# Primitives that only rename or rearrange data around a launch.
_IDENTITIES = {"Contiguous", "Copy", "StopGradient", "Depends"}
_RESHAPES = {"Reshape", "Flatten", "Unflatten", "Squeeze", "ExpandDims"}


def to_numpy(array: mx.array) -> np.ndarray:
    """A NumPy copy; bfloat16 becomes ``ml_dtypes.bfloat16``."""
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(array)


def to_dtype(dtype: mx.Dtype) -> np.dtype:
    """The NumPy dtype of an MLX dtype."""
    return (
        np.dtype(ml_dtypes.bfloat16)
        if dtype == mx.bfloat16
        else np.dtype(str(dtype).rpartition(".")[2].replace("bool", "bool_"))
    )


def run_graph(
    fn: Callable[..., Any],
    *arrays: mx.array,
    schedules: Sequence[Schedule] = ("forward", "reverse", 1),
    init_value: float | None = None,
    input_offsets: Sequence[int] | None = None,
    allow_unwritten: bool = False,
    exact: bool = True,
    contract: bool = False,
    on_kernel: Callable[[CapturedKernel, HostKernel], None] | None = None,
) -> list[np.ndarray]:
    """Trace ``fn``, run every kernel in it under all schedules, return the outputs.

    Around the kernels the graph may reshape, cast, copy and broadcast; other primitives are an error.
    ``init_value`` applies to every kernel. ``on_kernel`` is called after each one ran.
    """
    graph = trace(fn, *arrays)
    values = {traced.name: to_numpy(array) for traced, array in zip(graph.inputs, arrays, strict=True)}
    values.update({name: to_numpy(array) for name, array in graph.constants.items()})
    for node in graph.nodes:
        inputs = [values[traced.name] for traced in node.inputs]
        if isinstance(node, CapturedOp):
            values[node.outputs[0].name] = _evaluate(node, inputs)
            continue
        kernel = compile_source(node.source, contract=contract)
        results = kernel.run_schedules(
            inputs, [o.shape for o in node.outputs], [to_dtype(o.dtype) for o in node.outputs], node.grid,
            node.threadgroup, init_value, schedules, input_offsets=input_offsets,
            allow_unwritten=allow_unwritten, exact=exact,
        )  # fmt: skip
        values.update({traced.name: result for traced, result in zip(node.outputs, results, strict=True)})
        if on_kernel is not None:
            on_kernel(node, kernel)
    return [values[traced.name] for traced in graph.outputs]


def _evaluate(node: CapturedOp, inputs: list[np.ndarray]) -> np.ndarray:
    shape, dtype = node.outputs[0].shape, to_dtype(node.outputs[0].dtype)
    if node.name in _IDENTITIES:
        return inputs[0]
    if node.name in _RESHAPES:
        return inputs[0].reshape(shape)
    if node.name == "AsType":
        return inputs[0].astype(dtype)
    if node.name == "Broadcast":
        return np.ascontiguousarray(np.broadcast_to(inputs[0], shape))
    raise ExecutorError(
        f"run_graph cannot evaluate the MLX primitive {node.name}: use capture and run kernels one by one"
    )
