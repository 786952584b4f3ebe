"""What ``kernel.warmup(...)`` returns: the compiled kernel, to look at."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from enceladus.codegen.kernel import CompiledKernel
from enceladus.mlx_bridge.launch import Launch
from enceladus.mlx_bridge.specialization import SpecializationKey
from enceladus.mlx_bridge.targets import metal


class Warm:
    """A compiled kernel.

    Attributes: ``ir`` (tile IR after all passes), ``body`` and ``header`` (as handed to
    ``mx.fast.metal_kernel``), ``metal`` (the whole source as MLX builds it), ``registers`` (per thread, an
    estimate), ``threadgroup_bytes``, ``roles`` (parameter → how it is used), ``warnings``, ``key`` (the
    specialization key, printable), ``kernel`` (the :class:`CompiledKernel` itself).
    """

    def __init__(self, kernel: CompiledKernel, key: SpecializationKey, prepare: Callable[[], Launch]):
        self.kernel = kernel
        self.key = key
        self._prepare = prepare

    def __repr__(self) -> str:
        return f"<compiled kernel {self.kernel.name}: {self.registers} registers>"

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def ir(self) -> str:
        return self.kernel.ir

    @property
    def body(self) -> str:
        return self.kernel.body

    @property
    def header(self) -> str:
        return self.kernel.header

    @property
    def registers(self) -> int:
        return self.kernel.registers

    @property
    def threadgroup_bytes(self) -> int:
        return self.kernel.threadgroup_bytes

    @property
    def roles(self) -> dict[str, str]:
        return self.kernel.roles

    @property
    def costs(self) -> dict[str, str]:
        """Written array → what its unwritten elements cost: ``"free"``, ``"fill"`` or ``"merge"``.

        Free: none can be left, or ``enceladus.empty`` promises nothing about them. Fill: MLX fills the output
        before the kernel runs. Merge: the kernel marks what it writes, and the rest is taken from the old
        contents.
        """
        return {output.name: output.cost for output in self.launch.outputs}

    @property
    def warnings(self) -> list[str]:
        return self.kernel.warnings

    @cached_property
    def launch(self) -> Launch:
        """The prepared launch: grid in threads, inputs, outputs."""
        return self._prepare()

    @cached_property
    def metal(self) -> str:
        """The whole Metal source as MLX builds it for these arguments; needs no GPU.

        ``""`` when the launch would do nothing. Not to be asked for inside an MLX transformation.
        """
        launch = self.launch
        return metal.source(launch.compiled, launch.call_with_zeros) if launch.runs else ""

    def explain(self, engine: str = "metal") -> str:
        """Engine, roles, and what unwritten elements of each written array cost."""
        launch = self.launch
        outputs = {output.name: output for output in launch.outputs}
        warps = self.kernel.num_warps
        lines = [f"{self.kernel.name} on {engine}: {warps} warps, {self.registers} registers a thread"]
        for name, role in self.roles.items():
            line = f"  {name}: {role}"
            if name in outputs:
                line += f"; {outputs[name].cost}: {outputs[name].reason}"
            lines.append(line)
        return "\n".join(lines)
