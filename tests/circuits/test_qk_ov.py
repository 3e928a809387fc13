"""The two circuits of a head: against plain loops, a stranger, the forward pass, and arithmetic by hand."""

import json

import numpy as np
import pytest
from invariants import held
from oracles.freeze import frozen
from subjects import SUBJECTS

from softlookup.circuits import (
    cross_entropy,
    cut_path,
    forward,
    head_matrices,
    initialize,
    k_composition,
    load_model,
    ov_circuit,
    q_composition,
    qk_circuit,
    qk_ov,
    repeated_letters,
    seed_results,
    token_table,
    v_composition,
)
from softlookup.lookup import softmax


def small_model(seed=0):
    """Two layers with weights that are large enough to matter, in double precision."""
    rng = np.random.default_rng(seed)
    model = initialize(rng, width=12, heads=3, context=9)
    return {name: rng.normal(size=x.shape) / 3 for name, x in model.items()}


def norm(matrix):
    return sum(x * x for row in matrix for x in row) ** 0.5


def times(a, b):
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


class TestHeadMatrices:
    def test_each_head_has_its_own_columns_and_rows(self):
        model = small_model()
        query, key, value, output = head_matrices(model, 1)
        for head in range(3):
            columns = slice(4 * head, 4 * head + 4)
            for ours, name in ((query, "Q1"), (key, "K1"), (value, "V1")):
                np.testing.assert_array_equal(ours[head], model[name][:, columns])
            np.testing.assert_array_equal(output[head], model["O1"][columns])

    @pytest.mark.parametrize("layer", [2, -1])
    def test_bad_input(self, layer):
        with pytest.raises(ValueError, match=f"layer is {layer}.*'b{layer}'"):
            head_matrices(small_model(), layer)


class TestQkCircuit:
    def test_by_hand(self, xp):
        query, key = xp.asarray([[1.0, 2.0], [0.0, 1.0]]), xp.asarray([[3.0, 0.0], [1.0, 1.0]])
        xp.check(qk_circuit(query, key) * 2**0.5, np.array([[3.0, 3.0], [0.0, 1.0]]), dtype="float64")

    def test_the_scores_of_the_forward_pass(self):
        model, tokens = small_model(), np.arange(9)[None]
        _, record = forward(model, tokens)
        query, key, _, _ = head_matrices(model, 1)
        x, lag = record["stream1"][0], np.arange(9)[:, None] - np.arange(9)
        s = x @ qk_circuit(query, key) @ x.T + np.where(lag < 0, -np.inf, model["b1"][:, np.maximum(lag, 0)])
        np.testing.assert_allclose(record["scores1"][0], s, rtol=1e-12)

    def test_a_turn_of_queries_undone_by_keys_changes_nothing(self):
        rng = np.random.default_rng(0)
        query, key, turn = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), rng.normal(size=(3, 3))
        moved = qk_circuit(query @ turn, key @ np.linalg.inv(turn).T)
        np.testing.assert_allclose(moved, qk_circuit(query, key), rtol=1e-9, atol=1e-11)

    def test_without_columns_it_is_zero(self, xp):
        empty = xp.asarray(np.zeros((3, 0)))
        xp.check(qk_circuit(empty, empty), np.zeros((3, 3)), dtype="float64")

    def test_bad_input(self, xp):
        one = xp.asarray(np.ones((3, 2)))
        with pytest.raises(ValueError, match=r"key has shape \(3, 1\); it must be \(3, 2\)"):
            qk_circuit(one, one[:, :1])
        with pytest.raises(ValueError, match="query.*axes"):
            qk_circuit(one[0, :], one[0, :])


class TestOvCircuit:
    def test_by_hand(self, xp):
        value, output = xp.asarray([[1.0], [2.0]]), xp.asarray([[5.0, 7.0]])
        xp.check(ov_circuit(value, output), np.array([[5.0, 7.0], [10.0, 14.0]]), dtype="float64")

    def test_what_the_forward_pass_adds(self):
        model, tokens = small_model(), np.arange(9)[None]
        _, record = forward(model, tokens)
        ov = ov_circuit(*head_matrices(model, 0)[2:])
        np.testing.assert_allclose(record["head0"], record["weights0"] @ record["stream0"][:, None] @ ov, rtol=1e-11)

    def test_bad_input(self, xp):
        value = xp.asarray(np.ones((4, 3, 2)))
        with pytest.raises(ValueError, match=r"output has shape \(4, 3, 2\); it must be \(4, 2, 3\)"):
            ov_circuit(value, value)
        with pytest.raises(ValueError, match="value.*axes"):
            ov_circuit(value[0, 0, :], value)


class TestTokenTable:
    def test_entry_by_entry(self, xp):
        rng = np.random.default_rng(1)
        left, circuit, right = rng.normal(size=(4, 3)), rng.normal(size=(3, 3)), rng.normal(size=(3, 2))
        expected = times(times(left.tolist(), circuit.tolist()), right.tolist())
        xp.check(token_table(*map(xp.asarray, (left, circuit, right))), np.array(expected), dtype="float64")

    def test_logits_of_a_layer_are_the_direct_path_and_the_tables_of_its_heads(self):
        model = small_model()
        model = {name: x for name, x in model.items() if not name.endswith("1")}
        tokens = np.array([[4, 1, 4, 7]])
        logits, record = forward(model, tokens)
        tables = token_table(model["E"], ov_circuit(*head_matrices(model, 0)[2:]), model["U"])
        direct = token_table(model["E"], np.eye(12), model["U"])
        moved = sum(record["weights0"][0, head] @ tables[head][tokens[0]] for head in range(3))
        np.testing.assert_allclose(logits[0], direct[tokens[0]] + moved, rtol=1e-11)

    def test_bad_input(self, xp):
        square = xp.asarray(np.ones((3, 3)))
        with pytest.raises(ValueError, match="circuit has 3 rows, left has 2 columns"):
            token_table(square[:, :2], square, square)
        with pytest.raises(ValueError, match="right has 2 rows, circuit has 3 columns"):
            token_table(square, square, square[:2, :])


def draw_pairs(seed=2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, 4, 4)), rng.normal(size=(3, 4, 4))


def by_loops(firsts, seconds):
    return np.array([[norm(times(a, b)) / (norm(a) * norm(b)) for b in seconds.tolist()] for a in firsts.tolist()])


class TestQComposition:
    def test_pair_by_pair(self, xp):
        ov, qk = draw_pairs()
        xp.check(q_composition(xp.asarray(ov), xp.asarray(qk)), by_loops(ov, qk), dtype="float64")

    def test_agrees_with_transformer_lens(self, agree):
        theirs = frozen("transformer_lens_composition")
        ov, qk = ov_circuit(theirs["value"], theirs["output"]), qk_circuit(theirs["query"], theirs["key"])
        agree(
            q_composition(ov, qk),
            theirs["q"],
            function="circuits.q_composition",
            stranger="transformer_lens composition_scores",
            version=theirs.version,
            dtype="float64",
        )

    def test_at_random_its_mean_square_is_one_over_the_width(self):
        rng = np.random.default_rng(3)
        ov, qk = rng.normal(size=(1, 8, 2)) @ rng.normal(size=(1, 2, 8)), rng.normal(size=(1, 8, 3))
        turns = np.linalg.qr(rng.normal(size=(20000, 8, 8)))[0] * np.sign(rng.normal(size=(20000, 1, 8)))
        scores = q_composition(ov, (turns @ qk @ qk.mT))
        assert abs(np.mean(scores**2) * 8 - 1) < 0.02

    def test_bounds_and_zero(self, xp):
        one = np.zeros((1, 2, 2))
        one[0, 0, 1] = 1.0
        both = xp.asarray(np.concatenate([one, one.mT, 0 * one]))
        xp.check(q_composition(xp.asarray(one), both), np.array([[0.0, 1.0, 0.0]]), dtype="float64")

    def test_bad_input(self, xp):
        ov = xp.asarray(np.ones((2, 4, 4)))
        with pytest.raises(ValueError, match=r"ov has shape \(2, 4, 3\); it must be \(2, 4, 4\)"):
            q_composition(ov[..., :3], ov)
        with pytest.raises(ValueError, match=r"qk has shape \(2, 3, 3\); it must be \(2, 4, 4\)"):
            q_composition(ov, ov[:, :3, :3])
        with pytest.raises(ValueError, match="ov.*axes"):
            q_composition(ov[0, ...], ov)
        with pytest.raises(ValueError, match="qk.*axes"):
            q_composition(ov, ov[0, ...])


class TestKComposition:
    def test_pair_by_pair(self, xp):
        ov, qk = draw_pairs()
        xp.check(k_composition(xp.asarray(ov), xp.asarray(qk)), by_loops(ov, qk.mT), dtype="float64")

    def test_agrees_with_transformer_lens(self, agree):
        theirs = frozen("transformer_lens_composition")
        ov, qk = ov_circuit(theirs["value"], theirs["output"]), qk_circuit(theirs["query"], theirs["key"])
        agree(
            k_composition(ov, qk),
            theirs["k"],
            function="circuits.k_composition",
            stranger="transformer_lens composition_scores",
            version=theirs.version,
            dtype="float64",
        )

    def test_bad_input(self, xp):
        ov = xp.asarray(np.ones((2, 4, 4)))
        with pytest.raises(ValueError, match="qk.*axes"):
            k_composition(ov, ov[0, ...])
        with pytest.raises(ValueError, match=r"qk has shape \(2, 3, 3\)"):
            k_composition(ov, ov[:, :3, :3])


class TestVComposition:
    def test_pair_by_pair(self, xp):
        ov, later = draw_pairs()
        xp.check(v_composition(xp.asarray(ov), xp.asarray(later)), by_loops(ov, later), dtype="float64")

    def test_agrees_with_transformer_lens(self, agree):
        theirs = frozen("transformer_lens_composition")
        ov = ov_circuit(theirs["value"], theirs["output"])
        agree(
            v_composition(ov, ov[::-1]),
            theirs["v"],
            function="circuits.v_composition",
            stranger="transformer_lens composition_scores",
            version=theirs.version,
            dtype="float64",
        )

    def test_bad_input(self, xp):
        ov = xp.asarray(np.ones((2, 4, 4)))
        with pytest.raises(ValueError, match=r"later has shape \(2, 3, 3\)"):
            v_composition(ov, ov[:, :3, :3])


class TestCutPath:
    def test_the_second_layer_computed_by_hand(self):
        model, tokens = small_model(), np.array([[3, 1, 4, 1, 5]])
        _, record = forward(model, tokens)
        query, key, value, output = head_matrices(model, 1)
        x, lag = record["stream1"][0], np.arange(5)[:, None] - np.arange(5)
        less = x - record["head0"][0, 0] - record["head0"][0, 2]
        for into in ("query", "key", "value"):
            q, k, v = (
                (less if into == name else x) @ w for name, w in zip(qk_ov.INPUTS, (query, key, value), strict=True)
            )
            s = q @ k.mT / 2 + model["b1"][:, np.maximum(lag, 0)]
            w = softmax(s, np.broadcast_to(lag >= 0, s.shape))
            expected = (x + (w @ v @ output).sum(axis=0)) @ model["U"]
            np.testing.assert_allclose(cut_path(model, tokens, heads=[0, 2], into=into)[0], expected, rtol=1e-11)

    def test_no_heads_cut_nothing_and_the_layer_can_be_chosen(self):
        model, tokens = initialize(np.random.default_rng(0), width=8, heads=2, layers=3), np.array([[3, 1, 4, 1, 5]])
        logits, _ = forward(model, tokens)
        np.testing.assert_array_equal(cut_path(model, tokens, heads=[], into="key"), logits)
        first, second = (cut_path(model, tokens, heads=[1], into="key", layer=layer) for layer in (0, 1))
        assert np.abs(first - logits).max() > 1e-6
        assert np.abs(first - second).max() > 1e-6

    def test_bad_input(self):
        model, tokens = small_model(), np.array([[1, 2]])
        with pytest.raises(ValueError, match="into is 'stream'.*query, key, value"):
            cut_path(model, tokens, heads=[0], into="stream")
        with pytest.raises(ValueError, match="layer is 1.*no layer 2"):
            cut_path(model, tokens, heads=[0], into="key", layer=1)
        for head in (3, -1):
            with pytest.raises(ValueError, match=rf"heads is \[{head}\].*0 to 2"):
                cut_path(model, tokens, heads=[head], into="key")


class TestOverSeeds:
    def test_the_shipped_model_measures_what_the_file_says(self):
        kept = {name: numbers[0] for name, numbers in seed_results("qk_ov").items()}
        now = qk_ov._over_seeds(load_model())
        assert json.loads(json.dumps(now)).keys() == kept.keys()
        for name, number in now.items():
            np.testing.assert_allclose(number, kept[name], rtol=1e-3, atol=1e-3, err_msg=name)

    def test_the_loss_without_a_cut_is_that_of_the_second_half(self):
        tokens = repeated_letters(np.random.default_rng(1001), size=128, length=32)
        losses = cross_entropy(forward(load_model(), tokens)[0][:, :-1], tokens[:, 1:])
        np.testing.assert_allclose(seed_results("qk_ov")["uncut"][0], losses[:, 32:].mean(), rtol=1e-3)


@pytest.mark.parametrize(("name", "invariant"), held("circuits/qk_ov"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
