"""What to say when a kernel names something the language does not have."""

from __future__ import annotations

from collections.abc import Iterable

from enceladus.errors import CompilationError


class MissingNameError(CompilationError, AttributeError):
    """A name that ``tl``, ``tl.math`` or a tile lacks. Also an AttributeError, so ``hasattr`` works."""


#: Names that Triton has and this language refuses for good, with what to use instead.
_REFUSED = {
    "float64": "Metal has no double precision: use tl.float32",
    "void": "",
    "block_type": "use the tile itself; `x.dtype` and `x.shape` describe it",
    "make_block_ptr": "add offsets to a pointer: `ptr + tl.arange(0, BLOCK)`",
    "advance": "add offsets to a pointer: `ptr + tl.arange(0, BLOCK)`",
    "inline_asm_elementwise": "write the operation with builtins; there is no assembly on Metal",
    "dot_scaled": "Metal has no block-scaled formats",
    "make_tensor_descriptor": "add offsets to a pointer: `ptr + tl.arange(0, BLOCK)`",
    "load_tensor_descriptor": "add offsets to a pointer: `ptr + tl.arange(0, BLOCK)`",
    "store_tensor_descriptor": "add offsets to a pointer: `ptr + tl.arange(0, BLOCK)`",
    "device_print": "run the kernel with interpret=True and use print",
    "device_assert": "run the kernel with interpret=True and use assert",
}

#: Names that Triton has and this version does not support yet.
_NOT_YET = frozenset({"bitonic_merge", "dot"})


def suggestion(name: str, known: Iterable[str]) -> str:
    """``did you mean …?``, or nothing."""
    from difflib import get_close_matches  # only needed on the way to an error

    close = get_close_matches(name, list(known), n=1)
    return f"did you mean `{close[0]}`?" if close else ""


def missing_name(namespace: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for ``tl.<name>``."""
    if name.startswith("__"):
        return AttributeError(f"module {namespace!r} has no attribute {name!r}")
    spelled = f"{namespace}.{name}"
    if name.startswith("float8"):
        return MissingNameError(f"{spelled} is not supported: no FP8 types", "use tl.float16 or tl.bfloat16")
    if name.startswith("tf32"):
        return MissingNameError(f"{spelled} is not supported: no TF32", "use tl.float32")
    if name in _REFUSED:
        return MissingNameError(f"{spelled} is not supported", _REFUSED[name])
    if name in _NOT_YET:
        return MissingNameError(f"{spelled} is not supported yet", suggestion(name, known))
    return MissingNameError(f"{namespace} has no `{name}`", suggestion(name, known))
