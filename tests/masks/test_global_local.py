"""softlookup.masks.global_local: a window, and items that read all and are read by all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import held
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_weights
from softlookup.masks import global_local, global_tokens, sliding_window

claims = pytest.mark.claims
flags = hnp.arrays(bool, st.integers(0, 5))


class TestGlobalTokens:
    @given(flags, flags)
    def test_is_the_loop(self, q, k):
        expected = np.array([[bool(a or b) for b in k] for a in q], dtype=bool).reshape(len(q), len(k))
        np.testing.assert_array_equal(global_tokens(q, k), expected)

    def test_batches_broadcast(self, xp):
        q, k = np.array([[True, False], [False, False]]), np.array([False, True, False])
        expected = q[:, :, None] | k
        xp.check(global_tokens(xp.asarray(q, "bool"), xp.asarray(k, "bool")), expected, dtype="bool")

    def test_one_way(self, xp):
        nobody, first = (xp.asarray(a, "bool") for a in ([False] * 3, [True, False, False]))
        xp.check(global_tokens(nobody, first), np.broadcast_to([True, False, False], (3, 3)), dtype="bool")

    def test_bad_input(self, xp, other):
        good = xp.asarray([True, False], "bool")
        for bad in ([True], xp.asarray([1.0, 0.0]), xp.asarray([1, 0], "int64")):
            with pytest.raises(TypeError, match="q_global must be a boolean"):
                global_tokens(bad, good)
            with pytest.raises(TypeError, match="k_global must be a boolean"):
                global_tokens(good, bad)
        with pytest.raises(TypeError, match="one library"):
            global_tokens(good, other.asarray([True, False], "bool"))
        with pytest.raises(ValueError, match=r"q_global.*\(\)"):
            global_tokens(xp.asarray(True, "bool"), good)
        with pytest.raises(ValueError, match=r"k_global.*\(\)"):
            global_tokens(good, xp.asarray(True, "bool"))
        with pytest.raises(ValueError, match=r"do not broadcast.*\(2,\).*\(3,\)"):
            global_tokens(xp.asarray(np.ones((2, 2)), "bool"), xp.asarray(np.ones((3, 2)), "bool"))


class TestGlobalLocal:
    @given(st.integers(0, 6), st.integers(0, 3), st.integers(0, 3), st.integers(0, 63))
    def test_is_the_loop(self, n, left, right, bits):
        chosen = np.array([bool(bits >> i & 1) for i in range(n)], dtype=bool)
        expected = [[-left <= j - i <= right or chosen[i] or chosen[j] for j in range(n)] for i in range(n)]
        p = np.arange(n)
        out = global_local(p, p, chosen, chosen, left=left, right=right)
        np.testing.assert_array_equal(out, np.array(expected, dtype=bool).reshape(n, n))

    def test_is_its_parts(self, xp):
        p, chosen = xp.asarray(np.arange(6), "int64"), xp.asarray(np.arange(6) % 4 == 1, "bool")
        expected = xp.numpy(sliding_window(p, p, left=2, right=None) | global_tokens(chosen, chosen))
        xp.check(global_local(p, p, chosen, chosen, left=2, right=None), expected, dtype="bool")

    def test_two_layers_reach_everything(self):
        p, chosen = np.arange(40), np.arange(40) == 7
        once = global_local(p, p, chosen, chosen, left=1, right=1)
        assert not once.all()
        assert (once.astype(int) @ once > 0).all()

    @claims("W08")
    def test_case_w08_a_global_token_sees_all_and_is_seen_by_all(self, xp, case):
        c = case("W08")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        p, chosen = xp.asarray(np.arange(5), "int64"), xp.asarray(c["inputs"]["is_global"], "bool")
        mask = global_local(p, p, chosen, chosen, left=1, right=1)
        xp.check(mask, c["expected"]["keep"], dtype="bool")
        xp.check(attention_weights(q, k, mask=mask), c["expected"]["weights"])
        xp.check(attention(q, k, v, mask=mask), c["expected"]["out"])

    @claims("W08")
    @pytest.mark.parametrize("n", [1, 2, 5, 9])
    @pytest.mark.parametrize("left", [0, 1, 3])
    def test_case_w08_whatever_is_global_weights_are_dense_and_each_call_is_its_own(self, n, left):
        p, v = np.arange(n), np.eye(n)
        x = np.zeros((n, 1))
        alone = {}
        for bits in range(min(2**n, 40)):
            chosen = np.array([bool(bits >> i & 1) for i in range(n)])
            mask = global_local(p, p, chosen, chosen, left=left, right=left)
            assert mask[chosen].all()
            assert mask[:, chosen].all()
            np.testing.assert_array_equal(mask, mask.T)
            w = attention(x, x, v, mask=mask)
            assert w.shape == (n, n)
            np.testing.assert_allclose(w, mask / mask.sum(-1, keepdims=True))
            alone[bits] = w
        for bits, w in alone.items():
            chosen = np.array([bool(bits >> i & 1) for i in range(n)])
            again = attention(x, x, v, mask=global_local(p, p, chosen, chosen, left=left, right=left))
            np.testing.assert_array_equal(again, w)

    def test_bad_input(self, xp):
        p, chosen = xp.asarray([0, 1], "int64"), xp.asarray([True, False], "bool")
        with pytest.raises(ValueError, match="left"):
            global_local(p, p, chosen, chosen, left=-1, right=0)
        with pytest.raises(TypeError, match="q_positions"):
            global_local(xp.asarray([0.0, 1.0]), p, chosen, chosen, left=1, right=0)
        with pytest.raises(TypeError, match="k_global"):
            global_local(p, p, chosen, p, left=1, right=0)


@pytest.mark.parametrize(("name", "invariant"), held("masks/global_local"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
