"""Every Python snippet of the README and of the guides runs as it stands."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest

from enceladus import knobs

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "docs/language.md",
    "docs/launching.md",
    "docs/gradients.md",
    "docs/debugging.md",
    "docs/ops.md",
    "benchmarks/README.md",
)


def snippets(page: str) -> str:
    """The page with everything but its ``python`` blocks blanked out, so that line numbers stay true."""
    lines, inside = [], False
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        fence = line.startswith("```")
        if fence:
            inside = line == "```python"
        lines.append(line if inside and not fence else "")
    return "\n".join(lines) + "\n"


def run(page: str) -> None:
    text = snippets(page)
    filename = f"<{page}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), {"__name__": "page"})


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page: str) -> None:
    assert snippets(page).strip(), f"{page} has no snippet"
    run(page)


def test_printed_output_is_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    run("docs/debugging.md")
    printed = capsys.readouterr().out
    page = (ROOT / "docs/debugging.md").read_text(encoding="utf-8")
    shown = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert len(shown) == 2
    for text in shown:
        # The engine is that of the machine.
        pattern = re.escape(text).replace(r"on\ graph", r"on\ \w+")
        assert re.search(pattern, printed), f"the page shows\n{text}\nbut it prints\n{printed}"


def test_readme_lists_every_environment_variable() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(ENCELADUS_\w+)`", text, re.MULTILINE)) == set(knobs.KNOBS)


def test_language_page_lists_every_builtin() -> None:
    import enceladus.language as tl

    text = (ROOT / "docs/language.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", text))
    not_for_kernels = {"PointerType", "PropagateNan", "dtype", "math", "pointer_type", "tensor"}
    assert set(tl.__all__) - not_for_kernels <= words
    assert set(tl.math.__all__) - not_for_kernels <= words


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", re.sub(r"`[^`]*`", "", prose)):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page} links to {target}"
