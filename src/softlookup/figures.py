"""The figures of the book: a few kinds of picture in one style.

matplotlib is imported when the first figure is drawn. The colors stand for the inks of a page, which shows its own in
their place, so that a figure follows light and dark. No figure tells things apart by color alone.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np

from softlookup._arrays import Array

__all__ = ["BLUE", "GREEN", "INK", "ORANGE", "PAPER", "bars", "curves", "figure", "heatmap", "hull", "mask"]

INK, BLUE, ORANGE, GREEN = "#111112", "#0072b2", "#d55e00", "#009e73"
PAPER = "#fefefd"


def figure(width: float = 6, height: float = 3, columns: int = 1) -> tuple[Any, Any]:
    """Make a figure with axes side by side.

    Parameters
    ----------
    width, height : float
        Size in inches.
    columns : int
        Number of axes.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    axes : matplotlib.axes.Axes or array of matplotlib.axes.Axes
        The axes; an array where there are several.
    """
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, figsize=(width, height), layout="constrained")


def heatmap(
    weights: Array, /, *, rows: Sequence[Any], columns: Sequence[Any], ax: Any = None, numbers: bool = False
) -> Any:
    """Draw weights as ink: none for a weight of zero, full for a weight of one.

    The scale is the same in all figures, so that two of them can be compared. The ink is dark on a light page and light
    on a dark one.

    Parameters
    ----------
    weights : array of shape (n, m)
        Weights from zero to one.
    rows : sequence of n labels
        What the queries are called.
    columns : sequence of m labels
        What the keys are called.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.
    numbers : bool
        Whether each cell shows its weight to two decimals.

    Returns
    -------
    matplotlib.axes.Axes
        The axes that were drawn in.

    Raises
    ------
    ValueError
        If a weight is not between zero and one.
    """
    weights = np.asarray(weights)
    if not np.all((weights > -1e-6) & (weights < 1 + 1e-6)):
        raise ValueError("weights must lie between zero and one: the scale of the ink is fixed")
    ax = _cells(ax, np.clip(weights, 0, 1), rows, columns)
    if numbers:
        for (i, j), weight in np.ndenumerate(weights):
            color = PAPER if weight > 0.55 else INK
            ax.text(j, i, f"{weight:.2f}", color=color, ha="center", va="center", fontsize="small")
    return ax


def mask(
    allowed: Array, /, *, rows: Sequence[Any] | None = None, columns: Sequence[Any] | None = None, ax: Any = None
) -> Any:
    """Draw who may read whom: a filled cell may be read, a cell with a cross may not.

    Parameters
    ----------
    allowed : boolean array of shape (n, m)
        True where query ``i`` may read key ``j``.
    rows : sequence of n labels, optional
        What the queries are called; by default their numbers.
    columns : sequence of m labels, optional
        What the keys are called; by default their numbers.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes that were drawn in.
    """
    allowed = np.asarray(allowed)
    n, m = allowed.shape
    ax = _cells(ax, 0.6 * allowed, range(n) if rows is None else rows, range(m) if columns is None else columns)
    i, j = np.nonzero(~allowed)
    ax.scatter(j, i, marker="x", s=16, color=INK, linewidths=0.8)
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
    ax = figure()[1] if ax is None else ax
    ax.bar(range(len(labels)), np.asarray(weights), width=0.7, color=BLUE)
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
    ax = figure()[1] if ax is None else ax
    x, ys = np.asarray(x), [np.asarray(y) for y in ys]
    for y, color, style in zip(ys, cycle((INK, BLUE, ORANGE, GREEN)), cycle(styles or ("-", "--", ":", "-."))):
        ax.plot(x, y, style, color=color, linewidth=1.6)
    ax.autoscale_view()
    # Labels that would touch are moved apart, upward, by the height of a line of text.
    points = 72 / ax.figure.dpi
    ends = [ax.transData.transform((x[-1], y[-1]))[1] * points for y in ys]
    lowest = -np.inf
    for i in np.argsort(ends):
        lowest = max(ends[i], lowest + 12)
        place = {"xytext": (6, lowest - ends[i]), "textcoords": "offset points", "va": "center"}
        ax.annotate(labels[i], (x[-1], ys[i][-1]), annotation_clip=False, **place)
    return ax


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

    ax = figure()[1] if ax is None else ax
    values = np.asarray(values)
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


def _cells(ax: Any, opacity: Array, rows: Sequence[Any], columns: Sequence[Any]) -> Any:
    from matplotlib.patches import Rectangle

    n, m = opacity.shape
    ax = figure()[1] if ax is None else ax
    for (i, j), alpha in np.ndenumerate(opacity):
        box = Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=(INK, alpha), edgecolor=(INK, 0.2), linewidth=0.6)
        ax.add_patch(box)
    ax.set(xlim=(-0.52, m - 0.48), ylim=(n - 0.48, -0.52), aspect="equal")
    ax.set_yticks(range(n), rows)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    _name_columns(ax, columns)
    return ax


def _name_columns(ax: Any, labels: Sequence[Any]) -> None:
    slant = max((len(str(label)) for label in labels), default=0) > 4
    turn = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if slant else {}
    ax.set_xticks(range(len(labels)), labels, **turn)
