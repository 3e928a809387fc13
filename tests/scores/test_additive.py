"""softlookup.scores.additive: sums of projections, bent and read out, and which of them rank the keys alike."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_weights
from softlookup.scores import additive, concat_additive, gat, gatv2

INF, NAN = math.inf, math.nan
SHAPES = {"v": (4,), "w": (3, 4), "u": (2, 4), "a": (4,), "b": (4,)}
FACTORIES = {additive: "vwu", gatv2: "awu", gat: "abwu"}


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def leaky(z, slope):
    return z if z > 0 else slope * z


def version(torch):
    return f"torch {torch.__version__.partition('+')[0]}"


def learns(autograd, build, *shapes):
    q, k, g, *parameters = random_arrays(20, (3, 3), (4, 2), (3, 4), *shapes)
    expected = finite_differences(lambda q, k, *a: build(*a)(q, k), g, q, k, *parameters)
    got = autograd.vjp(lambda q, k, *a: build(*a)(q, k), *map(autograd.asarray, (g, q, k, *parameters)))
    for ours, theirs in zip(got, expected, strict=True):
        autograd.check(ours, theirs, tolerance=1e-7)


class TestAdditive:
    def test_is_the_loop(self, xp):
        q, k, v, w, u, b = random_arrays(0, (3, 3), (5, 2), (4,), (3, 4), (2, 4), (4,))
        expected = [
            [
                math.fsum(
                    v[c] * math.tanh(math.fsum(q[i] * w[:, c]) + math.fsum(k[j] * u[:, c]) + b[c]) for c in range(4)
                )
                for j in range(5)
            ]
            for i in range(3)
        ]
        score = additive(*map(xp.asarray, (v, w, u)), bias=xp.asarray(b))
        xp.check(score(xp.asarray(q), xp.asarray(k)), expected)

    def test_parameters_of_each_head(self, xp):
        q, k, v, w, u, b = random_arrays(1, (2, 3, 3), (2, 5, 2), (2, 4), (2, 3, 4), (2, 2, 4), (2, 4))
        s = additive(*map(xp.asarray, (v, w, u)), bias=xp.asarray(b))(xp.asarray(q), xp.asarray(k))
        xp.check(s, [additive(v[h], w[h], u[h], bias=b[h])(q[h], k[h]) for h in range(2)])

    def test_agrees_with_layers_of_torch(self, torch, agree):
        q, k = random_arrays(2, (3, 4), (5, 6))
        torch.manual_seed(0)
        of_query, of_key = torch.nn.Linear(4, 7).double(), torch.nn.Linear(6, 7, bias=False).double()
        read = torch.nn.Linear(7, 1, bias=False).double()
        hidden = torch.tanh(of_query(torch.tensor(q))[:, None] + of_key(torch.tensor(k))[None])
        theirs = read(hidden).detach()[..., 0]
        w, u, v, b = (p.detach().numpy() for p in (of_query.weight.T, of_key.weight.T, read.weight[0], of_query.bias))
        agree(
            additive(v, w, u, bias=b)(q, k),
            theirs,
            function="scores.additive",
            stranger="torch.nn.Linear of the query, of the key, and of their tanh",
            version=version(torch),
            dtype="float64",
        )

    def test_without_projections_is_the_layer_of_keras_by_hand(self, xp):
        q, k = xp.asarray([[0.0, math.log(2)]]), xp.asarray([[math.log(3), 0.0]])
        one = xp.asarray(np.eye(2))  # tanh(log 3) = 0.8 and tanh(log 2) = 0.6
        xp.check(additive(xp.asarray([10.0, 5.0]), one, one)(q, k), [[11.0]])

    def test_is_bounded_by_what_reads_out(self):
        q, k, v, w, u = random_arrays(3, (3, 3), (5, 2), (4,), (3, 4), (2, 4))
        s = additive(v, w, u)(1e3 * q, 1e3 * k)
        assert np.all(np.abs(s) <= np.abs(v).sum() * (1 + 1e-15))

    def test_every_argument_learns(self, autograd):
        learns(autograd, lambda v, w, u, b: additive(v, w, u, bias=b), (4,), (3, 4), (2, 4), (4,))

    def test_infinite_entries_meet_the_bound(self, xp):
        one = xp.asarray([[1.0]])
        xp.check(additive(xp.asarray([3.0]), one, one)(one, xp.asarray([[INF], [-INF]])), [[3.0, -3.0]])

    def test_a_hidden_key_has_no_effect(self, xp):
        q, k, v, *arrays = random_arrays(4, (2, 3), (3, 2), (3, 2), (4,), (3, 4), (2, 4))
        k[1], v[1] = NAN, NAN
        mask = np.array([[True, False, True]] * 2)
        score = additive(*map(xp.asarray, arrays))
        out = attention(*map(xp.asarray, (q, k, v)), mask=xp.asarray(mask, "bool"), score=score)
        xp.check(out, xp.numpy(attention(*map(xp.asarray, (q, k[::2], v[::2])), score=score)))

    def test_bad_input(self, xp):
        q, k = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 2)))
        v, w, u = (xp.asarray(np.ones(SHAPES[name])) for name in "vwu")
        with pytest.raises(ValueError, match=r"bias.*\(3,\).*\(4,\)"):
            additive(v, w, u, bias=xp.asarray(np.ones(3)))(q, k)
        with pytest.raises(ValueError, match="w has 4 columns, u has 5"):
            additive(v, w, xp.asarray(np.ones((2, 5))))(q, k)


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: factory.__name__)
def test_parameters_that_do_not_fit(xp, other, factory):
    q, k = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 2)))
    good = {name: xp.asarray(np.ones(SHAPES[name])) for name in FACTORIES[factory]}
    xp.check(factory(*good.values())(q, k), xp.numpy(factory(*good.values())(q, k)))
    for name in good:
        wrong = {"w": (5, 4), "u": (5, 4)}.get(name, (3,))
        with pytest.raises(ValueError, match=rf"\b{name} has {wrong[0]} rows"):
            factory(*(good | {name: xp.asarray(np.ones(wrong))}).values())(q, k)
        with pytest.raises(ValueError, match=rf"\b{name} has shape \({'' if name in 'vab' else '4,'}\)"):
            factory(*(good | {name: xp.asarray(1.0 if name in "vab" else np.ones(4))}).values())(q, k)
        with pytest.raises(TypeError, match=rf"\b{name}\b"):
            factory(*(good | {name: [1.0]}).values())(q, k)
        with pytest.raises(TypeError, match="library"):
            factory(*(good | {name: other.asarray(np.ones(SHAPES[name]))}).values())(q, k)
    for one, two in (((2, 2, 3), (5, 4, 2)), ((3,), (4, 2)), ((2, 3), (2,))):
        with pytest.raises(ValueError, match=r"leading axes|has shape \("):
            factory(*good.values())(xp.asarray(np.ones(one)), xp.asarray(np.ones(two)))


class TestConcatAdditive:
    def test_is_the_loop(self, xp):
        q, k, v, w = random_arrays(5, (3, 3), (5, 2), (4,), (5, 4))
        expected = [[math.fsum(v * np.tanh(np.concatenate([x, y]) @ w)) for y in k] for x in q]
        score = concat_additive(xp.asarray(v), xp.asarray(w))
        xp.check(score(xp.asarray(q), xp.asarray(k)), expected)

    def test_equals_additive_with_the_matrix_split(self, xp):
        q, k, v, w = map(xp.asarray, random_arrays(6, (2, 3, 3), (2, 5, 2), (2, 4), (2, 5, 4)))
        split = additive(v, w[:, :3, :], w[:, 3:, :])
        xp.check(concat_additive(v, w)(q, k), xp.numpy(split(q, k)))

    def test_agrees_with_one_layer_of_torch(self, torch, agree):
        q, k, v, w = random_arrays(7, (3, 4), (5, 6), (7,), (10, 7))
        pairs = np.concatenate([np.repeat(q, 5, axis=0), np.tile(k, (3, 1))], axis=-1)
        layer = torch.nn.Linear(10, 7, bias=False).double()
        layer.weight.data = torch.tensor(w.T)
        theirs = (torch.tanh(layer(torch.tensor(pairs))) @ torch.tensor(v)).detach().reshape(3, 5)
        agree(
            concat_additive(v, w)(q, k),
            theirs,
            function="scores.concat_additive",
            stranger="torch.nn.Linear of the query and the key, put behind one another",
            version=version(torch),
            dtype="float64",
        )

    def test_every_argument_learns(self, autograd):
        learns(autograd, concat_additive, (4,), (5, 4))

    def test_bad_input(self, xp):
        q, k = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 2)))
        v, w = xp.asarray(np.ones(4)), xp.asarray(np.ones((5, 4)))
        with pytest.raises(ValueError, match="w has 4 rows, q_and_k has 5"):
            concat_additive(v, w[:4, :])(q, k)
        with pytest.raises(ValueError, match="v has 3 rows"):
            concat_additive(v[:3], w)(q, k)
        with pytest.raises(ValueError, match=r"w has shape \(5,\)"):
            concat_additive(v, w[:, 0])(q, k)
        with pytest.raises(ValueError, match=r"q has shape \(2,\)"):
            concat_additive(v, w)(q[:, 0], k)
        with pytest.raises(ValueError, match=r"k has shape \(4,\)"):
            concat_additive(v, w)(q, k[:, 0])
        with pytest.raises(ValueError, match="leading axes"):
            concat_additive(v, w)(xp.asarray(np.ones((2, 2, 3))), xp.asarray(np.ones((3, 4, 2))))


class TestGatv2:
    def test_is_the_loop(self, xp):
        q, k, a, w, u = random_arrays(8, (3, 3), (5, 2), (4,), (3, 4), (2, 4))
        expected = [[math.fsum(a[c] * leaky((x @ w + y @ u)[c], 0.3) for c in range(4)) for y in k] for x in q]
        score = gatv2(*map(xp.asarray, (a, w, u)), slope=0.3)
        xp.check(score(xp.asarray(q), xp.asarray(k)), expected)

    def test_agrees_with_torch(self, torch, agree):
        q, k, a, w, u = random_arrays(9, (2, 3, 4), (2, 5, 6), (2, 7), (2, 4, 7), (2, 6, 7))
        t = [torch.tensor(x) for x in (q @ w, k @ u, a)]
        hidden = torch.nn.functional.leaky_relu(t[0][:, :, None] + t[1][:, None], 0.2)
        agree(
            gatv2(a, w, u)(q, k),
            torch.einsum("hnmc,hc->hnm", hidden, t[2]),
            function="scores.gatv2",
            stranger="torch leaky_relu and einsum",
            version=version(torch),
            dtype="float64",
        )

    def test_ranks_keys_by_the_query(self, xp):
        one = xp.asarray(np.eye(2))
        a, x = xp.asarray([1.0, 1.0]), xp.asarray([[3.0, -3.0], [-3.0, 3.0]])
        s = xp.numpy(gatv2(a, one, one)(x, x))
        xp.check(gatv2(a, one, one)(x, x), [[4.8, 0.0], [0.0, 4.8]])
        assert list(s.argmax(-1)) == [0, 1]

    def test_every_argument_learns(self, autograd):
        learns(autograd, gatv2, (4,), (3, 4), (2, 4))

    def test_bad_input(self):
        for build in (lambda slope: gatv2(*[np.ones(1)] * 3, slope=slope), lambda s: gat(*[np.ones(1)] * 4, slope=s)):
            with pytest.raises(ValueError, match="slope"):
                build(NAN)
            with pytest.raises(TypeError, match="slope"):
                build("1")


class TestGat:
    def test_is_the_loop(self, xp):
        q, k, a, b, w, u = random_arrays(10, (3, 3), (5, 2), (4,), (4,), (3, 4), (2, 4))
        expected = [[leaky(math.fsum(a * (x @ w)) + math.fsum(b * (y @ u)), 0.3) for y in k] for x in q]
        score = gat(*map(xp.asarray, (a, b, w, u)), slope=0.3)
        xp.check(score(xp.asarray(q), xp.asarray(k)), expected)

    def test_agrees_with_torch(self, torch, agree):
        q, k, a, b, w, u = random_arrays(11, (2, 3, 4), (2, 5, 6), (2, 7), (2, 7), (2, 4, 7), (2, 6, 7))
        t = [torch.tensor(x) for x in (q @ w, k @ u, a, b)]
        sums = torch.einsum("hnc,hc->hn", t[0], t[2])[..., None] + torch.einsum("hmc,hc->hm", t[1], t[3])[:, None]
        agree(
            gat(a, b, w, u)(q, k),
            torch.nn.functional.leaky_relu(sums, 0.2),
            function="scores.gat",
            stranger="torch einsum and leaky_relu",
            version=version(torch),
            dtype="float64",
        )

    @given(st.integers(0, 10_000), st.floats(0.01, 1.0))
    def test_every_query_ranks_the_keys_alike(self, seed, slope):
        q, k, a, b, w, u = random_arrays(seed, (6, 3), (5, 2), (4,), (4,), (3, 4), (2, 4))
        order = np.argsort(gat(a, b, w, u, slope=slope)(q, k), axis=-1)
        assert np.all(order == np.argsort(k @ u @ b))

    def test_equals_gatv2_without_a_bend(self, xp):
        q, k, a, w, u = map(xp.asarray, random_arrays(12, (3, 3), (5, 2), (4,), (3, 4), (2, 4)))
        xp.check(gat(a, a, w, u, slope=1)(q, k), xp.numpy(gatv2(a, w, u, slope=1)(q, k)))

    def test_without_a_bend_gives_every_query_the_same_weights(self):
        q, k, a, b, w, u = random_arrays(13, (3, 3), (5, 2), (4,), (4,), (3, 4), (2, 4))
        weights = attention_weights(q, k, score=gat(a, b, w, u, slope=1.0))
        np.testing.assert_allclose(weights, weights[:1].repeat(3, 0), rtol=1e-12)

    def test_every_argument_learns(self, autograd):
        learns(autograd, gat, (4,), (4,), (3, 4), (2, 4))


@pytest.mark.parametrize(("name", "invariant"), held("scores/additive"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
