"""Pages for beginners have short sentences, and internal links lead somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

import prose
from check_links import broken_links


@pytest.mark.parametrize("page", prose.beginners_pages(), ids=lambda path: str(path.stem))
def test_sentences_in_start_and_tutorials_are_short(page: Path) -> None:
    assert not prose.long_sentences(page)


def test_a_long_sentence_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"Short one. {'word ' * 40}end.\n\n```text\n{'code ' * 50}\n```\n")
    assert len(prose.long_sentences(page)) == 1


def test_links_to_pages_and_anchors_that_do_not_exist_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#x">1</a><a href="c.html">2</a>')
    (tmp_path / "b.html").write_text('<p id="y"><a href="a.html">1</a><a href="https://e.org">')
    assert broken_links(tmp_path) == ["a.html: b.html#x", "a.html: c.html"]
