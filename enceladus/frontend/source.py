"""Find a function's source text and parse it, with true line numbers and columns.

``inspect`` is slow to import, so this reads the code object and ``linecache`` directly; that also works
for notebook cells, which register their text with ``linecache``.
"""

from __future__ import annotations

import ast
import linecache
from types import CodeType, FunctionType

from enceladus.errors import CompilationError, Location

_NO_SOURCE_HINT = (
    "write the kernel with 'def' in a file or a notebook cell; text given to exec() or typed at the "
    "plain Python prompt is not kept by Python"
)


def parse_function(function: FunctionType) -> tuple[ast.FunctionDef, str]:
    """The syntax tree of ``function``, in coordinates of its file, and its text from ``def`` on.

    Raises ``CompilationError`` when the source cannot be had, or is not the one that was compiled.
    """
    code = function.__code__
    here = Location(code.co_filename, code.co_firstlineno, function=function.__name__)
    if code.co_name == "<lambda>":
        raise CompilationError("a lambda cannot be a kernel", "write it with 'def'", here)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if len(lines) < code.co_firstlineno:
        reason = f"the source of {code.co_name!r} is not available (it comes from {code.co_filename})"
        raise CompilationError(reason, _NO_SOURCE_HINT, here)
    tree = _parse_block(lines, code) or _parse_file(lines, code)
    if tree is None or _parameter_names(tree.args) != _code_parameter_names(code):
        reason = f"the text at {code.co_filename}:{code.co_firstlineno} is not {code.co_name!r} any more"
        raise CompilationError(reason, "the file changed after it was imported: start Python again", here)
    text = "".join(lines[tree.lineno - 1 : tree.end_lineno])
    return tree, text


def _parse_block(lines: list[str], code: CodeType) -> ast.FunctionDef | None:
    """Parse just the function's lines; ``None`` where its end could not be found by indentation."""
    start = code.co_firstlineno - 1
    margin = _indentation(lines[start])
    end = _last_known_line(code)
    while end < len(lines):
        line = lines[end]
        if line.strip() and not line.lstrip().startswith("#") and len(_indentation(line)) <= len(margin):
            break
        end += 1
    block = "".join(lines[start:end])
    # Blank lines in front make the parser count as the file does; ``if 1:`` makes a margin legal.
    if not margin:
        text = "\n" * start + block
    elif start:
        text = "\n" * (start - 1) + "if 1:\n" + block
    else:
        return None
    try:
        module = ast.parse(text, code.co_filename)
    except (SyntaxError, ValueError):
        return None
    body = module.body
    if margin and body and isinstance(body[0], ast.If):
        body = body[0].body
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef) or body[0].name != code.co_name:
        return None
    return body[0]


def _parse_file(lines: list[str], code: CodeType) -> ast.FunctionDef | None:
    """Parse the whole file and pick the function by its first line (slow, but sees everything)."""
    try:
        module = ast.parse("".join(lines), code.co_filename)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _last_known_line(code: CodeType) -> int:
    """The last line that some instruction of ``code`` comes from (the function may go on after it)."""
    last = code.co_firstlineno
    for line, end_line, _, _ in code.co_positions():
        last = max(last, line or 0, end_line or 0)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            last = max(last, _last_known_line(constant))
    return last


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t\f"))]


def _parameter_names(arguments: ast.arguments) -> tuple[str, ...]:
    return tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


def _code_parameter_names(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
