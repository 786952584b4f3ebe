"""A progress bar on standard error; silent where that is no terminal, but for one line a step."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO


class Progress:
    """``with Progress(total) as progress: progress.step("what comes now")``."""

    def __init__(self, total: int, stream: TextIO | None = None, quiet: bool = False):
        self.total = max(total, 1)
        self.done = 0
        self.stream = sys.stderr if stream is None else stream
        self.quiet = quiet
        self.live = self.stream.isatty()
        self.start = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.live and not self.quiet:
            self.stream.write("\r\033[K")
            self.stream.flush()

    def step(self, text: str) -> None:
        """Show what is measured now; the steps before count as done."""
        if not self.quiet:
            self.stream.write(self.line(text))
            self.stream.flush()
        self.done += 1

    def line(self, text: str) -> str:
        if not self.live:
            return f"[{self.done + 1}/{self.total}] {text}\n"
        width = shutil.get_terminal_size().columns
        filled = round(20 * self.done / self.total)
        elapsed = time.monotonic() - self.start
        left = elapsed / self.done * (self.total - self.done) if self.done else 0.0
        clock = f" {left:3.0f} s left" if self.done else ""
        bar = f"{'█' * filled}{'░' * (20 - filled)} {self.done}/{self.total}{clock}  {text}"
        return f"\r\033[K{bar[: width - 1]}"
