"""Settings of the site: `make docs` builds it into build/site."""

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from episode.version import __version__  # noqa: E402

project = "episode"
author = "the episode developers"
copyright = "the episode developers, Apache-2.0"  # noqa: A001
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "reference",
]
exclude_patterns = ["_ext", "_static"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
smartquotes = False  # a flag has two hyphens

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
maximum_signature_line_length = 90
# Docstrings put code between single backticks, as Markdown does.
default_role = "code"

html_theme = "furo"
html_title = "episode"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
copybutton_prompt_text = "$ "
pygments_style = "friendly"
pygments_dark_style = "github-dark"


def keep_numbers_together(app: Any, page: str, source: list[str]) -> None:
    """Let a value and its deviation, or η and γ in a cell, stay on one line."""
    text = re.sub(r"(?<=\d) ± (?=\d)", "\u00a0±\u00a0", source[0])
    source[0] = re.sub(r"(?<=\| )([\d.]+), ([\d.]+)(?= \|)", "\\1,\u00a0\\2", text)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", keep_numbers_together)
