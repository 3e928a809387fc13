"""Kernel regression: the average of the values whose keys are near, and the first learned kernel."""

from collections.abc import Callable
from typing import Any

from array_api_compat import device

from softlookup._arrays import (
    Array,
    Score,
    cast,
    distance,
    hide,
    hide_unread,
    promote,
    squared_distance,
    sum_to_shape,
)
from softlookup._checks import (
    allowed_pairs,
    broadcast_batch,
    check_axes,
    check_equal,
    check_items,
    check_shape,
    pair_shape,
    positive,
)
from softlookup.lookup.softmax import softmax, softmax_vjp
from softlookup.lookup.weighted_average import weighted_average

__all__ = [
    "boxcar",
    "constant",
    "epanechnikov",
    "gaussian",
    "gaussian_score",
    "kernel_regression",
    "kernel_weights",
    "laplace",
    "leave_one_out_error",
    "leave_one_out_error_vjp",
    "student_t",
    "triangular",
    "tricube",
]


def gaussian(u: Array, /) -> Array:
    r"""Evaluate the Gaussian kernel.

    .. math:: K(u) = e^{-u^2 / 2}

    Parameters
    ----------
    u : array of any shape
        Distances, divided by the bandwidth.

    Returns
    -------
    array of the same shape
        Kernel values; positive everywhere, though far away they underflow to zero.

    Raises
    ------
    TypeError
        If `u` is not an array of numbers.

    See Also
    --------
    kernel_weights : Divides the values of each row by their sum.

    Notes
    -----
    Cost : O(1) time for each number.

    Its weights are the softmax of :math:`-u^2 / 2`.

    Examples
    --------
    >>> import numpy as np
    >>> gaussian(np.array([0.0, 1.0, 2.0])).round(3)
    array([1.   , 0.607, 0.135])
    """
    xp, dtype, (u,) = promote(u=u)
    return cast(xp, xp.exp(-(u**2) / 2), dtype)


def boxcar(u: Array, /) -> Array:
    r"""Evaluate the boxcar kernel.

    .. math:: K(u) = 1 \ \text{if}\ |u| \le 1, \ \text{else}\ 0

    Parameters
    ----------
    u : array of any shape
        Distances, divided by the bandwidth.

    Returns
    -------
    array of the same shape
        Kernel values; zero beyond one; the edge itself still counts.

    Raises
    ------
    TypeError
        If `u` is not an array of numbers.

    See Also
    --------
    kernel_weights : Divides the values of each row by their sum.

    Notes
    -----
    Cost : O(1) time for each number.

    Also called the uniform, rectangular or top-hat kernel; others leave the edge out.

    Examples
    --------
    >>> import numpy as np
    >>> boxcar(np.array([0.0, 1.0, 2.0]))
    array([1., 1., 0.])
    """
    xp, dtype, (u,) = promote(u=u)
    return cast(xp, xp.where(xp.isnan(u), u, cast(xp, xp.abs(u) <= 1, u.dtype)), dtype)


def triangular(u: Array, /) -> Array:
    r"""Evaluate the triangular kernel.

    .. math:: K(u) = \max(0, 1 - |u|)

    Parameters
    ----------
    u : array of any shape
        Distances, divided by the bandwidth.

    Returns
    -------
    array of the same shape
        Kernel values; zero from one on.

    Raises
    ------
    TypeError
        If `u` is not an array of numbers.

    See Also
    --------
    kernel_weights : Divides the values of each row by their sum.

    Notes
    -----
    Cost : O(1) time for each number.

    Also called the linear kernel in density estimation.

    Examples
    --------
    >>> import numpy as np
    >>> triangular(np.array([0.0, 1.0, 2.0]))
    array([1., 0., 0.])
    """
    xp, dtype, (u,) = promote(u=u)
    return cast(xp, xp.clip(1 - xp.abs(u), min=0.0), dtype)


def epanechnikov(u: Array, /) -> Array:
    r"""Evaluate the Epanechnikov kernel.

    .. math:: K(u) = \tfrac34 \max(0, 1 - u^2)

    Parameters
    ----------
    u : array of any shape
        Distances, divided by the bandwidth.

    Returns
    -------
    array of the same shape
        Kernel values; zero from one on.

    Raises
    ------
    TypeError
        If `u` is not an array of numbers.

    See Also
    --------
    kernel_weights : Divides the values of each row by their sum.

    Notes
    -----
    Cost : O(1) time for each number.

    Also called the parabolic kernel.

    Examples
    --------
    >>> import numpy as np
    >>> epanechnikov(np.array([0.0, 1.0, 2.0]))
    array([0.75, 0.  , 0.  ])
    """
    xp, dtype, (u,) = promote(u=u)
    return cast(xp, 0.75 * xp.clip(1 - u**2, min=0.0), dtype)


def tricube(u: Array, /) -> Array:
    r"""Evaluate the tricube kernel.

    .. math:: K(u) = \max(0, 1 - |u|^3)^3

    Parameters
    ----------
    u : array of any shape
        Distances, divided by the bandwidth.

    Returns
    -------
    array of the same shape
        Kernel values; zero from one on.

    Raises
    ------
    TypeError
        If `u` is not an array of numbers.

    See Also
    --------
    kernel_weights : Divides the values of each row by their sum.

    Notes
    -----
    Cost : O(1) time for each number.

    Written without the factor 70/81 that would make its integral one.

    Examples
    --------
    >>> import numpy as np
    >>> tricube(np.array([0.0, 1.0, 2.0]))
    array([1., 0., 0.])
    """
    xp, dtype, (u,) = promote(u=u)
    return cast(xp, xp.clip(1 - xp.abs(u) ** 3, min=0.0) ** 3, dtype)


def laplace(u: Array, /) -> Array:
    r"""Evaluate the Laplace kernel.

    .. math:: K(u) = e^{-|u|}

    Parameters
    ----------
    u : array of any shape
        Distances, divided by the bandwidth.

    Returns
    -------
    array of the same shape
        Kernel values; positive everywhere, though far away they underflow to zero.

    Raises
    ------
    TypeError
        If `u` is not an array of numbers.

    See Also
    --------
    kernel_weights : Divides the values of each row by their sum.

    Notes
    -----
    Cost : O(1) time for each number.

    Also called the exponential kernel.

    Examples
    --------
    >>> import numpy as np
    >>> laplace(np.array([0.0, 1.0, 2.0])).round(3)
    array([1.   , 0.368, 0.135])
    """
    xp, dtype, (u,) = promote(u=u)
    return cast(xp, xp.exp(-xp.abs(u)), dtype)


def student_t(u: Array, /) -> Array:
    r"""Evaluate the Student t kernel.

    .. math:: K(u) = \frac{1}{1 + u^2}

    Parameters
    ----------
    u : array of any shape
        Distances, divided by the bandwidth.

    Returns
    -------
    array of the same shape
        Kernel values; positive everywhere, though far away they underflow to zero.

    Raises
    ------
    TypeError
        If `u` is not an array of numbers.

    See Also
    --------
    kernel_weights : Divides the values of each row by their sum.

    Notes
    -----
    Cost : O(1) time for each number.

    One degree of freedom; also called the Cauchy kernel.

    Examples
    --------
    >>> import numpy as np
    >>> student_t(np.array([0.0, 1.0, 2.0]))
    array([1. , 0.5, 0.2])
    """
    xp, dtype, (u,) = promote(u=u)
    return cast(xp, 1 / (1 + u**2), dtype)


def constant(u: Array, /) -> Array:
    r"""Evaluate the constant kernel.

    .. math:: K(u) = 1

    Parameters
    ----------
    u : array of any shape
        Distances, divided by the bandwidth.

    Returns
    -------
    array of the same shape
        Kernel values; the same everywhere.

    Raises
    ------
    TypeError
        If `u` is not an array of numbers.

    See Also
    --------
    kernel_weights : Divides the values of each row by their sum.

    Notes
    -----
    Cost : O(1) time for each number.

    Its regression is the mean of all values, whatever the query; even a NaN distance counts like the others.

    Examples
    --------
    >>> import numpy as np
    >>> constant(np.array([0.0, 1.0, 2.0]))
    array([1., 1., 1.])
    """
    xp, dtype, (u,) = promote(u=u)
    return cast(xp, xp.ones_like(u), dtype)


def kernel_weights(
    q: Array,
    k: Array,
    /,
    *,
    kernel: Callable[[Array], Array] = gaussian,
    bandwidth: float = 1.0,
    mask: Array | None = None,
) -> Array:
    r"""Weigh the keys by a kernel of their distance to the query.

    .. math:: w_{ij} = \frac{K(\lVert q_i - k_j \rVert / h)}{\sum_{l \,\text{allowed for}\, i}
              K(\lVert q_i - k_l \rVert / h)} \quad\text{for allowed}\ j, \qquad w_{ij} = 0 \quad\text{otherwise}

    Parameters
    ----------
    q : array of shape (..., n, d)
        Queries.
    k : array of shape (..., m, d)
        Keys. Their leading axes broadcast with those of `q`.
    kernel : callable
        Takes an array of distances, divided by the bandwidth, and returns non-negative numbers of the same shape.
    bandwidth : float
        The number h that the distances are divided by.
    mask : boolean array that broadcasts to (..., n, m), optional
        True where the query may read the key.

    Returns
    -------
    array of shape (..., n, m)
        Weights.

    Raises
    ------
    ValueError
        If an axis is missing, if `q` and `k` do not agree in d, if their leading axes do not broadcast, if `mask` would
        enlarge the weights, or if `bandwidth` is not positive and finite.
    TypeError
        If an argument is not an array of numbers, if `mask` is not boolean, if two array libraries are mixed, or if
        `bandwidth` is not a number.

    See Also
    --------
    kernel_regression : Blends the values with these weights.
    gaussian_score : The score whose softmax are these weights, for the Gaussian kernel.

    Notes
    -----
    Cost : O(n m d) time and memory.
    Empty row : a query that may read nothing, or for which the kernel selects nothing, gets zeros.

    For the kernel `gaussian` the weights are the softmax of :math:`-\lVert q_i - k_j \rVert^2 / (2 h^2)`. That is the
    same number without the underflow: far from all keys the nearest one still counts. Every other kernel is evaluated
    as it stands, and can select nothing. A key that no query may read can hold NaN or infinity without effect.

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.array([[0.0]]), np.array([[0.0], [1.0], [3.0]])
    >>> kernel_weights(q, k).round(3)
    array([[0.618, 0.375, 0.007]])
    >>> kernel_weights(q, k, kernel=triangular, bandwidth=2.0).round(3)
    array([[0.667, 0.333, 0.   ]])
    """
    bandwidth = positive("bandwidth", bandwidth)
    xp, dtype, (q, k) = promote(q=q, k=k)
    mask = allowed_pairs(xp, "mask", mask, pair_shape(q, k))
    k = hide_unread(xp, k, mask)
    if kernel is gaussian:
        return cast(xp, softmax(gaussian_score(bandwidth=bandwidth)(q, k), mask), dtype)
    w = hide(xp, kernel(distance(xp, q, k) / bandwidth), mask, 0.0)
    total = xp.sum(w, axis=-1, keepdims=True)
    return cast(xp, w / xp.where(total == 0, 1.0, total), dtype)


def kernel_regression(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    kernel: Callable[[Array], Array] = gaussian,
    bandwidth: float = 1.0,
    mask: Array | None = None,
) -> Array:
    r"""Average the values with the weights of a kernel.

    .. math:: \operatorname{out}_i = \frac{\sum_j K(\lVert q_i - k_j \rVert / h) \, v_j}
              {\sum_j K(\lVert q_i - k_j \rVert / h)}, \qquad j \ \text{allowed for}\ i

    Parameters
    ----------
    q : array of shape (..., n, d)
        Queries: the points at which a value is wanted.
    k : array of shape (..., m, d)
        Keys: the points at which a value is known.
    v : array of shape (..., m, e)
        Values.
    kernel : callable
        Takes an array of distances, divided by the bandwidth, and returns non-negative numbers of the same shape.
    bandwidth : float
        The number h that the distances are divided by.
    mask : boolean array that broadcasts to (..., n, m), optional
        True where the query may read the key.

    Returns
    -------
    array of shape (..., n, e)
        One prediction for each query.

    Raises
    ------
    ValueError
        If `k` and `v` do not have the same number of items, if the leading axes do not broadcast, and where
        `kernel_weights` raises it.
    TypeError
        Where `kernel_weights` raises it.

    See Also
    --------
    kernel_weights : The weights alone.
    attention : The same with a learned kernel.

    Notes
    -----
    Slot : score
    Changes : compares a query with a key by a fixed kernel of their distance.
    Cost : O(n m (d + e)) time, O(n m d) memory.
    Empty row : a query for which nothing is selected gets zeros.
    Promises : non-negative, sums to one, inside the hull, prefix stable
    Equals : ``attention`` with ``gaussian_score`` when the kernel is Gaussian; with the scaled dot product of scale
        1/h² when all keys have the same norm as well.
    Year : 1964
    Source : Nadaraya, 1964, On Estimating Regression, pp. 141-142; Watson, 1964, Smooth Regression Analysis,
        pp. 359-372.
    Other names : Nadaraya-Watson estimator, NW, local constant regression, kernel smoother

    Axis -3 has no special meaning here: all leading axes broadcast. A pair that is not allowed is left out: a NaN or
    an infinity there has no effect. Integers become the library's default float.

    References
    ----------
    E. A. Nadaraya, Theory of Probability and Its Applications 9, 1964, pp. 141-142.
    G. S. Watson, Sankhya A 26, 1964, pp. 359-372.

    Examples
    --------
    >>> import numpy as np
    >>> k, v = np.array([[0.0], [1.0], [2.0]]), np.array([[0.0], [1.0], [4.0]])
    >>> kernel_regression(np.array([[1.0]]), k, v, bandwidth=0.5).round(3)
    array([[1.213]])
    """
    xp, dtype, (q, k, v) = promote(q=q, k=k, v=v)
    check_items(k, v)
    w = kernel_weights(q, k, kernel=kernel, bandwidth=bandwidth, mask=mask)
    return cast(xp, weighted_average(w, v, allowed=mask), dtype)


def gaussian_score(*, bandwidth: float = 1.0) -> Score:
    r"""Build the score whose softmax is the Gaussian kernel.

    .. math:: s_{ij} = -\frac{\lVert q_i - k_j \rVert^2}{2 h^2}

    Parameters
    ----------
    bandwidth : float
        The number h.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`.

    Raises
    ------
    ValueError
        If `bandwidth` is not positive and finite. The score raises it if an axis is missing, if `q` and `k` do not
        agree in d, or if their leading axes do not broadcast.
    TypeError
        If `bandwidth` is not a number.

    See Also
    --------
    scaled_dot : The score of transformers.

    Notes
    -----
    Slot : score
    Changes : compares by squared distance; the bandwidth is the square root of a temperature.
    Cost : O(n m d) time and memory.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``scaled_dot(scale=1/h**2)`` when all keys have the same norm, once softmax has divided by the total.
    Year : 2019
    Source : Tsai et al., 2019, Transformer Dissection, section 3, arXiv 1908.11775.
    Other names : L2 attention, RBF attention

    References
    ----------
    Y.-H. H. Tsai et al., Transformer Dissection: An Unified Understanding for Transformer's Attention via the Lens of
    Kernel, EMNLP 2019.

    Examples
    --------
    >>> import numpy as np
    >>> gaussian_score(bandwidth=2.0)(np.array([[0.0]]), np.array([[2.0], [4.0]]))
    array([[-0.5, -2. ]])
    """
    bandwidth = positive("bandwidth", bandwidth)

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k) = promote(q=q, k=k)
        pair_shape(q, k)
        return cast(xp, -squared_distance(xp, q, k) / (2 * bandwidth**2), dtype)

    return score


def leave_one_out_error(metric: Array, x: Array, y: Array, /) -> Array:
    r"""Predict each point from the others, and return the mean squared error.

    .. math:: E(A) = \frac1m \sum_i \lVert y_i - \hat y_i \rVert^2, \qquad
              \hat y_i = \frac{\sum_{j \ne i} e^{-\lVert A (x_i - x_j) \rVert^2 / 2} \, y_j}
              {\sum_{j \ne i} e^{-\lVert A (x_i - x_j) \rVert^2 / 2}}

    Parameters
    ----------
    metric : array of shape (..., r, d)
        The matrix A that maps points to where distances are measured. A bandwidth h is the matrix 1/h times the
        identity.
    x : array of shape (..., m, d)
        Points, at least two.
    y : array of shape (..., m, e)
        Their values.

    Returns
    -------
    array of shape (...)
        The error.

    Raises
    ------
    ValueError
        If an axis is missing, if the arrays do not agree in d or m, if their leading axes do not broadcast, or if
        there are fewer than two points.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    leave_one_out_error_vjp : Its gradient, with which the metric is learned.
    kernel_regression : The prediction, for queries of its own.

    Notes
    -----
    Cost : O(m r d + m² (r + e)) time, O(m² r) memory.
    Empty row : none; every point has another one to read.

    References
    ----------
    K. Q. Weinberger and G. Tesauro, Metric Learning for Kernel Regression, AISTATS 2007.

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.array([[0.0], [1.0], [2.0]]), np.array([[0.0], [1.0], [2.0]])
    >>> float(leave_one_out_error(np.array([[0.0]]), x, y))
    1.5
    """
    xp, dtype, (metric, x, y) = promote(metric=metric, x=x, y=y)
    _, _, w = _leave_one_out_weights(xp, metric, x, y)
    return cast(xp, xp.sum((weighted_average(w, y) - y) ** 2, axis=(-2, -1)) / x.shape[-2], dtype)


def leave_one_out_error_vjp(g: Array, metric: Array, x: Array, y: Array, /) -> Array:
    r"""Pull a gradient with respect to the leave-one-out error back to the metric.

    .. math:: dA = -g \, A \sum_{ij} ds_{ij} \, (x_i - x_j)(x_i - x_j)^\top, \qquad
              ds_{ij} = w_{ij} \Bigl(dw_{ij} - \sum_l w_{il} \, dw_{il}\Bigr), \qquad
              dw_{ij} = \frac2m (\hat y_i - y_i) \cdot y_j

    Parameters
    ----------
    g : array of shape (...)
        Gradient with respect to the error; 1.0 gives the gradient of the error itself.
    metric : array of shape (..., r, d)
        As it was given to `leave_one_out_error`.
    x : array of shape (..., m, d)
        As it was given to `leave_one_out_error`.
    y : array of shape (..., m, e)
        As it was given to `leave_one_out_error`.

    Returns
    -------
    array of shape (..., r, d)
        Gradient with respect to the metric, in the shape of `metric`.

    Raises
    ------
    ValueError
        If `g` does not have the shape of the error, and where `leave_one_out_error` raises it.
    TypeError
        Where `leave_one_out_error` raises it.

    See Also
    --------
    leave_one_out_error : The function itself.

    Notes
    -----
    Cost : O(m² (r + d + e)) time, O(m² r) memory.
    Empty row : none; every point has another one to read.

    The sum over pairs is computed as :math:`x^\top (R - S) x` with :math:`S = ds + ds^\top` and the diagonal matrix R
    of its row sums.

    References
    ----------
    K. Q. Weinberger and G. Tesauro, Metric Learning for Kernel Regression, AISTATS 2007.

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.array([[0.0], [1.0], [2.0]]), np.array([[0.0], [1.0], [2.0]])
    >>> leave_one_out_error_vjp(np.array(1.0), np.array([[1.0]]), x, y).round(4)
    array([[-0.7054]])
    """
    xp, dtype, (g, metric, x, y) = promote(g=g, metric=metric, x=x, y=y)
    s, others, w = _leave_one_out_weights(xp, metric, x, y)
    check_shape("g", g, broadcast_batch(2, w=w, y=y))
    dw = 2 * (weighted_average(w, y) - y) @ y.mT / x.shape[-2]
    ds = softmax_vjp(dw, xp.broadcast_to(s, dw.shape), others)
    ds = ds + ds.mT
    pairs = x.mT @ (xp.sum(ds, axis=-1)[..., None] * x - ds @ x)
    return cast(xp, sum_to_shape(xp, -g[..., None, None] * (metric @ pairs), metric.shape), dtype)


def _leave_one_out_weights(xp: Any, metric: Array, x: Array, y: Array) -> tuple[Array, Array, Array]:
    check_axes("r d", metric=metric)
    check_axes("m d", x=x)
    check_axes("m e", y=y)
    check_equal("columns", -1, metric=metric, x=x)
    check_equal("points", -2, x=x, y=y)
    broadcast_batch(2, metric=metric, x=x, y=y)
    if x.shape[-2] < 2:
        raise ValueError(f"x has shape {tuple(x.shape)}; leaving one point out needs at least two")
    z = x @ metric.mT
    s = gaussian_score()(z, z)
    others = ~xp.eye(x.shape[-2], dtype=xp.bool, device=device(x))
    return s, others, softmax(s, others)
