"""Gates: numbers that open and close outputs, values and whole heads, computed from the words themselves."""

from typing import Any

from array_api_compat import device

from softlookup._arrays import Array, cast, promote
from softlookup._checks import check_axes, check_broadcast, check_equal, check_shape, positive_integer
from softlookup.lookup.attention import attention
from softlookup.lookup.softmax import softmax
from softlookup.normalizers.pointwise import sigmoid

__all__ = ["head_gate", "mixture_of_heads", "output_gate", "top_gates", "value_residual"]


def output_gate(out: Array, logits: Array, /) -> Array:
    r"""Multiply each number of the output by a gate between zero and one.

    .. math:: y_{hic} = \sigma(z_{hic}) \, \operatorname{out}_{hic}, \qquad \sigma(z) = \frac{1}{1 + e^{-z}}

    Parameters
    ----------
    out : array of shape (..., H, n, e)
        The output of attention, before the projection that joins the heads.
    logits : array that broadcasts to (..., H, n, e)
        The numbers z, usually a projection of the words that ask.

    Returns
    -------
    array of shape (..., H, n, e)
        The gated output.

    Raises
    ------
    ValueError
        If an axis is missing, or if `logits` would enlarge `out`.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    head_gate : One gate for each head and query.

    Notes
    -----
    Slot : after blend
    Changes : a query may pass on less than it has read, number by number.
    Cost : O(H n e) time and memory.
    Empty row : zeros stay zeros.
    Promises : prefix stable
    Equals : half of the output when the logits are zero; the output in the limit of large logits; a gated
        linear unit whose value is the output.
    Year : 2025
    Source : Qiu et al., 2025, Gated Attention for Large Language Models, section 2.2, arXiv 2505.06708.
    Other names : gated attention, output gate, G1 gate, attention output gate, SDPA output gate, sigmoid gate

    An output of infinity behind a closed gate gives NaN.

    References
    ----------
    Z. Qiu et al., Gated Attention for Large Language Models: Non-linearity, Sparsity, and Attention-Sink-Free, 2025.

    Examples
    --------
    >>> import numpy as np
    >>> output_gate(np.array([[[10.0, 10.0]]]), np.log(np.array([[[1.0, 4.0]]])))
    array([[[5., 8.]]])
    """
    xp, dtype, (out, logits) = promote(out=out, logits=logits)
    check_axes("H n e", out=out)
    check_broadcast("logits", logits, tuple(out.shape))
    return cast(xp, sigmoid(xp.broadcast_to(logits, out.shape)) * out, dtype)


def head_gate(out: Array, logits: Array, /) -> Array:
    r"""Multiply the output of each head by one gate between zero and one for each query.

    .. math:: y_{hi} = \sigma(z_{hi}) \, \operatorname{out}_{hi}

    Parameters
    ----------
    out : array of shape (..., H, n, e)
        The output of attention, before the projection that joins the heads.
    logits : array that broadcasts to (..., H, n)
        The numbers z, usually ``x @ w + b`` with the words that ask and a vector for each head.

    Returns
    -------
    array of shape (..., H, n, e)
        The gated output.

    Raises
    ------
    ValueError
        If an axis is missing, or if `logits` would enlarge the heads and queries of `out`.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    output_gate : A gate for each number.

    Notes
    -----
    Slot : after blend
    Changes : a head can leave a word as it is, without pushing its scores apart.
    Cost : O(H n e) time and memory.
    Empty row : zeros stay zeros.
    Promises : prefix stable
    Equals : ``output_gate`` with the same logit for all numbers of a head; ``attention`` with ``sink_softmax`` when the
        logits are the log-sum-exp of the scores minus the sink.
    Year : 2023
    Source : Bondarenko, Nagel and Blankevoort, 2023, Quantizable Transformers, arXiv 2306.12929, section 4.2.
    Other names : per-head gate, headwise gate, gated attention with a head-specific gate, value head gate

    References
    ----------
    Y. Bondarenko, M. Nagel and T. Blankevoort, Quantizable Transformers: Removing Outliers by Helping Attention Heads
    Do Nothing, NeurIPS 2023.

    Examples
    --------
    >>> import numpy as np
    >>> head_gate(np.array([[[10.0, 20.0]]]), np.log(np.array([[4.0]])))
    array([[[ 8., 16.]]])
    """
    xp, dtype, (out, logits) = promote(out=out, logits=logits)
    check_axes("H n e", out=out)
    check_broadcast("logits", logits, tuple(out.shape[:-1]))
    return cast(xp, output_gate(out, logits[..., None]), dtype)


def value_residual(v: Array, first: Array, mix: Array, /) -> Array:
    r"""Blend the values of a layer with those of the first layer.

    .. math:: v'_{hj} = (1 - \mu) \, v_{hj} + \mu \, v^{(1)}_{hj}

    Parameters
    ----------
    v : array of shape (..., H, m, e)
        Values of this layer.
    first : array of shape (..., H, m, e)
        Values of the first layer, for the same items.
    mix : array that broadcasts to (..., H, m, e)
        The part mu that comes from the first layer: one number, or one for each head or item. It may be any number.

    Returns
    -------
    array of shape (..., H, m, e)
        Values for `attention`.

    Raises
    ------
    ValueError
        If an axis is missing, if `first` does not have the shape of `v`, or if `mix` would enlarge it.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    attention : Reads the values.

    Notes
    -----
    Slot : before blend
    Changes : what a word was before any layer mixed it stays readable in every layer.
    Cost : O(H m e) time and memory; the first layer's values are kept.
    Empty row : decided by attention.
    Promises : prefix stable
    Equals : `v` when mu is zero, and values that all layers share when it is one; by linearity, the same blend of the
        outputs of two calls of ``attention``.
    Year : 2024
    Source : Zhou et al., 2024, Value Residual Learning, arXiv 2410.17897, section 3.3 of the submission of 2024.
    Other names : ResFormer, value residual, value residual learning, SVFormer, value mixing, v1 residual

    References
    ----------
    Z. Zhou et al., Value Residual Learning, ACL 2025.

    Examples
    --------
    >>> import numpy as np
    >>> value_residual(np.array([[10.0]]), np.array([[20.0]]), np.array(0.25))
    array([[12.5]])
    """
    xp, dtype, (v, first, mix) = promote(v=v, first=first, mix=mix)
    check_axes("m e", v=v)
    check_shape("first", first, tuple(v.shape))
    check_broadcast("mix", mix, tuple(v.shape))
    return cast(xp, (1 - mix) * v + mix * first, dtype)


def top_gates(logits: Array, /, *, kept: int) -> Array:
    r"""Keep the experts with the largest logits and share one among them by softmax.

    .. math:: g_{ie} = \frac{\exp(z_{ie})}{\sum_{f \in T_i} \exp(z_{if})} \quad\text{for}\ e \in T_i, \qquad
              g_{ie} = 0 \quad\text{otherwise}

    Parameters
    ----------
    logits : array of shape (..., n, E)
        The numbers z of the router: one for each word and expert.
    kept : int
        How many experts each word keeps: the size of T. Of equal logits those with the lower index are kept.

    Returns
    -------
    array of shape (..., n, E)
        Gates; each row has at most `kept` that are not zero, and sums to one.

    Raises
    ------
    ValueError
        If the axis of the experts is missing, or if `kept` is not between one and E.
    TypeError
        If `logits` is not an array of numbers, or if `kept` is not an integer.

    See Also
    --------
    mixture_of_heads : Uses the gates.

    Notes
    -----
    Cost : O(n E²) time and memory, by counting for each expert those that beat it; a program that sorts needs
        O(n E log E).
    Empty row : a row whose logits are all minus infinity has zeros.

    The choice has no gradient: an expert that is not kept learns nothing from the word. A NaN makes its row NaN.

    Examples
    --------
    >>> import numpy as np
    >>> top_gates(np.log(np.array([[1.0, 3.0, 2.0, 1.0]])), kept=2)
    array([[0. , 0.6, 0.4, 0. ]])
    """
    xp, dtype, (logits,) = promote(logits=logits)
    return cast(xp, softmax(logits, _chosen(xp, logits, kept)), dtype)


def mixture_of_heads(
    q: Array, k: Array, v: Array, w_o: Array, logits: Array, /, *, kept: int, mask: Array | None = None
) -> Array:
    r"""Look up with experts, of which each word uses only a few: those that its router chose.

    .. math:: y_i = \sum_{e \in T_i} g_{ie} \sum_h \operatorname{attention}(q_{eh}, k_h, v_h)_i \; W_{O, eh}

    Parameters
    ----------
    q : array of shape (..., E, H, n, d)
        Queries of each expert.
    k : array of shape (..., H, m, d)
        Keys, shared by all experts. Their number of heads must divide H.
    v : array of shape (..., H, m, e)
        Values, shared by all experts.
    w_o : array of shape (E, H, e, D)
        The projection of each head of each expert to the output.
    logits : array of shape (..., n, E)
        The numbers of the router.
    kept : int
        How many experts each word uses.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key.

    Returns
    -------
    array of shape (..., n, D)
        The sum over the chosen experts.

    Raises
    ------
    ValueError
        If an axis is missing, if `q`, `w_o` and `logits` do not agree in E, H and n, if `v` and `w_o` do not agree in
        e, if `kept` is not between one and E, and where `attention` raises it.
    TypeError
        If an argument is not an array of numbers, if `mask` is not boolean, if two array libraries are mixed, or if
        `kept` is not an integer.

    See Also
    --------
    top_gates : The gates g.

    Notes
    -----
    Slot : after blend, and which queries there are
    Changes : there are more heads than a word uses.
    Cost : O(E H n m (d + e)) time here, where all experts are computed; with only the chosen ones `kept` in place of E.
    Empty row : a query that may read nothing gets zeros.
    Promises : prefix stable
    Equals : ``attention`` with its output projection when there is one expert; the mean of the experts when all are
        kept and the logits are equal.
    Year : 2022
    Source : Zhang et al., 2022, Mixture of Attention Heads, arXiv 2210.05144, abstract; gates and heads as here: Shen
        et al., 2024, JetMoE, sections 2.1 and 2.3, arXiv 2404.07413.
    Other names : mixture of attention heads, MoA, JetMoE attention, mixture-of-head attention, MoH, SwitchHead,
        mixture of experts attention

    An expert that a word did not choose is left out, not multiplied by zero: a NaN in its query for that word has no
    effect on the result.

    References
    ----------
    X. Zhang et al., Mixture of Attention Heads: Selecting Attention Heads Per Token, EMNLP 2022.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.zeros((2, 1, 1, 1)), np.zeros((1, 2, 1)), np.array([[[1.0], [3.0]]])
    >>> w_o = np.array([[[[1.0]]], [[[10.0]]]])
    >>> mixture_of_heads(q, k, v, w_o, np.array([[0.0, 1.0]]), kept=1)
    array([[20.]])
    """
    xp, dtype, (q, k, v, w_o, logits) = promote(q=q, k=k, v=v, w_o=w_o, logits=logits)
    check_axes("E H n d", q=q)
    check_axes("H m d", k=k)
    check_axes("H m e", v=v)
    check_axes("E H e D", w_o=w_o)
    check_axes("n E", logits=logits)
    check_equal("experts", -4, q=q, w_o=w_o)
    check_equal("heads", -3, q=q, w_o=w_o)
    if logits.shape[-2:] != (q.shape[-2], q.shape[-4]):
        n, experts = q.shape[-2], q.shape[-4]
        raise ValueError(f"logits has shape {tuple(logits.shape)}; its last axes must be ({n}, {experts})")
    if v.shape[-1] != w_o.shape[-2]:
        raise ValueError(f"w_o has {w_o.shape[-2]} rows, v has {v.shape[-1]} columns; they must be equal")
    if mask is not None and mask.ndim > 2:
        mask = mask[..., None, :, :, :]
    chosen = _chosen(xp, logits, kept)
    heads = attention(q, k[..., None, :, :, :], v[..., None, :, :, :], mask=mask) @ w_o
    experts = xp.where(chosen.mT[..., None], xp.sum(heads, axis=-3), 0.0)
    return cast(xp, xp.sum(softmax(logits, chosen).mT[..., None] * experts, axis=-3), dtype)


def _chosen(xp: Any, logits: Array, kept: int) -> Array:
    """Return for each row of ``logits (..., n, E)`` where its largest numbers stand; of equal ones the first count."""
    check_axes("E", logits=logits)
    experts = logits.shape[-1]
    if positive_integer("kept", kept) > experts:
        raise ValueError(f"kept is {kept}; there are {experts} experts")
    mine, other = logits[..., :, None], logits[..., None, :]
    place = xp.arange(experts, device=device(logits))
    beats = (other > mine) | ((other == mine) & (place[None, :] < place[:, None]))
    return xp.sum(cast(xp, beats, xp.arange(0).dtype), axis=-1) < kept
