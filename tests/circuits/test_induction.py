"""Heads that continue what was seen before: against plain loops, strangers, arithmetic by hand, and other ways."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from subjects import SUBJECTS

from softlookup.circuits import __main__ as command
from softlookup.circuits import (
    ablate_heads,
    copying_score,
    cross_entropy,
    duplicate_token_pattern,
    forward,
    head_matrices,
    in_context_score,
    induct,
    induction,
    induction_pattern,
    initialize,
    load_model,
    ov_circuit,
    pattern_score,
    previous_token_pattern,
    repeated_letters,
    seed_results,
    token_table,
    training_results,
)

TEXTS = st.lists(st.integers(0, 3), max_size=9)


def by_loops(tokens, rule):
    n = len(tokens)
    return np.array([[rule(tokens, i, j) for j in range(n)] for i in range(n)], dtype=bool).reshape(n, n)


RULES = {
    previous_token_pattern: lambda t, i, j: j == i - 1,
    duplicate_token_pattern: lambda t, i, j: j < i and t[j] == t[i],
    induction_pattern: lambda t, i, j: 1 <= j <= i and t[j - 1] == t[i],
}


def the_same_as_by_loops(pattern, xp, tokens):
    ours = pattern(xp.asarray(np.array(tokens, dtype="int64")))
    xp.check(ours, by_loops(tokens, RULES[pattern]), dtype="bool")


def small_model(seed=0, **sizes):
    """Weights that are large enough to matter, in double precision."""
    rng = np.random.default_rng(seed)
    model = initialize(rng, **({"width": 12, "heads": 3, "context": 16} | sizes))
    return {name: rng.normal(size=x.shape) / 3 for name, x in model.items()}


class TestPreviousTokenPattern:
    def test_by_loops(self, xp):
        for tokens in ([], [4], [4, 4, 1, 4]):
            the_same_as_by_loops(previous_token_pattern, xp, tokens)

    def test_batches(self):
        pattern = previous_token_pattern(np.zeros((2, 3, 4)))
        assert pattern.shape == (2, 3, 4, 4)
        np.testing.assert_array_equal(pattern[1, 2], np.eye(4, k=-1))

    def test_agrees_with_transformer_lens(self, agree):
        theirs = frozen("transformer_lens_heads")
        agree(
            previous_token_pattern(theirs["tokens"]),
            theirs["previous_token_pattern"],
            function="circuits.previous_token_pattern",
            stranger="transformer_lens head_detector",
            version=theirs.version,
            dtype="float64",
            exact=True,
        )

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match="tokens.*axes"):
            previous_token_pattern(xp.asarray(1.0))
        with pytest.raises(TypeError, match="tokens must be an array, not list"):
            previous_token_pattern([1, 2])


class TestDuplicateTokenPattern:
    @given(TEXTS)
    def test_by_loops_numpy(self, tokens):
        ours = duplicate_token_pattern(np.array(tokens, dtype="int64"))
        np.testing.assert_array_equal(ours, by_loops(tokens, RULES[duplicate_token_pattern]))

    def test_by_loops(self, xp):
        for tokens in ([], [4], [4, 4, 1, 4]):
            the_same_as_by_loops(duplicate_token_pattern, xp, tokens)

    def test_agrees_with_transformer_lens(self, agree):
        theirs = frozen("transformer_lens_heads")
        agree(
            duplicate_token_pattern(theirs["tokens"]),
            theirs["duplicate_token_pattern"],
            function="circuits.duplicate_token_pattern",
            stranger="transformer_lens head_detector",
            version=theirs.version,
            dtype="float64",
            exact=True,
        )

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match=r"keys|tokens"):
            duplicate_token_pattern(xp.asarray(1.0))


class TestInductionPattern:
    @given(TEXTS)
    def test_by_loops_numpy(self, tokens):
        ours = induction_pattern(np.array(tokens, dtype="int64"))
        np.testing.assert_array_equal(ours, by_loops(tokens, RULES[induction_pattern]))

    def test_by_loops(self, xp):
        for tokens in ([], [4], [4, 4, 1, 4], [1, 2, 3, 1, 2, 3]):
            the_same_as_by_loops(induction_pattern, xp, tokens)

    def test_agrees_with_transformer_lens(self, agree):
        theirs = frozen("transformer_lens_heads")
        agree(
            induction_pattern(theirs["tokens"]),
            theirs["induction_pattern"],
            function="circuits.induction_pattern",
            stranger="transformer_lens head_detector",
            version=theirs.version,
            dtype="float64",
            exact=True,
        )

    @given(TEXTS)
    def test_the_last_place_that_it_marks_holds_what_the_program_induct_says(self, tokens):
        tokens = np.array([*tokens, 0], dtype=float)
        pattern, said = induction_pattern(tokens), induct(tokens, default=-1.0)
        for row, expected in zip(pattern, said, strict=True):
            assert (tokens[np.flatnonzero(row)[-1]] if row.any() else -1.0) == expected

    def test_thousands_of_tokens_and_bytes(self):
        tokens = np.tile(np.arange(100, dtype=np.int8), 20)
        pattern = induction_pattern(tokens)
        assert pattern.sum() == sum(i // 100 for i in range(2000))
        assert not pattern[:100].any()

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match=r"keys|tokens"):
            induction_pattern(xp.asarray(1.0))


class TestPatternScore:
    def test_by_hand(self, xp):
        w = xp.asarray([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.625, 0.125]])
        pattern = xp.asarray(np.array([[0, 0, 0], [1, 0, 0], [0, 1, 1]]) > 0, "bool")
        xp.check(pattern_score(w, pattern), np.array(0.625), dtype="float64")  # (0.5 + 0.75) / 2

    def test_by_loops_with_heads(self, xp):
        rng = np.random.default_rng(0)
        w, pattern = rng.random((2, 3, 4, 5)), rng.random((2, 1, 4, 5)) < 0.4
        pattern[0, 0, 1], pattern[1] = False, False
        expected = np.zeros((2, 3))
        for b, h in np.ndindex(2, 3):
            rows = [w[b, h, i, pattern[b, 0, i]].sum() for i in range(4) if pattern[b, 0, i].any()]
            expected[b, h] = sum(rows) / len(rows) if rows else 0
        xp.check(pattern_score(xp.asarray(w), xp.asarray(pattern, "bool")), expected, dtype="float64")

    def test_agrees_with_transformer_lens_up_to_the_share_of_queries_that_count(self, agree):
        theirs = frozen("transformer_lens_heads")
        pattern = induction_pattern(theirs["tokens"])
        share = pattern.any(-1).mean(-1)
        assert (share < 1).all()
        agree(
            pattern_score(theirs["weights"], pattern) * share,
            theirs["induction_score"],
            function="circuits.pattern_score",
            stranger="transformer_lens head_detector, mul, times the share of queries",
            version=theirs.version,
            dtype="float64",
        )

    @pytest.mark.parametrize("name", ["previous_token", "duplicate_token"])
    def test_the_other_patterns_likewise(self, name):
        theirs = frozen("transformer_lens_heads")
        pattern = theirs[f"{name}_pattern"]
        ours = pattern_score(theirs["weights"], pattern) * pattern.any(-1).mean(-1)
        np.testing.assert_allclose(ours, theirs[f"{name}_score"], rtol=1e-12)

    def test_without_queries_keys_or_a_pattern_it_is_zero(self, xp):
        for n, m in ((0, 3), (3, 0), (0, 0), (3, 3)):
            w, pattern = xp.asarray(np.ones((n, m))), xp.asarray(np.zeros((n, m)) > 0, "bool")
            xp.check(pattern_score(w, pattern), np.array(0.0), dtype="float64")

    def test_what_is_outside_of_the_pattern_may_be_anything(self, xp):
        w, pattern = np.array([[np.nan, 0.5], [np.inf, 0.25]]), np.array([[False, True], [False, True]])
        xp.check(pattern_score(xp.asarray(w), xp.asarray(pattern, "bool")), np.array(0.375), dtype="float64")

    def test_gradient(self, autograd):
        rng = np.random.default_rng(1)
        w, pattern = rng.random((3, 4)), rng.random((3, 4)) < 0.5
        pattern[0] = False
        allowed, one = autograd.asarray(pattern, "bool"), np.ones(())
        (ours,) = autograd.vjp(lambda x: pattern_score(x, allowed), *map(autograd.asarray, (one, w)))
        autograd.check(ours, pattern / 2, tolerance=1e-12)

    def test_gradient_without_a_pattern_is_zero(self, autograd):
        allowed, w = autograd.asarray(np.zeros((2, 3), dtype=bool), "bool"), autograd.asarray(np.full((2, 3), np.nan))
        (ours,) = autograd.vjp(lambda x: pattern_score(x, allowed), autograd.asarray(np.ones(())), w)
        autograd.check(ours, np.zeros((2, 3)), tolerance=0)

    def test_bad_input(self, xp):
        w = xp.asarray(np.ones((3, 4)))
        with pytest.raises(ValueError, match="weights.*axes"):
            pattern_score(w[0, :], w > 0)
        with pytest.raises(ValueError, match=r"pattern has shape \(4, 4\)"):
            pattern_score(w, xp.asarray(np.ones((4, 4)) > 0, "bool"))
        with pytest.raises(TypeError, match="pattern must be boolean"):
            pattern_score(w, w)


class TestCopyingScore:
    def test_by_hand(self, xp):
        turn = np.pi / 3  # eigenvalues on the unit circle, with the real part one half
        tables = [
            ([[2.0, 0.0], [0.0, 6.0]], 1.0),
            ([[-2.0, 5.0], [0.0, -1.0]], -1.0),
            ([[3.0, 1.0], [0.0, -1.0]], 0.5),
            ([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]], 0.5),
            ([[0.0, 1.0], [-1.0, 0.0]], 0.0),
            ([[0.0, 0.0], [0.0, 0.0]], 0.0),
        ]
        ours = copying_score(xp.asarray(np.array([table for table, _ in tables])))
        xp.check(ours, np.array([score for _, score in tables]), dtype="float64")

    def test_of_the_eigenvalues_of_the_shorter_product(self):
        rng = np.random.default_rng(2)
        a, b = rng.normal(size=(9, 4)), rng.normal(size=(4, 9))
        np.testing.assert_allclose(copying_score(a @ b), copying_score(b @ a), rtol=1e-9)

    def test_agrees_with_scipy(self, agree):
        scipy = pytest.importorskip("scipy")
        linalg = pytest.importorskip("scipy.linalg")
        table = np.random.default_rng(3).normal(size=(7, 7))
        values = linalg.eigvals(table)
        agree(
            copying_score(table),
            (values.sum() / np.abs(values).sum()).real,
            function="circuits.copying_score",
            stranger="scipy.linalg.eigvals",
            version=scipy.__version__,
            dtype="float64",
        )

    def test_gradient(self, autograd):
        table = np.random.default_rng(5).normal(size=(4, 4))
        (expected,) = finite_differences(copying_score, np.ones(()), table)
        (ours,) = autograd.vjp(copying_score, *map(autograd.asarray, (np.ones(()), table)))
        autograd.check(ours, expected, tolerance=1e-6)

    def test_bounds_and_sign(self):
        tables = np.random.default_rng(4).normal(size=(50, 6, 6))
        scores = copying_score(tables)
        assert (np.abs(scores) < 1).all()
        np.testing.assert_allclose(copying_score(-3 * tables), -scores, rtol=1e-9)

    def test_empty(self, xp):
        xp.check(copying_score(xp.asarray(np.zeros((2, 0, 0)))), np.zeros(2), dtype="float64")

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match=r"table has shape \(3, 2\); it must be \(3, 3\)"):
            copying_score(xp.asarray(np.ones((3, 2))))
        with pytest.raises(ValueError, match="table.*axes"):
            copying_score(xp.asarray(np.ones(3)))


class TestInContextScore:
    def test_by_hand(self, xp):
        losses = xp.asarray([[4.0, 3.0, 2.0, 1.0], [1.0, 1.0, 1.0, 3.0]])
        ours = in_context_score(losses, early=(0, 2), late=(2, 4))
        xp.check(ours, np.array([1.5 - 3.5, 2.0 - 1.0]), dtype="float64")
        xp.check(in_context_score(losses, early=(1, 2), late=(3, 4)), np.array([-2.0, 2.0]), dtype="float64")

    def test_bad_input(self, xp):
        losses = xp.asarray(np.ones(4))
        for places in ((-1, 2), (2, 2), (3, 2), (2, 5)):
            with pytest.raises(ValueError, match=r"early is \(-?\d, \d\); it must be a range within the 4 places"):
                in_context_score(losses, early=places, late=(0, 4))
            with pytest.raises(ValueError, match="late is"):
                in_context_score(losses, early=(0, 4), late=places)
        with pytest.raises(TypeError, match="late must be an integer"):
            in_context_score(losses, early=(0, 1), late=(0, 2.5))
        with pytest.raises(ValueError, match="losses.*axes"):
            in_context_score(xp.asarray(1.0), early=(0, 1), late=(0, 1))


class TestAblateHeads:
    def test_zeros_are_a_model_whose_head_writes_nothing(self):
        model, tokens = small_model(), np.array([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])
        silent = {name: x.copy() for name, x in model.items()}
        silent["O0"][4:8] = 0  # rows of head 1 of the first layer
        silent["O1"][8:] = 0  # and of head 2 of the second
        ours = ablate_heads(model, tokens, heads=[(0, 1), (1, 2)])
        np.testing.assert_allclose(ours, forward(silent, tokens)[0], rtol=1e-12)
        assert np.abs(ours - forward(model, tokens)[0]).max() > 1e-3

    def test_means_by_loops_in_the_last_layer(self):
        model, tokens = small_model(), np.array([[3, 1, 4], [2, 7, 1], [0, 0, 9]])
        logits, record = forward(model, tokens)
        other = forward(model, tokens[:2])[1]
        for instead, windows in ((record, 3), (other, 2)):
            mean = sum(instead["head1"][b, 2] for b in range(windows)) / windows
            expected = logits + (mean - record["head1"][:, 2]) @ model["U"]
            np.testing.assert_allclose(
                ablate_heads(model, tokens, heads=[(1, 2)], instead=instead), expected, rtol=1e-10
            )

    def test_later_layers_read_the_mean(self):
        model, tokens = small_model(), np.array([[3, 1, 4], [2, 7, 1]])
        _, record = forward(model, tokens)
        alone = ablate_heads(model, tokens[:1], heads=[(0, 0), (0, 1), (0, 2)], instead=record)
        x = record["stream0"][:1] + record["head0"].mean(axis=0).sum(axis=0)
        last = {name.replace("1", "0"): a for name, a in model.items() if not name.endswith("0")} | {"E": x[0]}
        np.testing.assert_allclose(alone, forward(last, np.arange(3)[None])[0], rtol=1e-10)

    def test_no_heads_and_one_window_in_its_own_stead_change_nothing(self):
        model, tokens = small_model(), np.array([[3, 1, 4]])
        logits, record = forward(model, tokens)
        np.testing.assert_array_equal(ablate_heads(model, tokens, heads=[]), logits)
        np.testing.assert_array_equal(ablate_heads(model, tokens, heads=[(0, 1), (1, 0)], instead=record), logits)

    def test_what_is_given_stays_as_it_was(self):
        model, tokens = small_model(), np.array([[3, 1, 4]])
        _, record = forward(model, tokens)
        before = {name: x.copy() for name, x in (model | record).items()}
        ablate_heads(model, tokens, heads=[(0, 1)], instead=record)
        for name, x in (model | record).items():
            np.testing.assert_array_equal(x, before[name])

    def test_appending_leaves_earlier_rows_alone(self):
        model, tokens = small_model(), np.array([[3, 1, 4, 1, 5]])
        whole = ablate_heads(model, tokens, heads=[(0, 1)])
        for n in range(1, 5):
            np.testing.assert_allclose(ablate_heads(model, tokens[:, :n], heads=[(0, 1)]), whole[:, :n], rtol=1e-10)

    def test_bad_input(self):
        model, tokens = small_model(), np.array([[1, 2, 3]])
        for head in ((2, 0), (0, 3), (1, -1)):
            with pytest.raises(ValueError, match=rf"heads has \({head[0]}, {head[1]}\); the model has no such"):
                ablate_heads(model, tokens, heads=[(0, 0), head])
        _, record = forward(model, tokens)
        with pytest.raises(
            ValueError, match=r"instead\['head0'\] has shape \(1, 3, 3, 12\); it must be \(1, 3, 2, 12\)"
        ):
            ablate_heads(model, tokens[:, :2], heads=[(0, 0)], instead=record)


class TestTrainingResults:
    def test_the_last_step_is_the_shipped_model(self):
        kept = training_results()
        assert kept["step"] == [step for step in command.WATCHED if step <= 4000]
        now = induction._over_training(load_model())
        assert {"step", *now} == set(kept)
        for name, number in now.items():
            np.testing.assert_allclose(number, kept[name][-1], rtol=1e-2, atol=5e-3, err_msg=name)

    def test_parts_of_it_computed_otherwise(self):
        model = small_model(width=8, heads=2)
        now, (letters, windows) = induction._over_training(model), induction._texts(model)
        losses = cross_entropy(forward(model, letters[:, :15])[0], letters[:, 1:])
        np.testing.assert_allclose(now["letters, first time"], losses[:, :7].mean(), rtol=1e-9)
        np.testing.assert_allclose(now["letters, again"], losses[:, 8:].mean(), rtol=1e-9)
        told = cross_entropy(forward(model, windows[:, :16])[0], windows[:, 1:])
        np.testing.assert_allclose(now["tales"], told.mean(), rtol=1e-9)
        np.testing.assert_allclose(now["in-context"], told[:, 14:].mean() - told[:, 2:4].mean(), rtol=1e-9)

    def test_the_command_measures_on_the_way(self, monkeypatch, tmp_path):
        monkeypatch.setattr(command, "WATCHED", (1, 2))
        monkeypatch.setattr(
            induction, "_over_training", lambda model: {"size": 1 / 3 + sum(x.size for x in model.values())}
        )
        output = tmp_path / "training.json"
        words = ["circuits", "--training", "--steps", "2", "--output", str(output)]
        monkeypatch.setattr("sys.argv", words)
        command.main()
        assert output.read_text() == '{\n "step": [\n  1,\n  2\n ],\n "size": [\n  37380.0,\n  37380.0\n ]\n}\n'


class TestOverSeeds:
    def test_the_shipped_model_measures_what_the_file_says(self):
        kept = {name: numbers[0] for name, numbers in seed_results("induction").items()}
        now = induction._over_seeds(load_model())
        assert now.keys() == kept.keys()
        for name, number in now.items():
            np.testing.assert_allclose(number, kept[name], rtol=1e-3, atol=1e-3, err_msg=name)

    def test_parts_of_it_computed_otherwise(self):
        kept, model = {name: numbers[0] for name, numbers in seed_results("induction").items()}, load_model()
        letters, windows = induction._texts(model)
        assert (letters.shape, windows.shape) == ((128, 64), (512, 65))
        np.testing.assert_array_equal(letters[:, :32], letters[:, 32:])
        silent = model | {"O1": np.where(np.arange(64)[:, None] < 16, 0, model["O1"])}
        logits, _ = forward(silent, letters[:, :-1])
        again = cross_entropy(logits, letters[:, 1:])[:, 32:].mean()
        np.testing.assert_allclose(kept["letters again, no induction"], again, rtol=1e-3)
        tales = cross_entropy(forward(silent, windows[:, :-1])[0], windows[:, 1:])
        np.testing.assert_allclose(kept["tales, no induction"], tales.mean(), rtol=1e-3)
        gain = tales[:, 56:64].mean() - tales[:, 8:16].mean()
        np.testing.assert_allclose(kept["in-context, no induction"], gain, rtol=1e-3, atol=1e-4)
        tokens = repeated_letters(np.random.default_rng(1002), size=64, length=26, distinct=True)
        w = forward(model, tokens)[1]["weights1"]
        late = np.arange(26, 52)
        np.testing.assert_allclose(kept["prefix matching, head 0"], w[:, 0, late, late - 25].mean(), rtol=1e-3)
        table = token_table(model["E"], ov_circuit(*head_matrices(model, 1)[2:]), model["U"])
        values = np.linalg.eigvals(table.astype(float)[1])
        np.testing.assert_allclose(kept["copying, head 1"], values.sum().real / abs(values).sum(), rtol=1e-3)


def test_seven_parameters_at_most():
    for name in induction.__all__:
        assert len(inspect.signature(getattr(induction, name)).parameters) <= 7


@pytest.mark.parametrize(("name", "invariant"), held("circuits/induction"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
