"""The widgets in a browser: by mouse, finger and keys they show what the library computes from the data of the page."""

import json
import re

import numpy as np
import pytest
from site_pages import SITE
from test_browser import SIDEWAYS, THEME, VIOLATIONS

from softlookup.circuits import edge_deletion, kl_divergence
from softlookup.lookup import effective_items, entropy, kernel_regression, kernel_weights, softmax, weighted_average
from softlookup.positions import rotary
from softlookup.schedules import online_update

pytestmark = pytest.mark.browser

# name of the widget: its page, and what its readout says at the start, which are numbers of the page
WIDGETS = {
    "kernel-regression": (
        "lookup/kernel_regression.html",
        ["3.20", "−0.30", "−0.43", "0.163", "3.35 bits", "10.2 of 24"],
    ),
    "budget": ("lookup/weighted_average.html", ["25.00", "1.00", "1.00", "6.00", "18.00"]),
    "sentence": ("lookup/attention.html", ["cat 0.316", "1.00", "0.000", "2.64 bits", "6.2 of 7"]),
    "softmax": ("lookup/softmax.html", ["1.00", "1.295 bits", "2.45 of 3", "0.000"]),
    "rotary": ("positions/rotary.html", ["−2", "60°", "0.500"]),
    "online-softmax": ("schedules/online_softmax.html", ["1.00", "1.000", "2.492", "7.050", "2.830", "2.030"]),
    "edge-deletion": ("circuits/explanation.html", ["t 0.982", "0.246", "0.000 nats", "6.836 nats"]),
}
each_widget = pytest.mark.parametrize("name", WIDGETS)


@pytest.fixture
def opened(visit, address):
    """`opened(name, **options)` is a page and its started widget; `opened(name, file=True)` is read from the disk."""

    def open_widget(name, *, file=False, **options):
        path = WIDGETS[name][0]
        if not (SITE / path).is_file():
            pytest.skip(f"the page {path} is not built")
        page = visit((SITE / path).as_uri() if file else f"{address}/{path}", **options)
        widget = page.locator(f"widget-{name}")
        widget.scroll_into_view_if_needed()
        return page, widget

    return open_widget


def data(widget):
    found = json.loads(widget.get_attribute("data-values"))
    return {name: np.array(value) if isinstance(value, list) else value for name, value in found.items()}


def readout(widget):
    return dict(zip(widget.locator("dt").all_inner_texts(), widget.locator("dd").all_inner_texts(), strict=True))


def number(text):
    return float(re.search(r"-?[\d.]+", text.replace("−", "-"))[0])


def holds(widget, **expected):
    """Each entry of the readout, by its name, is the number that was computed, to the digits that are shown."""
    shown = readout(widget)
    for name, value in expected.items():
        text = shown[name.replace("_", " ")]
        digits = len(re.search(r"\.(\d*)", text)[1])
        assert abs(number(text) - value) <= 0.5000001 * 10**-digits, (name, text, value)


def drag(page, grip, dx, dy):
    box = grip.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + dx / 2, y + dy / 2)
    page.mouse.move(x + dx, y + dy)
    page.mouse.up()


def regression(widget, q, h):
    """The readout that the library gives for this query and width."""
    given = data(widget)
    at = np.array([[q]]), given["x"][:, None]
    w = kernel_weights(*at, bandwidth=h)
    return {
        "query": q,
        "prediction": kernel_regression(*at, given["t"][:, None], bandwidth=h)[0, 0],
        "truth": np.sin(1.3 * q) / 2,
        "largest_weight": w.max(),
        "entropy": entropy(w)[0],
        "effective_points": effective_items(w)[0],
    }


@each_widget
def test_a_widget_starts_with_the_numbers_of_its_page(name, opened):
    page, widget = opened(name)
    assert list(readout(widget).values()) == WIDGETS[name][1]
    assert not widget.locator("svg.figure").is_visible()
    assert page.errors == []


@each_widget
def test_a_widget_works_from_a_file(name, opened):
    page, widget = opened(name, file=True)
    assert list(readout(widget).values()) == WIDGETS[name][1]
    assert page.errors == []


@each_widget
def test_without_scripts_and_in_print_the_figure_is_seen(name, opened):
    page, widget = opened(name, java_script_enabled=False)
    assert widget.locator("svg.figure").is_visible()
    page, widget = opened(name)
    page.emulate_media(media="print")
    assert widget.locator("svg.figure").is_visible()
    assert not widget.locator(".stage").is_visible()
    assert not widget.locator(".readout").is_visible()


@each_widget
@pytest.mark.parametrize("width", [1280, 800, 600, 390, 360])
def test_nothing_moves_when_a_widget_starts(name, width, opened):
    held = "customElements.define = (name, made) => { (window.held ??= []).push([name, made]); };"
    page, widget = opened(name, before=held, viewport={"width": width, "height": 900})
    assert widget.locator("svg.figure").is_visible()
    before = widget.bounding_box()["height"]
    page.evaluate(
        "for (const [name, made] of held) CustomElementRegistry.prototype.define.call(customElements, name, made)"
    )
    assert widget.locator(".stage").is_visible()
    assert widget.bounding_box()["height"] == before


@pytest.mark.slow
@each_widget
def test_a_started_and_moved_widget_is_accessible(name, axe, opened):
    page, widget = opened(name)
    page.evaluate(axe)
    for button in widget.locator("button").all()[:1]:
        button.click()
    widget.locator("[role=slider], input[type=radio]").first.focus()
    found = {}
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            page.evaluate(THEME, theme)
            found[width, theme] = page.evaluate(VIOLATIONS, [f"figure:has(widget-{name})", {}])
        assert page.evaluate(SIDEWAYS) <= 0
    assert not any(found.values()), found


@each_widget
def test_what_is_touched_is_large_enough_on_a_phone(name, opened):
    _, widget = opened(name, viewport={"width": 360, "height": 800}, has_touch=True)
    targets = widget.locator("[role=slider], button, .readers label > span, input[type=range]").all()
    assert targets
    for target in targets:
        box = target.bounding_box()
        assert min(box["width"], box["height"]) >= 24, (target.evaluate("node => node.outerHTML"), box)


@each_widget
def test_motion_is_reduced_on_request(name, opened):
    duration = "parseFloat(getComputedStyle(part).transitionDuration)"
    moving = f"node => [...node.querySelectorAll('*')].some((part) => {duration} > 0)"
    _, still = opened(name, reduced_motion="reduce")
    inside = still.locator(".stage")
    assert not inside.evaluate(moving)
    _, lively = opened(name, reduced_motion="no-preference")
    assert lively.locator(".stage").evaluate(moving) == (name not in ("kernel-regression", "rotary"))


def test_the_query_is_dragged_and_moved_by_keys(opened):
    page, widget = opened("kernel-regression")
    grip = widget.get_by_role("slider", name="Query")
    drag(page, grip, -120, 0)
    q = number(readout(widget)["query"])
    assert q < 2.5
    holds(widget, **regression(widget, q, 0.62))
    assert float(grip.get_attribute("aria-valuenow")) == q
    grip.press("ArrowRight")
    grip.press("PageUp")
    holds(widget, **regression(widget, q + 0.55, 0.62))
    grip.press("End")
    holds(widget, **regression(widget, 6.3, 0.62))
    assert grip.get_attribute("aria-valuetext") == "x = 6.30"
    width = widget.get_by_role("slider", name="Width h")
    for h in (0.06, 0.3, 2.0):
        width.fill(str(h))
        holds(widget, **regression(widget, 6.3, h))
    widget.get_by_role("button", name="Start again").click()
    holds(widget, **regression(widget, 3.2, 0.62))


def test_the_query_follows_a_finger_that_taps(opened):
    page, widget = opened("kernel-regression", viewport={"width": 390, "height": 800}, has_touch=True)
    box = widget.locator(".stage").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 0.7, box["y"] + 60)
    q = number(readout(widget)["query"])
    assert q > 4
    holds(widget, **regression(widget, q, 0.62))


def test_a_finger_drags_a_bar(opened):
    page, widget = opened("budget", viewport={"width": 390, "height": 800}, has_touch=True)
    box = widget.get_by_role("slider").first.bounding_box()
    x, y, before = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, page.evaluate("scrollY")
    client = page.context.new_cdp_session(page)

    def touch(kind, *points):
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": list(points)})

    touch("touchStart", {"x": x, "y": y})
    for step in range(1, 6):
        touch("touchMove", {"x": x, "y": y - 12 * step})
    touch("touchEnd")
    page.wait_for_timeout(100)
    budget_holds(widget)
    assert weights(widget)[0] > 0.35
    assert page.evaluate("scrollY") == before


def weights(widget):
    return [float(grip.get_attribute("aria-valuenow")) for grip in widget.get_by_role("slider").all()]


def budget_holds(widget):
    """The answer is the average of the values under the weights, and these sum to one."""
    w, v = np.array([weights(widget)]), data(widget)["values"]
    holds(widget, answer=weighted_average(w, v[:, None])[0, 0], sum=1.0)
    assert abs(w.sum() - 1) < 1e-8


def test_the_budget_is_moved_and_stays_one(opened):
    page, widget = opened("budget")
    first, second, third = widget.get_by_role("slider").all()
    drag(page, first, 0, -60)
    budget_holds(widget)
    assert weights(widget)[0] > 0.4
    assert abs(weights(widget)[2] / weights(widget)[1] - 2) < 1e-6
    third.press("End")
    assert weights(widget) == [0, 0, 1]
    holds(widget, answer=30)
    second.press("ArrowUp")
    budget_holds(widget)
    widget.get_by_role("button", name="Second reader").click()
    holds(widget, answer=15)
    widget.get_by_role("button", name="Equal shares").click()
    holds(widget, answer=20)
    widget.get_by_role("button", name="First reader").click()
    holds(widget, answer=25)


def test_the_sentence_shows_any_row_at_any_temperature_with_and_without_the_future(opened):
    page, widget = opened("sentence")
    given = data(widget)
    words, n = [str(word) for word in given["words"]], len(given["words"])
    temperature = widget.get_by_role("slider", name="Temperature")
    future = widget.get_by_role("button", name="Hide the future")
    for reader, t, causal in ((1, 1.0, False), (1, 0.5, True), (3, 2.0, True), (0, 1.0, True), (6, 0.1, True)):
        widget.get_by_role("radio").nth(reader).check(force=True)
        temperature.fill(str(t))
        if (future.get_attribute("aria-pressed") == "true") != causal:
            future.click()
        allowed = np.arange(n) <= (reader if causal else n)
        w, open_row = (softmax(given["scores"][reader], mask, temperature=t) for mask in (allowed, np.ones(n, bool)))
        shown = [float(text) for text in widget.locator("text.small").all_text_contents() if "." in text]
        np.testing.assert_allclose(shown, w, atol=0.000501)
        assert readout(widget)["reads most"].startswith(words[w.argmax()])
        holds(widget, sum=1.0, entropy=entropy(w), effective_words=effective_items(w))
        holds(widget, **{"re-spent": open_row[~allowed].sum()})
    widget.get_by_role("radio").nth(6).press("ArrowLeft")
    assert widget.get_by_role("radio").nth(5).is_checked()
    assert page.errors == []


def test_the_scores_are_dragged_and_a_constant_changes_nothing(opened):
    page, widget = opened("softmax")
    grips = widget.get_by_role("slider", name="Score of").all()
    drag(page, grips[0], 0, -40)
    grips[2].press("PageDown")
    widget.get_by_role("slider", name="Temperature").fill("0.5")
    widget.get_by_role("button", name="Hide table").click()

    def shown():
        return [number(text.rpartition(":")[2]) for text in widget.locator("text.strong").all_text_contents()]

    s = np.array([float(grip.get_attribute("aria-valuenow")) for grip in grips])
    assert s[0] > 1
    w = softmax(s, np.array([True, False, True]), temperature=0.5)
    np.testing.assert_allclose(shown(), w, atol=0.000501)
    holds(widget, sum=1.0, entropy=entropy(w), effective_items=effective_items(w))
    before = shown()
    widget.get_by_role("slider", name="Add c").fill("1.5")
    moved = [float(grip.get_attribute("aria-valuenow")) for grip in grips]
    np.testing.assert_allclose(moved, s + 1.5, atol=1e-9)
    assert shown() == before
    holds(widget, effect_of_c=0.0)


def test_the_hands_turn_and_only_the_distance_counts(opened):
    page, widget = opened("rotary")
    given = data(widget)
    hands = widget.get_by_role("slider", name="Position of the")
    query, key = hands.all()

    def at():
        return [float(hand.get_attribute("aria-valuenow")) for hand in (query, key)]

    def score(angle):
        turned = [
            rotary(given[name][None], np.array([int(place)]), np.array([angle]), pairing="interleaved")[0]
            for name, place in zip("qk", at(), strict=True)
        ]
        return turned[0] @ turned[1]

    assert at() == [3, 1]
    holds(widget, score=score(given["angle"]))
    widget.get_by_role("button", name="Move both one step").click()
    assert at() == [4, 2]
    holds(widget, score=0.5)
    query.press("ArrowUp")
    key.press("PageDown")
    assert at() == [5, -8]
    holds(widget, score=score(given["angle"]))
    widget.get_by_role("slider", name="Degrees a step").fill("45")
    holds(widget, score=score(np.pi / 4))
    drag(page, query, 40, 100)
    assert at()[0] != 5
    holds(widget, score=score(np.pi / 4))
    query.press("End")
    widget.get_by_role("button", name="Move both one step").click()
    assert at()[0] == 0
    widget.get_by_role("button", name="Start again").click()
    assert at() == [3, 1]
    assert page.errors == []


def test_the_keys_are_read_block_by_block(opened):
    page, widget = opened("online-softmax")
    values = data(widget)["values"]
    grips = widget.get_by_role("slider", name="Score of key").all()
    earlier, later = (widget.get_by_role("button", name=f"{name} block") for name in ("Previous", "Next"))
    size = widget.get_by_role("slider", name="Keys in a block")

    def after(blocks, block):
        """The readout and the bars are those of the library after so many blocks."""
        s = np.array([float(grip.get_attribute("aria-valuenow")) for grip in grips])
        read, state = blocks * block, (np.array([-np.inf]), np.zeros(1), np.zeros((1, 1)))
        for start in range(0, read, block):
            cut, before = slice(start, start + block), state[0]
            state = online_update(*state, s[None, cut], values[cut, None])
        top, total, blend = (x.item() for x in state)
        w = softmax(s[None])
        holds(widget, maximum=top, total=total, blend=blend, output_so_far=blend / total)
        holds(widget, old_sums_times=np.exp(before - state[0]).item(), of_all_keys=(w @ values).item())
        shown = [text for text in widget.locator("text.small.middle").all_text_contents() if "." in text]
        np.testing.assert_allclose([float(text) for text in shown], np.exp(s[:read] - top), atol=0.00501)

    after(4, 1)
    later.click()
    after(5, 1)
    holds(widget, old_sums_times=np.exp(1.0 - 2.1))
    for _ in range(2):
        earlier.click()
    after(3, 1)
    size.fill("3")
    after(1, 3)
    for _ in range(5):
        later.click()
    after(4, 3)  # the last block has one key, and there is none after it
    holds(widget, output_so_far=2.030)
    drag(page, grips[6], 0, -70)
    assert float(grips[6].get_attribute("aria-valuenow")) > 2
    after(4, 3)
    grips[0].press("End")
    grips[1].press("ArrowDown")
    assert grips[0].get_attribute("aria-valuetext") == "4.50, read"
    after(4, 3)
    size.fill("10")
    after(1, 10)
    earlier.click()
    earlier.click()
    assert list(readout(widget).values())[:5] == ["−∞", "1.000", "0.000", "0.000", "none"]
    assert grips[0].get_attribute("aria-valuetext") == "4.50, not read yet"
    later.press("Enter")
    after(1, 10)
    widget.get_by_role("button", name="Start again").click()
    after(4, 1)
    assert page.errors == []


def test_what_changed_is_said_once_after_the_reader_stops(opened):
    page, widget = opened("kernel-regression")
    said = widget.locator("output[aria-live=polite]")
    assert said.inner_text() == ""
    grip = widget.get_by_role("slider", name="Query")
    for _ in range(5):
        grip.press("ArrowRight")
    assert said.text_content() == ""
    page.wait_for_timeout(900)
    shown = readout(widget)
    points = shown["effective points"].split()[0]
    assert said.text_content() == (
        f"Prediction {shown['prediction']}, truth {shown['truth']}, {points} effective points."
    )


def test_edge_deletion_by_letter_and_by_head(opened):
    page, widget = opened("edge-deletion")
    given = data(widget)
    w, writes, logits = given["weights"], given["writes"], given["logits"]

    def after(item, *heads):
        """The readout and the bars are those of the library without these edges."""
        moved = logits + sum((edge_deletion(w[h][None], writes[h])[0, item] for h in heads), np.zeros(len(logits)))
        p = softmax(moved)
        top = given["alphabet"][np.argmax(p)].strip() or "space"
        assert readout(widget)["likeliest next"] == f"{top} {p.max():.3f}"
        holds(widget, effect_of_the_cut=kl_divergence(logits, moved).item(), mean_weight=w[:, item].mean())
        holds(widget, effect_of_a_swap=given["swaps"][item])
        different = list(dict.fromkeys(given["letters"]))
        heights = [float(bar.get_attribute("height")) / 72 for bar in widget.locator("rect.weight").all()]
        expected = [p[given["alphabet"].tolist().index(letter)] for letter in different]
        np.testing.assert_allclose(heights, [*expected, 1 - sum(expected)], atol=1e-5)

    after(4)
    cut = [widget.get_by_role("button", name=f"Cut in head {head}") for head in range(4)]
    cut[0].click()
    after(4, 0)
    assert cut[0].get_attribute("aria-pressed") == "true"
    for button in cut[1:]:
        button.press("Enter")
    after(4, 0, 1, 2, 3)
    letter = widget.get_by_role("slider", name="Letter whose edges are cut")
    drag(page, letter, 5 * widget.locator("rect.part").first.bounding_box()["width"], 0)
    after(9, 0, 1, 2, 3)
    assert letter.get_attribute("aria-valuetext") == "q at place 9"
    letter.press("ArrowLeft")
    after(8, 0, 1, 2, 3)
    cut[3].click()
    after(8, 0, 1, 2)
    widget.get_by_role("button", name="Start again").click()
    after(4)
    assert page.errors == []
