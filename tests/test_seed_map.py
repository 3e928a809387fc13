"""The map of the source documents: every item has a place that exists, or is planned for a page that does not."""

import functools
import json
import pathlib
import re

import pytest
from docutils import nodes

DOCS = pathlib.Path(__file__).parents[1] / "docs"
ITEMS = json.loads((DOCS / "_data" / "seed_map.json").read_text(encoding="utf-8"))
FAMILIES = json.loads((DOCS / "_data" / "families.json").read_text(encoding="utf-8"))
DOCUMENTS = {"section", "chapter", "essay", "note", "card"}
PLANNED = "planned: "


def places(item):
    """The places of an item: one plan, or a list of anchors."""
    return [item["covers"]] if isinstance(item["covers"], str) else item["covers"]


def every_place():
    return [pytest.param(place, id=f"{item['id']} {place}") for item in ITEMS for place in places(item)]


@functools.cache
def anchors(docname):
    """The ids that the source of a page makes: labels, headings, figures, precise statements and equations."""
    found, fence = set(), ""
    for line in (DOCS / f"{docname}.md").read_text(encoding="utf-8").splitlines():
        if name := re.match(r"\s*:?name: (\S+)$|`{3,}\{precise\} (\S+)$", line):
            found.add(nodes.make_id(name[1] or name[2]))
        if equation := re.match(r"\s*:label: (\S+)$", line):
            found.add(f"equation-{nodes.make_id(equation[1])}")
        marks = re.match(r"`{3,}|:{3,}", line)
        if fence:
            fence = "" if line.strip() == fence else fence
        elif marks:
            fence = marks[0]
        elif heading := re.match(r"\((.+)\)=$|#+ (.+)$", line):
            found.add(nodes.make_id(re.sub(r"[`*$]", "", heading[1] or heading[2])))
    return found


def test_there_are_144_items_in_order():
    assert [item["id"] for item in ITEMS] == list(range(1, 145))


def test_each_item_names_its_document_and_says_something_of_its_own():
    assert {item["source"] for item in ITEMS} == DOCUMENTS
    assert all(set(item) == {"id", "source", "item", "covers"} and places(item) for item in ITEMS)
    assert len({item["item"] for item in ITEMS}) == len(ITEMS)


@pytest.mark.parametrize("place", every_place())
def test_place_exists_or_is_planned(place):
    if place.startswith(PLANNED):
        family, _, topic = place.removeprefix(PLANNED).partition("/")
        topics = {entry["family"]: entry["topics"] for entry in FAMILIES}
        assert topic in topics.get(family, []), f"no family and topic {family}/{topic} is planned"
        assert not (DOCS / family / f"{topic}.md").exists(), f"{family}/{topic} is written: the item needs its anchor"
    else:
        docname, _, anchor = place.partition("#")
        assert anchor in anchors(docname), f"docs/{docname}.md makes no anchor {anchor}"


def test_first_page_lists_the_families_in_order():
    text = (DOCS / "index.md").read_text(encoding="utf-8").partition("| Family |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    names = [re.sub(r"\[(.+)\]\(.+\)", r"\1", row[0]) for row in rows]
    assert names == [entry["family"] for entry in FAMILIES]
    assert [row[1] for row in rows] == [entry["question"] for entry in FAMILIES]
    assert [row[2].replace(" ", "_").split(",_") for row in rows] == [entry["topics"] for entry in FAMILIES]


def test_first_page_draws_the_families_by_dependency():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    drawn = {name: re.findall(r'"(\w+)"', row) for name, row in re.findall(r'^    "([\w ]+)": \[(.+)\],$', text, re.M)}
    assert drawn == {name: [f["family"] for f in FAMILIES if f["dependency"] == name] for name in drawn}
    assert set(drawn) == {entry["dependency"] for entry in FAMILIES}


def test_a_family_is_linked_from_the_first_page_exactly_when_it_is_written():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    linked = {entry["family"] for entry in FAMILIES if f"({entry['family']}/index.md)" in text}
    assert linked == {entry["family"] for entry in FAMILIES if (DOCS / entry["family"] / "index.md").exists()}
