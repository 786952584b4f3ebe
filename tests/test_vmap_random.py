"""Random kernels in enceladus.vmap: Metal's text for a batch gives bit for bit what its examples give."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import enceladus
from tests.engines import HostTarget, assert_same, engine, kernel_from_source, needs_host
from tests.host_executor import to_mlx, to_numpy
from tests.test_random_programs import Program, _settings, programs


def check(program: Program, data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from([(2,), (3,), (2, 2)]))
    arrays = {name: x for name, x in program.arguments.items() if isinstance(x, np.ndarray)}
    rest = {name: x for name, x in program.arguments.items() if name not in arrays}
    levels = [{name: data.draw(st.booleans()) for name in arrays} for _ in sizes]
    if not any(levels[0].values()):
        levels[0][next(iter(arrays))] = True
    for level in levels[1:]:
        if not any(level.values()):
            level[next(iter(arrays))] = True
    examples = {}
    for name, x in arrays.items():
        shape = [size for size, level in zip(sizes, levels, strict=True) if level[name]]
        count = int(np.prod(shape, dtype=int))
        examples[name] = np.stack([np.roll(x, i) for i in range(count)]).reshape(*shape, *x.shape)

    kernel = kernel_from_source(program.source)

    def of_one(own: enceladus.JITFunction, *values: mx.array) -> Any:
        given = dict(zip(arrays, values, strict=True))
        return own[program.grid](**given, **rest, num_warps=program.num_warps)

    with engine("host", HostTarget(("forward", "reverse"))):
        own = enceladus.JITFunction(kernel.fn, kernel.options)
        batched = lambda *values: of_one(own, *values)  # noqa: E731
        for level in reversed(levels):
            batched = enceladus.vmap(batched, in_axes=tuple(0 if level[name] else None for name in arrays))
        got = [to_numpy(x) for x in batched(*[to_mlx(x) for x in examples.values()])]

        plain = enceladus.JITFunction(kernel.fn, kernel.options)
        for index in np.ndindex(*sizes):
            values = []
            for name, x in examples.items():
                place = tuple(i for i, level in zip(index, levels, strict=True) if level[name])
                values.append(to_mlx(np.ascontiguousarray(x[place])))
            for number, want in enumerate(of_one(plain, *values)):
                assert_same(got[number][index], to_numpy(want), f"example {index}, output {number}")


@needs_host
@_settings(8)
@given(programs(), st.data())
def test_random_batches(program: Program, data: st.DataObject) -> None:
    check(program, data)


@pytest.mark.slow
@needs_host
@_settings(60)
@given(programs(), st.data())
def test_more_random_batches(program: Program, data: st.DataObject) -> None:
    check(program, data)
