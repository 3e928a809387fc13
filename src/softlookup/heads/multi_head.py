"""Several lookups side by side, each with its own projections."""

from collections.abc import Callable
from typing import Any

from softlookup._arrays import Array, cast, promote
from softlookup._checks import check_axes, check_callable, check_equal, check_projects, positive_integer
from softlookup.lookup.attention import attention

__all__ = ["merge_heads", "multi_head_attention", "split_heads", "sum_over_heads"]


def multi_head_attention(
    x: Array,
    context: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    /,
    *,
    attend: Callable[[Array, Array, Array], Array] = attention,
) -> Array:
    r"""Project, look up once in each head, lay the outputs side by side, and project again.

    .. math:: o^h = \operatorname{attend}(x W_Q^h, \ c\, W_K^h, \ c\, W_V^h), \qquad
              \operatorname{out} = [\, o^0 \; o^1 \cdots o^{H-1} \,] \, W_O

    Parameters
    ----------
    x : array of shape (..., n, D)
        What reads.
    context : array of shape (..., m, C)
        What is read. In self-attention it is `x`; in cross-attention another sequence, perhaps of another width.
    w_q : array of shape (..., H, D, d)
        Projections of the queries, one for each head.
    w_k : array of shape (..., H_kv, C, d)
        Projections of the keys. There may be fewer heads than queries have, if `attend` shares them, as `attention`
        does.
    w_v : array of shape (..., H_kv, C, e)
        Projections of the values.
    w_o : array of shape (..., H, e, E)
        The output projection, cut into the rows for each head; below one another they are :math:`W_O`.
    attend : callable
        The lookup: ``attend(q, k, v) -> out``, with ``q (..., H, n, d)`` and ``out (..., H, n, e)``. A function that
        calls `attention` with a mask, a bias, a score, a normalizer or turned queries and keys.

    Returns
    -------
    array of shape (..., n, E)
        One row for each row of `x`.

    Raises
    ------
    ValueError
        If an axis is missing, if a projection does not fit what it multiplies, if `w_o` does not fit what `attend`
        returned, if leading axes do not broadcast, and where `attend` raises it.
    TypeError
        If an argument is not an array of numbers, if two array libraries are mixed, or if `attend` cannot be called.

    See Also
    --------
    sum_over_heads : The same without laying side by side.
    split_heads : From one wide projection to heads.

    Notes
    -----
    Slot : around all five: where queries, keys and values come from, and where the blends go
    Changes : one budget for each head of a query instead of one for the query, and linear maps before and after.
    Cost : O(n D H d + m C H_kv (d + e) + n E H e) for the projections and O(H n m (d + e)) for the lookups, so no more
        with many narrow heads than with a few wide ones; O(H n m) memory.
    Empty row : a head in which a query may read nothing adds nothing to the output.
    Promises : none
    Equals : ``sum_over_heads``; ``attention`` for one head and projections that are the identity.
    Year : 2017
    Source : Vaswani et al., 2017, Attention Is All You Need, section 3.2.2, arXiv 1706.03762.
    Other names : multi-head attention, MHA, multi-head self-attention, MSA, MHSA, multihead attention,
        cross-attention, encoder-decoder attention, MultiheadAttention

    A projection with a bias is one with a row more, for an `x` with a column of ones more. A row of `context` that
    no query may read can hold NaN or infinity without effect on the output.

    References
    ----------
    A. Vaswani et al., Attention Is All You Need, NeurIPS 2017.

    Examples
    --------
    Two heads; one passes on the first column, the other the second.

    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> pick = np.array([[[1.0], [0.0]], [[0.0], [1.0]]])
    >>> nothing = np.zeros((2, 2, 1))
    >>> multi_head_attention(x, x, nothing, nothing, pick, np.swapaxes(pick, -1, -2))
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    xp, dtype, out, w_o = _attend(x, context, w_q, w_k, w_v, w_o, attend)
    rows = xp.reshape(w_o, (*w_o.shape[:-3], w_o.shape[-3] * w_o.shape[-2], w_o.shape[-1]))
    return cast(xp, merge_heads(out) @ rows, dtype)


def sum_over_heads(
    x: Array,
    context: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    /,
    *,
    attend: Callable[[Array, Array, Array], Array] = attention,
) -> Array:
    r"""Add up what the heads found, each through its own output projection.

    .. math:: \operatorname{out} = \sum_h \operatorname{attend}(x W_Q^h, \ c\, W_K^h, \ c\, W_V^h) \, W_O^h

    Parameters
    ----------
    x : array of shape (..., n, D)
        What reads.
    context : array of shape (..., m, C)
        What is read.
    w_q : array of shape (..., H, D, d)
        Projections of the queries.
    w_k : array of shape (..., H_kv, C, d)
        Projections of the keys.
    w_v : array of shape (..., H_kv, C, e)
        Projections of the values.
    w_o : array of shape (..., H, e, E)
        Output projections, one for each head.
    attend : callable
        The lookup: ``attend(q, k, v) -> out``.

    Returns
    -------
    array of shape (..., n, E)
        One row for each row of `x`.

    Raises
    ------
    ValueError
        Where `multi_head_attention` raises it.
    TypeError
        Where `multi_head_attention` raises it.

    See Also
    --------
    multi_head_attention : Describes the arguments.

    Notes
    -----
    Cost : as `multi_head_attention`, and O(H n E) memory for the terms of the sum.
    Empty row : as `multi_head_attention`.

    Examples
    --------
    >>> import numpy as np
    >>> x, one = np.array([[2.0], [4.0]]), np.ones((3, 1, 1))
    >>> sum_over_heads(x, x, 0 * one, one, one, np.array([[[1.0]], [[10.0]], [[100.0]]]))
    array([[333.],
           [333.]])
    """
    xp, dtype, out, w_o = _attend(x, context, w_q, w_k, w_v, w_o, attend)
    return cast(xp, xp.sum(out @ w_o, axis=-3), dtype)


def split_heads(x: Array, /, *, heads: int) -> Array:
    r"""Cut each row into equal pieces, one for each head, and move the heads before the positions.

    .. math:: y_{hic} = x_{i, \, h d + c} \qquad (0 \le c < d)

    Parameters
    ----------
    x : array of shape (..., n, H * d)
        Rows; the numbers of one head stand next to one another.
    heads : int
        The number of heads H, which must divide the width.

    Returns
    -------
    array of shape (..., H, n, d)
        One matrix for each head.

    Raises
    ------
    ValueError
        If an axis is missing, or if `heads` is not positive or does not divide the width.
    TypeError
        If `x` is not an array of numbers, or if `heads` is not an integer.

    See Also
    --------
    merge_heads : The way back.

    Notes
    -----
    Cost : no arithmetic; at most one copy.
    Empty row : none; nothing is read.

    Examples
    --------
    >>> import numpy as np
    >>> split_heads(np.array([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]), heads=2)
    array([[[0., 1.],
            [4., 5.]],
    <BLANKLINE>
           [[2., 3.],
            [6., 7.]]])
    """
    heads = positive_integer("heads", heads)
    xp, dtype, (x,) = promote(x=x)
    check_axes("n d", x=x)
    width = x.shape[-1]
    if width % heads:
        raise ValueError(f"heads is {heads}, which does not divide the width {width} of x")
    pieces = xp.reshape(x, (*x.shape[:-1], heads, width // heads))
    return cast(xp, xp.moveaxis(pieces, -2, -3), dtype)


def merge_heads(x: Array, /) -> Array:
    r"""Lay the outputs of the heads side by side: the first positions of all heads become the first row.

    .. math:: y_{i, \, h d + c} = x_{hic}

    Parameters
    ----------
    x : array of shape (..., H, n, d)
        One matrix for each head.

    Returns
    -------
    array of shape (..., n, H * d)
        One row for each position, with the heads in their order.

    Raises
    ------
    ValueError
        If an axis is missing.
    TypeError
        If `x` is not an array of numbers.

    See Also
    --------
    split_heads : The way back.

    Notes
    -----
    Cost : no arithmetic; one copy.
    Empty row : none; nothing is read.

    Examples
    --------
    >>> import numpy as np
    >>> merge_heads(np.array([[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [6.0, 7.0]]]))
    array([[0., 1., 4., 5.],
           [2., 3., 6., 7.]])
    """
    xp, dtype, (x,) = promote(x=x)
    check_axes("H n d", x=x)
    rows = xp.moveaxis(x, -3, -2)
    return cast(xp, xp.reshape(rows, (*rows.shape[:-2], rows.shape[-2] * rows.shape[-1])), dtype)


def _attend(
    x: Array, context: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array, attend: Callable
) -> tuple[Any, Any, Array, Array]:
    """Return the library, the dtype of the result, what the heads found, and the output projection to go with it."""
    check_callable("a function attend(q, k, v)", attend=attend)
    xp, dtype, arrays = promote(x=x, context=context, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o)
    x, context, w_q, w_k, w_v, w_o = arrays
    check_axes("H e E", w_o=w_o)
    found = attend(_project(x=x, w_q=w_q), _project(context=context, w_k=w_k), _project(context=context, w_v=w_v))
    _, _, (found, w_o) = promote(**{"the result of attend": found, "w_o": w_o})
    check_axes("H n e", **{"the result of attend": found})
    check_equal("heads", -3, **{"the result of attend": found, "w_o": w_o})
    check_projects(**{"the result of attend": found, "w_o": w_o})
    return xp, dtype, found, w_o


def _project(**arrays: Array) -> Array:
    """Return the rows ``(..., n, D)`` times the matrices ``(..., H, D, d)`` of all heads: ``(..., H, n, d)``."""
    (a, x), (b, w) = arrays.items()
    check_axes("n D", **{a: x})
    check_axes("H D d", **{b: w})
    check_projects(**{a: x[..., None, :, :], b: w})
    return x[..., None, :, :] @ w
