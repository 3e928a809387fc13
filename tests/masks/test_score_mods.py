"""softlookup.masks.score_mods: masks and scores from functions of indices, and the blocks of a mask."""

import itertools

import numpy as np
import pytest
from array_api_compat import array_namespace
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_scores, gaussian_score, scaled_dot
from softlookup.masks import and_masks, block_summary, evaluate_mask, modified_score, or_masks
from softlookup.scores import capped

DOCUMENT = np.array([0, 0, 1, 1, 1, 2])
MASK_MODS = {
    "causal": lambda b, h, i, j: j <= i,
    "window": lambda b, h, i, j: (i - j <= 2) & (j <= i),
    "head": lambda b, h, i, j: (j + h) % 2 == 0,
    "batch": lambda b, h, i, j: j <= b + 1,
    "nothing": lambda b, h, i, j: (i < 0) & (j < 0),
}


def real(s, index):
    """An index in the type of the scores, where a library does not add the two."""
    return index if isinstance(s, float) else array_namespace(s).astype(index, s.dtype)


SCORE_MODS = {
    "bias": lambda s, b, h, i, j: s + 0.5 * real(s, j - i),
    "square": lambda s, b, h, i, j: s * s,
    "head": lambda s, b, h, i, j: s * real(s, h + 1) - real(s, b),
}


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def named(mods):
    return pytest.mark.parametrize("mod", mods.values(), ids=mods.keys())


class TestEvaluateMask:
    @named(MASK_MODS)
    def test_is_the_loop(self, xp, mod):
        q, k = (xp.asarray(np.zeros(shape)) for shape in ((2, 4, 3, 1), (2, 2, 5, 1)))
        expected = [[[[bool(mod(b, h, i, j)) for j in range(5)] for i in range(3)] for h in range(4)] for b in range(2)]
        xp.check(evaluate_mask(mod, q, k), expected, dtype="bool")

    def test_missing_axes_have_the_index_zero(self, xp):
        def mod(b, h, i, j):
            return (b == 0) & (h < 1) & (j <= i)

        for lead in ((), (2,)):
            x = xp.asarray(np.zeros((*lead, 3, 1)))
            expected = np.broadcast_to(np.tri(3, dtype=bool), (*lead, 3, 3)).copy()
            expected[1:] &= len(lead) == 0
            xp.check(evaluate_mask(mod, x, x), expected, dtype="bool")

    def test_a_table_may_be_looked_up(self):
        x = np.zeros((6, 1))
        mask = evaluate_mask(lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j], x, x)
        np.testing.assert_array_equal(mask, DOCUMENT[:, None] == DOCUMENT)

    @pytest.mark.parametrize("name", ["causal", "window", "head", "batch"])
    def test_agrees_with_flex_attention(self, torch, agree, monkeypatch, name):
        from torch.nn.attention import flex_attention as flex

        monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        q, k, v = random_arrays(0, (2, 4, 5, 3), (2, 4, 6, 3), (2, 4, 6, 2))
        blocks = flex.create_block_mask(MASK_MODS[name], 2, 4, 5, 6, device="cpu")
        with np.errstate(all="ignore"):
            theirs = flex.flex_attention(*map(torch.tensor, (q, k, v)), block_mask=blocks)
        agree(
            attention(q, k, v, mask=evaluate_mask(MASK_MODS[name], q, k)),
            theirs,
            function="masks.evaluate_mask",
            stranger="torch flex_attention with a mask_mod",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_bad_input(self, xp):
        x = xp.asarray(np.zeros((3, 2)))
        with pytest.raises(TypeError, match="mask_mod must answer with booleans"):
            evaluate_mask(lambda b, h, i, j: i + j, x, x)
        with pytest.raises(ValueError, match=r"answer of mask_mod.*\(3, 3, 3\)"):
            evaluate_mask(lambda b, h, i, j: xp.asarray(np.ones((3, 3, 3)), "bool"), x, x)
        with pytest.raises(ValueError, match="at most the axes"):
            evaluate_mask(MASK_MODS["causal"], xp.asarray(np.zeros((1, 1, 1, 2, 2))), x)
        with pytest.raises(ValueError, match=r"q.*\(3,\)"):
            evaluate_mask(MASK_MODS["causal"], xp.asarray(np.zeros(3)), x)
        with pytest.raises(TypeError, match=r"\bq\b"):
            evaluate_mask(MASK_MODS["causal"], [[1.0]], x)


class TestAndMasks:
    def test_is_and(self, xp):
        x = xp.asarray(np.zeros((2, 2, 4, 1)))
        mods = [MASK_MODS[name] for name in ("causal", "head", "batch")]
        expected = xp.numpy(evaluate_mask(mods[0], x, x))
        for mod in mods[1:]:
            expected = expected & xp.numpy(evaluate_mask(mod, x, x))
        xp.check(evaluate_mask(and_masks(*mods), x, x), expected, dtype="bool")

    def test_agrees_with_flex_attention(self, torch):
        from torch.nn.attention.flex_attention import and_masks as theirs

        index = [torch.arange(3).reshape(3, *[1] * axis) for axis in (3, 2, 1, 0)]
        mods = [MASK_MODS[name] for name in ("causal", "head")]
        np.testing.assert_array_equal(and_masks(*mods)(*index), theirs(*mods)(*index))

    def test_bad_input(self):
        with pytest.raises(ValueError, match="and_masks has no predicate"):
            and_masks()


class TestOrMasks:
    def test_is_or(self, xp):
        x = xp.asarray(np.zeros((2, 2, 4, 1)))
        mods = [MASK_MODS[name] for name in ("window", "head", "nothing")]
        expected = xp.numpy(evaluate_mask(mods[0], x, x)) | xp.numpy(evaluate_mask(mods[1], x, x))
        xp.check(evaluate_mask(or_masks(*mods), x, x), expected, dtype="bool")

    def test_agrees_with_flex_attention(self, torch):
        from torch.nn.attention.flex_attention import or_masks as theirs

        index = [torch.arange(3).reshape(3, *[1] * axis) for axis in (3, 2, 1, 0)]
        mods = [MASK_MODS[name] for name in ("window", "batch")]
        np.testing.assert_array_equal(or_masks(*mods)(*index), theirs(*mods)(*index))

    def test_bad_input(self):
        with pytest.raises(ValueError, match="or_masks has no predicate"):
            or_masks()


class TestModifiedScore:
    @named(SCORE_MODS)
    def test_is_the_loop(self, xp, mod):
        q, k = random_arrays(1, (2, 3, 4, 2), (2, 3, 5, 2))
        s = np.einsum("bhnd,bhmd->bhnm", q, k) / np.sqrt(2)
        expected = np.empty(s.shape)
        for index in np.ndindex(s.shape):
            expected[index] = mod(s[index], *index)
        xp.check(modified_score(mod)(xp.asarray(q), xp.asarray(k)), expected)

    def test_equals_a_bias_when_it_adds_by_index(self, xp):
        q, k, v = map(xp.asarray, random_arrays(2, (2, 4, 3), (2, 4, 3), (2, 4, 2)))
        bias = xp.asarray(0.5 * (np.arange(4) - np.arange(4)[:, None]))
        xp.check(attention(q, k, v, score=modified_score(SCORE_MODS["bias"])), xp.numpy(attention(q, k, v, bias=bias)))

    def test_equals_a_soft_cap(self, xp):
        q, k = map(xp.asarray, random_arrays(3, (3, 2), (4, 2)))
        tanh = array_namespace(q).tanh
        bent = modified_score(lambda s, b, h, i, j: 2 * tanh(s / 2), score=gaussian_score())
        xp.check(bent(q, k), xp.numpy(capped(gaussian_score(), cap=2.0)(q, k)))

    @named(SCORE_MODS)
    @pytest.mark.parametrize("kv_heads", [1, 2, 4])
    def test_agrees_with_flex_attention(self, torch, agree, monkeypatch, mod, kv_heads):
        from torch.nn.attention import flex_attention as flex

        monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        q, k, v = random_arrays(4, (2, 4, 5, 3), (2, kv_heads, 6, 3), (2, kv_heads, 6, 2))
        with np.errstate(all="ignore"):
            theirs = flex.flex_attention(*map(torch.tensor, (q, k, v)), score_mod=mod, enable_gqa=True)
        agree(
            attention(q, k, v, score=modified_score(mod)),
            theirs,
            function="masks.modified_score",
            stranger="torch flex_attention with a score_mod",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_the_scale_comes_first(self):
        q, k = random_arrays(5, (3, 4), (5, 4))
        seen = []
        modified_score(lambda s, b, h, i, j: seen.append(s) or s, score=scaled_dot(scale=0.3))(q, k)
        np.testing.assert_allclose(seen[0], 0.3 * q @ k.T)

    def test_gradients_pass_through(self, autograd):
        q, k, g = random_arrays(6, (3, 2), (4, 2), (3, 4))
        score = modified_score(SCORE_MODS["square"])
        dq, dk = autograd.vjp(score, *map(autograd.asarray, (g, q, k)))
        ds = g * 2 * attention_scores(q, k) / np.sqrt(2)
        autograd.check(dq, ds @ k)
        autograd.check(dk, ds.T @ q)

    def test_bad_input(self, xp):
        x = xp.asarray(np.zeros((3, 2)))
        with pytest.raises(TypeError, match="score_mod"):
            modified_score(1.0)
        with pytest.raises(TypeError, match="score must"):
            modified_score(SCORE_MODS["bias"], score=None)
        with pytest.raises(ValueError, match=r"result of score_mod.*\(2, 3, 3\)"):
            modified_score(lambda s, b, h, i, j: s + xp.asarray(np.ones((2, 1, 1))))(x, x)


class TestBlockSummary:
    @given(st.integers(0, 7), st.integers(0, 7), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
    def test_is_the_loop(self, n, m, rows, columns, seed):
        rng = np.random.default_rng(seed)
        mask = rng.random((n, m)) < rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        expected = []
        for a, c in itertools.product(range(-(-n // rows)), range(-(-m // columns))):
            block = mask[a * rows : (a + 1) * rows, c * columns : (c + 1) * columns]
            expected.append(2 if block.all() else int(block.any()))
        shape = -(-n // rows), -(-m // columns)
        np.testing.assert_array_equal(block_summary(mask, rows=rows, columns=columns), np.reshape(expected, shape))

    def test_by_hand_in_every_library(self, xp):
        mask = xp.asarray(np.tri(5, 6, 1, dtype=bool), "bool")
        expected = [[2, 1, 0], [2, 2, 1], [2, 2, 2]]
        np.testing.assert_array_equal(xp.numpy(block_summary(mask, rows=2, columns=2)), expected)

    def test_agrees_with_the_block_mask_of_torch_where_blocks_divide(self, torch):
        from torch.nn.attention.flex_attention import create_block_mask

        x = np.zeros((2, 2, 8, 1))
        for name, mod in MASK_MODS.items():
            theirs = create_block_mask(mod, 2, 2, 8, 8, device="cpu", BLOCK_SIZE=2)
            ours = block_summary(evaluate_mask(mod, x, x), rows=2, columns=2)
            np.testing.assert_array_equal((ours == 1).sum(-1), theirs.kv_num_blocks, err_msg=name)
            np.testing.assert_array_equal((ours == 2).sum(-1), theirs.full_kv_num_blocks, err_msg=name)

    def test_torch_calls_a_smaller_last_block_partial(self, torch):
        from torch.nn.attention.flex_attention import create_block_mask

        theirs = create_block_mask(lambda b, h, i, j: i >= 0, 1, 1, 3, 3, device="cpu", BLOCK_SIZE=2)
        np.testing.assert_array_equal(theirs.full_kv_num_blocks.ravel(), [1, 0])
        np.testing.assert_array_equal(block_summary(np.ones((3, 3), dtype=bool), rows=2, columns=2), [[2, 2], [2, 2]])

    def test_bad_input(self, xp):
        mask = xp.asarray(np.ones((2, 2)), "bool")
        for name in ("rows", "columns"):
            with pytest.raises(ValueError, match=name):
                block_summary(mask, **{"rows": 1, "columns": 1, name: 0})
            with pytest.raises(TypeError, match=name):
                block_summary(mask, **{"rows": 1, "columns": 1, name: 1.5})
        with pytest.raises(TypeError, match="boolean"):
            block_summary(xp.asarray(np.ones((2, 2))), rows=1, columns=1)
        with pytest.raises(ValueError, match=r"mask.*\(2,\)"):
            block_summary(xp.asarray(np.ones(2), "bool"), rows=1, columns=1)


@pytest.mark.parametrize(("name", "invariant"), held("masks/score_mods"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
