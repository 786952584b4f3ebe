"""The parts of a text that ``mx.fast.metal_kernel`` generated: header, parameters, body, instantiation."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from .errors import ExecutorError

DTYPES: dict[str, np.dtype] = {
    "bool": np.dtype(np.bool_),
    "float": np.dtype(np.float32),
    "float16_t": np.dtype(np.float16),
    "bfloat16_t": np.dtype(ml_dtypes.bfloat16),
    **{f"{sign}int{bits}_t": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class Role(enum.Enum):
    """What a parameter of the generated function stands for."""

    INPUT = "input"
    SHAPE = "shape"
    STRIDES = "strides"
    NDIM = "ndim"
    OUTPUT = "output"
    ATTRIBUTE = "attribute"


@dataclass(frozen=True)
class Parameter:
    """One parameter: ``type`` is its full spelling up to ``*`` or ``&``."""

    name: str
    role: Role
    type: str
    element: str = ""
    space: str = ""
    is_reference: bool = False
    is_atomic: bool = False
    of: str = ""  # the input that a shape argument describes

    @property
    def dtype(self) -> np.dtype:
        return DTYPES[self.element]


@dataclass(frozen=True)
class Signature:
    """A generated text, taken apart. ``body_offset``:``body_end`` is the caller's own text."""

    name: str
    parameters: tuple[Parameter, ...]
    template_line: str
    template_arguments: str  # "" or "<float, 3>"
    header: str
    body: str

    def having(self, *roles: Role) -> list[Parameter]:
        return [p for p in self.parameters if p.role in roles]


_FUNCTION = re.compile(r"\[\[kernel\]\] void (custom_kernel_\w+)\(\n?")
_TEMPLATE = re.compile(r"template <[^\n]*>\n\Z")
_INSTANTIATION = re.compile(
    r"\n\}\n\ntemplate \[\[host_name\(\"[^\"]*\"\)\]\] \[\[kernel\]\] decltype\(\w+(<.*>)\) \w+<.*>;\s*\Z"
)
_BUFFER = re.compile(
    r"(?P<const>const )?(?P<space>device|constant) (?P<element>[\w<>]+)(?P<kind>[*&]) (?P<name>\w+)"
    r" \[\[buffer\(\d+\)\]\]\Z"
)
_ATTRIBUTE = re.compile(r"(?P<type>uint3?) (?P<name>\w+) \[\[\w+\]\]\Z")
_SHAPE_ROLES = {"_shape": Role.SHAPE, "_strides": Role.STRIDES, "_ndim": Role.NDIM}


def _parameter(text: str, latest_input: str) -> Parameter:
    if match := _ATTRIBUTE.match(text):
        return Parameter(match["name"], Role.ATTRIBUTE, match["type"])
    match = _BUFFER.match(text)
    if match is None:
        raise ExecutorError(f"cannot read the parameter {text!r} of the generated signature")
    name, element = match["name"], match["element"]
    is_atomic = element.startswith("atomic<")
    if is_atomic:
        element = element[len("atomic<") : -1]
    spelling = f"{match['const'] or ''}{match['space']} {match['element']}"
    role, of = (Role.INPUT, "") if match["const"] else (Role.OUTPUT, "")
    if name.startswith(latest_input) and latest_input and match["space"] == "constant":
        suffix = name[len(latest_input) :]
        if suffix in _SHAPE_ROLES and element in ("int", "int64_t"):
            role, of = _SHAPE_ROLES[suffix], latest_input
    if role in (Role.INPUT, Role.OUTPUT) and element not in DTYPES:
        raise ExecutorError(f"the host executor has no element type {element} (parameter {name!r})")
    return Parameter(name, role, spelling, element, match["space"], match["kind"] == "&", is_atomic, of)


def parse_signature(source: str) -> Signature:
    """Take a generated text apart."""
    match = _FUNCTION.search(source)
    if match is None:
        raise ExecutorError("this is not a text that mx.fast.metal_kernel generated: no [[kernel]] function")
    close = source.find(") {\n", match.end())
    if close < 0:
        raise ExecutorError("the generated signature has no end")
    parameters: list[Parameter] = []
    latest_input = ""
    for piece in source[match.end() : close].split(",\n"):
        parameter = _parameter(piece.strip(), latest_input)
        if parameter.role is Role.INPUT:
            latest_input = parameter.name
        parameters.append(parameter)

    before = source[: match.start()]
    template = _TEMPLATE.search(before)
    instantiation = _INSTANTIATION.search(source)
    end = instantiation.start() if instantiation else source.rstrip().rfind("}")
    return Signature(
        name=match[1],
        parameters=tuple(parameters),
        template_line=template[0] if template else "",
        template_arguments=instantiation[1] if instantiation else "",
        header=before[: template.start()] if template else before,
        body=source[close + len(") {\n") : end],
    )
