"""A language model of attention alone: its texts, its forward and backward pass, its training, its weights."""

import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from softlookup._arrays import Array, inverse_root
from softlookup._checks import check_axes, check_callable, check_shape, integer, natural, positive, positive_integer

__all__ = [
    "adam_step",
    "batch",
    "cross_entropy",
    "decode",
    "encode",
    "forward",
    "generate",
    "initialize",
    "load_model",
    "loss_and_gradient",
    "repeated_letters",
    "seed_results",
    "tales",
    "train",
]

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,;'\n"
LETTERS = 26  # the first symbols of the alphabet
SHORTEST = 8  # the shortest chunk that a batch repeats

Model = dict[str, Array]
"""The parameters by name: E and U, and for each layer l the matrices Ql, Kl, Vl and Ol and the table bl."""

State = tuple[int, Model, Model]
"""What Adam remembers: the number of steps, and the running means of the gradients and of their squares."""

_HERE = pathlib.Path(__file__).parent
_ONSETS = [*"bdfghklmnprstvwyz", "br", "dr", "gl", "kr", "qu", "sk", "tr"]
_VOWELS = "aeiou"
_ENDS = [*"dlmnrsx", "th"]
_WORDS = {
    "animal": ["fox", "goose", "horse", "goat", "mouse", "owl", "donkey", "raven", "hound", "cat"],
    "thing": ["ring", "lamp", "kettle", "key", "bell", "cloak", "drum", "coin", "mirror", "rope", "letter", "boat"],
    "trade": ["miller", "weaver", "baker", "smith", "fiddler", "tailor", "farmer", "sailor", "carpenter", "shepherd"],
    "kind": ["old", "small", "clever", "quiet", "brave", "proud", "hungry", "merry", "tired", "strange"],
    "spot": ["bridge", "mill", "market", "well", "tower", "forest", "river", "harbor", "garden", "hill"],
}
_OPENINGS = (
    "once there lived a {trade} by the name of {a}, in the {kind} town of {c}.",
    "in {c} there was a {kind} {animal}, and it was called {a}.",
    "long ago {a} and {b} lived by the {spot} of {c}.",
    "{a} was a {kind} {trade}, and {b} was the {animal} of {a}.",
    "they still tell of {a}, who had nothing but a {thing}.",
)
_MIDDLES = (
    "one day {a} met {b} at the {spot}.",
    "'good day, {b},' said {a}.",
    "'{a},' said {b}, 'give me my {thing}.'",
    "'ask {b},' said {a}; 'i have only a {thing}.'",
    "{b} took the {thing} and ran to the {spot}, but {a} was faster.",
    "then {a} gave the {thing} to {b}.",
    "the {animal} saw {b} and hid behind the {spot}.",
    "nobody in {c} had ever seen a {thing} so {kind}.",
    "'it was {b}, not {a},' cried the {trade}.",
    "{a} walked from {c} to the {spot} and sat down.",
    "{b} waited; {a} did not come.",
    "in the evening {a} and {b} went back to {c}.",
    "'tell me your name.' 'i am {b}, the {trade} of {c}.'",
    "all the night {b} looked for {a} by the {spot}.",
    "the {kind} {animal} knew the way to {c}, and {a} went with it.",
    "{a} sang, and {b} played the {thing}.",
)
_ENDINGS = (
    "so {a} came home to {c}, and {b} came too.",
    "and that is why the {spot} of {c} is called {a} to this day.",
    "since then {a} and {b} share the {thing}.",
    "and if {b} is not dead, {b} is still looking for the {thing}.",
    "{a} laughed, and {c} slept.",
)


def encode(text: str, /) -> Array:
    """Turn a text into numbers: each character into its place in ``ALPHABET``.

    Parameters
    ----------
    text : str
        Lower-case letters, spaces, full stops, commas, semicolons, apostrophes and ends of lines.

    Returns
    -------
    integer array of shape (n,)
        One number for each character; the letters a to z are 0 to 25.

    Raises
    ------
    ValueError
        If the text has a character that is not in ``ALPHABET``.
    TypeError
        If `text` is not a string.

    See Also
    --------
    decode : The way back.

    Notes
    -----
    Cost : O(n) time and memory.
    Empty row : an empty text gives an empty array.

    Also called tokenization, here with one token for each character.

    Examples
    --------
    >>> encode("a cab.")
    array([ 0, 26,  2,  0,  1, 27])
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, not {type(text).__name__}")
    symbols = {character: i for i, character in enumerate(ALPHABET)}
    if unknown := set(text) - set(symbols):
        raise ValueError(f"text has {''.join(sorted(unknown))!r}; it must keep to {ALPHABET!r}")
    return np.array([symbols[character] for character in text], dtype=np.int64)


def decode(tokens: Array, /) -> str:
    """Turn numbers back into a text.

    Parameters
    ----------
    tokens : integer array of any shape
        Places in ``ALPHABET``.

    Returns
    -------
    str
        One character for each number, row after row.

    Raises
    ------
    ValueError
        If a number is no place in ``ALPHABET``.
    TypeError
        If `tokens` is not a NumPy array of integers.

    See Also
    --------
    encode : The way there.

    Notes
    -----
    Cost : O(n) time and memory.
    Empty row : an empty array gives an empty text.

    Examples
    --------
    >>> decode(encode("a cab."))
    'a cab.'
    """
    _check_tokens("tokens", tokens, len(ALPHABET))
    return "".join(ALPHABET[i] for i in tokens.ravel().tolist())


def tales(rng: np.random.Generator, n: int, /) -> str:
    r"""Tell tales: sentences drawn from a short list, with names made up for each tale.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of the chances.
    n : int
        How many tales.

    Returns
    -------
    str
        The tales, each with the end of a line after it, in the characters of ``ALPHABET``.

    Raises
    ------
    ValueError
        If `n` is negative.
    TypeError
        If `rng` is not a generator or `n` not an integer.

    See Also
    --------
    batch : Cuts windows from the text.

    Notes
    -----
    Cost : O(n) time and memory; a tale has about 440 characters.
    Empty row : no tales give an empty text.

    A tale names two persons and a place. Their names come from some millions of possible ones, so a reader who meets
    one for the first time cannot know how it goes on; who meets it again can.

    Examples
    --------
    >>> import numpy as np
    >>> text = tales(np.random.default_rng(0), 2)
    >>> text.count("\n"), set(text) <= set(ALPHABET)
    (2, True)
    """
    _check_rng(rng)

    def pick(choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    def name() -> str:
        syllables = (pick(_ONSETS) + pick(_VOWELS) for _ in range(rng.integers(2, 4)))
        return "".join(syllables) + pick(_ENDS)

    told = []
    for _ in range(natural("n", n)):
        slots = {role: name() for role in "abc"} | {role: pick(words) for role, words in _WORDS.items()}
        sentences = [pick(_OPENINGS), *(pick(_MIDDLES) for _ in range(rng.integers(5, 9))), pick(_ENDINGS)]
        told.append(" ".join(sentences).format(**slots) + "\n")
    return "".join(told)


def batch(rng: np.random.Generator, text: Array, /, *, size: int, length: int) -> tuple[Array, Array]:
    r"""Draw windows to learn from: half of them plain text, a quarter repeated chunks, a quarter repeated letters.

    .. math:: \text{tokens}_t = c_{t \bmod p}, \qquad \text{targets}_t = c_{(t + 1) \bmod p}

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of the chances.
    text : integer array of shape (n,)
        A text as numbers, longer than one window.
    size : int
        How many windows B.
    length : int
        How many characters T a window has.

    Returns
    -------
    tokens : integer array of shape (B, T)
        What is read.
    targets : integer array of shape (B, T)
        What comes next at each place.

    Raises
    ------
    ValueError
        If `size` is not positive, if `length` is too short for a chunk to be repeated in it, or the text for a window.
    TypeError
        If `rng` is not a generator, `text` not a NumPy array of integers, or another argument not an integer.

    See Also
    --------
    repeated_letters : Letters alone, to measure with.

    Notes
    -----
    Cost : O(B T) time and memory.
    Empty row : there is none.

    A window of text has a period p longer than itself, so that nothing is repeated. The others have a period of their
    own between 8 and T / 2. It varies, because a fixed one could be learned by position alone.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> tokens, targets = batch(rng, encode(tales(rng, 2)), size=4, length=32)
    >>> tokens.shape, (tokens[:, 1:] == targets[:, :-1]).all().item()
    ((4, 32), True)
    """
    _check_rng(rng)
    _check_tokens("text", text, len(ALPHABET))
    size, length = positive_integer("size", size), integer("length", length)
    if length < 2 * SHORTEST:
        raise ValueError(f"length is {length}; it must be at least {2 * SHORTEST}, to repeat a chunk of {SHORTEST}")
    if text.ndim != 1 or text.size <= length:
        raise ValueError(f"text has shape {text.shape}; it must be one row of more than {length}")
    rows = np.arange(size)
    tokens = _windows(rng, text, size, length)
    letters = rng.integers(0, LETTERS, tokens.shape)
    tokens = np.where(rows[:, None] < 3 * size // 4, tokens, letters)
    period = np.where(rows < size // 2, length + 1, rng.integers(SHORTEST, length // 2 + 1, size))
    tokens = np.take_along_axis(tokens, np.arange(length + 1) % period[:, None], axis=1)
    return tokens[:, :-1], tokens[:, 1:]


def repeated_letters(rng: np.random.Generator, /, *, size: int, length: int, distinct: bool = False) -> Array:
    """Draw rows of random letters, each row written twice: nothing but a look back can foresee the second half.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of the chances.
    size : int
        How many rows B.
    length : int
        How many letters L before they are repeated.
    distinct : bool
        Whether the letters of a row all differ; then there are at most 26.

    Returns
    -------
    integer array of shape (B, 2 L)
        The letters a to z as numbers from 0 to 25.

    Raises
    ------
    ValueError
        If a number is negative, or if more than 26 letters are to differ.
    TypeError
        If `rng` is not a generator, or if a number is not an integer.

    See Also
    --------
    batch : Windows to learn from.

    Notes
    -----
    Cost : O(B L) time and memory.
    Empty row : no letters give rows without any.

    Examples
    --------
    >>> import numpy as np
    >>> decode(repeated_letters(np.random.default_rng(0), size=1, length=4))
    'wqnhwqnh'
    """
    _check_rng(rng)
    shape = natural("size", size), natural("length", length)
    if distinct and length > LETTERS:
        raise ValueError(f"length is {length}; at most {LETTERS} letters can be distinct")
    first = rng.integers(0, LETTERS, shape)
    if distinct:
        first = rng.permuted(np.tile(np.arange(LETTERS), (size, 1)), axis=1)[:, :length]
    return np.concatenate([first, first], axis=1)


def initialize(
    rng: np.random.Generator, /, *, width: int = 64, heads: int = 4, layers: int = 2, context: int = 64
) -> Model:
    """Draw the first weights of a model.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of the chances.
    width : int
        Columns d of the residual stream; the number of heads divides it.
    heads : int
        Heads H of a layer; each has d / H columns of its own.
    layers : int
        Layers of attention.
    context : int
        The most characters T that the model can read at once.

    Returns
    -------
    dict of arrays
        In float32: E (32, d) and U (d, 32), and for each layer l the matrices Ql, Kl, Vl and Ol (d, d), in which head h
        has the columns, for O the rows, from h d / H to (h + 1) d / H, and the table bl (H, T), which holds one number
        for each distance back.

    Raises
    ------
    ValueError
        If a number is not positive, if `layers` is negative, or if `heads` does not divide `width`.
    TypeError
        If `rng` is not a generator, or if a number is not an integer.

    See Also
    --------
    train : Goes on from here.

    Notes
    -----
    Cost : 64 d + layers (4 d² + H T) numbers.
    Empty row : without layers only E and U are left.

    All entries of a matrix are normal with the standard deviation 1 / sqrt(d), twice that for E and half of it for O;
    the tables begin with zeros.

    Examples
    --------
    >>> import numpy as np
    >>> model = initialize(np.random.default_rng(0))
    >>> sum(x.size for x in model.values())
    37376
    """
    _check_rng(rng)
    width, heads, context = (
        positive_integer(name, x) for name, x in (("width", width), ("heads", heads), ("context", context))
    )
    if width % heads:
        raise ValueError(f"heads is {heads}, which does not divide width, {width}")

    def normal(rows: int, columns: int, scale: float) -> Array:
        return (scale / math.sqrt(width) * rng.standard_normal((rows, columns))).astype(np.float32)

    model = {"E": normal(len(ALPHABET), width, 2.0), "U": normal(width, len(ALPHABET), 1.0)}
    for layer in range(natural("layers", layers)):
        model |= {f"{name}{layer}": normal(width, width, 1.0) for name in "QKV"}
        model |= {f"O{layer}": normal(width, width, 0.5), f"b{layer}": np.zeros((heads, context), np.float32)}
    return model


def forward(
    model: Model, tokens: Array, /, *, edit: Callable[[str, Array], Array] | None = None
) -> tuple[Array, dict[str, Array]]:
    r"""Read windows of text, and say at each place what comes next.

    .. math:: x^0 = E[\text{tokens}], \qquad x^{l+1} = x^l + \sum_h w^{l,h} \, (x^l V_{l,h}) \, O_{l,h}, \qquad
              \text{logits} = x^L U
    .. math:: w^{l,h}_{i \cdot} = \operatorname{softmax}_{j \le i} \Bigl(
              \frac{(x^l_i Q_{l,h}) \cdot (x^l_j K_{l,h})}{\sqrt{k}} + b_{l,h}[i - j] \Bigr)

    Parameters
    ----------
    model : dict of arrays
        What `initialize`, `train` or `load_model` gives, in float32 or float64.
    tokens : integer array of shape (B, T)
        Places in ``ALPHABET``; T is at least one and at most the context of the model.
    edit : callable, optional
        ``edit(name, array) -> array`` is called with each entry of the record that is marked below, in the order of
        computing, and what it returns is used in its place. It must not change the array itself.

    Returns
    -------
    logits : array of shape (B, T, 32)
        A score for each character that may come next; a softmax makes them probabilities.
    record : dict of arrays
        What was computed on the way, after editing. Marked entries: ``stream0`` (B, T, d), and for each layer l, in
        this order, ``query_inputl``, ``key_inputl`` and ``value_inputl`` (B, T, d), what the three projections read,
        ``scoresl`` (B, H, T, T) with the bias, and minus infinity for the future, ``weightsl`` (B, H, T, T), ``headl``
        (B, H, T, d), what each head adds to the stream, and ``stream(l+1)``. Others: ``queriesl``, ``keysl``,
        ``valuesl`` and ``mixedl`` (B, H, T, k), the blends of values before O.

    Raises
    ------
    ValueError
        If an entry of the model is missing or has a shape that does not fit, if `tokens` has another shape or a number
        that is no character, or if `edit` returns another shape.
    TypeError
        If an argument is not of NumPy, or holds something else than it should.

    See Also
    --------
    loss_and_gradient : The way back.
    attention : What every head computes.

    Notes
    -----
    Cost : O(B T (d² + H T k)) time for each layer; O(B H T (T + d)) memory.
    Empty row : a query all of whose scores are edited to minus infinity reads nothing, and its weights are zeros.

    Also called an attention-only transformer, or a decoder without MLP and without layer normalization. All arrays are
    of NumPy; the logits have the dtype of the model.

    Examples
    --------
    >>> import numpy as np
    >>> logits, record = forward(load_model(), encode("the name")[None])
    >>> logits.shape, record["weights1"].shape
    ((1, 8, 32), (1, 4, 8, 8))
    """
    layers, context = _check_model(model)
    _check_tokens("tokens", tokens, len(model["E"]))
    if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= context:
        raise ValueError(f"tokens has shape {tokens.shape}; it must be (B, T) with T from 1 to {context}")
    if edit is not None:
        check_callable("a function of a name and an array", edit=edit)
    record = {}

    def keep(name: str, x: Array) -> Array:
        record[name] = x if edit is None else edit(name, x)
        check_shape(f"edit({name!r}, ...)", record[name], x.shape)
        return record[name]

    positions = np.arange(tokens.shape[1])
    lag = positions[:, None] - positions
    x = keep("stream0", model["E"][tokens])
    for layer in range(layers):
        bias = model[f"b{layer}"]
        read = {}
        for matrix, name, names in (("Q", "query", "queries"), ("K", "key", "keys"), ("V", "value", "values")):
            read[matrix] = _split(keep(f"{name}_input{layer}", x) @ model[f"{matrix}{layer}"], len(bias))
            record[f"{names}{layer}"] = read[matrix]
        s = read["Q"] @ read["K"].mT
        s *= s.dtype.type(inverse_root(read["Q"].shape[-1]))
        s += np.where(lag < 0, -np.inf, bias[:, np.maximum(lag, 0)])
        w = keep(f"weights{layer}", _softmax(keep(f"scores{layer}", s)))
        record[f"mixed{layer}"] = w @ read["V"]
        out = model[f"O{layer}"].reshape(len(bias), -1, x.shape[-1])
        x = keep(f"stream{layer + 1}", x + keep(f"head{layer}", record[f"mixed{layer}"] @ out).sum(axis=1))
    return x @ model["U"], record


def cross_entropy(logits: Array, targets: Array, /) -> Array:
    r"""Say how surprised the model is by what really comes next.

    .. math:: \text{loss} = -\log \operatorname{softmax}(\text{logits})_{\text{target}}
              = \log \sum_c e^{\text{logits}_c} - \text{logits}_{\text{target}}

    Parameters
    ----------
    logits : array of shape (..., c)
        A score for each of c characters.
    targets : integer array of shape (...)
        The character that comes next.

    Returns
    -------
    array of shape (...)
        The loss of each place, in nats.

    Raises
    ------
    ValueError
        If `targets` does not have one number for each row of the logits, or a number that is no character.
    TypeError
        If an argument is not a NumPy array of the right numbers.

    See Also
    --------
    loss_and_gradient : The mean over all places, and its gradient.

    Notes
    -----
    Cost : O(c) time and memory for each place.
    Empty row : there is none; no places give no losses.

    Also called negative log likelihood, or surprisal. Its exponential, the number of equally likely characters among
    which one would be as surprised, is the perplexity.

    Examples
    --------
    >>> import numpy as np
    >>> cross_entropy(np.log([[0.5, 0.25, 0.25]]), np.array([1])).round(4)
    array([1.3863])
    """
    if not isinstance(logits, np.ndarray) or not np.issubdtype(logits.dtype, np.floating):
        raise TypeError("logits must be a NumPy array of floating point numbers")
    check_axes("c", logits=logits)
    _check_tokens("targets", targets, logits.shape[-1])
    check_shape("targets", targets, logits.shape[:-1])
    top = logits.max(axis=-1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(axis=-1)) + top[..., 0]
    return total - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


def loss_and_gradient(model: Model, tokens: Array, targets: Array, /) -> tuple[float, Model]:
    r"""Return the mean loss over all places, and its gradient with respect to every parameter.

    .. math:: \frac{\partial \, \text{loss}}{\partial s_{ij}} = w_{ij} \Bigl( g_i \cdot v_j - \sum_{j'} w_{ij'} \,
              g_i \cdot v_{j'} \Bigr), \qquad \frac{\partial \, \text{loss}}{\partial b[a]} = \sum_{i - j = a}
              \frac{\partial \, \text{loss}}{\partial s_{ij}}

    Parameters
    ----------
    model : dict of arrays
        As in `forward`.
    tokens : integer array of shape (B, T)
        What is read.
    targets : integer array of shape (B, T)
        What comes next at each place.

    Returns
    -------
    loss : float
        The mean cross-entropy, in nats.
    gradient : dict of arrays
        One array for each parameter, of its shape.

    Raises
    ------
    ValueError
        Where `forward` and `cross_entropy` raise it, or if there is no window.
    TypeError
        Where `forward` and `cross_entropy` raise it.

    See Also
    --------
    adam_step : Uses the gradient.
    attention_vjp : The same for one attention.

    Notes
    -----
    Cost : about three times that of `forward`.
    Empty row : there is none.

    Also called backpropagation, written out by hand. With g the gradient of the blends of one head, the inner sum is
    the product of g with the blend itself, so no second pass over the weights is needed.

    Examples
    --------
    >>> import numpy as np
    >>> model = initialize(np.random.default_rng(0))
    >>> tokens = encode("abcd")[None]
    >>> loss, gradient = loss_and_gradient(model, tokens, tokens)
    >>> gradient["E"].shape
    (32, 64)
    """
    logits, record = forward(model, tokens)
    losses = cross_entropy(logits, targets)
    if not losses.size:
        raise ValueError(f"tokens has shape {tokens.shape}; a mean needs at least one window")
    g = _softmax(logits)
    g -= np.eye(g.shape[-1], dtype=g.dtype)[targets]
    g /= g.dtype.type(losses.size)
    layers = _check_model(model)[0]
    gradient = {"U": _outer(record[f"stream{layers}"], g)}
    dx = g @ model["U"].T
    for layer in reversed(range(layers)):
        bias = model[f"b{layer}"]
        q, k, v, w, mixed = (record[f"{name}{layer}"] for name in ("queries", "keys", "values", "weights", "mixed"))
        gradient[f"O{layer}"] = _outer(_join(mixed), dx)
        g = _split(dx @ model[f"O{layer}"].T, len(bias))
        ds = g @ v.mT
        ds -= np.sum(g * mixed, axis=-1, keepdims=True)
        ds *= w
        gradient[f"b{layer}"], over_windows = np.zeros_like(bias), ds.sum(axis=0)
        for lag in range(tokens.shape[1]):
            gradient[f"b{layer}"][:, lag] = np.trace(over_windows, offset=-lag, axis1=-2, axis2=-1)
        ds *= ds.dtype.type(inverse_root(q.shape[-1]))
        x = record[f"stream{layer}"]
        for name, pulled in (("Q", ds @ k), ("K", ds.mT @ q), ("V", w.mT @ g)):
            pulled = _join(pulled)
            gradient[f"{name}{layer}"] = _outer(x, pulled)
            dx = dx + pulled @ model[f"{name}{layer}"].T
    gradient["E"] = _outer(np.eye(len(model["E"]), dtype=dx.dtype)[tokens], dx)
    return float(losses.mean()), gradient


def adam_step(
    model: Model,
    gradient: Model,
    state: State | None = None,
    /,
    *,
    rate: float,
    betas: tuple[float, float] = (0.9, 0.99),
    clip: float = math.inf,
) -> tuple[Model, State]:
    r"""Move every parameter against its gradient, by a step whose size depends little on that of the gradient.

    .. math:: m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad u \leftarrow \beta_2 u + (1 - \beta_2) g^2, \qquad
              p \leftarrow p - \text{rate} \cdot \frac{m / (1 - \beta_1^t)}{\sqrt{u / (1 - \beta_2^t)} + 10^{-8}}

    Parameters
    ----------
    model : dict of arrays
        The parameters p.
    gradient : dict of arrays
        Their gradients g, by the same names.
    state : tuple, optional
        What the step before returned: the number t of steps, and m and u for each parameter. Without it, zeros.
    rate : float
        The size of a step.
    betas : tuple of two floats
        How much of the running means m and u is kept in a step, from 0 up to but not 1.
    clip : float
        The longest gradient: where the root of the sum of all squares is larger, all are shrunk to it.

    Returns
    -------
    model : dict of arrays
        The new parameters; the old ones stay as they are.
    state : tuple
        For the next step.

    Raises
    ------
    ValueError
        If `rate` or `clip` is not positive, if a beta is out of range, or if the names of the gradients are others.
    TypeError
        If `rate` is not a number.

    See Also
    --------
    train : Calls it for every batch.

    Notes
    -----
    Cost : O(p) time and memory for p parameters.
    Empty row : a gradient that has always been zero leaves its parameter alone.

    Also called adaptive moment estimation.

    Examples
    --------
    >>> import numpy as np
    >>> model, gradient = {"x": np.array([1.0, 1.0])}, {"x": np.array([0.001, -5.0])}
    >>> adam_step(model, gradient, rate=0.1)[0]["x"].round(3)
    array([0.9, 1.1])
    """
    if set(gradient) != set(model):
        raise ValueError(f"gradient has the entries {sorted(gradient)}; model has {sorted(model)}")
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas is {betas}; each must be at least 0 and less than 1")
    rate, clip = positive("rate", rate), clip if clip == math.inf else positive("clip", clip)
    nothing = {name: np.zeros_like(x) for name, x in model.items()}
    t, mean, square = (0, nothing, nothing) if state is None else state
    t += 1
    length = math.sqrt(sum(float(np.sum(g * g)) for g in gradient.values()))
    shrink = clip / length if length > clip else 1.0
    new, new_mean, new_square = {}, {}, {}
    for name, x in model.items():
        g = shrink * gradient[name]
        new_mean[name] = betas[0] * mean[name] + (1 - betas[0]) * g
        new_square[name] = betas[1] * square[name] + (1 - betas[1]) * g * g
        spread = np.sqrt(new_square[name] / (1 - betas[1] ** t)) + 1e-8
        new[name] = x - rate / (1 - betas[0] ** t) * new_mean[name] / spread
    return new, (t, new_mean, new_square)


def train(
    rng: np.random.Generator,
    /,
    *,
    steps: int = 4000,
    model: Model | None = None,
    text: Array | None = None,
    size: int = 16,
    rate: float = 0.01,
    report: Callable[[int, Model, float], Any] | None = None,
) -> Model:
    """Train a model: draw a batch, compute the gradient, take a step, and again.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of the chances; the same seed gives the same model, up to rounding.
    steps : int
        How many batches.
    model : dict of arrays, optional
        Where to begin; a new model of `initialize` by default.
    text : integer array of shape (n,), optional
        What to learn from; a thousand tales by default.
    size : int
        Windows of a batch; a window is as long as the context of the model.
    rate : float
        The scale of the rate of learning: in step t of n it is ``rate * min(t / 50, 1) * (1 - 0.95 * t / n)``.
    report : callable, optional
        ``report(step, model, loss)`` is called after each step, counted from one, with the model after the step and
        the loss of its batch before it. Every step makes a new model, so it can be kept.

    Returns
    -------
    dict of arrays
        The trained model.

    Raises
    ------
    ValueError
        If `steps` is negative, and where `batch`, `forward` and `adam_step` raise it.
    TypeError
        If `report` cannot be called, and where `batch`, `forward` and `adam_step` raise it.

    See Also
    --------
    load_model : A model that is trained already.

    Notes
    -----
    Cost : that of `loss_and_gradient` for each step: about ten milliseconds on one core for the default model.
    Empty row : no steps leave the model as it began.

    The gradient is clipped at the length one. With ``OPENBLAS_NUM_THREADS=1`` in the environment, NumPy keeps to one
    core, and is less disturbed by other programs.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> losses = []
    >>> model = train(rng, steps=20, model=initialize(rng, width=16, heads=2), report=lambda *a: losses.append(a[2]))
    >>> losses[-1] < losses[0]
    True
    """
    _check_rng(rng)
    steps = natural("steps", steps)
    if report is not None:
        check_callable("a function of a step, a model and a loss", report=report)
    text = encode(tales(rng, 1000)) if text is None else text
    model = initialize(rng) if model is None else model
    length, state = _check_model(model)[1], None
    for step in range(1, steps + 1):
        loss, gradient = loss_and_gradient(model, *batch(rng, text, size=size, length=length))
        now = rate * min(step / 50, 1.0) * (1 - 0.95 * step / steps)
        model, state = adam_step(model, gradient, state, rate=now, clip=1.0)
        if report is not None:
            report(step, model, loss)
    return model


def generate(model: Model, prompt: str, n: int, /, *, temperature: float, rng: np.random.Generator) -> str:
    r"""Let the model write on, one character after the other.

    .. math:: c \sim \operatorname{softmax}(\text{logits} / \tau)

    Parameters
    ----------
    model : dict of arrays
        As in `forward`.
    prompt : str
        What stands there already; at least one character.
    n : int
        How many characters to write.
    temperature : float
        The number that the logits are divided by: near zero the likeliest character is taken, at one each character
        with the probability that the model gives it.
    rng : numpy.random.Generator
        Source of the chances.

    Returns
    -------
    str
        The n characters that follow the prompt.

    Raises
    ------
    ValueError
        If the prompt is empty or has an unknown character, if `n` is negative, or if `temperature` is not positive.
    TypeError
        If an argument is not of its type.

    See Also
    --------
    forward : Makes the logits.

    Notes
    -----
    Cost : n times that of `forward` for one window. Keys and values are computed again for each character, because
        the window moves, and what stood at its left end was read by those that follow.
    Empty row : nothing is written if `n` is zero.

    Also called autoregressive sampling. The model sees the last characters only, as many as its context has.

    Examples
    --------
    >>> import numpy as np
    >>> model, rng = load_model(), np.random.default_rng(0)
    >>> generate(model, "the name of zorbadel was upon the gate, and zor", 5, temperature=0.1, rng=rng)
    'badel'
    """
    tokens, context = encode(prompt).tolist(), _check_model(model)[1]
    if not tokens:
        raise ValueError("prompt is empty; it must have at least one character")
    temperature = positive("temperature", temperature)
    _check_rng(rng)
    for _ in range(natural("n", n)):
        logits, _ = forward(model, np.array(tokens[-context:])[None])
        odds = np.cumsum(_softmax(logits[0, -1].astype(np.float64) / temperature))
        tokens.append(int(np.searchsorted(odds, rng.random() * odds[-1], side="right")))
    return decode(np.array(tokens[len(prompt) :], dtype=np.int64))


def load_model() -> Model:
    """Load the trained model that comes with the library.

    Returns
    -------
    dict of arrays
        As `initialize` gives it with its defaults, in float32; the file holds it in half precision.

    See Also
    --------
    train : Makes such a model; ``python -m softlookup.circuits`` made this one.

    Notes
    -----
    Cost : a file of 72 kilobytes.
    Empty row : there is none.

    Examples
    --------
    >>> model = load_model()
    >>> model["Q0"].shape, model["b1"].shape
    ((64, 64), (4, 64))
    """
    with np.load(_HERE / "language_model.npz") as file:
        return {name: file[name].astype(np.float32) for name in file.files}


def seed_results(topic: str, /) -> dict[str, list[float]]:
    """Say what five models measured that differ in their seed alone.

    Parameters
    ----------
    topic : str
        A topic of this family, such as ``"language_model"``.

    Returns
    -------
    dict of lists
        For each quantity one number for each of the seeds 0 to 4.

    Raises
    ------
    ValueError
        If the topic has no such numbers.

    See Also
    --------
    load_model : The model of the seed 0.

    Notes
    -----
    Cost : a small file is read.
    Empty row : there is none.

    The numbers are made by ``python -m softlookup.circuits --seeds``, which trains the five models in some minutes.

    Examples
    --------
    >>> len(seed_results("language_model")["tales"])
    5
    """
    results = json.loads((_HERE / "seeds.json").read_text(encoding="utf-8"))
    if topic not in results:
        raise ValueError(f"topic is {topic!r}; there are numbers for {', '.join(results)}")
    return results[topic]


def _over_seeds(model: Model) -> dict[str, float]:
    """Losses on tales that were never seen, and on chunks and letters that are written once and then again."""
    rng, length = np.random.default_rng(1000), model["b0"].shape[1]
    text = encode(tales(rng, 100))
    windows = _windows(rng, text, 256, length)
    half = length // 2
    chunks = np.concatenate([windows[:, :half]] * 2, axis=1)
    found = {"tales": cross_entropy(forward(model, windows[:, :-1])[0], windows[:, 1:]).mean()}
    for name, tokens in (("chunks", chunks), ("letters", repeated_letters(rng, size=256, length=half))):
        losses = cross_entropy(forward(model, tokens[:, :-1])[0], tokens[:, 1:]).mean(axis=0)
        found |= {f"{name}, first time": losses[: half - 1].mean(), f"{name}, again": losses[half:].mean()}
    return {name: float(x) for name, x in found.items()}


def _windows(rng: np.random.Generator, text: Array, size: int, length: int) -> Array:
    """Cut windows from a text, each with the character after it: ``(size, length + 1)``."""
    return text[rng.integers(0, len(text) - length, size)[:, None] + np.arange(length + 1)]


def _split(x: Array, heads: int) -> Array:
    """Return ``x (B, T, H k)`` as ``(B, H, T, k)``."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-2, -3)


def _join(x: Array) -> Array:
    """Return ``x (B, H, T, k)`` as ``(B, T, H k)``."""
    return x.swapaxes(-2, -3).reshape(x.shape[0], x.shape[2], -1)


def _outer(a: Array, b: Array) -> Array:
    """Return the sum over all places of the products of the rows of ``a (B, T, m)`` and ``b (B, T, n)``: ``(m, n)``."""
    return a.reshape(-1, a.shape[-1]).T @ b.reshape(-1, b.shape[-1])


def _softmax(s: Array) -> Array:
    """The `softmax` of this library on NumPy arrays without plus infinity, with fewer passes over memory."""
    top = s.max(axis=-1, keepdims=True)
    w = s - np.where(top == -np.inf, 0, top)
    np.exp(w, out=w)
    total = w.sum(axis=-1, keepdims=True)
    w /= np.where(total == 0, 1, total)
    return w


def _check_rng(rng: np.random.Generator) -> None:
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, not {type(rng).__name__}")


def _check_tokens(name: str, tokens: Array, symbols: int) -> None:
    if not isinstance(tokens, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, not {type(tokens).__name__}")
    if not np.issubdtype(tokens.dtype, np.integer):
        raise TypeError(f"{name} must hold integers, not {tokens.dtype}")
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < symbols:
        raise ValueError(f"{name} has {tokens.min()} to {tokens.max()}; it must keep to 0 to {symbols - 1}")


def _check_model(model: Model) -> tuple[int, int]:
    """Return the number of layers and the context of a model; each of its arrays must fit the others."""
    layers = sum(name.startswith("O") for name in model)
    names = {"E", "U"} | {f"{name}{layer}" for name in "QKVOb" for layer in range(layers)}
    if set(model) != names:
        raise ValueError(f"model has the entries {sorted(model)}; it must have {sorted(names)}")
    for name, x in model.items():
        if not isinstance(x, np.ndarray) or x.dtype not in (np.float32, np.float64):
            raise TypeError(f"model[{name!r}] must be a NumPy array of float32 or float64")
        if x.ndim != 2:
            raise ValueError(f"model[{name!r}] has shape {x.shape}; it must have two axes")
    width, context = model["E"].shape[1], math.inf
    check_shape("model['U']", model["U"], (width, model["U"].shape[1]))
    for layer in range(layers):
        heads, context = model[f"b{layer}"].shape
        columns = model[f"O{layer}"].shape[0]
        if columns % heads:
            raise ValueError(f"model['O{layer}'] has {columns} rows, which its {heads} heads do not divide")
        for name, shape in (*((name, (width, columns)) for name in "QKV"), ("O", (columns, width))):
            check_shape(f"model['{name}{layer}']", model[f"{name}{layer}"], shape)
    return layers, context
