"""Where in the user's source a rewritten kernel is, read off Python's own frames."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType

from enceladus.errors import Location
from enceladus.interpreter.rewrite import RUNTIME

#: File and line of each call that led here, innermost first.
CallChain = tuple[tuple[str, int], ...]


def kernel_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of rewritten kernels among ``frame`` and its callers, innermost first."""
    while frame is not None:
        if RUNTIME in frame.f_globals:
            yield frame
        frame = frame.f_back


def current_call_chain() -> tuple[str, CallChain]:
    """The file of the innermost kernel frame, and the calls that led to it."""
    innermost, *callers = kernel_frames(sys._getframe(1))
    return innermost.f_code.co_filename, tuple((f.f_code.co_filename, f.f_lineno) for f in callers)


def call_chain_of(location: Location) -> CallChain:
    """The calls that led to a location in a helper."""
    chain: list[tuple[str, int]] = []
    site = location.call_site
    while site is not None:
        chain.append((site.file, site.line))
        site = site.call_site
    return tuple(chain)


def location_of(traceback: TracebackType | None) -> Location | None:
    """The innermost place in a kernel that ``traceback`` goes through, with its chain of calls."""
    location = None
    while traceback is not None:
        frame = traceback.tb_frame
        if RUNTIME in frame.f_globals:
            location = _locate(frame.f_code, traceback.tb_lasti, traceback.tb_lineno, location)
        traceback = traceback.tb_next
    return location


def _locate(code: CodeType, instruction: int, line: int, call_site: Location | None) -> Location:
    positions = list(code.co_positions())
    start, end, column, end_column = positions[instruction // 2]
    if start is None or column is None:
        return Location(code.co_filename, line, function=code.co_name, call_site=call_site)
    same_line = end_column if end == start and end_column is not None else 0
    return Location(code.co_filename, start, column, same_line, code.co_name, call_site)
