"""Absolute positions: a vector for each place, added to the item that stands there."""

from typing import Any

from array_api_compat import array_namespace, device

from softlookup._arrays import Array, cast, integers, library, promote, table_rows
from softlookup._checks import allowed_pairs, check_axes, check_broadcast, check_equal, natural, positive

__all__ = ["learned_positions", "padded_positions", "sinusoidal", "sinusoidal_shift"]

LAYOUTS = ("interleaved", "concatenated")


def sinusoidal(positions: Array, /, *, width: int, layout: str, base: float = 10000.0) -> Array:
    r"""Encode each position by sines and cosines of falling frequencies.

    .. math:: \text{PE}_{p,2r} = \sin(p \, \omega_r), \qquad \text{PE}_{p,2r+1} = \cos(p \, \omega_r), \qquad
              \omega_r = b^{-2r/d}

    Parameters
    ----------
    positions : array of shape (...)
        Positions p: any real numbers, negative ones and fractions too. Integers become the library's default float.
    width : int
        The number d of columns. If it is odd, the last sine has no cosine.
    layout : {"interleaved", "concatenated"}
        Whether sines and cosines alternate, as in the formula, or all sines come first and then all cosines.
    base : float
        The number b.

    Returns
    -------
    array of shape (..., width)
        The encodings.

    Raises
    ------
    ValueError
        If `width` is negative, if `layout` is not one of the two, or if `base` is not positive and finite.
    TypeError
        If `positions` is not an array of numbers, `width` no integer, or `base` no number.

    See Also
    --------
    sinusoidal_shift : The matrix that takes an encoding to that of another position.
    learned_positions : A learned vector for each position.

    Notes
    -----
    Slot : input, before attention
    Changes : adds a vector to each item, so that scores can depend on where query and key stand.
    Cost : O(n d) time and memory for n positions.
    Empty row : none; every position has an encoding.
    Promises : prefix stable
    Equals : the layouts hold the same numbers in another order; ``base=b ** (d / (d - 2))`` gives the frequencies
        b^(-r/(d/2-1)) of other programs.
    Year : 2017
    Source : Vaswani et al., 2017, Attention Is All You Need, section 3.5, arXiv 1706.03762.
    Other names : sinusoidal positional encoding, sinusoidal position embedding, positional encoding, PE, timing signal,
        fixed position embedding, absolute position embedding, APE

    The angle is rounded to the type of the positions, at least float32. At position 10⁶ one unit in the last place of a
    float32 angle is 1/16, so give positions in float64 there, and cast the result.

    References
    ----------
    A. Vaswani et al., Attention Is All You Need, NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> sinusoidal(np.array([0, 1]), width=4, layout="interleaved").round(2)
    array([[0.  , 1.  , 0.  , 1.  ],
           [0.84, 0.54, 0.01, 1.  ]])
    """
    _check_layout(layout)
    xp, dtype, (p,) = promote(positions=positions)
    sin, cos = _waves(xp, p, natural("width", width), base)
    if layout == "concatenated":
        columns = xp.concat([sin, cos[..., : width // 2]], axis=-1)
    else:
        columns = xp.reshape(xp.stack([sin, cos], axis=-1), (*p.shape, 2 * sin.shape[-1]))[..., :width]
    return cast(xp, columns, dtype)


def sinusoidal_shift(delta: Array, /, *, width: int, layout: str, base: float = 10000.0) -> Array:
    r"""Build the matrix that takes the sinusoidal encoding of any position to that of another, a step further.

    .. math:: \text{PE}_{p + \delta} = \text{PE}_p \, M_\delta, \qquad M_\delta \ \text{has the blocks}\
              \begin{pmatrix} \cos \delta\omega_r & -\sin \delta\omega_r \\ \sin \delta\omega_r & \cos \delta\omega_r
              \end{pmatrix}

    Parameters
    ----------
    delta : array of shape (...)
        The step δ, negative for a step back.
    width : int
        The number of columns of the encoding. It must be even.
    layout : {"interleaved", "concatenated"}
        As in `sinusoidal`.
    base : float
        As in `sinusoidal`.

    Returns
    -------
    array of shape (..., width, width)
        A rotation matrix for each step, which multiplies a row from the right.

    Raises
    ------
    ValueError
        If `width` is odd, since the last sine lacks its cosine, and where `sinusoidal` raises it.
    TypeError
        If `delta` is not an array of numbers, `width` no integer, or `base` no number.

    See Also
    --------
    sinusoidal : The encoding that is moved.

    Notes
    -----
    Cost : O(d²) time and memory for each step.
    Empty row : none.

    Examples
    --------
    >>> import numpy as np
    >>> sinusoidal_shift(np.array(1.0), width=2, layout="interleaved").round(3)
    array([[ 0.54 , -0.841],
           [ 0.841,  0.54 ]])
    """
    _check_layout(layout)
    if natural("width", width) % 2:
        raise ValueError(f"width is {width}; it must be even, or the last sine lacks its cosine")
    xp, dtype, (delta,) = promote(delta=delta)
    diagonal = xp.eye(width // 2, dtype=delta.dtype, device=device(delta))
    sin, cos = (x[..., None] * diagonal for x in _waves(xp, delta, width, base))
    if layout == "concatenated":
        rows = [xp.concat(pair, axis=-1) for pair in ([cos, -sin], [sin, cos])]
        matrix = xp.concat(rows, axis=-2)
    else:
        rows = [xp.stack(pair, axis=-1) for pair in ([cos, -sin], [sin, cos])]
        matrix = xp.reshape(xp.stack(rows, axis=-3), (*delta.shape, width, width))
    return cast(xp, matrix, dtype)


def learned_positions(x: Array, table: Array, positions: Array, /) -> Array:
    r"""Add to each item the row of a learned table that belongs to its position.

    .. math:: y_i = x_i + T_{p_i}

    Parameters
    ----------
    x : array of shape (..., n, d)
        Items.
    table : array of shape (r, d)
        One learned row T for each position from 0 to r - 1.
    positions : integer array that broadcasts to (..., n)
        The position of each item. One that the table has no row for, negative or too large, gives NaN.

    Returns
    -------
    array of shape (..., n, d)
        Items with their positions.

    Raises
    ------
    ValueError
        If an axis is missing, if `table` has no row or another number of columns than `x`, or if `positions` does not
        broadcast.
    TypeError
        If `x` or `table` is not an array of numbers, if `positions` does not hold signed integers, or if two array
        libraries are mixed.

    See Also
    --------
    padded_positions : The positions of texts with padding.
    sinusoidal : A fixed vector for every position.

    Notes
    -----
    Slot : input, before attention
    Changes : adds a learned vector to each item; there are only as many positions as rows.
    Cost : O(n d) time and memory, and r d parameters.
    Empty row : none; an item whose position has no row becomes NaN, which a mask may hide.
    Promises : prefix stable
    Equals : ``x + sinusoidal(positions)`` when the table holds these encodings.
    Year : 2017
    Source : Gehring et al., 2017, Convolutional Sequence to Sequence Learning, arXiv 1705.03122, as cited by Vaswani et
        al., 2017, section 3.5.
    Other names : learned positional embedding, learned absolute position embedding, wpe, position embedding table,
        nn.Embedding of positions

    References
    ----------
    J. Gehring et al., Convolutional Sequence to Sequence Learning, ICML 2017.

    Examples
    --------
    >>> import numpy as np
    >>> table = np.array([[10.0], [20.0], [30.0]])
    >>> learned_positions(np.array([[1.0], [2.0]]), table, np.array([2, 0]))
    array([[31.],
           [12.]])
    """
    library(x=x, table=table, positions=positions)
    xp, dtype, (x, table) = promote(x=x, table=table)
    check_axes("n d", x=x)
    check_axes("r d", table=table)
    check_equal("columns", -1, x=x, table=table)
    _, (positions,) = integers(positions=positions)
    check_broadcast("positions", positions, x.shape[:-1])
    return cast(xp, x + table_rows(xp, "table", table, positions), dtype)


def padded_positions(valid: Array, /) -> Array:
    r"""Number the items of each text from zero, wherever its padding stands.

    .. math:: p_i = \sum_{l < i} [\text{item}\ l \ \text{is valid}], \qquad p_i = -1 \ \text{for padding}

    Parameters
    ----------
    valid : boolean array of shape (..., n)
        True for an item, False for padding.

    Returns
    -------
    integer array of shape (..., n)
        The position of each item; -1 for padding, which no table has a row for.

    Raises
    ------
    ValueError
        If `valid` has no axis.
    TypeError
        If `valid` is not a boolean array.

    See Also
    --------
    learned_positions : Looks these positions up.
    document_positions : Numbers several texts in one row.

    Notes
    -----
    Cost : O(n) time and memory.
    Empty row : padding gets -1.

    Examples
    --------
    >>> import numpy as np
    >>> padded_positions(np.array([False, False, True, True]))
    array([-1, -1,  0,  1])
    """
    xp = array_namespace(valid)
    check_axes("n", valid=valid)
    valid = allowed_pairs(xp, "valid", valid, tuple(valid.shape))
    count = xp.cumulative_sum(cast(xp, valid, xp.arange(0).dtype), axis=-1)
    return xp.where(valid, count - 1, -1)


def _check_layout(layout: str) -> None:
    """Raise unless `layout` is one of the two."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; it must be one of {', '.join(map(repr, LAYOUTS))}")


def _waves(xp: Any, p: Array, width: int, base: float) -> tuple[Array, Array]:
    """Return sine and cosine of ``p (...)`` times each frequency: ``(..., r)``, half of the width, rounded up."""
    base = positive("base", base)
    frequencies = [base ** (-2 * r / width) for r in range((width + 1) // 2)]
    angles = p[..., None] * xp.asarray(frequencies, dtype=p.dtype, device=device(p))
    return xp.sin(angles), xp.cos(angles)
