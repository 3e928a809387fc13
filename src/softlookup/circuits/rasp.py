"""Programs of attention: selectors, means over what they select, and small programs made of nothing else."""

import operator
from collections.abc import Callable
from typing import Any

from array_api_compat import device

from softlookup._arrays import Array, cast, library, promote
from softlookup._checks import allowed_pairs, broadcast_batch, check_axes, check_callable, check_equal, finite, natural

__all__ = [
    "aggregate",
    "balanced",
    "balanced_by_peeling",
    "histogram",
    "induct",
    "latest",
    "nesting_depth",
    "reverse",
    "select",
    "selector_width",
    "selector_width_by_attention",
    "sort",
]

Predicate = Callable[[Array, Array], Array]
"""``predicate(key, query) -> selected``: compares arrays that broadcast, number by number."""


def select(keys: Array, queries: Array, /, *, predicate: Predicate = operator.eq) -> Array:
    r"""Say for each pair of a query and a key whether the query selects the key.

    .. math:: S_{ij} = \operatorname{predicate}(k_j, q_i)

    Parameters
    ----------
    keys : array of shape (..., m)
        One number or truth value for each key.
    queries : array of shape (..., n)
        The same for each query, of the same kind: whole numbers are not compared with floating point numbers.
    predicate : callable
        Compares: ``predicate(key, query)``, the key first. It gets arrays that broadcast and returns truth values.

    Returns
    -------
    boolean array of shape (..., n, m)
        The selector: True where the query selects the key.

    Raises
    ------
    ValueError
        If an axis is missing, if leading axes do not broadcast, or if the predicate enlarges the shape.
    TypeError
        If an argument is not an array, if two array libraries are mixed, or if the predicate is not callable or does
        not return truth values of their library.

    See Also
    --------
    aggregate : Reads what was selected.
    softlookup.masks.causal : A selector of positions.

    Notes
    -----
    Cost : O(n m) time and memory.
    Empty row : a query may select nothing.

    A selector is a mask. Selectors compose with ``&``, ``|`` and ``~``.

    References
    ----------
    G. Weiss, Y. Goldberg and E. Yahav, Thinking Like Transformers, ICML 2021.

    Examples
    --------
    >>> import numpy as np
    >>> select(np.array([1, 2, 3]), np.array([3, 1]))
    array([[False, False,  True],
           [ True, False, False]])
    """
    xp = library(keys=keys, queries=queries)
    check_callable("a function predicate(key, query)", predicate=predicate)
    check_axes("m", keys=keys)
    check_axes("n", queries=queries)
    shape = (*broadcast_batch(1, keys=keys, queries=queries), queries.shape[-1], keys.shape[-1])
    return allowed_pairs(xp, "predicate", predicate(keys[..., None, :], queries[..., :, None]), shape)


def aggregate(selector: Array, values: Array, /, *, default: float = 0.0) -> Array:
    r"""Return for each query the mean of the values that it selects.

    .. math:: \operatorname{out}_i = \frac{1}{|S_i|} \sum_{j \in S_i} v_j, \qquad S_i = \{\, j : S_{ij} \,\}

    Parameters
    ----------
    selector : boolean array of shape (..., n, m)
        True where the query selects the key.
    values : array of shape (..., m)
        One number for each key.
    default : float
        What a query gets that selects nothing.

    Returns
    -------
    array of shape (..., n)
        One mean for each query.

    Raises
    ------
    ValueError
        If an axis is missing, if the arrays do not agree in m, if leading axes do not broadcast, or if `default` is not
        finite.
    TypeError
        If `selector` is not boolean, if `values` is not an array of numbers, if two array libraries are mixed, or if
        `default` is not a number.

    See Also
    --------
    select : Makes selectors.
    softlookup.lookup.weighted_average : The same with any weights.

    Notes
    -----
    Slot : normalize
    Changes : a query reads the keys that it selects with equal weights; a comparison that answers yes or no takes the
        place of the score.
    Cost : O(n m) time and memory.
    Empty row : a query that selects nothing gets `default`, zero unless another number is given.
    Promises : prefix stable
    Equals : ``attention`` with equal scores and the selector as its mask; ``weighted_average`` of equal weights.
    Year : 2021
    Source : Weiss, Goldberg and Yahav, 2021, Thinking Like Transformers, section 3, arXiv 2106.06981.
    Other names : RASP, Restricted Access Sequence Processing, Tracr, RASP-L, averaging hard attention, select-aggregate

    A value that a query does not select can hold NaN or infinity without effect on its row.

    References
    ----------
    G. Weiss, Y. Goldberg and E. Yahav, Thinking Like Transformers, ICML 2021.

    Examples
    --------
    >>> import numpy as np
    >>> aggregate(np.array([[True, True, False], [False, False, False]]), np.array([2.0, 4.0, 9.0]))
    array([3., 0.])
    """
    library(selector=selector, values=values)
    check_axes("n m", selector=selector)
    check_axes("m", values=values)
    check_equal("items", -1, selector=selector, values=values)
    default = finite("default", default)
    xp, dtype, (values,) = promote(values=values)
    values = values[..., None, :]
    shape = (*broadcast_batch(2, selector=selector, values=values), *selector.shape[-2:])
    selector = allowed_pairs(xp, "selector", selector, shape)
    total = xp.sum(xp.where(selector, values, 0.0), axis=-1)
    width = cast(xp, selector_width(selector), total.dtype)
    mean = total / xp.where(width == 0, 1.0, width)
    return cast(xp, xp.where(width == 0, default, mean), dtype)


def selector_width(selector: Array, /) -> Array:
    r"""Count for each query the keys that it selects.

    .. math:: w_i = |\{\, j : S_{ij} \,\}|

    Parameters
    ----------
    selector : boolean array of shape (..., n, m)
        True where the query selects the key.

    Returns
    -------
    integer array of shape (..., n)
        One count for each query, in the library's default integer.

    Raises
    ------
    ValueError
        If an axis is missing.
    TypeError
        If `selector` is not a boolean array.

    See Also
    --------
    selector_width_by_attention : The same from a mean.

    Notes
    -----
    Cost : O(n m) time and memory.
    Empty row : a query that selects nothing counts zero.

    Examples
    --------
    >>> import numpy as np
    >>> selector_width(np.array([[True, True, False], [False, False, False]]))
    array([2, 0])
    """
    xp, selector = _checked(selector)
    return xp.sum(cast(xp, selector, xp.arange(0).dtype), axis=-1)


def selector_width_by_attention(selector: Array, /) -> Array:
    r"""Count by a mean: let every query select one item more, the only one with the value one, and invert the share.

    .. math:: w_i = \frac{1}{a_i} - 1, \qquad a_i = \frac{1}{1 + |S_i|}

    Parameters
    ----------
    selector : boolean array of shape (..., n, m)
        True where the query selects the key.

    Returns
    -------
    integer array of shape (..., n)
        One count for each query, rounded to the nearest whole number, in the library's default integer.

    Raises
    ------
    ValueError
        If an axis is missing.
    TypeError
        If `selector` is not a boolean array.

    See Also
    --------
    selector_width : The definition.

    Notes
    -----
    Cost : O(n m) time and memory: one head, and an item at the beginning of the text that every query selects.
    Empty row : a query that selects nothing counts zero.

    The share is a number of the library's default float. In float32 counts up to a million are exact.

    Examples
    --------
    >>> import numpy as np
    >>> selector_width_by_attention(np.array([[True, True, False], [False, False, False]]))
    array([2, 0])
    """
    xp, selector = _checked(selector)
    *rows, m = selector.shape
    first = xp.arange(m + 1, device=device(selector)) == 0
    always = xp.ones((*rows, 1), dtype=xp.bool, device=device(selector))
    share = aggregate(xp.concat([always, selector], axis=-1), cast(xp, first, xp.asarray(0.0).dtype))
    return _whole(xp, 1.0 / share - 1.0)


def latest(selector: Array, /) -> Array:
    r"""Keep of each row of a selector the last key alone.

    .. math:: L_{ij} = S_{ij} \ \text{and not}\ S_{il}\ \text{for any}\ l > j

    Parameters
    ----------
    selector : boolean array of shape (..., n, m)
        True where the query selects the key.

    Returns
    -------
    boolean array of shape (..., n, m)
        A selector of at most one key for each query.

    Raises
    ------
    ValueError
        If an axis is missing.
    TypeError
        If `selector` is not a boolean array.

    See Also
    --------
    softlookup.lookup.hardmax : The head that does it, with the position as the score.

    Notes
    -----
    Cost : O(n m) time and memory.
    Empty row : a query that selects nothing still selects nothing.

    Also called rightmost unique hard attention; in RASP-L, an aggregation of indices by their maximum.

    Examples
    --------
    >>> import numpy as np
    >>> latest(np.array([[True, True, False], [False, False, False]]))
    array([[False,  True, False],
           [False, False, False]])
    """
    xp, selector = _checked(selector)
    so_far = xp.cumulative_sum(cast(xp, selector, xp.arange(0).dtype), axis=-1)
    return selector & (so_far == selector_width(selector)[..., None])


def reverse(tokens: Array, /) -> Array:
    r"""Return a text backwards, by two layers: one counts its length, one reads from the other end.

    .. math:: \operatorname{out}_i = x_{n - 1 - i}

    Parameters
    ----------
    tokens : array of shape (..., n)
        Numbers.

    Returns
    -------
    array of shape (..., n)
        The same numbers in the opposite order.

    Raises
    ------
    ValueError
        If `tokens` has no axis.
    TypeError
        If `tokens` is not an array of numbers.

    See Also
    --------
    aggregate : What both layers do.

    Notes
    -----
    Cost : O(n²) time and memory; two layers of one head.
    Empty row : none; a text without tokens stays one.

    Integers become the library's default float.

    Examples
    --------
    >>> import numpy as np
    >>> reverse(np.array([5.0, 6.0, 7.0]))
    array([7., 6., 5.])
    """
    place = _places(tokens=tokens)
    length = selector_width(select(place, place, predicate=lambda key, query: key >= 0))
    return aggregate(select(place, length - 1 - place), tokens)


def histogram(tokens: Array, /) -> Array:
    r"""Count for each token how often it stands in the text, by one layer.

    .. math:: \operatorname{out}_i = |\{\, j : x_j = x_i \,\}|

    Parameters
    ----------
    tokens : array of shape (..., n)
        Numbers.

    Returns
    -------
    integer array of shape (..., n)
        One count for each position, in the library's default integer.

    Raises
    ------
    ValueError
        If `tokens` has no axis.
    TypeError
        If `tokens` is not an array.

    See Also
    --------
    selector_width : The count.

    Notes
    -----
    Cost : O(n²) time and memory; one layer of one head, with an item at the beginning that every query selects.
    Empty row : a NaN equals nothing, and counts zero.

    Examples
    --------
    >>> import numpy as np
    >>> histogram(np.array([7, 8, 7]))
    array([2, 1, 2])
    """
    library(tokens=tokens)
    check_axes("n", tokens=tokens)
    return selector_width(select(tokens, tokens))


def sort(keys: Array, values: Array, /) -> Array:
    r"""Return the values in the order of their keys, by two layers: one counts what comes before, one reads it.

    .. math:: \operatorname{out}_{t_i} = v_i, \qquad
              t_i = |\{\, j : k_j < k_i \ \text{or}\ (k_j = k_i \ \text{and}\ j < i) \,\}|

    Parameters
    ----------
    keys : array of shape (..., n)
        Numbers to sort by, the smallest first.
    values : array of shape (..., n)
        Numbers to sort.

    Returns
    -------
    array of shape (..., n)
        The values; those of equal keys stay in their order.

    Raises
    ------
    ValueError
        If an axis is missing, if there is not one value for each key, or if leading axes do not broadcast.
    TypeError
        If an argument is not an array, if `values` does not hold numbers, or if two array libraries are mixed.

    See Also
    --------
    selector_width : Finds the place of each value.

    Notes
    -----
    Cost : O(n²) time and memory; two layers of one head.
    Empty row : a place that no value has gets zero, which happens only where a key is NaN.

    Integers become the library's default float.

    Examples
    --------
    >>> import numpy as np
    >>> sort(np.array([3, 1, 2, 1]), np.array([30.0, 10.0, 20.0, 11.0]))
    array([10., 11., 20., 30.])
    """
    library(keys=keys, values=values)
    place = _places(keys=keys)
    check_axes("n", values=values)
    check_equal("items", -1, keys=keys, values=values)
    earlier = select(keys, keys) & select(place, place, predicate=operator.lt)
    target = selector_width(select(keys, keys, predicate=operator.lt) | earlier)
    return aggregate(select(target, place), values)


def nesting_depth(signs: Array, /) -> Array:
    r"""Count at each position how many brackets are open, by one layer: a mean over the past, times its length.

    .. math:: \operatorname{out}_i = (i + 1) \cdot \frac{1}{i + 1} \sum_{j \le i} s_j

    Parameters
    ----------
    signs : array of shape (..., n)
        Whole numbers: 1 for a bracket that opens, -1 for one that closes, 0 for everything else.

    Returns
    -------
    integer array of shape (..., n)
        The depth after each position, in the library's default integer; negative where too many brackets close.

    Raises
    ------
    ValueError
        If `signs` has no axis.
    TypeError
        If `signs` is not an array of numbers.

    See Also
    --------
    balanced : Asks whether the brackets fit.

    Notes
    -----
    Cost : O(n²) time and memory; one layer of one head.
    Empty row : none; each position reads at least itself.

    The product is rounded to the nearest whole number. Later positions leave earlier results alone.

    Examples
    --------
    >>> import numpy as np
    >>> nesting_depth(np.array([1, 1, -1, 0, -1]))
    array([1, 2, 1, 1, 0])
    """
    xp, _, (signs,) = promote(signs=signs)
    place = _places(signs=signs)
    mean = aggregate(select(place, place, predicate=operator.le), signs)
    return _whole(xp, mean * cast(xp, place + 1, mean.dtype))


def balanced(signs: Array, kinds: Array, /) -> Array:
    r"""Say at each position whether the brackets so far are closed and fit, by three layers, whatever their depth.

    .. math:: b_i = (d_i = 0) \ \text{and every}\ j \le i \ \text{that closes has the kind of the latest}\ l < j \
              \text{that opens at}\ d_l = d_j + 1

    Parameters
    ----------
    signs : array of shape (..., n)
        1 for a bracket that opens, -1 for one that closes, 0 for everything else.
    kinds : array of shape (..., n)
        One number for each position: brackets fit if they are of the same kind.

    Returns
    -------
    boolean array of shape (..., n)
        Whether the text up to and including the position is balanced; the last one speaks for the whole text.

    Raises
    ------
    ValueError
        If an axis is missing, if there is not one kind for each sign, or if leading axes do not broadcast.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    nesting_depth : The first layer.
    balanced_by_peeling : Without counting, by more layers.

    Notes
    -----
    Cost : O(n²) time and memory; three layers of one head.
    Empty row : a bracket that closes and finds no other to match does not fit.

    Later positions leave earlier results alone.

    References
    ----------
    G. Weiss, Y. Goldberg and E. Yahav, Thinking Like Transformers, ICML 2021, for another program.

    Examples
    --------
    >>> import numpy as np
    >>> balanced(np.array([1, 1, -1, -1, -1]), np.array([0, 7, 7, 0, 0]))
    array([False, False, False,  True, False])
    """
    xp, signs, kinds = _brackets(signs, kinds)
    place = _places(signs=signs)
    depth = nesting_depth(signs)
    level = depth + cast(xp, signs < 0, depth.dtype)
    earlier = select(place, place, predicate=operator.lt) & (signs > 0)[..., None, :]
    fits = latest(select(level, level) & earlier) & select(kinds, kinds)
    wrong = (signs < 0) & (selector_width(fits) == 0)
    so_far = select(place, place, predicate=operator.le) & wrong[..., None, :]
    return (depth == 0) & (selector_width(so_far) == 0)


def balanced_by_peeling(signs: Array, kinds: Array, /, *, depth: int) -> Array:
    r"""Say whether all brackets fit and are nested at most so deep: each layer removes the innermost pairs.

    Parameters
    ----------
    signs : array of shape (..., n)
        1 for a bracket that opens, -1 for one that closes, 0 for everything else.
    kinds : array of shape (..., n)
        One number for each position: brackets fit if they are of the same kind.
    depth : int
        How many times the innermost pairs are removed.

    Returns
    -------
    boolean array of shape (...)
        Whether nothing is left.

    Raises
    ------
    ValueError
        If an axis is missing, if there is not one kind for each sign, if leading axes do not broadcast, or if `depth`
        is negative.
    TypeError
        If an argument is not an array of numbers, if two array libraries are mixed, or if `depth` is not an integer.

    See Also
    --------
    balanced : By counting, at any depth.

    Notes
    -----
    Cost : O(depth · n²) time and O(n²) memory; one layer of two heads for each removal, and one for what is left.
    Empty row : a text without brackets is balanced.

    A bracket that closes looks at the nearest one to its left that is still there, a bracket that opens at the nearest
    one to its right; both see the same pairs.

    References
    ----------
    S. Yao et al., Self-Attention Networks Can Process Bounded Hierarchical Languages, ACL 2021.

    Examples
    --------
    >>> import numpy as np
    >>> signs, kinds = np.array([1, 1, -1, -1]), np.array([0, 7, 7, 0])
    >>> bool(balanced_by_peeling(signs, kinds, depth=1)), bool(balanced_by_peeling(signs, kinds, depth=2))
    (False, True)
    """
    xp, signs, kinds = _brackets(signs, kinds)
    place = _places(signs=signs)
    left = signs != 0
    for _ in range(natural("depth", depth)):
        earlier = select(place, place, predicate=operator.lt) & left[..., None, :]
        pairs = latest(earlier) & select(kinds, kinds) & select(signs, signs, predicate=operator.gt)
        pairs = pairs & left[..., :, None]
        left = left & ~xp.any(pairs, axis=-1) & ~xp.any(pairs, axis=-2)
    return ~xp.any(left, axis=-1)


def induct(tokens: Array, /, *, default: float = -1.0) -> Array:
    r"""Return what followed the latest earlier occurrence of each token, by two layers.

    .. math:: \operatorname{out}_i = x_{l + 1}, \qquad l = \max \{\, j < i : x_j = x_i \,\}

    Parameters
    ----------
    tokens : array of shape (..., n)
        Numbers.
    default : float
        What a token gets that did not occur before.

    Returns
    -------
    array of shape (..., n)
        For each position, the token to expect next.

    Raises
    ------
    ValueError
        If `tokens` has no axis, or if `default` is not finite.
    TypeError
        If `tokens` is not an array of numbers, or if `default` is not a number.

    See Also
    --------
    latest : Decides between several occurrences.

    Notes
    -----
    Cost : O(n²) time and memory; two layers of one head.
    Empty row : a token that did not occur before gets `default`.

    Also called the induction heads task. Integers become the library's default float. Later tokens leave earlier
    results alone.

    Examples
    --------
    >>> import numpy as np
    >>> induct(np.array([1.0, 2.0, 3.0, 1.0, 4.0, 1.0]))
    array([-1., -1., -1.,  2., -1.,  4.])
    """
    xp, dtype, (tokens,) = promote(tokens=tokens)
    place = _places(tokens=tokens)
    previous = aggregate(select(place, place - 1), tokens)
    second_or_later = select(place, place, predicate=lambda key, query: (key > 0) & (key <= query))
    found = latest(select(previous, tokens) & second_or_later)
    return cast(xp, aggregate(found, tokens, default=default), dtype)


def _checked(selector: Array) -> tuple[Any, Array]:
    """Return the library and the selector, which must be a boolean array with queries and keys."""
    xp = library(selector=selector)
    check_axes("n m", selector=selector)
    return xp, allowed_pairs(xp, "selector", selector, tuple(selector.shape))


def _places(**sequence: Array) -> Array:
    """Return the positions of a sequence ``(..., n)``, which is given by its name, counted from zero."""
    xp = library(**sequence)
    check_axes("n", **sequence)
    (x,) = sequence.values()
    return xp.arange(x.shape[-1], device=device(x))


def _brackets(signs: Array, kinds: Array) -> tuple[Any, Array, Array]:
    """Return the library, and one sign and one kind for each position."""
    xp, _, (signs, kinds) = promote(signs=signs, kinds=kinds)
    check_axes("n", signs=signs, kinds=kinds)
    check_equal("items", -1, signs=signs, kinds=kinds)
    broadcast_batch(1, signs=signs, kinds=kinds)
    return xp, signs, kinds


def _whole(xp: Any, x: Array) -> Array:
    """Return the nearest whole numbers, in the library's default integer."""
    return cast(xp, xp.round(x), xp.arange(0).dtype)
