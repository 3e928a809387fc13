"""The search of a built site, run without a browser: Sphinx's own scripts on the site's index, in QuickJS."""

import json
from pathlib import Path

import quickjs

BROWSER = """
var window = globalThis;
var location = {search: ""};
var setTimeout = () => 0;
var document = {getElementById: () => null, querySelectorAll: () => [], addEventListener: () => 0};
var localStorage = {setItem: () => 0};
var DOCUMENTATION_OPTIONS = {};
var SPHINX_HIGHLIGHT_ENABLED = false;
var _ = (text) => text;
var _ready = () => 0;
"""
FIRST = """
(query) => {
  const results = Search._performSearch(...Search._parseQuery(query));
  return JSON.stringify(results.reverse().slice(0, 5).map((found) => [found[0], found[2]]));
}
"""


def searcher(html: Path):
    """A function from a query to the first results: (page, anchor)."""
    context = quickjs.Context()
    scripts = [html / "_static" / "language_data.js", html / "_static" / "searchtools.js", html / "searchindex.js"]
    context.eval(BROWSER + "\n".join(path.read_text(encoding="utf-8") for path in scripts))
    find = context.eval(FIRST)
    return lambda query: [tuple(result) for result in json.loads(find(query))]
