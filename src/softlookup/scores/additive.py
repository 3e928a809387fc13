"""Additive scores: a query and a key are added, bent, and read out by a vector."""

from typing import Any

from softlookup._arrays import Array, Score, cast, promote
from softlookup._checks import broadcast_batch, check_axes, check_broadcast, check_equal, check_projects, finite

__all__ = ["additive", "concat_additive", "gat", "gatv2"]


def additive(v: Array, w: Array, u: Array, /, *, bias: Array | None = None) -> Score:
    r"""Build the score that is a small network with one hidden layer.

    .. math:: s_{ij} = v \cdot \tanh(W^\top q_i + U^\top k_j + b)

    Parameters
    ----------
    v : array of shape (..., H, h)
        The vector v that reads the hidden layer out.
    w : array of shape (..., H, d, h)
        The projection W of the queries.
    u : array of shape (..., H, c, h)
        The projection U of the keys.
    bias : array that broadcasts to (..., H, h), optional
        Numbers b that are added inside.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`. Queries have d columns and keys c.

    Raises
    ------
    ValueError
        The score raises it if an axis is missing, if `v`, `w`, `u` and `bias` do not fit `q`, `k` and each other, or
        if the leading axes do not broadcast.
    TypeError
        The score raises it if an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    concat_additive : The same with one matrix.
    gatv2 : The same with another bend.

    Notes
    -----
    Slot : score
    Changes : queries and keys are added instead of multiplied; no score exceeds the sum of the absolute values of v.
    Cost : O(n d h + m c h + n m h) time, O(n m h) memory, and n m h hyperbolic tangents.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``concat_additive(v, w)`` when W and U stand in one matrix, one above the other.
    Year : 2014
    Source : Bahdanau, Cho and Bengio, 2015, Neural Machine Translation by Jointly Learning to Align and Translate,
        appendix A.1.2, arXiv 1409.0473.
    Other names : Bahdanau attention, additive attention, MLP attention, tanh attention, alignment model

    References
    ----------
    D. Bahdanau, K. Cho and Y. Bengio, Neural Machine Translation by Jointly Learning to Align and Translate, ICLR 2015.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.array([[1.0]])
    >>> additive(np.array([2.0]), one, one)(np.array([[0.5]]), np.array([[-0.5], [0.5], [9.0]])).round(3)
    array([[0.   , 1.523, 2.   ]])
    """

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k, a, b, c, shift) = promote(q=q, k=k, v=v, w=w, u=u, bias=bias)
        hidden = _sums(xp, q, k, b, c)
        if shift is not None:
            check_broadcast("bias", shift, (*hidden.shape[:-3], hidden.shape[-1]))
            hidden = hidden + shift[..., None, None, :]
        return cast(xp, _read_out("v", a, xp.tanh(hidden)), dtype)

    return score


def concat_additive(v: Array, w: Array, /) -> Score:
    r"""Build the additive score that projects the query and the key, put behind one another, with one matrix.

    .. math:: s_{ij} = v \cdot \tanh\bigl(W^\top [q_i; k_j]\bigr)

    Parameters
    ----------
    v : array of shape (..., H, h)
        The vector v that reads the hidden layer out.
    w : array of shape (..., H, d + c, h)
        The matrix W; its first d rows act on the query.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`. Queries have d columns and keys c.

    Raises
    ------
    ValueError
        The score raises it if an axis is missing, if `v` and `w` do not fit `q`, `k` and each other, or if the leading
        axes do not broadcast.
    TypeError
        The score raises it if an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    additive : The same with a matrix each.

    Notes
    -----
    Slot : score
    Changes : queries and keys are put behind one another and go through a hidden layer.
    Cost : O(n m (d + c) h) time, O(n m (d + c + h)) memory, as written; that of `additive` when W is split.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``additive(v, w[:d], w[d:])``.
    Year : 2015
    Source : Luong, Pham and Manning, 2015, Effective Approaches to Attention-based Neural Machine Translation, section
        3.1, arXiv 1508.04025.
    Other names : concat score, Luong concat attention

    References
    ----------
    M.-T. Luong, H. Pham and C. D. Manning, Effective Approaches to Attention-based Neural Machine Translation, EMNLP
    2015.

    Examples
    --------
    >>> import numpy as np
    >>> score = concat_additive(np.array([2.0]), np.array([[1.0], [1.0]]))
    >>> score(np.array([[0.5]]), np.array([[-0.5], [0.5]])).round(3)
    array([[0.   , 1.523]])
    """

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k, a, matrix) = promote(q=q, k=k, v=v, w=w)
        check_axes("n d", q=q)
        check_axes("m c", k=k)
        check_axes("d h", w=matrix)
        pairs = (*broadcast_batch(2, q=q, k=k), q.shape[-2], k.shape[-2])
        both = [
            xp.broadcast_to(q[..., :, None, :], (*pairs, q.shape[-1])),
            xp.broadcast_to(k[..., None, :, :], (*pairs, k.shape[-1])),
        ]
        stacked, matrix = xp.concat(both, axis=-1), matrix[..., None, :, :]
        check_projects(q_and_k=stacked, w=matrix)
        return cast(xp, _read_out("v", a, xp.tanh(stacked @ matrix)), dtype)

    return score


def gatv2(a: Array, w: Array, u: Array, /, *, slope: float = 0.2) -> Score:
    r"""Build the additive score of the second graph attention network.

    .. math:: s_{ij} = a \cdot \operatorname{leaky}(W^\top q_i + U^\top k_j), \qquad
              \operatorname{leaky}(z) = z \ \text{if}\ z > 0, \ \text{else slope} \cdot z

    Parameters
    ----------
    a : array of shape (..., H, h)
        The vector a that reads the hidden layer out.
    w : array of shape (..., H, d, h)
        The projection W of the queries, which are the nodes that receive.
    u : array of shape (..., H, c, h)
        The projection U of the keys, which are the neighbors that send.
    slope : float
        What negative numbers are multiplied by.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`. Queries have d columns and keys c.

    Raises
    ------
    ValueError
        If `slope` is not finite. The score raises it if an axis is missing, if `a`, `w` and `u` do not fit `q`, `k` and
        each other, or if the leading axes do not broadcast.
    TypeError
        If `slope` is not a number. The score raises it if an argument is not an array of numbers, or if two array
        libraries are mixed.

    See Also
    --------
    gat : The first version, which ranks the keys alike for every query.
    additive : The same with a hyperbolic tangent.

    Notes
    -----
    Slot : score
    Changes : queries and keys are added and bent at zero before they are read out.
    Cost : O(n d h + m c h + n m h) time, O(n m h) memory.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``gat(a, a, w, u, slope=1)`` when the slope is one, since then nothing is bent.
    Year : 2021
    Source : Brody, Alon and Yahav, 2022, How Attentive are Graph Attention Networks?, section 3, arXiv 2105.14491.
    Other names : GATv2, dynamic graph attention, GATv2Conv

    References
    ----------
    S. Brody, U. Alon and E. Yahav, How Attentive are Graph Attention Networks?, ICLR 2022.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.array([[1.0]])
    >>> gatv2(np.array([2.0]), one, one)(np.array([[1.0]]), np.array([[-2.0], [3.0]]))
    array([[-0.4,  8. ]])
    """
    slope = finite("slope", slope)

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k, read, b, c) = promote(q=q, k=k, a=a, w=w, u=u)
        return cast(xp, _read_out("a", read, _leaky(xp, _sums(xp, q, k, b, c), slope)), dtype)

    return score


def gat(a: Array, b: Array, w: Array, u: Array, /, *, slope: float = 0.2) -> Score:
    r"""Build the additive score of the first graph attention network.

    .. math:: s_{ij} = \operatorname{leaky}(a \cdot W^\top q_i + b \cdot U^\top k_j)

    Parameters
    ----------
    a : array of shape (..., H, h)
        The vector a that reads the projected queries out.
    b : array of shape (..., H, h)
        The vector b that reads the projected keys out.
    w : array of shape (..., H, d, h)
        The projection W of the queries. The paper has one matrix for both.
    u : array of shape (..., H, c, h)
        The projection U of the keys.
    slope : float
        What negative numbers are multiplied by.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`. Queries have d columns and keys c.

    Raises
    ------
    ValueError
        If `slope` is not finite. The score raises it if an axis is missing, if `a`, `b`, `w` and `u` do not fit `q`,
        `k` and each other, or if the leading axes do not broadcast.
    TypeError
        If `slope` is not a number. The score raises it if an argument is not an array of numbers, or if two array
        libraries are mixed.

    See Also
    --------
    gatv2 : The second version.

    Notes
    -----
    Slot : score
    Changes : queries and keys are read out first and bent last.
    Cost : O(n d h + m c h + n m) time, O(n m) memory.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : a number for each key plus one for each query when the slope is one; then softmax gives every query the
        same weights.
    Year : 2017
    Source : Veličković et al., 2018, Graph Attention Networks, section 2.1, arXiv 1710.10903.
    Other names : GAT, graph attention, static attention, GATConv

    With a positive slope the bend keeps the order, so every query ranks the keys alike, by the number that belongs to
    the key.

    References
    ----------
    P. Veličković et al., Graph Attention Networks, ICLR 2018.

    Examples
    --------
    >>> import numpy as np
    >>> one, read = np.array([[1.0]]), np.array([1.0])
    >>> gat(read, read, one, one)(np.array([[1.0], [-9.0]]), np.array([[-2.0], [3.0]]))
    array([[-0.2,  4. ],
           [-2.2, -1.2]])
    """
    slope = finite("slope", slope)

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k, read_q, read_k, c, d) = promote(q=q, k=k, a=a, b=b, w=w, u=u)
        check_axes("h", a=read_q, b=read_k)
        check_projects(q=q, w=c)
        check_projects(k=k, u=d)
        check_projects(w=c, a=read_q[..., None])
        check_projects(u=d, b=read_k[..., None])
        rows, columns = q @ c @ read_q[..., None], (k @ d @ read_k[..., None]).mT
        broadcast_batch(2, q=rows, k=columns)
        return cast(xp, _leaky(xp, rows + columns, slope), dtype)

    return score


def _sums(xp: Any, q: Array, k: Array, w: Array, u: Array) -> Array:
    """Return ``W q + U k`` for every pair of a query and a key: ``(..., n, m, h)``."""
    check_projects(q=q, w=w)
    check_projects(k=k, u=u)
    check_equal("columns", -1, w=w, u=u)
    broadcast_batch(2, q=q, k=k, w=w, u=u)
    return (q @ w)[..., :, None, :] + (k @ u)[..., None, :, :]


def _read_out(name: str, v: Array, hidden: Array) -> Array:
    """Return ``v . hidden`` for ``v (..., h)`` and ``hidden (..., n, m, h)``."""
    check_axes("h", **{name: v})
    v = v[..., None, :, None]
    check_projects(hidden=hidden, **{name: v})
    return (hidden @ v)[..., 0]


def _leaky(xp: Any, z: Array, slope: float) -> Array:
    return xp.where(z > 0, z, slope * z)
