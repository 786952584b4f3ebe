"""Data-parallel training with ``enceladus.ops``: each process a share of the batch, gradients averaged.

Started as it is, the script trains in this process, then launches itself in two with ``mlx.launch``, and
compares. MLX's collectives and the kernels are nodes of one graph.

    python examples/data_parallel.py
    mlx.launch -n 2 examples/data_parallel.py     # on its own: in as many processes as you like
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten

from enceladus import ops

FEATURES, HIDDEN, CLASSES, BATCH, STEPS = 16, 32, 4, 64, 12
#: How far apart losses and weights may be: sums in another order.
TOLERANCE = 1e-4


class Model(nn.Module):
    """A gated layer between a norm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = ops.nn.LayerNorm(FEATURES)
        self.gate, self.up = nn.Linear(FEATURES, HIDDEN), nn.Linear(FEATURES, HIDDEN)
        self.out = nn.Linear(HIDDEN, CLASSES)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.norm(x)
        return self.out(ops.swiglu(self.gate(x), self.up(x)))


def train(group: mx.distributed.Group | None) -> tuple[list[float], list[float]]:
    """(the losses, of the whole batch; the sum of squares of every parameter at the end).

    ``group``: the processes that share every batch; None for this one alone.
    """
    rank, size = (0, 1) if group is None else (group.rank(), group.size())
    if BATCH % size:
        raise ValueError(f"{size} processes cannot share a batch of {BATCH} evenly")
    mx.random.seed(0)  # the same model and the same batches everywhere
    model, optimizer = Model(), optim.SGD(learning_rate=0.3)
    direction = mx.random.normal((FEATURES, CLASSES))

    def loss(x: mx.array, targets: mx.array) -> mx.array:
        return ops.cross_entropy(model(x), targets, reduction="mean")

    losses = []
    for step in range(STEPS):
        x = mx.random.normal((BATCH, FEATURES), key=mx.random.key(step))
        targets = mx.argmax(x @ direction, axis=-1)
        mine = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
        value, gradients = nn.value_and_grad(model, loss)(x[mine], targets[mine])
        if group is not None:
            gradients = nn.average_gradients(gradients, group)
            value = mx.distributed.all_sum(value, group=group) / size
        optimizer.update(model, gradients)
        mx.eval(value, model.state)
        losses.append(value.item())
    return losses, [array.square().sum().item() for _, array in tree_flatten(model.parameters())]


def free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nobody listens on now."""
    for _ in range(100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            first = 0
            for i in range(count):
                listener = stack.enter_context(socket.socket())
                listener.bind(("127.0.0.1", first + i if first else 0))
                first = first or listener.getsockname()[1]
            return first
    raise SystemExit("found no free ports")


def in_processes(count: int) -> dict[str, list[float]]:
    """What the first of ``count`` processes found, launched by MLX on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        # The launcher as a module: the script ``mlx.launch`` need not be on the path.
        code = "import sys; from mlx._distributed_utils.launch import main; sys.exit(main())"
        command = [
            sys.executable,
            "-c",
            code,
            "--starting-port",
            str(free_ports(count)),
            "-n",
            str(count),
            "--backend",
            "ring",
            "--python",
            sys.executable,
        ]
        paths = os.pathsep.join(p for p in (*sys.path, os.environ.get("PYTHONPATH", "")) if p)
        done = subprocess.run(
            [*command, "--env", f"PYTHONPATH={paths}", str(Path(__file__).resolve()), "--result", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if not path.exists():
            raise SystemExit(f"mlx.launch failed:\n{done.stdout}{done.stderr}")
        found: dict[str, list[float]] = json.loads(path.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Data-parallel training, checked against one process.")
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    launched = any(name in os.environ for name in ("MLX_RANK", "MLX_HOSTFILE"))
    if launched:
        group = mx.distributed.init(strict=True, backend="ring")
        losses, squares = train(group)
        if group.rank() == 0:
            print(f"{group.size()} processes: loss {losses[0]:.6f} → {losses[-1]:.6f}")
            if options.result is not None:
                options.result.write_text(json.dumps({"losses": losses, "squares": squares}))
        return

    losses, squares = train(None)
    print(f"one process:   loss {losses[0]:.6f} → {losses[-1]:.6f}")
    found = in_processes(2)
    print(f"two processes: loss {found['losses'][0]:.6f} → {found['losses'][-1]:.6f}")
    pairs = [*zip(losses, found["losses"], strict=True), *zip(squares, found["squares"], strict=True)]
    apart = max(abs(a - b) / max(abs(a), 1e-6) for a, b in pairs)
    if not apart <= TOLERANCE:
        raise SystemExit(f"losses or weights are {apart:.1e} apart, more than {TOLERANCE}")
    print(f"equal: losses and weights are at most {apart:.1e} apart (relative)")


if __name__ == "__main__":
    main()
