"""The node cases of onnx, and its reference operator for attention.

Importing one case module builds its inputs and expected outputs in memory; no runtime is needed. Conventions of the
operator: a boolean mask means "may read", a mask shorter than the keys hides the rest, a rank-3 mask is (heads, n, m),
`is_causal` counts from the end of the cache and otherwise from the first key, the window excludes the query itself.
"""

import functools
import importlib
import warnings
from dataclasses import dataclass

import numpy as np
import onnx


@dataclass(frozen=True)
class NodeCase:
    """One case: its name, the attributes of the node, and arrays by the names that the operator gives them."""

    name: str
    attributes: dict
    inputs: dict
    outputs: dict


@functools.cache
def node_cases(operator):
    """All cases of one operator. The `_expanded` twins are left out: they carry the same data."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import node as registry

        known = len(registry._NodeTestCases)
        importlib.import_module(f"onnx.backend.test.case.node.{operator.lower()}")
        return tuple(read(case, operator) for case in registry._NodeTestCases[known:] if is_plain(case, operator))


def is_plain(case, operator):
    nodes = case.model.graph.node
    return len(nodes) == 1 and nodes[0].op_type == operator


def read(case, operator):
    node = case.model.graph.node[0]
    schema = onnx.defs.get_schema(operator)
    ((given, expected),) = case.data_sets
    return NodeCase(
        case.name,
        {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
        named(schema.inputs, node.input, given),
        named(schema.outputs, node.output, expected),
    )


def named(formal, present, arrays):
    """Arrays by formal name; an optional one that is left out has an empty name in the node and no array."""
    arrays = iter(arrays)
    return {slot.name: as_array(next(arrays)) for slot, name in zip(formal, present, strict=False) if name}


def as_array(value):
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def attention_arguments(case):
    """What our `attention` gets for a case: arrays in double precision, one mask, one bias, scale and cap."""
    q, k, v = (heads_first(case, name) for name in "QKV")
    past = 0
    if "past_key" in case.inputs:
        past = case.inputs["past_key"].shape[-2]
        k = np.concatenate([case.inputs["past_key"].astype(np.float64), k], axis=-2)
        v = np.concatenate([case.inputs["past_value"].astype(np.float64), v], axis=-2)
    mask, bias = given_mask(case, k.shape[-2])
    scale, cap = case.attributes.get("scale"), case.attributes.get("softcap") or None
    mask = mask & position_mask(case, q.shape[-2], k.shape[-2], past)
    return {"q": q, "k": k, "v": v, "mask": mask, "bias": bias, "scale": scale, "cap": cap}


def heads_first(case, name):
    """(batch, heads, positions, width), whichever of its two layouts the case uses."""
    array = case.inputs[name].astype(np.float64)
    if array.ndim == 4:
        return array
    heads = case.attributes["q_num_heads" if name == "Q" else "kv_num_heads"]
    return array.reshape(*array.shape[:2], heads, -1).swapaxes(1, 2)


def given_mask(case, m):
    """The case's mask as a boolean mask and a bias, as long as the keys."""
    given = case.inputs.get("attn_mask")
    if given is None:
        return np.ones((1, 1), dtype=bool), None
    boolean = given.dtype == bool
    missing = [(0, 0)] * (given.ndim - 1) + [(0, max(m - given.shape[-1], 0))]
    given = np.pad(given, missing, constant_values=False if boolean else -np.inf)
    return (given, None) if boolean else (np.ones((1, 1), dtype=bool), given.astype(np.float64))


def position_mask(case, n, m, past):
    """Causal order, window and number of keys in use, as one boolean mask."""
    used = case.inputs.get("nonpad_kv_seqlen", np.array([m])).reshape(-1, 1, 1, 1)
    offset = used - n if "nonpad_kv_seqlen" in case.inputs else past
    distance = np.arange(m) - (np.arange(n)[:, None] + offset)
    left, right = (case.attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    allowed = (np.arange(m) < used) & np.ones((n, 1), dtype=bool)
    if case.attributes.get("is_causal", 0):
        allowed = allowed & (distance <= 0)
    if left >= 0:
        allowed = allowed & (distance >= -left)
    if right >= 0:
        allowed = allowed & (distance <= right)
    return allowed


def reference_attention(q, k, v, **options):
    """The reference operator itself, which computes in the precision of its inputs."""
    from onnx.reference.ops.op_attention import _compute_attention

    with np.errstate(all="ignore"):
        return _compute_attention(q, k, v, **options)
