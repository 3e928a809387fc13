"""softlookup.figures: what the pictures show is what they were given, in one style, and readable without color."""

import io
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from softlookup import figures

W = np.array([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]])
DRAWINGS = {
    "heatmap": lambda **o: figures.heatmap(W, rows=["a", "b"], columns=["x", "y", "z"], **o),
    "mask": lambda **o: figures.mask(W > 0, **o),
    "bars": lambda **o: figures.bars(W[0], labels=["x", "y", "z"], **o),
    "curves": lambda **o: figures.curves(np.arange(3.0), [W[0], W[1]], labels=["first", "second"], **o),
    "hull": lambda **o: figures.hull(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), **o),
    "compare": lambda **o: figures.compare(W, labels=["x", "y", "z"], names=["one", "two"], **o),
    "growth": lambda **o: figures.growth([1, 2, 4], [[1, 4, 16], [3, 6, 12]], labels=["full", "linear"], **o),
    "links": lambda **o: figures.links(W, rows=["a", "b"], columns=["x", "y", "z"], **o),
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


def cells(ax):
    """The color of each cell of a table, as it is drawn."""
    return ax.images[0].get_array()


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
        fig, axes = figures.figure(5, 3, columns=3)
        assert len(axes) == len(fig.axes) == 3
        fig, axes = figures.figure(5, 3, 2, rows=2)
        assert axes.shape == (2, 2)
        assert figures.figure()[0].get_size_inches().tolist() == [6, 3]

    def test_no_figure_is_wider_than_a_phone_can_show(self):
        assert figures.figure(8, 3)[0].get_size_inches().tolist() == [6, 3]


class TestHeatmap:
    def test_the_opacity_of_a_cell_is_its_weight_in_the_ink_of_the_page(self):
        ax = DRAWINGS["heatmap"]()
        np.testing.assert_array_equal(cells(ax)[..., 3], W)
        assert {to_hex(color) for row in cells(ax) for color in row} == {figures.INK}
        assert ax.images[0].get_extent() == [-0.5, 2.5, 1.5, -0.5]

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

    def test_the_budget_of_a_row_is_a_bar_as_long_as_its_sum_and_the_sum(self):
        ax = figures.heatmap(np.array([[0.25, 0.5], [0.5, 0.5], [0.0, 0.0]]), budget=True)
        whole, spent = [[bar.get_width() for bar in group] for group in ax.containers]
        np.testing.assert_allclose(np.divide(spent, whole), [0.75, 1, 0])
        assert [bar.get_y() + bar.get_height() / 2 for bar in ax.containers[1]] == [0, 1, 2]
        assert texts(ax) == ["0.75", "1.00", "0.00", "budget"]
        assert ax.get_xlim()[1] >= max(bar.get_x() + bar.get_width() for bar in ax.containers[0])

    @pytest.mark.parametrize("bad", [-0.1, 1.1, np.nan])
    def test_what_is_no_weight_is_refused(self, bad):
        with pytest.raises(ValueError, match="weights"):
            figures.heatmap(np.array([[bad]]), rows=["a"], columns=["x"])

    def test_rounding_is_forgiven(self):
        ax = figures.heatmap(np.array([[1 + 1e-9, -1e-9]]), rows=["a"], columns=["x", "y"])
        assert cells(ax)[0, :, 3].tolist() == [1.0, 0.0]

    def test_a_large_table_has_a_frame_and_neither_names_nor_lines_between_its_cells(self):
        few, many = (figures.heatmap(np.full((n, n), 0.5)) for n in (16, 64))
        assert len(few.lines[0].get_xdata()) == 3 * 2 * 17
        assert len(many.lines[0].get_xdata()) == 3 * 4
        assert names(few.xaxis) == [str(n) for n in range(16)]
        assert len(names(many.xaxis)) < 20


class TestMask:
    def test_what_may_be_read_is_filled_and_the_rest_has_a_cross(self):
        allowed = np.tri(3, dtype=bool)
        ax = figures.mask(allowed)
        np.testing.assert_array_equal(cells(ax)[..., 3] > 0.5, allowed)
        np.testing.assert_array_equal(cells(ax)[..., 3] == 0, ~allowed)
        crosses = ax.collections[0].get_offsets()[:, ::-1]
        assert sorted(map(tuple, crosses.tolist())) == sorted(map(tuple, np.argwhere(~allowed).tolist()))

    def test_rows_and_columns_are_numbered_unless_they_have_names(self):
        ax = figures.mask(np.ones((2, 3), bool))
        assert (names(ax.yaxis), names(ax.xaxis)) == (["0", "1"], ["0", "1", "2"])
        ax = figures.mask(np.ones((2, 3), bool), rows=["a", "b"], columns=["x", "y", "z"])
        assert (names(ax.yaxis), names(ax.xaxis)) == (["a", "b"], ["x", "y", "z"])

    @pytest.mark.parametrize("size", [3, 64])
    def test_the_legend_names_both_kinds_of_cell(self, size):
        ax = figures.mask(np.tri(size, dtype=bool), legend=True)
        assert [text.get_text() for text in ax.figure.legends[0].get_texts()] == ["may read", "may not read"]
        assert bool(ax.collections) == (size == 3)


class TestCompare:
    def test_each_row_has_its_strip_of_bars_on_one_scale(self):
        ax = DRAWINGS["compare"]()
        heights = np.array([[-bar.get_height() for bar in strip] for strip in ax.containers])
        np.testing.assert_allclose(heights / heights.max(), W, atol=1e-15)
        assert [strip[0].get_y() for strip in ax.containers] == [0, 1]
        assert (names(ax.yaxis), names(ax.xaxis)) == (["one", "two"], ["x", "y", "z"])
        assert ax.yaxis_inverted()

    def test_strips_do_not_reach_into_each_other_whatever_the_weights(self):
        ax = figures.compare([[3.0, -1.0], [4.0, 2.0]], labels="xy", names="ab")
        heights = np.array([[-bar.get_height() for bar in strip] for strip in ax.containers])
        np.testing.assert_allclose(heights, [[0.6, -0.2], [0.8, 0.4]])


class TestGrowth:
    def test_slopes_are_named_and_straight(self):
        ax = DRAWINGS["growth"]()
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        assert sorted(texts(ax)) == ["full: slope 2", "linear: slope 1"]
        assert ax.yaxis.get_major_formatter()(2e6) == "2M"
        np.testing.assert_array_equal(ax.lines[0].get_ydata(), [1, 4, 16])


class TestLinks:
    def test_a_line_for_each_weight_and_as_wide(self):
        ax = DRAWINGS["links"]()
        assert [tuple(line.get_xdata()) for line in ax.lines] == [(0, 0), (0, 0.5), (1, 0)]
        widths = np.array([line.get_linewidth() for line in ax.lines])
        np.testing.assert_allclose(widths / widths[2], [0.25, 0.75, 1])
        assert texts(ax) == ["a", "b", "x", "y", "z"]
        assert len(DRAWINGS["links"](least=0.5).lines) == 2


@pytest.mark.parametrize(
    ("argument", "draw"),
    {
        "rows": lambda: figures.heatmap(W, rows=["a"]),
        "columns": lambda: figures.mask(W > 0, columns=["a"]),
        "allowed": lambda: figures.mask(W),
        "weights": lambda: figures.links(2 * W, rows="ab", columns="xyz"),
        "rows and columns": lambda: figures.links(W, rows="a", columns="xyz"),
        "matrices": lambda: figures.heatmap(W[0]),
        "labels": lambda: figures.bars(W[0], labels="xy"),
        "labels and names": lambda: figures.compare(W, labels="xyz", names="a"),
        "finite": lambda: figures.compare(np.full((1, 1), np.nan), labels="x", names="a"),
        "labels must name each of the curves": lambda: figures.curves(np.arange(3.0), W, labels="a"),
        "ys": lambda: figures.curves(np.arange(2.0), W, labels="ab"),
        "sizes": lambda: figures.growth([0, 1], [[1, 1]], labels="a"),
        "sizes must be positive, and at least two": lambda: figures.growth([1], [[1]], labels="a"),
        "costs": lambda: figures.growth([1, 2], [[0, 1]], labels="a"),
        "labels must name each of the costs": lambda: figures.growth([1, 2], [[1, 2]], labels="ab"),
        "values": lambda: figures.hull(W),
    }.items(),
)
def test_bad_input_is_named(argument, draw):
    with pytest.raises(ValueError, match=argument):
        draw()


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
