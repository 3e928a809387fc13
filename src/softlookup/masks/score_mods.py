"""Masks and scores from functions of indices, and which blocks of a mask hold any work."""

from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace

from softlookup._arrays import Array, Score, cast, promote
from softlookup._checks import check_axes, check_broadcast, check_callable, pair_shape, positive_integer
from softlookup.lookup import scaled_dot

__all__ = ["and_masks", "block_summary", "evaluate_mask", "modified_score", "or_masks"]

MaskMod = Callable[[Array, Array, Array, Array], Array]
"""``mask_mod(b, h, i, j) -> bool``: may query i read key j, in batch item b and head h?"""

ScoreMod = Callable[[Array, Array, Array, Array, Array], Array]
"""``score_mod(s, b, h, i, j) -> s``: the score of query i and key j, in batch item b and head h."""


def evaluate_mask(mask_mod: MaskMod, q: Array, k: Array, /) -> Array:
    r"""Ask a predicate of indices for every pair of a query and a key.

    .. math:: \text{mask}_{bhij} = \operatorname{mask\_mod}(b, h, i, j)

    Parameters
    ----------
    mask_mod : callable
        The predicate ``mask_mod(b, h, i, j)``. It is called once, with integer arrays that broadcast to (B, H, n, m),
        and returns booleans; True = may read.
    q : array of shape (B, H, n, d)
        Queries, of which only the shape is read. Without the axis B, or without B and H, their index is zero.
    k : array of shape (B, H_kv, m, d)
        Keys, of which only the shape is read.

    Returns
    -------
    boolean array of shape (B, H, n, m)
        The mask; with as many axes as `q`.

    Raises
    ------
    ValueError
        If `q` or `k` has fewer than two axes or more than four, if they do not agree in d, or if the answer of
        `mask_mod` does not broadcast to the shape of the mask.
    TypeError
        If `q` or `k` is not an array of numbers, or if `mask_mod` does not answer with booleans.

    See Also
    --------
    and_masks, or_masks : Join predicates before they are asked.
    block_summary : Which blocks of the mask need work.

    Notes
    -----
    Slot : mask
    Changes : who may read whom, by any rule of the indices.
    Cost : O(B H n m) time and memory.
    Empty row : a query for which the predicate is never true may read nothing.
    Promises : none
    Equals : any other mask whose rule is written as a predicate, such as ``causal`` for ``j <= i``.
    Year : 2024
    Source : Dong et al., 2024, Flex Attention: A Programming Model for Generating Optimized Attention Kernels,
        arXiv 2412.05496, section 3.1.
    Other names : mask_mod, FlexAttention mask, create_mask

    Indices count from zero on both sides: where queries continue a cache, the predicate adds the offset. The head is
    that of the query.

    References
    ----------
    J. Dong et al., Flex Attention: A Programming Model for Generating Optimized Attention Kernels, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.zeros((3, 2))
    >>> evaluate_mask(lambda b, h, i, j: j <= i, x, x).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """
    xp, _, (q, k) = promote(q=q, k=k)
    shape = pair_shape(q, k[..., :1, :, :] if k.ndim > 2 else k)
    answer = mask_mod(*_indices(xp, shape))
    if not xp.isdtype(answer.dtype, "bool"):
        raise TypeError(f"mask_mod must answer with booleans (True = may read), not {answer.dtype}")
    return _fit(xp, "the answer of mask_mod", answer, shape)


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    r"""Join predicates: a pair is allowed if all of them allow it.

    Parameters
    ----------
    *mask_mods : callable
        Predicates ``mask_mod(b, h, i, j)``, at least one.

    Returns
    -------
    callable
        The joined predicate.

    Raises
    ------
    ValueError
        If no predicate is given.

    See Also
    --------
    or_masks : If any of them allows it.

    Notes
    -----
    Cost : that of the predicates.

    The masks themselves, once evaluated, are joined by ``&``.

    Examples
    --------
    >>> import numpy as np
    >>> near = and_masks(lambda b, h, i, j: j <= i, lambda b, h, i, j: i - j < 2)
    >>> evaluate_mask(near, np.zeros((3, 2)), np.zeros((3, 2))).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """
    return _joined("and_masks", mask_mods, lambda one, other: one & other)


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    r"""Join predicates: a pair is allowed if any of them allows it.

    Parameters
    ----------
    *mask_mods : callable
        Predicates ``mask_mod(b, h, i, j)``, at least one.

    Returns
    -------
    callable
        The joined predicate.

    Raises
    ------
    ValueError
        If no predicate is given.

    See Also
    --------
    and_masks : If all of them allow it.

    Notes
    -----
    Cost : that of the predicates.

    The masks themselves, once evaluated, are joined by ``|``.

    Examples
    --------
    >>> import numpy as np
    >>> with_first = or_masks(lambda b, h, i, j: i == j, lambda b, h, i, j: j == 0)
    >>> evaluate_mask(with_first, np.zeros((3, 2)), np.zeros((3, 2))).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 0, 1]])
    """
    return _joined("or_masks", mask_mods, lambda one, other: one | other)


def modified_score(score_mod: ScoreMod, /, *, score: Score = scaled_dot()) -> Score:
    r"""Build a score that is changed by a function of its value and of the indices.

    .. math:: s_{bhij} = \operatorname{score\_mod}\bigl(\operatorname{score}(q_{bhi}, k_{bhj}), b, h, i, j\bigr)

    Parameters
    ----------
    score_mod : callable
        The function ``score_mod(s, b, h, i, j)``. It is called once, with all scores and with integer arrays that
        broadcast to their shape.
    score : callable
        The score ``score(q, k) -> s`` to change, with its own scale.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`; queries and keys have at most four axes.

    Raises
    ------
    ValueError
        The score raises it if `q` or `k` has fewer than two axes or more than four, if they do not agree in d, or if
        the result does not broadcast to the scores.
    TypeError
        If `score_mod` or `score` cannot be called.

    See Also
    --------
    evaluate_mask : The same with a predicate.

    Notes
    -----
    Slot : score
    Changes : any score by any function of its value and place.
    Cost : that of the score, and O(B H n m) time and memory.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : the score and a bias when the function adds numbers that depend on the indices alone; ``capped`` when it
        is a soft cap.
    Year : 2024
    Source : Dong et al., 2024, Flex Attention: A Programming Model for Generating Optimized Attention Kernels,
        arXiv 2412.05496, section 3.1.
    Other names : score_mod, FlexAttention, Flex Attention

    The scale comes before the function and the mask after it. Automatic differentiation gives the gradient; there is
    no attribute ``vjp``.

    References
    ----------
    J. Dong et al., Flex Attention: A Programming Model for Generating Optimized Attention Kernels, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[0.0], [1.0], [2.0]])
    >>> by_distance = modified_score(lambda s, b, h, i, j: s - 10 * (i - j))
    >>> by_distance(x, x)
    array([[  0.,  10.,  20.],
           [-10.,   1.,  12.],
           [-20.,  -8.,   4.]])
    """
    check_callable("a function", score_mod=score_mod, score=score)

    def modified(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k) = promote(q=q, k=k)
        s = score(q, k)
        changed = score_mod(s, *_indices(xp, s.shape))
        return cast(xp, _fit(xp, "the result of score_mod", changed, s.shape), dtype)

    return modified


def block_summary(mask: Array, /, *, rows: int, columns: int) -> Array:
    r"""Say of each block of a mask whether it is empty, partial or full.

    .. math:: B_{ac} = \begin{cases} 0 & \text{no pair of the block is allowed} \\
              2 & \text{every pair is} \\ 1 & \text{otherwise} \end{cases}

    Parameters
    ----------
    mask : boolean array of shape (..., n, m)
        True where the query may read the key.
    rows : int
        Number of queries in a block.
    columns : int
        Number of keys in a block.

    Returns
    -------
    integer array of shape (..., ceil(n / rows), ceil(m / columns))
        0 for an empty block, 1 for a partial one, 2 for a full one. The last block may be smaller; only its pairs
        count.

    Raises
    ------
    ValueError
        If `mask` has fewer than two axes, or if `rows` or `columns` is not positive.
    TypeError
        If `mask` is not boolean, or if `rows` or `columns` is not an integer.

    See Also
    --------
    evaluate_mask : A mask from a predicate.

    Notes
    -----
    Cost : O(n m) time.
    Empty row : its blocks may still be partial because of other rows.

    A kernel skips empty blocks, does not look at the mask in full ones, and asks the predicate in partial ones.

    References
    ----------
    J. Dong et al., Flex Attention: A Programming Model for Generating Optimized Attention Kernels, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> block_summary(np.tri(6, dtype=bool), rows=2, columns=2)
    array([[1, 0, 0],
           [2, 1, 0],
           [2, 2, 1]])
    """
    rows, columns = positive_integer("rows", rows), positive_integer("columns", columns)
    xp = array_namespace(mask)
    if not xp.isdtype(mask.dtype, "bool"):
        raise TypeError(f"mask must be boolean (True = may read), not {mask.dtype}")
    check_axes("n m", mask=mask)
    whole = xp.arange(0).dtype
    allowed = _block_sums(xp, _block_sums(xp, cast(xp, mask, whole), columns).mT, rows).mT
    n, m = mask.shape[-2:]
    heights = _block_sums(xp, xp.ones(n, dtype=whole), rows)
    widths = _block_sums(xp, xp.ones(m, dtype=whole), columns)
    full = allowed == heights[:, None] * widths
    return cast(xp, allowed > 0, whole) + cast(xp, full, whole)


def _indices(xp: Any, shape: tuple[int, ...]) -> list[Array]:
    """Return integer arrays b, h, i, j that broadcast to `shape`; an axis that is missing has the index zero."""
    if len(shape) > 4:
        raise ValueError(f"q and k make pairs of shape {tuple(shape)}; there may be at most the axes (B, H, n, m)")
    sizes = (1,) * (4 - len(shape)) + shape
    places = [xp.reshape(xp.arange(size), (size, *(1,) * (3 - axis))) for axis, size in enumerate(sizes)]
    return [xp.reshape(a, a.shape[-len(shape) :]) for a in places]


def _fit(xp: Any, name: str, x: Array, shape: tuple[int, ...]) -> Array:
    check_broadcast(name, x, shape)
    return xp.broadcast_to(x, shape)


def _joined(name: str, mask_mods: tuple[MaskMod, ...], join: Callable[[Array, Array], Array]) -> MaskMod:
    if not mask_mods:
        raise ValueError(f"{name} has no predicate; it needs at least one")

    def mask_mod(b: Array, h: Array, i: Array, j: Array) -> Array:
        answer = mask_mods[0](b, h, i, j)
        for other in mask_mods[1:]:
            answer = join(answer, other(b, h, i, j))
        return answer

    return mask_mod


def _block_sums(xp: Any, x: Array, size: int) -> Array:
    """Sum the last axis in blocks of `size`; the last block may be shorter."""
    missing = -x.shape[-1] % size
    x = xp.concat([x, xp.zeros((*x.shape[:-1], missing), dtype=x.dtype)], axis=-1)
    return xp.sum(xp.reshape(x, (*x.shape[:-1], x.shape[-1] // size, size)), axis=-1)
