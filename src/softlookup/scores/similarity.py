"""Similarity: how alike a query and a key are, by a matrix, by their angle or by their distance."""

import numbers

from softlookup._arrays import Array, Score, cast, inverse_root, promote, squared_distance, unit
from softlookup._checks import (
    broadcast_batch,
    check_axes,
    check_broadcast,
    check_equal,
    check_projects,
    finite,
    pair_shape,
    positive,
)

__all__ = ["bilinear", "cosine", "distance_as_dot", "l2_distance", "low_rank_bilinear"]


def bilinear(w: Array, /) -> Score:
    r"""Build the score that compares through a matrix.

    .. math:: s_{ij} = q_i^\top W k_j

    Parameters
    ----------
    w : array of shape (..., H, d, c)
        The matrix W, one for each head; for all heads it has the shape (d, c). It owns the scale.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`. Queries have d columns and keys c.

    Raises
    ------
    ValueError
        The score raises it if an axis is missing, if `w` does not have a row for each column of `q` and a column for
        each column of `k`, or if the leading axes do not broadcast.
    TypeError
        The score raises it if an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    low_rank_bilinear : The same with a matrix of low rank.
    scaled_dot : The same with a multiple of the identity.

    Notes
    -----
    Slot : score
    Changes : queries and keys meet through a learned matrix, and may differ in width.
    Cost : O(n d c + n m c) time, O(n m) memory.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``scaled_dot(scale=c)`` when the matrix is c times the identity; ``low_rank_bilinear(u, v)`` when it is
        u times v transposed.
    Year : 2015
    Source : Luong, Pham and Manning, 2015, Effective Approaches to Attention-based Neural Machine Translation, section
        3.1, arXiv 1508.04025.
    Other names : general score, Luong general attention, multiplicative attention, bilinear attention

    No symmetry is asked of W: how well i suits j need not be how well j suits i.

    References
    ----------
    M.-T. Luong, H. Pham and C. D. Manning, Effective Approaches to Attention-based Neural Machine Translation, EMNLP
    2015.

    Examples
    --------
    >>> import numpy as np
    >>> w = np.array([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    >>> bilinear(w)(np.array([[1.0, 1.0]]), np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 3.0]]))
    array([[2., 4.]])
    """

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k, matrix) = promote(q=q, k=k, w=w)
        check_projects(q=q, w=matrix)
        check_axes("m c", k=k)
        check_equal("columns", -1, w=matrix, k=k)
        broadcast_batch(2, q=q, k=k, w=matrix)
        return cast(xp, q @ matrix @ k.mT, dtype)

    return score


def low_rank_bilinear(u: Array, v: Array, /) -> Score:
    r"""Build the score that compares two projections.

    .. math:: s_{ij} = (U^\top q_i) \cdot (V^\top k_j) = q_i^\top U V^\top k_j

    Parameters
    ----------
    u : array of shape (..., H, d, r)
        The projection U of the queries.
    v : array of shape (..., H, c, r)
        The projection V of the keys.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`. Queries have d columns and keys c.

    Raises
    ------
    ValueError
        The score raises it if an axis is missing, if `u` and `v` do not fit `q`, `k` and each other, or if the leading
        axes do not broadcast.
    TypeError
        The score raises it if an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    bilinear : The same with one matrix.

    Notes
    -----
    Slot : score
    Changes : queries and keys are projected to r dimensions before they meet.
    Cost : O(n d r + m c r + n m r) time, O(n m) memory.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``bilinear(u @ v.T)``; ``scaled_dot(scale=1.0)`` of the projected queries and keys.
    Year : 2017
    Source : Vaswani et al., 2017, Attention Is All You Need, section 3.2.2, arXiv 1706.03762, where U and V are the
        projections of one head, up to the scale.
    Other names : QK circuit, factorized bilinear score, low-rank attention score, query and key projections

    References
    ----------
    A. Vaswani et al., Attention Is All You Need, NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> u, v = np.array([[1.0], [1.0]]), np.array([[1.0], [-1.0]])
    >>> low_rank_bilinear(u, v)(np.array([[2.0, 3.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([[ 5., -5.]])
    """

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k, a, b) = promote(q=q, k=k, u=u, v=v)
        check_projects(q=q, u=a)
        check_projects(k=k, v=b)
        check_equal("columns", -1, u=a, v=b)
        broadcast_batch(2, q=q, k=k, u=a, v=b)
        return cast(xp, (q @ a) @ (k @ b).mT, dtype)

    return score


def cosine(*, temperature: float | Array = 1.0) -> Score:
    r"""Build the score that is the cosine of the angle, divided by a temperature.

    .. math:: s_{ij} = \frac{1}{T} \, \frac{q_i}{\lVert q_i \rVert} \cdot \frac{k_j}{\lVert k_j \rVert}

    Parameters
    ----------
    temperature : float or array that broadcasts to (..., H, n)
        The number T. A learned one is an array: one for each head has the shape (H, 1), one for all the shape ().

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`.

    Raises
    ------
    ValueError
        If `temperature` is a number that is not positive and finite. The score raises it if an axis is missing, if `q`
        and `k` do not agree in d, if their leading axes do not broadcast, or if an array of temperatures does not
        broadcast to the rows of scores.
    TypeError
        The score raises it if an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    scaled_dot : Compares lengths too.
    l2_distance : The same, up to a constant of the row, when all keys have one length.

    Notes
    -----
    Slot : score
    Changes : only directions count; no score exceeds 1/T in absolute value.
    Cost : O(n m d) time, O(n m) memory.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``scaled_dot(scale=1/T)`` when all queries and keys have the length one.
    Year : 2014
    Source : Graves, Wayne and Danihelka, 2014, Neural Turing Machines, section 3.3.1, arXiv 1410.5401, with one over
        the temperature as the key strength; Liu et al., 2022, Swin Transformer V2, section 3.2, arXiv 2111.09883.
    Other names : cosine similarity, scaled cosine attention, cosine attention, content-based addressing, logit scale

    A vector of zeros has no direction: its scores are zero, and so is its gradient. No epsilon is added.

    References
    ----------
    Z. Liu et al., Swin Transformer V2: Scaling Up Capacity and Resolution, CVPR 2022.

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.array([[3.0, 4.0]]), np.array([[6.0, 8.0], [0.0, 0.1], [-3.0, -4.0], [0.0, 0.0]])
    >>> cosine(temperature=0.1)(q, k).round(9)
    array([[ 10.,   8., -10.,   0.]])
    """
    number = isinstance(temperature, numbers.Real)
    t = positive("temperature", temperature) if number else temperature

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k, rows) = promote(q=q, k=k, temperature=None if number else t)
        shape = pair_shape(q, k)
        if not number:
            check_broadcast("temperature", rows, shape[:-1])
        return cast(xp, unit(xp, q) @ unit(xp, k).mT / (t if number else rows[..., None]), dtype)

    return score


def l2_distance(*, scale: float | None = None) -> Score:
    r"""Build the score that is the negative squared distance.

    .. math:: s_{ij} = -\text{scale} \cdot \lVert q_i - k_j \rVert^2

    Parameters
    ----------
    scale : float, optional
        What the squared distance is multiplied by. None means :math:`1/\sqrt d`; any number is taken as it is.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`.

    Raises
    ------
    ValueError
        If `scale` is not finite. The score raises it if an axis is missing, if `q` and `k` do not agree in d, or if
        their leading axes do not broadcast.
    TypeError
        If `scale` is not a number.

    See Also
    --------
    gaussian_score : Names the scale by a bandwidth.
    distance_as_dot : The same weights from a dot product.

    Notes
    -----
    Slot : score
    Changes : compares by distance, so that a long key has no advantage.
    Cost : O(n m d) time and memory; through `distance_as_dot` the memory is O(n m).
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``gaussian_score(bandwidth=h)`` when the scale is 1/(2 h²); ``scaled_dot(scale=2*c)`` when the scale is c
        and all keys have one length, once softmax has divided by the total.
    Year : 2021
    Source : Kim, Papamakarios and Mnih, 2021, The Lipschitz Constant of Self-Attention, section 3.2, arXiv 2006.04710.
    Other names : L2 attention, L2 self-attention, Lipschitz attention, Euclidean attention, negative squared distance

    References
    ----------
    H. Kim, G. Papamakarios and A. Mnih, The Lipschitz Constant of Self-Attention, ICML 2021.

    Examples
    --------
    >>> import numpy as np
    >>> l2_distance(scale=1.0)(np.array([[1.0, 1.0]]), np.array([[1.0, 1.0], [1.0, 3.0], [4.0, 5.0]]))
    array([[ -0.,  -4., -25.]])
    """
    scale = scale if scale is None else finite("scale", scale)

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k) = promote(q=q, k=k)
        pair_shape(q, k)
        factor = inverse_root(q.shape[-1]) if scale is None else scale
        return cast(xp, -factor * squared_distance(xp, q, k), dtype)

    return score


def distance_as_dot(q: Array, k: Array, /) -> tuple[Array, Array]:
    r"""Lift queries and keys so that their dot product is the negative squared distance, up to a constant of the row.

    .. math:: q'_i = (2 q_i, \ 1), \qquad k'_j = (k_j, \ -\lVert k_j \rVert^2), \qquad
              q'_i \cdot k'_j = -\lVert q_i - k_j \rVert^2 + \lVert q_i \rVert^2

    Parameters
    ----------
    q : array of shape (..., n, d)
        Queries.
    k : array of shape (..., m, d)
        Keys.

    Returns
    -------
    array of shape (..., n, d + 1)
        The lifted queries q'.
    array of shape (..., m, d + 1)
        The lifted keys k'.

    Raises
    ------
    ValueError
        If an axis is missing, if `q` and `k` do not agree in d, or if their leading axes do not broadcast.
    TypeError
        If `q` or `k` is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    l2_distance : The score itself.

    Notes
    -----
    Cost : O((n + m) d) time and memory.
    Empty row : decided by the normalizer.

    With a normalizer that is not shift invariant the constant of the row matters. Far from the origin the products are
    large and the distances small: precision is lost.

    Examples
    --------
    >>> import numpy as np
    >>> q, k = distance_as_dot(np.array([[1.0]]), np.array([[2.0], [4.0]]))
    >>> q @ k.T  # one more than -1 and -9
    array([[ 0., -8.]])
    """
    xp, dtype, (q, k) = promote(q=q, k=k)
    pair_shape(q, k)
    ones = xp.ones_like(xp.sum(q, axis=-1, keepdims=True))
    lifted_q = xp.concat([2 * q, ones], axis=-1)
    lifted_k = xp.concat([k, -xp.sum(k**2, axis=-1, keepdims=True)], axis=-1)
    return cast(xp, lifted_q, dtype), cast(xp, lifted_k, dtype)
