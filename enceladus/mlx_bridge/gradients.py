"""Gradients of launches: ``mx.grad``, ``mx.vjp`` and ``mx.value_and_grad`` through a kernel.

MLX's kernel primitive has no derivative. A launch on arrays that MLX is tracing therefore goes through an
``mx.custom_function``: forward it is the launch, backward a rule (see :class:`Derivative`). All other
launches stay as they were; what they pay is one question, :func:`is_traced`.

MLX has no public way to ask whether an array is being traced. But a function under ``mx.compile`` says so:
called with traced arrays, its Python body runs again, and is replayed from the cache otherwise. The answer is
yes inside every transformation (grad, vjp, compile, vmap, export), because any of them may be inside a grad.

MLX cannot export an ``mx.custom_function``: :func:`no_gradients` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from threading import get_ident
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from enceladus.codegen.kernel import Role
from enceladus.errors import CompilationError
from enceladus.mlx_bridge.fresh import FreshArray
from enceladus.mlx_bridge.grid import Grid

if TYPE_CHECKING:
    from enceladus.ir.core import Function
    from enceladus.mlx_bridge.backward import Backward
    from enceladus.mlx_bridge.launch import Launch

Rule = Callable[..., Any]

_disabled: ContextVar[bool] = ContextVar("enceladus_no_gradients", default=False)

# ------------------------------------------------------------------------------ tracing or not

#: Threads whose last question ran the body of the probe.
hits: set[int] = set()


def _body(*_: mx.array) -> None:
    hits.add(get_ident())


#: ``probe(*arrays)`` leaves this thread's number in ``hits`` if an array is traced, or MLX saw no arrays of
#: such types before (:func:`confirm` finds out).
probe: Callable[..., None] = mx.compile(_body, shapeless=True)


def confirm(*arrays: mx.array) -> bool:
    """After ``probe(*arrays)`` left something in ``hits``: whether one of these arrays is being traced."""
    thread = get_ident()
    if thread not in hits:
        return False
    hits.discard(thread)
    probe(*arrays)  # what was only MLX's first sight of such arrays is in its cache now
    if thread not in hits:
        return False
    hits.discard(thread)
    return True


def is_traced(arrays: Sequence[Any]) -> bool:
    """Whether one of the MLX arrays among ``arrays`` belongs to a transformation in progress."""
    found = [x for x in arrays if isinstance(x, mx.array)]
    if not found:
        return False
    probe(*found)
    return bool(hits) and confirm(*found)


@contextmanager
def no_gradients() -> Iterator[None]:
    """Launches inside get no gradient, so that ``mx.export_function`` can export what they add to the graph.

    Asking for a gradient of such a launch fails in MLX on a GPU; on the CPU's engine, whose launches
    are made of MLX operations, there still is one, but not one that was given by ``@kernel.vjp``.
    """
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)


def are_wanted() -> bool:
    return not _disabled.get()


# ------------------------------------------------------------------------------------- calls


@dataclass(slots=True)
class Call:
    """One launch, as its derivative sees it.

    ``names`` and ``arrays``: the array leaves. ``inputs``: places of those whose contents matter.
    ``outputs``: places of the written ones, in order. ``numbers``: scalar leaf → value; ``constants``: every
    parameter that is no run-time array → its value.
    """

    engine: str
    grid: Grid
    names: list[str]
    arrays: list[Any]
    inputs: list[int]
    outputs: list[int]
    numbers: Mapping[str, Any]
    constants: Mapping[str, Any]
    merged: frozenset[int] = frozenset()  #: outputs that keep what the kernel does not write

    def filled(self, inputs: Sequence[mx.array]) -> list[Any]:
        """The array leaves, with these in the place of ``inputs``."""
        arrays = list(self.arrays)
        for place, array in zip(self.inputs, inputs, strict=True):
            arrays[place] = array
        return arrays


@dataclass(slots=True)
class Derivative:
    """The derivative of one specialization of a kernel.

    There are three kinds, the first that exists is taken: the user's rule (``own``); a backward kernel; and
    MLX's derivative of the same kernel made of MLX operations (the graph engine's way).
    """

    kernel: str
    function: Callable[[], Function]
    own: Callable[[], Rule | None]
    math_mode: str = "relaxed"
    _backward: Backward | None = field(default=None, repr=False)
    _refusals: dict[str, CompilationError] | None = field(default=None, repr=False)

    def refusals(self) -> dict[str, CompilationError]:
        """Array leaf → why there is no gradient with respect to it."""
        if self.own() is not None:
            return {}
        if self._refusals is None:
            from enceladus.autodiff.activity import Activity

            found = Activity(self.function()).refusals()
            self._refusals = {array.name: error for array, error in found.items()}
        return self._refusals

    def tie(self, call: Call, forward: Callable[[list[Any]], list[mx.array]]) -> list[mx.array]:
        """``forward`` of the array leaves as a node of MLX's graph that has this derivative."""
        inputs = self.guarded(call)
        if not inputs:
            return forward(call.arrays)

        def of_inputs(*arrays: mx.array) -> list[mx.array]:
            return forward(call.filled(arrays))

        if call.engine == "graph":
            return _as_list(_vectorizable(of_inputs, self.rule(call))(*inputs))
        tied: Any = mx.custom_function(of_inputs)

        def refuse(*_: Any) -> Any:
            raise NotImplementedError(
                f"{self.kernel}() has no forward-mode derivative (mx.jvp) on the {call.engine} engine; the "
                "graph engine (CPU) has one"
            )

        tied.vjp(self.rule(call))
        tied.jvp(refuse)
        return _as_list(tied(*inputs))

    def guarded(self, call: Call) -> list[mx.array]:
        """The arrays of ``call.inputs``, such that asking for a gradient that does not exist raises."""
        refusals = self.refusals()
        inputs = []
        for place in call.inputs:
            array, name = call.arrays[place], call.names[place]
            inputs.append(_refusing(array, refusals[name]) if name in refusals else array)
        return inputs

    def rule(self, call: Call) -> Rule:
        """The rule of an ``mx.custom_function`` of ``call.inputs``."""

        def rule(primals: Any, cotangents: Any, outputs: Any) -> tuple[mx.array, ...]:
            primals, cotangents, outputs = (_as_list(x) for x in (primals, cotangents, outputs))
            own = self.own()
            found: Sequence[mx.array | None]
            if own is not None:
                found = _apply(own, self.kernel, call, primals, cotangents, outputs)
            else:
                found = self.pull_back(call, primals, cotangents)
            # MLX would take shape and type of a None from the wrong array.
            return tuple(mx.zeros_like(x) if g is None else g for x, g in zip(primals, found, strict=True))

        return rule

    def trace_in_graph(self, call: Call) -> list[mx.array]:
        """The graph engine's launch: MLX differentiates it, unless there is a rule or a refusal."""

        def forward(arrays: list[Any]) -> list[mx.array]:
            return self.in_graph(call, arrays)

        if not are_wanted() or not (self.own() or self.refusals()) or not is_traced(call.arrays):
            return forward(call.arrays)
        return self.tie(call, forward)

    def backward(self) -> Backward:
        """The backward kernels."""
        if self._backward is None:
            from enceladus.mlx_bridge.backward import Backward

            def derive(name: str, function: Callable[[], Function]) -> Derivative:
                return Derivative(name, lru_cache(maxsize=1)(function), lambda: None, self.math_mode)

            self._backward = Backward(self.function(), self.math_mode, derive)
        return self._backward

    def kind(self, call: Call) -> tuple[str, str]:
        """Where gradients of ``call`` come from, ``"rule"``, ``"kernel"`` or ``"graph"``, and why."""
        from enceladus.autodiff.reverse import NoBackward

        if self.own() is not None:
            return "rule", f"given by @{self.kernel}.vjp"
        if call.engine == "graph":
            return "graph", "MLX differentiates the operations that the launch is made of"
        try:
            self.backward().prepared(call)
        except NoBackward as reason:
            return "graph", f"the kernel as MLX operations, because {reason}"
        return "kernel", "a backward kernel"

    def pull_back(
        self, call: Call, primals: list[mx.array], cotangents: list[mx.array]
    ) -> Sequence[mx.array | None]:
        """The gradients of ``call.inputs``."""
        from enceladus.autodiff.reverse import NoBackward

        if call.engine != "graph":
            try:
                return self.backward().run(call, primals, cotangents)
            except NoBackward:
                pass
        return self.pull_back_in_graph(call, primals, cotangents)

    def pull_back_in_graph(
        self, call: Call, primals: list[mx.array], cotangents: list[mx.array]
    ) -> tuple[mx.array | None, ...]:
        """The gradients of ``call.inputs``: those of the same kernel made of MLX operations."""
        floats = [i for i, x in enumerate(primals) if mx.issubdtype(x.dtype, mx.floating)]
        wanted = [i for i, x in enumerate(cotangents) if mx.issubdtype(x.dtype, mx.floating)]
        if not floats or not wanted:
            return (None,) * len(primals)

        def forward(*given: mx.array) -> list[mx.array]:
            inputs = list(primals)
            for i, x in zip(floats, given, strict=True):
                inputs[i] = x
            results = self.in_graph(call, call.filled(inputs))
            return [results[i] for i in wanted]

        _, found = mx.vjp(forward, [primals[i] for i in floats], [cotangents[i] for i in wanted])
        gradients: list[mx.array | None] = [None] * len(primals)
        for i, gradient in zip(floats, found, strict=True):
            gradients[i] = gradient
        return tuple(gradients)

    def in_graph(self, call: Call, arrays: list[Any]) -> list[mx.array]:
        """The written arrays, in order, by MLX operations."""
        from enceladus.mlx_bridge.launch import as_mlx
        from enceladus.mlx_bridge.targets.graph import run

        function = self.function()
        leaves = dict(zip(call.names, arrays, strict=True))
        arguments = [
            as_mlx(leaves[v.name]) if v.name in leaves else call.numbers[v.name] for v in function.arguments
        ]
        order = {value.name: i for i, value in enumerate(function.arguments)}
        written = [order[call.names[place]] for place in call.outputs]
        results = run(function, call.grid, arguments, {i: arguments[i] for i in written})
        return [results[i] for i in written]


def _as_list(arrays: Any) -> list[mx.array]:
    return [arrays] if isinstance(arrays, mx.array) else list(arrays)


def _vectorizable(forward: Callable[..., list[mx.array]], rule: Rule) -> Any:
    """An ``mx.custom_function`` that keeps its rule under ``mx.vmap``, where MLX would drop it.

    Both are made of MLX operations; ``rule`` takes and returns lists.
    """

    def over_batch(inputs: Any, axes: Any) -> tuple[list[mx.array], list[int]]:
        inputs = _as_list(inputs)
        in_axes = list(axes) if isinstance(axes, (list, tuple)) else [axes]

        def batched_rule(primals: Any, cotangents: Any, outputs: Any) -> list[mx.array]:
            lists = [_as_list(x) for x in (primals, cotangents, outputs)]
            found = mx.vmap(rule, in_axes=(in_axes, [0] * len(lists[1]), [0] * len(lists[2])))(*lists)
            return [
                g.sum(axis=0) if axis is None else mx.moveaxis(g, 0, axis)
                for g, axis in zip(found, in_axes, strict=True)
            ]

        batched = _vectorizable(mx.vmap(forward, in_axes=tuple(in_axes)), batched_rule)
        made = _as_list(batched(*inputs))
        return made, [0] * len(made)

    tied: Any = mx.custom_function(forward)
    tied.vjp(rule)
    tied.vmap(over_batch)
    return tied


def _refusing(array: mx.array, error: CompilationError) -> mx.array:
    """``array``, but asking for a gradient with respect to it raises ``error``."""

    def refuse(*_: Any) -> Any:
        raise CompilationError(error.reason, error.hint, error.location)

    same: Any = mx.custom_function(lambda x: x)
    same.vjp(refuse)
    same.jvp(refuse)
    same.vmap(lambda array, axis: (_refusing(array, error), axis))
    made: mx.array = same(array)
    return made


# ------------------------------------------------------------------------------ rules of users


def _apply(
    rule: Rule,
    kernel: str,
    call: Call,
    primals: list[mx.array],
    cotangents: list[mx.array],
    outputs: list[mx.array],
) -> tuple[mx.array | None, ...]:
    """Call a rule of ``@kernel.vjp`` and check what it returns."""
    places = dict(zip((call.names[place] for place in call.inputs), range(len(primals)), strict=True))
    arguments = {name: value for name, value in call.constants.items() if not _holds_array(value)}
    arguments.update(zip(call.names, call.filled(primals), strict=True))
    one = len(outputs) == 1
    found = rule(
        {name: value for name, value in arguments.items() if not isinstance(value, FreshArray)},
        cotangents[0] if one else tuple(cotangents),
        outputs[0] if one else tuple(outputs),
    )
    if not isinstance(found, Mapping):
        raise TypeError(
            f"the gradient rule of {kernel}() returned {type(found).__name__}; it must return a dictionary "
            "from argument names to gradients"
        )
    gradients: list[mx.array | None] = [None] * len(primals)
    for name, gradient in found.items():
        if name not in call.names:
            raise ValueError(
                f"the gradient rule of {kernel}() returned a gradient for {name!r}, which is no array "
                f"argument; these are: {', '.join(call.names)}"
            )
        if gradient is None or name not in places:  # what the launch does not look at
            continue
        primal = primals[places[name]]
        if not isinstance(gradient, mx.array) or gradient.shape != primal.shape:
            shape = getattr(gradient, "shape", type(gradient).__name__)
            raise ValueError(
                f"the gradient rule of {kernel}() returned a gradient of shape {shape} for {name!r}, which "
                f"has shape {primal.shape}"
            )
        gradients[places[name]] = gradient.astype(primal.dtype)
    return tuple(gradients)


def _holds_array(value: Any) -> bool:
    """Whether an argument is an array or a tuple with arrays: a rule gets these as leaves."""
    return any(map(_holds_array, value)) if isinstance(value, tuple) else hasattr(value, "shape")


# ----------------------------------------------------------------------- launches of a GPU kernel


def inputs_of(launch: Launch) -> list[int]:
    """Places of the array leaves on whose contents the results depend, as far as they are MLX arrays."""
    if not launch.runs:
        return []
    read = {leaf for leaf, _ in launch.inputs}
    updated = {array.name for array in launch.compiled.arrays if array.role is Role.ATOMIC}
    kept = {o.leaf for o in launch.outputs if (o.mark >= 0 or o.name in updated) and not o.fresh}
    return sorted((read | kept) - launch.foreign)


def run_traced(
    launch: Launch,
    arrays: Sequence[Any],
    scalars: mx.array | None,
    numbers: Mapping[str, Any],
    constants: Mapping[str, Any],
) -> Any:
    """``launch.run(arrays, scalars)`` on traced arrays, with a derivative."""
    from enceladus.mlx_bridge.launch import require_distinct

    derivative = launch.derivative
    if derivative is None or not launch.runs or not are_wanted():
        return launch.run(arrays, scalars)
    require_distinct(launch.distinct, arrays)
    made = compute_traced(launch, derivative, arrays, scalars, numbers, constants)
    return launch.finish(arrays, made)


def call_of(
    launch: Launch, arrays: Sequence[Any], numbers: Mapping[str, Any], constants: Mapping[str, Any]
) -> Call:
    """``launch`` on these array leaves, as a derivative sees it."""
    return Call(
        engine=launch.engine,
        grid=launch.programs,
        names=launch.leaf_names,
        arrays=list(arrays),
        inputs=[place for place in inputs_of(launch) if isinstance(arrays[place], mx.array)],
        outputs=[o.leaf for o in launch.outputs if 0 not in o.shape],
        numbers=numbers,
        constants=constants,
        merged=frozenset(o.leaf for o in launch.outputs if o.mark >= 0 and not o.fresh and not o.numpy),
    )


def compute_traced(
    launch: Launch,
    derivative: Derivative,
    arrays: Sequence[Any],
    scalars: mx.array | None,
    numbers: Mapping[str, Any],
    constants: Mapping[str, Any],
) -> list[mx.array | None]:
    """``launch.compute(arrays, scalars)`` with a derivative."""

    from enceladus.mlx_bridge.batched_launch import refuse_mlx_vmap

    def forward(leaves: list[Any]) -> list[mx.array]:
        leaves = refuse_mlx_vmap(derivative.kernel, leaves)
        return [x for x in launch.compute(leaves, scalars) if x is not None]

    made = iter(derivative.tie(call_of(launch, arrays, numbers, constants), forward))
    return [None if 0 in o.shape else next(made) for o in launch.outputs]
