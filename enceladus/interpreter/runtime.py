"""What a rewritten kernel calls where Python's own meaning is not the compiled one (see ``rewrite``)."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from functools import reduce
from types import FunctionType
from typing import Any

import enceladus.language as tl
from enceladus.errors import CompilationError
from enceladus.frontend.build import inline_function
from enceladus.frontend.function import MISSING, KernelFunction, as_kernel_function
from enceladus.frontend.values import admit, is_number, item_name, rebuild
from enceladus.interpreter.emitter import NumpyEmitter
from enceladus.interpreter.joins import Joins
from enceladus.interpreter.locations import current_call_chain
from enceladus.interpreter.rewrite import RUNTIME, rewrite
from enceladus.ir.types import DType
from enceladus.language import semantic
from enceladus.language.combine import Inlinable, hand_over
from enceladus.language.constexpr import constexpr, unwrap
from enceladus.language.tensor import tensor


class Choice:
    """A condition: whether it ``holds``, and whether a compiled kernel decides it at ``run_time``."""

    __slots__ = ("holds", "run_time")

    def __init__(self, holds: bool, run_time: bool):
        self.holds = holds
        self.run_time = run_time

    def __bool__(self) -> bool:
        return self.holds


class Loop:
    """What a ``for`` goes over; ``run_time`` as in :class:`Choice`."""

    __slots__ = ("run_time", "values")

    def __init__(self, values: Any, run_time: bool):
        self.values = values
        self.run_time = run_time

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)


class Runtime:
    """One launch. The rewritten kernel and its helpers find it in their globals."""

    locals = staticmethod(builtins.locals)

    def __init__(self, emitter: NumpyEmitter, joins: Joins):
        self.emitter = emitter
        self._joins = joins
        self._functions: dict[KernelFunction, FunctionType] = {}

    # ------------------------------------------------------------------------------- functions

    def function(self, kernel: KernelFunction) -> FunctionType:
        """The rewritten ``kernel``, with a copy of its globals as they are now."""
        function = self._functions.get(kernel)
        if function is None:
            rewritten = rewrite(kernel)
            namespace = dict(kernel.function.__globals__)
            for name in rewritten.outer_names:
                value = kernel.lookup(name)
                if value is not MISSING:
                    namespace[name] = admit(value, f"the global {name!r}")
            namespace[RUNTIME] = self
            original = kernel.function
            defaults = tuple(map(_as_default, original.__defaults__ or ()))
            function = FunctionType(rewritten.code, namespace, original.__name__, defaults)
            function.__kwdefaults__ = {k: _as_default(v) for k, v in (original.__kwdefaults__ or {}).items()}
            self._functions[kernel] = function
        return function

    def callee(self, function: Any) -> Any:
        """What to call for ``function``: kernels in their rewritten form, some builtins in the tile's way."""
        kernel = as_kernel_function(function)
        if kernel is not None:
            return self.function(kernel)
        if hasattr(function, "__enceladus_takes_functions__"):
            return _with_functions(function)
        try:
            return _REPLACED.get(function, function)
        except TypeError:  # not hashable
            return function

    # ------------------------------------------------------------------------------ conditions

    def condition(self, value: Any) -> Choice:
        """The condition of an ``if`` or of a conditional expression."""
        if not isinstance(value, tensor):
            return Choice(bool(value), run_time=False)
        return Choice(_is_true(value), run_time=True)

    def goes_on(self, left: Any, is_and: bool) -> bool:
        """Whether ``left and …`` (or ``left or …``) looks at its right side."""
        return (_is_true(left) if isinstance(left, tensor) else bool(left)) is is_and

    def first(self, left: Any) -> Any:
        """The value of ``left and …`` that did not go on."""
        return _truth(left) if isinstance(left, tensor) else left

    def both(self, left: Any, right: Any) -> Any:
        """The value of ``left and right`` that went on: int1 if ``left`` is a run-time value."""
        if not isinstance(left, tensor):
            return right
        if isinstance(right, tensor):
            _is_true(right)  # refuses tiles
        return _truth(right)

    def negation(self, value: Any) -> Any:
        """``not value``."""
        if not isinstance(value, tensor):
            return not value
        _is_true(value)
        return ~_truth(value)

    # ----------------------------------------------------------------------------------- loops

    def loop(self, iterable: Any) -> Loop:
        """The values of a loop: run-time ones are scalars of the type that the compiled loop counts in."""
        if isinstance(iterable, tensor):
            raise CompilationError("a tile or scalar cannot be iterated over", "loop over a range")
        if not isinstance(iterable, builtins.range | tl.range):
            return Loop(iterable, run_time=False)
        bounds = tuple(unwrap(b) for b in (iterable.start, iterable.stop, iterable.step))
        raw = tuple(b.value if isinstance(b, tensor) else b for b in bounds)
        dtype = semantic.common_dtype("range", raw)
        if not any(isinstance(b, tensor) for b in bounds):
            dtype = semantic.promote_types(dtype, self.emitter.index_dtype)
        if not dtype.is_int() or dtype.is_bool():
            raise CompilationError(
                f"a loop needs integer bounds, not {dtype}", "convert them with .to(tl.int32)"
            )
        start, stop, step = map(int, bounds)
        numbers = builtins.range(start, stop, step) if step else ()
        return Loop((tensor(semantic.constant(i, dtype, "range")) for i in numbers), run_time=True)

    # ----------------------------------------------------------------------------------- joins

    def joins(self, choice: Choice | Loop, scope: dict[str, Any], name: str) -> bool:
        """Whether the variable ``name`` holds numbers that may have a run-time type from here on."""
        return choice.run_time and name in scope and any(map(is_number, leaves(scope[name])))

    def joined(self, line: int, column: int, end: int, name: str, value: Any) -> Any:
        """The variable's value with numbers as scalars of the types they have where the paths meet."""
        file, chain = current_call_chain()
        site = (line, column, end, file, chain)

        def convert(name: str, value: Any) -> Any:
            if isinstance(value, tuple):
                return rebuild(value, [convert(item_name(name, i, value), x) for i, x in enumerate(value)])
            return _typed(value, self._joins.named(site, name)) if is_number(value) else value

        return convert(name, value)

    def chosen(self, line: int, column: int, end: int, value: Any, choice: Choice) -> Any:
        """The value of a conditional expression, with numbers as in :meth:`joined`."""
        found = leaves(value)
        if not choice.run_time or not any(map(is_number, found)):
            return value
        file, chain = current_call_chain()
        types = iter(self._joins.anonymous((line, column, end, file, chain), len(found)))

        def convert(value: Any) -> Any:
            if isinstance(value, tuple):
                return rebuild(value, list(map(convert, value)))
            dtype = next(types)
            return _typed(value, dtype) if is_number(value) else value

        return convert(value)

    def receiver(self, value: Any) -> Any:
        """A number whose attribute is asked for as if it were a tile, as the scalar it stands for."""
        return tensor(semantic.materialize(value)) if is_number(value) else value


def _with_functions(builtin: Callable[..., Any]) -> Callable[..., Any]:
    """A builtin that calls users' functions: it records them, and no data goes through."""

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = hand_over(args, kwargs, _inlinable)  # type: ignore[assignment]
        return builtin(*args, **kwargs)

    return call


def _inlinable(value: Any) -> Inlinable | None:
    kernel = as_kernel_function(value)
    return None if kernel is None else Inlinable(kernel.name, lambda *tiles: inline_function(kernel, tiles))


def leaves(value: object) -> list[Any]:
    """The items of nested tuples in order; ``[value]`` for anything else."""
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def _typed(value: bool | int | float, dtype: DType | None) -> Any:
    return value if dtype is None else tensor(semantic.materialize(value, dtype))


def _as_default(value: Any) -> Any:
    return admit(value, "a default")


def _is_true(value: tensor) -> bool:
    """Whether a run-time condition holds: not zero. Refuses tiles and pointers."""
    if value.shape:
        hint = "use tl.where to choose element by element, and '&', '|', '~' instead of and, or, not"
        raise CompilationError(f"a condition must be a scalar, not a tile of shape {value.shape}", hint)
    return bool(_truth(value))


def _truth(value: Any) -> tensor:
    """``value != 0`` as an int1 scalar."""
    return tensor(semantic.truth(value.value if isinstance(value, tensor) else value))


def _minimum_or_maximum(function: Callable[..., Any], combine: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        items = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
        if any(isinstance(x, tensor) for x in items):
            return reduce(combine, items)
        return function(*args, **kwargs)

    return call


def _absolute(value: Any) -> Any:
    return tl.abs(value) if isinstance(value, tensor) else abs(value)


def _length(value: Any) -> int:
    return value.shape[0] if isinstance(value, tensor) and value.shape else len(value)


def _range(*bounds: Any) -> Any:
    return tl.range(*bounds) if any(isinstance(b, tensor) for b in bounds) else range(*bounds)


def _is_instance(value: Any, kind: Any) -> bool:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return isinstance(value, kinds) or (
        constexpr in kinds and not any(isinstance(x, tensor) for x in leaves(value))
    )


#: Called in a kernel → what is called instead.
_REPLACED: dict[Any, Callable[..., Any]] = {
    min: _minimum_or_maximum(min, tl.minimum),
    max: _minimum_or_maximum(max, tl.maximum),
    abs: _absolute,
    len: _length,
    range: _range,
    isinstance: _is_instance,
    constexpr: unwrap,
    # The front end has printed already, once, as when compiling.
    tl.static_print: lambda *values, **options: None,
}
