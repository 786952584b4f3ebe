"""From a specialization key to a compiled kernel: memory first, disk second, the compiler last."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections import Counter
from typing import TYPE_CHECKING

from enceladus import knobs
from enceladus.codegen.kernel import CompiledKernel
from enceladus.errors import EnceladusWarning
from enceladus.frontend.build import build_function
from enceladus.frontend.function import KernelFunction
from enceladus.frontend.signature import ArrayArgument, TupleArgument
from enceladus.ir.printer import print_function
from enceladus.mlx_bridge.specialization import SpecializationKey

if TYPE_CHECKING:
    from enceladus.ir.core import Function

#: The compile that gets the warning about too many specializations.
MANY = 17


def build(kernel: KernelFunction, key: SpecializationKey, *, debugging: bool = False) -> Function:
    """Python to tile IR; ``debugging`` lets ``print`` and ``breakpoint`` pass.

    ``CompilationError`` for what the language refuses.
    """
    return build_function(
        kernel, dict(key.arguments), num_warps=key.num_warps, wide=key.wide, debugging=debugging
    )


def compile_kernel(kernel: KernelFunction, key: SpecializationKey) -> CompiledKernel:
    """Python to a kernel's body, without any cache."""
    from enceladus.compiler import compile_function  # half of the compiler loads with the first compile

    dump = Dump(key) if knobs.dump() else None
    function = build(kernel, key)
    if dump is not None:
        dump("frontend", function)
    compiled = compile_function(
        function,
        math_mode=key.math_mode,
        track_writes=key.track_writes,
        grid_remap=key.grid_remap,
        levels=key.batch,
        listener=dump,
    )
    compiled.key = str(key)
    if dump is not None:
        dump.finish(compiled)
    return compiled


class Dump:
    """Writes what ``ENCELADUS_DUMP`` asks for: key, IR after every pass, header and body."""

    def __init__(self, key: SpecializationKey):
        name = f"{key.kernel.rpartition('.')[2]}-{key.digest()[:8]}"
        self.folder = os.path.join(knobs.dump(), name)
        self._step = 0
        os.makedirs(self.folder, exist_ok=True)
        self._write("key.txt", str(key))

    def __call__(self, step: str, function: Function) -> None:
        self._write(f"{self._step:02d}-{step}.ir", print_function(function))
        self._step += 1

    def finish(self, compiled: CompiledKernel) -> None:
        self._write("header.metal", compiled.header)
        self._write("body.metal", compiled.body)

    def _write(self, name: str, text: str) -> None:
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)


def prepare_function(kernel: KernelFunction, key: SpecializationKey, *, debugging: bool = False) -> Function:
    """Python to tile IR with resolved memory accesses: what the graph engine runs."""
    from enceladus.compiler import prepare

    return prepare(build(kernel, key, debugging=debugging), levels=key.batch)


def warn_user(text: str) -> None:
    """Warn at the launch in the user's code, past the frames of this package and of generated launchers."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_globals.get("__name__", "").startswith("enceladus.")
        or frame.f_code.co_filename.startswith(("<launch of ", "<plan of "))
    ):
        frame = frame.f_back
        depth += 1
    warnings.warn(text, EnceladusWarning, stacklevel=depth)


class Compilations:
    """The compiled forms of one kernel in this process. Reading is lock-free; compiling takes a lock."""

    def __init__(self, kernel: KernelFunction):
        self._kernel = kernel
        self._lock = threading.RLock()
        self._kernels: dict[SpecializationKey, CompiledKernel] = {}
        self._functions: dict[tuple[SpecializationKey, bool], Function] = {}
        self._history: list[SpecializationKey] = []
        self._warned: set[str] = set()

    def kernel(self, key: SpecializationKey) -> CompiledKernel:
        """The compiled kernel for ``key``."""
        found = self._kernels.get(key)
        if found is None:
            with self._lock:
                found = self._kernels.get(key)
                if found is None:
                    found = self._kernels[key] = self._load_or_compile(key)
                    self._warn(key, found.warnings)
        return found

    def function(self, key: SpecializationKey, *, debugging: bool = False) -> Function:
        """The tile IR for ``key``, with resolved memory accesses."""
        place = (key, debugging)
        found = self._functions.get(place)
        if found is None:
            with self._lock:
                found = self._functions.get(place)
                if found is None:
                    knobs.warn_about_unknown()
                    found = prepare_function(self._kernel, key, debugging=debugging)
                    self._functions[place] = found
                    if not debugging:
                        self._warn(key, [])
        return found

    def _load_or_compile(self, key: SpecializationKey) -> CompiledKernel:
        from enceladus.mlx_bridge import cache  # needs json and logging, which are slow to import

        knobs.warn_about_unknown()
        compiled = None if knobs.dump() else cache.load(key)
        if compiled is None:
            compiled = compile_kernel(self._kernel, key)
            cache.store(key, compiled)
        return compiled

    def _warn(self, key: SpecializationKey, texts: list[str]) -> None:
        """Pass on the compiler's warnings, each once, and warn of a kernel specialized again and again."""
        is_new = key not in self._history  # a gradient needs the IR of a kernel that was compiled before
        if is_new:
            self._history.append(key)
        for text in texts:
            if text not in self._warned:
                self._warned.add(text)
                warn_user(f"{self._kernel.name}: {text}")
        if is_new and len(self._history) == MANY:
            warn_user(f"{self._kernel.name} has been compiled {MANY} times in this process; {self._blame()}")

    def _blame(self) -> str:
        """What changed most often from one compile to the next."""
        changes: Counter[str] = Counter()
        for before, after in zip(self._history, self._history[1:], strict=False):
            changes.update(entry.partition(":")[0] for entry in before.difference(after))
        if not changes:
            return "nothing in its key changed"
        distinct = {name: len({key.lines()[name] for key in self._history}) for name in changes}
        name = max(changes, key=lambda name: (changes[name], distinct[name]))
        times = changes[name]
        advice = ""
        if name.startswith("argument "):
            parameter = name.removeprefix("argument ")
            record = dict(self._history[-1].arguments)[parameter]
            if self._kernel.by_name[parameter].constexpr:
                advice = "; a value that changes often should not be tl.constexpr"
            elif not isinstance(record, (ArrayArgument, TupleArgument)):
                advice = f"; @enceladus.jit(do_not_specialize=[{parameter!r}]) makes one kernel serve all"
        return f"what changed most often is {name} ({times} times){advice}"
