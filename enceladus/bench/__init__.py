"""Ablation: a kernel against the MLX operations it replaces, over sizes, in one table and one plot.

A *suite* is a Python module with a list ``BENCHMARKS`` (and, if wanted, ``CHAINS`` and ``TARGETS``):

    import mlx.core as mx
    from enceladus.bench import Benchmark

    def make_inputs(n, dtype):
        return mx.random.normal((n,)).astype(dtype), mx.random.normal((n,)).astype(dtype)

    BENCHMARKS = [
        Benchmark(
            name="vector add",
            sizes=(2**16, 2**20, 2**24),
            make_inputs=make_inputs,
            enceladus={"BLOCK=1024": vector_add},
            mlx=lambda x, y: x + y,
            bytes=lambda n, itemsize: 3 * n * itemsize,
        )
    ]

    python -m enceladus.bench my_suite.py --png add.png --json add.json
"""

from enceladus.bench.protocol import Benchmark, Chain, Pick, Target

__all__ = ["Benchmark", "Chain", "Pick", "Target"]
