"""The widgets: their arithmetic is that of the library, and a page gets their code, its data and its static figure."""

import html
import json
import math
import re

import numpy as np
import pytest
from book import widgets
from ext.books import HEAD, build, write

from softlookup.circuits import edge_deletion, kl_divergence
from softlookup.lookup import (
    attention_weights,
    effective_items,
    entropy,
    is_distribution,
    kernel_regression,
    kernel_weights,
    softmax,
    weighted_average,
)
from softlookup.positions import rotary
from softlookup.schedules import online_update

quickjs = pytest.importorskip("quickjs", reason="quickjs-ng has no wheel for this platform")
NAMES = sorted({path.stem for path in widgets.FOLDER.glob("*.js")} - {"arithmetic", "base"})
CELL = """
```{code-cell} python
---
mystnb:
  image:
    alt: "A rising line."
  figure:
    name: fig-line
    caption: What to see.
status: synthetic
---
import matplotlib.pyplot as plt
import numpy as np
x = np.array([0.1, 1 / 3])
plt.plot([1, 2]);
```
"""
WIDGET = """
```{widget} budget
:label: Pull <the> "bars"
values: x
weights: [x, 2 * x[0]]
```
"""


@pytest.fixture(scope="module")
def js():
    """Call a function of the arithmetic by name, with and for numbers and lists of Python."""
    context = quickjs.Context()
    source = (widgets.FOLDER / "arithmetic.js").read_text(encoding="utf-8")
    context.eval(re.sub(r"^export const (\w+)", r"globalThis.\1", source, flags=re.MULTILINE))
    call = context.eval("(name, values) => JSON.stringify(globalThis[name](...JSON.parse(values)))")
    return lambda name, *values: json.loads(call(name, json.dumps(values)))


def states_after(state, s, v):
    """Maximum, total and blend, and what the old sums were multiplied by, when keys come to a state."""
    top, total, blend = online_update(*(np.array([x]) for x in state[:2]), np.array([[state[2]]]), s[None], v[:, None])
    return [top.item(), total.item(), blend.item(), np.exp(state[0] - top).item()]


@pytest.mark.parametrize("seed", range(20))
def test_arithmetic(js, seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    s, v, keys = (rng.normal(scale=scale, size=n) for scale in (5.0, 20.0, 2.0))
    allowed = rng.random(n) < 0.6
    temperature, width = rng.uniform(0.1, 4.0), rng.uniform(0.06, 2.0)
    q = rng.choice(keys) + rng.normal(scale=width)
    w = softmax(s, allowed, temperature=temperature)
    column, at = np.ones((1, 1)), (np.array([[q]]), keys[:, None])

    def same(name, arguments, expected):
        got = js(name, *(part.tolist() if isinstance(part, np.ndarray) else part for part in arguments))
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12, err_msg=name)

    same("softmax", [s, allowed, temperature], w)
    same("softmax", [s], softmax(s))
    same("weightedAverage", [w, v], (weighted_average(w[None], v[:, None]) * column)[0, 0])
    same("entropy", [w], entropy(w))
    same("kernelWeights", [q, keys, width], kernel_weights(*at, bandwidth=width)[0])
    same("kernelRegression", [q, keys, v, width], kernel_regression(*at, v[:, None], bandwidth=width)[0, 0])
    arrow, angle = rng.normal(size=2), float(rng.normal(scale=8.0))
    turned = rotary(arrow[None], np.array([1]), np.array([angle]), pairing="half")[0]
    same("rotate", [arrow, angle], turned)
    same("dot", [s, v], s @ v)
    block = int(rng.integers(1, n + 3))
    states, state = [], (np.array([-np.inf]), np.zeros(1), np.zeros((1, 1)))
    for start in range(0, n, block):
        cut, before = slice(start, start + block), state[0]
        state = online_update(*state, s[None, cut], v[cut, None])
        states.append([*(x.item() for x in state), np.exp(before - state[0]).item()])
    same("onlineStates", [s, v, block], states)
    same("onlineUpdate", [states[0], s, v], states_after(states[0], s, v))
    same("divergence", [s, v], kl_divergence(s, v))
    j = int(rng.integers(n))
    same(
        "edgeDeletion",
        [softmax(s), np.stack([v, keys], axis=1), j],
        edge_deletion(softmax(s)[None], np.stack([v, keys], axis=1))[0, j],
    )
    if allowed.any():
        same("effectiveItems", [w], effective_items(w))


def test_arithmetic_of_the_sentence_is_attention(js):
    rng = np.random.default_rng(0)
    asks, tells = rng.normal(size=(2, 7, 4))
    table = attention_weights(asks, tells, mask=np.tri(7, dtype=bool))
    for i, row in enumerate(asks @ tells.T / 2):
        got = js("softmax", row.tolist(), [j <= i for j in range(7)], 1)
        np.testing.assert_allclose(got, table[i], rtol=1e-12, atol=1e-15)


def test_arithmetic_of_the_edges(js):
    assert js("softmax", [1.0, 2.0], [False, False], 1) == [0, 0]
    assert js("softmax", [1000.0, 999.0]) == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.e)], rel=1e-12)
    assert js("entropy", [0, 1, 0]) == 0
    assert js("effectiveItems", [0.25] * 4) == 4
    assert js("edgeDeletion", [0, 1], [[3], [7]], 1) == [-7]


@pytest.mark.parametrize("seed", range(10))
def test_respending_keeps_the_budget_and_the_proportions_of_the_others(js, seed):
    rng = np.random.default_rng(seed)
    w = rng.dirichlet(np.ones(4))
    t = float(rng.random())
    got = np.array(js("respend", w.tolist(), 2, t))
    assert is_distribution(got)
    assert got[2] == t
    np.testing.assert_allclose(got[[0, 1, 3]] * w[0], w[[0, 1, 3]] * got[0], rtol=1e-12)


def test_respending_from_one_item_alone_gives_equal_shares(js):
    np.testing.assert_allclose(js("respend", [0, 1, 0], 1, 0.4), [0.3, 0.4, 0.3], rtol=1e-12)


def test_the_code_of_all_widgets_is_one_valid_module_that_defines_each():
    code = widgets.bundle(NAMES)
    assert not re.search(r"^(import|export)\b", code, re.MULTILINE)
    context = quickjs.Context()
    context.eval(
        "globalThis.HTMLElement = class {}; globalThis.made = []; "
        "globalThis.customElements = { define: (name) => made.push(name) }"
    )
    context.eval(code)
    assert json.loads(context.eval("JSON.stringify(made)")) == [f"widget-{name}" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_widget_is_small(name):
    assert len((widgets.FOLDER / f"{name}.js").read_bytes()) < 6_000
    assert len(widgets.bundle([name])) < 13_000


def test_a_page_gets_the_code_the_data_and_the_figure_inside(tmp_path):
    built = build(
        write(tmp_path, {"page": f"# T\n{CELL}{WIDGET}", "plain": "# T\n" + CELL.replace("fig-line", "fig-other")})
    )
    assert built.failures == []
    page = (built.html / "page.html").read_text(encoding="utf-8")
    element = re.search(r"<widget-budget ([^>]*)>(.*?)</widget-budget>", page, re.DOTALL)
    assert element[2].lstrip().startswith("<svg")
    assert 'data-label="Pull &lt;the&gt; &quot;bars&quot;"' in element[1]
    data = json.loads(html.unescape(re.search(r'data-values="([^"]*)"', element[1])[1]))
    assert data == {"values": [0.1, 1 / 3], "weights": [[0.1, 1 / 3], 0.2]}
    assert page.count('<script type="module">') == 1
    assert ".widget {" in page
    assert re.search(r"<figcaption>.*What to see", page, re.DOTALL)
    assert "customElements" not in (built.html / "plain.html").read_text(encoding="utf-8")


# name: (text below the front matter, line of the failure in that text, part of the message)
BAD = {
    "missing name": (f"# T\n{CELL}{WIDGET}".replace("values: x", "values: nosuch"), 21, "NameError: name 'nosuch'"),
    "not a number": (f"# T\n{CELL}{WIDGET}".replace("values: x", "values: x * np.nan"), 21, "ValueError"),
    "no expression": (f"# T\n{CELL}{WIDGET}".replace("values: x", "values"), 21, "name: expression"),
    "unknown widget": (f"# T\n{CELL}{WIDGET}".replace("} budget", "} nosuch"), 19, "no widget 'nosuch'"),
    "no label": (f"# T\n{CELL}{WIDGET}".replace(':label: Pull <the> "bars"\n', ""), 19, "needs a :label:"),
    "not under a cell": (f"# T\n{CELL}Text.\n{WIDGET}", 20, "directly under the cell"),
    "no figure": (
        "# T\n\n```{code-cell} python\nx = 1\n```\n\n```{widget} budget\n:label: L\nv: x\n```\n",
        7,
        "one figure",
    ),
}


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    pages = {name.replace(" ", "_"): text for name, (text, *_) in BAD.items()}
    return build(write(tmp_path_factory.mktemp("bad"), pages)).failures


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_widget_fails_at_its_line(name, failures):
    _, line, message = BAD[name]
    found = [(at, said) for page, at, said in failures if page == name.replace(" ", "_")]
    assert any(at == line + HEAD.count("\n") and message in said for at, said in found), found
