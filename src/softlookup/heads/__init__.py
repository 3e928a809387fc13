"""How several lookups share work."""

from softlookup.heads.differential import (
    differential_attention,
    differential_lambda,
    differential_norm,
    differential_weights,
)
from softlookup.heads.gates import head_gate, mixture_of_heads, output_gate, top_gates, value_residual
from softlookup.heads.grouped_query import cache_bytes, grouped_query_attention, pool_heads, repeat_heads
from softlookup.heads.latent import (
    absorb_queries,
    absorbed_latent_attention,
    expand_latent,
    latent_attention,
    latent_heads,
    reused_values,
    tensor_product_heads,
    tied_heads,
)
from softlookup.heads.multi_head import merge_heads, multi_head_attention, split_heads, sum_over_heads
from softlookup.heads.sharing import (
    adjacent_producers,
    decoder_producers,
    last_producers,
    share_layers,
    tied_attention,
)
from softlookup.heads.talking_heads import mix_heads, talking_heads_attention, talking_heads_weights

__all__ = [
    "absorb_queries",
    "absorbed_latent_attention",
    "adjacent_producers",
    "cache_bytes",
    "decoder_producers",
    "differential_attention",
    "differential_lambda",
    "differential_norm",
    "differential_weights",
    "expand_latent",
    "grouped_query_attention",
    "head_gate",
    "last_producers",
    "latent_attention",
    "latent_heads",
    "merge_heads",
    "mix_heads",
    "mixture_of_heads",
    "multi_head_attention",
    "output_gate",
    "pool_heads",
    "repeat_heads",
    "reused_values",
    "share_layers",
    "split_heads",
    "sum_over_heads",
    "talking_heads_attention",
    "talking_heads_weights",
    "tensor_product_heads",
    "tied_attention",
    "tied_heads",
    "top_gates",
    "value_residual",
]
