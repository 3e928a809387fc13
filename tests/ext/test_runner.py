"""The runner by itself: outputs, lines, a fresh state for each page, and who is called."""

import warnings

import numpy as np
import pytest
from book.runner import Runner


def watched(value, /, *, f=None):
    return value if f is None else f(value)


def inner(value, /):
    return value


def outer(value, /):
    return inner(value)


@pytest.fixture
def runner():
    page = Runner("page.md", {"watched": watched, "inner": inner, "outer": outer})
    page.namespace.update(watched=watched, inner=inner, outer=outer)
    return page


def test_text_and_the_last_value_are_shown(runner):
    assert runner.run("print(1)\n2", 1).shown == "1\n2"
    assert runner.run("2;", 1).shown == ""
    assert runner.run("None", 1).shown == ""


def test_cells_share_a_namespace_and_pages_do_not(runner):
    runner.run("x = 3", 1)
    assert runner.evaluate(" x + 1") == 4
    with pytest.raises(NameError):
        Runner("other.md").evaluate("x")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\n1 / 0", 12),
        ("x = 1\n\n\ndef f():\n    1 / 0\nf()", 15),
        ("x = 1\ny = = 2", 12),
        ("[1,\n2,\n1 / 0]", 13),
    ],
)
def test_an_error_names_the_line_of_the_page(runner, source, line):
    result = runner.run(source, 11)
    assert (result.line, bool(result.error)) == (line, True)


def test_an_error_in_a_library_names_the_line_that_called_it(runner):
    assert runner.run("import numpy as np\nx = np.ones(2)\nnp.reshape(x, (3, 3))", 1).line == 3


def test_warnings_and_stderr_are_errors(runner):
    assert "RuntimeWarning" in runner.run("import numpy as np\nnp.log(np.zeros(1))", 1).error
    assert "UserWarning" in runner.run("import warnings\nwarnings.warn('x')", 1).error
    assert "stderr" in runner.run("import sys\nprint('x', file=sys.stderr)", 1).error


def test_the_warning_filters_of_the_process_stay(runner):
    before = list(warnings.filters)
    runner.run("import warnings\nwarnings.simplefilter('ignore')", 1)
    assert list(warnings.filters) == before


def test_a_page_starts_with_the_default_state():
    Runner("a.md").run("import numpy as np\nnp.set_printoptions(precision=2)\nnp.seterr(all='ignore')", 1)
    assert Runner("b.md").run("import numpy as np\nprint(np.array([1 / 3]))", 1).shown == "[0.33333333]"
    assert np.geterr()["divide"] == "warn"


def test_figures_come_out_once_and_are_closed(runner):
    result = runner.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]);", 1)
    assert len(result.figures) == 1
    assert result.figures[0].count("<svg") == 1
    assert runner.run("x = 1", 1).figures == []


def test_the_same_figure_is_the_same_text(runner):
    source = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    assert runner.run(source, 1).figures == runner.run(source, 1).figures


@pytest.mark.parametrize(
    ("source", "called"),
    [
        ("watched(1)", {"watched"}),
        ("[watched(x) for x in [1]]", {"watched"}),
        ("list(map(watched, [1]))", {"watched"}),
        ("outer(1)", {"outer"}),  # inner is entered, but the page did not call it
        ("watched(1, f=inner)", {"watched", "inner"}),
        ("f = inner\nwatched(1, f=f)", {"watched", "inner"}),
        ("[watched(1, f=f) for f in [inner]]", {"watched", "inner"}),
        ("import types\nm = types.SimpleNamespace(g=inner)\nwatched(1, f=m.g)", {"watched", "inner"}),
        ("watched", set()),
        ("name = 'watched(1)'", set()),
        ("def never():\n    watched(1)", set()),
    ],
)
def test_who_is_called(runner, source, called):
    assert runner.run(source, 1).error is None
    assert runner.calls.called == called


@pytest.mark.parametrize("call", ["np.allclose(1, 1)", "np.array_equal(1, 1)", "np.isclose(1, 1)"])
def test_a_bare_comparison_is_refused_and_an_asserted_one_is_not(runner, call):
    assert "without asserting" in runner.run(f"import numpy as np\n{call}", 1).error
    assert runner.run(f"import numpy as np\nassert {call}", 1).error is None
