"""Fixtures for the whole suite."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest

from tests.engines import ENGINES, engine
from tests.gradient_helpers import SummingTarget


@pytest.fixture(autouse=True)
def _graph_engine_on_the_cpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """The graph engine is the CPU's: its tests run there also on a machine with a GPU.

    MLX's GPU back ends lack some of the operations, such as scatters of 64-bit integers.
    """
    if not request.node.path.name.startswith("test_graph_"):
        yield
        return
    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(device)


@pytest.fixture(params=[name for name in ENGINES if name != "interpreter"])
def any_engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every engine that has gradients."""
    with engine(request.param, SummingTarget()):
        yield request.param
