"""Several texts in one array: padding, prefixes, blocks, packed documents, shared prefixes and trees."""

from array_api_compat import array_namespace, device

from softlookup._arrays import Array, cast, integers
from softlookup._checks import allowed_pairs, check_axes, integer_pairs, natural, positive_integer
from softlookup.masks.causal import causal, strictly_causal

__all__ = [
    "block_causal",
    "document_ids",
    "document_positions",
    "padding",
    "prefix_causal",
    "same_document",
    "shared_prefix",
    "tree",
    "valid_keys",
]


def valid_keys(lengths: Array, /, *, size: int, left: bool = False) -> Array:
    r"""Mark the keys that are not padding, from the length of each text.

    .. math:: \text{valid}_j = (j < \text{length}), \qquad
              \text{or}\ \text{valid}_j = (j \ge \text{size} - \text{length})\ \text{when the padding is on the left}

    Parameters
    ----------
    lengths : integer array of shape (...)
        Number of keys of each text.
    size : int
        Number m of keys with the padding.
    left : bool
        Whether the padding stands before the text.

    Returns
    -------
    boolean array of shape (..., m)
        True at the keys of the text.

    Raises
    ------
    ValueError
        If `size` is negative.
    TypeError
        If `lengths` is not an array of signed integers, or if `size` is not an integer.

    See Also
    --------
    padding : The mask.

    Notes
    -----
    Cost : O(m) time and memory for each text.
    Empty row : a text of length zero or less has no valid key; one longer than `size` has all of them.

    Examples
    --------
    >>> import numpy as np
    >>> valid_keys(np.array([2, 3]), size=3).astype(int)
    array([[1, 1, 0],
           [1, 1, 1]])
    """
    xp, (lengths,) = integers(lengths=lengths)
    j = xp.arange(natural("size", size), device=device(lengths))
    return (size - 1 - j if left else j) < lengths[..., None]


def padding(valid: Array, /) -> Array:
    r"""Hide the keys that are padding from every query.

    .. math:: \text{allowed}_{ij} = \text{valid}_j

    Parameters
    ----------
    valid : boolean array of shape (..., m)
        True at the keys that are not padding.

    Returns
    -------
    boolean array of shape (..., 1, m)
        True where the query may read the key; one row for all queries.

    Raises
    ------
    ValueError
        If `valid` has no axis.
    TypeError
        If `valid` is not a boolean array.

    See Also
    --------
    valid_keys : Makes the argument from lengths.

    Notes
    -----
    Slot : mask
    Changes : hides the keys that only fill up the array.
    Cost : O(m) time and memory.
    Empty row : when no key is valid, no query reads anything.
    Promises : none
    Equals : attention over the valid keys alone.
    Year : 2017
    Source : no paper introduces it; this is the form of the key_padding_mask of PyTorch, with True and False exchanged.
    Other names : key padding mask, attention_mask, kv mask, valid length mask, nonpad_kv_seqlen

    It says nothing about queries: the row of a query that is padding reads the same keys as the others.

    Examples
    --------
    >>> import numpy as np
    >>> padding(np.array([True, True, False]))
    array([[ True,  True, False]])
    """
    xp = array_namespace(valid)
    check_axes("m", valid=valid)
    return allowed_pairs(xp, "valid", valid, tuple(valid.shape))[..., None, :]


def prefix_causal(q_positions: Array, k_positions: Array, prefix: Array, /) -> Array:
    r"""Let every query read the whole prefix, and the rest causally.

    .. math:: \text{allowed}_{ij} = (p_j \le p_i) \vee (p_j < \text{prefix})

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    prefix : integer array of shape (...)
        The position that ends the prefix: with positions from zero, its length.

    Returns
    -------
    boolean array of shape (..., n, m)
        True where the query may read the key.

    Raises
    ------
    ValueError
        Where `causal` raises it.
    TypeError
        If `prefix` is not an array of signed integers, and where `causal` raises it.

    See Also
    --------
    causal : Without a prefix.
    same_document : For spans anywhere in the text, as ``causal(...) | same_document(...)``.

    Notes
    -----
    Slot : mask
    Changes : the prefix reads itself in both directions.
    Cost : O(n m) time and memory.
    Empty row : a query before every key reads the prefix; without one, nothing.
    Promises : none
    Equals : ``causal`` when the prefix is empty; everything when it covers all keys.
    Year : 2020
    Source : Raffel et al., 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer,
        section 3.2.1, arXiv 1910.10683, who name it.
    Other names : prefix LM, prefix language model mask, causal with prefix, non-causal decoder

    References
    ----------
    C. Raffel et al., Journal of Machine Learning Research 21, 2020.

    Examples
    --------
    >>> import numpy as np
    >>> p = np.arange(3)
    >>> prefix_causal(p, p, np.array(2)).astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """
    _, (prefix, k_positions) = integers(prefix=prefix, k_positions=k_positions)
    return causal(q_positions, k_positions) | padding(k_positions < prefix[..., None])


def block_causal(q_positions: Array, k_positions: Array, /, *, block: int) -> Array:
    r"""Let each query read its own block in both directions, and all earlier blocks.

    .. math:: \text{allowed}_{ij} = (\lfloor p_j / \text{block} \rfloor \le \lfloor p_i / \text{block} \rfloor)

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    block : int
        Number of positions in a block; the blocks begin at the multiples of it.

    Returns
    -------
    boolean array of shape (..., n, m)
        True where the query may read the key.

    Raises
    ------
    ValueError
        If `block` is not positive, and where `causal` raises it.
    TypeError
        If `block` is not an integer, and where `causal` raises it.

    See Also
    --------
    same_document : Blocks of several lengths, as ``causal(...) | same_document(...)``.

    Notes
    -----
    Slot : mask
    Changes : causal between blocks, open inside a block.
    Cost : O(n m) time and memory.
    Empty row : a query whose block stands before every key reads nothing.
    Promises : none
    Equals : ``causal`` of the numbers of the blocks; ``causal`` when a block is one position.
    Year : 2025
    Source : Arriola et al., 2025, Block Diffusion, section 3.1, arXiv 2503.09573, for language models that write a
        block at a time.
    Other names : blockwise causal mask, frame-causal mask, semi-autoregressive mask

    References
    ----------
    M. Arriola et al., Block Diffusion: Interpolating Between Autoregressive and Diffusion Language Models, ICLR 2025.

    Examples
    --------
    >>> import numpy as np
    >>> p = np.arange(4)
    >>> block_causal(p, p, block=2).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 1],
           [1, 1, 1, 1]])
    """
    block = positive_integer("block", block)
    _, (q_positions, k_positions) = integers(q_positions=q_positions, k_positions=k_positions)
    return causal(q_positions // block, k_positions // block)


def same_document(q_ids: Array, k_ids: Array, /) -> Array:
    r"""Let each query read the keys of its own document.

    .. math:: \text{allowed}_{ij} = (\text{id}_i = \text{id}_j) \wedge (\text{id}_j \ge 0)

    Parameters
    ----------
    q_ids : integer array of shape (..., n)
        Number of the document of each query; negative for padding.
    k_ids : integer array of shape (..., m)
        Number of the document of each key.

    Returns
    -------
    boolean array of shape (..., n, m)
        True where the query may read the key.

    Raises
    ------
    ValueError
        If an array has no axis, or if the leading axes do not broadcast.
    TypeError
        If an argument is not an array of signed integers, or if two array libraries are mixed.

    See Also
    --------
    document_ids : Makes the arguments from cumulative lengths.
    document_positions : Counts positions anew in each document.

    Notes
    -----
    Slot : mask
    Changes : several texts in one row do not see each other.
    Cost : O(n m) time and memory; a schedule that visits one document at a time needs the sum of the squared lengths.
    Empty row : padding reads nothing, not even itself, and nobody reads it.
    Promises : none
    Equals : attention over each document alone.
    Year : 2021
    Source : Krell et al., 2021, Efficient Sequence Packing without Cross-contamination, abstract, arXiv 2107.02027.
    Other names : document mask, packing mask, block-diagonal mask, segment mask, varlen attention, sequence ids

    For packed texts of a decoder, combine it: ``causal(...) & same_document(...)``. For spans that are read in both
    directions, such as the patches of an image, ``causal(...) | same_document(...)`` with -1 outside of the spans.

    References
    ----------
    M. M. Krell et al., Efficient Sequence Packing without Cross-contamination, 2021.

    Examples
    --------
    >>> import numpy as np
    >>> ids = np.array([0, 0, 1, -1])
    >>> same_document(ids, ids).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 0],
           [0, 0, 0, 0]])
    """
    query, key = integer_pairs(q_ids=q_ids, k_ids=k_ids)
    return (query == key) & (key >= 0)


def document_ids(cumulative_lengths: Array, /, *, size: int) -> Array:
    r"""Number the documents of a packed row, from where each begins and ends.

    .. math:: \text{id}_i = d \ \text{for}\ c_d \le i < c_{d+1}, \qquad \text{id}_i = -1 \ \text{elsewhere}

    Parameters
    ----------
    cumulative_lengths : integer array of shape (..., D + 1)
        The ends c of the documents with a zero before them; document d has the items from c[d] to c[d + 1] - 1.
    size : int
        Number n of items in the row, with padding.

    Returns
    -------
    integer array of shape (..., n)
        Number of the document of each item; -1 for an item in none.

    Raises
    ------
    ValueError
        If `cumulative_lengths` has no axis, or if `size` is negative.
    TypeError
        If `cumulative_lengths` is not an array of signed integers, or if `size` is not an integer.

    See Also
    --------
    same_document : The mask.

    Notes
    -----
    Cost : O(n D) time and memory.
    Empty row : an empty document has no item, and its number is skipped.

    Examples
    --------
    >>> import numpy as np
    >>> document_ids(np.array([0, 2, 2, 3]), size=4)
    array([ 0,  0,  2, -1])
    """
    xp, (ends,) = integers(cumulative_lengths=cumulative_lengths)
    check_axes("D+1", cumulative_lengths=ends)
    i = xp.arange(natural("size", size), dtype=ends.dtype, device=device(ends))
    begun = xp.sum(cast(xp, ends[..., None, :] <= i[:, None], ends.dtype), axis=-1)
    return xp.where(begun < ends.shape[-1], begun - 1, -1)


def document_positions(ids: Array, /) -> Array:
    r"""Count positions anew in each document.

    .. math:: p_i = \bigl|\{\, j < i : \text{id}_j = \text{id}_i \,\}\bigr|

    Parameters
    ----------
    ids : integer array of shape (..., n)
        Number of the document of each item; negative for padding.

    Returns
    -------
    integer array of shape (..., n)
        Position of each item in its document; 0 for padding.

    Raises
    ------
    ValueError
        If `ids` has no axis.
    TypeError
        If `ids` is not an array of signed integers.

    See Also
    --------
    document_ids : Makes the argument.

    Notes
    -----
    Cost : O(n n) time and memory.
    Empty row : padding gets zero.

    Positions alone keep no document apart from another: combine with `same_document`.

    Examples
    --------
    >>> import numpy as np
    >>> document_positions(np.array([0, 0, 2, -1]))
    array([0, 1, 0, 0])
    """
    xp, (ids,) = integers(ids=ids)
    check_axes("n", ids=ids)
    place = xp.arange(ids.shape[-1], device=device(ids))
    earlier = same_document(ids, ids) & strictly_causal(place, place)
    return xp.sum(cast(xp, earlier, ids.dtype), axis=-1)


def shared_prefix(q_positions: Array, k_positions: Array, q_branches: Array, k_branches: Array, /) -> Array:
    r"""Let several continuations read one prefix and themselves, causally.

    .. math:: \text{allowed}_{ij} = (p_j \le p_i) \wedge (b_j = 0 \vee b_j = b_i \ge 0)

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query. Every continuation goes on where the prefix ends.
    k_positions : integer array of shape (..., m)
        Position of each key.
    q_branches : integer array of shape (..., n)
        Number of the continuation of each query: 0 for the prefix, 1 and more for the continuations.
    k_branches : integer array of shape (..., m)
        Number of the continuation of each key.

    Returns
    -------
    boolean array of shape (..., n, m)
        True where the query may read the key.

    Raises
    ------
    ValueError
        If an array has no axis, or if the leading axes do not broadcast.
    TypeError
        If an argument is not an array of signed integers, or if two array libraries are mixed.

    See Also
    --------
    tree : Continuations that branch again.

    Notes
    -----
    Slot : mask
    Changes : one copy of the prefix serves all continuations.
    Cost : O(n m) time and memory.
    Empty row : a query before every key that it may read gets nothing.
    Promises : prefix stable
    Equals : ``causal`` of the prefix with each continuation alone.
    Year : 2024
    Source : Juravsky et al., 2024, Hydragen, section 3.2, arXiv 2402.05099, as a schedule; the mask was in use before.
    Other names : prompt sharing, cascade attention, shared question mask

    A negative number marks padding, which nobody reads.

    References
    ----------
    J. Juravsky et al., Hydragen: High-Throughput LLM Inference with Shared Prefixes, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> p, b = np.array([0, 1, 1]), np.array([0, 1, 2])
    >>> shared_prefix(p, p, b, b).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 0, 1]])
    """
    query, key = integer_pairs(q_branches=q_branches, k_branches=k_branches)
    return causal(q_positions, k_positions) & (key >= 0) & ((key == 0) | (key == query))


def tree(parents: Array, /) -> Array:
    r"""Let each node of a tree read itself and the nodes above it.

    .. math:: \text{allowed}_{ij} = (j = i) \vee (j \ \text{is an ancestor of}\ i)

    Parameters
    ----------
    parents : integer array of shape (..., n)
        Number of the parent of each node; negative for a node without one.

    Returns
    -------
    boolean array of shape (..., n, n)
        True where the node may read the other.

    Raises
    ------
    ValueError
        If `parents` has no axis.
    TypeError
        If `parents` is not an array of signed integers.

    See Also
    --------
    shared_prefix : One branching.

    Notes
    -----
    Slot : mask
    Changes : many drafts of a continuation are read at once, each as if it were alone.
    Cost : O(n n n log n) time and O(n n) memory, for a small tree; a walk along the parents needs O(n depth).
    Empty row : none; each node reads itself.
    Promises : prefix stable
    Equals : ``causal`` when each node is the parent of the next; the identity when no node has a parent.
    Year : 2023
    Source : Miao et al., 2023, SpecInfer, section 4.2, arXiv 2305.09781, as tree-based parallel decoding.
    Other names : tree attention mask, ancestor mask, topology-aware causal mask, token tree, Medusa mask

    The promise holds when parents come before children. The number of ancestors, a row's sum less one, is the depth of
    a node, by which its position goes on from the prefix. All drafts also read the prefix: put columns of True before
    the result.

    References
    ----------
    X. Miao et al., SpecInfer: Accelerating Large Language Model Serving with Tree-based Speculative Inference and
    Verification, ASPLOS 2024.

    Examples
    --------
    >>> import numpy as np
    >>> tree(np.array([-1, 0, 0, 1])).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 0, 1, 0],
           [1, 1, 0, 1]])
    """
    xp, (parents,) = integers(parents=parents)
    check_axes("n", parents=parents)
    node = xp.arange(parents.shape[-1], dtype=parents.dtype, device=device(parents))
    above = (node == parents[..., None]) | (node == node[:, None])
    for _ in range(parents.shape[-1].bit_length()):
        steps = cast(xp, above, xp.float32)
        above = steps @ steps > 0
    return above
