"""The errors that Enceladus raises, and the source locations they point at.

Three kinds, told apart by whose mistake it is:

* ``CompilationError``: the kernel's source asks for something the language refuses. It carries
  file, line and column, the source line with a caret, the reason, and what to write instead.
* ``TypeError`` and ``ValueError`` (Python's own): a launch was called wrongly. Their text uses the
  names of the user's parameters.
* ``InternalError``: an invariant of the compiler broke. That is our bug, and the text says so.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """A range of characters in a source file. Lines count from 1; columns from 0, as in ``ast``.

    ``call_site`` is set on locations inside an inlined function: where it was called from.
    """

    file: str
    line: int
    column: int = 0
    end_column: int = 0
    function: str = ""
    call_site: Location | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"

    def excerpt(self) -> str:
        """The source line with carets under the range, or ``""`` when the source cannot be had."""
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text.strip():
            return ""
        # ``ast`` counts columns in UTF-8 bytes; people count characters.
        raw = text.encode()
        start = len(raw[: self.column].decode(errors="replace"))
        end = len(raw[: self.end_column].decode(errors="replace")) if self.end_column else start + 1
        margin = "".join("\t" if char == "\t" else " " for char in text[:start])
        return f"    {text}\n    {margin}{'^' * max(1, min(end, len(text)) - start)}"


class EnceladusError(Exception):
    """Base of the errors that are Enceladus's own."""


class CompilationError(EnceladusError):
    """The language refuses this kernel.

    Attributes: ``reason`` (what is wrong), ``hint`` (what to write instead, may be empty) and
    ``location`` (``None`` until the front end fills in where it happened).
    """

    def __init__(self, reason: str, hint: str = "", location: Location | None = None):
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.location = location

    def __str__(self) -> str:
        lines = []
        if self.location is None:
            lines.append(self.reason)
        else:
            lines.append(f"{self.location}: {self.reason}")
            lines.append(self.location.excerpt())
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        site = self.location.call_site if self.location else None
        while site is not None:
            lines.append(f"  called from {site} in {site.function}")
            site = site.call_site
        return "\n".join(line for line in lines if line)


class InternalError(EnceladusError):
    """An invariant of the compiler does not hold. This is a bug in Enceladus, not in the kernel."""

    def __init__(self, message: str):
        super().__init__(f"{message}\nThis is a bug in Enceladus, not in your kernel: please report it.")


class EnceladusWarning(UserWarning):
    """Something in a kernel or its use that works but is probably not what was wanted."""
