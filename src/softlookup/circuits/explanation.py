"""What weights say about an output, and what only an experiment says: measures of weights, and interventions."""

from collections import deque
from typing import Any

import numpy as np
from array_api_compat import device

from softlookup._arrays import Array, cast, distance, inverse_root, promote
from softlookup._checks import (
    broadcast_batch,
    check_axes,
    check_equal,
    check_projects,
    check_shape,
    finite,
    integer_pairs,
)
from softlookup.circuits.language_model import (
    LETTERS,
    Model,
    cross_entropy,
    encode,
    forward,
    tales,
)
from softlookup.circuits.qk_ov import head_matrices
from softlookup.lookup import effective_items, log_sum_exp, softmax

__all__ = [
    "attention_distance",
    "attention_flow",
    "edge_deletion",
    "effective_rank",
    "kl_divergence",
    "relevancy",
    "remove_items",
    "rollout",
    "sink_rate",
    "swap_items",
    "value_weighted_norm",
    "weight_gradients",
]

LETTERS_OF_A_ROW, PLACE = 20, 9  # all different; the query is the second writing of the letter at this place
PIECE = 32  # characters of a piece of a tale
TEXTS, REPLACEMENTS = 32, 2


def attention_distance(w: Array, q_positions: Array, k_positions: Array, /) -> Array:
    r"""Measure how far away a query reads, on average.

    .. math:: \sum_j w_{ij} \, \lvert p_i - p_j \rvert

    Parameters
    ----------
    w : array of shape (..., n, m)
        Non-negative weights, each row with the sum one.
    q_positions : integer array of shape (n,)
        Where the queries stand.
    k_positions : integer array of shape (m,)
        Where the items stand.

    Returns
    -------
    array of shape (..., n)
        A distance in places.

    Raises
    ------
    ValueError
        If the shapes do not fit together.
    TypeError
        If a position is not a signed integer, if `w` does not hold numbers, or if two array libraries are mixed.

    See Also
    --------
    effective_items : How many items are read, wherever they are.

    Notes
    -----
    Cost : O(n m) time and memory.
    Empty row : a row of zeros has the distance zero.

    Also called mean attention distance. Integer weights become the library's default float.

    References
    ----------
    Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021, arXiv 2010.11929.

    Examples
    --------
    >>> import numpy as np
    >>> attention_distance(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]), np.array([0, 2]), np.arange(3))
    array([0.5, 0. ])
    """
    xp, dtype, (w,) = promote(w=w)
    check_axes("n m", w=w)
    rows, columns = integer_pairs(q_positions=q_positions, k_positions=k_positions)
    apart = xp.abs(rows - columns)
    check_shape("w", w, (*w.shape[:-2], *apart.shape[-2:]))
    return cast(xp, xp.sum(w * cast(xp, apart, w.dtype), axis=-1), dtype)


def sink_rate(w: Array, /, *, threshold: float = 0.3) -> Array:
    r"""Count the heads that spend much of their budget on the first item, whatever the query.

    .. math:: \frac{1}{H} \sum_h \Bigl[\, \frac{1}{n} \sum_i w^h_{i0} > \text{threshold} \Bigr]

    Parameters
    ----------
    w : array of shape (..., H, n, m)
        The weights of H heads.
    threshold : float
        How much the first item must get, averaged over the queries.

    Returns
    -------
    array of shape (...)
        A share of the heads, from zero to one.

    Raises
    ------
    ValueError
        If `w` has fewer than three axes, or `threshold` is not finite.
    TypeError
        If `w` does not hold numbers, or `threshold` is none.

    See Also
    --------
    sink_softmax : A sink that is no item.

    Notes
    -----
    Cost : O(H n) time.
    Empty row : without heads, queries or items the rate is zero.

    Under a causal mask the first query reads the first item alone, so the mean is never below 1 / n. Integers become
    the library's default float.

    References
    ----------
    Gu et al., "When Attention Sink Emerges in Language Models", ICLR 2025, arXiv 2410.10781.

    Examples
    --------
    >>> import numpy as np
    >>> w = np.array([[[1.0, 0.0], [0.8, 0.2]], [[0.2, 0.8], [0.3, 0.7]]])
    >>> float(sink_rate(w))
    0.5
    """
    xp, dtype, (w,) = promote(w=w)
    check_axes("H n m", w=w)
    first = xp.sum(w[..., : min(w.shape[-1], 1)], axis=(-2, -1)) / max(w.shape[-2], 1)
    above = xp.where(first > finite("threshold", threshold), xp.ones_like(first), 0.0)
    return cast(xp, xp.sum(above, axis=-1) / max(w.shape[-3], 1), dtype)


def effective_rank(w: Array, /) -> Array:
    r"""Count the independent patterns in a matrix of weights.

    .. math:: e^{-\sum_r p_r \log p_r}, \qquad p_r = \frac{\sigma_r}{\sum_s \sigma_s}

    Parameters
    ----------
    w : array of shape (..., n, m)
        A matrix.

    Returns
    -------
    array of shape (...)
        From one, when all rows are multiples of one, to the smaller of n and m.

    Raises
    ------
    ValueError
        If `w` has fewer than two axes.
    TypeError
        If `w` does not hold numbers.

    See Also
    --------
    effective_items : The same for the shares of a row.

    Notes
    -----
    Cost : O(n m min(n, m)) time for the singular values.
    Empty row : a matrix of zeros, or without entries, has none: 0.

    Also called the entropy of the spectrum. Integers become the library's default float.

    References
    ----------
    Roy and Vetterli, "The Effective Rank", EUSIPCO 2007.

    Examples
    --------
    >>> import numpy as np
    >>> effective_rank(np.array([np.eye(2), [[0.5, 0.5], [0.5, 0.5]]])).round(3)
    array([2., 1.])
    """
    xp, dtype, (w,) = promote(w=w)
    check_axes("n m", w=w)
    sizes = xp.linalg.svdvals(w)
    total = xp.sum(sizes, axis=-1, keepdims=True)
    return cast(xp, effective_items(sizes / xp.where(total == 0, 1.0, total)), dtype)


def rollout(weights: Array, /) -> Array:
    r"""Multiply the weights of all layers, as if each layer kept half of every place and blended the other half.

    .. math:: R = \tilde A_L \cdots \tilde A_2 \tilde A_1, \qquad \tilde A_l = \frac{\bar w^l + I}{2}, \qquad
              \bar w^l = \frac{1}{H} \sum_h w^{l,h}

    Parameters
    ----------
    weights : array of shape (..., L, H, n, n)
        The weights of L layers, the first one first.

    Returns
    -------
    array of shape (..., n, n)
        What the last layer's places get from the characters; each row has the sum one if all rows of the weights do.

    Raises
    ------
    ValueError
        If an axis is missing, or if there are not as many queries as items.
    TypeError
        If `weights` does not hold numbers.

    See Also
    --------
    attention_flow : Limits instead of products.
    relevancy : The same with gradients.

    Notes
    -----
    Cost : O(L n³) time, O(L n²) memory.
    Empty row : a row of zeros counts for half of its own place, the rest is lost. Without layers it is the identity.

    It knows the weights alone, neither values nor how long the stream is. Integers become the library's default float.

    References
    ----------
    Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020, arXiv 2005.00928.

    Examples
    --------
    >>> import numpy as np
    >>> rollout(np.array([[[[1.0, 0.0], [1.0, 0.0]]], [[[1.0, 0.0], [0.0, 1.0]]]]))
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    xp, dtype, (weights,) = promote(weights=weights)
    out = identity = _identity(xp, weights)
    for layer in range(weights.shape[-4]):
        out = (_mean(xp, weights[..., layer, :, :, :]) + identity) / 2 @ out
    return cast(xp, out, dtype)


def attention_flow(weights: Array, /) -> Array:
    r"""Find how much could flow from a character to a place of the last layer if weights were the widths of pipes.

    .. math:: F_{ij} = \max \text{flow from } (L, i) \text{ to } (0, j), \qquad \text{the pipe from } (l, a) \text{ to }
              (l - 1, b) \text{ holds } \tilde A_l[a, b]

    Parameters
    ----------
    weights : NumPy array of shape (..., L, H, n, n)
        The weights of L layers, the first one first.

    Returns
    -------
    NumPy array of shape (..., n, n)
        One flow for each place and each character; those of a row need not have the sum one.

    Raises
    ------
    ValueError
        If an axis is missing, or if there are not as many queries as items.
    TypeError
        If `weights` is not a NumPy array of numbers.

    See Also
    --------
    rollout : The sum over all ways instead, with the same pipes; it says what they are.

    Notes
    -----
    Cost : n² searches for a maximum flow, each O(L² n³) steps or fewer in practice; meant for short texts.
    Empty row : as in `rollout`. Without layers it raises ValueError.

    With two layers it is a sum of minima, where rollout is a sum of products. The flow is found by paths of fewest
    edges, one after the other (Edmonds and Karp). Integers become the default float.

    References
    ----------
    Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020, arXiv 2005.00928.

    Examples
    --------
    >>> import numpy as np
    >>> attention_flow(np.array([[[[1.0, 0.0], [1.0, 0.0]]], [[[1.0, 0.0], [0.0, 1.0]]]]))
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    if not isinstance(weights, np.ndarray):
        raise TypeError(f"weights must be a NumPy array, not {type(weights).__name__}")
    xp, dtype, (weights,) = promote(weights=weights)
    mixed = (_mean(xp, weights) + _identity(xp, weights)[..., None, :, :]) / 2
    layers, n = mixed.shape[-3:-1]
    if not layers:
        raise ValueError(f"weights has shape {weights.shape}; it needs at least one layer")
    out = np.zeros((*mixed.shape[:-3], n, n), dtype=mixed.dtype)
    for *batch, i, j in np.ndindex(out.shape):
        pipes = np.zeros((layers + 1, n, layers + 1, n), dtype=mixed.dtype)
        for layer in range(layers):
            pipes[layer + 1, :, layer] = mixed[(*batch, layer)]
        nodes = (layers + 1) * n
        out[(*batch, i, j)] = _max_flow(pipes.reshape(nodes, nodes), layers * n + i, j)
    return cast(xp, out, dtype)


def relevancy(weights: Array, gradients: Array, /) -> Array:
    r"""Weigh the weights of all layers by the gradient of one output, and multiply them.

    .. math:: R \leftarrow R + \Bigl( \frac{1}{H} \sum_h \max(0, g^{l,h} w^{l,h}) \Bigr) R, \qquad
              R = I \text{ at first}

    Parameters
    ----------
    weights : array of shape (..., L, H, n, n)
        The weights w of L layers, the first one first.
    gradients : array of shape (..., L, H, n, n)
        The gradient g of one number, such as a logit, with respect to each weight.

    Returns
    -------
    array of shape (..., n, n)
        Relevance, not negative; the row of the place where that number stands is the one to read.

    Raises
    ------
    ValueError
        If an axis is missing, or if the shapes do not fit together.
    TypeError
        If an argument does not hold numbers, or if two array libraries are mixed.

    See Also
    --------
    weight_gradients : Makes such gradients.

    Notes
    -----
    Cost : O(L n³) time, O(L n²) memory.
    Empty row : a row of zeros adds nothing. Without layers it is the identity.

    This is the rule for self-attention. What lowers the output is dropped by the maximum before the mean over heads.
    Integers become the library's default float.

    References
    ----------
    Chefer, Gur and Wolf, "Generic Attention-model Explainability", ICCV 2021, arXiv 2103.15679, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> w = np.array([[[[1.0, 0.0], [0.5, 0.5]]]])
    >>> relevancy(w, np.array([[[[0.0, 0.0], [4.0, -4.0]]]]))
    array([[1., 0.],
           [2., 1.]])
    """
    xp, dtype, (weights, gradients) = promote(weights=weights, gradients=gradients)
    out = _identity(xp, weights)
    check_shape("gradients", gradients, tuple(weights.shape))
    kept = weights * gradients
    kept = xp.where(kept > 0, kept, 0.0)
    for layer in range(weights.shape[-4]):
        out = out + _mean(xp, kept[..., layer, :, :, :]) @ out
    return cast(xp, out, dtype)


def value_weighted_norm(w: Array, v: Array, output: Array, /) -> Array:
    r"""Measure how much each item adds to the stream, not how large its weight is.

    .. math:: \lVert w_{ij} \, v_j \, O \rVert

    Parameters
    ----------
    w : array of shape (..., n, m)
        Non-negative weights.
    v : array of shape (..., m, k)
        The values.
    output : array of shape (..., k, d)
        Writes a blend of values into the stream.

    Returns
    -------
    array of shape (..., n, m)
        Euclidean lengths.

    Raises
    ------
    ValueError
        If an axis is missing, or if the shapes do not fit together.
    TypeError
        If an argument does not hold numbers, or if two array libraries are mixed.

    See Also
    --------
    edge_deletion : What taking an item away does, which also depends on the other items.

    Notes
    -----
    Cost : O(m k d + n m) time.
    Empty row : a row of zeros gives zeros.

    Also called norm-based analysis. Lengths do not add up: two long vectors may cancel. Integers become the library's
    default float.

    References
    ----------
    Kobayashi et al., "Attention Is Not Only a Weight", EMNLP 2020, arXiv 2004.10102.

    Examples
    --------
    >>> import numpy as np
    >>> value_weighted_norm(np.array([[0.9, 0.1]]), np.array([[0.0], [2.0]]), np.array([[3.0, 4.0]]))
    array([[0., 1.]])
    """
    xp, dtype, (w, v, output) = promote(w=w, v=v, output=output)
    check_axes("n m", w=w)
    check_projects(v=v, output=output)
    _check_items(w, v)
    moved = v @ output
    nothing = xp.zeros((1, moved.shape[-1]), dtype=moved.dtype, device=device(moved))
    return cast(xp, w * distance(xp, nothing, moved), dtype)


def edge_deletion(w: Array, v: Array, /) -> Array:
    r"""Say how the output of a query moves when it may no longer read an item, and the others share its budget.

    .. math:: \text{out}^{-j}_i - \text{out}_i = \frac{w_{ij}}{1 - w_{ij}} \, (\text{out}_i - v_j), \qquad
              \text{out}_i = \sum_l w_{il} \, v_l

    Parameters
    ----------
    w : array of shape (..., n, m)
        Softmax weights.
    v : array of shape (..., m, d)
        What the items add with the weight one: values, or what an output matrix, and an unembedding, make of them.

    Returns
    -------
    array of shape (..., n, m, d)
        For each query and each item, the change of the output without that item.

    Raises
    ------
    ValueError
        If an axis is missing, or if there is not one value for each item.
    TypeError
        If an argument does not hold numbers, or if two array libraries are mixed.

    See Also
    --------
    attention : With a mask, the same the long way.
    swap_items : Changes the item instead, and everything that depends on it.

    Notes
    -----
    Cost : O(n m d) time and memory, for all deletions together.
    Empty row : an item with the weight one leaves nothing behind: the output becomes zero. A row of zeros stays.

    It is the gradient with respect to the score, with the sign turned and divided by 1 - w. Where a weight is near one
    the difference 1 - w has few digits left, and so has the result. Integers become the library's default float.

    Also called attention knockout of one edge, with the weights renormalized.

    References
    ----------
    Serrano and Smith, "Is Attention Interpretable?", ACL 2019, arXiv 1906.03731, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> w, v = np.array([[0.5, 0.25, 0.25]]), np.array([[4.0], [8.0], [0.0]])
    >>> edge_deletion(w, v)[0, :, 0].round(3)
    array([ 0.   , -1.333,  1.333])
    """
    xp, dtype, (w, v) = promote(w=w, v=v)
    check_axes("n m", w=w)
    check_axes("m d", v=v)
    _check_items(w, v)
    out = (w @ v)[..., :, None, :]
    alone = w == 1
    odds = w / xp.where(alone, 1.0, 1 - w)
    move = odds[..., None] * (out - v[..., None, :, :])
    return cast(xp, xp.where(alone[..., None], 0.0 - out, move), dtype)


def kl_divergence(logits: Array, changed: Array, /) -> Array:
    r"""Measure how far a prediction has moved, in nats.

    .. math:: \sum_c p_c \log \frac{p_c}{p'_c}, \qquad p = \operatorname{softmax}(\text{logits}), \quad
              p' = \operatorname{softmax}(\text{changed})

    Parameters
    ----------
    logits : array of shape (..., c)
        Scores before the change.
    changed : array of shape (..., c)
        Scores after it; the leading axes broadcast.

    Returns
    -------
    array of shape (...)
        Zero if the probabilities are the same.

    Raises
    ------
    ValueError
        If an axis is missing, or if the two do not fit together.
    TypeError
        If an argument does not hold numbers, or if two array libraries are mixed.

    See Also
    --------
    cross_entropy : The surprise of one character.

    Notes
    -----
    Cost : O(c) time and memory for each row.
    Empty row : scores that are all minus infinity give zero.

    Also called relative entropy. It is not symmetric. A character that was possible and is impossible afterwards makes
    it infinite. Integers become the library's default float.

    References
    ----------
    Kullback and Leibler, "On Information and Sufficiency", 1951.

    Examples
    --------
    >>> import numpy as np
    >>> kl_divergence(np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])).round(4)
    array([0.1438])
    """
    xp, dtype, (logits, changed) = promote(logits=logits, changed=changed)
    check_axes("c", logits=logits, changed=changed)
    check_equal("characters", -1, logits=logits, changed=changed)
    broadcast_batch(1, logits=logits, changed=changed)
    p = softmax(logits)
    before, after = (xp.where(p > 0, s, 0.0) for s in (logits, changed))
    totals = (log_sum_exp(s)[..., None] for s in (logits, changed))
    total, other = (xp.where(xp.isinf(x), 0.0, x) for x in totals)
    return cast(xp, xp.sum(p * (before - total - after + other), axis=-1), dtype)


def weight_gradients(model: Model, tokens: Array, characters: Array, /) -> tuple[Array, Array]:
    r"""Return the weights of all layers, and the gradient of one logit at the last place with respect to each.

    .. math:: \frac{\partial \, \text{logit}_c}{\partial w^{L,h}_{ij}} = \bigl( v_j \, O_h \, U \bigr)_c
              \text{ for the last layer and the last place } i

    Parameters
    ----------
    model : dict of arrays
        As in `forward`.
    tokens : integer array of shape (B, T)
        What is read.
    characters : integer array of shape (B,)
        Which logit.

    Returns
    -------
    weights : array of shape (B, L, H, T, T)
        The weights.
    gradients : array of shape (B, L, H, T, T)
        Their gradients, through all that comes after them.

    Raises
    ------
    ValueError
        Where `forward` raises it, or if there is not one character for each text.
    TypeError
        Where `forward` raises it.

    See Also
    --------
    relevancy : What they are for.
    loss_and_gradient : The gradient with respect to the parameters.

    Notes
    -----
    Cost : about three times that of `forward`.
    Empty row : there is none.

    Examples
    --------
    >>> import numpy as np
    >>> from softlookup.circuits import load_model
    >>> w, g = weight_gradients(load_model(), encode("abcabc")[None], encode("a"))
    >>> w.shape, bool(np.abs(g[0, 1, :, :-1]).max() == 0)  # in the last layer only the last query counts
    ((1, 2, 4, 6, 6), True)
    """
    _, record = forward(model, tokens)
    check_shape("characters", characters, tokens.shape[:1])
    dx = np.zeros_like(record["stream0"])
    dx[:, -1] = model["U"].T[characters]
    weights, gradients = [], []
    for layer in reversed(range(sum(name.startswith("b") for name in model))):
        query, key, value, output = head_matrices(model, layer)
        q, k, v, w = (record[f"{name}{layer}"] for name in ("queries", "keys", "values", "weights"))
        blend = dx[:, None] @ output.mT
        dw = blend @ v.mT
        ds = inverse_root(q.shape[-1]) * w * (dw - np.sum(w * dw, axis=-1, keepdims=True))
        dx = dx + np.sum((ds @ k) @ query.mT + (ds.mT @ q) @ key.mT + (w.mT @ blend) @ value.mT, axis=1)
        weights, gradients = [w, *weights], [dw, *gradients]
    return np.stack(weights, axis=1), np.stack(gradients, axis=1)


def swap_items(model: Model, tokens: Array, other: Array, /) -> Array:
    r"""Write another character in the place of each one in turn, and read the whole text again.

    Parameters
    ----------
    model : dict of arrays
        As in `forward`.
    tokens : integer array of shape (B, T)
        What is read.
    other : integer array of shape (B, T)
        For each place the character that takes it.

    Returns
    -------
    array of shape (B, T, 32)
        For each place the logits at the end of the text in which this one place is changed.

    Raises
    ------
    ValueError
        Where `forward` raises it, or if the two have different shapes.
    TypeError
        Where `forward` raises it.

    See Also
    --------
    remove_items : Takes them out.
    edge_deletion : Hides them from one head.

    Notes
    -----
    Cost : T times that of `forward`.
    Empty row : there is none.

    Also called token substitution, or occlusion when the other character is always the same.

    Examples
    --------
    >>> import numpy as np
    >>> from softlookup.circuits import load_model
    >>> tokens = encode("the miller and the mil")[None]
    >>> logits = swap_items(load_model(), tokens, np.where(tokens == 25, 0, 25))
    >>> logits.shape
    (1, 22, 32)
    """
    if tokens.ndim != 2:
        raise ValueError(f"tokens has shape {tokens.shape}; it must be (B, T)")
    check_shape("other", other, tokens.shape)
    places = np.eye(tokens.shape[1], dtype=bool)
    return _ends(model, np.where(places, other[:, None], tokens[:, None]))


def remove_items(model: Model, tokens: Array, /) -> Array:
    r"""Take each character in turn out of the text, close the gap, and read the whole text again.

    Parameters
    ----------
    model : dict of arrays
        As in `forward`.
    tokens : integer array of shape (B, T)
        What is read, at least two characters.

    Returns
    -------
    array of shape (B, T, 32)
        For each place the logits at the end of the text without it. In the last row the text ends one place earlier.

    Raises
    ------
    ValueError
        Where `forward` raises it, or if a text has less than two characters.
    TypeError
        Where `forward` raises it.

    See Also
    --------
    swap_items : Leaves all others where they are.

    Notes
    -----
    Cost : T times that of `forward`.
    Empty row : there is none.

    What stood before the gap comes one place nearer to what stands after it. Also called leave-one-out, or erasure.

    Examples
    --------
    >>> from softlookup.circuits import load_model
    >>> remove_items(load_model(), encode("the miller")[None]).shape
    (1, 10, 32)
    """
    if tokens.ndim != 2 or tokens.shape[1] < 2:
        raise ValueError(f"tokens has shape {tokens.shape}; it must be (B, T) with T at least 2")
    places = np.arange(tokens.shape[1])
    others = np.array([np.delete(places, j) for j in places])
    return _ends(model, tokens[:, others])


def _over_seeds(model: Model) -> dict[str, float]:
    """Compare what weights say of the items of a text with what interventions say, for one model."""
    model = {name: x.astype(np.float64) for name, x in model.items()}  # ranks among small effects are not rounding
    rng = np.random.default_rng(1002)
    letters = rng.permuted(np.tile(np.arange(LETTERS), (TEXTS, 1)), axis=1)
    text = encode(tales(rng, 40))
    start = rng.integers(0, len(text) - PIECE, TEXTS)
    rows = {
        "letters": np.concatenate([letters[:, :LETTERS_OF_A_ROW], letters[:, : PLACE + 1]], axis=1),
        "tales": text[start[:, None] + np.arange(PIECE)],
    }
    found = {}
    for kind, tokens in rows.items():
        spare = letters[:, LETTERS_OF_A_ROW:] if kind == "letters" else np.tile(text, (TEXTS, 1))
        logits, record = forward(model, tokens)
        end, output = logits[:, -1:], head_matrices(model, 1)[3]
        answer = letters[:, PLACE + 1] if kind == "letters" else np.argmax(end[:, 0], axis=-1)
        weights, gradients = weight_gradients(model, tokens, answer)
        w = weights[:, 1, :, -1]
        move = edge_deletion(w[:, :, None], record["values1"] @ output @ model["U"])[:, :, 0]
        others = [_others(rng, tokens, spare) for _ in range(REPLACEMENTS)]
        swapped = [swap_items(model, tokens, other) for other in others]
        swaps = [kl_divergence(end, changed) for changed in swapped]
        found[f"{kind}, one swap and the other"] = _rank_correlation(*(x[:, :-1] for x in swaps))
        effects = {
            "edge": kl_divergence(end, end + np.sum(move, axis=1)),
            "swap": np.mean(swaps, axis=0),
            "removal": kl_divergence(end, remove_items(model, tokens)),
        }
        measures = {
            "weight": np.mean(w, axis=1),
            "norm": np.mean(value_weighted_norm(w[:, :, None], record["values1"], output)[:, :, 0], axis=1),
            "rollout": rollout(weights)[:, -1],
            "relevancy": relevancy(weights, gradients)[:, -1],
            "nearness": np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape),
        }
        tops = {name: np.argmax(x[:, :-1], axis=-1) for name, x in (effects | measures).items()}
        for measure, x in measures.items():
            found[f"{kind}, top {measure}"] = float(np.mean(tops[measure] == tops["swap"]))
            for effect, y in effects.items():
                found[f"{kind}, {measure} and {effect}"] = _rank_correlation(x[:, :-1], y[:, :-1])
        if kind == "letters":
            likely = np.argmax(end, axis=-1)
            alone = np.argmax(end + move[:, :, PLACE + 1], axis=-1) != likely
            together = np.argmax(end[:, 0] + np.sum(move[:, :, PLACE + 1], axis=1), axis=-1) != likely[:, 0]
            reads = np.mean(w[:, :, PLACE + 1], axis=0)
            first, second = np.argsort(-reads)[:2]
            found["induction heads"] = int(np.sum(reads > 0.4))
            found["changed, first head"] = float(np.mean(alone[:, first]))
            found["changed, second head"] = float(np.mean(alone[:, second]))
            found["changed, all heads"] = float(np.mean(together))
            found["top, induction heads"] = float(
                np.mean(np.argmax(w[:, reads > 0.4].mean(axis=1)[:, :-1], axis=-1) == tops["swap"])
            )
            right = np.broadcast_to(answer[:, None], tokens.shape)
            drops = [cross_entropy(changed, right) - cross_entropy(end, answer[:, None]) for changed in swapped]
            columns = {
                "weight of induction heads": np.mean(w[:, reads > 0.4], axis=1),
                "mean weight": measures["weight"],
                "drop": np.mean(drops, axis=0),
                "removal": effects["removal"],
            }
            last, special = tokens.shape[1] - 1, {"copied": PLACE + 1, "match": PLACE, "before match": PLACE - 1}
            special |= {"own": last, "previous": last - 1, "two back": last - 2}
            rest = np.setdiff1d(np.arange(last + 1), list(special.values()))
            for column, x in columns.items():
                for item, place in special.items():
                    found[f"{item}, {column}"] = float(np.mean(x[:, place]))
                found[f"others, {column}"] = float(np.max(np.mean(x[:, rest], axis=0)))
    return found


def _others(rng: np.random.Generator, tokens: Array, spare: Array) -> Array:
    """Draw for each of the ``tokens (B, T)`` another one from its row of ``spare (B, n)``."""
    other = tokens
    while (same := other == tokens).any():
        drawn = np.take_along_axis(spare, rng.integers(0, spare.shape[1], tokens.shape), axis=1)
        other = np.where(same, drawn, other)
    return other


def _rank_correlation(x: Array, y: Array) -> float:
    """Return the mean over rows of the correlation between the ranks of ``x (B, n)`` and those of ``y (B, n)``.

    Equal numbers share the mean of their ranks.
    """
    ranks = (np.sum(np.sign(z[:, :, None] - z[:, None]), axis=-1) for z in (x, y))  # times two, with the mean zero
    first, second = (z / np.linalg.norm(z, axis=-1, keepdims=True) for z in ranks)
    return float(np.mean(np.sum(first * second, axis=-1)))


def _ends(model: Model, texts: Array) -> Array:
    """Return the logits at the end of each of the ``texts (B, V, T)``: ``(B, V, c)``."""
    logits, _ = forward(model, texts.reshape(-1, texts.shape[-1]))
    return logits[:, -1].reshape(*texts.shape[:-1], -1)


def _check_items(w: Array, v: Array) -> None:
    """Raise unless there is one of the values ``v (..., m, d)`` for each column of ``w (..., n, m)``."""
    if w.shape[-1] != v.shape[-2]:
        raise ValueError(f"w has {w.shape[-1]} items, v has {v.shape[-2]}; they must be equal")


def _identity(xp: Any, weights: Array) -> Array:
    """Check ``weights (..., L, H, n, n)``, and return the identity as ``(..., n, n)``."""
    check_axes("L H n n", weights=weights)
    check_shape("weights", weights, (*weights.shape[:-1], weights.shape[-2]))
    n = weights.shape[-1]
    return xp.broadcast_to(xp.eye(n, dtype=weights.dtype, device=device(weights)), (*weights.shape[:-4], n, n))


def _mean(xp: Any, weights: Array) -> Array:
    """Return the mean over the heads of ``weights (..., H, n, n)``."""
    return xp.sum(weights, axis=-3) / max(weights.shape[-3], 1)


def _max_flow(pipes: Array, source: int, sink: int) -> float:
    """Return the largest flow through ``pipes[from, to]``, which become what is left of them."""
    total = 0.0
    while True:
        before, queue = {source: source}, deque([source])
        while queue and sink not in before:
            node = queue.popleft()
            for after in np.flatnonzero(pipes[node]).tolist():
                if after not in before:
                    before[after] = node
                    queue.append(after)
        if sink not in before:
            return total
        path = [sink]
        while path[-1] != source:
            path.append(before[path[-1]])
        there, back = (path[1:], path[:-1]), (path[:-1], path[1:])
        step = pipes[there].min()
        pipes[there] -= step
        pipes[back] += step
        total += step
