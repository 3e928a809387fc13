"""Rotary positions: pairs of numbers in queries and keys turn with the position, so that scores see distances."""

from typing import Any

import numpy as np
from array_api_compat import device, is_array_api_obj

from softlookup._arrays import Array, cast, library, promote
from softlookup._checks import check_axes, check_broadcast, natural, positive, positive_integer

__all__ = [
    "change_pairing",
    "proportional_frequencies",
    "rotary",
    "rotary_frequencies",
    "rotary_vjp",
    "rotate_pairs",
    "section_angles",
]


def rotate_pairs(x: Array, angles: Array, /, *, pairing: str) -> Array:
    r"""Turn each pair of numbers by its angle, counterclockwise; numbers without an angle stay.

    .. math:: a' = a \cos\varphi_r - b \sin\varphi_r, \qquad b' = a \sin\varphi_r + b \cos\varphi_r, \qquad
              (a, b) = (x_{2r}, x_{2r+1}) \ \text{or} \ (x_r, x_{r+R})

    Parameters
    ----------
    x : array of shape (..., n, d)
        Queries or keys.
    angles : array that broadcasts to (..., n, R)
        The angle of each of R pairs, in radians; 2 R is at most d.
    pairing : {"interleaved", "half"}
        Which of the first 2 R numbers are a pair: neighbors, or those half of 2 R apart.

    Returns
    -------
    array of shape (..., n, d)
        The turned numbers; from 2 R on they are those of `x`.

    Raises
    ------
    ValueError
        If an axis is missing, if there are more angles than pairs, if `angles` would enlarge `x`, or if `pairing` is
        neither of the two.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    rotary : The angles are position times frequency.

    Notes
    -----
    Cost : O(n d) time and memory.
    Empty row : no items give no items.

    Cosine and sine are computed in the dtype of `angles`, at least float32, and then cast to the dtype of `x`: angles
    in float64 keep their digits although `x` is narrower.

    Examples
    --------
    >>> import numpy as np
    >>> quarter = np.array([[np.pi / 2, 0.0]])
    >>> rotate_pairs(np.array([[1.0, 2.0, 3.0, 4.0]]), quarter, pairing="interleaved").round(3)
    array([[-2.,  1.,  3.,  4.]])
    >>> rotate_pairs(np.array([[1.0, 2.0, 3.0, 4.0]]), quarter, pairing="half").round(3)
    array([[-3.,  2.,  1.,  4.]])
    """
    library(x=x, angles=angles)
    xp, dtype, (x,) = promote(x=x)
    _, _, (angles,) = promote(angles=angles)
    check_axes("n d", x=x)
    check_axes("n r", angles=angles)
    lead, pairs = x.shape[:-1], angles.shape[-1]
    if 2 * pairs > x.shape[-1]:
        raise ValueError(f"x has {x.shape[-1]} columns; {pairs} angles need at least {2 * pairs}")
    check_broadcast("angles", angles, (*lead, pairs))
    cos, sin = cast(xp, xp.cos(angles), x.dtype), cast(xp, xp.sin(angles), x.dtype)
    halves = _pairing("pairing", pairing) == "half"
    axis, shape = (-2, (2, pairs)) if halves else (-1, (pairs, 2))
    both = xp.reshape(x[..., : 2 * pairs], (*lead, *shape))
    a, b = (both[..., 0, :], both[..., 1, :]) if halves else (both[..., 0], both[..., 1])
    turned = xp.stack([a * cos - b * sin, a * sin + b * cos], axis=axis)
    turned = xp.reshape(turned, (*lead, 2 * pairs))
    return cast(xp, xp.concat([turned, x[..., 2 * pairs :]], axis=-1), dtype)


def rotary(x: Array, positions: Array, frequencies: Array, /, *, pairing: str) -> Array:
    r"""Turn each pair of numbers of an item by its position times the frequency of the pair.

    .. math:: \varphi_{ir} = p_i \, \theta_r, \qquad a' = a \cos\varphi - b \sin\varphi, \qquad
              b' = a \sin\varphi + b \cos\varphi

    Parameters
    ----------
    x : array of shape (..., n, d)
        Queries or keys; both are turned, values are not.
    positions : array that broadcasts to (..., n)
        Position of each item: integers or any numbers, in any order. Positions of B samples with H heads have the shape
        (B, 1, n).
    frequencies : array that broadcasts to (..., R)
        Angle per position, for R pairs; 2 R is at most d, and the numbers from 2 R on stay. Frequencies of H heads have
        the shape (H, R).
    pairing : {"interleaved", "half"}
        Which of the first 2 R numbers are a pair: neighbors, or those half of 2 R apart.

    Returns
    -------
    array of shape (..., n, d)
        The turned items, in the dtype of `x`.

    Raises
    ------
    ValueError
        If an axis is missing, if there are more frequencies than pairs, if `positions` or `frequencies` would enlarge
        `x`, or if `pairing` is neither of the two.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    rotary_frequencies : The usual frequencies.
    rotary_vjp : The gradient.
    section_angles : Positions with several coordinates.

    Notes
    -----
    Slot : score
    Changes : queries and keys turn before they are compared, so that their score depends on content and distance.
    Cost : O(n d) time and memory; nothing for each pair of items.
    Empty row : no items give no items.
    Promises : prefix stable
    Equals : the input at position zero or with frequencies of zero; a product of complex numbers, each pair times
        exp(i p theta); both pairings, up to ``change_pairing``.
    Year : 2021
    Source : Su et al., 2021, RoFormer, arXiv 2104.09864, section 3.2.
    Other names : RoPE, rotary position embedding, rotary embedding, apply_rotary_pos_emb, RotaryEmbedding, partial
        rotary, partial RoPE, rotate_half, GPT-J rotary, GPT-NeoX rotary

    Angles are computed in the common dtype of `positions` and `frequencies`, where integers count as the library's
    default float, at least in float32; only then are cosine and sine cast to the dtype of `x`. In float32 an angle near
    p is known to about p times 6e-8: give frequencies in float64 where positions are large.

    References
    ----------
    J. Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> rotary(x, np.array([0, 2]), np.array([np.pi / 4]), pairing="half").round(3)
    array([[1., 0.],
           [0., 1.]])
    """
    return rotate_pairs(x, _angles(x, positions, frequencies), pairing=pairing)


def rotary_vjp(g: Array, positions: Array, frequencies: Array, /, *, pairing: str) -> Array:
    r"""Pull a gradient with respect to the turned items back to the items: turn it back.

    .. math:: dx = R(p)^\top g = R(-p) \, g

    Parameters
    ----------
    g : array of shape (..., n, d)
        Gradient with respect to the turned items.
    positions : array that broadcasts to (..., n)
        As they were given to `rotary`.
    frequencies : array that broadcasts to (..., R)
        As they were given to `rotary`.
    pairing : {"interleaved", "half"}
        As it was given to `rotary`.

    Returns
    -------
    array of shape (..., n, d)
        Gradient with respect to the items.

    Raises
    ------
    ValueError
        Where `rotary` raises it.
    TypeError
        Where `rotary` raises it.

    See Also
    --------
    rotary : The function itself.

    Notes
    -----
    Cost : O(n d) time and memory.
    Empty row : no items give no items.

    It is also the inverse of `rotary`. Gradients of positions and frequencies come from the array library.

    Examples
    --------
    >>> import numpy as np
    >>> rotary_vjp(np.array([[0.0, 1.0]]), np.array([2]), np.array([np.pi / 4]), pairing="half").round(3)
    array([[1., 0.]])
    """
    return rotate_pairs(g, -_angles(g, positions, frequencies), pairing=pairing)


def rotary_frequencies(width: int, *, base: float | Array = 10000.0) -> Array:
    r"""Return the usual frequencies: a geometric series from one down to almost one over the base.

    .. math:: \theta_r = \text{base}^{-2r/d}, \qquad r = 0, \dots, d/2 - 1

    Parameters
    ----------
    width : int
        How many numbers turn, an even number d.
    base : float or array of shape (...)
        A number gives a NumPy array of float64; an array gives an array of its library and dtype, with a row of
        frequencies for each of its numbers, as for heads that differ.

    Returns
    -------
    array of shape (..., d / 2)
        Angle per position for each pair, the highest first.

    Raises
    ------
    ValueError
        If `width` is not positive and even, or if a number `base` is not positive and finite.
    TypeError
        If `width` is not an integer, or if `base` is neither a number nor an array of numbers.

    See Also
    --------
    proportional_frequencies : Some of them, and zeros.

    Notes
    -----
    Cost : O(d) time and memory.
    Empty row : there are no rows.

    One over a frequency is the distance after which its pair has turned by one radian; 2 pi over it is the wavelength.

    Examples
    --------
    >>> rotary_frequencies(4)
    array([1.  , 0.01])
    """
    if positive_integer("width", width) % 2:
        raise ValueError(f"width is {width}; it must be even, because two numbers make a pair")
    if not is_array_api_obj(base):
        base = np.asarray(positive("base", base))
    xp, dtype, (base,) = promote(base=base)
    exponents = xp.arange(0, width, 2, dtype=base.dtype, device=device(base)) / -width
    return cast(xp, base[..., None] ** exponents, dtype)


def proportional_frequencies(frequencies: Array, /, *, keep: int) -> Array:
    r"""Keep the highest frequencies and set the others to zero, so that their pairs do not turn.

    .. math:: \theta'_r = \theta_r \ \text{for}\ r < \text{keep}, \qquad \theta'_r = 0 \ \text{otherwise}

    Parameters
    ----------
    frequencies : array of shape (..., R)
        Frequencies of the whole width, the highest first.
    keep : int
        How many of them stay, from 0 to R.

    Returns
    -------
    array of shape (..., R)
        As many frequencies as before.

    Raises
    ------
    ValueError
        If `frequencies` has no axis, or if `keep` is negative or larger than R.
    TypeError
        If `frequencies` is not an array of numbers, or if `keep` is not an integer.

    See Also
    --------
    rotary : Leaves numbers alone that have no frequency, which pairs other numbers.

    Notes
    -----
    Slot : score
    Changes : pairs of low frequency compare content alone, at any distance.
    Cost : O(d) time and memory.
    Empty row : there are no rows.
    Promises : prefix stable
    Equals : all frequencies when `keep` is R; scores without positions when it is zero.
    Year : 2024
    Source : Barbero et al., 2024, Round and Round We Go, arXiv 2410.06205, section 6.1.
    Other names : p-RoPE, proportional RoPE, truncated rotary, zero frequencies

    References
    ----------
    F. Barbero et al., Round and Round We Go! What Makes Rotary Positional Encodings Useful?, 2024.

    Examples
    --------
    >>> proportional_frequencies(rotary_frequencies(8), keep=2)
    array([1. , 0.1, 0. , 0. ])
    """
    xp, dtype, (frequencies,) = promote(frequencies=frequencies)
    check_axes("r", frequencies=frequencies)
    pairs = frequencies.shape[-1]
    if natural("keep", keep) > pairs:
        raise ValueError(f"keep is {keep}; frequencies has only {pairs}")
    kept = xp.arange(pairs, device=device(frequencies)) < keep
    return cast(xp, xp.where(kept, frequencies, 0.0), dtype)


def section_angles(
    coordinates: Array, frequencies: Array, /, *, sections: tuple[int, ...], alternating: bool = False
) -> Array:
    r"""Return angles for items with several coordinates, such as row and column; each frequency turns with one of them.

    .. math:: \varphi_{ir} = p_{i, c(r)} \, \theta_r

    Parameters
    ----------
    coordinates : array of shape (..., n, C)
        Position of each item along each of C axes.
    frequencies : array that broadcasts to (..., R)
        Angle per position for each pair.
    sections : tuple of C ints
        How many frequencies each coordinate gets; their sum is R.
    alternating : bool
        False: the first section of frequencies belongs to the first coordinate, and so on. True: coordinates take
        turns, frequency by frequency, each as long as its section lasts; what is left at the end is the first one's.

    Returns
    -------
    array of shape (..., n, R)
        The argument `angles` of `rotate_pairs`.

    Raises
    ------
    ValueError
        If an axis is missing, if there is not one section for each coordinate, if the sections do not add up to R, if
        they cannot take turns, or if the leading axes do not broadcast.
    TypeError
        If an argument is not an array of numbers, if two array libraries are mixed, or if a section is not an integer.

    See Also
    --------
    rotate_pairs : Turns by these angles.

    Notes
    -----
    Slot : score
    Changes : the score of two items depends on their distance along each axis.
    Cost : O(n d) time and memory.
    Empty row : no items give no items.
    Promises : prefix stable
    Equals : the angles of ``rotary`` when all coordinates of an item are equal.
    Year : 2024
    Source : Heo et al., 2024, Rotary Position Embedding for Vision Transformer, arXiv 2403.13298, for two axes; Wang
        et al., 2024, Qwen2-VL, arXiv 2409.12191, for sections.
    Other names : axial RoPE, axial rotary, 2-D RoPE, two-dimensional RoPE, M-RoPE, MRoPE, multimodal RoPE, interleaved
        M-RoPE, mrope_section

    Angles come in the common dtype of both arguments, where integers count as the library's default float; a narrow
    dtype would round them.

    References
    ----------
    B. Heo et al., Rotary Position Embedding for Vision Transformer, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> row_and_column = np.array([[1, 100], [2, 200]])
    >>> section_angles(row_and_column, np.array([1.0, 1.0, 1.0]), sections=(2, 1))
    array([[  1.,   1., 100.],
           [  2.,   2., 200.]])
    >>> section_angles(row_and_column, np.array([1.0, 1.0, 1.0]), sections=(2, 1), alternating=True)
    array([[  1., 100.,   1.],
           [  2., 200.,   2.]])
    """
    xp, dtype, (coordinates, frequencies) = promote(coordinates=coordinates, frequencies=frequencies)
    check_axes("n c", coordinates=coordinates)
    check_axes("r", frequencies=frequencies)
    check_broadcast("frequencies", frequencies, (*coordinates.shape[:-2], frequencies.shape[-1]))
    sizes = tuple(natural("sections", size) for size in sections)
    axes, pairs = coordinates.shape[-1], frequencies.shape[-1]
    if len(sizes) != axes or sum(sizes) != pairs:
        raise ValueError(f"sections is {sizes}; it must hold {axes} numbers, one a coordinate, with the sum {pairs}")
    chosen = [c for c, size in enumerate(sizes) for _ in range(size)]
    if alternating:
        chosen = [r % axes if r < axes * sizes[r % axes] else 0 for r in range(pairs)]
        if [chosen.count(c) for c in range(axes)] != list(sizes):
            raise ValueError(f"sections is {sizes}; no section but the first may be left when the others have ended")
    index = xp.asarray(chosen, dtype=xp.arange(0).dtype, device=device(coordinates))
    return cast(xp, xp.take(coordinates, index, axis=-1) * frequencies[..., None, :], dtype)


def change_pairing(x: Array, /, *, to: str) -> Array:
    r"""Reorder numbers so that what was turned with the other pairing can be turned with this one.

    .. math:: x'_r = x_{2r}, \quad x'_{r + d/2} = x_{2r+1} \quad\text{to halves; the inverse to interleaved pairs}

    Parameters
    ----------
    x : array of shape (..., d)
        Queries or keys, or the columns of one head in the matrix that makes them; d is even. Where only some numbers
        turn, give those.
    to : {"interleaved", "half"}
        The pairing that will be used; the other one was used before.

    Returns
    -------
    array of shape (..., d)
        The same numbers in another order.

    Raises
    ------
    ValueError
        If `x` has no axis, if d is odd, or if `to` is neither of the two.
    TypeError
        If `x` is not an array of numbers.

    See Also
    --------
    rotary : Turns pairs.

    Notes
    -----
    Cost : O(n d) time and memory.
    Empty row : no items give no items.

    Examples
    --------
    >>> import numpy as np
    >>> change_pairing(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), to="half")
    array([0., 2., 4., 1., 3., 5.])
    """
    xp, dtype, (x,) = promote(x=x)
    check_axes("d", x=x)
    pairs = _pairs(x)
    before = (pairs, 2) if _pairing("to", to) == "half" else (2, pairs)
    moved = xp.matrix_transpose(xp.reshape(x, (*x.shape[:-1], *before)))
    return cast(xp, xp.reshape(moved, x.shape), dtype)


def _pairing(name: str, value: Any) -> str:
    """Return the name of a pairing; there are two."""
    if value not in ("interleaved", "half"):
        raise ValueError(f'{name} is {value!r}; it must be "interleaved" or "half"')
    return value


def _pairs(x: Array) -> int:
    """Return how many pairs the columns of `x` make; none may be left over."""
    pairs, odd = divmod(x.shape[-1], 2)
    if odd:
        raise ValueError(f"x has {x.shape[-1]} columns; they must be even, because two numbers make a pair")
    return pairs


def _angles(x: Array, positions: Array, frequencies: Array) -> Array:
    """Return position times frequency, ``(..., n, R)``; neither may enlarge ``x (..., n, d)``."""
    library(x=x, positions=positions, frequencies=frequencies)
    _, _, (p, f) = promote(positions=positions, frequencies=frequencies)
    check_axes("n d", x=x)
    check_axes("n", positions=p)
    check_axes("r", frequencies=f)
    check_broadcast("positions", p, x.shape[:-1])
    check_broadcast("frequencies", f, (*x.shape[:-2], f.shape[-1]))
    return p[..., None] * f[..., None, :]
