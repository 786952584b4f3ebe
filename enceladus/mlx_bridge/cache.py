"""The disk cache of compiled kernels: one readable JSON file per specialization.

Many processes may use it at once. An entry is written to a temporary file and renamed, so readers see
all of it or nothing; whatever cannot be read, parsed or verified is as good as absent, and the kernel is
compiled again. A directory that cannot be used turns the cache off with one log message.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from enceladus import knobs
from enceladus.codegen.kernel import CompiledKernel
from enceladus.mlx_bridge.specialization import SpecializationKey

if TYPE_CHECKING:
    from logging import Logger

FORMAT = 1
_SUFFIX = ".json"
_TEMPORARY = ".tmp"
_STALE_SECONDS = 3600

_unusable: set[str] = set()  # directories already complained about
_tidied: set[str] = set()
_serial = itertools.count()


def directory() -> str:
    """Where entries are, or ``""``: no disk cache."""
    if not knobs.cache_enabled():
        return ""
    found = knobs.cache_dir()
    if not found:
        _give_up("", "the user has no home directory")
    return "" if found in _unusable else found


def load(key: SpecializationKey) -> CompiledKernel | None:
    """The stored kernel, or ``None``: absent, damaged, or of another key."""
    folder = directory()
    if not folder:
        return None
    import json  # here and below: with the cache off, a process need not load it

    try:
        with open(os.path.join(folder, key.digest() + _SUFFIX), "rb") as file:
            raw = file.read()
    except OSError:
        return None
    try:
        entry = json.loads(raw)
        if entry["format"] != FORMAT or entry["key"] != str(key):
            return None
        if entry["checksum"] != _checksum(entry["kernel"]):
            return None
        return CompiledKernel.from_json(entry["kernel"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        _logger().info("ignoring a damaged cache entry for %s", key.kernel)
        return None


def store(key: SpecializationKey, kernel: CompiledKernel) -> bool:
    """Write an entry; ``False`` where the directory cannot be used."""
    folder = directory()
    if not folder:
        return False
    import json

    data = kernel.to_json()
    entry = {"format": FORMAT, "key": str(key), "checksum": _checksum(data), "kernel": data}
    name = f"{os.getpid()}-{threading.get_ident()}-{next(_serial)}{_TEMPORARY}"
    temporary = os.path.join(folder, name)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _tidy(folder)
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(entry, file, indent=1)
        os.replace(temporary, os.path.join(folder, key.digest() + _SUFFIX))
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        _give_up(folder, str(error))
        return False
    return True


def _checksum(data: dict[str, Any]) -> str:
    import json

    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _logger() -> Logger:
    import logging  # slow to load, and seldom needed

    return logging.getLogger("enceladus")


def _give_up(folder: str, reason: str) -> None:
    if folder not in _unusable:
        _unusable.add(folder)
        _logger().warning("no disk cache for compiled kernels: %s (ENCELADUS_CACHE=0 silences this)", reason)


def _tidy(folder: str) -> None:
    """Remove, once per process, what killed writers left behind long ago."""
    if folder in _tidied:
        return
    _tidied.add(folder)
    limit = time.time() - _STALE_SECONDS
    for entry in os.scandir(folder):
        if entry.name.endswith(_TEMPORARY):
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime < limit:
                    os.unlink(entry.path)
