"""The pages that the build writes from docstrings and from data."""

import inspect
import json

import pytest
from book.tables import FIELDS, PROMISES, fixed_fields, variants
from ext.books import build, write

DOCSTRING = """Summary.

    Notes
    -----
    Slot : normalizer
    Changes : this and
        that, with ``code`` and :math:`x^2`
    Promises : non-negative, shift invariant
    Year : 1989

    Free words : not a field.

    References
    ----------
    Source : not here
    """


def test_fixed_fields_are_the_lines_of_the_notes():
    assert fixed_fields(inspect.cleandoc(DOCSTRING)) == {
        "Slot": "normalizer",
        "Changes": "this and that, with ``code`` and :math:`x^2`",
        "Promises": "non-negative, shift invariant",
        "Year": "1989",
    }


def test_fields_are_found_only_in_notes():
    assert fixed_fields("Summary.\n\nSlot : normalizer\n") == {}


@pytest.mark.parametrize(("name", "fields"), variants(["lookup"]))
def test_every_variant_has_every_fixed_field(name, fields):
    assert all(fields[field] for field in FIELDS), fields
    assert {part.strip() for part in fields["Promises"].split(",")} - {"none"} <= set(PROMISES)


def test_the_tables_show_their_data(tmp_path):
    page = "# Tables\n\n(lookup.softmax)=\n## Here\n\n```{oracles-table}\n```\n\n```{seed-table}\n```\n"
    source = write(tmp_path, {"tables": page})
    record = {"function": "lookup.softmax", "stranger": "other", "version": "1.2", "dtype": "float64"}
    records = [
        {**record, "difference": 0, "floor": 3e-9, "clash": None},
        {**record, "difference": 2e-16, "floor": 0, "clash": "its rows"},
    ]
    (source / "_data" / "oracles.json").write_text(json.dumps(records))
    items = [
        {"id": 1, "source": "note", "item": "one thing", "covers": ["tables#here"]},
        {"id": 2, "source": "note", "item": "another", "covers": "planned: scores/softcap"},
    ]
    (source / "_data" / "seed_map.json").write_text(json.dumps(items))
    book = build(source)
    assert book.failures == []
    html = (book.html / "tables.html").read_text(encoding="utf-8")
    for words in ("<p>0</p>", "2e-16", "its rows", "one thing", "Tables: here", "planned: scores/softcap"):
        assert words in html


def test_the_table_of_times_says_on_what_it_was_measured(tmp_path):
    source = write(tmp_path, {"tables": "# Tables\n\n```{speed-table}\n```\n"})
    run = {"run": "float32, n = 8", "threads": 1, "seconds": 0.0123, "limit": 0.5, "torch": 1.3, "extra": 2**19}
    machine = {"processor": "a processor", "cores": 2, "memory": 3 * 2**30, "instructions": ["wide"]}
    record = {
        "date": "2026-01-02",
        "machine": machine,
        "versions": {"NumPy": "9.9"},
        "threads": {"ONE": "1", "TWO": None},
        "kernels": {"CORE": None},
        "runs": [run],
        "others": [{"what": "a window", "ratio": 7.0}, {"what": "a table", "ratio": 12.0}],
    }
    html = ""
    for given in (record, record | {"machine": machine | {"memory": None, "instructions": []}, "threads": {}}):
        (source / "_data" / "speed.json").write_text(json.dumps(given))
        book = build(source)
        assert book.failures == []
        html += (book.html / "tables.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", "&#160;")
    for words in (
        "Measured on 2026-01-02. Processor: a processor, 2 cores, 3 GiB of memory, instructions wide. Versions: ",
        "NumPy 9.9. Variables that were set: ONE=1.",
        "a processor, 2 cores. Versions: NumPy 9.9. Variables that were set: none.",
        "<p>float32, n&#160;=&#160;8</p>",
        "<p>12&#160;ms</p>",
        "<p>0.50</p>",
        "<p>1.3</p>",
        "<p>0.5&#160;MiB</p>",
        "<p>7.0</p>",
        "<p>12</p>",
    ):
        assert words in html


def test_a_record_of_an_unknown_function_fails_every_build(tmp_path):
    source = write(tmp_path, {"tables": "# Tables\n\n```{oracles-table}\n```\n"})
    record = {
        "function": "lookup.nosuch",
        "stranger": "",
        "version": "",
        "dtype": "",
        "difference": 0,
        "floor": 3e-9,
        "clash": None,
    }
    (source / "_data" / "oracles.json").write_text(json.dumps([record]))
    for _ in range(2):
        assert ["lookup.nosuch" in message for _, _, message in build(source).failures] == [True]
