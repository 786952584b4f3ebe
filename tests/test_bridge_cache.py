"""The disk cache: hits, and everything that can go wrong with files, directories and processes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import pytest

import enceladus
from enceladus.codegen.kernel import CompiledKernel
from enceladus.mlx_bridge import cache, compilation
from tests.bridge_helpers import add_kernel

ROOT = Path(__file__).parent.parent
X = mx.zeros(8)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ENCELADUS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_unusable", set())
    monkeypatch.setattr(cache, "_tidied", set())
    return tmp_path


@pytest.fixture
def compiles(monkeypatch):
    """A list that grows by one with each real compile."""
    seen = []
    real = compilation.compile_kernel

    def counted(kernel, key):
        seen.append(key)
        return real(kernel, key)

    monkeypatch.setattr(compilation, "compile_kernel", counted)
    return seen


def _warmup():
    """As in a new process: no memory cache."""
    return enceladus.jit(add_kernel.fn).warmup(X, X, enceladus.empty(8), 8, BLOCK=8)


def _entries(folder):
    return sorted(folder.glob("*.json"))


def test_a_second_process_finds_the_kernel(folder, compiles):
    first, second = _warmup(), _warmup()
    assert len(compiles) == 1
    assert len(_entries(folder)) == 1
    assert second.kernel == first.kernel
    assert second.kernel.body == first.kernel.body


def test_an_entry_is_readable_json(folder):
    warm = _warmup()
    entry = json.loads(_entries(folder)[0].read_text())
    assert entry["key"] == str(warm.key)
    assert CompiledKernel.from_json(entry["kernel"]) == warm.kernel


def _set(path, change):
    entry = json.loads(path.read_text())
    change(entry)
    path.write_text(json.dumps(entry))


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(os.urandom(500)),
    "not UTF-8": lambda path: path.write_bytes(b'{"format": "\xff"}'),
    "a list": lambda path: path.write_text("[1, 2]"),
    "deeply nested": lambda path: path.write_text("[" * 100_000),
    "another format": lambda path: _set(path, lambda e: e.update(format=0)),
    "another key": lambda path: _set(path, lambda e: e.update(key="x")),
    "a changed body": lambda path: _set(path, lambda e: e["kernel"].update(body="return;")),
    "a missing field": lambda path: _set(path, lambda e: e["kernel"].pop("arrays")),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("kind", list(DAMAGE))
def test_a_damaged_entry_is_compiled_again(folder, compiles, kind):
    first = _warmup()
    DAMAGE[kind](_entries(folder)[0])
    assert _warmup().kernel == first.kernel
    assert len(compiles) == 2
    if kind != "a directory":
        _warmup()  # the entry was repaired
        assert len(compiles) == 2


def test_a_field_of_the_wrong_type_with_a_right_checksum(folder, compiles):
    _warmup()

    def change(entry):
        entry["kernel"]["arrays"] = 3
        entry["checksum"] = cache._checksum(entry["kernel"])

    _set(_entries(folder)[0], change)
    _warmup()
    assert len(compiles) == 2


def test_the_cache_can_be_turned_off(folder, compiles, monkeypatch):
    monkeypatch.setenv("ENCELADUS_CACHE", "0")
    _warmup()
    _warmup()
    assert len(compiles) == 2
    assert not list(folder.iterdir())


def _unwritable(tmp_path):
    """A path below a file: nobody, not even root, can create it."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "cache"


def test_an_unusable_directory_costs_one_message(tmp_path, compiles, monkeypatch, caplog):
    monkeypatch.setenv("ENCELADUS_CACHE_DIR", str(_unwritable(tmp_path)))
    with caplog.at_level(logging.WARNING, "enceladus"):
        _warmup()
        _warmup()
    assert len(compiles) == 2
    assert len(caplog.records) == 1
    assert "no disk cache" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory(tmp_path, compiles, monkeypatch):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    monkeypatch.setenv("ENCELADUS_CACHE_DIR", str(folder))
    _warmup()
    assert len(compiles) == 1


def test_a_full_disk(folder, compiles, monkeypatch, caplog):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", full)
    _warmup()
    assert len(compiles) == 1
    assert not list(folder.iterdir())  # the temporary file is gone
    assert "No space left" in caplog.text


def test_a_missing_home(monkeypatch, caplog, compiles):
    monkeypatch.delenv("ENCELADUS_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it does when there is none
    _warmup()
    assert len(compiles) == 1
    assert len(caplog.records) == 1
    assert "no home directory" in caplog.text


def test_old_temporary_files_are_removed(folder):
    old, new = folder / "1-1-0.tmp", folder / "1-1-1.tmp"
    for file in (old, new):
        file.write_text("x")
    os.utime(old, (time.time() - 10_000,) * 2)
    _warmup()
    assert not old.exists()
    assert new.exists()


CHILD = """
import sys
import mlx.core as mx
import enceladus
from tests.bridge_helpers import add_kernel, scale_kernel

x = mx.zeros(8)
lines = []
for block in (8, 16, 32, 64):
    for kernel, arguments in ((add_kernel, (x, x, enceladus.empty(8), 8)),
                              (scale_kernel, (x, enceladus.empty(8), 8, 2.0))):
        lines.append(kernel.warmup(*arguments, BLOCK=block).body)
import hashlib
print(hashlib.sha256("".join(lines).encode()).hexdigest())
"""


def _start(folder, script, **environment):
    environment = {
        **os.environ,
        "ENCELADUS_CACHE_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join(sys.path),
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, "-c", script], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_eight_processes_at_once(folder):
    """Different hash seeds too: the text must not depend on them."""
    processes = [_start(folder, CHILD, PYTHONHASHSEED=str(seed)) for seed in range(8)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    assert len(set(outputs)) == 1
    entries = _entries(folder)
    assert len(entries) == 8
    for entry in entries:
        json.loads(entry.read_text())
    assert not list(folder.glob("*.tmp"))


KILLED = """
import json, os, signal

class Half:
    def __init__(self, file):
        self.file = file
    def write(self, text):
        self.file.write(text[: len(text) // 2 + 1])
        self.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

json.dump = lambda data, file, **options: Half(file).write("{" * 100)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_killed_while_writing(folder, compiles):
    process = _start(folder, KILLED + CHILD)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(list(folder.glob("*.tmp"))) == 1
    assert not _entries(folder)
    _warmup()
    _warmup()
    assert len(compiles) == 1
