"""Print tile IR: deterministic text, one operation per line, names from the Python source.

The form is generic: ``%result = mnemonic attribute… %operand… : type``. Regions are indented.
"""

from __future__ import annotations

from enum import Enum

from enceladus.ir.core import Block, Function, Op, Value


class Printer:
    """Assigns every value a unique readable name and writes operations as text."""

    def __init__(self, locations: bool = False):
        self.locations = locations
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.lines: list[str] = []

    def name(self, value: Value) -> str:
        name = self.names.get(value)
        if name is None:
            base = value.name or str(len(self.names))
            name, number = base, 1
            while name in self.taken:
                number += 1
                name = f"{base}_{number}"
            self.taken.add(name)
            self.names[value] = name
        return "%" + name

    def function(self, function: Function) -> str:
        parameters = ", ".join(f"{self.name(v)}: {v.type}" for v in function.arguments)
        suffix = " wide" if function.wide else ""
        self.lines.append(f"kernel {function.name}({parameters}) num_warps={function.num_warps}{suffix} {{")
        self.block(function.body, 1)
        self.lines.append("}")
        return "\n".join(self.lines) + "\n"

    def block(self, block: Block, depth: int) -> None:
        for op in block.ops:
            self.op(op, depth)

    def op(self, op: Op, depth: int) -> None:
        text = "  " * depth
        if op.results:
            text += ", ".join(self.name(v) for v in op.results) + " = "
        text += op.mnemonic
        for attribute in op.attributes:
            text += f" {attribute.value if isinstance(attribute, Enum) else attribute}"
        for name in op.operand_fields:
            value = getattr(op, name)
            if value is not None:
                label = f" {name}=" if name in ("mask", "other") else " "
                text += label + self.name(value)
        for name in op.operand_list_fields:
            values = getattr(op, name)
            if values:
                text += f" {name}=({', '.join(self.name(v) for v in values)})"
        if op.results:
            text += " : " + ", ".join(str(v.type) for v in op.results)
        if self.locations and op.loc is not None:
            text += f"  # {op.loc.line}:{op.loc.column + 1}"
        if not op.blocks:
            self.lines.append(text)
            return
        for number, block in enumerate(op.blocks):
            arguments = ", ".join(f"{self.name(v)}: {v.type}" for v in block.arguments)
            opening = f" ({arguments}) {{" if arguments else " {"
            self.lines.append(text + opening if number == 0 else "  " * depth + "} else {")
            self.block(block, depth + 1)
        self.lines.append("  " * depth + "}")


def print_function(function: Function, locations: bool = False) -> str:
    """The whole kernel as text."""
    return Printer(locations).function(function)
