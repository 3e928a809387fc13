"""The figures as the reader gets them: small, in the inks of the page, readable on a phone and without color."""

import base64
import io
import itertools
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
from book.figures import INKS, LARGEST, READABLE, flaws, prepare
from ext.books import DOCS
from matplotlib.image import imread

from softlookup import figures

# Text and background of the theme in light and dark.
PAPER = {"light": "#ffffff", "dark": "#121212"}
TEXT = {"light": "#222832", "dark": "#ced6dd"}
# Machado, Oliveira and Fernandes (2009), A physiologically-based model for simulation of color vision deficiency,
# IEEE TVCG 15(6): linear RGB, severity one.
VISION = {
    "full": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


@pytest.fixture(autouse=True)
def house_style():
    plt.switch_backend("agg")
    with plt.rc_context(fname=DOCS / "matplotlibrc"):
        yield
    plt.close("all")


def on_page(ax, alt="What is seen."):
    buffer = io.StringIO()
    ax.figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return prepare(buffer.getvalue(), alt, "f0a-")


def linear(color):
    values = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one, two):
    low, high = sorted(TO_XYZ[1] @ values for values in (one, two))
    return (high + 0.05) / (low + 0.05)


def lab(values):
    part = TO_XYZ @ np.clip(values, 0, 1) / TO_XYZ.sum(axis=1)
    x, y, z = np.where(part > 216 / 24389, np.cbrt(part), (24389 / 27 * part + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def palette(theme):
    style = (DOCS / "_static" / "book.css").read_text(encoding="utf-8")
    rules = re.search(rf'html\[data-theme="{theme}"\] {{([^}}]*)}}', style)[1]
    return [TEXT[theme], *re.findall(r"--figure-(?:blue|orange|green): (#\w{6})", rules)]


themes = pytest.mark.parametrize("theme", PAPER)


@themes
def test_every_ink_can_be_read_as_text(theme):
    inks = palette(theme)
    assert len(inks) == 4
    assert min(contrast(linear(ink), linear(PAPER[theme])) for ink in inks) >= 4.5


@themes
@pytest.mark.parametrize("vision", VISION)
def test_inks_differ_whatever_colors_the_reader_sees(theme, vision):
    seen = [lab(VISION[vision] @ linear(ink)) for ink in palette(theme)]
    assert min(np.linalg.norm(one - two) for one, two in itertools.combinations(seen, 2)) >= 17


@themes
def test_inks_differ_in_lightness_when_printed_in_gray(theme):
    lightness = sorted(lab(linear(ink))[0] for ink in palette(theme))
    assert min(np.diff(lightness)) >= 7


@themes
@pytest.mark.parametrize("weight", np.linspace(0, 1, 21).round(2))
def test_the_number_in_a_cell_stands_out_from_its_ink(theme, weight):
    ax = figures.heatmap([[weight]], numbers=True)
    color = TEXT[theme] if ax.texts[0].get_color() == figures.INK else PAPER[theme]
    ink, paper = (np.array([int(c[i : i + 2], 16) for i in (1, 3, 5)]) for c in (TEXT[theme], PAPER[theme]))
    cell = "#" + "".join(f"{round(value):02x}" for value in weight * ink + (1 - weight) * paper)
    assert contrast(linear(color), linear(cell)) >= 3


def test_the_markers_are_those_of_the_module():
    assert list(INKS) == [figures.INK, figures.BLUE, figures.ORANGE, figures.GREEN, figures.PAPER]


@pytest.mark.parametrize("size", [2, 7, 64])
def test_a_heatmap_is_a_stencil_of_the_weights_for_the_ink_of_the_page(size):
    weights = np.random.default_rng(0).random((size, size))
    svg = on_page(figures.heatmap(weights))
    assert len(svg) < 10_000
    assert svg.count("<image") == 1
    name = re.search(r'<mask id="([^"]+)"', svg)[1]
    assert re.search(rf'<rect [^>]*fill="currentColor" mask="url\(#{name}\)"', svg)
    assert "image-rendering:pixelated" in svg
    data = base64.b64decode(re.search(r'base64,([^"]+)"', svg)[1])
    pixels = imread(io.BytesIO(data), format="png")
    times = len(pixels) // size
    corners = pixels[::times, ::times]
    # Matplotlib gives the first row on top or at the bottom, and turns the picture in the second case.
    flip = float(re.search(r"<rect [^>]*matrix\(\S+ \S+ \S+ (\S+) ", svg)[1]) < 0
    np.testing.assert_allclose(corners[::-1] if flip else corners, weights, atol=1 / 255)


def test_a_raster_with_colors_of_its_own_keeps_them():
    ax = figures.figure()[1]
    ax.imshow(np.eye(3), interpolation="none")
    svg = on_page(ax)
    assert "<mask" not in svg
    assert "<image" in svg


def test_what_is_drawn_is_kept_and_what_is_not_seen_is_dropped():
    ax = figures.bars([0.25, 0.75], labels=["one & two", "three"])
    svg = on_page(ax, alt='A "low" and a high bar.')
    assert svg.count("fill:var(--figure-blue)") == 2
    assert ">one &amp; two</text>" in svg
    assert 'aria-label="A &quot;low&quot; and a high bar."' in svg
    assert not re.search(r"<metadata|<style|<!--|#111112|#0072b2|font-family|<g>|<g/>|xlink|\.\d{5}", svg)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    assert used == set(re.findall(r' id="([^"]+)"', svg))
    assert all(name.startswith("f0a-") for name in used)


def test_a_formula_is_written_in_words_of_the_page():
    ax = figures.figure()[1]
    ax.set_ylabel("slope $w (1 - w)$")
    text = re.search(r"<text><tspan.*?</text>", on_page(ax))[0]
    assert "".join(re.findall(r">([^<]*)</tspan>", text)) == "slope\N{NO-BREAK SPACE}w(1\N{MINUS SIGN}w)"
    assert ">slope" in text


def test_marks_keep_their_color():
    ax = figures.figure()[1]
    ax.plot([0, 1], [0, 1], "o", color=figures.ORANGE)
    assert "fill:var(--figure-orange)" in on_page(ax)


def test_a_figure_that_is_too_large_or_too_small_to_read_is_reported():
    ax = figures.figure(6, 3)[1]
    assert flaws(on_page(ax)) == []
    ax.text(0.5, 0.5, "small", fontsize=8)
    ax.plot(np.random.default_rng(0).random(2000), np.random.default_rng(1).random(2000))
    small, large = sorted(flaws(on_page(ax)), key=lambda flaw: "bytes" in flaw)
    assert f"at least {READABLE}" in small
    assert f"at most {LARGEST:,}" in large


def test_the_text_of_the_widest_figure_can_be_read_on_a_phone():
    ax = figures.curves(np.arange(3.0), [[1, 2, 3]], labels=["a long label"], ax=figures.figure(9, 3)[1])
    ax.set(title="title", xlabel="x $m$", ylabel="y")
    assert flaws(on_page(ax)) == []
