"""What the tests of several masks need: rows of integers, a mask by a plain loop, and what must be refused."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

BIG = 2**40


def places(max_size=5, elements=st.integers(-4, 4) | st.sampled_from([-BIG, BIG])):
    return hnp.arrays(np.int64, st.integers(0, max_size), elements=elements)


def loop(queries, keys, rule):
    """The mask of one row of queries and one of keys, pair by pair in plain Python."""
    pairs = [[rule(int(i), int(j)) for j in keys] for i in queries]
    return np.array(pairs, dtype=bool).reshape(len(queries), len(keys))


def refuses_bad_pairs(function, xp, other, names=("q_positions", "k_positions")):
    """What every function of two rows of integers refuses."""
    good = xp.asarray([0, 1], "int64")
    for i, name in enumerate(names):
        for bad in ([0, 1], xp.asarray([0.0, 1.0]), xp.asarray([True, False], "bool"), other.asarray([0, 1], "int64")):
            with pytest.raises(TypeError, match=name):
                function(*(bad if j == i else good for j in range(2)))
        with pytest.raises(ValueError, match=name):
            function(*(xp.asarray(0, "int64") if j == i else good for j in range(2)))
    with pytest.raises(ValueError, match=names[0]):
        function(xp.asarray(np.zeros((2, 3)), "int64"), xp.asarray(np.zeros((4, 3)), "int64"))


def random_items(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def version(library):
    return library.__version__.split("+")[0]
