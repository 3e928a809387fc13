"""Reading only what is near: windows, windows with holes, chunks, and a window with the first keys kept."""

from array_api_compat import array_namespace

from softlookup._arrays import Array
from softlookup._checks import integer_pairs, natural, positive_integer
from softlookup.masks.causal import causal

__all__ = ["chunked", "dilated_window", "sink_window", "sliding_window"]


def sliding_window(q_positions: Array, k_positions: Array, /, *, left: int | None, right: int | None) -> Array:
    r"""Let each query read the keys within a distance on either side.

    .. math:: \text{allowed}_{ij} = (-\text{left} \le p_j - p_i \le \text{right})

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    left : int or None
        How many positions before its own the query may read. The own position is not counted, so that a causal window
        of w keys has left = w - 1 and right = 0. None sets no limit.
    right : int or None
        The same for the positions after its own.

    Returns
    -------
    boolean array of shape (..., n, m)
        True where the query may read the key.

    Raises
    ------
    ValueError
        If `left` or `right` is negative, and where `causal` raises it.
    TypeError
        If `left` or `right` is neither an integer nor None, and where `causal` raises it.

    See Also
    --------
    dilated_window : Leaves gaps.
    sink_window : Keeps the first keys too.

    Notes
    -----
    Slot : mask
    Changes : hides what is far.
    Cost : O(n m) time and memory; a schedule that visits only the window needs O(n (left + 1 + right)) scores.
    Empty row : a query with no key in reach reads nothing.
    Promises : none
    Equals : ``causal`` when left is None and right is zero; everything when both are None.
    Year : 2015
    Source : Luong, Pham and Manning, 2015, Effective Approaches to Attention-based Neural Machine Translation,
        section 3.2, arXiv 1508.04025; in a decoder, Beltagy, Peters and Cohan, 2020, Longformer, section 3.1, arXiv
        2004.05150.
    Other names : local attention, sliding window attention, SWA, banded attention, local_window_size, window_size

    With right = 0 it is prefix stable. Positions must not lie farther apart than the largest integer of their type.

    References
    ----------
    M.-T. Luong, H. Pham and C. D. Manning, EMNLP 2015; I. Beltagy, M. E. Peters and A. Cohan, Longformer: The
    Long-Document Transformer, 2020.

    Examples
    --------
    >>> import numpy as np
    >>> p = np.arange(4)
    >>> sliding_window(p, p, left=1, right=0).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]])
    """
    query, key = integer_pairs(q_positions=q_positions, k_positions=k_positions)
    distance = key - query
    xp = array_namespace(distance)
    allowed = xp.ones_like(distance, dtype=xp.bool)
    if left is not None:
        allowed = allowed & (distance >= -natural("left", left, "; None sets no limit"))
    if right is not None:
        allowed = allowed & (distance <= natural("right", right, "; None sets no limit"))
    return allowed


def dilated_window(
    q_positions: Array, k_positions: Array, /, *, left: int | None, right: int | None, dilation: int
) -> Array:
    r"""Let each query read every so many keys within a distance.

    .. math:: \text{allowed}_{ij} = (-\text{left} \le p_j - p_i \le \text{right}) \wedge
              (\text{dilation} \mid p_j - p_i)

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    left : int or None
        How far before its own position the query may read, in positions, not in steps. None sets no limit.
    right : int or None
        The same after its own position.
    dilation : int
        The distance between two keys that are read.

    Returns
    -------
    boolean array of shape (..., n, m)
        True where the query may read the key.

    Raises
    ------
    ValueError
        If `dilation` is not positive, and where `sliding_window` raises it.
    TypeError
        If `dilation` is not an integer, and where `sliding_window` raises it.

    See Also
    --------
    sliding_window : Without gaps.

    Notes
    -----
    Slot : mask
    Changes : reaches farther with the same number of keys, and skips those between.
    Cost : O(n m) time and memory; a schedule that visits only what is read needs O(n (left + right) / dilation) scores.
    Empty row : a query with no key in reach reads nothing.
    Promises : none
    Equals : ``sliding_window`` when the dilation is one; several windows side by side, one for each remainder, when the
        positions are sorted by their remainder.
    Year : 2020
    Source : Beltagy, Peters and Cohan, 2020, Longformer, section 3.1, arXiv 2004.05150.
    Other names : dilated sliding window, strided window, atrous attention

    With right = 0 it is prefix stable.

    References
    ----------
    I. Beltagy, M. E. Peters and A. Cohan, Longformer: The Long-Document Transformer, 2020.

    Examples
    --------
    >>> import numpy as np
    >>> dilated_window(np.array([4]), np.arange(6), left=4, right=1, dilation=2).astype(int)
    array([[1, 0, 1, 0, 1, 0]])
    """
    query, key = integer_pairs(q_positions=q_positions, k_positions=k_positions)
    step = (key - query) % positive_integer("dilation", dilation) == 0
    return sliding_window(q_positions, k_positions, left=left, right=right) & step


def chunked(q_positions: Array, k_positions: Array, /, *, chunk: int) -> Array:
    r"""Let each query read the keys of its own chunk, up to its own position.

    .. math:: \text{allowed}_{ij} = (p_j \le p_i) \wedge
              (\lfloor p_j / \text{chunk} \rfloor = \lfloor p_i / \text{chunk} \rfloor)

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    chunk : int
        Number of positions in a chunk; the chunks begin at the multiples of it.

    Returns
    -------
    boolean array of shape (..., n, m)
        True where the query may read the key.

    Raises
    ------
    ValueError
        If `chunk` is not positive, and where `causal` raises it.
    TypeError
        If `chunk` is not an integer, and where `causal` raises it.

    See Also
    --------
    sliding_window : Reads the same number of keys everywhere.
    block_causal : Reads all of the own block and of the earlier ones.

    Notes
    -----
    Slot : mask
    Changes : cuts the past into chunks that do not see each other.
    Cost : O(n m) time and memory; a schedule that visits only the chunks needs O(n chunk) scores.
    Empty row : a query whose chunk holds no earlier key reads nothing; with its own key there is none.
    Promises : prefix stable
    Equals : ``causal`` when one chunk holds all positions; ``causal`` of documents as long as a chunk.
    Year : 2019
    Source : Qiu et al., 2019, Blockwise Self-Attention for Long Document Understanding, abstract, arXiv 1911.02972,
        for blocks that read themselves alone.
    Other names : chunked attention, local blocks, block-diagonal causal mask, attention_chunk_size

    The first position of a chunk reads itself alone.

    References
    ----------
    J. Qiu et al., Blockwise Self-Attention for Long Document Understanding, Findings of EMNLP 2020.

    Examples
    --------
    >>> import numpy as np
    >>> p = np.arange(4)
    >>> chunked(p, p, chunk=2).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 0],
           [0, 0, 1, 1]])
    """
    chunk = positive_integer("chunk", chunk)
    query, key = integer_pairs(q_positions=q_positions, k_positions=k_positions)
    return causal(q_positions, k_positions) & (key // chunk == query // chunk)


def sink_window(q_positions: Array, k_positions: Array, /, *, sinks: int, left: int) -> Array:
    r"""Let each query read the first keys of all, and those within a distance before it.

    .. math:: \text{allowed}_{ij} = (p_j \le p_i) \wedge (0 \le p_j < \text{sinks} \ \vee\ p_i - p_j \le \text{left})

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    sinks : int
        How many positions, counted from zero, stay readable.
    left : int
        How many positions before its own the query may read, its own not counted.

    Returns
    -------
    boolean array of shape (..., n, m)
        True where the query may read the key.

    Raises
    ------
    ValueError
        If `sinks` or `left` is negative, and where `causal` raises it.
    TypeError
        If `sinks` or `left` is not an integer, and where `causal` raises it.

    See Also
    --------
    sliding_window : Without the first keys.

    Notes
    -----
    Slot : mask
    Changes : a causal window that never loses the first keys.
    Cost : O(n m) time and memory; a schedule that visits only what is read needs O(n (sinks + left + 1)) scores.
    Empty row : a query that stands before every key reads nothing.
    Promises : prefix stable
    Equals : ``sliding_window`` with nothing to the right when there are no sinks; ``causal`` when sinks and window
        cover the past.
    Year : 2023
    Source : Xiao et al., 2023, Efficient Streaming Language Models with Attention Sinks, section 3.2, arXiv 2309.17453.
    Other names : StreamingLLM mask, attention sinks, start tokens, Lambda-shaped mask

    The keys keep their positions. The published method numbers the keys that are left anew, which changes a model with
    positions and not this mask.

    References
    ----------
    G. Xiao et al., Efficient Streaming Language Models with Attention Sinks, ICLR 2024.

    Examples
    --------
    >>> import numpy as np
    >>> p = np.arange(5)
    >>> sink_window(p, p, sinks=1, left=1).astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0],
           [1, 0, 1, 1, 0],
           [1, 0, 0, 1, 1]])
    """
    query, key = integer_pairs(q_positions=q_positions, k_positions=k_positions)
    first = (key >= 0) & (key < natural("sinks", sinks))
    near = query - key <= natural("left", left)
    return causal(q_positions, k_positions) & (first | near)
