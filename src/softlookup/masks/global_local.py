"""A window for everybody, and a few items that read all and are read by all."""

from array_api_compat import array_namespace, is_array_api_obj

from softlookup._arrays import Array, library
from softlookup._checks import broadcast_batch, check_axes
from softlookup.masks.window import sliding_window

__all__ = ["global_local", "global_tokens"]


def global_tokens(q_global: Array, k_global: Array, /) -> Array:
    r"""Let global queries read every key, and every query read global keys.

    .. math:: \text{allowed}_{ij} = \text{q\_global}_i \lor \text{k\_global}_j

    Parameters
    ----------
    q_global : boolean array of shape (..., n)
        True for a query that reads all keys.
    k_global : boolean array of shape (..., m)
        True for a key that all queries read.

    Returns
    -------
    boolean array of shape (..., n, m)
        True where the query may read the key.

    Raises
    ------
    ValueError
        If an axis is missing, or if the leading axes do not broadcast.
    TypeError
        If an argument is not a boolean array, or if two array libraries are mixed.

    See Also
    --------
    global_local : Together with a window.

    Notes
    -----
    Slot : mask
    Changes : opens whole rows and whole columns of the table.
    Cost : O(n m) time and memory; with g global items a schedule needs O(g (n + m)) scores.
    Empty row : a query that is not global, where no key is, may read nothing.
    Promises : none
    Equals : everything when all queries or all keys are global; nothing when none is.
    Year : 2020
    Source : Beltagy, Peters and Cohan, 2020, Longformer: The Long-Document Transformer, section 3.1, arXiv 2004.05150;
        Ainslie et al., 2020, ETC: Encoding Long and Structured Inputs in Transformers, arXiv 2004.08483.
    Other names : global attention, global tokens, ETC, global-local attention of ETC

    In self-attention the two arrays are the same, and the mask is symmetric. With no global query it is one way: the
    global keys are read and read no more than others do.

    References
    ----------
    I. Beltagy, M. E. Peters and A. Cohan, Longformer: The Long-Document Transformer, 2020.

    Examples
    --------
    >>> import numpy as np
    >>> first = np.array([True, False, False])
    >>> global_tokens(first, first).astype(int)
    array([[1, 1, 1],
           [1, 0, 0],
           [1, 0, 0]])
    """
    for name, flags in (("q_global", q_global), ("k_global", k_global)):
        if not is_array_api_obj(flags) or not array_namespace(flags).isdtype(flags.dtype, "bool"):
            raise TypeError(f"{name} must be a boolean array (True = global)")
    library(q_global=q_global, k_global=k_global)
    check_axes("n", q_global=q_global)
    check_axes("m", k_global=k_global)
    broadcast_batch(1, q_global=q_global, k_global=k_global)
    return q_global[..., :, None] | k_global[..., None, :]


def global_local(
    q_positions: Array,
    k_positions: Array,
    q_global: Array,
    k_global: Array,
    /,
    *,
    left: int | None,
    right: int | None,
) -> Array:
    r"""Let each query read what is near, and let global items read all and be read by all.

    .. math:: \text{allowed}_{ij} = (-\text{left} \le p_j - p_i \le \text{right}) \lor \text{q\_global}_i \lor
              \text{k\_global}_j

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    q_global : boolean array of shape (..., n)
        True for a query that reads all keys.
    k_global : boolean array of shape (..., m)
        True for a key that all queries read.
    left : int or None
        How many positions before its own a query may read, its own not counted; None sets no limit.
    right : int or None
        The same for the positions after its own.

    Returns
    -------
    boolean array of shape (..., n, m)
        True where the query may read the key.

    Raises
    ------
    ValueError
        Where `sliding_window` or `global_tokens` raises it.
    TypeError
        Where `sliding_window` or `global_tokens` raises it.

    See Also
    --------
    sliding_window, global_tokens : Its two parts.

    Notes
    -----
    Slot : mask
    Changes : hides what is far, except from and for a few items.
    Cost : O(n m) time and memory; a schedule that visits only allowed pairs needs O(n (left + 1 + right) + g (n + m))
        scores with g global items.
    Empty row : a query with no key in reach, where no key is global, reads nothing.
    Promises : none
    Equals : ``sliding_window`` when nothing is global; ``global_tokens`` joined to the diagonal when left and right are
        zero; everything when all keys are global.
    Year : 2020
    Source : Beltagy, Peters and Cohan, 2020, Longformer: The Long-Document Transformer, section 3.1, arXiv 2004.05150.
    Other names : Longformer mask, global + sliding window attention

    In two layers every item reaches every other one, by way of a global item. The published model has projections of
    its own for global items; the mask alone is that model only where the two sets of projections are the same.

    References
    ----------
    I. Beltagy, M. E. Peters and A. Cohan, Longformer: The Long-Document Transformer, 2020.

    Examples
    --------
    >>> import numpy as np
    >>> p, first = np.arange(5), np.arange(5) == 0
    >>> global_local(p, p, first, first, left=1, right=1).astype(int)
    array([[1, 1, 1, 1, 1],
           [1, 1, 1, 0, 0],
           [1, 1, 1, 1, 0],
           [1, 0, 1, 1, 1],
           [1, 0, 0, 1, 1]])
    """
    near = sliding_window(q_positions, k_positions, left=left, right=right)
    return near | global_tokens(q_global, k_global)
