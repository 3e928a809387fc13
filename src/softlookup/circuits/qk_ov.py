"""What a head looks for and what it moves: its two circuits, as matrices and as tables over characters."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from softlookup._arrays import Array, cast, inverse_root, promote
from softlookup._checks import check_axes, check_projects, check_shape
from softlookup.circuits.language_model import LETTERS, Model, cross_entropy, forward, repeated_letters

__all__ = [
    "cut_path",
    "head_matrices",
    "k_composition",
    "ov_circuit",
    "q_composition",
    "qk_circuit",
    "token_table",
    "v_composition",
]

INPUTS = ("query", "key", "value")


def head_matrices(model: Model, layer: int, /) -> tuple[Array, Array, Array, Array]:
    r"""Take the matrices of a layer apart, head by head.

    .. math:: x \, Q = [x \, Q_1, x \, Q_2, \dots], \qquad z \, O = \sum_h z_h \, O_h

    Parameters
    ----------
    model : dict of arrays
        As in `forward`.
    layer : int
        The layer l, counted from zero.

    Returns
    -------
    query, key, value : array of shape (H, d, k)
        What makes the queries, keys and values of each head.
    output : array of shape (H, k, d)
        What writes each head's blend of values into the stream.

    Raises
    ------
    ValueError
        If the model has no such layer.

    See Also
    --------
    qk_circuit : What the first two make.
    ov_circuit : What the last two make.

    Notes
    -----
    Cost : no arithmetic.
    Empty row : there is none.

    Examples
    --------
    >>> from softlookup.circuits import load_model
    >>> query, key, value, output = head_matrices(load_model(), 1)
    >>> query.shape, output.shape
    ((4, 64, 16), (4, 16, 64))
    """
    if f"b{layer}" not in model:
        raise ValueError(f"layer is {layer}; the model has no entry 'b{layer}'")
    heads, width = len(model[f"b{layer}"]), model["E"].shape[1]
    query, key, value = (model[f"{name}{layer}"].reshape(width, heads, -1).swapaxes(0, 1) for name in "QKV")
    return query, key, value, model[f"O{layer}"].reshape(heads, -1, width)


def qk_circuit(query: Array, key: Array, /) -> Array:
    r"""Make one matrix of what turns rows of the stream into queries and keys: what the head looks for.

    .. math:: M = \frac{Q K^\top}{\sqrt{k}}, \qquad s_{ij} = x_i \, M \, x_j^\top

    Parameters
    ----------
    query : array of shape (..., d, k)
        Makes queries, ``x @ query``.
    key : array of shape (..., d, k)
        Makes keys.

    Returns
    -------
    array of shape (..., d, d)
        The circuit, of rank at most k; the default scale of the dot product is inside.

    Raises
    ------
    ValueError
        If the two do not have the same shape, or fewer than two axes.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    ov_circuit : What the head moves.
    token_table : The same between characters.

    Notes
    -----
    Cost : O(d² k) time, O(d²) memory; scores from queries and keys are cheaper than through this matrix if k < d / 2.
    Empty row : without columns, k = 0, it is zero.

    Also called the query-key circuit. Integers become the library's default float.

    References
    ----------
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> qk_circuit(np.array([[2.0], [0.0]]), np.array([[0.0], [3.0]]))
    array([[0., 6.],
           [0., 0.]])
    """
    xp, dtype, (query, key) = promote(query=query, key=key)
    check_axes("d k", query=query)
    check_shape("key", key, query.shape)
    return cast(xp, inverse_root(query.shape[-1]) * (query @ key.mT), dtype)


def ov_circuit(value: Array, output: Array, /) -> Array:
    r"""Make one matrix of what reads values and what writes them: what the head moves.

    .. math:: W = V O, \qquad \text{out}_i = \sum_j w_{ij} \, x_j \, W

    Parameters
    ----------
    value : array of shape (..., d, k)
        Makes values, ``x @ value``.
    output : array of shape (..., k, d)
        Writes a blend of values into the stream.

    Returns
    -------
    array of shape (..., d, d)
        The circuit, of rank at most k.

    Raises
    ------
    ValueError
        If an axis is missing, or if `value` and `output` do not agree in k or d.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    qk_circuit : What the head looks for.

    Notes
    -----
    Cost : O(d² k) time, O(d²) memory.
    Empty row : without columns, k = 0, it is zero.

    Also called the output-value circuit. Integers become the library's default float.

    References
    ----------
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> ov_circuit(np.array([[1.0], [2.0]]), np.array([[3.0, 4.0]]))
    array([[3., 4.],
           [6., 8.]])
    """
    xp, dtype, (value, output) = promote(value=value, output=output)
    check_axes("d k", value=value)
    check_shape("output", output, (*value.shape[:-2], value.shape[-1], value.shape[-2]))
    return cast(xp, value @ output, dtype)


def token_table(left: Array, circuit: Array, right: Array, /) -> Array:
    r"""Read a circuit as a table: one number for each pair of a row on the left and a column on the right.

    .. math:: T = A \, W \, B

    Parameters
    ----------
    left : array of shape (..., a, d)
        Rows of the stream, such as the embedding E of every character.
    circuit : array of shape (..., d, d)
        A circuit.
    right : array of shape (..., d, b)
        What reads the result: the unembedding U, or the transpose of rows that are keys.

    Returns
    -------
    array of shape (..., a, b)
        The table.

    Raises
    ------
    ValueError
        If an axis is missing, or if the arrays do not fit together.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    qk_circuit : With E on both sides, who looks for whom.
    ov_circuit : With E and U, which character makes which one likelier.

    Notes
    -----
    Cost : O(a d (d + b)) time, O(a (d + b)) memory.
    Empty row : no rows give an empty table.

    Also called the full circuit, or the expanded weights. Integers become the library's default float.

    References
    ----------
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> token_table(np.eye(2), np.array([[0.0, 1.0], [2.0, 0.0]]), np.array([[1.0], [10.0]]))
    array([[10.],
           [ 2.]])
    """
    xp, dtype, (left, circuit, right) = promote(left=left, circuit=circuit, right=right)
    check_projects(left=left, circuit=circuit)
    check_projects(circuit=circuit, right=right)
    return cast(xp, left @ circuit @ right, dtype)


def q_composition(ov: Array, qk: Array, /) -> Array:
    r"""Say how much of what earlier heads write is read by the queries of later heads.

    .. math:: \frac{\lVert W_a M_b \rVert}{\lVert W_a \rVert \, \lVert M_b \rVert}

    Parameters
    ----------
    ov : array of shape (..., a, d, d)
        OV circuits W of a heads of an earlier layer.
    qk : array of shape (..., b, d, d)
        QK circuits M of b heads of a later layer.

    Returns
    -------
    array of shape (..., a, b)
        Numbers from zero to one, with the Frobenius norm; zero if a circuit is zero.

    Raises
    ------
    ValueError
        If an axis is missing, or if the two do not agree in d.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    k_composition : The same for the keys.
    v_composition : The same for the values.
    cut_path : What such a path does.

    Notes
    -----
    Cost : O(a b d³) time, O(a b d²) memory.
    Empty row : no heads give an empty table.

    For circuits that lie to each other at random its root mean square is 1 / sqrt(d). Integers become the library's
    default float.

    References
    ----------
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> ov = np.array([[[0.0, 1.0], [0.0, 0.0]]])  # writes into the second column
    >>> qk = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [2.0, 0.0]]])  # read the first, and the second
    >>> q_composition(ov, qk)
    array([[0., 1.]])
    """
    xp, dtype, (ov, qk) = promote(ov=ov, qk=qk)
    return cast(xp, _composition(xp, ov, "qk", qk, qk), dtype)


def k_composition(ov: Array, qk: Array, /) -> Array:
    r"""Say how much of what earlier heads write is read by the keys of later heads.

    .. math:: \frac{\lVert W_a M_b^\top \rVert}{\lVert W_a \rVert \, \lVert M_b \rVert}

    Parameters
    ----------
    ov : array of shape (..., a, d, d)
        OV circuits W of a heads of an earlier layer.
    qk : array of shape (..., b, d, d)
        QK circuits M of b heads of a later layer.

    Returns
    -------
    array of shape (..., a, b)
        Numbers from zero to one, with the Frobenius norm; zero if a circuit is zero.

    Raises
    ------
    ValueError
        If an axis is missing, or if the two do not agree in d.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    q_composition : The same for the queries.

    Notes
    -----
    Cost : O(a b d³) time, O(a b d²) memory.
    Empty row : no heads give an empty table.

    Integers become the library's default float.

    References
    ----------
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> ov = np.array([[[0.0, 1.0], [0.0, 0.0]]])  # writes into the second column
    >>> k_composition(ov, np.array([[[0.0, 2.0], [0.0, 0.0]]]))  # keys read the second
    array([[1.]])
    """
    xp, dtype, (ov, qk) = promote(ov=ov, qk=qk)
    check_axes("b d d", qk=qk)
    return cast(xp, _composition(xp, ov, "qk", qk, qk.mT), dtype)


def v_composition(ov: Array, later: Array, /) -> Array:
    r"""Say how much of what earlier heads write is read by the values of later heads.

    .. math:: \frac{\lVert W_a W_b \rVert}{\lVert W_a \rVert \, \lVert W_b \rVert}

    Parameters
    ----------
    ov : array of shape (..., a, d, d)
        OV circuits of a heads of an earlier layer.
    later : array of shape (..., b, d, d)
        OV circuits of b heads of a later layer.

    Returns
    -------
    array of shape (..., a, b)
        Numbers from zero to one, with the Frobenius norm; zero if a circuit is zero.

    Raises
    ------
    ValueError
        If an axis is missing, or if the two do not agree in d.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    q_composition : The same for the queries.

    Notes
    -----
    Cost : O(a b d³) time, O(a b d²) memory.
    Empty row : no heads give an empty table.

    The product of the two is a circuit too, that of a *virtual head*, which moves along both. Integers become the
    library's default float.

    References
    ----------
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> ov = np.array([[[0.0, 1.0], [0.0, 0.0]]])  # writes into the second column
    >>> v_composition(ov, np.array([[[0.0, 0.0], [3.0, 4.0]]])).round(12)  # reads the second
    array([[1.]])
    """
    xp, dtype, (ov, later) = promote(ov=ov, later=later)
    return cast(xp, _composition(xp, ov, "later", later, later), dtype)


def cut_path(model: Model, tokens: Array, /, *, heads: Sequence[int], into: str, layer: int = 0) -> Array:
    r"""Run the model while some heads of a layer are hidden from one kind of input of the next layer.

    .. math:: x'_{\text{into}} = x^{l+1} - \sum_{h \in \text{heads}} \text{out}^{l,h}

    Parameters
    ----------
    model : dict of arrays
        As in `forward`.
    tokens : integer array of shape (B, T)
        What is read.
    heads : sequence of int
        The heads whose output is hidden.
    into : str
        ``"query"``, ``"key"`` or ``"value"``: from which input of layer l + 1, where all its heads miss it.
    layer : int
        The layer l of those heads.

    Returns
    -------
    array of shape (B, T, 32)
        The logits. All else, the stream included, gets what the heads wrote.

    Raises
    ------
    ValueError
        If `into` is none of the three, if the model has no layer l + 1, or if a head does not exist.

    See Also
    --------
    k_composition : Guesses from the weights alone whether such a path matters.

    Notes
    -----
    Cost : that of `forward`.
    Empty row : no heads cut nothing.

    Also called path patching with zeros, or a path ablation.

    References
    ----------
    Wang et al., "Interpretability in the Wild", ICLR 2023, arXiv 2211.00593.

    Examples
    --------
    >>> import numpy as np
    >>> from softlookup.circuits import encode, load_model
    >>> model, tokens = load_model(), encode("the miller and the mill")[None]
    >>> logits, record = forward(model, tokens)
    >>> bool(np.all(cut_path(model, tokens, heads=[], into="key") == logits))
    True
    """
    if into not in INPUTS:
        raise ValueError(f"into is {into!r}; it must be one of {', '.join(INPUTS)}")
    if f"b{layer + 1}" not in model:
        raise ValueError(f"layer is {layer}; the model has no layer {layer + 1} that could read it")
    count = len(model[f"b{layer}"])
    if not all(0 <= head < count for head in heads):
        raise ValueError(f"heads is {list(heads)}; layer {layer} has the heads 0 to {count - 1}")
    written = {}

    def edit(name: str, x: Array) -> Array:
        if name == f"head{layer}":
            written["by heads"] = x[:, list(heads)].sum(axis=1)
        return x - written["by heads"] if name == f"{into}_input{layer + 1}" else x

    return forward(model, tokens, edit=edit)[0]


def _over_seeds(model: Model) -> dict[str, float]:
    """What the weights of one model say of its induction head, and what cutting the paths into it says."""
    tokens = repeated_letters(np.random.default_rng(1001), size=128, length=model["b0"].shape[1] // 2)
    half, (_, record) = tokens.shape[1] // 2, forward(model, tokens)
    late = np.arange(half, 2 * half - 1)
    follows = record["weights1"][:, :, late, late - half + 1].mean(axis=(0, 2))
    before = record["weights0"].diagonal(offset=-1, axis1=-2, axis2=-1).mean(axis=(0, 2))
    induction, previous = int(np.argmax(follows)), int(np.argmax(before))
    ov, (query, key, _, _) = ov_circuit(*head_matrices(model, 0)[2:]), head_matrices(model, 1)
    qk, letters = qk_circuit(query, key), model["E"][:LETTERS]
    tables = token_table(letters, qk[induction], (letters @ ov).mT)
    hits = (np.argmax(tables, axis=-1) == np.arange(LETTERS)).mean(axis=-1)

    def again(logits: Array) -> float:
        return float(cross_entropy(logits[:, half:-1], tokens[:, half + 1 :]).mean())

    heads = range(len(ov))
    scores = k_composition(ov, qk) - model["E"].shape[1] ** -0.5
    found = {
        "prefix matching": float(follows[induction]),
        "previous head": previous,
        "previous character": float(before[previous]),
        "uncut": again(forward(model, tokens)[0]),
        "score, other pairs": float(np.delete(scores, induction, axis=1).max()),
    }
    for into in INPUTS:
        found[f"cut, all from {into}"] = again(cut_path(model, tokens, heads=heads, into=into))
    for head in heads:
        found[f"diagonal, head {head}"] = float(hits[head])
        found[f"score, head {head}"] = float(scores[head, induction])
        found[f"cut, head {head}"] = again(cut_path(model, tokens, heads=[head], into="key"))
    return found


def _composition(xp: Any, ov: Array, name: str, later: Array, read: Array) -> Array:
    """Return the norm of each product ``ov (..., a, d, d) @ read (..., b, d, d)``, relative to those of its factors."""
    check_axes("a d d", ov=ov)
    check_axes("b d d", **{name: later})
    check_shape("ov", ov, (*ov.shape[:-1], ov.shape[-2]))
    check_shape(name, later, (*later.shape[:-2], *ov.shape[-2:]))

    def norm(x: Array) -> Array:
        return xp.sqrt(xp.sum(x**2, axis=(-2, -1)))

    both = norm(ov)[..., :, None] * norm(read)[..., None, :]
    product = norm(ov[..., :, None, :, :] @ read[..., None, :, :, :])
    return xp.where(both > 0, product / xp.where(both > 0, both, 1.0), 0.0)
