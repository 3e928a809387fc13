"""In which order the same sum is computed."""

from softlookup.schedules.block_sparse import block_layout, block_sparse_attention, visited_pairs
from softlookup.schedules.cache import (
    chunked_prefill,
    decode,
    gather_pages,
    paged_attention,
    rolling_decode,
    rolling_positions,
    rolling_write,
    write_pages,
)
from softlookup.schedules.flash import add_sink, flash_attention, flash_attention_by_keys, flash_attention_vjp
from softlookup.schedules.merging import (
    merge,
    merge_all,
    merge_vjp,
    partial_attention,
    shared_prefix_attention,
    split_attention,
)
from softlookup.schedules.online_softmax import online_attention, online_log_sum_exp, online_softmax, online_update
from softlookup.schedules.ring import (
    all_to_all_attention,
    live_pairs,
    ring_attention,
    ring_attention_vjp,
    ring_step,
    ring_step_vjp,
    stripes,
    tree_attention,
    tree_step,
    zigzag,
)
from softlookup.schedules.speed import fast_attention

__all__ = [
    "add_sink",
    "all_to_all_attention",
    "block_layout",
    "block_sparse_attention",
    "chunked_prefill",
    "decode",
    "fast_attention",
    "flash_attention",
    "flash_attention_by_keys",
    "flash_attention_vjp",
    "gather_pages",
    "live_pairs",
    "merge",
    "merge_all",
    "merge_vjp",
    "online_attention",
    "online_log_sum_exp",
    "online_softmax",
    "online_update",
    "paged_attention",
    "partial_attention",
    "ring_attention",
    "ring_attention_vjp",
    "ring_step",
    "ring_step_vjp",
    "rolling_decode",
    "rolling_positions",
    "rolling_write",
    "shared_prefix_attention",
    "split_attention",
    "stripes",
    "tree_attention",
    "tree_step",
    "visited_pairs",
    "write_pages",
    "zigzag",
]
