"""The figures of the book: a few kinds of picture in one style.

matplotlib is imported when the first figure is drawn. The colors stand for the inks of a page, which shows its own in
their place, so that a figure follows light and dark. No figure tells things apart by color alone. Each kind of picture
is drawn in the axes that it is given, or else in a new figure, and returns the axes.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np

from softlookup._arrays import Array

__all__ = [
    "BLUE",
    "GREEN",
    "INK",
    "ORANGE",
    "PAPER",
    "bars",
    "compare",
    "curves",
    "figure",
    "growth",
    "heatmap",
    "hull",
    "links",
    "mask",
]

INK, BLUE, ORANGE, GREEN = "#111112", "#0072b2", "#d55e00", "#009e73"
PAPER = "#fefefd"
WIDEST = 6  # inches: a wider figure is shrunk on a phone until its text cannot be read
NAMED = 16  # rows or columns: with more of them a table has no room for names and for lines between its cells


def figure(width: float = 6, height: float = 3, columns: int = 1, *, rows: int = 1) -> tuple[Any, Any]:
    """Make a figure with axes side by side, or one above the other.

    Parameters
    ----------
    width, height : float
        Size in inches. No figure is wider than six, so that its text can be read on a phone.
    columns, rows : int
        Number of axes in each direction.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    axes : matplotlib.axes.Axes or array of matplotlib.axes.Axes
        The axes; an array where there are several.
    """
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=(min(width, WIDEST), height), layout="constrained")


def heatmap(
    weights: Array,
    /,
    *,
    rows: Sequence[Any] | None = None,
    columns: Sequence[Any] | None = None,
    ax: Any = None,
    numbers: bool = False,
    budget: bool = False,
) -> Any:
    """Draw weights as ink: none for a weight of zero, full for a weight of one.

    The scale is the same in all figures, so that two of them can be compared. The ink is dark on a light page and light
    on a dark one.

    Parameters
    ----------
    weights : array of shape (n, m)
        Weights from zero to one.
    rows, columns : sequence of n and of m labels, optional
        What the queries and the keys are called; by default their numbers, where there is room.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.
    numbers : bool
        Whether each cell shows its weight to two decimals.
    budget : bool
        Whether a bar at the right of each row shows how much of a budget of one the row has spent.

    Returns
    -------
    matplotlib.axes.Axes
        The axes that were drawn in.

    Raises
    ------
    ValueError
        If a weight is not between zero and one, or a row or column lacks a label.
    """
    weights = np.asarray(weights)
    _require(np.all((weights > -1e-6) & (weights < 1 + 1e-6)), "weights must lie between zero and one")
    ax = _cells(ax, np.clip(weights, 0, 1), rows, columns)
    if numbers:
        for (i, j), weight in np.ndenumerate(weights):
            ax.text(j, i, f"{weight:.2f}", color=PAPER if weight > 0.52 else INK, ha="center", va="center")
    if budget:
        _draw_budget(ax, weights)
    return ax


def mask(
    allowed: Array,
    /,
    *,
    rows: Sequence[Any] | None = None,
    columns: Sequence[Any] | None = None,
    ax: Any = None,
    legend: bool = False,
) -> Any:
    """Draw who may read whom: a filled cell may be read; one that may not has a cross, or is empty in a large mask.

    Parameters
    ----------
    allowed : boolean array of shape (n, m)
        True where query ``i`` may read key ``j``.
    rows, columns : sequence of n and of m labels, optional
        What the queries and the keys are called; by default their numbers, where there is room.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.
    legend : bool
        Whether a legend below says what the two kinds of cell mean.

    Returns
    -------
    matplotlib.axes.Axes
        The axes that were drawn in.

    Raises
    ------
    ValueError
        If the mask is not boolean, or a row or column lacks a label.
    """
    allowed = np.asarray(allowed)
    _require(allowed.dtype == bool, "allowed must be boolean")
    ax = _cells(ax, 0.6 * allowed, rows, columns)
    cross = "x" if max(allowed.shape) <= NAMED else "none"
    i, j = np.nonzero(~allowed)
    if cross == "x":
        ax.scatter(j, i, marker="x", s=16, color=INK, linewidths=0.8)
    if legend:
        style = {"linestyle": "none", "markeredgecolor": INK, "markersize": 8}
        marks = [("may read", {"marker": "s", "markerfacecolor": (INK, 0.6)})]
        marks += [("may not read", {"marker": "x" if cross == "x" else "s", "markerfacecolor": "none"})]
        for label, mark in marks:
            ax.plot([], [], label=label, **style, **mark)
        ax.figure.legend(loc="outside lower center", ncols=2)
    return ax


def bars(weights: Array, /, *, labels: Sequence[Any], ax: Any = None) -> Any:
    """Draw one row of weights as bars.

    Parameters
    ----------
    weights : array of shape (m,)
        The weights of one query.
    labels : sequence of m labels
        What the keys are called.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes that were drawn in.
    """
    weights = np.asarray(weights)
    _require(weights.shape == (len(labels),), "labels must name each of the weights")
    ax = figure()[1] if ax is None else ax
    ax.bar(range(len(labels)), weights, width=0.7, color=BLUE)
    _name_columns(ax, labels)
    return ax


def compare(rows: Array, /, *, labels: Sequence[Any], names: Sequence[str], ax: Any = None) -> Any:
    """Draw several rows of weights as strips of bars, one below the other and all on one scale.

    Parameters
    ----------
    rows : array of shape (r, m)
        One row of weights for each way of spending the budget.
    labels : sequence of m labels
        What the keys are called.
    names : sequence of r labels
        What the rows are called.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes that were drawn in.

    Raises
    ------
    ValueError
        If a number is not finite, or a row or column lacks a label.
    """
    rows = np.asarray(rows, dtype=float)
    _require(np.all(np.isfinite(rows)), "rows must be finite")
    _require(rows.shape == (len(names), len(labels)), "labels and names must name each column and each row of rows")
    ax = figure(6, 0.7 * len(rows) + 0.5)[1] if ax is None else ax
    scale = 0.8 / max(1, np.abs(rows).max(initial=0))
    for line, row in enumerate(rows):
        ax.bar(range(len(labels)), -scale * row, bottom=line, width=0.6, color=BLUE)
        ax.axhline(line, color=INK, linewidth=0.8)
    ax.set(ylim=(len(rows) - 0.9 + max(0, -scale * rows.min(initial=0)), -0.9))
    ax.set_yticks(range(len(rows)), names)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    _name_columns(ax, labels)
    return ax


def curves(
    x: Array, ys: Sequence[Array], /, *, labels: Sequence[str], ax: Any = None, styles: Sequence[str] | None = None
) -> Any:
    """Draw curves that differ in color and dashes, each with its label at its right end.

    Parameters
    ----------
    x : array of shape (n,)
        Where the curves are known, in increasing order.
    ys : sequence of arrays of shape (n,)
        One array for each curve.
    labels : sequence of str
        One label for each curve.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.
    styles : sequence of str, optional
        Line styles of matplotlib; by default full, dashed, dotted and dash-dotted in turn.

    Returns
    -------
    matplotlib.axes.Axes
        The axes that were drawn in.
    """
    x, ys = np.asarray(x), [np.asarray(y) for y in ys]
    _require(len(labels) == len(ys), "labels must name each of the curves")
    _require(all(y.shape == x.shape for y in ys), "ys must have a number for each x")
    ax = figure()[1] if ax is None else ax
    for y, color, style in zip(ys, cycle((INK, BLUE, ORANGE, GREEN)), cycle(styles or ("-", "--", ":", "-."))):
        ax.plot(x, y, style, color=color, linewidth=1.6)
    ax.autoscale_view()
    # Labels that would touch are moved apart, upward, by the height of a line of text.
    points = 72 / ax.figure.dpi
    ends = [ax.transData.transform((x[-1], y[-1]))[1] * points for y in ys]
    lowest = -np.inf
    for i in np.argsort(ends):
        lowest = max(ends[i], lowest + 14)
        place = {"xytext": (6, lowest - ends[i]), "textcoords": "offset points", "va": "center"}
        ax.annotate(labels[i], (x[-1], ys[i][-1]), annotation_clip=False, **place)
    return ax


def growth(sizes: Array, costs: Sequence[Array], /, *, labels: Sequence[str], ax: Any = None) -> Any:
    """Draw how costs grow, on logarithmic axes: a power of the size is a straight line, and its slope is the power.

    The label of each curve names its slope at the right end.

    Parameters
    ----------
    sizes : array of shape (n,)
        Sizes in increasing order, at least two of them.
    costs : sequence of arrays of shape (n,)
        The costs of each way, one for each size.
    labels : sequence of str
        What the ways are called.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes that were drawn in.

    Raises
    ------
    ValueError
        If a size or a cost is not positive, or a curve lacks a label.
    """
    sizes, costs = np.asarray(sizes, dtype=float), [np.asarray(cost, dtype=float) for cost in costs]
    _require(len(sizes) > 1 and np.all(sizes > 0), "sizes must be positive, and at least two")
    _require(len(labels) == len(costs), "labels must name each of the costs")
    _require(all(np.all(cost > 0) for cost in costs), "costs must be positive")
    from matplotlib.ticker import EngFormatter

    ax = figure()[1] if ax is None else ax
    ax.set(xscale="log", yscale="log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(EngFormatter(sep=""))
    slopes = [np.log(cost[-1] / cost[-2]) / np.log(sizes[-1] / sizes[-2]) for cost in costs]
    named = [f"{label}: slope {slope:.2g}" for label, slope in zip(labels, slopes, strict=True)]
    return curves(sizes, costs, labels=named, ax=ax)


def hull(values: Array, /, *, points: Array | None = None, labels: Sequence[str] | None = None, ax: Any = None) -> Any:
    """Draw the convex hull of values in the plane: where a weighted average of them can lie.

    Parameters
    ----------
    values : array of shape (m, 2)
        The values, drawn as dots.
    points : array of shape (n, 2), optional
        Further points, drawn as crosses.
    labels : sequence of str, optional
        One label for each of the points; for each of the values where no points are given.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes that were drawn in.
    """

    def chain(ordered: list[tuple[float, float]]) -> list[tuple[float, float]]:
        corners = []
        for x, y in ordered:
            # Drop the last corner while the path does not turn left there.
            while len(corners) > 1:
                (x1, y1), (x2, y2) = corners[-2:]
                if (x2 - x1) * (y - y1) > (y2 - y1) * (x - x1):
                    break
                corners.pop()
            corners.append((x, y))
        return corners[:-1]

    values = np.asarray(values)
    _require(values.ndim == 2 and values.shape[1] == 2, "values must be points of the plane, of shape (m, 2)")
    ax = figure()[1] if ax is None else ax
    ordered = sorted(map(tuple, values.tolist()))
    corners = chain(ordered) + chain(ordered[::-1])
    ax.fill(*np.array(corners or ordered).T, facecolor=(INK, 0.08), edgecolor=(INK, 0.5), linewidth=1)
    ax.plot(*values.T, "o", color=INK, markersize=5)
    named = values if points is None else np.asarray(points)
    if points is not None:
        ax.plot(*named.T, "X", color=ORANGE, markersize=8)
    for label, point in zip(labels or (), named, strict=False):
        ax.annotate(label, point, xytext=(7, 5), textcoords="offset points")
    ax.set_aspect("equal", adjustable="datalim")
    return ax


def links(
    weights: Array, /, *, rows: Sequence[str], columns: Sequence[str], ax: Any = None, least: float = 0.05
) -> Any:
    """Draw weights as lines from the words that read, on top, to those that are read: the thicker, the larger.

    Parameters
    ----------
    weights : array of shape (n, m)
        Weights from zero to one. A row of zeros draws no line.
    rows, columns : sequence of n and of m labels
        What the queries and the keys are called.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.
    least : float
        The smallest weight that is drawn.

    Returns
    -------
    matplotlib.axes.Axes
        The axes that were drawn in.

    Raises
    ------
    ValueError
        If a weight is not between zero and one, or a row or column lacks a label.
    """
    weights = np.asarray(weights)
    _require(np.all((weights > -1e-6) & (weights < 1 + 1e-6)), "weights must lie between zero and one")
    _require(weights.shape == (len(rows), len(columns)), "rows and columns must name each row and column of weights")
    ax = figure(6, 2)[1] if ax is None else ax
    places = [np.linspace(0, 1, len(words)) if len(words) > 1 else [0.5] for words in (rows, columns)]
    for i, j in np.argwhere(weights >= least):
        ax.plot([places[0][i], places[1][j]], [1, 0], color=INK, alpha=0.7, linewidth=8 * weights[i, j])
    for words, xs, y, side in ((rows, places[0], 1.05, "bottom"), (columns, places[1], -0.05, "top")):
        for word, x in zip(words, xs, strict=True):
            ax.text(x, y, word, ha="center", va=side)
    ax.set(xlim=(-0.06, 1.06), ylim=(-0.3, 1.3))
    ax.axis("off")
    return ax


def _require(right: Any, problem: str) -> None:
    if not right:
        raise ValueError(problem)


def _cells(ax: Any, opacity: Array, rows: Sequence[Any] | None, columns: Sequence[Any] | None) -> Any:
    _require(opacity.ndim == 2, "weights and masks must be matrices")
    n, m = opacity.shape
    _require(rows is None or len(rows) == n, "rows must name each row")
    _require(columns is None or len(columns) == m, "columns must name each column")
    ax = figure()[1] if ax is None else ax
    # One picture of ink whose opacity is the weight: the page prints it in its own ink.
    ink = np.broadcast_to(np.array([0x11, 0x11, 0x12]) / 255, (n, m, 3))
    ax.imshow(np.concatenate([ink, opacity[..., None]], axis=-1), interpolation="none")
    across, down = (range(k + 1) if max(n, m) <= NAMED else (0, k) for k in (m, n))
    edges = [[(x, 0), (x, n), (np.nan, np.nan)] for x in across] + [[(0, y), (m, y), (np.nan, np.nan)] for y in down]
    ax.plot(*(np.concatenate(edges).T - 0.5), color=INK, alpha=0.25, linewidth=0.6)
    ax.set(xlim=(-0.52, m - 0.48), ylim=(n - 0.48, -0.52))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if rows is not None or n <= NAMED:
        ax.set_yticks(range(n), range(n) if rows is None else rows)
    if columns is not None or m <= NAMED:
        _name_columns(ax, range(m) if columns is None else columns)
    return ax


def _draw_budget(ax: Any, weights: Array) -> None:
    n, m = weights.shape
    left, totals = m - 0.1, weights.sum(axis=-1)
    place = {"left": left, "height": 0.5, "edgecolor": INK, "linewidth": 0.8}
    ax.barh(range(n), 1.5, facecolor="none", **place)
    ax.barh(range(n), 1.5 * totals, facecolor=INK, **place)
    for i, total in enumerate(totals):
        ax.text(left + 1.7, i, f"{total:.2f}", va="center")
    ax.text(left, -0.7, "budget", ha="left")
    ax.set(xlim=(-0.52, left + 1.7))


def _name_columns(ax: Any, labels: Sequence[Any]) -> None:
    slant = max((len(str(label)) for label in labels), default=0) > 4
    turn = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if slant else {}
    ax.set_xticks(range(len(labels)), labels, **turn)
