"""Heads that continue what was seen before: how they are recognized, and what is lost without them."""

import json
import pathlib
from collections.abc import Sequence

import numpy as np
from array_api_compat import device

from softlookup._arrays import Array, cast, library, promote
from softlookup._checks import allowed_pairs, check_axes, check_shape, integer
from softlookup.circuits.language_model import Model, _windows, cross_entropy, encode, forward, repeated_letters, tales
from softlookup.circuits.qk_ov import head_matrices, ov_circuit, token_table
from softlookup.circuits.rasp import select

__all__ = [
    "ablate_heads",
    "copying_score",
    "duplicate_token_pattern",
    "in_context_score",
    "induction_pattern",
    "pattern_score",
    "previous_token_pattern",
    "training_results",
]

CLEAR = 0.4
"""From this score on a head counts as an induction head; in the five models no other head reaches a tenth of it."""

_HERE = pathlib.Path(__file__).parent


def previous_token_pattern(tokens: Array, /) -> Array:
    r"""Mark the place just before each place: where a head looks that reads the previous token.

    .. math:: P_{ij} = (j = i - 1)

    Parameters
    ----------
    tokens : array of shape (..., n)
        A text; only its length is used.

    Returns
    -------
    boolean array of shape (..., n, n)
        True where the query i is to look at the key j.

    Raises
    ------
    ValueError
        If `tokens` has no axis.
    TypeError
        If `tokens` is not an array.

    See Also
    --------
    induction_pattern : Where an induction head looks.
    pattern_score : How much of the weight lies there.

    Notes
    -----
    Cost : O(n²) time and memory.
    Empty row : the first place has nothing before it.

    Examples
    --------
    >>> import numpy as np
    >>> previous_token_pattern(np.array([5, 6, 5])).astype(int)
    array([[0, 0, 0],
           [1, 0, 0],
           [0, 1, 0]])
    """
    xp = library(tokens=tokens)
    check_axes("n", tokens=tokens)
    query, key = _places(tokens)
    return xp.broadcast_to(key == query - 1, (*tokens.shape, tokens.shape[-1]))


def duplicate_token_pattern(tokens: Array, /) -> Array:
    r"""Mark the earlier copies of the token that stands at each place.

    .. math:: P_{ij} = (t_j = t_i) \wedge (j < i)

    Parameters
    ----------
    tokens : array of shape (..., n)
        A text, one number for each token.

    Returns
    -------
    boolean array of shape (..., n, n)
        True where the query i is to look at the key j.

    Raises
    ------
    ValueError
        If `tokens` has no axis.
    TypeError
        If `tokens` is not an array.

    See Also
    --------
    induction_pattern : One place further.
    select : Compares tokens without the condition on the places.

    Notes
    -----
    Cost : O(n²) time and memory.
    Empty row : a token that comes for the first time has no earlier copy.

    Examples
    --------
    >>> import numpy as np
    >>> duplicate_token_pattern(np.array([5, 6, 5])).astype(int)
    array([[0, 0, 0],
           [0, 0, 0],
           [1, 0, 0]])
    """
    same, (query, key) = select(tokens, tokens), _places(tokens)
    return same & (key < query)


def induction_pattern(tokens: Array, /) -> Array:
    r"""Mark the places just after the earlier copies of each token: where an induction head looks.

    .. math:: P_{ij} = (t_{j-1} = t_i) \wedge (1 \le j \le i)

    Parameters
    ----------
    tokens : array of shape (..., n)
        A text, one number for each token.

    Returns
    -------
    boolean array of shape (..., n, n)
        True where the query i is to look at the key j.

    Raises
    ------
    ValueError
        If `tokens` has no axis.
    TypeError
        If `tokens` is not an array.

    See Also
    --------
    duplicate_token_pattern : The copies themselves.
    induct : The program that follows this pattern.

    Notes
    -----
    Cost : O(n²) time and memory.
    Empty row : a token that comes for the first time has nothing to continue.

    The query may be its own key: where a token stands twice in a row, the second follows a copy of itself.

    References
    ----------
    Olsson et al., "In-context Learning and Induction Heads", 2022, arXiv 2209.11895.

    Examples
    --------
    >>> import numpy as np
    >>> induction_pattern(np.array([5, 6, 5])).astype(int)
    array([[0, 0, 0],
           [0, 0, 0],
           [0, 1, 0]])
    """
    same, (query, key) = select(tokens, tokens), _places(tokens)
    after = library(tokens=tokens).roll(same, 1, axis=-1)
    return after & (key > 0) & (key <= query)


def pattern_score(weights: Array, pattern: Array, /) -> Array:
    r"""Say how much of its weight a head puts on a pattern, as a mean over the queries that have something in it.

    .. math:: \frac{1}{|Q|} \sum_{i \in Q} \sum_{j \,:\, P_{ij}} w_{ij}, \qquad
              Q = \{\, i : P_{ij} \text{ for some } j \,\}

    Parameters
    ----------
    weights : array of shape (..., n, m)
        The weights w of a head.
    pattern : boolean array that broadcasts to the shape of `weights`
        The pattern P, such as one of those on this page.

    Returns
    -------
    array of shape (...)
        One number for each text and head, from zero to one if rows of weights sum to one.

    Raises
    ------
    ValueError
        If an axis is missing, or if `pattern` does not broadcast.
    TypeError
        If an argument is not an array of the right kind, or if two array libraries are mixed.

    See Also
    --------
    induction_pattern : With it, this is the prefix matching score.
    previous_token_pattern : With it, the previous token score.

    Notes
    -----
    Cost : O(n m) time and memory.
    Empty row : a query with nothing in the pattern does not count; if none has anything, the score is zero.

    Integers become the library's default float.

    References
    ----------
    Olsson et al., "In-context Learning and Induction Heads", 2022, arXiv 2209.11895.

    Examples
    --------
    >>> import numpy as np
    >>> w = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.5, 0.25]])
    >>> pattern_score(w, induction_pattern(np.array([5, 6, 5])))
    np.float64(0.5)
    """
    xp, dtype, (weights,) = promote(weights=weights)
    check_axes("n m", weights=weights)
    pattern = allowed_pairs(xp, "pattern", pattern, weights.shape)
    counted = xp.sum(cast(xp, xp.any(pattern, axis=-1), weights.dtype), axis=-1)
    total = xp.sum(xp.where(pattern, weights, 0.0), axis=(-2, -1))
    return cast(xp, total / xp.where(counted == 0, 1.0, counted), dtype)


def copying_score(table: Array, /) -> Array:
    r"""Say whether a head makes more likely what it reads: the eigenvalues of its table, those below zero against it.

    .. math:: \frac{\sum_i \lambda_i}{\sum_i |\lambda_i|} = \frac{\operatorname{tr} T}{\sum_i |\lambda_i|}

    Parameters
    ----------
    table : array of shape (..., c, c)
        The table T of a head from the token that it reads to the scores of the next one, as `token_table` makes it.

    Returns
    -------
    array of shape (...)
        Numbers from minus one to one. The score is one if all eigenvalues are positive; zero if all are zero.

    Raises
    ------
    ValueError
        If an axis is missing, or if the table is not square.
    TypeError
        If `table` is not an array of numbers.

    See Also
    --------
    ov_circuit : What the table is made of.

    Notes
    -----
    Cost : O(c³) time, O(c²) memory.
    Empty row : a table without tokens has the score zero.

    Complex eigenvalues come in pairs, and in the sum only their real parts are left. Integers become the library's
    default float. A number that is not finite is refused by some libraries, and makes the score not a number in others.

    References
    ----------
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> copying_score(np.array([[3.0, 0.0], [0.0, -1.0]]))
    np.float64(0.5)
    """
    xp, dtype, (table,) = promote(table=table)
    check_axes("c c", table=table)
    check_shape("table", table, (*table.shape[:-1], table.shape[-2]))
    size = xp.sum(xp.abs(xp.linalg.eigvals(table)), axis=-1)
    score = xp.linalg.trace(table) / xp.where(size == 0, 1.0, size)
    return cast(xp, score, dtype)


def in_context_score(losses: Array, /, *, early: tuple[int, int], late: tuple[int, int]) -> Array:
    r"""Say how much better a model foresees what stands late in the context than what stands early.

    .. math:: \text{mean}_{t \in \text{late}} \, \text{loss}_t - \text{mean}_{t \in \text{early}} \, \text{loss}_t

    Parameters
    ----------
    losses : array of shape (..., n)
        The loss at each place of a text.
    early, late : pair of int
        Two ranges of places, each with its first and the one after its last.

    Returns
    -------
    array of shape (...)
        The difference in nats; below zero if the model does better late.

    Raises
    ------
    ValueError
        If an axis is missing, or if a range is empty or reaches out of the text.
    TypeError
        If `losses` is not an array of numbers, or if a place is not an integer.

    See Also
    --------
    cross_entropy : Makes the losses.

    Notes
    -----
    Cost : O(n) time and memory.
    Empty row : there is none; a range holds at least one place.

    The mean over many texts is what counts: a single text is easy or hard at some place by chance. Integers become the
    library's default float.

    References
    ----------
    Olsson et al., "In-context Learning and Induction Heads", 2022, arXiv 2209.11895.

    Examples
    --------
    >>> import numpy as np
    >>> in_context_score(np.array([3.0, 2.5, 2.0, 1.0]), early=(0, 2), late=(3, 4))
    np.float64(-1.75)
    """
    xp, dtype, (losses,) = promote(losses=losses)
    check_axes("n", losses=losses)
    means = []
    for name, places in (("early", early), ("late", late)):
        start, stop = (integer(name, place) for place in places)
        if not 0 <= start < stop <= losses.shape[-1]:
            raise ValueError(f"{name} is {(start, stop)}; it must be a range within the {losses.shape[-1]} places")
        means.append(xp.mean(losses[..., start:stop], axis=-1))
    return cast(xp, means[1] - means[0], dtype)


def ablate_heads(
    model: Model, tokens: Array, /, *, heads: Sequence[tuple[int, int]], instead: dict[str, Array] | None = None
) -> Array:
    r"""Run the model without some of its heads.

    .. math:: \text{out}^{l,h} \leftarrow 0 \quad \text{or} \quad \text{mean}_b \, \text{out}^{l,h}_b

    Parameters
    ----------
    model : dict of arrays
        As in `forward`.
    tokens : integer array of shape (B, T)
        What is read.
    heads : sequence of pairs of int
        Layer and number of each head to be taken away.
    instead : dict of arrays, optional
        A record of `forward` on windows of the length T. What each head added there at a place, as a mean over these
        windows, is put in its stead; without a record, zeros.

    Returns
    -------
    array of shape (B, T, 32)
        The logits. All later layers read what was put in.

    Raises
    ------
    ValueError
        If the model has no such head, or if the record is of windows of another length.

    See Also
    --------
    cut_path : Hides a head from one reader alone.

    Notes
    -----
    Cost : that of `forward`.
    Empty row : without heads to take away, these are the logits of the model.

    Also called zero ablation and mean ablation, or knocking out heads.

    References
    ----------
    Olsson et al., "In-context Learning and Induction Heads", 2022, arXiv 2209.11895.

    Examples
    --------
    >>> import numpy as np
    >>> from softlookup.circuits import decode, encode, load_model
    >>> model, tokens = load_model(), encode("zorbadel met zor")[None]
    >>> for logits in (forward(model, tokens)[0], ablate_heads(model, tokens, heads=[(1, 0)])):
    ...     print(decode(np.argmax(logits[0, -1:], axis=-1)))
    b
    i
    """
    for layer, head in heads:
        if f"b{layer}" not in model or not 0 <= head < len(model[f"b{layer}"]):
            raise ValueError(f"heads has {(layer, head)}; the model has no such layer and head")

    def edit(name: str, x: Array) -> Array:
        gone = [head for layer, head in heads if name == f"head{layer}"]
        if not gone:
            return x
        x = x.copy()
        if instead is None:
            x[:, gone] = 0
        else:
            check_shape(f"instead[{name!r}]", instead[name], (len(instead[name]), *x.shape[1:]))
            x[:, gone] = instead[name][:, gone].mean(axis=0)
        return x

    return forward(model, tokens, edit=edit)[0]


def training_results() -> dict[str, list[float]]:
    """Say what the model that comes with the library measured while it was trained.

    Returns
    -------
    dict of lists
        Under ``"step"`` some steps of training, in increasing order, and for each quantity one number for each of them.

    See Also
    --------
    seed_results : What five trained models measure.
    load_model : The model at the end.

    Notes
    -----
    Cost : a small file is read.
    Empty row : there is none.

    The numbers are made by ``python -m softlookup.circuits --training``, which trains the model once more.

    Examples
    --------
    >>> training_results()["step"][-1]
    4000
    """
    return json.loads((_HERE / "training.json").read_text(encoding="utf-8"))


def _over_training(model: Model) -> dict[str, float]:
    """What a model measures on the way: its best heads, its losses on letters, and on tales early and late."""
    follows, before = _scores(model)
    letters, windows = _texts(model)
    half = letters.shape[1] // 2
    losses = cross_entropy(forward(model, letters[:, :-1])[0], letters[:, 1:]).mean(axis=0)
    told = cross_entropy(forward(model, windows[:, :-1])[0], windows[:, 1:]).mean(axis=0)
    early, late = _ranges(model)
    found = {
        "prefix matching": follows.max(),
        "previous character": before.max(),
        "letters, first time": losses[: half - 1].mean(),
        "letters, again": losses[half:].mean(),
        "tales": told.mean(),
        "in-context": in_context_score(told, early=early, late=late),
    }
    return {name: float(x) for name, x in found.items()}


def _over_seeds(model: Model) -> dict[str, float]:
    """What the heads of a model look like, and what is lost without those of induction or without their neighbors."""
    follows, before = _scores(model)
    tables = token_table(model["E"], ov_circuit(*head_matrices(model, 1)[2:]), model["U"])
    heads = range(len(follows))
    found = {}
    for name, numbers in (
        ("prefix matching", follows),
        ("previous character", before),
        ("copying", copying_score(tables.astype(np.float64))),
    ):
        found |= {f"{name}, head {head}": numbers[head] for head in heads}
    letters, windows = _texts(model)
    half, (early, late) = letters.shape[1] // 2, _ranges(model)
    records = [forward(model, x[:, :-1])[1] for x in (letters, windows)]
    induction = [(1, head) for head in heads if follows[head] > CLEAR]
    others = [(1, head) for head in heads if follows[head] <= CLEAR]
    for name, gone, means in (
        ("all heads", [], False),
        ("no induction", induction, False),
        ("no others", others, False),
        ("mean for induction", induction, True),
        ("mean for others", others, True),
    ):
        for text, x, record in (("letters", letters, records[0]), ("tales", windows, records[1])):
            logits = ablate_heads(model, x[:, :-1], heads=gone, instead=record if means else None)
            losses = cross_entropy(logits, x[:, 1:]).mean(axis=0)
            if text == "letters":
                found[f"letters again, {name}"] = losses[half:].mean()
            else:
                found[f"tales, {name}"] = losses.mean()
                found[f"in-context, {name}"] = in_context_score(losses, early=early, late=late)
    return {name: float(x) for name, x in found.items()}


def _scores(model: Model) -> tuple[Array, Array]:
    """Return for each head of the second layer its prefix matching, of the first its weight on the character before."""
    length = min(26, model["b0"].shape[1] // 2)
    tokens = repeated_letters(np.random.default_rng(1002), size=64, length=length, distinct=True)
    _, record = forward(model, tokens)
    return tuple(
        pattern_score(record[f"weights{layer}"], pattern(tokens)[:, None]).mean(axis=0)
        for layer, pattern in ((1, induction_pattern), (0, previous_token_pattern))
    )


def _texts(model: Model) -> tuple[Array, Array]:
    """Return rows of letters that are written twice, and windows of tales with one character more than the context."""
    rng, length = np.random.default_rng(1003), model["b0"].shape[1]
    letters = repeated_letters(rng, size=128, length=length // 2)
    text = encode(tales(rng, 100))
    return letters, _windows(rng, text, 512, length)


def _ranges(model: Model) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return what counts as early and as late: the second and the last eighth of the context."""
    eighth = model["b0"].shape[1] // 8
    return (eighth, 2 * eighth), (7 * eighth, 8 * eighth)


def _places(tokens: Array) -> tuple[Array, Array]:
    """Return the place of each query ``(n, 1)`` and of each key ``(n,)`` of ``tokens (..., n)``."""
    key = library(tokens=tokens).arange(tokens.shape[-1], device=device(tokens))
    return key[:, None], key
