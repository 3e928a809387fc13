"""How sharp a row of scores is: temperatures that depend on the head, the length or the position."""

import math
from typing import Any

from softlookup._arrays import Array, Normalizer, Score, cast, hide, promote
from softlookup._checks import allowed_pairs, check_axes, check_broadcast, check_callable, finite, positive
from softlookup.lookup import scaled_dot, softmax

__all__ = ["log_length", "position_temperature", "row_scaled", "scalable_softmax"]


def row_scaled(factor: Array, /, *, score: Score = scaled_dot()) -> Score:
    r"""Build a score in which each row is multiplied by a number of its own.

    .. math:: s_{ij} = f_i \cdot \operatorname{score}(q_i, k_j)

    Parameters
    ----------
    factor : array that broadcasts to (..., H, n)
        The numbers f, one over the temperature of the row. One number for each head has the shape (H, 1).
    score : callable
        The score ``score(q, k) -> s`` to multiply, with its own scale.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`. It has the attribute ``vjp`` if the
        score given has it.

    Raises
    ------
    ValueError
        The score raises it if `factor` does not broadcast to the rows of scores, and where the score given raises it.
    TypeError
        If `score` cannot be called. The score raises it if `factor` is not an array of numbers.

    See Also
    --------
    log_length, position_temperature : Factors.

    Notes
    -----
    Slot : score
    Changes : a row's scores are spread or drawn together before they are normalized.
    Cost : that of the score, and O(n m) time.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : the score when each factor is one; with softmax, ``softmax(temperature=t)`` of the score when each is 1/t.
    Year : 2020
    Source : Henry et al., 2020, Query-Key Normalization for Transformers, abstract, arXiv 2010.04245, for a learned
        factor.
    Other names : learned temperature, per-head temperature, inverse temperature, logit scale

    The result is the same as multiplying each query by its factor when the score is linear in the query. An infinite
    score stays as it is.

    References
    ----------
    A. Henry et al., Query-Key Normalization for Transformers, Findings of EMNLP 2020.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0], [2.0]])
    >>> row_scaled(np.array([1.0, 10.0]))(x, x)
    array([[ 1.,  2.],
           [20., 40.]])
    """
    check_callable("a function of q and k", score=score)

    def scaled(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k, f) = promote(q=q, k=k, factor=factor)
        return cast(xp, _times_rows(xp, score(q, k), f), dtype)

    def vjp(g: Array, q: Array, k: Array, /) -> tuple[Array, Array]:
        xp, dtype, (g, q, k, f) = promote(g=g, q=q, k=k, factor=factor)
        return tuple(cast(xp, a, dtype) for a in score.vjp(_times_rows(xp, g, f), q, k))

    if hasattr(score, "vjp"):
        scaled.vjp = vjp
    return scaled


def log_length(visible: Array, /, *, trained: float) -> Array:
    r"""Factor that keeps the entropy of a row about level as the number of keys grows.

    .. math:: f_i = \frac{\log n_i}{\log n_{\text{trained}}}

    Parameters
    ----------
    visible : array of shape (..., n)
        The number of keys :math:`n_i` that each query may read, its own included.
    trained : float
        The length at which the factor is one; greater than one.

    Returns
    -------
    array of shape (..., n)
        Factors for `row_scaled`; zero for a query that may read one key or none.

    Raises
    ------
    ValueError
        If `trained` is not finite and greater than one, or if `visible` has no axis.
    TypeError
        If `visible` is not an array of numbers, or `trained` not a number.

    See Also
    --------
    scalable_softmax : Counts the keys by itself.

    Notes
    -----
    Slot : score
    Changes : rows with many keys get larger scores.
    Cost : O(n) time.
    Empty row : the factor is zero.
    Promises : prefix stable
    Equals : the factor of ``scalable_softmax(p)`` when p is one over the logarithm of `trained`.
    Year : 2022
    Source : Chiang and Cholak, 2022, Overcoming a Theoretical Limitation of Self-Attention, abstract, arXiv
        2202.12172.
    Other names : log-n scaling, logn scaling, log length scaling, entropy-invariant attention

    Counting the keys that the query may read keeps earlier rows alone when tokens are appended; the total length does
    not.

    References
    ----------
    D. Chiang and P. Cholak, Overcoming a Theoretical Limitation of Self-Attention, ACL 2022.

    Examples
    --------
    >>> import numpy as np
    >>> log_length(np.array([1, 8, 64, 512]), trained=64).round(3)
    array([0. , 0.5, 1. , 1.5])
    """
    if finite("trained", trained) <= 1:
        raise ValueError(f"trained is {trained}; it must be greater than one, since its logarithm divides")
    xp, dtype, (visible,) = promote(visible=visible)
    check_axes("n", visible=visible)
    return cast(xp, xp.log(xp.where(visible > 1, visible, 1.0)) / math.log(trained), dtype)


def position_temperature(positions: Array, /, *, step: float, strength: float) -> Array:
    r"""Factor that grows with the position of the query, in steps.

    .. math:: f_i = 1 + a \log\Bigl(1 + \Bigl\lfloor \frac{p_i + 1}{b} \Bigr\rfloor\Bigr)

    Parameters
    ----------
    positions : array of shape (..., n)
        The positions :math:`p_i` of the queries, from zero.
    step : float
        The number b of positions after which the factor grows for the first time.
    strength : float
        The number a; zero gives the factor one everywhere.

    Returns
    -------
    array of shape (..., n)
        Factors for `row_scaled`, or to multiply the queries with.

    Raises
    ------
    ValueError
        If `step` is not positive and finite, if `strength` is not finite, or if `positions` has no axis.
    TypeError
        If `positions` is not an array of numbers, or `step` or `strength` not a number.

    See Also
    --------
    log_length : Counts keys instead of positions.

    Notes
    -----
    Slot : score
    Changes : queries far into a text get larger scores.
    Cost : O(n) time.
    Empty row : does not ask for keys.
    Promises : prefix stable
    Equals : one when the position is less than ``step - 1``, or when the strength is zero.
    Year : 2025
    Source : Meta, 2025, the released code of Llama 4, layers without rotary positions.
    Other names : attention temperature tuning, temperature tuning, Llama 4 scaling, llama_4_scaling, iRoPE temperature

    Positions before zero count as zero.

    Examples
    --------
    >>> import numpy as np
    >>> position_temperature(np.array([0, 8190, 8191, 24575]), step=8192, strength=0.1).round(4)
    array([1.    , 1.    , 1.0693, 1.1386])
    """
    step, strength = positive("step", step), finite("strength", strength)
    xp, dtype, (positions,) = promote(positions=positions)
    check_axes("n", positions=positions)
    steps = xp.floor((xp.where(positions > 0, positions, 0.0) + 1) / step)
    return cast(xp, 1 + strength * xp.log(1 + steps), dtype)


def scalable_softmax(p: Array, /, *, shift: float = 0.0) -> Normalizer:
    r"""Build the softmax whose base is the number of keys that a row may read.

    .. math:: w_{ij} = \frac{n_i^{\,p \, s_{ij}}}{\sum_{l} n_i^{\,p \, s_{il}}}
              = \operatorname{softmax}_j\bigl((p \log n_i) \, s_{ij}\bigr)

    Parameters
    ----------
    p : array that broadcasts to (..., H, n)
        The learned strength. One number for each head has the shape (H, 1), one for all has the shape ().
    shift : float
        A number b that is added: the scores are multiplied by ``p log n + b``.

    Returns
    -------
    callable
        The function ``normalize(s, allowed)``, for the argument `normalize` of `attention`.

    Raises
    ------
    ValueError
        If `shift` is not finite. The normalizer raises it if `s` has no axis, if `p` does not broadcast to the rows of
        `s`, or if `allowed` would enlarge `s`.
    TypeError
        If `shift` is not a number. The normalizer raises it if `s` or `p` is not an array of numbers, if `allowed` is
        not boolean, or if two array libraries are mixed.

    See Also
    --------
    log_length : The same idea as a factor of the score.

    Notes
    -----
    Slot : normalize
    Changes : the more keys a row may read, the sharper its weights.
    Cost : O(n m) time and memory.
    Empty row : a row that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``softmax`` when p is zero and the shift one; ``softmax`` of scores multiplied by ``log_length`` when p is
        one over the logarithm of the trained length.
    Year : 2025
    Source : Nakanishi, 2025, Scalable-Softmax Is Superior for Attention, abstract, arXiv 2501.19399.
    Other names : SSMax, Scalable-Softmax

    The number of keys is counted in `allowed`, row by row, so that it does not depend on what comes later. A key that
    may be read counts whatever its score. An infinite score stays as it is.

    References
    ----------
    K. M. Nakanishi, Scalable-Softmax Is Superior for Attention, 2025.

    Examples
    --------
    >>> import numpy as np
    >>> normalize = scalable_softmax(np.asarray(1.0))
    >>> normalize(np.array([[1.0, 0.0, 0.0, 0.0]])).round(4)  # 4 / (4 + 1 + 1 + 1)
    array([[0.5714, 0.1429, 0.1429, 0.1429]])
    """
    shift = finite("shift", shift)

    def normalize(s: Array, allowed: Array | None = None, /) -> Array:
        xp, dtype, (s, strength) = promote(s=s, p=p)
        check_axes("m", s=s)
        check_broadcast("p", strength, s.shape[:-1])
        allowed = allowed_pairs(xp, "allowed", allowed, s.shape)
        if allowed is None:
            count = xp.full(s.shape[:-1], float(s.shape[-1]), dtype=s.dtype)
        else:
            count = xp.sum(cast(xp, allowed, s.dtype), axis=-1)
        factor = strength * xp.log(xp.where(count > 1, count, 1.0)) + shift
        return cast(xp, softmax(_times_rows(xp, hide(xp, s, allowed, 0.0), factor), allowed), dtype)

    return normalize


def _times_rows(xp: Any, s: Array, factor: Array) -> Array:
    check_broadcast("factor", factor, s.shape[:-1])
    infinite = xp.isinf(s)
    return xp.where(infinite, s, xp.where(infinite, 0.0, s) * factor[..., None])
