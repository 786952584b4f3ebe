"""The page about composition says what a fresh run finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mlx.core as mx

from tests.engines import environment, needs_host

ROOT = Path(__file__).resolve().parent.parent


@needs_host
def test_the_page_agrees_with_a_fresh_run():
    command = [sys.executable, "-m", "tests.composition"]
    plain = {name: value for name, value in environment().items() if name not in ("ENCELADUS_ENGINE",)}
    run = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    shown = (ROOT / "docs/composition.md").read_text(encoding="utf-8")
    values, heading, metal = run.stdout.partition("### The Metal engine")
    assert f"{heading}{metal.rstrip()}\n" in shown
    if mx.default_device().type == mx.cpu:  # the page shows the values of the CPU's engine
        assert values.rstrip() in shown
    assert "wrong" not in run.stdout
