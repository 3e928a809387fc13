"""Who stands where, and the rule that nobody reads what comes later."""

from array_api_compat import device, is_array_api_obj

from softlookup._arrays import Array, integers, library
from softlookup._checks import check_axes, integer, integer_pairs

__all__ = ["causal", "positions", "strictly_causal"]


def positions(q: Array, k: Array, /, *, offset: int | Array | None = None) -> tuple[Array, Array]:
    r"""Number the keys from zero, and the queries from the offset.

    .. math:: p_i = i + \text{offset}, \qquad p_j = j

    Parameters
    ----------
    q : array of shape (..., n, d)
        Queries; only their number and their library are read.
    k : array of shape (..., m, d)
        Keys; likewise.
    offset : int or integer array of shape (...), optional
        The position of the first query. None stands for m - n: the last query stands at the last key, as with a cache.
        Zero puts the first query at the first key. An array gives each sample its own, for caches of several lengths.

    Returns
    -------
    q_positions : integer array of shape (n,), or (..., n) for an array of offsets
        Position of each query.
    k_positions : integer array of shape (m,)
        Position of each key.

    Raises
    ------
    ValueError
        If `q` or `k` has fewer than two axes.
    TypeError
        If `q` or `k` is not an array, if `offset` is neither an integer nor an array of integers, or if two array
        libraries are mixed.

    See Also
    --------
    causal : A mask made from these positions.

    Notes
    -----
    Cost : O(n + m) time and memory.
    Empty row : none; with a negative offset the first queries stand before every key.

    Offsets of shape (B,) give masks of shape (B, n, m). Attention with a head axis wants (B, 1, n, m): insert the axis,
    or give offsets of shape (B, 1).

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.ones((2, 3)), np.ones((5, 3))
    >>> positions(q, k)
    (array([3, 4]), array([0, 1, 2, 3, 4]))
    >>> positions(q, k, offset=np.array([0, 3]))[0]
    array([[0, 1],
           [3, 4]])
    """
    xp = library(q=q, k=k)
    check_axes("n d", q=q)
    check_axes("m d", k=k)
    q_positions, k_positions = (xp.arange(x.shape[-2], device=device(x)) for x in (q, k))
    if offset is None:
        offset = k.shape[-2] - q.shape[-2]
    if is_array_api_obj(offset):
        _, (offset, q_positions) = integers(offset=offset, q_positions=q_positions)
        return offset[..., None] + q_positions, k_positions
    return integer("offset", offset) + q_positions, k_positions


def causal(q_positions: Array, k_positions: Array, /) -> Array:
    r"""Let each query read the keys up to its own position.

    .. math:: \text{allowed}_{ij} = (p_j \le p_i)

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.

    Returns
    -------
    boolean array of shape (..., n, m)
        True where the query may read the key.

    Raises
    ------
    ValueError
        If an array has no axis, or if the leading axes do not broadcast.
    TypeError
        If an argument is not an array of signed integers, or if two array libraries are mixed.

    See Also
    --------
    positions : Makes the arguments.
    strictly_causal : Leaves out the query's own position.

    Notes
    -----
    Slot : mask
    Changes : hides what comes later.
    Cost : O(n m) time and memory; a schedule that skips what is hidden saves half of a square.
    Empty row : a query that stands before every key reads nothing.
    Promises : prefix stable
    Equals : ``sliding_window`` without a limit on the left and none to the right; ``block_causal`` in blocks of one.
    Year : 2017
    Source : Vaswani et al., 2017, Attention Is All You Need, section 3.2.3, arXiv 1706.03762.
    Other names : autoregressive mask, look-ahead mask, subsequent mask, triangular mask, decoder mask, is_causal

    Positions may be negative, in any order and with gaps. Keys at the same position as the query are read.

    References
    ----------
    A. Vaswani et al., Attention Is All You Need, NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> causal(np.array([1, 2]), np.array([0, 1, 2])).astype(int)
    array([[1, 1, 0],
           [1, 1, 1]])
    """
    query, key = integer_pairs(q_positions=q_positions, k_positions=k_positions)
    return key <= query


def strictly_causal(q_positions: Array, k_positions: Array, /) -> Array:
    r"""Let each query read the keys before its own position.

    .. math:: \text{allowed}_{ij} = (p_j < p_i)

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.

    Returns
    -------
    boolean array of shape (..., n, m)
        True where the query may read the key.

    Raises
    ------
    ValueError
        Where `causal` raises it.
    TypeError
        Where `causal` raises it.

    See Also
    --------
    causal : Reads its own position too.

    Notes
    -----
    Slot : mask
    Changes : hides what comes later and the query's own key.
    Cost : O(n m) time and memory.
    Empty row : the query at the first position reads nothing.
    Promises : prefix stable
    Equals : ``causal`` of query positions that are lower by one.
    Year : 2020
    Source : Kitaev et al., 2020, Reformer, section 2, arXiv 2001.04451, where a token may not read itself unless there
        is nothing else.
    Other names : exclusive causal mask, causal mask without the diagonal, no self-attention to oneself

    References
    ----------
    N. Kitaev, L. Kaiser and A. Levskaya, Reformer: The Efficient Transformer, ICLR 2020.

    Examples
    --------
    >>> import numpy as np
    >>> strictly_causal(np.array([0, 1]), np.array([0, 1])).astype(int)
    array([[0, 0],
           [1, 0]])
    """
    query, key = integer_pairs(q_positions=q_positions, k_positions=k_positions)
    return key < query
