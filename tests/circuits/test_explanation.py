"""What weights say of an output: against plain loops, strangers, autograd, and the model run again."""

import importlib.metadata
import itertools
import json
import math

import numpy as np
import pytest
from invariants import held
from libraries import finite_differences
from subjects import SUBJECTS

from softlookup.circuits import (
    attention_distance,
    attention_flow,
    cross_entropy,
    edge_deletion,
    effective_rank,
    explanation,
    forward,
    head_matrices,
    initialize,
    kl_divergence,
    load_model,
    relevancy,
    remove_items,
    rollout,
    seed_results,
    sink_rate,
    swap_items,
    value_weighted_norm,
    weight_gradients,
)
from softlookup.lookup import attention, softmax


def small_model(seed=0, layers=2):
    """Layers with weights that are large enough to matter, in double precision."""
    rng = np.random.default_rng(seed)
    model = initialize(rng, width=12, heads=3, context=9, layers=layers)
    return {name: rng.normal(size=x.shape) / 3 for name, x in model.items()}


def draw_weights(*shape, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), size=shape[:-1])


class TestAttentionDistance:
    def test_loop(self, xp):
        w, q, k = draw_weights(2, 3, 4), np.array([7, -2, 3]), np.array([0, 5, 5, 100])
        expected = [
            [sum(w[b, i, j] * abs(int(q[i]) - int(k[j])) for j in range(4)) for i in range(3)] for b in range(2)
        ]
        ours = attention_distance(xp.asarray(w), xp.asarray(q, "int64"), xp.asarray(k, "int64"))
        xp.check(ours, np.array(expected), dtype="float64")

    def test_far_positions_in_single_precision(self):
        w = np.array([[1.0]], dtype="float32")
        q, k = np.array([10**9]), np.array([10**9 - 3])
        assert attention_distance(w, q, k) == 3  # the difference is taken before it is rounded

    def test_bad_input(self, xp):
        w, positions = xp.asarray(np.ones((2, 3))), xp.asarray(np.arange(3), "int64")
        with pytest.raises(ValueError, match=r"w has shape \(2, 3\); it must be \(3, 3\)"):
            attention_distance(w, positions, positions)
        with pytest.raises(ValueError, match="w.*axes"):
            attention_distance(w[0, :], positions, positions)
        with pytest.raises(TypeError, match="q_positions must hold signed integers"):
            attention_distance(w, w[:, 0], positions)


class TestSinkRate:
    def test_by_hand(self, xp):
        w = xp.asarray([[[1.0, 0.0], [0.8, 0.2]], [[0.2, 0.8], [0.5, 0.5]], [[0.3, 0.7], [0.3, 0.7]]])  # .9 .35 .3
        xp.check(sink_rate(w), np.array(2 / 3), dtype="float64")
        xp.check(sink_rate(w, threshold=0.5), np.array(1 / 3), dtype="float64")
        xp.check(sink_rate(w, threshold=0.95), np.array(0.0), dtype="float64")

    def test_one_head_one_query_and_a_batch(self, xp):
        w = xp.asarray([[[[0.7, 0.3]]], [[[0.2, 0.8]]]])
        xp.check(sink_rate(w, threshold=0.4), np.array([1.0, 0.0]), dtype="float64")

    @pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (0, 3, 3)])
    def test_nothing(self, xp, shape):
        xp.check(sink_rate(xp.asarray(np.zeros(shape))), np.array(0.0), dtype="float64")

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match="w.*axes"):
            sink_rate(xp.asarray(np.ones((2, 3))))
        with pytest.raises(ValueError, match="threshold is nan"):
            sink_rate(xp.asarray(np.ones((1, 2, 3))), threshold=math.nan)


class TestEffectiveRank:
    def test_agrees_with_scipy(self, agree):
        stats = pytest.importorskip("scipy.stats")
        w = draw_weights(3, 5, 4)
        theirs = [math.exp(stats.entropy(np.linalg.svd(one, compute_uv=False))) for one in w]
        agree(
            effective_rank(w),
            np.array(theirs),
            function="circuits.effective_rank",
            stranger="scipy.stats.entropy of singular values",
            version=importlib.metadata.version("scipy"),
            dtype="float64",
        )

    def test_by_hand(self, xp):
        some = np.array([np.eye(3), np.full((3, 3), 1 / 3), np.diag([2.0, 1.0, 0.0]), np.zeros((3, 3))])
        two = math.exp(-(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)))
        ours = xp.numpy(effective_rank(xp.asarray(some)))
        np.testing.assert_allclose(ours, [3, 1, two, 0], atol=1e-12)

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match="w.*axes"):
            effective_rank(xp.asarray(np.ones(3)))


def every_way(weights):
    """Sum the products along every way from a place of the last layer down to a character."""
    layers, _, n, _ = weights.shape
    pipes = [[[sum(w[i][j] for w in layer) / len(layer) / 2 + (i == j) / 2 for j in range(n)] for i in range(n)]
             for layer in weights.tolist()]  # fmt: skip
    out = np.zeros((n, n))
    for way in itertools.product(range(n), repeat=layers + 1):
        out[way[-1], way[0]] += math.prod(pipes[a][way[a + 1]][way[a]] for a in range(layers))
    return out


class TestRollout:
    def test_every_way(self, xp):
        weights = draw_weights(3, 2, 4, 4)
        xp.check(rollout(xp.asarray(weights)), every_way(weights), dtype="float64")

    def test_order_of_layers_and_sum_of_rows(self, xp):
        weights = draw_weights(2, 1, 3, 3)
        a, b = (weights[:, 0] + np.eye(3)) / 2
        out = xp.numpy(rollout(xp.asarray(weights)))
        np.testing.assert_allclose(out, b @ a, rtol=1e-12)
        np.testing.assert_allclose(out.sum(-1), 1, rtol=1e-12)

    def test_nothing(self, xp):
        xp.check(rollout(xp.asarray(np.zeros((5, 0, 2, 3, 3)))), np.tile(np.eye(3), (5, 1, 1)), dtype="float64")
        xp.check(rollout(xp.asarray(np.zeros((1, 2, 0, 0)))), np.zeros((0, 0)), dtype="float64")
        xp.check(rollout(xp.asarray(np.zeros((1, 0, 2, 2)))), np.eye(2) / 2, dtype="float64")

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match="weights.*axes"):
            rollout(xp.asarray(np.ones((2, 3, 3))))
        with pytest.raises(ValueError, match=r"weights has shape \(1, 2, 3, 4\); it must be \(1, 2, 3, 3\)"):
            rollout(xp.asarray(np.ones((1, 2, 3, 4))))


class TestAttentionFlow:
    def test_agrees_with_networkx(self, agree):
        nx = pytest.importorskip("networkx")
        weights = draw_weights(3, 2, 4, 4, seed=3) * np.tri(4)
        weights /= weights.sum(-1, keepdims=True)
        pipes = (weights.mean(axis=1) + np.eye(4)) / 2
        graph = nx.DiGraph()
        for layer, i, j in itertools.product(range(3), range(4), range(4)):
            graph.add_edge((layer + 1, i), (layer, j), capacity=pipes[layer, i, j])
        theirs = [[nx.maximum_flow_value(graph, (3, i), (0, j)) for j in range(4)] for i in range(4)]
        agree(
            attention_flow(weights),
            np.array(theirs),
            function="circuits.attention_flow",
            stranger="networkx.maximum_flow_value",
            version=nx.__version__,
            dtype="float64",
        )

    def test_two_layers_are_a_sum_of_minima(self):
        weights = draw_weights(2, 2, 3, 5, 5)
        first, second = np.moveaxis((weights.mean(axis=2) + np.eye(5)) / 2, 1, 0)
        expected = np.minimum(second[:, :, :, None], first[:, None]).sum(axis=2)
        np.testing.assert_allclose(attention_flow(weights), expected, rtol=1e-12)

    def test_it_must_turn_back_to_find_the_best(self):
        pipes = np.zeros((6, 6))
        for a, b, size in ((0, 1, 1), (0, 2, 1), (1, 2, 1), (1, 3, 1), (2, 4, 1), (3, 5, 1), (4, 5, 1), (1, 4, 1)):
            pipes[a, b] = size
        assert explanation._max_flow(pipes, 0, 5) == 2

    def test_one_layer_is_the_pipe(self):
        weights = draw_weights(1, 2, 3, 3)
        np.testing.assert_allclose(attention_flow(weights), (weights[0].mean(axis=0) + np.eye(3)) / 2, rtol=1e-12)

    def test_bad_input(self, torch):
        with pytest.raises(TypeError, match="weights must be a NumPy array"):
            attention_flow(torch.ones(1, 1, 2, 2))
        with pytest.raises(ValueError, match="needs at least one layer"):
            attention_flow(np.ones((0, 1, 2, 2)))
        with pytest.raises(ValueError, match="weights.*axes"):
            attention_flow(np.ones((1, 2, 2)))


class TestRelevancy:
    def test_loop(self, xp):
        rng = np.random.default_rng(0)
        weights, gradients = draw_weights(2, 3, 4, 4), rng.normal(size=(2, 3, 4, 4))
        out = np.eye(4).tolist()
        for w, g in zip(weights.tolist(), gradients.tolist(), strict=True):
            kept = [[sum(max(0.0, w[h][i][j] * g[h][i][j]) for h in range(3)) / 3 for j in range(4)] for i in range(4)]
            out = [[out[i][j] + sum(kept[i][a] * out[a][j] for a in range(4)) for j in range(4)] for i in range(4)]
        xp.check(relevancy(xp.asarray(weights), xp.asarray(gradients)), np.array(out), dtype="float64")

    def test_bad_input(self, xp):
        w = xp.asarray(np.ones((1, 2, 3, 3)))
        with pytest.raises(ValueError, match=r"gradients has shape \(1, 1, 3, 3\); it must be \(1, 2, 3, 3\)"):
            relevancy(w, w[:, :1, ...])
        with pytest.raises(ValueError, match="weights.*axes"):
            relevancy(w[0, ...], w[0, ...])


class TestValueWeightedNorm:
    def test_loop(self, xp):
        rng = np.random.default_rng(0)
        w, v, output = draw_weights(3, 4), rng.normal(size=(4, 2)), rng.normal(size=(2, 5))
        v[1] = 0.0
        expected = [
            [
                math.sqrt(sum((w[i, j] * sum(v[j, a] * output[a, b] for a in range(2))) ** 2 for b in range(5)))
                for j in range(4)
            ]
            for i in range(3)
        ]
        xp.check(value_weighted_norm(*map(xp.asarray, (w, v, output))), np.array(expected), dtype="float64")

    def test_gradient(self, autograd):
        rng = np.random.default_rng(1)
        arrays, g = (draw_weights(3, 4), rng.normal(size=(4, 2)), rng.normal(size=(2, 5))), rng.normal(size=(3, 4))
        ours = autograd.vjp(value_weighted_norm, autograd.asarray(g), *map(autograd.asarray, arrays))
        for gradient, expected in zip(ours, finite_differences(value_weighted_norm, g, *arrays), strict=True):
            autograd.check(gradient, expected, tolerance=1e-8)

    def test_gradient_at_a_value_of_zero(self, autograd):
        w, v, output, g = map(autograd.asarray, ([[0.5, 0.5]], [[0.0], [3.0]], [[2.0]], [[1.0, 1.0]]))
        dv = autograd.vjp(value_weighted_norm, g, w, v, output)[1]
        autograd.check(dv, [[0.0], [1.0]])

    def test_bad_input(self, xp):
        one = xp.asarray(np.ones((3, 3)))
        with pytest.raises(ValueError, match="w has 3 items, v has 2"):
            value_weighted_norm(one, one[:2, :], one)
        with pytest.raises(ValueError, match="output has 2 rows, v has 3 columns"):
            value_weighted_norm(one, one, one[:2, :])


class TestEdgeDeletion:
    def test_masked_and_asked_again(self, xp):
        rng = np.random.default_rng(0)
        q, k, v = (rng.normal(size=shape) for shape in ((3, 2), (4, 2), (4, 5)))
        w = softmax(q @ k.T / 2**0.5)
        kept = ~np.eye(4, dtype=bool)
        without = [attention(q, k, v, mask=np.tile(row, (3, 1))) for row in kept]
        expected = np.stack(without, axis=1) - attention(q, k, v)[:, None]
        xp.check(edge_deletion(xp.asarray(w), xp.asarray(v)), expected, dtype="float64")

    def test_by_hand(self, xp):
        w, v = xp.asarray([[0.6, 0.3, 0.1]]), xp.asarray([[5.0], [1.0], [17.0]])  # out 5; 5, 6.714, 3.667 without each
        xp.check(edge_deletion(w, v), np.array([[[0.0], [12 / 7], [-4 / 3]]]), dtype="float64")

    def test_the_only_item_leaves_nothing(self, xp):
        w, v = xp.asarray([[0.0, 1.0], [0.0, 0.0]]), xp.asarray([[3.0], [7.0]])
        xp.check(edge_deletion(w, v), np.array([[[0.0], [-7.0]], [[0.0], [0.0]]]), dtype="float64")

    def test_gradient_of_the_score_over_one_minus_w(self, autograd):
        rng = np.random.default_rng(1)
        s, v = rng.normal(size=(1, 4)), autograd.asarray(rng.normal(size=(4, 1)))
        (slope,) = autograd.vjp(lambda s: softmax(s) @ v, autograd.asarray([[1.0]]), autograd.asarray(s))
        moved = edge_deletion(autograd.asarray(softmax(s)), v)[..., 0]
        autograd.check(moved, -autograd.numpy(slope) / (1 - softmax(s)))

    def test_gradient(self, autograd):
        rng = np.random.default_rng(1)
        arrays, g = (draw_weights(3, 4), rng.normal(size=(4, 2))), rng.normal(size=(3, 4, 2))
        ours = autograd.vjp(edge_deletion, autograd.asarray(g), *map(autograd.asarray, arrays))
        for gradient, expected in zip(ours, finite_differences(edge_deletion, g, *arrays), strict=True):
            autograd.check(gradient, expected, tolerance=1e-7)

    def test_gradient_at_the_only_item(self, autograd):
        w, v, g = map(autograd.asarray, ([[0.0, 1.0]], [[3.0], [7.0]], [[[1.0], [1.0]]]))
        for gradient in autograd.vjp(edge_deletion, g, w, v):
            assert np.isfinite(autograd.numpy(gradient)).all()

    def test_a_head_of_the_model_masked_and_run_again(self):
        model, tokens = small_model(), np.array([[3, 1, 4, 1, 5, 9]])
        logits, record = forward(model, tokens)
        moved = edge_deletion(record["weights1"], record["values1"] @ head_matrices(model, 1)[3] @ model["U"])
        for head, j in itertools.product(range(3), range(6)):

            def edit(name, x, head=head, j=j):
                hidden = np.zeros(x.shape, dtype=bool)
                if name == "scores1":
                    hidden[:, head, -1, j] = True
                return np.where(hidden, -np.inf, x)

            again, _ = forward(model, tokens, edit=edit)
            np.testing.assert_allclose(again[0, -1], logits[0, -1] + moved[0, head, -1, j], rtol=1e-9, atol=1e-12)

    def test_near_one_digits_are_lost(self):
        w = np.array([[1 - 1e-6, 1e-6]], dtype="float32")
        v = np.array([[1.0], [2.0]], dtype="float32")
        exact = edge_deletion(w.astype("float64"), v.astype("float64"))[0, 0, 0]
        assert 1e-4 < abs(edge_deletion(w, v)[0, 0, 0] - exact) < 0.1

    def test_bad_input(self, xp):
        one = xp.asarray(np.ones((3, 3)))
        with pytest.raises(ValueError, match="w has 3 items, v has 2"):
            edge_deletion(one, one[:2, :])
        with pytest.raises(ValueError, match="w.*axes"):
            edge_deletion(one[0, :], one)
        with pytest.raises(ValueError, match="v.*axes"):
            edge_deletion(one, one[0, :])


class TestKlDivergence:
    def test_agrees_with_scipy(self, agree):
        stats = pytest.importorskip("scipy.stats")
        rng = np.random.default_rng(0)
        logits, changed = rng.normal(size=(2, 3, 5))
        agree(
            kl_divergence(logits, changed),
            stats.entropy(softmax(logits), softmax(changed), axis=-1),
            function="circuits.kl_divergence",
            stranger="scipy.stats.entropy(p, q)",
            version=importlib.metadata.version("scipy"),
            dtype="float64",
        )

    def test_leading_axes_broadcast_and_a_shift_is_nothing(self, xp):
        logits, changed = np.random.default_rng(0).normal(size=(2, 4, 5))
        ours = kl_divergence(xp.asarray(logits[:1]), xp.asarray(changed))
        expected = kl_divergence(np.repeat(logits[:1], 4, axis=0), changed)
        xp.check(ours, expected, dtype="float64")
        xp.check(kl_divergence(xp.asarray(logits), xp.asarray(logits + 7)), np.zeros(4), dtype="float64")

    def test_gradient(self, autograd):
        rng = np.random.default_rng(1)
        arrays, g = tuple(rng.normal(size=(2, 3, 5))), rng.normal(size=3)
        ours = autograd.vjp(kl_divergence, autograd.asarray(g), *map(autograd.asarray, arrays))
        for gradient, expected in zip(ours, finite_differences(kl_divergence, g, *arrays), strict=True):
            autograd.check(gradient, expected, tolerance=1e-8)

    def test_impossible_characters(self, xp):
        none = -math.inf
        logits, changed = xp.asarray([[0.0, none], [0.0, 0.0]]), xp.asarray([[none, none], [0.0, none]])
        xp.check(kl_divergence(logits[:1, :], logits[:1, :]), np.zeros(1), dtype="float64")
        xp.check(kl_divergence(logits[1:, :], changed[1:, :]), np.array([math.inf]), dtype="float64")
        xp.check(kl_divergence(logits[:1, :], logits[1:, :]), np.array([math.log(2)]), dtype="float64")
        xp.check(kl_divergence(changed[:1, :], logits[1:, :]), np.zeros(1), dtype="float64")

    def test_bad_input(self, xp):
        one = xp.asarray(np.ones((2, 3)))
        with pytest.raises(ValueError, match="logits has 3 characters, changed has 2"):
            kl_divergence(one, one[:, :2])
        with pytest.raises(ValueError, match="do not broadcast"):
            kl_divergence(one, xp.asarray(np.ones((4, 3))))


class TestWeightGradients:
    def test_agrees_with_torch_autograd(self, torch, agree):
        model, tokens, answers = small_model(), np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]), np.array([7, 1])
        weights, gradients = weight_gradients(model, tokens, answers)
        parameters = {name: torch.asarray(x) for name, x in model.items()}
        lag = np.subtract.outer(np.arange(5), np.arange(5))
        x, maps = parameters["E"][tokens], []
        for layer in range(2):
            q, k, v = (
                (x @ parameters[f"{name}{layer}"]).reshape(2, 5, 3, 4).transpose(1, 2) for name in ("Q", "K", "V")
            )
            s = q @ k.mT / 2 + parameters[f"b{layer}"][:, np.maximum(lag, 0)]
            w = torch.softmax(torch.where(torch.asarray(lag >= 0), s, -torch.inf), -1).requires_grad_()
            maps.append(w)
            x = x + (w @ v).transpose(1, 2).reshape(2, 5, 12) @ parameters[f"O{layer}"]
        logits = (x @ parameters["U"])[:, -1]
        theirs = torch.autograd.grad(logits[[0, 1], answers.tolist()].sum(), maps)
        np.testing.assert_allclose(weights, np.stack([w.detach().numpy() for w in maps], axis=1), rtol=1e-9)
        agree(
            gradients,
            np.stack([g.numpy() for g in theirs], axis=1),
            function="circuits.weight_gradients",
            stranger="torch.autograd.grad",
            version=torch.__version__,
            dtype="float64",
        )

    def test_the_last_layer_in_closed_form(self):
        model, tokens = small_model(), np.array([[3, 1, 4, 1]])
        _, gradients = weight_gradients(model, tokens, np.array([8]))
        _, record = forward(model, tokens)
        writes = record["values1"][0] @ head_matrices(model, 1)[3] @ model["U"]
        np.testing.assert_allclose(gradients[0, 1, :, -1], writes[..., 8], rtol=1e-11)
        np.testing.assert_array_equal(gradients[0, 1, :, :-1], 0)

    def test_other_numbers_of_layers(self):
        for layers in (1, 3):
            weights, gradients = weight_gradients(small_model(layers=layers), np.array([[3, 1]]), np.array([8]))
            assert weights.shape == gradients.shape == (1, layers, 3, 2, 2)

    def test_bad_input(self):
        with pytest.raises(ValueError, match=r"characters has shape \(2,\); it must be \(1,\)"):
            weight_gradients(small_model(), np.array([[3, 1]]), np.array([8, 2]))


class TestSwapItems:
    def test_one_by_one(self):
        model, tokens, other = small_model(), np.array([[3, 1, 4], [1, 5, 9]]), np.array([[7, 7, 0], [2, 2, 2]])
        ours = swap_items(model, tokens, other)
        for b, j in itertools.product(range(2), range(3)):
            text = tokens[b].copy()
            text[j] = other[b, j]
            np.testing.assert_allclose(ours[b, j], forward(model, text[None])[0][0, -1], rtol=1e-11)

    def test_bad_input(self):
        model, tokens = small_model(), np.array([[3, 1]])
        with pytest.raises(ValueError, match=r"other has shape \(1, 1\); it must be \(1, 2\)"):
            swap_items(model, tokens, tokens[:, :1])
        with pytest.raises(ValueError, match=r"tokens has shape \(2,\); it must be \(B, T\)"):
            swap_items(model, tokens[0], tokens[0])


class TestRemoveItems:
    def test_one_by_one(self):
        model, tokens = small_model(), np.array([[3, 1, 4], [1, 5, 9]])
        ours = remove_items(model, tokens)
        for b, j in itertools.product(range(2), range(3)):
            text = np.array(tokens[b].tolist()[:j] + tokens[b].tolist()[j + 1 :])
            np.testing.assert_allclose(ours[b, j], forward(model, text[None])[0][0, -1], rtol=1e-11)

    def test_bad_input(self):
        for tokens in (np.array([[3]]), np.array([3, 1])):
            with pytest.raises(ValueError, match="it must be .B, T. with T at least 2"):
                remove_items(small_model(), tokens)


class TestOverSeeds:
    def test_the_shipped_model_measures_what_the_file_says(self):
        kept = {name: numbers[0] for name, numbers in seed_results("explanation").items()}
        now = explanation._over_seeds(load_model())
        assert json.loads(json.dumps(now)).keys() == kept.keys()
        for name, number in now.items():
            np.testing.assert_allclose(number, kept[name], rtol=1e-4, atol=5e-4, err_msg=name)

    def test_rank_correlation_is_that_of_scipy(self):
        stats = pytest.importorskip("scipy.stats")
        x, y = np.random.default_rng(0).normal(size=(2, 3, 7))
        x[0, 2:5], y[1, ::3] = x[0, 1], y[1, 0]  # equal numbers share a rank
        theirs = [stats.spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)]
        np.testing.assert_allclose(explanation._rank_correlation(x, y), np.mean(theirs), rtol=1e-12)

    def test_what_holds_in_all_seeds(self):
        found = {name: np.array(numbers) for name, numbers in seed_results("explanation").items()}
        for kind in ("letters", "tales"):
            assert (found[f"{kind}, weight and edge"] > found[f"{kind}, weight and swap"] + 0.2).all()
        assert (found["match, weight of induction heads"] < 0.02).all()
        assert (found["match, drop"] > 1).all()
        assert (np.abs(found["two back, drop"]) < 0.2).all()

    def test_the_profile_of_one_item_the_long_way(self):
        rng = np.random.default_rng(1002)
        letters = rng.permuted(np.tile(np.arange(26), (32, 1)), axis=1)
        tokens = np.concatenate([letters[:, :20], letters[:, :10]], axis=1)
        logits, record = forward(load_model(), tokens)
        reads = record["weights1"][:, :, -1, 10].mean(axis=0)
        np.testing.assert_allclose(seed_results("explanation")["copied, mean weight"][0], reads.mean(), rtol=1e-4)
        assert cross_entropy(logits[:, -1], letters[:, 10]).max() < 1


@pytest.mark.parametrize(("name", "invariant"), held("circuits/explanation"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
