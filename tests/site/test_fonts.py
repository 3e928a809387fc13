"""The fonts of the site hold only what it shows, so each icon and each letter of a formula is looked up in them."""

import pytest
from site_pages import every_topic

pytestmark = pytest.mark.browser

ICONS = """() => {
  const shown = new Set();
  const unnamed = [];
  for (const element of document.querySelectorAll("*")) {
    for (const part of ["::before", "::after"]) {
      const style = getComputedStyle(element, part);
      const text = style.content.match(/^"([^"])"/)?.[1];
      if (part === "::before" && element.matches("i.fa-solid") && !text) unnamed.push(element.className);
      if (text && style.fontFamily.includes("Font Awesome")) {
        shown.add(`${style.fontWeight} 40px|${style.fontFamily}|${text}`);
      }
    }
  }
  return [[...shown], unnamed];
}"""
LETTERS = """() => {
  const shown = new Set();
  for (const element of document.querySelectorAll(".katex-html *:not(:has(*))")) {
    const { fontStyle, fontWeight, fontFamily } = getComputedStyle(element);
    const family = fontFamily.split(",")[0];
    for (const letter of element.textContent.replace(/[\\s\\u200b\\u2061]/g, "")) {
      shown.add(`${fontStyle} ${fontWeight} 40px|${family}|${letter}`);
    }
  }
  return [...shown];
}"""
MISSING = """async (shown) => {
  const pixels = (font, text) => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 80, height: 60 });
    const pen = canvas.getContext("2d");
    pen.font = font;
    pen.fillText(text, 10, 45);
    return canvas.toDataURL();
  };
  const missing = [];
  for (const key of shown) {
    const [size, family, text] = key.split("|");
    const font = `${size} ${family}`;
    await document.fonts.load(font, text);
    const drawn = pixels(font, text);
    if (drawn === pixels(font, "\\ueffe") || drawn === pixels(`${size} "no such font"`, text)) missing.push(key);
  }
  return missing;
}"""


@pytest.mark.parametrize("name", ["index.html", "lookup/softmax.html", "search.html", "404.html"])
def test_every_icon_has_a_name_and_a_shape(name, address, visit):
    page = visit(f"{address}/{name}")
    shown, unnamed = page.evaluate(ICONS)
    assert len(shown) > 3
    assert unnamed == []
    assert page.evaluate(MISSING, shown) == []


@every_topic
def test_every_letter_of_a_formula_has_a_shape(name, address, visit):
    page = visit(f"{address}/{name}")
    shown = page.evaluate(LETTERS)
    assert len(shown) > 10
    assert page.evaluate(MISSING, shown) == []
