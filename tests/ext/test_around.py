"""What stands around a page: place, neighbors, downloads, citation, edit link; names for the search; external links."""

import re

import pybtex.database
import pytest
from book.names import names
from ext.books import DOCS, build, write
from ext.searching import searcher
from ext.test_build import TOPIC

FAMILY = "# Lookup\n\n```{toctree}\nweighted_average\nsoftmax\n```\n"
PAGES = {
    "index": "# All\n\n```{toctree}\nlookup/index\nmasks/index\nend\n```\n",
    "lookup/index": FAMILY,
    "lookup/weighted_average": TOPIC,
    "masks/index": "# Masks\n\n[Out](https://example.org/b?x=1&y=2) and [again](https://a.example.org/).\n",
    "end": "# The end & more\n\n[Out](https://example.org/b?x=1&y=2), [in](index.md).\n\n```{external-links}\n```\n",
}
OPTIONS = {
    "html_theme": "book",
    "html_theme_path": [str(DOCS / "_theme")],
    "book_families": ["lookup", "masks"],
    "book_title": "The Book",
    "project": "Small",
    "author": "The authors",
    "version": "1.2",
}


def made(folder, **options):
    source = write(folder, PAGES)
    (source / "index.md").write_text(PAGES["index"], encoding="utf-8")
    (source / "lookup" / "softmax.md").write_text("# Last\n", encoding="utf-8")
    book = build(source, **OPTIONS, **options)
    strange = [failure for failure in book.failures if failure[0] != "lookup/softmax"]
    assert strange == []
    return book.html


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return made(tmp_path_factory.mktemp("book"))


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    known = {"html_baseurl": "https://example.org/book", "book_repository_url": "https://example.org/r"}
    return made(tmp_path_factory.mktemp("hosted"), **known)


def read(site, page):
    return (site / f"{page}.html").read_text(encoding="utf-8")


def test_the_place_names_book_family_page_and_level(site):
    place = re.search(
        r'<nav aria-label="Place in the book">.*?</nav>', read(site, "lookup/weighted_average"), re.DOTALL
    )[0]
    assert re.findall(r'href="(.*?)">(.*?)<', place) == [("../index.html", "Small"), ("index.html", "Lookup")]
    assert '<span aria-current="page">Weighted average</span>' in place
    assert re.findall(r'class="of-(\w+)"', place) == ["core", "deepen", "research"]
    assert "of-core" not in read(site, "lookup/index")
    assert "Place in the book" not in read(site, "end")


def test_before_and_after_stay_in_the_family_and_lead_to_the_next(site):
    ways = {
        page: re.findall(r'class="(?:left-prev|right-next)"\s+href="(.*?)"', read(site, page))
        for page in ("lookup/index", "lookup/weighted_average", "lookup/softmax", "masks/index")
    }
    assert ways == {
        "lookup/index": ["../index.html", "weighted_average.html"],
        "lookup/weighted_average": ["index.html", "softmax.html"],
        "lookup/softmax": ["weighted_average.html", "../masks/index.html"],
        "masks/index": [],
    }


def test_downloads_are_links_that_need_no_script(site):
    page = read(site, "lookup/weighted_average")
    links = re.findall(r'<a href="([^"]+)" download>', page)
    assert links == ["weighted_average.ipynb", "weighted_average.py"]
    assert all((site / "lookup" / link).exists() for link in links)
    assert " download>" not in read(site, "end")


def test_the_citation_is_bibtex(site, hosted):
    for folder, url in ((site, None), (hosted, "https://example.org/book/end.html")):
        text = re.search(r"<pre>(@.*?)</pre>", read(folder, "end"), re.DOTALL)[1].replace("&amp;", "&")
        (entry,) = pybtex.database.parse_string(text, "bibtex").entries.values()
        assert entry.fields["title"] == r"The end \& more"
        assert entry.fields["booktitle"] == "The Book"
        assert entry.fields["note"] == "Version 1.2"
        assert entry.fields.get("url") == url
        assert [str(person) for person in entry.persons["author"]] == ["{The authors}"]


def test_the_edit_link_leads_to_the_source_where_the_repository_is_known(site, hosted):
    assert "Edit this page" not in read(site, "end")
    address = "https://example.org/r/edit/main/docs/lookup/weighted_average.md"
    assert f'<a href="{address}">Edit this page</a>' in read(hosted, "lookup/weighted_average")


def test_external_links_are_collected_by_host_with_their_pages(site):
    listed = (site / "links.txt").read_text(encoding="utf-8").splitlines()
    assert listed == ["https://a.example.org/", "https://example.org/b?x=1&y=2"]
    page = read(site, "end")
    both = page.index(">https://example.org/b?x=1&amp;y=2</a> on ")
    assert page.index(">https://a.example.org/</a> on ") < both
    assert re.findall(r'href="([^"]+)"', page[both : page.index("</p>", both)]) == ["#", "masks/index.html"]


def test_the_search_puts_the_place_of_a_name_first(site):
    search = searcher(site)
    for query in ("weighted_average", "weighted average", "Weighted-Average", "budget", "is distribution"):
        assert search(query)[0][0] == "lookup/weighted_average", query
    assert search("is_distribution")[0] == ("lookup/weighted_average", "#lookup-is-distribution")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("none", []),
        ("SDPA, softmax attention; NW", ["SDPA", "softmax attention", "NW"]),
        ("flash (FA2, FA3), x", ["flash (FA2, FA3)", "flash", "FA2, FA3", "x"]),
        ("``softmax_one``, :math:`L_2` attention", ["softmax_one", "L_2 attention"]),
    ],
)
def test_names_are_split_and_cleaned(text, found):
    docstring = f"Do it.\n\nNotes\n-----\nOther names : {text}\n"
    assert names("f", docstring) == ["f", *found]
