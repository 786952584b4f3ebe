"""Indented text, with a comment where a new Python statement starts."""

from __future__ import annotations

import linecache
from collections.abc import Callable

from enceladus.errors import Location

_INDENT = "  "


class Writer:
    """Collects lines. ``said`` holds the source lines already shown, shared by nested writers."""

    def __init__(self, is_harmless: Callable[[str], bool], said: set[tuple[str, int]] | None = None):
        self.lines: list[str] = []
        self.depth = 0
        self.is_harmless = is_harmless
        self.said: set[tuple[str, int]] = set() if said is None else said

    def line(self, text: str) -> None:
        self.lines.append(_INDENT * self.depth + text)

    def open(self, text: str) -> None:
        """Start a braced block."""
        self.line(text + " {")
        self.depth += 1

    def otherwise(self) -> None:
        self.depth -= 1
        self.line("} else {")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.line("}")

    def statement(self, loc: Location | None) -> None:
        """Show the Python line that follows, once per body; never text that MLX would misread."""
        if loc is None or (loc.file, loc.line) in self.said:
            return
        self.said.add((loc.file, loc.line))
        source = linecache.getline(loc.file, loc.line).strip()
        if source and source.isascii() and self.is_harmless(source) and not source.endswith("\\"):
            self.line(f"// {loc.line}: {source}")
        else:
            self.line(f"// line {loc.line}")

    def nested(self) -> Writer:
        """A writer for lines to be put in later, at this depth."""
        writer = Writer(self.is_harmless, self.said)
        writer.depth = self.depth
        return writer

    def extend(self, other: Writer) -> None:
        self.lines.extend(other.lines)

    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)
