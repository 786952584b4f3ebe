"""clang from the ``ziglang`` package: the vocabulary header, the runtime and kernels, each built once.

Kernels go straight to clang's front end (``clang -cc1``) and then to the linker: a driver in
between would cost more than the compile. Everything is cached by content, so a cache directory
can be shared between processes and thrown away at any time.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from .errors import ExecutorError

_HERE = Path(__file__).parent
_INCLUDE = _HERE / "include"


def cache_directory() -> Path:
    """Where compiled things live: ``HOST_EXECUTOR_CACHE``, or a folder for temporary files."""
    root = os.environ.get("HOST_EXECUTOR_CACHE")
    path = Path(root) if root else Path(tempfile.gettempdir()) / f"enceladus-host-executor-{os.getuid()}"
    path.mkdir(parents=True, exist_ok=True)
    return path


@functools.cache
def _zig() -> str:
    import ziglang

    return str(Path(ziglang.__file__).parent / "zig")


@functools.cache
def _has_x86_v3() -> bool:
    """Whether half conversions and fused multiply-add are single instructions here."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return all(f" {flag}" in flags for flag in ("avx2", "f16c", "fma", "bmi2"))


# Not every target has these by default. The vocabulary header needs generic `this` pointers.
_FEATURES = (
    "+cl_khr_fp16,+__opencl_c_generic_address_space,+__opencl_c_program_scope_global_variables"
    ",-cl_khr_fp64,-__opencl_c_fp64"
)


@functools.cache
def _target() -> tuple[str, ...]:
    machine = platform.machine().lower()
    system = "apple-macosx13.0.0" if sys.platform == "darwin" else "unknown-linux-gnu"
    if machine in ("x86_64", "amd64"):
        cpu = ("-target-cpu", "x86-64-v3") if _has_x86_v3() else ()
        return ("-triple", f"x86_64-{system}", *cpu)
    if machine in ("arm64", "aarch64"):
        name = "arm64" if sys.platform == "darwin" else "aarch64"
        # clang's front end makes char signed unless the driver says otherwise, which suits MSL.
        return ("-triple", f"{name}-{system}", "-target-feature", "+neon")
    raise ExecutorError(f"the host executor knows x86-64 and aarch64, not {machine}")


def _flags(contract: bool) -> tuple[str, ...]:
    return (
        *_target(),
        "-x", "clcpp", "-cl-std=clc++2021",
        # There is no double in Metal: the type is an error and a bare literal is a float.
        f"-cl-ext={_FEATURES}", "-cl-single-precision-constant",
        # Half and bfloat expressions round after every operation, as on the GPU.
        "-ffloat16-excess-precision=none", "-fbfloat16-excess-precision=none",
        f"-ffp-contract={'on' if contract else 'off'}",
        # Out-of-range float to integer saturates and NaN becomes 0, as the hardware does.
        "-fno-strict-float-cast-overflow",
        "-fsanitize=alignment", "-fdeclspec", "-w",
        # Sites are passed as arguments, so merging calls could not confuse them; still, fewer surprises.
        "-mllvm", "-enable-tail-merge=0",
        "-O2", "-pic-level", "2", "-mrelocation-model", "pic", "-debug-info-kind=line-tables-only",
        "-dwarf-version=4",
        "-fmessage-length=0", "-I", str(_INCLUDE),
    )  # fmt: skip


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _digest(*parts: str | bytes) -> str:
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode() if isinstance(part, str) else part)
        state.update(b"\0")
    return state.hexdigest()[:24]


@functools.cache
def _tools_digest() -> str:
    sources = [path.read_bytes() for path in sorted(_INCLUDE.glob("*.h"))]
    return _digest(importlib.metadata.version("ziglang"), *_target(), str(_INCLUDE), *sources)


def _build(path: Path, commands: list[list[str]], scratch: list[Path]) -> str:
    """Run ``commands``, move their product into place as ``path``, return the diagnostics."""
    for command in commands:
        result = _run(command)
        if result.returncode != 0:
            for file in scratch:
                file.unlink(missing_ok=True)
            return result.stderr or f"exit status {result.returncode}: {' '.join(command)}"
    os.replace(_fresh(path), path)
    for file in scratch:
        file.unlink(missing_ok=True)
    return ""


def _fresh(path: Path) -> Path:
    """A name beside ``path`` that no other process writes: products are moved into place whole."""
    return path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")


@functools.cache
def _precompiled_header(contract: bool) -> Path:
    flags = _flags(contract)
    path = cache_directory() / f"msl-{_digest(_tools_digest(), *flags)}.pch"
    if not path.exists():
        command = [
            _zig(),
            "clang",
            "-cc1",
            *flags,
            "-fno-pch-timestamp",
            "-emit-pch",
            str(_INCLUDE / "msl.h"),
            "-o",
            str(_fresh(path)),
        ]
        if problem := _build(path, [command], []):
            raise AssertionError(f"the Metal vocabulary does not compile:\n{problem}")
    return path


@functools.cache
def runtime() -> ctypes.CDLL:
    """The scheduler, loaded so that kernels find its functions (and the mathematics library's)."""
    source = _HERE / "runtime.c"
    path = cache_directory() / f"runtime-{_digest(source.read_bytes(), _tools_digest())}.so"
    if not path.exists():
        options = ["-shared", "-O2", "-fPIC", "-g0", "-fno-sanitize=all"]
        command = [_zig(), "cc", *options, str(source), "-o", str(_fresh(path)), "-lm"]
        if problem := _build(path, [command], []):
            raise AssertionError(f"the host executor's runtime does not compile:\n{problem}")
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _link_command(object_file: Path, library: Path) -> list[str]:
    if sys.platform == "darwin":
        return ["cc", "-bundle", "-undefined", "dynamic_lookup", str(object_file), "-o", str(library)]
    if platform.machine().lower() in ("x86_64", "amd64") and not _has_x86_v3():
        # Half conversions are library calls on such a machine; the driver links them in.
        return [_zig(), "cc", "-shared", str(object_file), "-o", str(library)]
    return [_zig(), "ld.lld", "-shared", str(object_file), "-o", str(library)]


def build_kernel(text: str, *, contract: bool) -> tuple[Path | None, str]:
    """Compile a translated kernel; return the library, or None and clang's diagnostics."""
    flags = _flags(contract)
    digest = _digest(text, _tools_digest(), *flags)
    library = cache_directory() / f"kernel-{digest}.so"
    if library.exists():
        return library, ""
    source = cache_directory() / f"kernel-{digest}.{os.getpid()}.{threading.get_ident()}.cl"
    object_file = source.with_suffix(".o")
    source.write_text(text, encoding="ascii")
    header = _precompiled_header(contract)
    compile_command = [_zig(), "clang", "-cc1", *flags, "-include-pch", str(header)]
    compile_command += ["-emit-obj", str(source), "-o", str(object_file)]
    problem = _build(
        library, [compile_command, _link_command(object_file, _fresh(library))], [source, object_file]
    )
    return (None, problem) if problem else (library, "")
