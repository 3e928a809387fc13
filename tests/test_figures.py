"""softlookup.figures: what the pictures show is what they were given, in one style, and readable without color."""

import io
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgba

from softlookup import figures

W = np.array([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]])
DRAWINGS = {
    "heatmap": lambda **o: figures.heatmap(W, rows=["a", "b"], columns=["x", "y", "z"], **o),
    "mask": lambda **o: figures.mask(W > 0, **o),
    "bars": lambda **o: figures.bars(W[0], labels=["x", "y", "z"], **o),
    "curves": lambda **o: figures.curves(np.arange(3.0), [W[0], W[1]], labels=["first", "second"], **o),
    "hull": lambda **o: figures.hull(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), **o),
}
drawings = pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)


@pytest.fixture(autouse=True)
def no_window():
    """Draw in memory, and leave no figure behind."""
    plt.switch_backend("agg")
    yield
    plt.close("all")


def texts(ax):
    return [text.get_text() for text in ax.texts]


def names(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_the_module_is_imported_without_matplotlib():
    code = "import sys, softlookup.figures; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@drawings
def test_a_picture_is_drawn_where_it_is_told_and_otherwise_in_a_new_figure(draw):
    fig, ax = figures.figure()
    assert draw(ax=ax) is ax
    assert plt.get_fignums() == [fig.number]
    other = draw()
    assert isinstance(other, Axes)
    assert other.figure is not fig


@drawings
def test_a_picture_renders_without_a_warning_and_the_same_each_time(draw):
    pictures = []
    for _ in range(2):
        buffer = io.BytesIO()
        draw().figure.savefig(buffer, format="png", dpi=60)
        pictures.append(buffer.getvalue())
    assert pictures[0] == pictures[1]


@drawings
def test_only_the_inks_of_the_page_are_used(draw):
    ax = draw()
    artists = [*ax.patches, *ax.lines, *ax.collections]
    colors = [to_hex(a.get_facecolor()) if a in ax.patches else None for a in artists]
    colors += [to_hex(line.get_color()) for line in ax.lines]
    assert set(colors) - {None} <= {figures.INK, figures.BLUE, figures.ORANGE, figures.GREEN}


def test_inks_are_those_that_the_page_exchanges():
    assert (figures.INK, figures.BLUE, figures.ORANGE, figures.GREEN) == ("#111112", "#0072b2", "#d55e00", "#009e73")


class TestFigure:
    def test_size_and_number_of_axes(self):
        fig, ax = figures.figure(5, 2)
        assert fig.get_size_inches().tolist() == [5, 2]
        assert isinstance(ax, Axes)
        fig, axes = figures.figure(8, 3, columns=3)
        assert len(axes) == len(fig.axes) == 3
        assert figures.figure()[0].get_size_inches().tolist() == [6, 3]


class TestHeatmap:
    def test_the_opacity_of_a_cell_is_its_weight(self):
        ax = DRAWINGS["heatmap"]()
        cells = {(round(p.get_y() + 0.5), round(p.get_x() + 0.5)): p.get_facecolor() for p in ax.patches}
        assert cells == {index: to_rgba(figures.INK, weight) for index, weight in np.ndenumerate(W)}

    def test_the_first_row_is_on_top_and_every_row_and_column_has_its_name(self):
        ax = DRAWINGS["heatmap"]()
        assert ax.yaxis_inverted()
        assert not ax.xaxis_inverted()
        assert (names(ax.yaxis), names(ax.xaxis)) == (["a", "b"], ["x", "y", "z"])

    def test_numbers_are_written_in_an_ink_that_can_be_read(self):
        assert texts(DRAWINGS["heatmap"]()) == []
        ax = DRAWINGS["heatmap"](numbers=True)
        assert texts(ax) == ["0.25", "0.75", "0.00", "1.00", "0.00", "0.00"]
        assert [text.get_color() == figures.INK for text in ax.texts] == [True, False, True, False, True, True]
        assert ax.texts[1].get_position() == (1, 0)

    @pytest.mark.parametrize("bad", [-0.1, 1.1, np.nan])
    def test_what_is_no_weight_is_refused(self, bad):
        with pytest.raises(ValueError, match="weights"):
            figures.heatmap(np.array([[bad]]), rows=["a"], columns=["x"])

    def test_rounding_is_forgiven(self):
        ax = figures.heatmap(np.array([[1 + 1e-9, -1e-9]]), rows=["a"], columns=["x", "y"])
        assert [p.get_facecolor()[3] for p in ax.patches] == [1.0, 0.0]


class TestMask:
    def test_what_may_be_read_is_filled_and_the_rest_has_a_cross(self):
        allowed = np.tri(3, dtype=bool)
        ax = figures.mask(allowed)
        filled = {(round(p.get_y() + 0.5), round(p.get_x() + 0.5)) for p in ax.patches if p.get_facecolor()[3] > 0}
        assert filled == {tuple(index) for index in np.argwhere(allowed).tolist()}
        crosses = ax.collections[0].get_offsets()[:, ::-1]
        assert sorted(map(tuple, crosses.tolist())) == sorted(map(tuple, np.argwhere(~allowed).tolist()))

    def test_rows_and_columns_are_numbered_unless_they_have_names(self):
        ax = figures.mask(np.ones((2, 3), bool))
        assert (names(ax.yaxis), names(ax.xaxis)) == (["0", "1"], ["0", "1", "2"])
        ax = figures.mask(np.ones((2, 3), bool), rows=["a", "b"], columns=["x", "y", "z"])
        assert (names(ax.yaxis), names(ax.xaxis)) == (["a", "b"], ["x", "y", "z"])


class TestBars:
    def test_heights_are_the_weights_in_the_order_of_the_labels(self):
        ax = DRAWINGS["bars"]()
        assert [(p.get_x() + p.get_width() / 2, p.get_height()) for p in ax.patches] == [(0, 0.25), (1, 0.75), (2, 0.0)]
        assert names(ax.xaxis) == ["x", "y", "z"]

    def test_long_labels_are_turned(self):
        turned = figures.bars(np.ones(1), labels=["restaurant"])
        assert turned.get_xticklabels()[0].get_rotation() == 40
        assert DRAWINGS["bars"]().get_xticklabels()[0].get_rotation() == 0


class TestCurves:
    def test_each_curve_has_its_numbers_its_own_dashes_and_its_label_at_the_right_end(self):
        x, ys = np.linspace(0, 1, 5), [np.full(5, 1.0), np.full(5, 2.0), np.full(5, 3.0), np.full(5, 4.0)]
        ax = figures.curves(x, ys, labels=["one", "two", "three", "four"])
        np.testing.assert_array_equal([line.get_ydata() for line in ax.lines], ys)
        assert len({line.get_linestyle() for line in ax.lines}) == 4
        assert len({line.get_color() for line in ax.lines}) == 4
        assert {text.get_text(): text.xy for text in ax.texts} == {
            "one": (1.0, 1.0),
            "two": (1.0, 2.0),
            "three": (1.0, 3.0),
            "four": (1.0, 4.0),
        }

    def test_labels_that_would_touch_are_moved_apart(self):
        ax = figures.curves(np.arange(2.0), [[0, 1.0], [0, 1.001], [0, 0.0]], labels=["a", "b", "c"])
        ax.figure.canvas.draw()
        boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
        assert not any(boxes[one].overlaps(boxes[two]) for one, two in ("ab", "ac", "bc"))
        assert boxes["c"].y0 < boxes["a"].y0 < boxes["b"].y0

    def test_styles_may_be_chosen(self):
        ax = figures.curves(np.arange(2.0), [[0, 1], [1, 0]], labels=["a", "b"], styles=["o", "-"])
        assert [line.get_marker() for line in ax.lines] == ["o", "None"]
        assert [line.get_linestyle() for line in ax.lines] == ["None", "-"]


class TestHull:
    @pytest.mark.parametrize(
        ("values", "corners"),
        [
            ([[0, 0], [2, 0], [2, 2], [0, 2], [1, 1], [1, 0]], {(0, 0), (2, 0), (2, 2), (0, 2)}),
            ([[0, 0], [1, 0], [0, 1], [0.25, 0.25]], {(0, 0), (1, 0), (0, 1)}),
            ([[0, 0], [1, 1], [2, 2]], {(0, 0), (2, 2)}),
            ([[1, 2]], {(1, 2)}),
        ],
    )
    def test_the_corners_are_those_of_the_convex_hull(self, values, corners):
        ax = figures.hull(np.array(values, dtype=float))
        assert set(map(tuple, ax.patches[0].get_xy().tolist())) == corners
        np.testing.assert_array_equal(ax.lines[0].get_xydata(), values)

    def test_points_and_their_labels(self):
        values, points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([[0.5, 0.25], [2.0, 2.0]])
        ax = figures.hull(values, points=points, labels=["inside", "outside"])
        np.testing.assert_array_equal(ax.lines[1].get_xydata(), points)
        assert ax.lines[1].get_marker() != ax.lines[0].get_marker()
        assert {text.get_text(): tuple(text.xy) for text in ax.texts} == {"inside": (0.5, 0.25), "outside": (2.0, 2.0)}

    def test_without_points_the_labels_are_those_of_the_values(self):
        ax = figures.hull(np.array([[0.0, 0.0], [1.0, 0.0]]), labels=["a", "b"])
        assert {text.get_text(): tuple(text.xy) for text in ax.texts} == {"a": (0.0, 0.0), "b": (1.0, 0.0)}

    def test_lengths_in_both_directions_are_drawn_alike(self):
        assert DRAWINGS["hull"]().get_aspect() == 1
