"""``@enceladus.op``: host code that launches kernels as one function on arrays with a gradient of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mlx.core as mx

Rule = Callable[..., Any]

#: What a value must be made of for the function that MLX sees to be kept for the next call.
_PLAIN = (type(None), bool, int, float, str, mx.Dtype)
_MOST_KEPT = 64


class Op:
    """A function on arrays with a gradient, made by :func:`op`.

    Calling it calls the function; inside ``mx.grad``, ``mx.vjp`` and ``mx.value_and_grad`` (also under
    ``mx.compile``) its gradients are what the rule given by :meth:`vjp` returns. Nothing is evaluated.

    Arrays are positional parameters (they may be passed by name); keyword-only parameters are options.
    ``TypeError`` for an array in an option or inside a list, tuple or dict: it would get no gradient.
    """

    def __init__(self, function: Callable[..., Any]):
        functools.update_wrapper(self, function)
        self.function = function
        self.signature = inspect.signature(function)
        parameters = self.signature.parameters.values()
        kinds = {p.kind for p in parameters}
        if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            raise TypeError(
                f"{self._name}: an op names all its parameters; *args and **kwargs are not supported"
            )
        self.names = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        self.rule: Rule | None = None
        self._kept: dict[Any, Callable[..., Any]] = {}

    @property
    def _name(self) -> str:
        return getattr(self.function, "__name__", "op")

    def vjp(self, rule: Rule) -> Rule:
        """Decorator of the gradient: ``rule(primals, cotangents, outputs, **options)``.

        ``primals``: the values of the positional parameters, in order, with defaults. ``outputs``: the arrays
        that the function returned. ``cotangents``: for each of them the gradient that reaches it. All three
        are tuples, also of one item. ``options``: the keyword-only parameters.

        It returns a tuple of gradients, one item for each of ``primals`` (for a single one also the array
        itself): of the primal's shape, converted to its dtype, or None for a gradient of zero and for what is
        no array. At the call, ``TypeError`` or ``ValueError`` says which parameter's does not fit.
        """
        self.rule = rule
        self._kept.clear()
        return rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = tuple(bound.arguments[name] for name in self.names)
        options = {name: value for name, value in bound.arguments.items() if name not in self.names}
        for name, value in bound.arguments.items():
            self._require_visible(name, value, top=name in self.names)
        if self.rule is None:
            return self.function(*values, **options)
        arrays = [value for value in values if isinstance(value, mx.array)]
        return self._differentiable(values, options)(*arrays)

    def _require_visible(self, name: str, value: Any, top: bool) -> None:
        if isinstance(value, mx.array) and not top:
            raise TypeError(
                f"{self._name}: {name} is an array where no gradient can reach it; pass it as a positional "
                f"parameter of its own"
            )
        if isinstance(value, (list, tuple, dict)):
            for item in value.values() if isinstance(value, dict) else value:
                self._require_visible(name, item, top=False)

    def _differentiable(self, values: Sequence[Any], options: dict[str, Any]) -> Callable[..., Any]:
        """The function of the arrays among ``values`` that MLX differentiates; kept where that is safe."""
        template = [None if isinstance(v, mx.array) else v for v in values]
        places = tuple(i for i, v in enumerate(values) if isinstance(v, mx.array))
        key = (places, _key(template), _key(options.values()))
        if None in key:
            return self._build(template, places, options)
        found = self._kept.get(key)
        if found is None:
            while len(self._kept) >= _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            found = self._kept[key] = self._build(template, places, options)
        return found

    def _build(
        self, template: list[Any], places: tuple[int, ...], options: dict[str, Any]
    ) -> Callable[..., Any]:
        def filled(arrays: Sequence[mx.array]) -> tuple[Any, ...]:
            values = list(template)
            for place, array in zip(places, arrays, strict=True):
                values[place] = array
            return tuple(values)

        def forward(*arrays: mx.array) -> Any:
            result = self.function(*filled(arrays), **options)
            for item in result if isinstance(result, (tuple, list)) else (result,):
                if not isinstance(item, mx.array):
                    raise TypeError(
                        f"{self._name} returned {type(item).__name__}; "
                        "an op returns an array or a tuple of them"
                    )
            return result

        differentiable = mx.custom_function(forward)

        @differentiable.vjp
        def backward(primals: Any, cotangents: Any, outputs: Any) -> Any:
            values = filled(_as_tuple(primals))  # MLX unpacks a single one
            assert self.rule is not None
            gradients = self.rule(values, _as_tuple(cotangents), _as_tuple(outputs), **options)
            checked = self._checked(values, gradients)
            return checked[0] if len(checked) == 1 else tuple(checked)

        return differentiable

    def _checked(self, values: tuple[Any, ...], gradients: Any) -> list[mx.array]:
        """The gradients of the arrays among ``values``; an error names the parameter whose does not fit."""
        if isinstance(gradients, mx.array) and len(values) == 1:
            gradients = (gradients,)
        if not isinstance(gradients, (tuple, list)):
            raise TypeError(
                f"the gradient of {self._name} returned {type(gradients).__name__}; "
                f"it returns a tuple with one item for each of {', '.join(self.names)}"
            )
        if len(gradients) != len(values):
            raise ValueError(
                f"the gradient of {self._name} returned {len(gradients)} items; "
                f"it returns {len(values)}, one for each of {', '.join(self.names)}"
            )
        checked = []
        for name, value, gradient in zip(self.names, values, gradients, strict=True):
            what = f"the gradient of {self._name} for {name}"
            if not isinstance(value, mx.array):
                if gradient is not None:
                    raise TypeError(f"{what} must be None: {name} is no array in this call")
                continue
            if gradient is None:
                checked.append(mx.zeros_like(value))
                continue
            if not isinstance(gradient, mx.array):
                raise TypeError(f"{what} is {type(gradient).__name__}; it must be an array or None")
            if gradient.shape != value.shape:
                raise ValueError(f"{what} has shape {gradient.shape}; {name} has shape {value.shape}")
            checked.append(gradient if gradient.dtype == value.dtype else gradient.astype(value.dtype))
        return checked

    def __repr__(self) -> str:
        return f"<enceladus.op {self._name}{self.signature}>"


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _key(values: Iterable[Any]) -> tuple[Any, ...] | None:
    """What tells these values from others (1, 1.0 and True are three), or None where nothing safe does."""
    parts: list[Any] = []
    for value in values:
        if isinstance(value, tuple):
            inner = _key(value)
            if inner is None:
                return None
            parts.append((tuple, inner))
        elif type(value) in _PLAIN:
            # Also 0.0 and -0.0 are two, and a NaN is itself.
            parts.append((type(value), repr(value) if isinstance(value, float) else value))
        else:
            return None
    return tuple(parts)


def op(function: Callable[..., Any]) -> Op:
    """Make a function on arrays with a gradient of its own out of host code that launches kernels.

        @enceladus.op
        def scale(x, w, *, block=1024):
            grid, out = (enceladus.cdiv(x.size, block),), enceladus.empty_like(x)
            return scale_kernel[grid](x, w, out, x.size, BLOCK=block)

        @scale.vjp
        def scale_gradient(primals, cotangents, outputs, *, block):
            x, w = primals
            ...
            return dx, dw

    A thin layer over ``mx.custom_function``: see :class:`Op` for the parameters and :meth:`Op.vjp` for the
    rule. Without a rule, the function is called as it is. ``mx.vmap`` of it maps what the function does;
    a gradient of a gradient differentiates the rule.
    """
    return Op(function)
