"""Who may read whom: boolean masks made from positions."""

from softlookup.masks.causal import causal, positions, strictly_causal
from softlookup.masks.global_local import global_local, global_tokens
from softlookup.masks.padding import (
    block_causal,
    document_ids,
    document_positions,
    padding,
    prefix_causal,
    same_document,
    shared_prefix,
    tree,
    valid_keys,
)
from softlookup.masks.score_mods import and_masks, block_summary, evaluate_mask, modified_score, or_masks
from softlookup.masks.window import chunked, dilated_window, sink_window, sliding_window

__all__ = [
    "and_masks",
    "block_causal",
    "block_summary",
    "causal",
    "chunked",
    "dilated_window",
    "document_ids",
    "document_positions",
    "evaluate_mask",
    "global_local",
    "global_tokens",
    "modified_score",
    "or_masks",
    "padding",
    "positions",
    "prefix_causal",
    "same_document",
    "shared_prefix",
    "sink_window",
    "sliding_window",
    "strictly_causal",
    "tree",
    "valid_keys",
]
