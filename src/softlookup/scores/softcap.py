"""Soft capping: scores bent toward a bound, smoothly and in order."""

from softlookup._arrays import Array, Score, cast, promote
from softlookup._checks import check_callable, check_shape, positive

__all__ = ["capped", "softcap", "softcap_vjp"]


def softcap(s: Array, /, *, cap: float) -> Array:
    r"""Bend each score so that its absolute value stays at most the cap.

    .. math:: \operatorname{softcap}_c(s) = c \tanh(s / c)

    Parameters
    ----------
    s : array of shape (...)
        Scores.
    cap : float
        The number c.

    Returns
    -------
    array of shape (...)
        The capped scores, in the order of the given ones.

    Raises
    ------
    ValueError
        If `cap` is not positive and finite.
    TypeError
        If `s` is not an array of numbers, or `cap` not a number.

    See Also
    --------
    capped : A score with this cap.
    softcap_vjp : The gradient.

    Notes
    -----
    Cost : O(n m) time, one hyperbolic tangent for each score.
    Empty row : a score of minus infinity becomes ``-cap``, an ordinary score, so the cap comes before the mask.

    Near zero it changes nothing: c tanh(s / c) = s - s³ / (3 c²) + ... A score of plus infinity becomes ``cap``.

    References
    ----------
    I. Bello et al., Neural Combinatorial Optimization with Reinforcement Learning, 2016, arXiv 1611.09940.

    Examples
    --------
    >>> import numpy as np
    >>> softcap(np.array([-100.0, 0.5, 1.0, 100.0]), cap=2.0).round(3)
    array([-2.   ,  0.49 ,  0.924,  2.   ])
    """
    cap = positive("cap", cap)
    xp, dtype, (s,) = promote(s=s)
    return cast(xp, cap * xp.tanh(s / cap), dtype)


def softcap_vjp(g: Array, s: Array, /, *, cap: float) -> Array:
    r"""Pull a gradient with respect to the capped scores back to the scores.

    .. math:: ds = g \, \bigl(1 - \tanh^2(s / c)\bigr)

    Parameters
    ----------
    g : array of shape (...)
        Gradient with respect to the capped scores.
    s : array of shape (...)
        The scores, as they were given to `softcap`.
    cap : float
        As it was given to `softcap`.

    Returns
    -------
    array of shape (...)
        Gradient with respect to the scores.

    Raises
    ------
    ValueError
        If `g` does not have the shape of `s`, or if `cap` is not positive and finite.
    TypeError
        If `g` or `s` is not an array of numbers, if two array libraries are mixed, or if `cap` is not a number.

    See Also
    --------
    softcap : The function itself.

    Notes
    -----
    Cost : O(n m) time.

    The slope is one at zero and falls to zero far beyond the cap: a score that is capped hard no longer learns.

    Examples
    --------
    >>> import numpy as np
    >>> softcap_vjp(np.ones(3), np.array([0.0, 1.0, 4.0]), cap=2.0).round(4)
    array([1.    , 0.7864, 0.0707])
    """
    cap = positive("cap", cap)
    xp, dtype, (g, s) = promote(g=g, s=s)
    check_shape("g", g, s.shape)
    return cast(xp, g * (1 - xp.tanh(s / cap) ** 2), dtype)


def capped(score: Score, /, *, cap: float) -> Score:
    r"""Build a score that is another score, softly capped.

    .. math:: s_{ij} = c \tanh\bigl(\operatorname{score}(q_i, k_j) / c\bigr)

    Parameters
    ----------
    score : callable
        The score ``score(q, k) -> s`` to cap, with its own scale.
    cap : float
        The number c that no score exceeds in absolute value.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`. It has the attribute ``vjp`` if the
        score given has it.

    Raises
    ------
    ValueError
        If `cap` is not positive and finite. The score raises what the score given raises.
    TypeError
        If `score` cannot be called, or if `cap` is not a number.

    See Also
    --------
    softcap : What is done to each score.

    Notes
    -----
    Slot : score
    Changes : large scores are bent toward the cap, after the scale and before bias and mask.
    Cost : that of the score, and O(n m) time for the cap.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``scaled_dot(cap=c)`` when the score is ``scaled_dot()``; the score itself in the limit of a large cap.
    Year : 2016
    Source : Bello et al., 2016, Neural Combinatorial Optimization with Reinforcement Learning, arXiv 1611.09940, for
        the logits of a pointer; Gemma Team, 2024, Gemma 2: Improving Open Language Models at a Practical Size,
        section 2, arXiv 2408.00118, for attention.
    Other names : logit soft-capping, soft cap, tanh capping, logit clipping by tanh, softcap

    With softmax no weight can exceed ``exp(2 c)`` times another one of its row.

    References
    ----------
    Gemma Team, Gemma 2: Improving Open Language Models at a Practical Size, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from softlookup.lookup import scaled_dot
    >>> q, k = np.array([[3.0]]), np.array([[0.0], [1.0], [100.0]])
    >>> capped(scaled_dot(), cap=5.0)(q, k).round(3)
    array([[0.   , 2.685, 5.   ]])
    """
    check_callable("a function of q and k", score=score)
    cap = positive("cap", cap)

    def bent(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k) = promote(q=q, k=k)
        return cast(xp, softcap(score(q, k), cap=cap), dtype)

    def vjp(g: Array, q: Array, k: Array, /) -> tuple[Array, Array]:
        xp, dtype, (g, q, k) = promote(g=g, q=q, k=k)
        return tuple(cast(xp, a, dtype) for a in score.vjp(softcap_vjp(g, score(q, k), cap=cap), q, k))

    if hasattr(score, "vjp"):
        bent.vjp = vjp
    return bent
