"""softlookup.circuits.language_model: texts, the forward and the backward pass, training, and the weights shipped."""

import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softlookup.circuits import __main__ as command
from softlookup.circuits import (
    adam_step,
    batch,
    cross_entropy,
    decode,
    encode,
    forward,
    generate,
    initialize,
    load_model,
    loss_and_gradient,
    repeated_letters,
    seed_results,
    tales,
    train,
)
from softlookup.circuits.language_model import ALPHABET, _over_seeds
from softlookup.lookup import attention, attention_weights, softmax
from softlookup.masks import causal

INF = math.inf
FIRST_TALE = "once there lived a smith by the name of yilebad, in the tired town of broviskex."
SHORT_RUN = 3.502113, 3.496167, 3.289793, 2.942309
SHIPPED = {
    "tales": 1.1146,
    "chunks, first time": 1.2742,
    "chunks, again": 0.23168,
    "letters, first time": 3.9806,
    "letters, again": 0.19276,
}
COPIES = {
    "the name of zobadel was upon the gate, and zo": "badel",
    "long ago zobadel and mukiror lived by the mill. then zo": "badel",
    "qzvkjwxfhbpmqzvk": "jwxfhbpm",
}


def small(seed=0, *, layers=2, dtype=np.float64, width=6, heads=2, context=8):
    """A model with a table of distances that is not zero."""
    rng = np.random.default_rng(seed)
    model = initialize(rng, width=width, heads=heads, layers=layers, context=context)
    return {name: (x + rng.normal(size=x.shape) * (name[0] == "b")).astype(dtype) for name, x in model.items()}


def windows(seed=1, size=3, length=7):
    rng = np.random.default_rng(seed)
    return rng.integers(0, len(ALPHABET), (2, size, length))


def close(a, b, tolerance=1e-12):
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def loop(model, tokens):
    """One window: the logits of every place, number by number."""
    layers = sum(name[0] == "b" for name in model)
    width = model["E"].shape[1]
    stream = [[model["E"][token][c] for c in range(width)] for token in tokens]
    for layer in range(layers):
        q, k, v, o, b = (model[f"{name}{layer}"] for name in "QKVOb")
        own = q.shape[1] // len(b)

        def times(row, w, column):
            return math.fsum(x * w[c][column] for c, x in enumerate(row))

        new = [list(row) for row in stream]
        for h in range(len(b)):
            columns = range(h * own, (h + 1) * own)
            for i, row in enumerate(stream):
                scores = [
                    math.fsum(times(row, q, c) * times(stream[j], k, c) for c in columns) / math.sqrt(own) + b[h][i - j]
                    for j in range(i + 1)
                ]
                parts = [math.exp(s) for s in scores]
                blend = [
                    math.fsum(p * times(stream[j], v, c) for j, p in enumerate(parts)) / math.fsum(parts)
                    for c in columns
                ]
                for c in range(width):
                    new[i][c] += math.fsum(x * o[columns[n]][c] for n, x in enumerate(blend))
        stream = new
    return [
        [math.fsum(x * model["U"][c][a] for c, x in enumerate(row)) for a in range(len(ALPHABET))] for row in stream
    ]


class Stranger:
    """The same model in PyTorch: its own attention, its own loss, its own gradients."""

    def __init__(self, torch, model):
        self.torch = torch
        self.model = {name: torch.tensor(x, requires_grad=True) for name, x in model.items()}

    def logits(self, tokens):
        torch, model = self.torch, self.model
        place = torch.arange(tokens.shape[1])
        lag = place[:, None] - place
        x = torch.nn.functional.embedding(torch.tensor(tokens), model["E"])
        for layer in range(sum(name[0] == "b" for name in model)):
            bias = model[f"b{layer}"]
            q, k, v = ((x @ model[f"{name}{layer}"]).unflatten(-1, (len(bias), -1)).transpose(1, 2) for name in "QKV")
            added = bias[:, lag.clamp(min=0)].masked_fill(lag < 0, -INF)[None]
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=added)
            x = x + out.transpose(1, 2).flatten(-2) @ model[f"O{layer}"]
        return x @ model["U"]

    def loss(self, tokens, targets):
        logits = self.logits(tokens)
        return self.torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.torch.tensor(targets).flatten())


@pytest.fixture
def record(torch, agree):
    version = f"torch {torch.__version__.partition('+')[0]}"
    return {"version": version, "dtype": "float64"}


class TestEncode:
    def test_by_hand(self):
        assert ALPHABET[:3] == "abc"
        assert ALPHABET[25:] == "z .,;'\n"
        np.testing.assert_array_equal(encode("ab z'\n"), [0, 1, 26, 25, 30, 31])
        assert encode("").shape == (0,)

    @given(st.text(alphabet=ALPHABET))
    def test_and_back(self, text):
        assert decode(encode(text)) == text

    def test_bad_input(self):
        with pytest.raises(ValueError, match=r"text has '!A'; it must keep to"):
            encode("A!")
        with pytest.raises(TypeError, match="text must be a string, not bytes"):
            encode(b"a")


def test_decode():
    assert decode(np.array([[2, 0], [1, 31]])) == "cab\n"
    assert decode(np.zeros(0, int)) == ""
    with pytest.raises(ValueError, match="tokens has 0 to 32; it must keep to 0 to 31"):
        decode(np.array([0, 32]))
    with pytest.raises(ValueError, match="tokens has -1 to 0"):
        decode(np.array([0, -1]))
    with pytest.raises(TypeError, match="tokens must hold integers, not float64"):
        decode(np.array([0.0]))
    with pytest.raises(TypeError, match="tokens must be a NumPy array, not list"):
        decode([0])


class TestTales:
    def test_same_seed_same_text(self):
        text = tales(np.random.default_rng(0), 3)
        assert text == tales(np.random.default_rng(0), 3)
        assert text != tales(np.random.default_rng(1), 3)
        assert text.startswith(FIRST_TALE)

    def test_only_the_alphabet_and_one_line_each(self):
        text = tales(np.random.default_rng(2), 300)
        assert set(text) == set(ALPHABET) - {"j"}
        assert text.count("\n") == 300
        assert text.endswith("\n")
        assert 350 < len(text) / 300 < 530
        assert tales(np.random.default_rng(0), 0) == ""

    def test_names_are_made_up_for_each_tale_and_come_again_in_it(self):
        told = [re.findall("[a-z]+", tale) for tale in tales(np.random.default_rng(3), 200).splitlines()]
        common = {word for word in set().union(*told) if sum(word in tale for tale in told) > 2}
        names = [{word for word in tale if word not in common} for tale in told]
        assert all(1 <= len(own) <= 3 for own in names)
        assert sum(map(len, names)) - len(set().union(*names)) < 5
        again = [tale.count(name) for tale, own in zip(told, names, strict=True) for name in own]
        assert np.mean(again) > 3

    def test_bad_input(self):
        with pytest.raises(ValueError, match="n is -1"):
            tales(np.random.default_rng(0), -1)
        with pytest.raises(TypeError, match="rng must be a numpy.random.Generator, not int"):
            tales(0, 1)


class TestBatch:
    text = encode(tales(np.random.default_rng(4), 20))

    @pytest.mark.parametrize(("size", "plain", "letters"), [(16, 8, 12), (4, 2, 3), (7, 3, 5), (1, 0, 0)])
    def test_half_text_a_quarter_chunks_a_quarter_letters(self, size, plain, letters):
        tokens, targets = batch(np.random.default_rng(5), self.text, size=size, length=40)
        assert tokens.shape == targets.shape == (size, 40)
        np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])
        text = decode(self.text)
        for i, row in enumerate(np.column_stack([tokens, targets[:, -1:]])):
            periods = [p for p in range(1, 41) if (row[p:] == row[:-p]).all()]
            assert (decode(row) in text) == (i < plain)
            assert any(8 <= p <= 20 for p in periods) == (i >= plain)
            assert (decode(row[: min(periods, default=41)]) in text) == (i < letters)
            assert i < letters or (row < 26).all()

    def test_every_period_and_every_place(self):
        rng = np.random.default_rng(6)
        tokens, _ = batch(rng, np.arange(33) % 32, size=4000, length=32)
        periods = [next(p for p in range(1, 33) if p == 32 or (row[p:] == row[:-p]).all()) for row in tokens[2000:3000]]
        assert set(periods) == set(range(8, 17))
        tokens, _ = batch(rng, np.arange(20), size=100, length=16)
        assert set(tokens[:50, 0].tolist()) == {0, 1, 2, 3}

    def test_same_seed_same_windows(self):
        one, two = (batch(np.random.default_rng(7), self.text, size=8, length=16)[0] for _ in range(2))
        np.testing.assert_array_equal(one, two)

    def test_bad_input(self):
        rng = np.random.default_rng(8)
        with pytest.raises(ValueError, match="length is 15; it must be at least 16"):
            batch(rng, self.text, size=4, length=15)
        with pytest.raises(ValueError, match=r"text has shape \(16,\); it must be one row of more than 16"):
            batch(rng, self.text[:16], size=4, length=16)
        with pytest.raises(ValueError, match=r"text has shape \(1, 40\)"):
            batch(rng, self.text[None, :40], size=4, length=16)
        with pytest.raises(ValueError, match="text has 32 to 32; it must keep to 0 to 31"):
            batch(rng, np.full(40, 32), size=4, length=16)
        with pytest.raises(TypeError, match="text must be a NumPy array, not str"):
            batch(rng, "a tale of forty letters, more or less...", size=4, length=16)
        with pytest.raises(ValueError, match="size is 0"):
            batch(rng, self.text, size=0, length=16)
        with pytest.raises(TypeError, match="length must be an integer"):
            batch(rng, self.text, size=4, length=16.0)
        with pytest.raises(TypeError, match="rng must be"):
            batch(None, self.text, size=4, length=16)


class TestRepeatedLetters:
    def test_written_twice(self):
        tokens = repeated_letters(np.random.default_rng(9), size=50, length=30)
        assert tokens.shape == (50, 60)
        np.testing.assert_array_equal(tokens[:, :30], tokens[:, 30:])
        assert set(tokens.ravel().tolist()) == set(range(26))

    def test_distinct(self):
        tokens = repeated_letters(np.random.default_rng(10), size=200, length=20, distinct=True)
        assert tokens.shape == (200, 40)
        assert all(len(set(row.tolist())) == 20 for row in tokens)
        np.testing.assert_array_equal(tokens[:, :20], tokens[:, 20:])
        assert set(tokens.ravel().tolist()) == set(range(26))

    def test_bad_input(self):
        rng = np.random.default_rng(11)
        assert repeated_letters(rng, size=2, length=0).shape == (2, 0)
        assert repeated_letters(rng, size=2, length=26, distinct=True).shape == (2, 52)
        with pytest.raises(ValueError, match="length is 27; at most 26 letters can be distinct"):
            repeated_letters(rng, size=2, length=27, distinct=True)
        with pytest.raises(ValueError, match="size is -1"):
            repeated_letters(rng, size=-1, length=2)
        with pytest.raises(TypeError, match="rng must be"):
            repeated_letters(1, size=1, length=2)


class TestInitialize:
    def test_shapes_and_spreads(self):
        model = initialize(np.random.default_rng(12))
        assert sum(x.size for x in model.values()) == 64 * 64 + 2 * (4 * 64**2 + 4 * 64) == 37376
        assert {x.dtype for x in model.values()} == {np.dtype(np.float32)}
        assert not model["b0"].any()
        for name, spread in {"E": 2, "U": 1, "Q0": 1, "K1": 1, "V1": 1, "O1": 0.5}.items():
            assert abs(model[name].std() * 8 / spread - 1) < 0.05
            assert abs(model[name].mean()) < 0.02

    def test_other_sizes(self):
        model = initialize(np.random.default_rng(13), width=12, heads=3, layers=1, context=20)
        assert {name: x.shape for name, x in model.items()} == {
            "E": (32, 12),
            "U": (12, 32),
            **dict.fromkeys(("Q0", "K0", "V0", "O0"), (12, 12)),
            "b0": (3, 20),
        }
        assert set(initialize(np.random.default_rng(13), layers=0)) == {"E", "U"}

    def test_bad_input(self):
        rng = np.random.default_rng(14)
        with pytest.raises(ValueError, match="heads is 3, which does not divide width, 64"):
            initialize(rng, heads=3)
        with pytest.raises(ValueError, match="context is 0"):
            initialize(rng, context=0)
        with pytest.raises(ValueError, match="layers is -1"):
            initialize(rng, layers=-1)
        with pytest.raises(TypeError, match="rng must be"):
            initialize(0)


class TestForward:
    @pytest.mark.parametrize("layers", [0, 1, 2])
    def test_is_the_loop(self, layers):
        model, (tokens, _) = small(layers=layers), windows(size=2, length=5)
        logits, _ = forward(model, tokens)
        close(logits, np.array([loop(model, row) for row in tokens]))

    def test_agrees_with_scaled_dot_product_attention(self, torch, agree, record):
        model, (tokens, _) = small(15, width=32, heads=4, context=24), windows(16, 3, 24)
        theirs = Stranger(torch, model).logits(tokens).detach().numpy()
        ours = forward(model, tokens)[0]
        agree(
            ours,
            theirs,
            function="circuits.forward",
            stranger="torch.nn.functional.scaled_dot_product_attention, two layers",
            **record,
        )

    def test_each_head_is_attention_with_a_bias(self):
        model, (tokens, _) = small(17), windows(18)
        _, found = forward(model, tokens)
        place = np.arange(7)
        lag = place[:, None] - place
        for layer in (0, 1):
            x, b = found[f"stream{layer}"], model[f"b{layer}"]
            q, k, v = (np.stack(np.split(x @ model[f"{name}{layer}"], len(b), axis=-1), axis=1) for name in "QKV")
            seen = {"mask": causal(place, place), "bias": b[:, np.maximum(lag, 0)]}
            close(found[f"weights{layer}"], attention_weights(q, k, **seen))
            blend = attention(q, k, v, **seen)
            close(found[f"mixed{layer}"], blend)
            o = np.stack(np.split(model[f"O{layer}"], len(b)))
            close(found[f"head{layer}"], blend @ o)
            close(found[f"stream{layer + 1}"], x + np.sum(blend @ o, axis=1))

    def test_later_characters_and_other_windows_change_nothing(self):
        model, (tokens, _) = small(19), windows(20)
        logits, found = forward(model, tokens)
        for t in range(1, 7):
            close(forward(model, tokens[:, :t])[0], logits[:, :t])
        close(forward(model, tokens[1:2])[0], logits[1:2])
        for layer in (0, 1):
            weights = found[f"weights{layer}"]
            np.testing.assert_array_equal(np.triu(weights, 1), np.zeros_like(weights))
            close(weights.sum(axis=-1), np.ones(weights.shape[:-1]))
            assert (found[f"scores{layer}"][..., np.triu_indices(7, 1)[0], np.triu_indices(7, 1)[1]] == -INF).all()

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_precision_stays_and_inputs_too(self, dtype):
        model, (tokens, _) = small(21, dtype=dtype), windows(22)
        for x in (*model.values(), tokens):
            x.setflags(write=False)
        logits, found = forward(model, tokens)
        assert {logits.dtype, *(x.dtype for x in found.values())} == {np.dtype(dtype)}
        exact = forward({name: x.astype(np.float64) for name, x in model.items()}, tokens)[0]
        np.testing.assert_allclose(logits, exact, atol=2e-5)

    def test_edits_come_in_the_order_of_computing(self):
        model, (tokens, _) = small(23), windows(24)
        names = []

        def note(name, x):
            names.append(name)
            return x

        logits, found = forward(model, tokens, edit=note)
        plain, plainly = forward(model, tokens)
        np.testing.assert_array_equal(logits, plain)
        steps = ("query_input", "key_input", "value_input", "scores", "weights", "head")
        assert names == ["stream0", *(f"{s}0" for s in steps), "stream1", *(f"{s}1" for s in steps), "stream2"]
        others = {f"{name}{layer}" for name in ("queries", "keys", "values", "mixed") for layer in (0, 1)}
        assert set(found) == set(plainly) == {*names, *others}

    @pytest.mark.parametrize("name", ["query_input1", "key_input1", "value_input1"])
    def test_what_one_projection_reads_can_be_cut(self, name):
        model, (tokens, _) = small(25), windows(26)
        plain, _ = forward(model, tokens)
        stream0 = model["E"][tokens]
        logits, found = forward(model, tokens, edit=lambda n, x: stream0 if n == name else x)
        expected = {"query_input1": found["stream1"], "key_input1": found["stream1"], "value_input1": found["stream1"]}
        expected[name] = stream0
        read = {
            n: np.stack(np.split(expected[f"{n}_input1"] @ model[f"{m}1"], 2, axis=-1), axis=1)
            for n, m in (("query", "Q"), ("key", "K"), ("value", "V"))
        }
        for n, names in (("query", "queries1"), ("key", "keys1"), ("value", "values1")):
            close(found[names], read[n])
        assert np.abs(logits - plain).max() > 1e-3

    def test_every_edit_is_used(self):
        model, (tokens, _) = small(27), windows(28)
        plain, found = forward(model, tokens)
        for name in found:
            if not re.match("queries|keys|values|mixed", name):
                edited, _ = forward(model, tokens, edit=lambda n, x, name=name: 0.5 * x if n == name else x)
                assert np.abs(edited - plain).max() > 1e-4, name

    def test_an_edge_taken_away_and_a_row_that_reads_nothing(self):
        model, (tokens, _) = small(29), windows(30)

        def edit(name, s):
            if name == "scores1":
                s = s.copy()
                s[:, 0, 4, 2] = -INF
                s[:, 1, 5, :] = -INF
            return s

        _, found = forward(model, tokens, edit=edit)
        _, plain = forward(model, tokens)
        w = plain["weights1"][:, 0, 4].copy()
        w[:, 2] = 0
        close(found["weights1"][:, 0, 4], w / w.sum(axis=-1, keepdims=True))
        assert not found["weights1"][:, 1, 5].any()
        assert not found["head1"][:, 1, 5].any()
        close(found["stream1"], plain["stream1"])

    def test_large_scores(self):
        model, (tokens, _) = small(31), windows(32)
        model |= {"Q0": model["Q0"] * 1e4}
        _, found = forward(model, tokens)
        close(found["weights0"], softmax(found["scores0"]))
        assert np.isfinite(found["stream2"]).all()

    def test_bad_input(self, torch):
        model, (tokens, _) = small(33), windows(34)
        with pytest.raises(ValueError, match=r"tokens has shape \(3, 9\); it must be \(B, T\) with T from 1 to 8"):
            forward(model, windows(0, 3, 9)[0])
        for wrong in (tokens[0], tokens[:, :0]):
            with pytest.raises(ValueError, match="tokens has shape"):
                forward(model, wrong)
        assert forward(model, tokens[:0])[0].shape == (0, 7, 32)
        with pytest.raises(ValueError, match="tokens has 32 to 32; it must keep to 0 to 31"):
            forward(model, np.full((1, 2), 32))
        with pytest.raises(TypeError, match="tokens must be a NumPy array, not Tensor"):
            forward(model, torch.tensor(tokens))
        with pytest.raises(TypeError, match="NumPy array of float32 or float64"):
            forward(model | {"Q0": torch.tensor(model["Q0"])}, tokens)
        with pytest.raises(TypeError, match=r"model\['U'\] must be a NumPy array of float32 or float64"):
            forward(model | {"U": model["U"].astype(np.float16)}, tokens)
        with pytest.raises(ValueError, match="model has the entries"):
            forward({name: x for name, x in model.items() if name != "K1"}, tokens)
        with pytest.raises(ValueError, match="model has the entries"):
            forward(model | {"M0": model["Q0"]}, tokens)
        for name, shape in {"U": (5, 32), "Q0": (6, 4), "K1": (5, 6), "V1": (6, 8), "O0": (6, 5)}.items():
            with pytest.raises(ValueError, match=rf"model\['{name}'\] has shape"):
                forward(model | {name: np.ones(shape)}, tokens)
        with pytest.raises(ValueError, match=r"model\['O0'\] has 6 rows, which its 4 heads do not divide"):
            forward(model | {"b0": np.ones((4, 8))}, tokens)
        with pytest.raises(ValueError, match=r"model\['E'\] has shape \(3,\); it must have two axes"):
            forward(model | {"E": np.ones(3)}, tokens)
        with pytest.raises(TypeError, match="edit must be a function of a name and an array"):
            forward(model, tokens, edit=1)
        with pytest.raises(ValueError, match=r"edit\('head0', ...\) has shape \(3, 7, 6\); it must be \(3, 2, 7, 6\)"):
            forward(model, tokens, edit=lambda name, x: x[:, 0] if name == "head0" else x)


class TestCrossEntropy:
    def test_by_hand(self):
        losses = cross_entropy(np.log([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]]), np.array([[0, 2]]))
        close(losses, np.array([[math.log(2), -math.log(0.8)]]))
        close(cross_entropy(np.zeros((2, 32)), np.array([3, 31])), np.full(2, math.log(32)))

    def test_agrees_with_torch(self, torch, agree, record):
        rng = np.random.default_rng(35)
        logits, targets = rng.normal(size=(40, 32)) * 5, rng.integers(0, 32, 40)
        theirs = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(targets), reduction="none")
        ours = cross_entropy(logits, targets)
        agree(
            ours,
            theirs.numpy(),
            function="circuits.cross_entropy",
            stranger="torch.nn.functional.cross_entropy",
            **record,
        )

    def test_a_number_added_to_all_logits_and_huge_logits(self):
        rng = np.random.default_rng(36)
        logits, targets = rng.normal(size=(4, 5, 32)), rng.integers(0, 32, (4, 5))
        close(cross_entropy(logits + 7.5, targets), cross_entropy(logits, targets))
        np.testing.assert_allclose(cross_entropy(np.array([[1e4, 0.0]]), np.array([1])), [1e4])
        assert cross_entropy(logits.astype(np.float32), targets).dtype == np.float32

    def test_bad_input(self):
        with pytest.raises(ValueError, match=r"targets has shape \(3,\); it must be \(2,\)"):
            cross_entropy(np.ones((2, 4)), np.zeros(3, int))
        with pytest.raises(ValueError, match="targets has 4 to 4; it must keep to 0 to 3"):
            cross_entropy(np.ones((1, 4)), np.array([4]))
        with pytest.raises(ValueError, match="logits has shape"):
            cross_entropy(np.ones(()), np.zeros((), int))
        with pytest.raises(TypeError, match="logits must be a NumPy array of floating point numbers"):
            cross_entropy(np.ones((1, 4), int), np.array([0]))
        with pytest.raises(TypeError, match="targets must hold integers"):
            cross_entropy(np.ones((1, 4)), np.array([0.0]))


class TestLossAndGradient:
    @pytest.mark.parametrize("layers", [0, 1, 2])
    def test_every_parameter_against_finite_differences(self, layers):
        model, (tokens, targets) = small(37, layers=layers, width=4, context=5), windows(38, 2, 5)
        loss, gradient = loss_and_gradient(model, tokens, targets)
        assert loss == pytest.approx(cross_entropy(forward(model, tokens)[0], targets).mean(), rel=1e-14)
        assert {name: g.shape for name, g in gradient.items()} == {name: x.shape for name, x in model.items()}
        step = 1e-5
        for name, x in model.items():
            for at in np.ndindex(x.shape):
                losses = []
                for sign in (1, -1):
                    moved = x.copy()
                    moved[at] += sign * step
                    losses.append(cross_entropy(forward(model | {name: moved}, tokens)[0], targets).mean())
                assert gradient[name][at] == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=1e-9), (name, at)

    def test_agrees_with_autograd_of_torch(self, torch, agree, record):
        model, (tokens, targets) = small(39, width=32, heads=4, context=24), windows(40, 3, 20)
        stranger = Stranger(torch, model)
        loss = stranger.loss(tokens, targets)
        loss.backward()
        ours, gradient = loss_and_gradient(model, tokens, targets)
        assert ours == pytest.approx(loss.item(), rel=1e-13)
        agree(
            np.concatenate([gradient[name].ravel() for name in sorted(model)]),
            np.concatenate([stranger.model[name].grad.numpy().ravel() for name in sorted(model)]),
            function="circuits.loss_and_gradient",
            stranger="torch.autograd, two layers",
            **record,
        )
        assert not gradient["b0"][:, 20:].any()

    def test_single_precision_and_inputs_stay(self):
        model, (tokens, targets) = small(41, dtype=np.float32), windows(42)
        for x in (*model.values(), tokens, targets):
            x.setflags(write=False)
        loss, gradient = loss_and_gradient(model, tokens, targets)
        exactly, exact = loss_and_gradient({n: x.astype(np.float64) for n, x in model.items()}, tokens, targets)
        assert loss == pytest.approx(exactly, rel=1e-6)
        for name, g in gradient.items():
            assert g.dtype == np.float32
            np.testing.assert_allclose(g, exact[name], atol=1e-6)

    def test_bad_input(self):
        model, (tokens, targets) = small(43), windows(44)
        with pytest.raises(ValueError, match="targets has shape"):
            loss_and_gradient(model, tokens, targets[:, 1:])
        with pytest.raises(ValueError, match="a mean needs at least one window"):
            loss_and_gradient(model, tokens[:0], targets[:0])


class TestAdamStep:
    def test_by_hand(self):
        model, state = adam_step({"x": np.array([1.0])}, {"x": np.array([4.0])}, rate=0.1)
        close(model["x"], np.array([0.9]), 1e-8)
        assert state[0] == 1
        close(state[1]["x"], np.array([0.4]))
        close(state[2]["x"], np.array([0.16]))
        model, state = adam_step(model, {"x": np.array([0.0])}, state, rate=0.1)
        mean, square = 0.36 / (1 - 0.81), 0.1584 / (1 - 0.99**2)
        close(model["x"], np.array([0.9 - 0.1 * mean / math.sqrt(square)]), 1e-8)

    @pytest.mark.parametrize("betas", [(0.9, 0.99), (0.0, 0.5)])
    def test_agrees_with_torch(self, torch, agree, record, betas):
        rng = np.random.default_rng(45)
        model = {"a": rng.normal(size=(3, 4)), "b": rng.normal(size=5)}
        theirs = {name: torch.tensor(x, requires_grad=True) for name, x in model.items()}
        optimizer = torch.optim.Adam(theirs.values(), betas=betas)
        state = None
        for step in range(12):
            rate = 0.05 / (1 + step)
            gradient = {name: rng.normal(size=x.shape) * 10.0 ** rng.integers(-4, 4) for name, x in model.items()}
            model, state = adam_step(model, gradient, state, rate=rate, betas=betas)
            for name, g in gradient.items():
                theirs[name].grad = torch.tensor(g)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
        agree(
            np.concatenate([x.ravel() for x in model.values()]),
            np.concatenate([x.detach().numpy().ravel() for x in theirs.values()]),
            function="circuits.adam_step",
            stranger="torch.optim.Adam, twelve steps",
            **record,
        )

    @pytest.mark.parametrize("clip", [0.5, 100.0])
    def test_clip_is_that_of_torch_but_for_its_epsilon(self, torch, clip):
        rng = np.random.default_rng(46)
        model = {"a": np.zeros((2, 3)), "b": np.zeros(4)}
        gradient = {name: rng.normal(size=x.shape) for name, x in model.items()}
        theirs = [torch.nn.Parameter(torch.zeros(x.shape)) for x in model.values()]
        for p, g in zip(theirs, gradient.values(), strict=True):
            p.grad = torch.tensor(g, dtype=p.dtype)
        torch.nn.utils.clip_grad_norm_(theirs, clip)
        _, (_, mean, _) = adam_step(model, gradient, rate=1.0, clip=clip, betas=(0.0, 0.9))
        for ours, p in zip(mean.values(), theirs, strict=True):
            np.testing.assert_allclose(ours, p.grad.numpy(), rtol=5e-6)

    def test_nothing_to_learn_and_precision(self):
        model = {"a": np.ones(3, np.float32)}
        new, state = adam_step(model, {"a": np.zeros(3, np.float32)}, rate=0.1, clip=1.0)
        np.testing.assert_array_equal(new["a"], model["a"])
        assert {new["a"].dtype, state[1]["a"].dtype, state[2]["a"].dtype} == {np.dtype(np.float32)}

    def test_bad_input(self):
        model = {"a": np.ones(3)}
        with pytest.raises(ValueError, match=r"gradient has the entries \['b'\]; model has \['a'\]"):
            adam_step(model, {"b": np.ones(3)}, rate=0.1)
        for rate in (0.0, -1.0):
            with pytest.raises(ValueError, match="rate is"):
                adam_step(model, model, rate=rate)
        with pytest.raises(ValueError, match="clip is 0"):
            adam_step(model, model, rate=0.1, clip=0)
        for betas in ((1.0, 0.9), (0.9, -0.1)):
            with pytest.raises(ValueError, match="betas is"):
                adam_step(model, model, rate=0.1, betas=betas)
        with pytest.raises(TypeError, match="rate must be a number"):
            adam_step(model, model, rate="fast")


def short_run(steps=60, seed=0, **options):
    rng = np.random.default_rng(seed)
    text = encode(tales(rng, 20))
    model, losses = initialize(rng, width=32, heads=2, context=32), []
    model = train(
        rng, steps=steps, model=model, text=text, report=lambda step, model, loss: losses.append(loss), **options
    )
    return model, losses


class TestTrain:
    def test_short_run_again(self):
        """The numbers of one machine; those of other kernels differ in the seventh digit (see the page)."""
        _, losses = short_run()
        np.testing.assert_allclose([losses[i] for i in (0, 9, 29, 59)], SHORT_RUN, rtol=1e-4)

    def test_is_the_training_of_torch(self, torch):
        model, losses = short_run(steps=20)
        rng = np.random.default_rng(0)
        text = encode(tales(rng, 20))
        first = initialize(rng, width=32, heads=2, context=32)
        stranger = Stranger(torch, {name: x.astype(np.float64) for name, x in first.items()})
        optimizer = torch.optim.Adam(stranger.model.values(), betas=(0.9, 0.99))
        theirs = []
        for step in range(1, 21):
            optimizer.zero_grad()
            loss = stranger.loss(*batch(rng, text, size=16, length=32))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(stranger.model.values(), 1.0)
            optimizer.param_groups[0]["lr"] = 0.01 * min(step / 50, 1) * (1 - 0.95 * step / 20)
            optimizer.step()
            theirs.append(loss.item())
        np.testing.assert_allclose(losses, theirs, rtol=2e-5)
        for name, x in model.items():
            np.testing.assert_allclose(x, stranger.model[name].detach().numpy(), atol=2e-4)

    def test_report_and_defaults(self):
        seen = []
        model = train(np.random.default_rng(1), steps=2, size=4, report=lambda *a: seen.append(a))
        assert [step for step, _, _ in seen] == [1, 2]
        assert seen[-1][1] is model
        assert seen[0][1] is not model
        rng = np.random.default_rng(1)
        text, first = encode(tales(rng, 1000)), initialize(rng)
        assert seen[0][2] == pytest.approx(loss_and_gradient(first, *batch(rng, text, size=4, length=64))[0], rel=1e-6)
        assert train(np.random.default_rng(2), steps=0, model=first, text=text) is first

    def test_half_precision_changes_little(self):
        model, _ = short_run(steps=40)
        tokens, targets = batch(
            np.random.default_rng(3), encode(tales(np.random.default_rng(4), 9)), size=32, length=32
        )
        losses = [
            cross_entropy(forward(m, tokens)[0], targets).mean()
            for m in (model, {name: x.astype(np.float16).astype(np.float32) for name, x in model.items()})
        ]
        assert abs(losses[0] - losses[1]) < 5e-4

    def test_bad_input(self):
        rng = np.random.default_rng(5)
        with pytest.raises(ValueError, match="steps is -1"):
            train(rng, steps=-1)
        with pytest.raises(TypeError, match="report must be a function"):
            train(rng, steps=1, report=1)
        with pytest.raises(TypeError, match="rng must be"):
            train(1, steps=1)


class TestGenerate:
    def test_takes_the_likeliest_when_cold(self):
        model, text = load_model(), "once there lived a miller by the name of "
        written = generate(model, text, 40, temperature=0.001, rng=np.random.default_rng(0))
        assert written == generate(model, text, 40, temperature=0.001, rng=np.random.default_rng(1))
        for _ in range(40):
            logits, _ = forward(model, encode(text)[None, -64:])
            text += ALPHABET[logits[0, -1].argmax()]
        assert text.endswith(written)

    def test_frequencies_are_the_probabilities(self):
        model, rng = small(47), np.random.default_rng(48)
        model["U"] = model["U"] * 2
        expected = softmax(forward(model, encode("ab")[None])[0][0, -1], temperature=1.5)
        drawn = [encode(generate(model, "ab", 1, temperature=1.5, rng=rng))[0] for _ in range(1500)]
        found = np.bincount(drawn, minlength=32) / 1500
        assert np.abs(found - expected).max() < 4 * math.sqrt(0.25 / 1500)
        assert np.abs(found - softmax(forward(model, encode("ab")[None])[0][0, -1])).max() > 0.03

    def test_bad_input(self):
        model, rng = small(49), np.random.default_rng(50)
        assert generate(model, "a", 0, temperature=1.0, rng=rng) == ""
        with pytest.raises(ValueError, match="prompt is empty"):
            generate(model, "", 1, temperature=1.0, rng=rng)
        with pytest.raises(ValueError, match="temperature is 0"):
            generate(model, "a", 1, temperature=0, rng=rng)
        with pytest.raises(ValueError, match="n is -1"):
            generate(model, "a", -1, temperature=1.0, rng=rng)
        with pytest.raises(ValueError, match="must keep to"):
            generate(model, "A", 1, temperature=1.0, rng=rng)
        with pytest.raises(TypeError, match="rng must be"):
            generate(model, "a", 1, temperature=1.0, rng=0)


@pytest.fixture(scope="module")
def shipped():
    return _over_seeds(load_model())


class TestLoadModel:
    def test_shapes_and_size(self):
        model, like = load_model(), initialize(np.random.default_rng(0))
        assert {name: (x.shape, x.dtype) for name, x in model.items()} == {
            name: (x.shape, x.dtype) for name, x in like.items()
        }
        assert command.language_model._HERE.joinpath("language_model.npz").stat().st_size < 100_000
        assert all(np.isfinite(x).all() for x in model.values())
        model["E"][:] = 0
        assert load_model()["E"].any()

    def test_losses(self, shipped):
        for name, loss in SHIPPED.items():
            assert shipped[name] == pytest.approx(loss, rel=2e-4), name
            assert seed_results("language_model")[name][0] == pytest.approx(loss, rel=2e-4)

    def test_rounding_to_half_precision_changes_no_digit_shown(self, shipped):
        """Weights that all round to the shipped ones: their losses agree to three digits after the point."""
        model, rng = load_model(), np.random.default_rng(51)
        inside = {
            name: (x + rng.uniform(-0.5, 0.5, x.shape) * np.spacing(np.abs(x).astype(np.float16))).astype(np.float32)
            for name, x in model.items()
        }
        assert sum(np.count_nonzero(inside[name].astype(np.float16) != x) for name, x in model.items()) < 40
        moved = _over_seeds(inside)
        assert max(abs(shipped[name] - moved[name]) for name in shipped) < 1e-3

    def test_copies_a_name(self):
        model, rng = load_model(), np.random.default_rng(52)
        for prompt, rest in COPIES.items():
            assert generate(model, prompt, len(rest), temperature=0.1, rng=rng) == rest


class TestSeedResults:
    def test_five_numbers_each(self):
        found = seed_results("language_model")
        assert set(found) == set(SHIPPED)
        assert all(len(numbers) == 5 for numbers in found.values())
        for before, after in (("letters, first time", "letters, again"), ("chunks, first time", "chunks, again")):
            assert all(b < 0.3 * a for a, b in zip(found[before], found[after], strict=True))

    def test_bad_input(self):
        with pytest.raises(ValueError, match="topic is 'weather'; there are numbers for"):
            seed_results("weather")


class TestCommand:
    def test_trains_and_writes(self, tmp_path):
        file = tmp_path / "weights.npz"
        words = ["-m", "softlookup.circuits", "--seed", "3", "--steps", "2", "--output", str(file)]
        ran = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
        assert re.search(r"seed 3  step +2  loss 3\.\d{4}", ran.stdout)
        assert '"tales": 3.' in ran.stdout
        with np.load(file) as found:
            assert {x.dtype for x in found.values()} == {np.dtype(np.float16)}
            expected = train(np.random.default_rng(3), steps=2)
            for name, x in expected.items():
                np.testing.assert_allclose(found[name], x, atol=2e-3)

    def test_measures_models_that_are_there_and_keeps_other_topics(self, tmp_path, monkeypatch):
        output = tmp_path / "seeds.json"
        output.write_text('{"other": {"x": [1.0]}, "language_model": {"old": [0.0]}}')
        for seed in range(5):
            np.savez(tmp_path / f"seed{seed}.npz", **small(seed, width=8, context=16))
        words = ["--seeds", "--models", str(tmp_path), "--topics", "language_model", "--output", str(output)]
        monkeypatch.setattr(sys, "argv", ["circuits", *words])
        command.main()
        found = json.loads(output.read_text())
        assert set(found) == {"other", "language_model"}
        assert found["other"] == {"x": [1.0]}
        assert {name: len(numbers) for name, numbers in found["language_model"].items()} == dict.fromkeys(SHIPPED, 5)
        model = {n: x.astype(np.float16).astype(np.float32) for n, x in small(4, width=8, context=16).items()}
        for name, loss in _over_seeds(model).items():
            assert found["language_model"][name][4] == pytest.approx(loss, rel=1e-5)

    def test_every_topic_that_measures_is_asked(self):
        assert "language_model" in command.measures(["language_model"])
