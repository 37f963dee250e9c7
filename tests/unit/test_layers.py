"""Rules about the source itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_command_line_starts_without_torch_and_pictures_without_training() -> None:
    """Help must be quick, and results must be readable where nothing can train."""
    code = "import sys; {}; assert 'torch' not in sys.modules, 'torch was imported'"
    for what in ("import episode.results.store", "import episode.results.plots"):
        subprocess.run([sys.executable, "-c", code.format(what)], check=True, timeout=60)


def test_no_module_is_too_long_to_read() -> None:
    source = Path(__file__).parents[2] / "src" / "episode"
    for file in source.rglob("*.py"):
        limit = 130 if file.parent.name == "core" else 320
        assert len(file.read_text().splitlines()) <= limit, file
