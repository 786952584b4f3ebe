"""Launches of backward kernels: compile what ``autodiff.reverse`` builds, and run it in a rule.

A backward kernel is an ordinary kernel. It is compiled, prepared and registered as the user's own are, its
launch is lazy, and it has a derivative itself (second-order gradients). It is kept in memory only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from enceladus.autodiff.reverse import NoBackward, Plan, Variant, element
from enceladus.codegen.kernel import CompiledKernel
from enceladus.errors import CompilationError
from enceladus.ir.core import Function
from enceladus.ir.types import PointerType
from enceladus.mlx_bridge import engines
from enceladus.mlx_bridge.arguments import ArrayLeaf, BoundArguments, Leaf, ScalarLeaf
from enceladus.mlx_bridge.dtypes import TO_MLX
from enceladus.mlx_bridge.fresh import FreshArray, zeros
from enceladus.mlx_bridge.grid import needs_remap
from enceladus.mlx_bridge.launch import Launch, Request, prepare

if TYPE_CHECKING:
    from enceladus.mlx_bridge.gradients import Call, Derivative

#: Prepared launches that are kept.
_LIMIT = 256


@dataclass(slots=True)
class _Compiled:
    """One variant of the backward kernel."""

    derivative: Derivative  #: its own
    arguments: list[Any]  #: of the function, as values of the IR
    kernels: dict[tuple[Any, ...], CompiledKernel] = field(default_factory=dict)
    registered: dict[Any, Callable[..., list[mx.array]]] = field(default_factory=dict)


class Backward:
    """The backward kernels of one specialization.

    ``function``: the kernel's IR after ``compiler.prepare``. ``derive`` makes a derivative from a name and
    a function that makes IR.
    """

    def __init__(
        self, function: Function, math_mode: str, derive: Callable[[str, Callable[[], Function]], Derivative]
    ):
        self.math_mode = math_mode
        self._derive = derive
        self._variants: dict[Variant, _Compiled | NoBackward] = {}
        self._launches: dict[Any, Launch] = {}
        self._reason: NoBackward | None = None
        try:
            self._plan = Plan(function)
        except NoBackward as reason:
            self._reason = reason
        else:
            self._meaning = {name: meaning for meaning, name in self._plan.names.items()}

    def prepared(self, call: Call) -> tuple[_Compiled, Launch]:
        """The backward launch of ``call``. Raises :class:`NoBackward` where there is none."""
        if self._reason is not None:
            raise self._reason
        old = frozenset(call.names[place] for place in call.merged)
        sizes = {name: int(array.size) for name, array in zip(call.names, call.arrays, strict=True)}
        variant = self._plan.variant(call.grid, call.numbers, sizes, old)
        compiled = self._variants.get(variant)
        if compiled is None:
            compiled = self._variants[variant] = self._compile(variant)
        if isinstance(compiled, NoBackward):
            raise compiled
        types = tuple((tuple(x.shape), x.dtype) for x in call.arrays)
        # By their text: 0.0 == -0.0.
        numbers = tuple(repr(call.numbers.get(value.name)) for value in self._plan.function.arguments)
        key = (variant, call.engine, call.grid, types, numbers)
        launch = self._launches.get(key)
        if launch is None:
            try:
                launch = self._prepare(call, compiled)
            except CompilationError as error:
                reason = NoBackward(f"the backward kernel does not compile: {error.reason}")
                self._variants[variant] = reason
                raise reason from error
            if len(self._launches) >= _LIMIT:
                self._launches.clear()
            self._launches[key] = launch
        return compiled, launch

    def _compile(self, variant: Variant) -> _Compiled | NoBackward:
        from enceladus.compiler import prepare as prepare_ir

        plan = self._plan
        try:
            function = plan.build(variant)
        except NoBackward as reason:
            return reason
        derivative = self._derive(function.name, lambda: prepare_ir(plan.build(variant)))
        return _Compiled(derivative, list(function.arguments))

    def _prepare(self, call: Call, compiled: _Compiled) -> Launch:
        from enceladus.compiler import compile_function

        variant = next(v for v, found in self._variants.items() if found is compiled)
        warps = self._plan.function.num_warps
        remap = needs_remap(call.grid, warps, call.engine)

        def compile_variant(track: tuple[str, ...]) -> CompiledKernel:
            key = (track, remap)
            if key not in compiled.kernels:
                compiled.kernels[key] = compile_function(
                    self._plan.build(variant),
                    math_mode=self.math_mode,
                    track_writes=track,
                    grid_remap=remap,
                    grid_axes=len(call.grid),
                )
            return compiled.kernels[key]

        def register(kernel: CompiledKernel) -> Callable[..., list[mx.array]]:
            key = (call.engine, id(kernel))
            if key not in compiled.registered:
                compiled.registered[key] = engines.register(call.engine, kernel)
            return compiled.registered[key]

        return prepare(
            Request(
                kernel_name=f"{self._plan.function.name}_vjp",
                bound=self._bind(call, compiled, self._described(call)),
                grid=call.grid,
                num_warps=warps,
                engine=call.engine,
                remap=remap,
                compile=compile_variant,
                register=register,
            )
        )

    def _described(self, call: Call) -> dict[str, Any]:
        """What stands for the arrays of the backward kernel while its launch is prepared."""
        arrays = dict(zip(call.names, call.arrays, strict=True))
        for place in call.outputs:
            shape = tuple(call.arrays[place].shape)
            arrays[self._name("cotangent", call, place)] = mx.zeros(shape, call.arrays[place].dtype)
        return arrays

    def _bind(self, call: Call, compiled: _Compiled, arrays: dict[str, Any]) -> BoundArguments:
        leaves: list[Leaf] = []
        for value in compiled.arguments:
            if isinstance(value.type.element, PointerType):
                array = self._array(value.name, arrays, TO_MLX[element(value).name])
                leaves.append(ArrayLeaf(value.name, value.name, array, element(value)))
            else:
                meaning = self._meaning.get(value.name)
                number = arrays[meaning[1]].size if meaning else call.numbers[value.name]
                leaves.append(ScalarLeaf(value.name, number, value.type.dtype))
        return BoundArguments((), tuple(leaves))

    def _array(self, name: str, arrays: dict[str, Any], dtype: mx.Dtype) -> Any:
        """The array for an argument of the backward kernel: given, fresh, or the cotangent as a start."""
        if name in arrays:
            value = arrays[name]
            # What the kernel wrote, its backward kernel does not read: any contents do.
            return value.materialize() if isinstance(value, FreshArray) else value
        kind, array = self._meaning[name]
        if kind == "grad":
            return zeros(arrays[array].shape, dtype)
        return arrays[self._plan.names["cotangent", array]]

    def _name(self, kind: str, call: Call, place: int) -> str:
        """The backward kernel's argument of this kind for an array leaf; ``""`` where there is none."""
        return self._plan.names.get((kind, call.names[place]), "")

    def run(self, call: Call, primals: list[mx.array], cotangents: list[mx.array]) -> list[mx.array | None]:
        """The gradients of ``call.inputs``. Raises :class:`NoBackward`."""
        from enceladus.mlx_bridge import gradients

        compiled, launch = self.prepared(call)
        arrays = dict(zip(call.names, call.filled(primals), strict=True))
        for place, cotangent in zip(call.outputs, cotangents, strict=True):
            arrays[self._name("cotangent", call, place)] = cotangent
        bound = self._bind(call, compiled, arrays)
        given = [leaf.value for leaf in bound.arrays]
        numbers = {leaf.name: leaf.value for leaf in bound.scalars}
        if gradients.is_traced(given):
            made = gradients.compute_traced(launch, compiled.derivative, given, None, numbers, {})
        else:
            made = launch.compute(given)
        results = dict(zip((output.name for output in launch.outputs), made, strict=True))
        updated = {value.name for value in self._plan.updated}
        found: list[mx.array | None] = []
        for place, primal in zip(call.inputs, primals, strict=True):
            parts = [results.get(self._name(kind, call, place)) for kind in ("grad", "old")]
            if call.names[place] in updated:
                parts.append(arrays.get(self._name("cotangent", call, place)))
            total: mx.array | None = None
            for part in parts:
                if part is not None:
                    part = part.astype(primal.dtype).reshape(primal.shape)
                    total = part if total is None else total + part
            found.append(total)
        return found
