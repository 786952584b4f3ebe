"""``examples/transformer.py`` and ``examples/data_parallel.py``: trainings that agree with those of MLX."""

from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import pytest

from tests.test_examples import load


def test_curves_agree_and_fall(tmp_path: Path) -> None:
    transformer = load("transformer")
    first = transformer.train(transformer.MLXFunctions, 4)
    second = transformer.train(transformer.Kernels, 4)
    assert second == pytest.approx(first, rel=1e-5)
    assert first != transformer.train(transformer.MLXFunctions, 4, seed=1), "another seed, another curve"
    assert second[-1] < second[0] - 0.5


def test_the_curves_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws with matplotlib")
    path = tmp_path / "curves.png"
    assert load("transformer").plot({"MLX": [3.0, 2.0], "enceladus.ops": [3.0, 2.0]}, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not load("transformer").plot({}, tmp_path / "curves.png")
    assert "needs matplotlib" in capsys.readouterr().out


def test_curves_that_differ_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    transformer = load("transformer")
    monkeypatch.setattr(sys, "argv", ["transformer.py", "--steps", "2"])
    monkeypatch.setattr(transformer.Kernels, "swiglu", staticmethod(lambda gate, up: gate * up))
    with pytest.raises(SystemExit, match="that is more than"):
        transformer.main()


@pytest.mark.skipif(
    not mx.distributed.is_available("ring"), reason="needs the ring back end of mx.distributed"
)
def test_two_processes_train_as_one_does() -> None:
    data_parallel = load("data_parallel")
    losses, squares = data_parallel.train(None)
    found = data_parallel.in_processes(2)
    assert found["losses"] == pytest.approx(losses, rel=1e-5)
    assert found["squares"] == pytest.approx(squares, rel=1e-4, abs=1e-6)
    assert losses[-1] < losses[0] - 0.03


def test_batches_that_cannot_be_shared() -> None:
    class Three:
        def rank(self) -> int:
            return 0

        def size(self) -> int:
            return 3

    with pytest.raises(ValueError, match="3 processes cannot share a batch of 64"):
        load("data_parallel").train(Three())
