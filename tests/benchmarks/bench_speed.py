"""How fast `fast_attention` is, beside what limits it and beside others: ``python tests --benchmarks``.

Every run does one round after the other, and each round calls every candidate once, so that a busy moment slows all of
them; the ratios are those of the medians. The test fails only where a ratio falls below half of its target.
"""

import functools
import statistics
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from libraries import missing

from softlookup.schedules import fast_attention, online_attention

HEADS, WIDTH = 8, 64
ROUNDS = {2048: 15, 8192: 3}
RUNS = [
    (n, dtype, causal, threads)
    for threads in (1, 2)
    for n in (2048, 8192)
    for dtype in ("float32", "float64")
    for causal in (False, True)
]
TARGETS = {
    ("float32", 1): {"limit": 0.85, "torch": 0.85},
    ("float64", 1): {"limit": 0.90, "torch": 1.10},
    ("float32", 2): {"limit": 0.85, "torch": 0.75},
    ("float64", 2): {"limit": 0.88, "torch": 1.00},
}
MEBIBYTE = 2**20


def draw(dtype, *shape):
    return np.random.default_rng(0).normal(size=(3, *shape)).astype(dtype)


def limit(q, *, causal, rows=256, columns=512):
    """The two products and the exponential of each tile that holds a pair to read, on data that stay in the cache."""
    *heads, n, d = q.shape
    a, b, c = (np.full((size, d), 0.1, q.dtype) for size in (rows, columns, columns))
    tile, out = np.empty(rows * columns, q.dtype), np.empty_like(a)
    for _ in np.ndindex(*heads):
        for i in range(0, n, rows):
            stop = min(n, i + rows) if causal else n
            for j in range(0, stop, columns):
                width = min(columns, stop - j)
                s = tile[: rows * width].reshape(rows, width)
                np.matmul(a, b[:width].T, out=s)
                np.exp2(s, out=s)
                np.matmul(s, c[:width], out=out)


def shared_limit(q, *, causal, threads):
    """The same, its heads dealt to threads."""
    if threads == 1:
        return limit(q, causal=causal)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(functools.partial(limit, causal=causal), [q[i::threads] for i in range(threads)]))


def textbook(q, k, v, *, causal=False):
    """The formula as it stands, with a table of all scores."""
    s = q @ k.mT / np.sqrt(q.shape[-1]).astype(q.dtype)
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


def dense_in_place(q, k, v, *, causal=False):
    """The same with one table, which is written over."""
    s = q @ k.mT
    s *= float(q.shape[-1] ** -0.5)
    if causal:
        np.copyto(s, -np.inf, where=~np.tri(*s.shape[-2:], dtype=bool))
    s -= s.max(axis=-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(axis=-1, keepdims=True)
    return s @ v


def online_in_place(q, k, v, *, block):
    """The loop of `online_attention`, written for NumPy alone."""
    q = q * float(q.shape[-1] ** -0.5)
    top = np.full((*q.shape[:-1], 1), -np.inf, q.dtype)
    total, blend = np.zeros_like(top), np.zeros_like(v, shape=(*q.shape[:-1], v.shape[-1]))
    for j in range(0, k.shape[-2], block):
        s = q @ k[..., j : j + block, :].mT
        new = np.maximum(top, s.max(axis=-1, keepdims=True))
        s -= new
        np.exp(s, out=s)
        kept, top = np.exp(top - new), new
        total = total * kept + s.sum(axis=-1, keepdims=True)
        blend = blend * kept + s @ v[..., j : j + block, :]
    return blend / total


def torch_fused(arrays, *, causal, threads):
    import torch

    torch.set_num_threads(threads)
    q, k, v = (torch.from_numpy(x)[None] for x in arrays)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=causal)[0].numpy()


def jax_compiled(arrays, *, causal):
    import jax

    q, k, v = (jax.numpy.asarray(x.swapaxes(0, 1))[None] for x in arrays)
    attend = jax.jit(functools.partial(jax.nn.dot_product_attention, is_causal=causal))
    return lambda: np.asarray(attend(q, k, v).block_until_ready())[0].swapaxes(0, 1)


def interleaved(benchmark, candidates, rounds):
    """The median time of each candidate, in seconds; a candidate is called with nothing."""
    times = {name: [] for name in candidates}

    def every_candidate_once():
        for name, candidate in candidates.items():
            time.sleep(0.06)  # threads of the other libraries wait for more work at full speed for a while
            start = time.perf_counter()
            candidate()
            times[name].append(time.perf_counter() - start)

    benchmark.pedantic(every_candidate_once, rounds=rounds, warmup_rounds=1)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


def extra_bytes(function):
    """The peak of what NumPy holds during a call, without the result."""
    tracemalloc.start()
    try:
        size = function().nbytes
        return tracemalloc.get_traced_memory()[1] - size
    finally:
        tracemalloc.stop()


def hold(ratios, targets):
    for name, target in targets.items():
        assert name not in ratios or ratios[name] >= target / 2, f"{name}: {ratios[name]:.2f}, the target is {target}"


@pytest.mark.parametrize(("n", "dtype", "causal", "threads"), RUNS)
def test_runs(benchmark, table, n, dtype, causal, threads):
    q, k, v = arrays = draw(dtype, HEADS, n, WIDTH)
    ours = functools.partial(fast_attention, q, k, v, causal=causal, workers=threads)
    candidates = {"ours": ours, "limit": lambda: shared_limit(q, causal=causal, threads=threads)}
    if not missing("torch"):
        candidates["torch"] = torch_fused(arrays, causal=causal, threads=threads)
    if n <= 2048 and threads == 1:
        candidates["textbook"] = lambda: textbook(q, k, v, causal=causal)
        candidates["in place"] = lambda: dense_in_place(q, k, v, causal=causal)
    if n <= 2048 and threads > 1 and dtype == "float32" and not missing("jax"):
        candidates["jax"] = jax_compiled(arrays, causal=causal)
    for name in candidates.keys() - {"ours", "limit"}:
        np.testing.assert_allclose(candidates[name](), ours(), atol=1e-5, rtol=1e-4)
    seconds = interleaved(benchmark, candidates, ROUNDS[n])
    ratios = {name: seconds[name] / seconds["ours"] for name in candidates if name != "ours"}
    extra = extra_bytes(ours)
    name = f"{dtype}, n = {n}{', causal' if causal else ''}"
    if "in place" in ratios:
        table.others.append({"what": f"a dense form in place, to ours, {name}", "ratio": ratios.pop("in place")})
    table.runs.append({"run": name, "threads": threads, "seconds": seconds["ours"], **ratios, "extra": extra})
    hold(ratios, TARGETS[dtype, threads])
    assert extra <= 2 * 8 * MEBIBYTE


def test_large_scores(benchmark, table):
    q, k, v = draw("float32", HEADS, 2048, WIDTH)
    candidates = {"ours": lambda: fast_attention(8 * q, k, v), "limit": lambda: limit(q, causal=False)}
    seconds = interleaved(benchmark, candidates, 9)
    table.others.append({"what": "large scores, of the limit", "ratio": seconds["limit"] / seconds["ours"]})


@pytest.mark.parametrize("n", [8192])
def test_window(benchmark, table, n):
    q, k, v = draw("float32", HEADS, n, WIDTH)
    candidates = {
        "window": lambda: fast_attention(q, k, v, causal=True, window=(255, None)),
        "causal": lambda: fast_attention(q, k, v, causal=True),
    }
    seconds = interleaved(benchmark, candidates, 5)
    ratio = seconds["causal"] / seconds["window"]
    table.others.append({"what": f"a window of 256 keys at n = {n}, to all earlier keys", "ratio": ratio})
    hold({"window": ratio}, {"window": 7})


def test_tiny(benchmark, table):
    arrays = draw("float32", HEADS, 8, WIDTH)
    candidates = {
        "ours": lambda: [fast_attention(*arrays) for _ in range(500)],
        "textbook": lambda: [textbook(*arrays) for _ in range(500)],
    }
    seconds = interleaved(benchmark, candidates, 25)
    ratio = seconds["ours"] / seconds["textbook"]
    table.others.append({"what": "time of a call with n = 8, to the textbook form", "ratio": ratio})
    assert ratio <= 2 * 2.2


@pytest.mark.parametrize("block", [256])
def test_array_api_form(benchmark, table, block):
    q, k, v = draw("float32", HEADS, 2048, WIDTH)
    candidates = {
        "array API": lambda: online_attention(q, k, v, block=block),
        "in place": lambda: online_in_place(q, k, v, block=block),
    }
    seconds = interleaved(benchmark, candidates, 9)
    ratio = seconds["in place"] / seconds["array API"]
    table.others.append({"what": "online_attention, of the same loop in place", "ratio": ratio})
    hold({"array API": ratio}, {"array API": 0.8})
