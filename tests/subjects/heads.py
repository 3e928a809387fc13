"""The functions of the family heads, as the properties see them."""

import numpy as np

from softlookup import heads
from softlookup.lookup import attention, attention_scores, hardmax, log_sum_exp, scaled_dot, softmax
from subjects.base import PAIR, WEIGHTS, Subject, draw_attention, normal, readable, without


def sharper(q, k, v):
    """Attention with another scale, for an option that must have an effect."""
    return attention(3 * q, k, v)


def draw_multi_head(rng, n, m):
    projections = {"w_q": (4, 5, 3), "w_k": (2, 6, 3), "w_v": (2, 6, 2), "w_o": (4, 2, 5)}
    return normal(rng, x=(n, 5), context=(m, 6), **projections)


MULTI_HEAD = {
    "draw": draw_multi_head,
    "keys": {"context": -2},
    "queries": {"x": -2},
    "queries_out": (-2,),
    "options": {"attend": [attention, sharper]},
}


def draw_talking_heads(rng, n, m):
    mixes = {"mix_scores": (3, 4), "mix_weights": (4, 2)}
    return normal(rng, q=(3, n, 3), k=(3, m, 3), bias=(4, n, m), **mixes) | {"mask": readable(rng, n, m)[None]}


def draw_latent(rng, n, m):
    """Queries of four heads, two latents for them, and one rotated key."""
    shapes = {"q": (4, n, 5), "c": (2, m, 3), "k_rot": (1, m, 2), "w_k": (4, 3, 3), "w_v": (4, 3, 2)}
    return normal(rng, **shapes) | {"mask": readable(rng, n, m)[None]}


def total_of_latent(q, c, k_rot, w_k, mask, **_):
    keys = np.repeat(c, 2, axis=-3) @ w_k
    return log_sum_exp((q[..., :3] @ keys.mT + q[..., 3:] @ k_rot.mT) / np.sqrt(5), mask)


LATENT = {
    "draw": draw_latent,
    "keys": {"c": -2, "k_rot": -2, "mask": -1},
    "queries": {"q": -2, "mask": -2},
    "queries_out": (-2,),
    "mask": "mask",
    "options": {"scale": [None, 0.3]},
    "log_total": total_of_latent,
}


def draw_differential(rng, n, m):
    return normal(rng, q=(4, n, 3), k=(2, m, 3), bias=(4, n, m), lam=(2, n)) | {"mask": readable(rng, n, m)[None]}


DIFFERENTIAL = {
    "keys": PAIR["keys"],
    "queries": PAIR["queries"] | {"lam": -1},
    "mask": "mask",
    "shifted": "bias",
    "options": {"score": [scaled_dot(), scaled_dot(scale=0.3)]},
}


def draw_experts(rng, n, m):
    shapes = {"q": (3, 2, n, 3), "k": (2, m, 3), "v": (2, m, 2), "w_o": (3, 2, 2, 4), "logits": (n, 3)}
    return normal(rng, **shapes) | {"mask": readable(rng, n, m)[None]}


def plus_lookup(x, k, v):
    return x + attention(x[..., :3], k, v)


def minus_lookup(x, k, v):
    return x - attention(x[..., :3], k, v)


def as_it_is(x):
    return x[..., :3], x


def doubled(x):
    return 2 * x[..., :3], 2 * x


def draw_layers(name):
    return lambda rng, n, m: {name: np.asarray(rng.integers(0, 3, size=6))}


SHARED_LAYERS = {
    "reads": [[plus_lookup] * 3, [plus_lookup, minus_lookup, plus_lookup]],
    "projections": [{0: as_it_is, 1: as_it_is}, {0: as_it_is, 1: doubled}],
    "producers": [[0, 1, 0], [0, 1, 1]],
}

SUBJECTS = {
    "heads.output_gate": Subject(
        heads.output_gate,
        lambda rng, n, m: normal(rng, out=(2, n, 3), logits=(2, n, 3)),
        queries={"out": -2, "logits": -2},
        queries_out=(-2,),
    ),
    "heads.head_gate": Subject(
        heads.head_gate,
        lambda rng, n, m: normal(rng, out=(2, n, 3), logits=(2, n)),
        queries={"out": -2, "logits": -1},
        queries_out=(-2,),
    ),
    "heads.value_residual": Subject(
        heads.value_residual,
        lambda rng, n, m: normal(rng, v=(2, n, 3), first=(2, n, 3), mix=(2, n, 1)),
        queries={"v": -2, "first": -2, "mix": -2},
        queries_out=(-2,),
    ),
    "heads.top_gates": Subject(
        heads.top_gates,
        lambda rng, n, m: normal(rng, logits=(n, 4)),
        queries={"logits": -2},
        queries_out=(-2,),
        options={"kept": [2, 3]},
        needed={"kept": 2},
    ),
    "heads.mixture_of_heads": Subject(
        heads.mixture_of_heads,
        draw_experts,
        keys=PAIR["keys"],
        queries=PAIR["queries"] | {"logits": -2},
        queries_out=(-2,),
        mask="mask",
        options={"kept": [2, 3]},
        needed={"kept": 2},
    ),
    "heads.differential_attention": Subject(
        heads.differential_attention,
        lambda rng, n, m: draw_differential(rng, n, m) | normal(rng, v=(2, m, 2)),
        **DIFFERENTIAL,
        queries_out=(-2,),
        values="v",
    ),
    "heads.differential_weights": Subject(heads.differential_weights, draw_differential, **DIFFERENTIAL, **WEIGHTS),
    "heads.differential_lambda": Subject(
        heads.differential_lambda,
        lambda rng, n, m: {name: rng.uniform(-1, 1, size=(2, 3)) for name in ("q1", "k1", "q2", "k2")},
        options={"initial": [0.8, 0.2]},
        needed={"initial": 0.8},
    ),
    "heads.differential_norm": Subject(
        heads.differential_norm,
        lambda rng, n, m: normal(rng, x=(2, n, 4), weight=(2, 1, 4)),
        queries={"x": -2},
        queries_out=(-2,),
        options={"initial": [0.8, 0.2], "epsilon": [0.0, 0.5]},
        needed={"initial": 0.8},
    ),
    "heads.mix_heads": Subject(
        heads.mix_heads,
        lambda rng, n, m: normal(rng, x=(3, n, m), mix=(3, 2)),
        {"x": -1},
        {"x": -2},
        **WEIGHTS,
    ),
    "heads.talking_heads_attention": Subject(
        heads.talking_heads_attention,
        lambda rng, n, m: draw_talking_heads(rng, n, m) | normal(rng, v=(2, m, 2)),
        **PAIR,
        queries_out=(-2,),
        values="v",
        mask="mask",
        shifted="bias",
    ),
    "heads.talking_heads_weights": Subject(
        heads.talking_heads_weights,
        draw_talking_heads,
        **PAIR,
        **WEIGHTS,
        mask="mask",
        shifted="bias",
        options={"score": [scaled_dot(), scaled_dot(scale=0.3)]},
    ),
    "heads.multi_head_attention": Subject(heads.multi_head_attention, **MULTI_HEAD),
    "heads.sum_over_heads": Subject(heads.sum_over_heads, **MULTI_HEAD),
    "heads.split_heads": Subject(
        heads.split_heads,
        lambda rng, n, m: normal(rng, x=(n, 6)),
        queries={"x": -2},
        queries_out=(-2,),
        options={"heads": [2, 3]},
        needed={"heads": 2},
    ),
    "heads.merge_heads": Subject(
        heads.merge_heads, lambda rng, n, m: normal(rng, x=(2, n, 3)), queries={"x": -2}, queries_out=(-2,)
    ),
    "heads.latent_attention": Subject(heads.latent_attention, **LATENT),
    "heads.absorbed_latent_attention": Subject(heads.absorbed_latent_attention, **LATENT),
    "heads.absorb_queries": Subject(
        heads.absorb_queries,
        lambda rng, n, m: normal(rng, q=(4, n, 5), w_k=(4, 2, 3)),
        queries={"q": -2},
        queries_out=(-2,),
    ),
    "heads.latent_heads": Subject(
        heads.latent_heads,
        without(draw_latent, "q", "mask"),
        keys={"c": -2, "k_rot": -2},
        keys_out=(-2, -2),
        queries_out=(None, None),
    ),
    "heads.expand_latent": Subject(
        heads.expand_latent,
        lambda rng, n, m: normal(rng, c=(2, n, 3), w=(4, 3, 2)),
        queries={"c": -2},
        queries_out=(-2,),
    ),
    "heads.tensor_product_heads": Subject(
        heads.tensor_product_heads,
        lambda rng, n, m: normal(rng, a=(n, 2, 4), b=(n, 2, 3)),
        queries={"a": -3, "b": -3},
        queries_out=(-2,),
    ),
    "heads.tied_heads": Subject(
        heads.tied_heads,
        lambda rng, n, m: normal(rng, kv=(2, n, 4), k_rot=(1, n, 2)),
        queries={"kv": -2, "k_rot": -2},
        keys_out=(None, None),
        queries_out=(-2, -2),
    ),
    "heads.reused_values": Subject(
        heads.reused_values,
        lambda rng, n, m: normal(rng, k=(2, n, 3), w=(1, 3, 3), alpha=(1, 3)),
        queries={"k": -2},
        queries_out=(-2,),
    ),
    "heads.grouped_query_attention": Subject(
        heads.grouped_query_attention,
        draw_attention,
        **PAIR,
        queries_out=(-2,),
        values="v",
        mask="mask",
        shifted="bias",
        options={"score": [scaled_dot(), scaled_dot(scale=2.0)], "normalize": [softmax, hardmax]},
    ),
    "heads.repeat_heads": Subject(
        heads.repeat_heads,
        lambda rng, n, m: normal(rng, x=(2, n, 3)),
        queries={"x": -2},
        queries_out=(-2,),
        options={"heads": [4, 6]},
        needed={"heads": 4},
    ),
    "heads.pool_heads": Subject(
        heads.pool_heads,
        lambda rng, n, m: normal(rng, w=(4, n, 3)),
        queries={"w": -2},
        queries_out=(-2,),
        options={"heads": [2, 1]},
        needed={"heads": 2},
    ),
    "heads.cache_bytes": Subject(
        heads.cache_bytes,
        lambda rng, n, m: normal(rng, n=(n,)),
        queries={"n": -1},
        queries_out=(-1,),
        options={"heads": [1, 2], "d": [3, 4], "e": [None, 0], "layers": [1, 2], "size": [2.0, 0.5]},
        needed={"heads": 1, "d": 3},
    ),
    "heads.share_layers": Subject(
        heads.share_layers,
        lambda rng, n, m: normal(rng, x=(n, 5)),
        queries={"x": -2},
        queries_out=(-2,),
        options=SHARED_LAYERS,
        needed={name: values[0] for name, values in SHARED_LAYERS.items()},
    ),
    "heads.adjacent_producers": Subject(
        heads.adjacent_producers,
        draw_layers("layers"),
        options={"group": [2, 3]},
        needed={"group": 2},
        whole=True,
    ),
    "heads.decoder_producers": Subject(
        heads.decoder_producers, draw_layers("layers"), options={"own": [1, 2]}, needed={"own": 1}, whole=True
    ),
    "heads.last_producers": Subject(
        heads.last_producers, draw_layers("kinds"), options={"shared": [2, 4]}, needed={"shared": 3}, whole=True
    ),
    "heads.tied_attention": Subject(
        heads.tied_attention,
        lambda rng, n, m: normal(rng, q=(4, n, 3), k=(2, m, 3)) | {"mask": readable(rng, n, m)[None]},
        **PAIR,
        queries_out=(-2,),
        mask="mask",
        options={
            "score": [scaled_dot(), scaled_dot(scale=2.0)],
            "normalize": [softmax, hardmax],
            "turn_back": [None, lambda out: -out],
        },
        log_total=lambda q, k, mask, **_: log_sum_exp(attention_scores(q, k), mask),
    ),
}
