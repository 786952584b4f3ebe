"""From a generated Metal text to one that clang compiles as C++ for OpenCL.

Lines keep their numbers, so that clang's diagnostics point into the kernel's own header and body.
Rules that Metal has and clang lacks are checked here, on the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .errors import ExecutorError
from .signature import Parameter, Role, Signature

_STATE = """\
struct msl_entry_state {
  uint position[3], group[3], group_size[3], grid[3], groups[3], dispatch_size[3], index;
};
static inline uint3 msl_entry_vector(const thread uint* v) { return uint3(v[0], v[1], v[2]); }
"""
_DISPATCHED = "(s->dispatch_size[0] * s->dispatch_size[1] * s->dispatch_size[2])"
_THREADS = "(s->group_size[0] * s->group_size[1] * s->group_size[2])"
_ATTRIBUTES = {
    "thread_position_in_grid": "uint3(s->group[0] * s->dispatch_size[0] + s->position[0],"
    " s->group[1] * s->dispatch_size[1] + s->position[1],"
    " s->group[2] * s->dispatch_size[2] + s->position[2])",
    "thread_position_in_threadgroup": "msl_entry_vector(s->position)",
    "threadgroup_position_in_grid": "msl_entry_vector(s->group)",
    "threadgroups_per_grid": "msl_entry_vector(s->groups)",
    "threads_per_grid": "msl_entry_vector(s->grid)",
    "grid_size": "msl_entry_vector(s->grid)",
    "grid_origin": "uint3(0u)",
    "threads_per_threadgroup": "msl_entry_vector(s->group_size)",
    "dispatch_threads_per_threadgroup": "msl_entry_vector(s->dispatch_size)",
    "thread_index_in_threadgroup": "s->index",
    "thread_index_in_simdgroup": "(s->index & 31u)",
    "thread_index_in_quadgroup": "(s->index & 3u)",
    "simdgroup_index_in_threadgroup": "(s->index >> 5)",
    "quadgroup_index_in_threadgroup": "(s->index >> 2)",
    "simdgroups_per_threadgroup": f"(({_THREADS} + 31u) / 32u)",
    "quadgroups_per_threadgroup": f"(({_THREADS} + 3u) / 4u)",
    "dispatch_simdgroups_per_threadgroup": f"(({_DISPATCHED} + 31u) / 32u)",
    "dispatch_quadgroups_per_threadgroup": f"(({_DISPATCHED} + 3u) / 4u)",
    "threads_per_simdgroup": "32u",
    "thread_execution_width": "32u",
}

_COMMENT_OR_STRING = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)


def blank_comments(text: str) -> str:
    """The text with comments and strings blanked: same length, same lines."""
    return _COMMENT_OR_STRING.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


# ---- threadgroup variables ----
_DECLARATION = re.compile(
    r"(?:(?<=[;{}])|\A)\s*(?P<all>(?:alignas\s*\((?P<before>[^()]*)\)\s*)?\bthreadgroup\b(?P<rest>[^;]*);)"
)
_FIRST_DECLARATOR = re.compile(
    r"(?P<type>.*?)(?P<name>[A-Za-z_]\w*)\s*(?P<dimensions>(?:\[.*\]\s*)?)\Z", re.DOTALL
)
_LATER_DECLARATOR = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*(?P<dimensions>.*)\Z", re.DOTALL)
_BRACKETS = re.compile(r"\[[^\[\]]*\]|<[^<>;]*>|\([^()]*\)")


def _without_brackets(text: str) -> str:
    """Blank what stands in [], <> and (): what is left tells a variable from a pointer."""
    previous = None
    while previous != text:
        previous = text
        text = _BRACKETS.sub(lambda match: "\1" * len(match[0]), text)
    return text


def _split_declarators(text: str) -> Iterator[str]:
    flat = _without_brackets(text)
    start = 0
    for index, character in enumerate(flat):
        if character == ",":
            yield text[start:index]
            start = index + 1
    yield text[start:]


def replace_threadgroup_variables(body: str) -> tuple[str, list[str]]:
    """Turn ``threadgroup T name[N];`` into references to memory of the runtime; return the names, by number.

    clang would make them static variables without guards; as references they lie beside guard
    pages, are poisoned for every threadgroup and are counted.
    """
    masked = blank_comments(body)
    names: list[str] = []
    pieces: list[str] = []
    position = 0
    for match in _DECLARATION.finditer(masked):
        rest, alignment = match["rest"], match["before"] or "0"
        if inner := re.match(r"\s*alignas\s*\(([^()]*)\)", rest):
            alignment, rest = inner[1], rest[inner.end() :]
        flat = _without_brackets(rest)
        if "*" in flat.split("=")[0] or "&" in flat.split("=")[0]:
            continue  # a pointer or a reference into threadgroup memory
        if "=" in flat:
            line = masked.count("\n", 0, match.start("all")) + 1
            raise ExecutorError(f"body:{line}: a threadgroup variable cannot have an initializer")
        declarators = list(_split_declarators(rest))
        first = _FIRST_DECLARATOR.match(declarators[0])
        if first is None:
            continue
        replacement = []
        for index, declarator in enumerate(declarators):
            parts = first if index == 0 else _LATER_DECLARATOR.match(declarator)
            assert parts is not None, declarator
            number = len(names)
            names.append(parts["name"])
            name = parts["name"]
            replacement.append(
                f"typedef {first['type']} msl_type_of_{name} {parts['dimensions']}; auto& {name} ="
                f" msl_host::threadgroup_variable<msl_type_of_{name}, {number}, {alignment}>();"
            )
        newlines = "\n" * (masked.count("\n", *match.span("all")) - " ".join(replacement).count("\n"))
        pieces += [body[position : match.start("all")], " ".join(replacement), newlines]
        position = match.end("all")
    pieces.append(body[position:])
    return "".join(pieces), names


# `constant` at function scope: clang's OpenCL allows it in entry points only.
_LOCAL_CONSTANT = re.compile(
    r"(?P<before>[;{}]\s*(?:(?:static|const|constexpr)\s+)*)constant"
    r"(?P<after>\s+[\w:<>, ]+?\s*(?:\[[^\]]*\]\s*)*=)"
)


def replace_local_constants(body: str) -> str:
    """Make constants at function scope constants of the thread; pointers into constant space stay."""
    return _LOCAL_CONSTANT.sub(r"\g<before>const\g<after>", body)


# ---- conditional expressions on class types ----
_TEMPLATE_BRACKETS = re.compile(r"<(?![<=])[^<>;?&|]*>")


def wrap_conditionals(text: str) -> str:
    """Turn ``c ? a : b`` into ``c ? msl_value(a) : msl_value(b)``.

    clang's OpenCL mode refuses a conditional between a variable and a temporary of the same class
    type, because only the variable's type has an address space. Metal's vectors and bfloat are no
    classes. ``msl_value`` makes a temporary of either operand.
    """
    masked = blank_comments(text)
    masked = _TEMPLATE_BRACKETS.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), masked)
    insertions: list[tuple[int, str]] = []
    for question in (i for i, c in enumerate(masked) if c == "?"):
        colon = _operand_end(masked, question + 1, inner=True)
        if colon < len(masked) and masked[colon] == ":":
            end = _operand_end(masked, colon + 1, inner=False)
            insertions += [
                (question + 1, " msl_value("),
                (colon, ") "),
                (colon + 1, " msl_value("),
                (end, ")"),
            ]
    # At one place, inner operands close before outer ones open.
    for position, addition in sorted(insertions, key=lambda item: item[0], reverse=True):
        text = text[:position] + addition + text[position:]
    return text


def _operand_end(text: str, start: int, *, inner: bool) -> int:
    depth = nested = 0
    for index in range(start, len(text)):
        character = text[index]
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return index
        elif depth == 0 and character == "?":
            nested += 1
        elif depth == 0 and character == ":":
            if text[index - 1 : index + 1] == "::" or text[index : index + 2] == "::":
                continue
            if nested == 0:
                return index
            nested -= 1
        elif depth == 0 and character in ";," and (character == ";" or not inner):
            return index
    return len(text)


# ---- rules of Metal that clang does not have ----
_SCALARS = (
    r"(?:bool|char|uchar|short|ushort|int|uint|long|ulong|half|float|bfloat"
    r"|bfloat16_t|float16_t|u?int(?:8|16|32|64)_t|size_t)"
)
_BARE_POINTER = re.compile(
    rf"\b(?P<type>(?:packed_)?{_SCALARS}[234]?|vec<[^<>]*>)(?:\s+const)?\s*(?:\*|&(?!&))"
)
_SPACES = re.compile(r"\b(?:device|constant|threadgroup|thread)\b(?:\s+(?:const|volatile))*\s*\Z|\bauto\s*\Z")
_LAMBDA = re.compile(r"[=(,]\s*\[[\w\s,&=]*\]\s*\(")
_FORBIDDEN = re.compile(
    r"\b(?:goto|try|catch|throw|virtual|typeid|dynamic_cast|thread_local|new|delete|double|asm)\b"
)


def check_rules(text: str, place: str) -> None:
    """Refuse what Metal refuses."""
    for number, line in enumerate(blank_comments(text).split("\n"), 1):
        if word := _FORBIDDEN.search(line):
            raise ExecutorError(f"{place}:{number}: error: Metal has no {word[0]!r}\n{line.strip()}")
        if _LAMBDA.search(line):
            raise ExecutorError(f"{place}:{number}: error: lambdas need MSL 3.2\n{line.strip()}")
        for match in _BARE_POINTER.finditer(line):
            before = line[: match.start()]
            if not _SPACES.search(before) and not _SPACES.search(before.replace("const ", "")):
                raise ExecutorError(
                    f"{place}:{number}: error: a pointer or reference needs an address space"
                    f" (device, constant, threadgroup or thread)\n{line.strip()}"
                )


# ---- the whole text ----
def _parameter_text(parameter: Parameter) -> str:
    mark = "" if parameter.role is Role.ATTRIBUTE else "&" if parameter.is_reference else "*"
    return f"{parameter.type}{mark} {parameter.name}"


def _entry(signature: Signature) -> str:
    """The function that the runtime calls: it unpacks buffers and attributes."""
    buffers = [p for p in signature.parameters if p.role is not Role.ATTRIBUTE]
    fields = "".join(f"  {p.type}* {p.name};\n" for p in buffers)
    arguments = []
    for parameter in signature.parameters:
        if parameter.role is Role.ATTRIBUTE:
            arguments.append(_ATTRIBUTES[parameter.name])
        else:
            arguments.append(f"{'*' if parameter.is_reference else ''}b->{parameter.name}")
    call = f"{signature.name}{signature.template_arguments}({', '.join(arguments)})"
    return (
        f'#line 1 "entry"\n{_STATE}struct msl_entry_buffers {{\n{fields}  char unused;\n}};\n'
        f'extern "C" void msl_entry(const thread msl_entry_buffers* b, const thread msl_entry_state* s) {{\n'
        f"  {call};\n}}\n"
    )


def translate(signature: Signature, *, wrap: bool = False) -> tuple[str, list[str]]:
    """The text for clang, and the names of the threadgroup variables by number.

    ``wrap`` asks for :func:`wrap_conditionals`.
    """
    for text, place in ((signature.header, "header"), (signature.body, "body")):
        if not text.isascii():
            raise ExecutorError(
                f"{place}: error: MLX hands the text over as ASCII; it contains other characters"
            )
        check_rules(text, place)
    last_line = signature.header.rpartition("\n")[2]
    if "//" in last_line or last_line.lstrip().startswith("#"):
        raise ExecutorError(
            "header: error: its last line needs a newline: MLX appends the function to that very line"
        )
    body, names = replace_threadgroup_variables(replace_local_constants(signature.body))
    header = signature.header
    if wrap:
        header, body = wrap_conditionals(header), wrap_conditionals(body)
    parameters = ", ".join(_parameter_text(p) for p in signature.parameters)
    text = (
        f'#line 1 "header"\n{header}\n'
        f'#line 1 "signature"\n{signature.template_line}'
        f"static inline __attribute__((always_inline)) void {signature.name}({parameters}) {{\n"
        f'#line 1 "body"\n{body}\n}}\n{_entry(signature)}'
    )
    return text, names
