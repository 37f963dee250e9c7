"""Checks the prose of the pages: spelling, style, and the length of sentences where people begin.

    python docs/_ext/prose.py

Code, tables and links' addresses are left out: only sentences are judged.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
LONGEST = 35
"""Words of a sentence in Start and Tutorials."""
GENERATED = {"api.md", "commands.md", "config.md"}
NOT_OURS = {
    "typography.symbols": "straight quotes, three dots and x are what people type",
    "dates_times.dates.decade_apostrophes": "it takes Sentiment140's for a decade",
    "typography.diacritical_marks": "it takes resume for a résumé",
}
"""Checks of proselint that are off, and why."""


def pages() -> list[Path]:
    """Return the pages of the site that people write, and those that lie beside it."""
    found = [p for p in sorted(DOCS.rglob("*.md")) if p.name not in GENERATED]
    return [*found, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield the paragraphs of a page with their lines; a piece of code is a word, tables are not.

    Example:
        >>> list(paragraphs("# Title\n\nUse `a b c` here.\n"))
        [(1, 'Title'), (3, 'Use code0 here.')]
    """
    titled = text.replace("[](", "[page](")  # Sphinx puts the title of the page there
    tokens = MarkdownIt("commonmark").enable("table").parse(titled)
    for before, token in pairwise(tokens):
        if token.type == "inline" and token.map and before.type not in ("td_open", "th_open"):
            parts = [_words(child, n) for n, child in enumerate(token.children or [], -1)]
            yield token.map[0] + 1, "".join(parts)


def _words(token: Token, number: int) -> str:
    if token.type == "text":
        return token.content
    found = {"code_inline": f"code{number}", "softbreak": " ", "hardbreak": " "}
    return found.get(token.type, "")


def sentences(text: str) -> list[str]:
    """Split a paragraph into sentences.

    Example:
        >>> sentences("One, e.g. this. Two? Three")
        ['One, e.g. this.', 'Two?', 'Three']
    """
    guarded = re.sub(r"\b(e\.g|i\.e|etc|vs)\.", "\\1\0", text)
    parts = re.split(r"(?<=[.!?:])[)\"”*]*\s+(?=[A-ZΑ-Ω*‖(\d]|code-?\d)", guarded)
    return [part.replace("\0", ".").strip() for part in parts if part.strip()]


def long_sentences(path: Path, longest: int = LONGEST) -> list[str]:
    """Return the sentences of a page that have too many words, each with its place."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {len(sentence.split())} words: {sentence}"
        for line, text in paragraphs(path.read_text())
        for sentence in sentences(text)
        if len(sentence.split()) > longest
    ]


def beginners_pages() -> list[Path]:
    """Return the pages of Start and Tutorials."""
    return sorted([*(DOCS / "start").glob("*.md"), *(DOCS / "tutorials").glob("*.md")])


def style_faults() -> list[str]:
    """Return what proselint has to say about the prose of all pages."""
    from proselint.checks import __register__
    from proselint.registry import CheckRegistry
    from proselint.tools import LintFile

    CheckRegistry().register_many(__register__)
    found = []
    for path in pages():
        text = "\n\n§\n\n".join(text for _, text in paragraphs(path.read_text()))
        for result in LintFile(source=path.name, content=text or " ").lint():
            check = result.check_result
            if not check.check_path.startswith(tuple(NOT_OURS)):
                found.append(f"{path.relative_to(ROOT)}: {check.check_path}: {check.message}")
    return found


def spelling_faults() -> str:
    """Return what codespell has to say about pages, code and messages."""
    folders = ["docs", "src", "examples", "benchmarks"]  # tests mistype on purpose
    command = [sys.executable, "-m", "codespell_lib", *folders, *map(str, ROOT.glob("*.md"))]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    faults = [s for page in beginners_pages() for s in long_sentences(page)]
    faults += [*style_faults(), *spelling_faults().splitlines()]
    sys.exit("\n".join(faults) if faults else 0)
