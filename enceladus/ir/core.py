"""Values, operations, blocks and functions: the SSA skeleton of the tile IR.

An operation class declares its fields once, by annotation, and everything generic is derived:

* ``Value`` is an operand, ``Value | None`` an optional one, ``tuple[Value, ...]`` a list of them;
* ``Block`` is a nested region of one block;
* anything else is an attribute.

``operands``, ``blocks``, ``attributes``, cloning and printing come from that declaration, so a new
operation is one class in ``ops.py`` and nothing lists it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform

from enceladus.errors import InternalError, Location
from enceladus.ir.types import TileType


class Value:
    """The result of an operation, or a block argument. ``name`` is a hint from the Python source."""

    __slots__ = ("layout", "name", "owner", "type")

    def __init__(self, type: TileType, owner: Op | Block | None = None, name: str = ""):
        self.type = type
        self.owner = owner
        self.name = name
        #: how threads hold it, once layouts are assigned (a ``laid_out.Layout``; register tiles only)
        self.layout: Any = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or '?'}: {self.type}>"


class Op:
    """Base of all operations. ``results`` and ``loc`` are filled in when the operation is emitted."""

    __slots__ = ("loc", "results")

    operand_fields: ClassVar[tuple[str, ...]] = ()
    operand_list_fields: ClassVar[tuple[str, ...]] = ()
    block_fields: ClassVar[tuple[str, ...]] = ()
    attribute_fields: ClassVar[tuple[str, ...]] = ()
    mnemonic: ClassVar[str] = ""
    #: No effect beyond its results: may be removed, merged with an equal one, or recomputed.
    pure: ClassVar[bool] = True
    #: Works element by element: all tile operands and results have one shape.
    elementwise: ClassVar[bool] = False
    #: Its blocks run as part of the program, perhaps many times or never. Other nested blocks are functions
    #: of scalars: closed (they use only their own values), and their ``Yield`` gives scalars.
    control_flow: ClassVar[bool] = False
    #: Ends a block.
    terminator: ClassVar[bool] = False

    loc: Location | None
    results: tuple[Value, ...]

    def result_types(self) -> tuple[TileType, ...]:
        """The types of the results, computed from operands and attributes."""
        raise NotImplementedError(type(self).__name__)

    def verify(self) -> str | None:
        """What is wrong with this operation, or ``None``."""
        return None

    @property
    def operands(self) -> tuple[Value, ...]:
        """Every operand that is present, in the order of declaration."""
        found = [v for name in self.operand_fields if (v := getattr(self, name)) is not None]
        for name in self.operand_list_fields:
            found.extend(getattr(self, name))
        return tuple(found)

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(getattr(self, name) for name in self.block_fields)

    @property
    def attributes(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.attribute_fields)

    @property
    def result(self) -> Value:
        """The one result of an operation that has exactly one."""
        return self.results[0]

    def replace_operands(self, mapping: Mapping[Value, Value]) -> None:
        """Replace operands in place; nested blocks are not touched."""
        for name in self.operand_fields:
            value = getattr(self, name)
            if value is not None and value in mapping:
                setattr(self, name, mapping[value])
        for name in self.operand_list_fields:
            setattr(self, name, tuple(mapping.get(v, v) for v in getattr(self, name)))

    def clone(self, mapping: dict[Value, Value]) -> Op:
        """A copy with operands mapped; the results, and those of nested blocks, enter ``mapping``."""
        op = object.__new__(type(self))
        for name in self.operand_fields:
            value = getattr(self, name)
            setattr(op, name, mapping.get(value, value))
        for name in self.attribute_fields:
            setattr(op, name, getattr(self, name))
        for name in self.operand_list_fields:
            setattr(op, name, tuple(mapping.get(v, v) for v in getattr(self, name)))
        for name in self.block_fields:
            setattr(op, name, getattr(self, name).clone(mapping))
        op.loc = self.loc
        results = self.results
        if len(results) == 1:
            (old,) = results
            new = mapping[old] = Value(old.type, op, old.name)
            op.results = (new,)
        else:
            op.results = tuple([Value(v.type, op, v.name) for v in results])
            mapping.update(zip(results, op.results, strict=True))
        return op

    def walk(self) -> Iterator[Op]:
        """This operation and all nested ones, in program order."""
        yield self
        for block in self.blocks:
            yield from block.walk()


def _collector(required: list[str], optional: list[str], lists: list[str]) -> property:
    """A property that collects fields into a tuple; written out per class, as compiling spends time here."""
    fixed = "".join(f"self.{name}, " for name in required)
    starred = "".join(f"*self.{name}, " for name in lists)
    lines = ["def collect(self):"]
    if optional:
        lines.append(f"    found = [{fixed}]")
        for name in optional:
            lines += [f"    if self.{name} is not None:", f"        found.append(self.{name})"]
        fixed = "*found, "
    lines.append(f"    return ({fixed}{starred})")
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), namespace)
    return property(namespace["collect"])


def _with_fields(declared: Any) -> type:
    """The class with a slot for each annotated field and an ``__init__`` that takes them in order.

    What ``dataclass(slots=True)`` does, in a tenth of its time: there are many operations, and importing
    them is part of importing the package.
    """
    names = list(declared.__annotations__)
    members = {k: v for k, v in vars(declared).items() if k not in ("__dict__", "__weakref__")}
    defaults = {name: members.pop(name) for name in names if name in members}
    members["__slots__"] = tuple(names)
    parameters = ", ".join(f"{name}=_defaults[{name!r}]" if name in defaults else name for name in names)
    lines = [f"def __init__(self{', ' if names else ''}{parameters}):"]
    lines += [f"    self.{name} = {name}" for name in names] or ["    pass"]
    namespace: dict[str, Any] = {"_defaults": defaults}
    exec("\n".join(lines), namespace)
    members["__init__"] = namespace["__init__"]
    return type(declared.__name__, declared.__bases__, members)


#: Every operation class, in the order of declaration; tests walk it to find holes.
OPERATIONS: list[type[Op]] = []


@dataclass_transform(eq_default=False)
def operation(mnemonic: str, **traits: bool) -> Callable[[Any], Any]:
    """Class decorator: declare an operation from its annotated fields (see the module's docstring)."""

    def declare(declared: Any) -> Any:
        optional: list[str] = []
        groups: dict[str, list[str]] = {"one": [], "many": [], "block": [], "attribute": []}
        for name, annotation in declared.__annotations__.items():
            if annotation in ("Value", "Value | None"):
                groups["one"].append(name)
                if annotation != "Value":
                    optional.append(name)
            elif annotation == "tuple[Value, ...]":
                groups["many"].append(name)
            elif annotation == "Block":
                groups["block"].append(name)
            else:
                groups["attribute"].append(name)
        cls: Any = _with_fields(declared)
        cls.operand_fields = tuple(groups["one"])
        cls.operand_list_fields = tuple(groups["many"])
        cls.block_fields = tuple(groups["block"])
        cls.attribute_fields = tuple(groups["attribute"])
        cls.mnemonic = mnemonic
        required = [name for name in groups["one"] if name not in optional]
        cls.operands = _collector(required, optional, groups["many"])
        cls.blocks = _collector(groups["block"], [], []) if groups["block"] else ()
        cls.attributes = _collector(groups["attribute"], [], []) if groups["attribute"] else ()
        for trait, setting in traits.items():
            if not hasattr(Op, trait):
                raise InternalError(f"unknown trait {trait!r} of operation {mnemonic}")
            setattr(cls, trait, setting)
        OPERATIONS.append(cls)
        return cls

    return declare


class Block:
    """A list of operations with arguments; the body of a function, of a loop or of a branch."""

    __slots__ = ("arguments", "ops")

    def __init__(self, arguments: tuple[Value, ...] = (), ops: list[Op] | None = None):
        self.arguments = arguments
        self.ops: list[Op] = [] if ops is None else ops
        for argument in arguments:
            argument.owner = self

    def clone(self, mapping: dict[Value, Value]) -> Block:
        arguments = tuple(Value(v.type, None, v.name) for v in self.arguments)
        mapping.update(zip(self.arguments, arguments, strict=True))
        return Block(arguments, [op.clone(mapping) for op in self.ops])

    def walk(self) -> list[Op]:
        """All operations, nested ones behind the one they are in."""
        found: list[Op] = []
        for op in self.ops:
            found.append(op)
            for block in op.blocks:
                found += block.walk()
        return found

    @property
    def terminator(self) -> Op:
        return self.ops[-1]


@dataclass(eq=False, slots=True)
class Function:
    """A kernel in tile IR. ``body.arguments`` are its run-time parameters, in the order of the signature.

    Every argument has shape ``()``: a pointer for an array, a number for a scalar. ``num_warps`` is
    part of the function because layouts depend on it. ``hints`` are facts about arguments known from
    specialization, for example that a stride is divisible by 16.
    """

    name: str
    body: Block
    num_warps: int = 4
    wide: bool = False  #: index arithmetic in 64 bits
    hints: dict[Value, ArgumentHints] = None  # type: ignore[assignment]
    source_lines: dict[tuple[str, int], str] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.hints is None:
            self.hints = {}
        if self.source_lines is None:
            self.source_lines = {}

    @property
    def arguments(self) -> tuple[Value, ...]:
        return self.body.arguments

    def walk(self) -> list[Op]:
        return self.body.walk()

    def clone(self) -> Function:
        mapping: dict[Value, Value] = {}
        body = self.body.clone(mapping)
        hints = {mapping[v]: h for v, h in self.hints.items()}
        return Function(self.name, body, self.num_warps, self.wide, hints, self.source_lines)


@dataclass(frozen=True, slots=True)
class ArgumentHints:
    """What specialization knows about a run-time argument.

    ``divisibility``: a power of two that divides an integer argument's value.
    """

    divisibility: int = 1
