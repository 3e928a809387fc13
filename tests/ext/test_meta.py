"""Descriptions, previews, the map of the site and the page for wrong addresses."""

import re

import pytest
from book.meta import LONGEST
from ext.books import DOCS, build, write

OPTIONS = {
    "html_theme": "book",
    "html_theme_path": [str(DOCS / "_theme")],
    "html_additional_pages": {"404": "404.html"},
    "project": "Small",
}
LONG = "*What is asked here?*\n\n" + "Words and more words. " * 20
PAGES = {"long": f"# Long\n\n{LONG}\n", "short": '# Short\n\nA & "b".\n'}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return build(write(tmp_path_factory.mktemp("plain"), PAGES), **OPTIONS).html


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    options = OPTIONS | {"html_baseurl": "https://example.org/book/"}
    return build(write(tmp_path_factory.mktemp("hosted"), PAGES), **options).html


def meta(page):
    return dict(re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)"', page.read_text(encoding="utf-8")))


def test_a_description_begins_with_the_opening_question_and_ends_at_a_word(plain):
    text = meta(plain / "long.html")["description"]
    assert text.startswith("What is asked here? Words and more words.")
    assert text.endswith(" …")
    assert len(text) <= LONGEST + 2


def test_a_short_page_says_what_the_book_is(plain):
    text = meta(plain / "short.html")["description"]
    assert text.startswith("A &amp; “b”.")
    assert "book" in text


def test_every_page_has_a_description(plain):
    for page in plain.glob("*.html"):
        assert len(meta(page)["description"]) >= 40, page.name


def test_without_an_address_there_is_no_preview_and_no_map(plain):
    assert not any(name.startswith("og:") for name in meta(plain / "long.html"))
    assert not (plain / "sitemap.xml").exists()


def test_with_an_address_there_are_previews(hosted):
    found = meta(hosted / "long.html")
    assert found["og:title"] == "Long"
    assert found["og:url"] == "https://example.org/book/long.html"
    assert found["og:image"] == "https://example.org/book/_static/page.png"
    assert found["og:description"] == found["description"]
    assert 'rel="canonical" href="https://example.org/book/long.html"' in (hosted / "long.html").read_text()


def test_with_an_address_there_is_a_map_of_all_pages(hosted):
    found = re.findall(r"<loc>(.*?)</loc>", (hosted / "sitemap.xml").read_text(encoding="utf-8"))
    assert found == [f"https://example.org/book/{name}.html" for name in ("index", "long", "short")]
    assert (
        (hosted / "robots.txt").read_text(encoding="utf-8").endswith("Sitemap: https://example.org/book/sitemap.xml\n")
    )


def test_the_page_for_wrong_addresses_starts_its_links_at_the_top(plain, hosted):
    assert '<base href="/">' in (plain / "404.html").read_text(encoding="utf-8")
    assert '<base href="/book/">' in (hosted / "404.html").read_text(encoding="utf-8")
    assert "<base" not in (plain / "long.html").read_text(encoding="utf-8")
