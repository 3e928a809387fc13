"""Sphinx configuration of the book."""

import json
import os
import sys
import tomllib
from pathlib import Path

import softlookup

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
URLS = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})

project = "Soft Lookup"
author = "The Soft Lookup authors"
project_copyright = "The Soft Lookup authors. Text and figures CC BY 4.0, code BSD-3-Clause"
version = release = softlookup.__version__

extensions = ["myst_nb", "sphinx.ext.viewcode", "sphinx_copybutton", "sphinxcontrib.bibtex", "book"]
exclude_patterns = ["_build", "_ext", "_theme", "_data", "_static"]
nitpicky = True
numfig = True

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "inline"
nb_output_stderr = "error"
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"

bibtex_bibfiles = ["references.bib"]
bibtex_reference_style = "author_year"
bibtex_default_style = "plain"

book_families = [family["family"] for family in json.loads((HERE / "_data/families.json").read_text(encoding="utf-8"))]
book_title = "Soft Lookup: attention, executed"
book_repository_url = URLS.get("Repository", "").rstrip("/")
book_report_url = URLS.get("Issues", "")

html_theme = "book"
html_theme_path = ["_theme"]
html_title = "Soft Lookup"
html_math_renderer = "katex"
html_static_path = ["_static"]
html_css_files = ["katex/katex.min.css", "book.css"]
html_js_files = [("book.js", {"defer": "defer", "priority": 100})]  # before the words sought leave the address
html_favicon = "_static/icon.svg"
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL") or URLS.get("Documentation", "")
html_additional_pages = {"404": "404.html"}
html_context = {"default_mode": "auto"}
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "navbar_persistent": [],
    "use_download_button": False,
    "use_fullscreen_button": False,
    "back_to_top_button": False,
    "show_toc_level": 2,
    "show_navbar_depth": 1,
}
copybutton_prompt_text = r">>> ?|\.\.\. ?"
copybutton_prompt_is_regexp = True
copybutton_selector = "div:not(.cell_output) > div.highlight > pre"
