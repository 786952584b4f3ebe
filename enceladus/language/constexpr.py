"""Compile-time values (``tl.constexpr``) and the loop ranges a kernel can spell.

Inside a kernel, compile-time values are plain Python objects; :class:`constexpr` only exists where a
user writes it: as an annotation (``BLOCK: tl.constexpr``) or around a global (``N = tl.constexpr(8)``).
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterator
from typing import Any

from enceladus.errors import CompilationError


def unwrap(x: Any) -> Any:
    """The plain value of a :class:`constexpr`, anything else as it is."""
    return x.value if x.__class__ is constexpr else x


def _forward(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: constexpr, other: Any) -> Any:
        return _rewrap(function(self.value, unwrap(other)))

    return method


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: constexpr, other: Any) -> Any:
        return _rewrap(function(unwrap(other), self.value))

    return method


def _compared(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: constexpr, other: Any) -> Any:
        return function(self.value, unwrap(other))

    return method


def _rewrap(x: Any) -> Any:
    return constexpr(x) if isinstance(x, (bool, int, float, str, tuple)) else x


class constexpr:  # noqa: N801 - Triton's spelling
    """A value known at compile time.

    Arithmetic between compile-time values gives a :class:`constexpr`, arithmetic with a tile gives a
    tile; comparisons give plain values. Attributes not found here are those of the value.
    """

    __slots__ = ("value",)

    value: Any

    def __init__(self, value: Any):
        self.value = unwrap(value)

    __add__, __radd__ = _forward(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _forward(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _forward(operator.mul), _reflected(operator.mul)
    __truediv__, __rtruediv__ = _forward(operator.truediv), _reflected(operator.truediv)
    __floordiv__, __rfloordiv__ = _forward(operator.floordiv), _reflected(operator.floordiv)
    __mod__, __rmod__ = _forward(operator.mod), _reflected(operator.mod)
    __pow__, __rpow__ = _forward(operator.pow), _reflected(operator.pow)
    __and__, __rand__ = _forward(operator.and_), _reflected(operator.and_)
    __or__, __ror__ = _forward(operator.or_), _reflected(operator.or_)
    __xor__, __rxor__ = _forward(operator.xor), _reflected(operator.xor)
    __lshift__, __rlshift__ = _forward(operator.lshift), _reflected(operator.lshift)
    __rshift__, __rrshift__ = _forward(operator.rshift), _reflected(operator.rshift)

    __eq__ = _compared(operator.eq)
    __ne__ = _compared(operator.ne)
    __lt__ = _compared(operator.lt)
    __le__ = _compared(operator.le)
    __gt__ = _compared(operator.gt)
    __ge__ = _compared(operator.ge)

    def __neg__(self) -> constexpr:
        return constexpr(-self.value)

    def __pos__(self) -> constexpr:
        return constexpr(+self.value)

    def __invert__(self) -> constexpr:
        return constexpr(~self.value)

    def __abs__(self) -> constexpr:
        return constexpr(abs(self.value))

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __getitem__(self, index: Any) -> Any:
        return self.value[unwrap(index)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "value" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return constexpr, (self.value,)

    def __repr__(self) -> str:
        return f"constexpr[{self.value!r}]"

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


class _Loop:
    """Bounds of a loop as written; one argument is the end, as in Python."""

    __slots__ = ("start", "step", "stop")

    def _set(self, start: Any, stop: Any, step: Any) -> None:
        start, stop, step = unwrap(start), unwrap(stop), unwrap(step)
        if stop is None:
            start, stop = 0, start
        self.start: Any = start
        self.stop: Any = stop
        self.step: Any = 1 if step is None else step
        if self.step.__class__ is int and self.step == 0:
            raise CompilationError(f"tl.{type(self).__name__}: the step must not be zero")

    def __repr__(self) -> str:
        return f"tl.{type(self).__name__}({self.start}, {self.stop}, {self.step})"


class static_range(_Loop):  # noqa: N801 - Triton's spelling
    """A loop unrolled at compile time. Source: Triton's ``tl.static_range``.

    ``static_range(stop)``, ``static_range(start, stop, step=1)``: compile-time integers. The loop
    variable is a compile-time integer in each copy of the body.
    """

    __slots__ = ()

    def __init__(self, start: Any, stop: Any = None, step: Any = None):
        self._set(start, stop, step)
        for name in ("start", "stop", "step"):
            bound = getattr(self, name)
            if not isinstance(bound, int):
                kind = getattr(bound, "dtype", None)
                found = f"a run-time {kind}" if kind is not None else f"{bound!r}"
                raise CompilationError(
                    f"tl.static_range: `{name}` must be a compile-time integer, got {found}",
                    "use `range` for bounds known only at run time, or make the parameter a `tl.constexpr`",
                )

    def __iter__(self) -> Iterator[int]:
        return iter(builtins.range(self.start, self.stop, self.step))


class range(_Loop):  # noqa: N801 - Triton's spelling
    """A loop at run time. Source: Triton's ``tl.range``; its scheduling hints are accepted and ignored.

    Bounds are integers or scalar integer tiles. The loop variable has the promoted type of the bounds.
    """

    __slots__ = ()

    def __init__(
        self,
        start: Any,
        stop: Any = None,
        step: Any = None,
        num_stages: Any = None,
        loop_unroll_factor: Any = None,
        disallow_acc_multi_buffer: bool = False,
        flatten: bool = False,
        warp_specialize: bool = False,
        disable_licm: bool = False,
    ):
        self._set(start, stop, step)

    def __iter__(self) -> Iterator[Any]:
        # Reached only where Python itself runs the loop: in the interpreter, or outside any kernel.
        from enceladus.language.tensor import loop_values

        return loop_values(self.start, self.stop, self.step)
