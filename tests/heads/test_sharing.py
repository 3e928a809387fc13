"""softlookup.heads.sharing: layers that read another layer's keys and values, and values that are the keys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held, reach_past_the_hull
from libraries import finite_differences
from oracles.freeze import frozen
from subjects import SUBJECTS

from softlookup.heads import adjacent_producers, decoder_producers, last_producers, share_layers, tied_attention
from softlookup.lookup import attention
from softlookup.normalizers import sink_softmax


def stack(rng, layers, width=4):
    """For each layer a projection to keys and values, and a layer with a residual that reads the past."""
    weights = rng.normal(size=(3, layers, width, width))

    def project(layer):
        return lambda x: (x @ weights[1, layer], x @ weights[2, layer])

    def read(layer):
        def run(x, k, v):
            n, m = x.shape[-2], k.shape[-2]
            return x + attention(x @ weights[0, layer], k, v, mask=np.tri(n, m, m - n, dtype=bool))

        return run

    return [read(layer) for layer in range(layers)], [project(layer) for layer in range(layers)]


class TestShareLayers:
    @given(st.sampled_from([[0, 1, 2, 3], [0, 0, 2, 2], [0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 0, 3]]))
    def test_is_the_loop(self, producers):
        rng = np.random.default_rng(0)
        (reads, projections), x = stack(rng, 4), rng.normal(size=(3, 4))
        entered = [x]
        for layer, p in enumerate(producers):
            k, v = projections[p](entered[p])
            entered.append(reads[layer](entered[layer], k, v))
        ours = share_layers(x, reads, {p: projections[p] for p in producers}, producers=producers)
        np.testing.assert_allclose(ours, entered[-1], rtol=1e-12)

    def test_only_the_producers_project(self, xp):
        asked = []

        def project(layer):
            return lambda x: (asked.append(layer), (x, 10 * x))[1]

        reads = [lambda x, k, v: x + v] * 4
        ours = share_layers(xp.asarray([[1.0]]), reads, {0: project(0), 2: project(2)}, producers=[0, 0, 2, 0])
        xp.check(ours, [[1.0 + 10 + 10 + 210 + 10]])
        assert asked == [0, 2]

    def test_the_same_projection_where_nothing_changes_what_it_reads(self):
        rng = np.random.default_rng(1)
        x, w_k, w_v = rng.normal(size=(5, 6)), rng.normal(size=(3, 3)), rng.normal(size=(3, 6))
        w_v[:, :3] = 0  # no layer writes to the first three columns, and nothing else is read

        def project(x):
            return x[:, :3] @ w_k, x[:, :3] @ w_v

        reads = [lambda x, k, v, s=scale: x + attention(s * x[:, 3:], k, v) for scale in (1, 2, 3)]
        own = share_layers(x, reads, dict.fromkeys(range(3), project), producers=[0, 1, 2])
        shared = share_layers(x, reads, {0: project}, producers=[0, 0, 0])
        np.testing.assert_allclose(shared, own, rtol=1e-12)

    def test_the_same_projection_is_not_sharing_in_general(self):
        (reads, projections), x = stack(np.random.default_rng(2), 2), np.random.default_rng(3).normal(size=(3, 4))
        own = share_layers(x, reads, dict.fromkeys(range(2), projections[0]), producers=[0, 1])
        shared = share_layers(x, reads, {0: projections[0]}, producers=[0, 0])
        assert np.abs(own - shared).max() > 0.1

    @pytest.mark.parametrize("producers", [[0, 1, 2, 3], [0, 0, 2, 2], [0, 1, 1, 1]], ids=str)
    def test_decoding_with_the_caches_of_the_producers_is_the_full_pass(self, producers):
        rng = np.random.default_rng(4)
        (reads, projections), x = stack(rng, 4), rng.normal(size=(5, 4))
        caches = {p: (np.zeros((0, 4)), np.zeros((0, 4))) for p in producers}

        def append(p):
            def project(new):
                caches[p] = tuple(np.concat(pair) for pair in zip(caches[p], projections[p](new), strict=True))
                return caches[p]

            return project

        whole = share_layers(x, reads, {p: projections[p] for p in producers}, producers=producers)
        for i in range(5):
            step = share_layers(x[i : i + 1], reads, {p: append(p) for p in caches}, producers=producers)
            np.testing.assert_allclose(step, whole[i : i + 1], rtol=1e-10)
        assert sum(k.size + v.size for k, v in caches.values()) == len(set(producers)) * 5 * 8

    def test_appending_leaves_earlier_rows_alone(self):
        rng = np.random.default_rng(5)
        (reads, projections), x = stack(rng, 3), rng.normal(size=(5, 4))
        run = {"producers": [0, 0, 2]}
        given = {0: projections[0], 2: projections[2]}
        whole = share_layers(x, reads, given, **run)
        np.testing.assert_allclose(share_layers(x[:3], reads, given, **run), whole[:3], rtol=1e-10)

    def test_a_reading_of_a_long_text_may_stop_at_the_shared_layer(self):
        rng = np.random.default_rng(6)
        (reads, projections), x = stack(rng, 4), rng.normal(size=(6, 4))
        whole = share_layers(x, reads, dict(enumerate(projections[:3])), producers=[0, 1, 2, 2])
        entering = share_layers(x, reads[:2], dict(enumerate(projections[:2])), producers=[0, 1])
        k, v = projections[2](entering)
        last = share_layers(entering[-1:], reads[2:], {0: lambda x: (k, v)}, producers=[0, 0])
        np.testing.assert_allclose(last, whole[-1:], rtol=1e-12)

    def test_no_layers(self, xp):
        xp.check(share_layers(xp.asarray([[1.0]]), [], {}, producers=[]), [[1.0]])

    def test_gradients_of_layers_add_up_in_what_they_share(self, autograd):
        rng = np.random.default_rng(7)
        g, x, w = rng.normal(size=(3, 2)), rng.normal(size=(3, 2)), rng.normal(size=(2, 2))

        def run(x, w):
            reads = [lambda x, k, v: x + attention(x, k, v)] * 3
            return share_layers(x, reads, {0: lambda x: (x @ w, x), 2: lambda x: (x, x @ w)}, producers=[0, 0, 2])

        expected = finite_differences(run, g, x, w)
        for one, two in zip(autograd.vjp(run, *map(autograd.asarray, (g, x, w))), expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_producers_may_be_an_array(self, xp):
        producers = adjacent_producers(xp.asarray([0, 1, 2, 3], "int64"), group=2)
        reads = [lambda x, k, v: x + v] * 4
        ours = share_layers(xp.asarray([[1.0]]), reads, dict.fromkeys((0, 2), lambda x: (x, x)), producers=producers)
        xp.check(ours, [[9.0]])

    def test_bad_input(self, xp):
        x, read, project = xp.asarray([[1.0]]), (lambda x, k, v: x), (lambda x: (x, x))
        for producers, projections, message in (
            ([0, 0, 0], {0: project}, "producers has 3 layers, reads has 2"),
            ([1, 1], {1: project}, "layer 0 reads layer 1"),
            ([0, 2], {0: project}, "layer 1 reads layer 2"),
            ([0, -1], {0: project}, "layer 1 reads layer -1"),
            ([0, 0], {0: project, 1: project}, r"projections has the layers \[0, 1\]; it must have \[0\]"),
            ([0, 0], {}, r"projections has the layers \[\]; it must have \[0\]"),
        ):
            with pytest.raises(ValueError, match=message):
                share_layers(x, [read, read], projections, producers=producers)
        with pytest.raises(ValueError, match="layer 2 reads layer 1"):
            share_layers(x, [read] * 3, {0: project, 1: project}, producers=[0, 0, 1])
        with pytest.raises(ValueError, match=r"x has shape \(1,\)"):
            share_layers(x[0, :], [read], {0: project}, producers=[0])
        with pytest.raises(TypeError, match="producers must be an integer"):
            share_layers(x, [read], {0: project}, producers=[0.5])
        with pytest.raises(TypeError, match="x must be an array"):
            share_layers([[1.0]], [read], {0: project}, producers=[0])
        with pytest.raises(TypeError, match="reads must be a function"):
            share_layers(x, [1], {0: project}, producers=[0])
        with pytest.raises(TypeError, match="projections must be a function"):
            share_layers(x, [read], {0: 1}, producers=[0])


class TestAdjacentProducers:
    @given(st.integers(0, 9), st.integers(1, 4))
    def test_is_the_loop(self, count, group):
        expected = [next(j for j in range(i, -1, -1) if j % group == 0) for i in range(count)]
        np.testing.assert_array_equal(adjacent_producers(np.arange(count), group=group), expected)

    def test_by_hand(self, xp):
        layers = xp.asarray([0, 1, 2, 3, 4, 5, 6], "int64")
        xp.check(adjacent_producers(layers, group=3), [0, 0, 0, 3, 3, 3, 6], dtype="int64")
        xp.check(adjacent_producers(layers, group=1), [0, 1, 2, 3, 4, 5, 6], dtype="int64")

    def test_bad_input(self, xp):
        layers = xp.asarray([0, 1], "int64")
        with pytest.raises(ValueError, match="group is 0"):
            adjacent_producers(layers, group=0)
        with pytest.raises(TypeError, match="group"):
            adjacent_producers(layers, group=1.5)
        with pytest.raises(TypeError, match="layers must hold signed integers"):
            adjacent_producers(xp.asarray([0.0]), group=1)


class TestDecoderProducers:
    def test_by_hand(self, xp):
        layers = xp.asarray([0, 1, 2, 3, 4, 5], "int64")
        xp.check(decoder_producers(layers, own=3), [0, 1, 2, 3, 3, 3], dtype="int64")
        xp.check(decoder_producers(layers, own=0), [0] * 6, dtype="int64")
        xp.check(decoder_producers(layers, own=9), [0, 1, 2, 3, 4, 5], dtype="int64")

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match="own is -1"):
            decoder_producers(xp.asarray([0], "int64"), own=-1)
        with pytest.raises(TypeError, match="own"):
            decoder_producers(xp.asarray([0], "int64"), own=0.5)


class TestLastProducers:
    @given(st.lists(st.integers(0, 2), max_size=8), st.data())
    def test_is_the_loop(self, kinds, data):
        shared = data.draw(st.integers(0, len(kinds)))
        first = len(kinds) - shared
        expected = [
            max((j for j in range(first) if kinds[j] == kind), default=layer) if layer >= first else layer
            for layer, kind in enumerate(kinds)
        ]
        ours = last_producers(np.array(kinds, dtype=int), shared=shared)
        np.testing.assert_array_equal(ours, expected)

    @pytest.mark.parametrize("i", range(7))
    def test_agrees_with_gemma(self, agree, i):
        fixture = frozen("transformers_gemma_sharing")
        agree(
            last_producers(fixture[f"kinds {i}"], shared=int(fixture[f"shared {i}"])),
            fixture[f"producers {i}"],
            function="heads.last_producers",
            stranger="transformers, layers of Gemma 3n that share",
            version=fixture.version,
            dtype="float64",
            exact=True,
        )

    def test_rows_are_stacks(self, xp):
        kinds = xp.asarray([[0, 0, 1, 0, 1], [1, 1, 0, 0, 2]], "int64")
        xp.check(last_producers(kinds, shared=2), [[0, 1, 2, 1, 2], [0, 1, 2, 2, 4]], dtype="int64")
        for shared in (0, 5):
            xp.check(last_producers(kinds, shared=shared), [[0, 1, 2, 3, 4]] * 2, dtype="int64")

    def test_what_it_says_can_be_run(self):
        producers = last_producers(np.array([0, 1, 0, 1, 2]), shared=3)
        reads, project = [lambda x, k, v: x + v] * 5, lambda x: (x, x)
        ours = share_layers(np.ones((1, 1)), reads, dict.fromkeys((0, 1, 4), project), producers=producers)
        assert ours.item() == 2 * (1 + 1 + 2 + 1 + 2)

    def test_bad_input(self, xp):
        kinds = xp.asarray([0, 1], "int64")
        with pytest.raises(ValueError, match="shared is 3, kinds has 2 layers"):
            last_producers(kinds, shared=3)
        with pytest.raises(ValueError, match="shared is -1"):
            last_producers(kinds, shared=-1)
        with pytest.raises(ValueError, match=r"kinds has shape \(\)"):
            last_producers(kinds[0], shared=0)
        with pytest.raises(TypeError, match="kinds must hold signed integers"):
            last_producers(xp.asarray([0.0]), shared=0)


class TestTiedAttention:
    def test_is_attention_to_the_keys(self, xp):
        rng = np.random.default_rng(8)
        q, k = xp.asarray(rng.normal(size=(4, 3, 2))), xp.asarray(rng.normal(size=(2, 5, 2)))
        mask = xp.asarray(rng.random((3, 5)) < 0.6, "bool")
        xp.check(tied_attention(q, k, mask=mask), xp.numpy(attention(q, k, k, mask=mask)))
        xp.check(tied_attention(q, k, turn_back=lambda out: -out), -xp.numpy(attention(q, k, k)))

    def test_by_hand(self, xp):
        q, k = xp.asarray([[np.log(3.0)]]), xp.asarray([[1.0], [0.0]])
        xp.check(tied_attention(q, k), [[0.75]])

    def test_outputs_lie_in_the_hull_of_the_keys(self):
        rng = np.random.default_rng(9)
        q, k, allowed = rng.normal(size=(4, 3, 2)), rng.normal(size=(2, 5, 2)), np.ones((4, 3, 5), dtype=bool)
        assert reach_past_the_hull(tied_attention(q, k), k, allowed) < 1e-12

    def test_agrees_with_deepseek(self, agree):
        fixture = frozen("transformers_deepseek_v4")

        def turn_back(out):
            pairs = np.ascontiguousarray(out[..., 2:]).view(np.complex128) * np.exp(-1j * fixture["angles"])
            return np.concat([out[..., :2], pairs.view(np.float64)], axis=-1)

        normalize = sink_softmax(fixture["sinks"][:, None])
        mask = fixture["allow"]
        ours = tied_attention(fixture["q"], fixture["k"], mask=mask, normalize=normalize, turn_back=turn_back)
        agree(
            np.moveaxis(ours, 1, 2).reshape(fixture["out"].shape),
            fixture["out"],
            function="heads.tied_attention",
            stranger="transformers, attention of DeepSeek-V4 with a window alone",
            version=fixture.version,
            dtype="float64",
            clash="rotates in single precision",
        )

    def test_turning_back_leaves_distances_alone(self):
        rng, step = np.random.default_rng(10), np.exp(0.7j)
        q, k, p = rng.normal(size=(4, 2)), rng.normal(size=(4, 2)), np.arange(4.0)

        def turn(x, positions):
            return (np.ascontiguousarray(x).view(np.complex128) * step ** positions[:, None]).view(np.float64)

        def run(p):
            return tied_attention(turn(q, p), turn(k, p), turn_back=lambda out: turn(out, -p))

        np.testing.assert_allclose(run(p + 100), run(p), rtol=1e-9)
        moved = [tied_attention(turn(q, p + start), turn(k, p + start)) for start in (0, 100)]
        assert np.abs(moved[0] - moved[1]).max() > 0.1

    def test_decoding_with_a_cache_is_the_full_pass(self):
        rng = np.random.default_rng(11)
        q, k = rng.normal(size=(2, 5, 3)), rng.normal(size=(1, 5, 3))
        whole = tied_attention(q, k, mask=np.tri(5, dtype=bool))
        for i in range(5):
            np.testing.assert_allclose(tied_attention(q[:, [i]], k[:, : i + 1]), whole[:, [i]], rtol=1e-12)

    def test_gradients(self, autograd):
        rng = np.random.default_rng(12)
        g, q, k = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), rng.normal(size=(4, 3))
        expected = finite_differences(tied_attention, g, q, k)
        for one, two in zip(autograd.vjp(tied_attention, *map(autograd.asarray, (g, q, k))), expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp):
        q = xp.asarray(np.ones((2, 3)))
        with pytest.raises(TypeError, match="turn_back must be a function of the outputs"):
            tied_attention(q, q, turn_back=1)
        with pytest.raises(ValueError, match="q has 3 columns, k has 2"):
            tied_attention(q, q[:, :2])


@pytest.mark.parametrize(("name", "invariant"), held("heads/sharing"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
