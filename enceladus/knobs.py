"""Environment variables that steer Enceladus, each read when it is used.

``KNOBS`` lists them all; a variable that starts with ``ENCELADUS_`` and is not in the list gets one
warning with the closest name.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from enceladus.errors import EnceladusWarning

#: Name → what it does. The table in the documentation is made from this.
KNOBS: dict[str, str] = {
    "ENCELADUS_ENGINE": "`metal`, `cuda`, `graph` or `interpret` instead of what the device asks for",
    "ENCELADUS_INTERPRET": "1: run every kernel in the NumPy interpreter, where print and pdb work",
    "ENCELADUS_DEBUG": "1: part of the specialization key, so that debug and normal kernels do not mix",
    "ENCELADUS_CACHE": "0: no disk cache",
    "ENCELADUS_CACHE_DIR": "directory of the disk cache (default: the user's cache directory)",
    "ENCELADUS_DUMP": "directory for the IR after every pass and the body of each compiled kernel",
}

ENGINES = ("metal", "cuda", "graph", "interpret")

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})

_suggested: set[str] = set()

# ``os.environ.get`` costs 0.7 µs because it encodes and decodes; a launch reads three variables. The
# dictionary underneath is what ``os.environ`` itself reads, so later changes are seen.
_data: Any = getattr(os.environ, "_data", None)
if sys.platform != "win32" and isinstance(_data, dict):
    raw: Callable[[Any], Any] = _data.get
    RAW_ENGINE: str | bytes = b"ENCELADUS_ENGINE"
    RAW_INTERPRET: str | bytes = b"ENCELADUS_INTERPRET"
    RAW_DEBUG: str | bytes = b"ENCELADUS_DEBUG"
else:  # pragma: no cover (other Python implementations)
    raw = os.environ.get
    RAW_ENGINE, RAW_INTERPRET, RAW_DEBUG = "ENCELADUS_ENGINE", "ENCELADUS_INTERPRET", "ENCELADUS_DEBUG"


def _flag(name: str, default: bool) -> bool:
    text = os.environ.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"{name} is {text!r}; it takes 1 or 0")


def engine() -> str:
    """The engine asked for, or ``""``: the device decides."""
    text = os.environ.get("ENCELADUS_ENGINE", "").strip().lower()
    if text == "interpreter":
        return "interpret"
    if text and text not in ENGINES:
        raise ValueError(f"ENCELADUS_ENGINE is {text!r}; it takes {', '.join(ENGINES)}")
    return text


def interpret() -> bool:
    """Whether every kernel runs in the interpreter."""
    return _flag("ENCELADUS_INTERPRET", False)


def debug() -> bool:
    """Whether kernels are compiled for debugging."""
    return _flag("ENCELADUS_DEBUG", False)


def cache_enabled() -> bool:
    """Whether the disk cache may be used."""
    return _flag("ENCELADUS_CACHE", True)


def cache_dir() -> str:
    """The directory of the disk cache, or ``""`` where the user has no home directory."""
    chosen = os.environ.get("ENCELADUS_CACHE_DIR")
    if chosen:
        return os.path.expanduser(chosen)
    if sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "enceladus") if os.path.isabs(base) else ""


def dump() -> str:
    """The directory that receives IR and bodies, or ``""``."""
    return os.path.expanduser(os.environ.get("ENCELADUS_DUMP", ""))


def warn_about_unknown() -> None:
    """Warn, once per name, about ``ENCELADUS_*`` variables that do not exist."""
    for name in os.environ:
        if name.startswith("ENCELADUS_") and name not in KNOBS and name not in _suggested:
            _suggested.add(name)
            import difflib

            close = difflib.get_close_matches(name, KNOBS, n=1)
            advice = f"did you mean {close[0]}?" if close else f"known: {', '.join(KNOBS)}"
            warnings.warn(f"unknown environment variable {name}; {advice}", EnceladusWarning, stacklevel=2)
