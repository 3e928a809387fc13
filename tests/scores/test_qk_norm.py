"""softlookup.scores.qk_norm: norms of queries and keys, the bound they give, and rotations before and after."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from oracles.onnx_cases import node_cases, onnx
from subjects import SUBJECTS

from softlookup.lookup import attention, scaled_dot
from softlookup.scores import (
    cosine,
    layer_norm,
    normalized,
    rms_norm,
    rms_norm_heads,
    row_scaled,
    unit_norm,
)

INF, NAN = math.inf, math.nan
NORMS = [unit_norm, rms_norm, layer_norm]


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def version(torch):
    return f"torch {torch.__version__.partition('+')[0]}"


def learns(autograd, function, *shapes):
    g, x, *options = random_arrays(20, (2, 3, 4), (2, 3, 4), *shapes)
    expected = finite_differences(function, g, x, *options)
    got = autograd.vjp(function, *map(autograd.asarray, (g, x, *options)))
    for ours, theirs in zip(got, expected, strict=True):
        autograd.check(ours, theirs, tolerance=1e-7)


def refuses_bad_options(norm, xp, names):
    x = xp.asarray(np.ones((2, 3, 4)))
    for name in names:
        for shape in ((3,), (5, 2, 3, 4)):
            with pytest.raises(ValueError, match=rf"{name}.*\({shape[0]},"):
                norm(x, **{name: xp.asarray(np.ones(shape))})
        with pytest.raises(TypeError, match=name):
            norm(x, **{name: [1.0]})
    with pytest.raises(ValueError, match="epsilon"):
        norm(x, epsilon=NAN)
    with pytest.raises(TypeError, match="epsilon"):
        norm(x, epsilon="1")
    with pytest.raises(TypeError, match=r"\bx\b"):
        norm([1.0])


def last_axis_nodes(operator):
    """The node cases that normalize the last axis alone."""
    nodes = node_cases(operator)
    return [
        node for node in nodes if node.attributes.get("axis", -1) % node.inputs["X"].ndim == node.inputs["X"].ndim - 1
    ]


def rotation(angle):
    """A rotation of the first two of four channels, and one of the other two by half the angle."""
    turn = np.zeros((4, 4))
    for i, a in ((0, angle), (2, angle / 2)):
        turn[i : i + 2, i : i + 2] = [[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]
    return turn


class TestUnitNorm:
    def test_is_the_loop(self, xp):
        (x,) = random_arrays(0, (3, 4))
        xp.check(unit_norm(xp.asarray(x)), [row / math.hypot(*row) for row in x])

    def test_agrees_with_torch(self, torch, agree):
        (x,) = random_arrays(1, (5, 6))
        agree(
            unit_norm(x),
            torch.nn.functional.normalize(torch.tensor(x), dim=-1),
            function="scores.unit_norm",
            stranger="torch.nn.functional.normalize",
            version=version(torch),
            dtype="float64",
            clash="torch takes the larger of the norm and 1e-12",
        )

    def test_zeros_stay_and_a_nan_shows(self, xp):
        xp.check(unit_norm(xp.asarray([[0.0, 0.0], [NAN, 1.0], [0.0, -3.0]])), [[0.0, 0.0], [NAN, NAN], [0.0, -1.0]])

    def test_learns(self, autograd):
        learns(autograd, unit_norm)

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match=r"x has shape \(3,\)"):
            unit_norm(xp.asarray(np.ones(3)))
        with pytest.raises(TypeError, match=r"\bx\b"):
            unit_norm([[1.0]])


class TestRmsNorm:
    def test_is_the_loop(self, xp):
        x, weight = random_arrays(2, (2, 3, 4), (4,))
        expected = [[row / math.sqrt(math.fsum(row**2) / 4 + 0.1) * weight for row in head] for head in x]
        xp.check(rms_norm(xp.asarray(x), weight=xp.asarray(weight), epsilon=0.1), expected)

    def test_agrees_with_torch(self, torch, agree):
        x, weight = random_arrays(3, (2, 5, 6), (6,))
        agree(
            rms_norm(x, weight=weight, epsilon=1e-6),
            torch.nn.functional.rms_norm(torch.tensor(x), (6,), torch.tensor(weight), eps=1e-6),
            function="scores.rms_norm",
            stranger="torch.nn.functional.rms_norm",
            version=version(torch),
            dtype="float64",
        )

    @pytest.mark.parametrize("node", last_axis_nodes("RMSNormalization"), ids=lambda node: node.name)
    def test_agrees_with_the_node_cases_of_onnx(self, node, agree):
        x, weight = node.inputs["X"], node.inputs["scale"]
        agree(
            rms_norm(x, weight=weight, epsilon=node.attributes.get("epsilon", 1e-5)),
            node.outputs["Y"],
            function="scores.rms_norm",
            stranger="onnx node cases of RMSNormalization, last axis",
            version=f"onnx {onnx.__version__}",
            dtype="float32",
        )

    @pytest.mark.parametrize(("model", "around"), [("qwen3", 0), ("gemma3", 1)])
    def test_agrees_with_the_models(self, agree, model, around):
        fixture = frozen("transformers_qk_norms")
        weight = around + fixture[f"{model}_weight"]
        agree(
            rms_norm(fixture[f"{model}_x"], weight=weight, epsilon=float(fixture["epsilon"])),
            fixture[f"{model}_out"],
            function="scores.rms_norm",
            stranger=f"transformers, norm of queries and keys of {model}",
            version=fixture.version,
            dtype="float32",
            clash="stores the weight less one" if around else None,
        )

    def test_equals_unit_norm_times_the_root_of_d(self, xp):
        x = xp.asarray(random_arrays(4, (3, 9))[0])
        xp.check(rms_norm(x), 3 * xp.numpy(unit_norm(x)))

    def test_a_weight_around_zero_is_one_plus_it(self, xp):
        x, weight = map(xp.asarray, random_arrays(5, (3, 4), (4,)))
        xp.check(rms_norm(x, weight=1 + weight), xp.numpy(rms_norm(x)) * (1 + xp.numpy(weight)))

    def test_an_epsilon_of_zero_leaves_zeros(self, xp):
        xp.check(rms_norm(xp.asarray(np.zeros((2, 3)))), np.zeros((2, 3)))

    def test_no_columns(self, xp):
        x = xp.asarray(np.ones((2, 0)))
        for norm in NORMS:
            xp.check(norm(x), np.ones((2, 0)))

    def test_every_argument_learns(self, autograd):
        learns(autograd, lambda x, w: rms_norm(x, weight=w), (4,))

    def test_bad_input(self, xp):
        refuses_bad_options(rms_norm, xp, ["weight"])
        with pytest.raises(ValueError, match=r"x has shape \(3,\)"):
            rms_norm(xp.asarray(np.ones(3)))


class TestRmsNormHeads:
    def test_is_the_loop(self, xp):
        x, weight = random_arrays(6, (2, 3, 4), (2, 1, 4))
        mean = [math.fsum((x[:, i] ** 2).ravel()) / 8 for i in range(3)]
        expected = [[x[h, i] / math.sqrt(mean[i] + 0.1) * weight[h, 0] for i in range(3)] for h in range(2)]
        xp.check(rms_norm_heads(xp.asarray(x), weight=xp.asarray(weight), epsilon=0.1), expected)

    def test_agrees_with_torch_before_heads_are_split(self, torch, agree):
        flat, weight = random_arrays(7, (5, 12), (12,))
        theirs = torch.nn.functional.rms_norm(torch.tensor(flat), (12,), torch.tensor(weight), eps=1e-6)
        x = flat.reshape(5, 3, 4).swapaxes(0, 1)
        agree(
            rms_norm_heads(x, weight=weight.reshape(3, 1, 4), epsilon=1e-6),
            theirs.reshape(5, 3, 4).swapaxes(0, 1),
            function="scores.rms_norm_heads",
            stranger="torch.nn.functional.rms_norm before heads are split",
            version=version(torch),
            dtype="float64",
        )

    def test_agrees_with_olmo2(self, agree):
        fixture = frozen("transformers_qk_norms")
        x = fixture["olmo2_x"].reshape(5, 3, 4).swapaxes(0, 1)
        weight = fixture["olmo2_weight"].reshape(3, 1, 4)
        agree(
            rms_norm_heads(x, weight=weight, epsilon=float(fixture["epsilon"])),
            fixture["olmo2_out"].reshape(5, 3, 4).swapaxes(0, 1),
            function="scores.rms_norm_heads",
            stranger="transformers, norm of queries and keys of olmo2",
            version=fixture.version,
            dtype="float32",
        )

    def test_equals_rms_norm_for_one_head(self, xp):
        x = xp.asarray(random_arrays(8, (2, 1, 3, 4))[0])
        xp.check(rms_norm_heads(x), xp.numpy(rms_norm(x)))

    def test_heads_keep_their_lengths_relative_to_one_another(self, xp):
        x = xp.asarray([[[1.0, 0.0]], [[0.0, 7.0]]])
        xp.check(rms_norm_heads(x), np.array([[[1.0, 0.0]], [[0.0, 7.0]]]) / math.sqrt(12.5))

    def test_every_argument_learns(self, autograd):
        learns(autograd, lambda x, w: rms_norm_heads(x, weight=w), (2, 1, 4))

    def test_bad_input(self, xp):
        refuses_bad_options(rms_norm_heads, xp, ["weight"])
        with pytest.raises(ValueError, match=r"x has shape \(3, 4\)"):
            rms_norm_heads(xp.asarray(np.ones((3, 4))))


class TestLayerNorm:
    def test_is_the_loop(self, xp):
        x, weight, bias = random_arrays(9, (3, 4), (4,), (4,))
        expected = []
        for row in x:
            mean = math.fsum(row) / 4
            deviation = math.sqrt(math.fsum((row - mean) ** 2) / 4 + 0.1)
            expected.append((row - mean) / deviation * weight + bias)
        xp.check(
            layer_norm(*map(xp.asarray, [x]), weight=xp.asarray(weight), bias=xp.asarray(bias), epsilon=0.1), expected
        )

    def test_agrees_with_torch(self, torch, agree):
        x, weight, bias = random_arrays(10, (2, 5, 6), (6,), (6,))
        agree(
            layer_norm(x, weight=weight, bias=bias, epsilon=1e-5),
            torch.nn.functional.layer_norm(torch.tensor(x), (6,), torch.tensor(weight), torch.tensor(bias), eps=1e-5),
            function="scores.layer_norm",
            stranger="torch.nn.functional.layer_norm",
            version=version(torch),
            dtype="float64",
        )

    @pytest.mark.parametrize("node", last_axis_nodes("LayerNormalization"), ids=lambda node: node.name)
    def test_agrees_with_the_node_cases_of_onnx(self, node, agree):
        x, weight, bias = node.inputs["X"], node.inputs["Scale"], node.inputs["B"]
        agree(
            layer_norm(x, weight=weight, bias=bias, epsilon=node.attributes.get("epsilon", 1e-5)),
            node.outputs["Y"],
            function="scores.layer_norm",
            stranger="onnx node cases of LayerNormalization, last axis",
            version=f"onnx {onnx.__version__}",
            dtype="float32",
        )

    def test_equals_rms_norm_of_what_has_mean_zero(self, xp):
        (x,) = random_arrays(11, (3, 4))
        centered = xp.asarray(x - x.mean(-1, keepdims=True))
        xp.check(layer_norm(xp.asarray(x + 5)), xp.numpy(rms_norm(centered)))

    def test_equal_numbers_give_zeros(self, xp):
        xp.check(layer_norm(xp.asarray([[2.0, 2.0, 2.0, 2.0]])), np.zeros((1, 4)))

    def test_every_argument_learns(self, autograd):
        learns(autograd, lambda x, w, b: layer_norm(x, weight=w, bias=b), (4,), (4,))

    def test_bad_input(self, xp):
        refuses_bad_options(layer_norm, xp, ["weight", "bias"])
        with pytest.raises(ValueError, match=r"x has shape \(3,\)"):
            layer_norm(xp.asarray(np.ones(3)))


class TestNormalized:
    def test_is_the_loop(self, xp):
        q, k = random_arrays(12, (3, 4), (5, 4))
        expected = [[math.fsum(x * y) / math.hypot(*x) / math.hypot(*y) / 2 for y in k] for x in q]
        xp.check(normalized()(xp.asarray(q), xp.asarray(k)), expected)

    def test_each_side_has_its_own_function(self, xp):
        q, k = random_arrays(13, (3, 4), (5, 4))
        score = normalized(query=lambda x: 3 * x, key=lambda x: x + 1, score=scaled_dot(scale=1.0))
        xp.check(score(xp.asarray(q), xp.asarray(k)), 3 * q @ (k + 1).T)

    def test_equals_cosine(self, xp):
        q, k = map(xp.asarray, random_arrays(14, (3, 4), (5, 4)))
        xp.check(normalized(score=scaled_dot(scale=8.0))(q, k), xp.numpy(cosine(temperature=0.125)(q, k)))
        rms = normalized(query=rms_norm, key=rms_norm)
        xp.check(rms(q, k), 2 * xp.numpy(cosine()(q, k)))

    def test_a_learned_number_for_each_head(self, xp):
        q, k, g = random_arrays(15, (2, 3, 4), (2, 5, 4), (2, 1))
        score = row_scaled(xp.asarray(g), score=normalized(score=scaled_dot(scale=1.0)))
        expected = g[..., None] * xp.numpy(cosine()(xp.asarray(q), xp.asarray(k)))
        xp.check(score(xp.asarray(q), xp.asarray(k)), expected)

    @given(hnp.arrays(np.float64, (2, 4), elements=st.floats(-1e6, 1e6)), st.sampled_from(NORMS))
    def test_no_score_exceeds_the_bound(self, x, norm):
        bound = 1 / 2 if norm is unit_norm else 4 / 2
        s = normalized(query=norm, key=norm)(x, x)
        assert np.all(np.abs(s) <= bound * (1 + 1e-12))

    @pytest.mark.parametrize("norm", [unit_norm, rms_norm])
    def test_a_norm_without_a_weight_commutes_with_a_rotation(self, norm):
        (x,) = random_arrays(16, (5, 4))
        turn = rotation(0.8)
        np.testing.assert_allclose(norm(x @ turn.T), norm(x) @ turn.T, atol=1e-14)

    def test_a_weight_commutes_only_if_it_is_one_number_for_each_pair(self):
        (x,) = random_arrays(17, (5, 4))
        turn = rotation(0.8)
        for weight, same in (([2.0, 2.0, 0.5, 0.5], True), ([2.0, 1.0, 0.5, 0.5], False)):
            norm = functools.partial(rms_norm, weight=np.array(weight))
            assert np.allclose(norm(x @ turn.T), norm(x) @ turn.T, atol=1e-13) == same

    def test_layer_norm_does_not_commute_with_a_rotation(self):
        (x,) = random_arrays(18, (5, 4))
        assert np.abs(layer_norm(x @ rotation(0.8).T) - layer_norm(x) @ rotation(0.8).T).max() > 0.1

    def test_agrees_with_fused_attention_in_torch(self, torch, agree):
        q, k, v, a, b = random_arrays(19, (1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 6, 3), (4,), (4,))
        f = torch.nn.functional
        tq, tk = (f.rms_norm(torch.tensor(x), (4,), torch.tensor(w), eps=1e-6) for x, w in ((q, a), (k, b)))
        score = normalized(
            query=functools.partial(rms_norm, weight=a, epsilon=1e-6),
            key=functools.partial(rms_norm, weight=b, epsilon=1e-6),
        )
        agree(
            attention(q, k, v, score=score),
            f.scaled_dot_product_attention(tq, tk, torch.tensor(v)),
            function="scores.normalized",
            stranger="torch rms_norm of queries and keys, then scaled_dot_product_attention",
            version=version(torch),
            dtype="float64",
        )

    def test_a_hidden_key_has_no_effect_on_gradients(self, autograd):
        g, q, k, v = random_arrays(21, (2, 2), (2, 3), (4, 3), (4, 2))
        k[1], v[1] = NAN, INF
        mask = autograd.asarray(np.array([[True, False, True, True]] * 2), "bool")
        kept = [0, 2, 3]
        score = normalized(query=layer_norm, key=layer_norm)
        got = autograd.vjp(lambda *a: attention(*a, mask=mask, score=score), *map(autograd.asarray, (g, q, k, v)))
        rest = autograd.vjp(lambda *a: attention(*a, score=score), *map(autograd.asarray, (g, q, k[kept], v[kept])))
        autograd.check(got[0], autograd.numpy(rest[0]))
        for ours, theirs in zip(got[1:], rest[1:], strict=True):
            autograd.check(ours, np.insert(autograd.numpy(theirs), 1, 0.0, axis=0))

    def test_bad_input(self):
        for name in ("query", "key", "score"):
            with pytest.raises(TypeError, match=name):
                normalized(**{name: 1.0})


@pytest.mark.parametrize(("name", "invariant"), held("scores/qk_norm"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
