"""``@enceladus.jit``: a Python function as a kernel that MLX can run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from types import FunctionType
from typing import TYPE_CHECKING, Any, overload

import mlx.core as mx

from enceladus import knobs
from enceladus.frontend.function import MISSING, KernelFunction
from enceladus.ir.builder import current_emitter
from enceladus.mlx_bridge import batching, engines, fastpath
from enceladus.mlx_bridge import grid as grids
from enceladus.mlx_bridge.arguments import BoundArguments, Classifier, bind, complete
from enceladus.mlx_bridge.compilation import Compilations
from enceladus.mlx_bridge.gradients import Call as TracedCall
from enceladus.mlx_bridge.gradients import Derivative, call_of, is_traced, run_traced
from enceladus.mlx_bridge.launch import Launch, Request, prepare
from enceladus.mlx_bridge.specialization import SpecializationKey
from enceladus.mlx_bridge.warm import Warm

if TYPE_CHECKING:
    from enceladus.ir.core import Function

MATH_MODES = ("relaxed", "fast")
_INDEX_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Options:
    """What ``@enceladus.jit`` was given."""

    do_not_specialize: frozenset[str] = frozenset()
    interpret: bool = False
    math_mode: str = "relaxed"
    gradients: bool = True


@dataclass(frozen=True, slots=True)
class Call:
    """One call, understood: what to run and on what. ``values`` are the arguments as they were given."""

    engine: str
    key: SpecializationKey
    bound: BoundArguments
    grid: grids.Grid
    values: Mapping[str, Any]


class JITFunction:
    """A kernel. ``kernel[grid](*args, **constexprs, num_warps=4)`` launches it.

    ``fn`` is the Python function; ``kernel_function`` what the compiler sees of it.
    """

    def __init__(self, function: FunctionType, options: Options | None = None):
        self.fn = function
        self.kernel_function = KernelFunction(function)
        self.options = options or Options()
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._compilations = Compilations(self.kernel_function)
        self._registered: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._plans: dict[Any, Callable[..., Any]] = {}
        self._templates: dict[Any, tuple[SpecializationKey, Launch]] = {}
        self._derivatives: dict[SpecializationKey, Derivative] = {}
        self._vjp: Callable[..., Any] | None = None
        self._lock = threading.Lock()
        self._launch: Callable[..., Any] = self._first_launch

    def __repr__(self) -> str:
        return f"<enceladus kernel {self.__module__}.{self.__qualname__}>"

    def __reduce__(self) -> str:
        """Copies are the kernel itself, and pickles name it, as with Python's functions."""
        return self.__qualname__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current_emitter() is not None:  # called by a kernel that runs in the interpreter
            return self.fn(*args, **kwargs)
        raise TypeError(
            f"{self.__name__} is a kernel: launch it with {self.__name__}[grid](...), or call it from "
            "another kernel"
        )

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """``kernel[grid]``: a callable that launches. ``grid``: 1 to 3 ints, or a function of arguments."""
        return partial(self._launch, grid)

    # ------------------------------------------------------------------------------- launching

    def _first_launch(self, grid: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands in for the generated launcher until the first launch, so that decorating is cheap."""
        with self._lock:
            if self._launch == self._first_launch:
                self._launch = fastpath.make_launcher(
                    self.kernel_function, self._plans, self._slow_launch, self._forget, type(self)
                )
        return self._launch(grid, *args, **kwargs)

    def _slow_launch(
        self,
        plan_key: Any,
        grid: Any,
        given: Mapping[str, Any],
        num_warps: Any,
        extra: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """A launch that repeats no earlier one; leaves a plan for the next if ``plan_key`` allows it."""
        if options and "stream" in options:
            return self._launch_on(grid, given, num_warps, extra, dict(options))
        if extra or options:
            self._refuse_surplus(extra, options or {})
        values = complete(self.kernel_function, given)
        if batching.in_progress and not batching.levels():  # another thread's vmap sent the launch here
            plan = self._plans.get(plan_key)
            if plan is not None:
                return plan(*self._runtime_values(values))
        engine = engines.choose(self.options.interpret)
        is_batched = bool(batching.levels()) and engine != "graph"
        kinds = None
        plannable = (
            not is_batched
            and plan_key is not None
            and fastpath.can_plan(self.kernel_function, values, type(self))
        )
        if plannable and engine in ("metal", "cuda"):
            kinds = (engine, num_warps, knobs.debug(), fastpath.kinds(self.kernel_function, values))
            launch = self._from_template(kinds, grid, values)
            if launch is not None:
                return self._plan(plan_key, launch, values)(*self._runtime_values(values))
        call = self._understand(grid, values, num_warps, engine)
        if is_batched:
            from enceladus.mlx_bridge import batched_launch

            return batched_launch.launch(self, call)
        if kinds is None:
            return self.run(call)
        launch = self._prepare(call)
        if len(self._templates) >= fastpath.PLAN_LIMIT:
            self._templates.clear()
        self._templates[kinds] = (call.key, launch)
        return self._plan(plan_key, launch, values)(*self._runtime_values(values))

    def _launch_on(
        self,
        grid: Any,
        given: Mapping[str, Any],
        num_warps: Any,
        extra: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        """A launch with ``stream=``: the same launch with that stream as MLX's default."""
        stream = options.pop("stream")
        if not (stream is None or isinstance(stream, (mx.Stream, mx.Device, mx.DeviceType))):
            raise TypeError(
                f"{self.__name__}(): stream is {stream!r}; it must be an mx.Stream, an mx.Device, or None"
            )
        self._refuse_surplus(extra, options)
        keywords = {name: value for name, value in given.items() if value is not MISSING}
        keywords.setdefault("num_warps", num_warps)
        if stream is None:
            return self._launch(grid, **keywords)
        with mx.stream(stream):
            return self._launch(grid, **keywords)

    def run(self, call: Call) -> Any:
        """Perform a call without looking for a plan, or leaving one."""
        if call.engine == "interpret":
            from enceladus.mlx_bridge.targets.interpret import launch_interpreted

            function = self._compilations.function(call.key, debugging=True)
            warps, wide = call.key.num_warps, call.key.wide
            return launch_interpreted(
                self.kernel_function,
                function,
                dict(call.values),
                call.bound,
                call.grid,
                warps,
                wide,
                self.derivative(call.key),
            )
        if call.engine == "graph":
            from enceladus.mlx_bridge.graph_launch import launch_graph

            function = self._compilations.function(call.key)
            derivative = self.derivative(call.key)
            return launch_graph(function, self.__name__, call.bound, call.grid, derivative, call.values)
        launch = self._prepare(call)
        arrays = [leaf.value for leaf in call.bound.arrays]
        if is_traced(arrays):
            numbers = {leaf.name: leaf.value for leaf in call.bound.scalars}
            return run_traced(launch, arrays, None, numbers, call.values)
        return launch.run(arrays)

    def ir(self, key: SpecializationKey) -> Function:
        """The tile IR for ``key``, with resolved memory accesses."""
        return self._compilations.function(key)

    def _from_template(self, kinds: Any, grid: Any, values: dict[str, Any]) -> Launch | None:
        """A launch that differs from an earlier one only in numbers, or ``None``."""
        found = self._templates.get(kinds)
        if found is None:
            return None
        key, launch = found
        sizes = grids.padded(grids.resolve(grid, values))
        remap = grids.needs_remap(sizes, key.num_warps, launch.engine)
        wide = self._is_large(values) or prod(sizes) * launch.compiled.largest_tile > _INDEX_LIMIT
        if remap != key.grid_remap or wide != key.wide:
            return None
        return launch.with_numbers(sizes, remap, values)

    def _plan(self, plan_key: Any, launch: Launch, values: dict[str, Any]) -> Callable[..., Any]:
        """Keep a plan for launches like this one, and return it."""
        if len(self._plans) >= fastpath.PLAN_LIMIT:
            self._plans.clear()
        plan = fastpath.make_run(self.kernel_function, launch, launch.leaf_names, values)
        self._plans[plan_key] = plan
        return plan

    def _runtime_values(self, values: Mapping[str, Any]) -> list[Any]:
        return [values[p.name] for p in self.kernel_function.parameters if not p.constexpr]

    def _forget(self) -> None:
        """Drop the plans: something that the kernel reads at compile time has changed."""
        self._plans.clear()
        self._templates.clear()

    def _prepare(self, call: Call) -> Launch:
        return prepare(
            Request(
                kernel_name=self.__name__,
                bound=call.bound,
                grid=call.grid,
                num_warps=call.key.num_warps,
                engine=call.engine,
                remap=call.key.grid_remap,
                compile=lambda track: self._compilations.kernel(replace(call.key, track_writes=track)),
                register=lambda compiled: self._register(call.engine, compiled),
                derivative=self.derivative(call.key) if self.options.gradients else None,
            )
        )

    def derivative(self, key: SpecializationKey) -> Derivative:
        """The derivative of a specialization, made once; nothing is compiled for it until it is needed."""
        key = replace(key, grid_remap=False)
        found = self._derivatives.get(key)
        if found is None:
            function = partial(self._compilations.function, key)
            found = self._derivatives[key] = Derivative(
                self.__name__, function, partial(self._own_rule, key.batch), key.math_mode
            )
        return found

    def _own_rule(self, batch: tuple[tuple[str, ...], ...]) -> Callable[..., Any] | None:
        """The rule of ``@kernel.vjp``, for a launch with these levels of a batch."""
        if self._vjp is None or not batch:
            return self._vjp
        from enceladus.mlx_bridge.batched_launch import rule_of_batch

        return rule_of_batch(self._vjp, batch)

    def _register(self, engine: str, compiled: Any) -> Any:
        """MLX's kernel object, made once for each compiled kernel."""
        place = (engine, id(compiled))
        found = self._registered.get(place)
        if found is None:
            # ``compiled`` is kept too: its id must not be reused.
            found = self._registered[place] = (compiled, engines.register(engine, compiled))
        return found[1]

    def _understand(
        self, grid: Any, values: dict[str, Any], num_warps: Any, engine: str, wide: bool = False
    ) -> Call:
        """Check the call and find its specialization key; ``wide`` asks for 64-bit index arithmetic."""
        warps = self._warps(num_warps)
        sizes = grids.padded(grids.resolve(grid, values))
        wide = wide or self._is_large(values)
        classifier = Classifier(self.kernel_function, self.options.do_not_specialize, wide)
        bound = classifier.classify(values)
        key = SpecializationKey(
            kernel=f"{self.__module__}.{self.__qualname__}",
            source=self.kernel_function.source_hash,
            arguments=bound.records,
            num_warps=warps,
            math_mode=self.options.math_mode,
            wide=wide,
            debug=knobs.debug(),
            grid_remap=engine in ("metal", "cuda") and grids.needs_remap(sizes, warps, engine),
        )
        call = Call(engine, key, bound, sizes, values)
        if not wide and self._reaches_far(call):
            return self.widened(call)
        return call

    def widened(self, call: Call) -> Call:
        """The same call with 64-bit index arithmetic."""
        return self._understand(call.grid, dict(call.values), call.key.num_warps, call.engine, wide=True)

    def on_grid(self, call: Call, grid: grids.Grid) -> Call:
        """The same call on another grid."""
        remap = call.engine in ("metal", "cuda") and grids.needs_remap(grid, call.key.num_warps, call.engine)
        return replace(call, grid=grid, key=replace(call.key, grid_remap=remap))

    def needs_wide(self, call: Call) -> bool:
        """Whether the call's offsets may pass 2**31."""
        return any(leaf.size > _INDEX_LIMIT for leaf in call.bound.arrays) or self._reaches_far(call)

    def _is_large(self, values: Mapping[str, Any]) -> bool:
        """Whether an array is so large that its offsets pass 2**31."""
        runtime = (values[p.name] for p in self.kernel_function.parameters if not p.constexpr)
        return any(_largest_size(value) > _INDEX_LIMIT for value in runtime)

    def _reaches_far(self, call: Call) -> bool:
        """Whether the programs times the kernel's largest tile pass 2**31, so that block starts could wrap.

        All programs count, not those of one axis: a kernel may number them in one sequence.
        """
        programs = prod(call.grid)
        if programs <= 2**31 // (1 << 20):  # no kernel has a larger tile than 2**20 elements
            return False
        if call.engine in ("metal", "cuda"):
            tile = self._compilations.kernel(call.key).largest_tile
        else:
            from enceladus.passes.intervals import largest_tile

            tile = largest_tile(self._compilations.function(call.key))
        return programs * tile > _INDEX_LIMIT

    def _warps(self, num_warps: Any) -> int:
        if isinstance(num_warps, bool) or not hasattr(num_warps, "__index__"):
            raise TypeError(
                f"{self.__name__}(): num_warps is {num_warps!r}; it must be a power of two from 1 to 32"
            )
        warps: int = num_warps.__index__()
        if warps not in (1, 2, 4, 8, 16, 32):
            raise ValueError(
                f"{self.__name__}(): num_warps is {warps}; it must be a power of two from 1 to 32"
            )
        return warps

    def _refuse_surplus(self, extra: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """``TypeError`` for arguments that the kernel does not have."""
        names = [p.name for p in self.kernel_function.parameters]
        if extra:
            positional = [p.name for p in self.kernel_function.parameters if not p.keyword_only]
            raise TypeError(
                f"{self.__name__}() takes {len(positional)} positional arguments "
                f"({', '.join(positional)}) but {len(positional) + len(extra)} were given"
            )
        for name in options:
            known = [*names, "num_warps", "stream", *fastpath.IGNORED_OPTIONS]
            close = _closest(name, known)
            advice = close or f"; its parameters are {', '.join(names)}"
            raise TypeError(f"{self.__name__}() got an unexpected keyword argument {name!r}{advice}")

    # ------------------------------------------------------------------------------- gradients

    def vjp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: ``rule`` computes the kernel's gradients from now on, in all engines that have them.

        ``rule(primals, cotangents, outputs)`` gets a dictionary of the launch's arguments by name (arrays
        with their contents from before the launch, numbers and constexprs; no fresh outputs; items of a
        tuple as ``name_0``, ``name_1``), and what the launch returned together with the cotangents of it
        (each one array, or a tuple of several). It returns a dictionary from names of array arguments to
        gradients of the same shapes; a missing name or ``None`` means 0. It may launch other kernels.
        """
        if not callable(rule):
            raise TypeError(f"@{self.__name__}.vjp takes a function, not {type(rule).__name__}")
        self._vjp = rule
        return rule

    def gradient_kind(self, *args: Any, grid: Any, **kwargs: Any) -> str:
        """Where gradients of a launch with these arguments come from.

        ``"rule"``: from the rule of :meth:`vjp`. ``"kernel"``: from a backward kernel. ``"graph"``: MLX
        differentiates the kernel made of MLX operations. :meth:`explain` says why.
        """
        return self._gradient(args, grid, kwargs)[0]

    def _gradient(self, args: tuple[Any, ...], grid: Any, kwargs: Mapping[str, Any]) -> tuple[str, str]:
        engine = engines.choose(self.options.interpret)
        if engine == "interpret" and self._vjp is None:
            return "none", "the interpreter's launches have no gradient"
        call = self._inspect(args, grid, kwargs, engine)
        derivative = self.derivative(call.key)
        arrays = [leaf.value for leaf in call.bound.arrays]
        numbers = {leaf.name: leaf.value for leaf in call.bound.scalars}
        if engine in ("graph", "interpret"):
            names = [leaf.name for leaf in call.bound.arrays]
            return derivative.kind(TracedCall(engine, call.grid, names, arrays, [], [], numbers, {}))
        if not self.options.gradients:
            return "none", "the kernel was declared with gradients=False"
        launch = self._prepare(call)
        return derivative.kind(call_of(launch, arrays, numbers, {}))

    # ------------------------------------------------------------------------------ inspection

    def _inspect(self, args: tuple[Any, ...], grid: Any, kwargs: Mapping[str, Any], engine: str) -> Call:
        values, options = bind(self.kernel_function, args, kwargs)
        num_warps = values["num_warps"] if "num_warps" in values else options.pop("num_warps", 4)
        for name in ("stream", *fastpath.IGNORED_OPTIONS):
            options.pop(name, None)
        self._refuse_surplus((), options)
        return self._understand((1,) if grid is None else grid, values, num_warps, engine)

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> Warm:
        """Compile for these arguments without launching; what :class:`Warm` shows is the Metal kernel.

        Arguments and ``grid`` are those of a launch. Arrays are looked at, not read.
        """
        call = self._inspect(args, grid, kwargs, "metal")
        return Warm(self._compilations.kernel(call.key), call.key, partial(self._prepare, call))

    def explain(self, *args: Any, grid: Any, **kwargs: Any) -> str:
        """What a launch with these arguments would do.

        Engine, roles, what unwritten elements cost, and where gradients would come from.
        """
        engine = engines.choose(self.options.interpret)
        call = self._inspect(args, grid, kwargs, engine if engine in ("metal", "cuda") else "metal")
        warm = Warm(self._compilations.kernel(call.key), call.key, partial(self._prepare, call))
        kind, reason = self._gradient(args, grid, kwargs)
        return f"{warm.explain(engine)}\n  gradient ({kind}): {reason}"


def _closest(name: str, known: Sequence[str]) -> str:
    """``"; did you mean …?"``, or ``""``."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _largest_size(value: Any) -> int:
    """Elements of an array, or of the largest one in a tuple; 0 for anything else."""
    if isinstance(value, tuple):
        return max(map(_largest_size, value), default=0)
    size = getattr(value, "size", 0)
    return size if isinstance(size, int) else 0


#: Triton's decorator arguments that mean nothing here.
_IGNORED = ("version", "repr", "launch_metadata", "do_not_specialize_on_alignment", "debug", "noinline")


@overload
def jit(fn: Callable[..., Any]) -> JITFunction: ...
@overload
def jit(
    *,
    do_not_specialize: Sequence[str | int] = (),
    interpret: bool = False,
    math_mode: str = "relaxed",
    gradients: bool = True,
    **ignored: Any,
) -> Callable[[Callable[..., Any]], JITFunction]: ...


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    do_not_specialize: Sequence[str | int] = (),
    interpret: bool = False,
    math_mode: str = "relaxed",
    gradients: bool = True,
    **ignored: Any,
) -> JITFunction | Callable[[Callable[..., Any]], JITFunction]:
    """Make a kernel, or a helper of kernels, from a Python function over tiles.

    Args:
        do_not_specialize: integer parameters (names or positions) whose value shall not lead to another
            compile when it is 1 or a multiple of 16.
        interpret: run program by program on NumPy, where ``print`` and ``pdb`` work.
        math_mode: ``"relaxed"``, or ``"fast"``: let the GPU's compiler assume that there are no NaNs and
            infinities, and use faster, less accurate functions.
        gradients: ``False``: launches on a GPU have no gradient, and do not ask whether one is wanted, which
            costs about a microsecond. Asking for one fails in MLX.

    Triton's other arguments (``noinline``, ``debug``, ``repr``, …) are accepted and ignored.
    """
    for name in ignored:
        if name not in _IGNORED:
            known = ["do_not_specialize", "interpret", "math_mode", "gradients", *_IGNORED]
            close = _closest(name, known)
            raise TypeError(f"jit() got an unexpected argument {name!r}{close}")
    if math_mode not in MATH_MODES:
        raise ValueError(f"math_mode is {math_mode!r}; it must be one of {', '.join(map(repr, MATH_MODES))}")

    def decorate(function: Callable[..., Any]) -> JITFunction:
        if isinstance(function, JITFunction):
            function = function.fn
        if not isinstance(function, FunctionType):
            raise TypeError(f"@enceladus.jit takes a Python function, not {type(function).__name__}")
        names = _names(function, do_not_specialize)
        return JITFunction(function, Options(names, bool(interpret), math_mode, bool(gradients)))

    return decorate if fn is None else decorate(fn)


def _names(function: FunctionType, chosen: Sequence[str | int]) -> frozenset[str]:
    """Parameter names from names and positions."""
    parameters = KernelFunction(function).parameter_names
    if isinstance(chosen, (str, int)):
        chosen = (chosen,)
    found = set()
    for item in chosen:
        if isinstance(item, int) and -len(parameters) <= item < len(parameters):
            found.add(parameters[item])
        elif item in parameters:
            found.add(item)
        else:
            raise ValueError(
                f"do_not_specialize: {function.__name__}() has no parameter {item!r}; "
                f"it has {', '.join(parameters)}"
            )
    return frozenset(found)


__all__ = ["JITFunction", "Options", "jit"]
