"""What a reader meets: every page in a browser, in both themes, wide and narrow, with and without scripts."""

import re
from urllib.parse import urlsplit

import pytest
from site_pages import PAGES, SITE, TOPICS, every_page, every_topic

pytestmark = pytest.mark.browser

TOPIC = next((name for name in TOPICS if name.endswith("lookup/attention.html")), "index.html")
VIOLATIONS = """async ([context, options]) => (await axe.run(context, options)).violations.map(
    (found) => `${found.id} (${found.nodes.length}): ${found.nodes[0].html.slice(0, 200)}`
)"""
FORMULAS = [".katex-html"]  # hidden from screen readers, in the color of the text around them
CODE = ["pre"]  # the same few colors on every page: one page is enough
QUICK = {"preload": False, "resultTypes": ["violations"]}
COLORS = QUICK | {"runOnly": ["color-contrast", "link-in-text-block"]}  # what a theme can change
SHAPES = QUICK | {"rules": {"color-contrast": {"enabled": False}}}  # what a width can change
ALL, TEXT = {"exclude": []}, {"exclude": [FORMULAS, CODE]}
RUNS = (
    (1280, "light", ALL, SHAPES),
    (1280, "light", TEXT, COLORS),
    (1280, "dark", TEXT, COLORS),
    (390, "light", ALL, SHAPES),
    (390, "dark", TEXT, COLORS),
)
SAMPLE = (
    "index.html",
    "search.html",
    "404.html",
    "reference/masks.html",
    "masks/window.html",
)  # one of each kind
STILL = "*, *::before, *::after { transition: none !important; animation: none !important; }"
THEME = "(theme) => { document.documentElement.dataset.theme = theme; document.documentElement.dataset.mode = theme; }"
SETTLED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)))"
SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize(
    "name",
    [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in PAGES or SAMPLE],
)
def test_a_page_is_accessible(name, address, axe, visit):
    page = visit(f"{address}/{name}")
    page.add_style_tag(content=STILL)
    page.evaluate(axe)
    found = []
    for width, theme, context, options in RUNS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(THEME, theme)
        page.evaluate(SETTLED)
        found += [(width, theme, violation) for violation in page.evaluate(VIOLATIONS, [context, options])]
    assert found == []


@every_page
def test_a_page_fits_and_keeps_to_itself(name, address, visit):
    page = visit(f"{address}/{name}")
    for width in (1280, 390, 360):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(SIDEWAYS) <= 0, f"scrolls sideways at {width} px"
    assert page.errors == [], page.failed
    own = urlsplit(address).netloc
    assert [url for url in page.requested if urlsplit(url).netloc not in ("", own)] == []


@pytest.mark.slow
def test_the_colors_of_code_can_be_read(address, axe, visit):
    page = visit(f"{address}/{TOPIC}")
    page.add_style_tag(content=STILL)
    page.evaluate(axe)
    for theme in ("light", "dark"):
        page.evaluate(THEME, theme)
        page.evaluate(SETTLED)
        assert page.evaluate(VIOLATIONS, [{"exclude": [FORMULAS]}, COLORS]) == []


@every_topic
def test_the_first_view_of_a_topic_is_light(name, address, visit):
    page = visit("about:blank")
    sizes = []
    page.on("requestfinished", lambda request: sizes.append((request.url, request.sizes()["responseBodySize"])))
    page.goto(f"{address}/{name}", wait_until="networkidle")
    total = sum(size for _, size in sizes)
    heaviest = sorted(sizes, key=lambda pair: -pair[1])[:3]
    assert len(sizes) <= 30, sizes
    assert total <= 250_000, f"{total:,} bytes, of which {heaviest}"


def test_text_figures_and_formulas_show_without_scripts(address, visit):
    page = visit(f"{address}/{TOPIC}", java_script_enabled=False)
    for selector in ("section.level#core", "section.level#research", "svg.figure", ".katex", "div.cell_output"):
        assert page.locator(f"{selector}:visible").count(), selector


def test_a_page_works_from_a_file(visit):
    page = visit((SITE / TOPIC).as_uri())
    assert page.errors == []
    assert page.locator("svg.figure:visible").count()
    page.locator('.level-switch button[data-level="core"]').click()
    assert not page.locator("#research").is_visible()


def test_the_level_switch_hides_remembers_and_follows_the_keyboard(address, visit):
    page = visit(f"{address}/{TOPIC}")
    buttons = page.locator(".level-switch button")
    assert buttons.count() == 3
    page.locator('.level-switch button[data-level="core"]').focus()
    page.keyboard.press("Enter")
    assert [buttons.nth(i).get_attribute("aria-pressed") for i in range(3)] == ["true", "false", "false"]
    assert page.locator("#core").is_visible()
    assert not page.locator("#deepen").is_visible()
    page.reload()
    assert not page.locator("#deepen").is_visible()
    page.keyboard.press("Tab")
    page.locator('.level-switch button[data-level="deepen"]').press("Space")
    assert page.locator("#deepen").is_visible()
    assert not page.locator("#research").is_visible()


def test_a_link_into_a_hidden_level_opens_it(address, visit):
    page = visit(f"{address}/{TOPIC}")
    page.locator('.level-switch button[data-level="core"]').click()
    page.goto(f"{address}/{TOPIC}#research")
    assert page.locator("#research").is_visible()


def test_a_hit_of_the_search_opens_all_levels(address, visit):
    page = visit(f"{address}/{TOPIC}")
    page.locator('.level-switch button[data-level="core"]').click()
    page.goto(f"{address}/{TOPIC}?highlight=softmax")
    assert page.locator("#research").is_visible()


def test_print_shows_every_level_and_no_furniture(address, visit):
    page = visit(f"{address}/{TOPIC}")
    page.locator('.level-switch button[data-level="core"]').click()
    page.emulate_media(media="print")
    for selector in ("#core", "#deepen", "#research"):
        assert page.locator(selector).is_visible(), selector
    for selector in (".level-switch", ".bd-sidebar-primary", ".report"):
        assert not page.locator(selector).first.is_visible(), selector


def test_print_is_light_opens_the_solutions_and_leaves_the_screen_as_it_was(address, visit):
    page = visit(f"{address}/{TOPIC}", color_scheme="dark")
    solution = page.locator("details.solution > :not(summary)").first
    assert not solution.is_visible()
    page.emulate_media(media="print")
    page.wait_for_function("document.documentElement.dataset.theme === 'light'")
    assert solution.bounding_box()["height"] > 0
    page.emulate_media(media="screen")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")


def test_a_browser_that_blocks_storage_does_no_harm(address, visit):
    blocked = (
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } });"
    )
    page = visit(f"{address}/{TOPIC}", before=blocked)
    page.locator('.level-switch button[data-level="core"]').click()
    assert not page.locator("#research").is_visible()
    assert page.locator("html").get_attribute("data-theme") in ("light", "dark")


def test_the_theme_follows_the_system(address, visit):
    for scheme in ("light", "dark"):
        page = visit(f"{address}/{TOPIC}", color_scheme=scheme)
        assert page.locator("html").get_attribute("data-theme") == scheme


def test_a_code_cell_is_copied_as_it_stands(address, visit):
    page = visit(f"{address}/{TOPIC}", permissions=["clipboard-read", "clipboard-write"])
    cell = page.locator("div.cell_input").first
    cell.hover()
    cell.locator("button.copybtn").click()
    page.wait_for_timeout(100)
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied.strip() == cell.locator("pre").inner_text().strip()
    assert not re.search(r"^(>>>|\.\.\.)", copied, re.MULTILINE)
    compile(copied, TOPIC, "exec")


def test_an_address_that_does_not_exist_gets_a_page_that_works(address, visit):
    page = visit(f"{address}/no/such/page.html")
    assert "404" in page.title() or "not found" in page.title().lower()
    assert page.locator('a[href$="index.html"]').first.is_visible()
    page.errors.clear()
    page.locator('main a[href$="index.html"]').first.click()
    assert page.locator("article h1").inner_text().startswith("Soft Lookup")
