"""Sparsemax and entmax: weights that sum to one and are exactly zero where a score is too far below the best."""

import math
from typing import Any

from array_api_compat import device

from softlookup._arrays import Array, Normalizer, below_top, cast, hide, promote, row_max
from softlookup._checks import check_shape, finite, readable_scores
from softlookup.lookup.softmax import softmax

__all__ = ["entmax", "entmax15", "entmax_vjp", "sparsemax", "sparsemax_vjp"]


def sparsemax(s: Array, allowed: Array | None = None, /) -> Array:
    r"""Take the distribution that is nearest to the scores.

    .. math:: w_i = \operatorname*{arg\,min}_{p \ge 0,\ \sum_j p_j = 1} \sum_{j \,\text{allowed for}\, i}
              (p_j - s_{ij})^2 \quad\Longrightarrow\quad w_{ij} = \max(s_{ij} - \tau_i, \, 0),
              \qquad \sum_j w_{ij} = 1

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores. One row alone, of shape (m,), is fine too.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read. Whatever score stands elsewhere has no effect.

    Returns
    -------
    array of shape (..., n, m)
        Weights; zero for every score that is at least one below the best of its row, and perhaps for more.

    Raises
    ------
    ValueError
        If `s` has no axis, or if `allowed` would enlarge it.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    sparsemax_vjp : The gradient.
    entmax : The family between softmax and sparsemax, and beyond.

    Notes
    -----
    Slot : normalize
    Changes : items whose score is too low get exactly zero; above that, weights are linear in the scores.
    Cost : O(n m log m) time, for sorting; O(n m) memory.
    Empty row : a row that may read nothing, or only scores of minus infinity, gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``entmax`` with alpha two; the Euclidean projection of the scores onto the simplex; equal shares for equal
        scores; for two items, half their difference around one half, cut off at zero and one.
    Year : 2016
    Source : Martins and Astudillo, 2016, From Softmax to Sparsemax, Proposition 1, arXiv 1602.02068.
    Other names : projection onto the probability simplex, simplex projection, sparse softmax, 2-entmax

    Scores of plus infinity share the budget equally and leave nothing to finite ones. A NaN that may be read makes its
    whole row NaN. Integers become the library's default float.

    References
    ----------
    A. F. T. Martins and R. F. Astudillo, From Softmax to Sparsemax: A Sparse Model of Attention and Multi-Label
    Classification, ICML 2016.

    Examples
    --------
    >>> import numpy as np
    >>> sparsemax(np.array([[1.0, 0.5, 0.0]]))
    array([[0.75, 0.25, 0.  ]])
    """
    xp, dtype, (s,) = promote(s=s)
    support, lead, items = _support(xp, _below_best(xp, s, allowed), 1)
    rest = xp.maximum(1.0 - xp.sum(lead, axis=-1, keepdims=True), 0.0)
    return cast(xp, xp.where(support, lead + rest / items, 0.0), dtype)


def entmax15(s: Array, allowed: Array | None = None, /) -> Array:
    r"""Half way from softmax to sparsemax: exact zeros, and weights that are squares of what exceeds a threshold.

    .. math:: w_{ij} = \max(s_{ij} / 2 - \tau_i, \, 0)^2 \quad\text{for allowed}\ j, \qquad
              w_{ij} = 0 \quad\text{otherwise}, \qquad \sum_j w_{ij} = 1

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores. One row alone, of shape (m,), is fine too.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read. Whatever score stands elsewhere has no effect.

    Returns
    -------
    array of shape (..., n, m)
        Weights; zero for every score that is at least two below the best of its row, and perhaps for more.

    Raises
    ------
    ValueError
        If `s` has no axis, or if `allowed` would enlarge it.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    entmax : Any alpha, by a search.
    entmax_vjp : The gradient.

    Notes
    -----
    Slot : normalize
    Changes : items whose score is too low get exactly zero; weights come to that zero with slope zero.
    Cost : O(n m log m) time, for sorting; O(n m) memory.
    Empty row : a row that may read nothing, or only scores of minus infinity, gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``entmax`` with alpha one and a half; equal shares for equal scores.
    Year : 2019
    Source : Peters, Niculae and Martins, 2019, Sparse Sequence-to-Sequence Models, section 3, arXiv 1905.05702.
    Other names : 1.5-entmax, entmax-1.5, entmax 1.5

    Scores of plus infinity share the budget equally and leave nothing to finite ones. A NaN that may be read makes its
    whole row NaN. Integers become the library's default float.

    References
    ----------
    B. Peters, V. Niculae and A. F. T. Martins, Sparse Sequence-to-Sequence Models, ACL 2019.

    Examples
    --------
    >>> import numpy as np
    >>> entmax15(np.array([[0.4, 0.0, -2.0]])).round(3)
    array([[0.64, 0.36, 0.  ]])
    """
    xp, dtype, (s,) = promote(s=s)
    support, lead, items = _support(xp, _below_best(xp, s, allowed) / 2.0, 2)
    total = xp.sum(lead, axis=-1, keepdims=True)
    rest = 1.0 - xp.sum(lead**2, axis=-1, keepdims=True)
    lift = rest / (total + xp.sqrt(total**2 + items * rest))  # the root of sum (lead + lift)^2 = 1
    return cast(xp, xp.where(support, (lead + lift) ** 2, 0.0), dtype)


def entmax(*, alpha: float) -> Normalizer:
    r"""Build the normalizer between softmax, at alpha one, and sparsemax, at alpha two; alpha may be larger.

    .. math:: w_{ij} = \max\bigl((\alpha - 1) \, s_{ij} - \tau_i, \, 0\bigr)^{1 / (\alpha - 1)}
              \quad\text{for allowed}\ j, \qquad w_{ij} = 0 \quad\text{otherwise}, \qquad \sum_j w_{ij} = 1

    Parameters
    ----------
    alpha : float
        The number that says how early a weight becomes zero: scores that are 1 / (alpha - 1) below the best never get
        anything. One is softmax itself.

    Returns
    -------
    callable
        The function ``normalize(s, allowed)``, for the argument `normalize` of `attention`. Its attribute
        ``vjp(g, s, allowed)`` pulls a gradient back to the scores.

    Raises
    ------
    ValueError
        If `alpha` is less than one or not finite. The normalizer raises it if `s` has no axis, or if `allowed` would
        enlarge it.
    TypeError
        If `alpha` is not a number. The normalizer raises it if `s` is not an array of numbers, if `allowed` is not
        boolean, or if two array libraries are mixed.

    See Also
    --------
    entmax_vjp : The gradient.
    sparsemax, entmax15 : The exact forms for alpha two and one and a half.

    Notes
    -----
    Slot : normalize
    Changes : items whose score is too low get exactly zero; alpha says how low that is.
    Cost : O(n m) time for each of about fourteen rounds in double precision and seven in single; O(15 n m) memory.
    Empty row : a row that may read nothing, or only scores of minus infinity, gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``softmax`` when alpha is one, ``entmax15`` when it is one and a half, ``sparsemax`` when it is two, and
        ``hardmax_average`` in the limit of infinity; equal shares for equal scores.
    Year : 2019
    Source : Peters, Niculae and Martins, 2019, Sparse Sequence-to-Sequence Models, section 3, arXiv 1905.05702.
    Other names : alpha-entmax, α-entmax, Tsallis entmax, adaptively sparse attention

    Scores of plus infinity share the budget equally and leave nothing to finite ones. A NaN that may be read makes its
    whole row NaN. Integers become the library's default float. An alpha beyond one over the rounding unit of the dtype
    counts as that. The largest weight is searched by comparisons alone, sixteen intervals in each round; a last step in
    closed form makes the derivatives those of the exact solution, so automatic differentiation is right too.

    References
    ----------
    B. Peters, V. Niculae and A. F. T. Martins, Sparse Sequence-to-Sequence Models, ACL 2019.

    Examples
    --------
    >>> import numpy as np
    >>> entmax(alpha=2)(np.array([[1.0, 0.5, 0.0]]))
    array([[0.75, 0.25, 0.  ]])
    """
    alpha = finite("alpha", alpha)
    if alpha < 1:
        raise ValueError(f"alpha is {alpha}; it must be at least one")

    def normalize(s: Array, allowed: Array | None = None, /) -> Array:
        if alpha == 1:
            return softmax(s, allowed)
        xp, dtype, (s,) = promote(s=s)
        return cast(xp, _entmax(xp, _below_best(xp, s, allowed), alpha - 1.0), dtype)

    def vjp(g: Array, s: Array, allowed: Array | None = None, /) -> Array:
        return entmax_vjp(g, s, allowed, alpha=alpha)

    normalize.vjp = vjp
    return normalize


def sparsemax_vjp(g: Array, s: Array, allowed: Array | None = None, /) -> Array:
    r"""Pull a gradient with respect to the weights back to the scores: subtract its mean over the items that are read.

    .. math:: ds_{ij} = g_{ij} - \frac{1}{|S_i|} \sum_{l \in S_i} g_{il} \quad\text{for}\ j \in S_i, \qquad
              ds_{ij} = 0 \quad\text{otherwise}, \qquad S_i = \{\, j : w_{ij} > 0 \,\}

    Parameters
    ----------
    g : array of shape (..., n, m)
        Gradient with respect to the weights. Where the weight is zero, it has no effect.
    s : array of shape (..., n, m)
        Scores, as they were given to `sparsemax`.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        As it was given to `sparsemax`.

    Returns
    -------
    array of shape (..., n, m)
        Gradient with respect to the scores; zero where the weight is zero. Each row sums to zero, up to rounding.

    Raises
    ------
    ValueError
        If `g` does not have the shape of `s`, and where `sparsemax` raises it.
    TypeError
        Where `sparsemax` raises it.

    See Also
    --------
    sparsemax : The function itself; it carries this one as its attribute ``vjp``.

    Notes
    -----
    Cost : O(n m log m) time, for the support; O(n m) memory.
    Empty row : zeros.

    Where a score stands exactly at the threshold, sparsemax has a kink; this is the slope on the side of the zero.

    References
    ----------
    A. F. T. Martins and R. F. Astudillo, From Softmax to Sparsemax, ICML 2016.

    Examples
    --------
    >>> import numpy as np
    >>> sparsemax_vjp(np.array([[1.0, 0.0, 5.0]]), np.array([[1.0, 0.5, 0.0]]))
    array([[ 0.5, -0.5,  0. ]])
    """
    return _pull_back(g, s, allowed, sparsemax, 2.0)


def entmax_vjp(g: Array, s: Array, allowed: Array | None = None, /, *, alpha: float) -> Array:
    r"""Pull a gradient with respect to the weights back to the scores.

    .. math:: ds_{ij} = u_{ij} \Bigl(g_{ij} - \frac{\sum_l u_{il} \, g_{il}}{\sum_l u_{il}}\Bigr), \qquad
              u_{ij} = w_{ij}^{2 - \alpha} \quad\text{where}\ w_{ij} > 0, \qquad u_{ij} = 0 \quad\text{otherwise}

    Parameters
    ----------
    g : array of shape (..., n, m)
        Gradient with respect to the weights. Where the weight is zero, it has no effect.
    s : array of shape (..., n, m)
        Scores, as they were given to the normalizer.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        As it was given to the normalizer.
    alpha : float
        As it was given to `entmax`.

    Returns
    -------
    array of shape (..., n, m)
        Gradient with respect to the scores; zero where the weight is zero. Each row sums to zero, up to rounding.

    Raises
    ------
    ValueError
        If `g` does not have the shape of `s`, and where `entmax` raises it.
    TypeError
        Where `entmax` raises it.

    See Also
    --------
    entmax : The function itself; what it returns carries this one as its attribute ``vjp``.
    sparsemax_vjp : The same for alpha two.

    Notes
    -----
    Cost : that of `entmax`, and O(n m) more.
    Empty row : zeros.

    For alpha above two the slope at the threshold is infinite.

    References
    ----------
    B. Peters, V. Niculae and A. F. T. Martins, Sparse Sequence-to-Sequence Models, ACL 2019.

    Examples
    --------
    >>> import numpy as np
    >>> entmax_vjp(np.array([[1.0, 0.0, 5.0]]), np.array([[1.0, 0.5, 0.0]]), alpha=2)
    array([[ 0.5, -0.5,  0. ]])
    """
    return _pull_back(g, s, allowed, entmax(alpha=alpha), float(alpha))


sparsemax.vjp = sparsemax_vjp
entmax15.vjp = lambda g, s, allowed=None, /: _pull_back(g, s, allowed, entmax15, 1.5)


def _below_best(xp: Any, s: Array, allowed: Array | None) -> Array:
    """Return the scores minus the best of their row; minus infinity for those that count nothing."""
    s = readable_scores(xp, s, allowed, -math.inf)
    return below_top(xp, s, row_max(xp, s))


def _support(xp: Any, z: Array, power: int) -> tuple[Array, Array, Array]:
    """Return which items get more than zero, their lead over the last of them, and their number, at least one.

    An item is in if the leads over it of the better ones, raised to `power`, sum to less than one. Every comparison is
    written so that NaN stays in.
    """
    x = xp.sort(xp.maximum(z, -1.0), axis=-1, descending=True)
    above = xp.arange(z.shape[-1], dtype=z.dtype, device=device(z))
    gap = xp.roll(x, 1, axis=-1) - x  # the first of them is multiplied by zero
    leads = xp.cumulative_sum(above * gap, axis=-1)
    if power == 2:
        leads = xp.cumulative_sum(gap * (2.0 * leads - above * gap), axis=-1)
    last = -row_max(xp, -xp.where(leads >= 1.0, 0.0, x))
    support = ~((z < last) | (z <= -1.0))
    items = xp.sum(cast(xp, support, z.dtype), axis=-1, keepdims=True)
    return support, xp.where(support, z - last, 0.0), xp.maximum(items, 1.0)


def _entmax(xp: Any, z: Array, beta: float) -> Array:
    r"""Return the weights for scores ``z (..., m)`` with the maximum zero, where beta is alpha minus one.

    With L = -log(max w), w = exp(-L) (1 + beta z exp(beta L))^(1/beta), which loses no digits for any beta. The sum
    falls with L, from at least one at zero to at most one at log(m).
    """
    info, items = xp.finfo(z.dtype), z.shape[-1]
    width = math.log(items) if items > 1 else 0.0  # one item has L = 0
    beta = min(beta, 1.0 / float(info.eps))
    y = xp.where(z <= -1.0 / beta, -2.0, beta * xp.maximum(z, -1.0 / beta))

    def weights(y: Array, L: Array) -> tuple[Array, Array]:
        r = y * xp.exp(xp.minimum(beta * L, math.log(info.max) - 1.0))
        inside = ~(r <= -1.0)
        r = xp.where(inside, r, 0.0)
        return xp.where(inside, xp.exp(xp.log1p(r) / beta - L), 0.0), 1.0 + r

    L = xp.zeros((*z.shape[:-1], 1), dtype=z.dtype, device=device(z))
    steps = xp.arange(1, 16, dtype=z.dtype, device=device(z))
    for _ in range(math.ceil(math.log(width / float(info.eps), 16)) if width else 0):
        width /= 16
        w, _ = weights(y[..., :, None], (L + width * steps)[..., None, :])
        high = cast(xp, xp.sum(w, axis=-2) > 1.0, z.dtype)
        L = L + width * xp.sum(high, axis=-1, keepdims=True)
    # L depends on the scores through comparisons alone; this step of Newton gives it its derivative.
    w, u = weights(y, L)
    slope = xp.sum(w / u, axis=-1, keepdims=True)
    excess = xp.where(slope == 0, 0.0, xp.sum(w, axis=-1, keepdims=True) - 1.0)
    w, _ = weights(y, L + excess / xp.where(slope == 0, 1.0, slope))
    total = xp.sum(w, axis=-1, keepdims=True)
    return w / xp.where(total == 0, 1.0, total)


def _pull_back(g: Array, s: Array, allowed: Array | None, normalize: Normalizer, alpha: float) -> Array:
    xp, dtype, (g, s) = promote(g=g, s=s)
    check_shape("g", g, s.shape)
    w = normalize(s, allowed)
    g = hide(xp, g, allowed, 0.0)
    u = xp.where(w == 0, 0.0, xp.where(w == 0, 1.0, w) ** (2.0 - alpha))
    total = xp.sum(u, axis=-1, keepdims=True)
    return cast(xp, u * (g - xp.sum(u * g, axis=-1, keepdims=True) / xp.where(total == 0, 1.0, total)), dtype)
