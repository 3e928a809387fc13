"""No link of the built site leads nowhere, and each page says what a search engine and a reader look for."""

import functools
import html
import re
from urllib.parse import unquote, urlsplit

import pytest
from site_pages import SITE, UNBUILT, every_page

pytestmark = pytest.mark.skipif(UNBUILT is not None, reason=str(UNBUILT))

IDS = re.compile(r'\s(?:id|name)="([^"]*)"')
LINKS = re.compile(r'<(?:a|link|script|img|source)\b[^>]*?\s(?:href|src)="([^"]*)"')


@functools.cache
def text(path):
    return path.read_text(encoding="utf-8")


@functools.cache
def ids(path):
    return set(map(html.unescape, IDS.findall(text(path))))


def dead_links(page):
    """The links of a page into the site whose file or fragment does not exist."""
    dead = []
    for link in map(html.unescape, LINKS.findall(text(page))):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        target = target / "index.html" if target.is_dir() else target
        fragment = unquote(parts.fragment)
        if not target.is_file() or (fragment and target.suffix == ".html" and fragment not in ids(target)):
            dead.append(link)
    return dead


@every_page
def test_no_internal_link_is_dead(name):
    assert dead_links(SITE / name) == []


@every_page
def test_a_page_has_a_title_a_description_a_language_and_one_main_heading(name):
    page = text(SITE / name)
    assert re.search(r"<title>[^<]{5,}</title>", page)
    assert re.search(r'<html[^>]* lang="en"', page)
    main = page.partition("<article")[2] or page.partition("<main")[2]
    assert len(re.findall(r"<h1\b", main)) == 1
    assert re.search(r'<meta (?:content="[^"]{20,}" name="description"|name="description" content="[^"]{20,}")', page)


def test_a_dead_link_is_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<p id="here"></p><a href="#here">1</a><a href="#there">2</a><a href="none.html">3</a>')
    assert dead_links(page) == ["#there", "none.html"]
