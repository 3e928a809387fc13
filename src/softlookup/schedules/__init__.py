"""In which order the same sum is computed."""

from softlookup.schedules.merging import (
    merge,
    merge_all,
    merge_vjp,
    partial_attention,
    shared_prefix_attention,
    split_attention,
)
from softlookup.schedules.online_softmax import online_attention, online_log_sum_exp, online_softmax, online_update

__all__ = [
    "merge",
    "merge_all",
    "merge_vjp",
    "online_attention",
    "online_log_sum_exp",
    "online_softmax",
    "online_update",
    "partial_attention",
    "shared_prefix_attention",
    "split_attention",
]
