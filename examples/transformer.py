"""A small language model, trained with ``enceladus.ops`` and with MLX's functions from the same seed.

Two transformer layers over characters: RMS norm, rotary attention with a softmax kernel, a SwiGLU gate, cross
entropy. Both trainings see the same batches, so their loss curves are the same but for rounding.

    python examples/transformer.py [--steps 60] [--png curves.png]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten

from enceladus import ops

TEXT = Path(__file__).resolve().parent / "data" / "garden.txt"
WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 64, 8
#: How far apart the curves may be, relative to the loss: rounding, amplified by the steps.
TOLERANCE = 1e-4


class MLXFunctions:
    """What the model asks for, by MLX."""

    norm: Any = nn.RMSNorm
    softmax = staticmethod(partial(mx.softmax, axis=-1))
    rope = staticmethod(partial(mx.fast.rope, traditional=False, base=10000.0, scale=1.0, offset=0))
    cross_entropy = staticmethod(nn.losses.cross_entropy)

    @staticmethod
    def swiglu(gate: mx.array, up: mx.array) -> mx.array:
        return nn.silu(gate) * up


class Kernels:
    """The same, by ``enceladus.ops``."""

    norm: Any = ops.nn.RMSNorm
    softmax = staticmethod(partial(ops.softmax, axis=-1))
    rope = staticmethod(ops.rope)
    cross_entropy = staticmethod(ops.cross_entropy)
    swiglu = staticmethod(ops.swiglu)


class Layer(nn.Module):
    """Attention and a gated MLP, each on normalized input and added to it."""

    def __init__(self, functions: Any):
        super().__init__()
        self.attention_norm, self.mlp_norm = functions.norm(WIDTH), functions.norm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self._functions = functions

    def attention(self, x: mx.array) -> mx.array:
        batch, length, _ = x.shape
        size = WIDTH // HEADS
        q, k, v = self.qkv(x).reshape(batch, length, 3, HEADS, size).transpose(2, 0, 3, 1, 4)
        q, k = (self._functions.rope(y, size) for y in (q, k))
        mask = nn.MultiHeadAttention.create_additive_causal_mask(length)
        weights = self._functions.softmax(q @ k.swapaxes(-1, -2) * size**-0.5 + mask)
        return self.out((weights @ v).swapaxes(1, 2).reshape(batch, length, WIDTH))

    def __call__(self, x: mx.array) -> mx.array:
        x = x + self.attention(self.attention_norm(x))
        gate, up = mx.split(self.gate_up(self.mlp_norm(x)), 2, axis=-1)
        return x + self.down(self._functions.swiglu(gate, up))


class Model(nn.Module):
    """Characters (batch, length) → logits of the next ones (batch, length, characters)."""

    def __init__(self, characters: int, functions: Any):
        super().__init__()
        self.embedding = nn.Embedding(characters, WIDTH)
        self.layers = [Layer(functions) for _ in range(LAYERS)]
        self.norm = functions.norm(WIDTH)

    def __call__(self, tokens: mx.array) -> mx.array:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.embedding.as_linear(self.norm(x))


def read() -> tuple[np.ndarray, int]:
    """The text as numbers, and how many different characters it has."""
    text = TEXT.read_text(encoding="utf-8")
    characters = sorted(set(text))
    numbers = {c: i for i, c in enumerate(characters)}
    return np.array([numbers[c] for c in text], dtype=np.int32), len(characters)


def train(functions: Any, steps: int, seed: int = 0) -> list[float]:
    """The losses of ``steps`` steps of AdamW."""
    text, characters = read()
    mx.random.seed(seed)
    # A large eps, for else Adam makes full steps out of gradients that are nothing but rounding.
    model, optimizer = Model(characters, functions), optim.AdamW(learning_rate=2e-3, eps=1e-5)
    mx.eval(model.parameters())
    cross_entropy: Callable[..., mx.array] = functions.cross_entropy

    def loss(tokens: mx.array, targets: mx.array) -> mx.array:
        return cross_entropy(model(tokens), targets, reduction="mean")

    def step(tokens: mx.array, targets: mx.array) -> mx.array:
        value, gradients = nn.value_and_grad(model, loss)(tokens, targets)
        optimizer.update(model, gradients)
        return value

    rng = np.random.default_rng(seed)
    losses = []
    for _ in range(steps):
        starts = rng.integers(0, text.size - LENGTH - 1, BATCH)
        batch = mx.array(np.stack([text[s : s + LENGTH + 1] for s in starts]))
        value = step(batch[:, :-1], batch[:, 1:])
        mx.eval(value, model.state, optimizer.state)
        losses.append(value.item())
    size = sum(array.size for _, array in tree_flatten(model.parameters()))
    print(f"{functions.__name__}: {size} parameters, loss {losses[0]:.4f} → {losses[-1]:.4f}")
    return losses


def plot(curves: dict[str, list[float]], path: Path) -> bool:
    """The curves as a PNG file; False, with a word about it, without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print(f"{path} is not drawn: that needs matplotlib (pip install -e '.[bench]')")
        return False
    figure, axes = pyplot.subplots()
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        axes.plot(losses, style, label=name)
    axes.set(xlabel="step", ylabel="cross entropy", title="The same training, with and without kernels")
    axes.legend()
    figure.savefig(path)
    pyplot.close(figure)
    print(f"curves in {path}")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer with kernels and with MLX.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--png", type=Path, help="draw the loss curves into this file")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    curves = {}
    for name, functions in (("MLX", MLXFunctions), ("enceladus.ops", Kernels)):
        start = time.perf_counter()
        curves[name] = train(functions, options.steps)
        print(f"{name}: {time.perf_counter() - start:.1f} s")
    apart = max(abs(a - b) / abs(a) for a, b in zip(*curves.values(), strict=True))
    print(f"the curves are at most {apart:.1e} apart (relative)")
    if options.png is not None:
        plot(curves, options.png)
    if not apart <= TOLERANCE:
        raise SystemExit(f"that is more than {TOLERANCE}")


if __name__ == "__main__":
    main()
