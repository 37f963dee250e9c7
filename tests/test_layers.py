"""Rules about the source itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import episode


def test_the_command_line_starts_without_torch_and_pictures_without_training() -> None:
    """Help must be quick, and results must be readable where nothing can train."""
    for module in ("episode.cli.main", "episode.results.store", "episode.results.curves"):
        code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
        assert done.returncode == 0, module


def test_no_module_is_too_long_to_read() -> None:
    """Docstrings count; in core, whose docstrings are long, the code alone is short too."""
    source = Path(__file__).parents[1] / "src" / "episode"
    for file in source.rglob("*.py"):
        assert len(file.read_text().splitlines()) <= 320, file
        assert file.parent.name != "core" or lines_of_code(file) <= 130, file


def lines_of_code(file: Path) -> int:
    """All lines but those of docstrings."""
    text = file.read_text()
    bodies = [getattr(node, "body", None) for node in ast.walk(ast.parse(text))]
    docstrings = [
        statement
        for body in bodies
        if isinstance(body, list)
        for statement in body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    ]
    lengths = [(s.end_lineno or s.lineno) - s.lineno + 1 for s in docstrings]
    return len(text.splitlines()) - sum(lengths)


def test_only_rooms_that_say_so_know_of_flower() -> None:
    source = Path(__file__).parents[1] / "src" / "episode"
    users = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if "from flwr" in file.read_text() or "import flwr" in file.read_text()
    }
    assert {u.split("/")[0] for u in users} == {"flower"}


def test_only_the_cluster_and_the_optimizer_know_of_torch_distributed() -> None:
    source = Path(__file__).parents[1] / "src" / "episode"
    users = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if "torch.distributed" in file.read_text() or "_distributed_c10d" in file.read_text()
    }
    assert users == {"engines/cluster.py", "engines/rendezvous.py", "optim/peers.py"}


def test_type_checkers_see_the_public_names_that_programs_see() -> None:
    stub = ast.parse((Path(__file__).parents[1] / "src" / "episode" / "__init__.pyi").read_text())
    seen = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen) == episode.__all__
    assert seen == episode._MODULES
