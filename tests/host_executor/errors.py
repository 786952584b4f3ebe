"""What the host executor reports."""

from __future__ import annotations


class ExecutorError(Exception):
    """A kernel text that Metal would refuse, or a run that broke a rule of the GPU."""
