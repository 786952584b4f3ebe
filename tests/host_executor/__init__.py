"""Run the Metal text that MLX generates on the CPU, with real SIMT semantics.

::

    launches = capture(fn, *arrays)                # the texts, from real MLX
    kernel = compile_source(launches[0].source)    # clang, strict address spaces
    outputs = kernel.run(inputs, shapes, dtypes, grid, threadgroup)
    outputs = run_graph(fn, *arrays)               # all of it, in several thread orders

Everything that Metal leaves undefined and that can be noticed is an :class:`ExecutorError`.
Known differences from a GPU: denormals are kept, ``fast`` functions are as accurate as ``precise``
ones, and lanes of a SIMD group run one after the other between collectives.
"""

from .bare import BareKernel, to_mlx
from .buffers import HostArray
from .capture import CapturedKernel, capture, trace
from .errors import ExecutorError
from .execution import Facts, Launch
from .graph import run_graph, to_dtype, to_numpy
from .kernel import HostKernel, compile_source

__all__ = [
    "BareKernel",
    "CapturedKernel",
    "ExecutorError",
    "Facts",
    "HostArray",
    "HostKernel",
    "Launch",
    "capture",
    "compile_source",
    "run_graph",
    "to_dtype",
    "to_mlx",
    "to_numpy",
    "trace",
]
