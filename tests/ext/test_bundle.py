"""One stylesheet and one script for all pages: nothing that a page uses is lost, and nothing stale stays."""

import re

import pytest
from book.bundle import one_for_all, purge, read_sheet, used_names
from ext.books import DOCS, build, write

OPTIONS = {
    "html_theme": "book",
    "html_theme_path": [str(DOCS / "_theme")],
    "html_static_path": [str(DOCS / "_static")],
    "html_css_files": ["book.css"],
    "html_js_files": [("book.js", {"defer": "defer"})],
}


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (".a{color:red}", ".a{color:red}"),
        (".b{color:red}", ""),
        (".a,.b{color:red}", ".a{color:red}"),
        (".a .b{color:red}", ""),
        (".a:not(.b){color:red}", ".a:not(.b){color:red}"),
        (":is(.a,.b) i{color:red}", ":is(.a,.b) i{color:red}"),
        ('i[class="b"]{color:red}', 'i[class="b"]{color:red}'),
        ("@media print{.b{color:red}.a{margin:.5rem}}", "@media print{.a{margin:.5rem}}"),
        ("@media print{.b{color:red}}", ""),
        ('@charset "utf-8";i{color:red}', "i{color:red}"),
        ("@font-face{font-family:b}", "@font-face{font-family:b}"),
        (".a{width:calc(100% - .5rem)}", ".a{width:calc(100% - .5rem)}"),
    ],
)
def test_a_selector_stays_if_its_classes_occur(rule, left):
    assert purge(rule, {"a"}) == left


def test_names_come_from_classes_and_from_scripts(tmp_path):
    script = tmp_path / "one.js"
    script.write_text('box.classList.add("from-file");', encoding="utf-8")
    page = '<p class="first second">third</p><script>box.className = "from-page";</script>'
    names = used_names([page], [script])
    assert {"first", "second", "from-file", "from-page"} <= names
    assert "third" not in names


def test_imports_are_put_in_and_addresses_start_at_the_folder_of_all_sheets(tmp_path):
    (tmp_path / "styles").mkdir()
    (tmp_path / "basic.css").write_text("i{background:url(up.png)}", encoding="utf-8")
    sheet = '@import "../basic.css";@import url("more.css");a{b:url("../f/x.woff2")}p{b:url(data:a)}'
    (tmp_path / "styles" / "one.css").write_text(sheet, encoding="utf-8")
    (tmp_path / "styles" / "more.css").write_text("b{background:url(x.png)}", encoding="utf-8")
    assert read_sheet(tmp_path, "styles/one.css") == (
        'i{background:url("up.png")}b{background:url("styles/x.png")}a{b:url("f/x.woff2")}p{b:url(data:a)}'
    )


def test_one_tag_takes_the_place_of_the_first():
    pattern = re.compile(r'<link href="([^"]*)_static/(\w+)">')
    head = '<link href="../_static/other"><link href="../_static/a"><i><link href="../_static/b">'
    new = one_for_all(head, pattern, {"a", "b"}, '<link href="{}_static/site">')
    assert new.split() == ["<link", 'href="../_static/other">', "<link", 'href="../_static/site"><i>']


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write(tmp_path_factory.mktemp("bundled"), {"deep/page": "# Page\n\nText.\n"})


def test_every_page_asks_for_one_sheet_and_one_script_also_after_a_change(source, tmp_path):
    style = tmp_path / "own.css"
    marks = []
    for color in ("red", "blue"):
        style.write_text(f".bd-article {{ --probe: {color}; }}", encoding="utf-8")
        options = OPTIONS | {
            "html_static_path": [*OPTIONS["html_static_path"], str(style)],
            "html_css_files": ["own.css"],
        }
        html = build(source, **options).html
        assert f"--probe: {color}" in (html / "_static" / "site.css").read_text(encoding="utf-8")
        for name, root in (("index", ""), ("deep/page", "../")):
            head = (html / f"{name}.html").read_text(encoding="utf-8").partition("</head>")[0]
            sheets = re.findall(r'href="([^"]*\.css[^"]*)"', head)
            scripts = re.findall(r'src="([^"]*\.js[^"]*)"', head)
            assert [sheet.partition("?")[0] for sheet in sheets] == [f"{root}_static/site.css"]
            assert [script.partition("?")[0] for script in scripts] == [f"{root}_static/site.js"]
            assert "const DOCUMENTATION_OPTIONS" in head
        marks.append(sheets[0])
        search = (html / "search.html").read_text(encoding="utf-8")
        assert search.index("doctools.js") < search.index("searchtools.js")
    assert marks[0] != marks[1]
