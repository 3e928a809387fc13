"""Results of strangers that are too heavy to install for a test run, kept as small files with their provenance.

``python tests/oracles/freeze.py`` writes ``frozen/*.npz`` (it needs the extra `freeze`), or only the cases that are
named after it; ``--check`` writes nothing and says how far a stranger's result has moved. A test compares the code
below with the code that is kept in each file.
"""

import importlib.metadata
import inspect
import json
import pathlib
import platform
import sys

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "frozen"
CASES = {}


def case(*packages):
    """Register a function that returns the arrays of one file."""

    def register(function):
        CASES[function.__name__] = function, packages
        return function

    return register


class Frozen(dict):
    """The arrays of one file, and the version of the stranger that computed them."""

    def __init__(self, name):
        with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
            super().__init__(file)
        self.meta = json.loads(str(self.pop("meta")))
        self.version = ", ".join(f"{name} {version}" for name, version in self.meta["packages"].items())


def frozen(name):
    return Frozen(name)


@case("statsmodels")
def statsmodels_line():
    """Local constant regression with a Gaussian kernel on a line."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    rng = np.random.default_rng(0)
    k, v, q, h = rng.uniform(0, 6, size=(24, 1)), rng.normal(size=(24, 1)), np.linspace(0, 6, 9)[:, None], 0.62
    out, _ = KernelReg(v[:, 0], k[:, 0], "c", reg_type="lc", bw=[h]).fit(q[:, 0])
    return {"q": q, "k": k, "v": v, "h": np.array(h), "out": out[:, None]}


@case("statsmodels")
def statsmodels_plane():
    """Local constant regression with a product of two Gaussian kernels of one width."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    rng = np.random.default_rng(1)
    k, v, q, h = rng.normal(size=(20, 2)), rng.normal(size=(20, 1)), rng.normal(size=(5, 2)), 0.8
    out, _ = KernelReg(v[:, 0], k, "cc", reg_type="lc", bw=[h, h]).fit(q)
    return {"q": q, "k": k, "v": v, "h": np.array(h), "out": out[:, None]}


@case("scikit-learn")
def sklearn_kernel_density():
    """The density around one point, relative to its height there: the kernel over its value at zero."""
    from sklearn.neighbors import KernelDensity

    u = np.array([0.0, 0.125, 0.5, 0.75, 0.9375, 1.25, 2.5])
    arrays = {"u": u}
    for name in ("gaussian", "tophat", "epanechnikov", "exponential", "linear"):
        log_density = KernelDensity(kernel=name, bandwidth=0.5).fit([[0.0]]).score_samples(0.5 * u[:, None])
        arrays[name] = np.exp(log_density - log_density[0])
    return arrays


@case("scikit-learn")
def sklearn_nearest_neighbors():
    """The mean of the three nearest values, and their average with weights exp(-distance / temperature)."""
    from sklearn.neighbors import KNeighborsRegressor

    rng = np.random.default_rng(2)
    q, k, v, temperature = rng.normal(size=(6, 2)), rng.normal(size=(15, 2)), rng.normal(size=(15, 2)), 0.4
    hard = KNeighborsRegressor(3).fit(k, v).predict(q)
    soft = KNeighborsRegressor(3, weights=lambda d: np.exp(-d / temperature)).fit(k, v).predict(q)
    return {"q": q, "k": k, "v": v, "temperature": np.array(temperature), "hard": hard, "soft": soft}


@case("fla-core")
def fla_stick_breaking():
    """Stick-breaking attention and what is left of the stick; the file is loaded alone, its package needs a GPU."""
    import importlib.util

    import torch

    name = "fla/ops/stickbreaking_attn/naive.py"
    path = next(file for file in importlib.metadata.files("fla-core") if file.as_posix() == name).locate()
    spec = importlib.util.spec_from_file_location("naive", path)
    spec.loader.exec_module(naive := importlib.util.module_from_spec(spec))
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(2, 7, 3, width)) for width in (4, 4, 2))
    out, rest = naive.naive_stickbreaking_attn(*map(torch.tensor, (q, k, v)))
    return {"q": q, "k": k, "v": v, "out": out.numpy(), "rest": rest.numpy()}


@case("transformers", "torch")
def transformers_gpt_oss_sinks():
    """Attention with one learned sink for each head, as gpt-oss computes it, under a causal mask with an empty row."""
    import types

    import torch
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(2, heads, 5, 3)) for heads in (4, 2, 2))
    sinks, allow = rng.normal(size=4), np.tri(5, k=-1, dtype=bool)
    module = types.SimpleNamespace(sinks=torch.tensor(sinks), num_key_value_groups=2, training=False)
    blocked = torch.tensor(np.where(allow, 0.0, np.finfo(np.float64).min))[None, None]
    out, _ = eager_attention_forward(module, *map(torch.tensor, (q, k, v)), blocked, scaling=3**-0.5)
    return {"q": q, "k": k, "v": v, "sinks": sinks, "allow": allow, "out": out.transpose(1, 2).numpy()}


@case("timm", "torch")
def timm_talking_heads():
    """The layer of CaiT, with a bias behind each mixing; the class is taken alone, its package needs torchvision."""
    import ast

    import torch

    file = next(file for file in importlib.metadata.files("timm") if file.as_posix() == "timm/models/cait.py").locate()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", None) == "TalkingHeadAttn"]
    exec(compile(tree, str(file), "exec"), names := {"torch": torch, "nn": torch.nn})
    rng = np.random.default_rng(20)
    layer = names["TalkingHeadAttn"](12, num_heads=3, qkv_bias=True, dtype=torch.float64).eval()
    weights = {name: 0.4 * rng.normal(size=tuple(w.shape)) for name, w in layer.state_dict().items()}
    layer.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
    x = rng.normal(size=(2, 5, 12))
    return {"x": x, "out": layer(torch.tensor(x)).detach().numpy(), **weights}


@case("transformers", "torch")
def transformers_bart_cross_attention():
    """Cross-attention of Bart with biases: five readers, seven items, of which the second sample has only four."""
    import torch
    from transformers import BartConfig
    from transformers.models.bart.modeling_bart import BartAttention

    rng = np.random.default_rng(70)
    config = BartConfig(attn_implementation="eager")
    layer = BartAttention(8, 2, config=config, layer_idx=0).double().eval().requires_grad_(False)
    names = {"q": layer.q_proj, "k": layer.k_proj, "v": layer.v_proj, "o": layer.out_proj}
    arrays = {"x": rng.normal(size=(2, 5, 8)), "context": rng.normal(size=(2, 7, 8))}
    for name, linear in names.items():
        arrays |= {f"w_{name}": rng.normal(size=(8, 8)) / 2, f"b_{name}": rng.normal(size=8)}
        linear.weight[:], linear.bias[:] = (torch.tensor(arrays[f"{part}_{name}"]) for part in "wb")
    arrays["valid"] = np.arange(7) < np.array([[7], [4]])
    blocked = torch.tensor(np.where(arrays["valid"], 0.0, -np.inf))[:, None, None, :].expand(2, 1, 5, 7)
    x, context = (torch.tensor(arrays[name]) for name in ("x", "context"))
    return arrays | {"out": layer(x, context, attention_mask=blocked)[0].numpy()}


@case("transformers", "torch")
def transformers_neox_packed_projection():
    """Self-attention of GPT-NeoX, whose one projection is packed head by head; the rotation is by an angle of zero."""
    import torch
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention

    rng = np.random.default_rng(71)
    config = GPTNeoXConfig(hidden_size=6, num_attention_heads=3, attn_implementation="eager", attention_bias=False)
    layer = GPTNeoXAttention(config, layer_idx=0).double().eval().requires_grad_(False)
    x, packed, w_o = rng.normal(size=(1, 4, 6)), rng.normal(size=(18, 6)), rng.normal(size=(6, 6))
    layer.query_key_value.weight[:], layer.dense.weight[:] = torch.tensor(packed), torch.tensor(w_o)
    still = torch.ones(1, 4, 2, dtype=torch.float64), torch.zeros(1, 4, 2, dtype=torch.float64)
    blocked = torch.tensor(np.where(np.tri(4), 0.0, -np.inf))[None, None]
    out = layer(torch.tensor(x), blocked, position_embeddings=still)[0]
    return {"x": x, "packed": packed, "w_o": w_o, "out": out.numpy()}


@case("fla-core")
def fla_sinkhorn():
    """Columns, then rows, divided by their sums: once and seven times, in single precision."""
    import importlib.util

    import torch

    name = "fla/ops/utils/sinkhorn/naive.py"
    path = next(file for file in importlib.metadata.files("fla-core") if file.as_posix() == name).locate()
    spec = importlib.util.spec_from_file_location("naive", path)
    spec.loader.exec_module(naive := importlib.util.module_from_spec(spec))
    s = np.random.default_rng(5).normal(size=(2, 5, 5)).astype(np.float32)
    one, seven = (naive.naive_sinkhorn(torch.tensor(s), num_iters=count).numpy() for count in (1, 7))
    return {"s": s.astype(np.float64), "one": one, "seven": seven}


@case("scipy")
def scipy_assignment():
    """The permutation with the largest sum of scores."""
    from scipy.optimize import linear_sum_assignment

    s = np.random.default_rng(7).normal(size=(6, 6))
    return {"s": s, "best": np.eye(6)[linear_sum_assignment(s, maximize=True)[1]]}


@case("transformers", "torch")
def transformers_sinkhorn():
    """Two balanced tables whose columns were divided last: the matching of SuperGlue and the streams of DeepSeek-V4."""
    import torch
    from transformers import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection
    from transformers.models.superglue.modeling_superglue import log_sinkhorn_iterations

    rng = np.random.default_rng(7)
    s, comb = rng.normal(size=(5, 5)), rng.normal(size=(4, 4))
    zeros = torch.zeros(1, 5, dtype=torch.float64)
    superglue = log_sinkhorn_iterations(torch.tensor(s)[None], zeros, zeros, 4)[0]
    config = DeepseekV4Config(hidden_size=3, hc_mult=4, hc_sinkhorn_iters=3)
    module = DeepseekV4HyperConnection(config).double().requires_grad_(False)
    module.fn[:], module.scale[:], module.base[:] = 0, 1, torch.tensor(np.append(np.zeros(8), comb))
    hyper = module(torch.ones(1, 1, 4, 3, dtype=torch.float64))[1][0, 0]
    arrays = {"superglue": superglue.numpy(), "hyper": hyper.numpy(), "epsilon": np.array(config.hc_eps)}
    return {"s": s, "comb": comb, **arrays}


@case("transformers", "torch")
def transformers_sinusoids():
    """Sinusoids of two models, for an even and an odd width, in the single precision that they are made in."""
    from transformers.models.fsmt.modeling_fsmt import SinusoidalPositionalEmbedding
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    arrays = {}
    for width in (8, 7):
        arrays[f"marian{width}"] = MarianSinusoidalPositionalEmbedding(20, width).create_weight().numpy()
        arrays[f"fsmt{width}"] = SinusoidalPositionalEmbedding.get_embedding(20, width, None).numpy()
    return arrays


@case("transformers", "torch")
def transformers_learned_positions():
    """Rows that two models look up for texts that are padded on the left and on the right."""
    import torch
    from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding
    from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

    valid = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    opt = OPTLearnedPositionalEmbedding(6, 3).double()
    with torch.no_grad():
        opt.weight.copy_(torch.tensor(np.random.default_rng(6).normal(size=(8, 3))))
    ids = torch.tensor(np.where(valid, 7, 1))
    rows = RobertaEmbeddings.create_position_ids_from_input_ids(ids, 1)
    table, out = opt.weight.detach().numpy(), opt(torch.tensor(valid)).detach().numpy()
    return {"valid": valid.astype(bool), "table": table, "opt": out, "roberta": rows.numpy()}


@case("transformers", "torch")
def transformers_rotary():
    """Rotary positions of one sequence: halves (Llama), interleaved and partial (GPT-J), halves and partial (GPT-NeoX),
    and the helper of DeepSeek-V3 that returns halves of what was interleaved."""
    import torch
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave
    from transformers.models.gpt_neox import modeling_gpt_neox as neox
    from transformers.models.gptj import modeling_gptj as gptj
    from transformers.models.llama import modeling_llama as llama

    rng = np.random.default_rng(5)
    x, positions = rng.normal(size=(2, 3, 5, 8)), np.array([[0, 1, 2, 3, 4], [7, 3, 500, -2, 0]])
    t, out = torch.tensor(x), {}
    for width in (8, 4):
        angles = positions[..., None] * 10000.0 ** (-np.arange(0, width, 2) / width)
        cos, sin = torch.tensor(np.cos(angles)), torch.tensor(np.sin(angles))
        twice = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
        if width == 8:
            out["llama"] = llama.apply_rotary_pos_emb(t, t, *twice)[0].numpy()
            out["deepseek"] = apply_rotary_pos_emb_interleave(t, t, *twice)[0].numpy()
            continue
        out["neox"] = neox.apply_rotary_pos_emb(t, t, *twice)[0].numpy()
        turned = gptj.apply_rotary_pos_emb(t[..., :4].transpose(1, 2), sin, cos).transpose(1, 2)
        out["gptj"] = torch.cat([turned, t[..., 4:]], -1).numpy()
    return {"x": x, "positions": positions} | out


@case("transformers", "torch")
def transformers_rotary_sections():
    """Rotary positions with several coordinates: Pixtral, DINOv3, Qwen2-VL and Qwen3-VL; torch.float is float64."""
    import types
    from unittest import mock

    import torch
    from transformers.models.dinov3_vit import modeling_dinov3_vit as dino
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

    rng = np.random.default_rng(6)
    x, grid, places = rng.normal(size=(6, 16)), np.indices((2, 3)).reshape(2, 6), rng.integers(0, 40, size=(3, 6))
    t, out = torch.tensor(x), {}

    def turned(cos, sin):
        return apply_rotary_pos_emb(t[None, None], t[None, None], cos, sin)[0][0, 0].numpy()

    with mock.patch.multiple(torch, float=torch.float64, float32=torch.float64):
        shape = types.SimpleNamespace(rope_parameters={"rope_theta": 10000.0, "rope_type": "axial"}, head_dim=16)
        pixtral = PixtralVisionRotaryEmbedding(shape)
        out["pixtral"] = turned(*pixtral(t, torch.tensor(grid)[None]))
        shape = types.SimpleNamespace(
            rope_theta=100.0, hidden_size=16, num_attention_heads=1, image_size=(2, 3), patch_size=1
        )
        vision = dino.DINOv3ViTRopePositionEmbedding(shape).eval()
        out["dinov3"] = turned(*(a[None] for a in vision(torch.zeros(1, 3, 2, 3, dtype=torch.float64))))
    angles = places[..., None] * 10000.0 ** (-np.arange(0, 16, 2) / 16)
    cos, sin = (torch.tensor(f(angles))[:, None] for f in (np.cos, np.sin))
    for name, kind, sections in (
        ("qwen2", Qwen2VLRotaryEmbedding, [2, 3, 3]),
        ("qwen3", Qwen3VLTextRotaryEmbedding, [4, 2, 2]),
    ):
        these = types.SimpleNamespace(mrope_section=sections)
        out[name] = turned(*(kind.recomposition_frequencies(these, a.clone()) for a in (cos, sin)))
    return {"x": x, "grid": grid.T.copy(), "places": places.T.copy()} | out


@case("transformers", "torch")
def transformers_rope_types():
    """Frequencies and factors of every rope_type; torch.float and torch.float32 are float64."""
    import types
    from unittest import mock

    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    lists = {"short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 2.5], "long_factor": [1.0 + i for i in range(8)]}
    kinds = {
        "linear": ("linear", {"factor": 4.0}, None),
        "dynamic_short": ("dynamic", {"factor": 2.0}, 512),
        "dynamic": ("dynamic", {"factor": 2.0}, 5000),
        "yarn": ("yarn", {"factor": 4.0}, None),
        "yarn_exact": ("yarn", {"factor": 40.0, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0}, None),
        "yarn_ratio": ("yarn", {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7}, None),
        "llama3": ("llama3", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, None),
        "longrope_short": ("longrope", {"factor": 16.0} | lists, 2048),
        "longrope": ("longrope", {"factor": 16.0} | lists, 2049),
        "proportional": ("proportional", {"partial_rotary_factor": 0.4}, None),
    }
    out = {}
    for name, (kind, options, length) in kinds.items():
        given = {"rope_theta": 10000.0, "original_max_position_embeddings": 2048} | options
        config = types.SimpleNamespace(
            rope_parameters=given,
            head_dim=16,
            hidden_size=16,
            num_attention_heads=1,
            max_position_embeddings=2048,
            standardize_rope_params=lambda: None,
        )
        with mock.patch.multiple(torch, float=torch.float64, float32=torch.float64):
            frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)
        out[name] = frequencies.numpy()
        out[f"{name}_factor"] = np.array(float(factor))
    return out


@case("transformers", "torch")
def transformers_alibi():
    """The linear biases of BLOOM, once with padding on the left, and of MPT, for several numbers of heads."""
    import torch
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    valid = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    arrays = {"valid": valid}
    for heads in (1, 2, 6, 8, 12, 20):
        bloom = build_alibi_tensor(torch.tensor(valid), heads, torch.float64)
        arrays[f"bloom_{heads}"] = bloom.reshape(2, heads, 1, 5).numpy()
        arrays[f"mpt_{heads}"] = build_mpt_alibi_tensor(heads, 5).double().numpy()
    return arrays


@case("fla-core")
def fla_forgetting():
    """Forgetting attention in single precision; the file is loaded alone, since its package needs a GPU."""
    import importlib.util

    import torch

    name = "fla/ops/forgetting_attn/naive.py"
    path = next(file for file in importlib.metadata.files("fla-core") if file.as_posix() == name).locate()
    spec = importlib.util.spec_from_file_location("naive", path)
    spec.loader.exec_module(naive := importlib.util.module_from_spec(spec))
    rng = np.random.default_rng(11)
    q, k, v = (rng.normal(size=(2, 7, heads, width)) for heads, width in ((4, 3), (2, 3), (2, 2)))
    log_f = -np.logaddexp(0, -rng.normal(1, 1, size=(2, 7, 4)))
    out = naive.naive_forgetting_attn(*map(torch.tensor, (q, k, v, log_f)))
    return {"q": q, "k": k, "v": v, "log_f": log_f, "out": out.double().numpy()}


@case("transformers", "torch")
def transformers_deepseek_v3():
    """Multi-head latent attention of DeepSeek-V3: the latents as they are cached, and all that comes before and after.

    The norms of the module compute in single precision, so their results are kept here; the attention runs in double.
    """
    import torch
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    sizes = {"kv_lora_rank": 6, "q_lora_rank": 5, "qk_nope_head_dim": 3, "qk_rope_head_dim": 4, "v_head_dim": 2}
    config = DeepseekV3Config(hidden_size=7, num_attention_heads=3, num_key_value_heads=3, head_dim=4, **sizes)
    config._attn_implementation = "sdpa"
    rng = np.random.default_rng(20)
    module, kept = DeepseekV3Attention(config, layer_idx=0).double().requires_grad_(False), {}
    for parameter in module.parameters():
        parameter[:] = torch.tensor(rng.normal(size=parameter.shape))
    for name in ("q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "o_proj"):
        getattr(module, name).register_forward_hook(
            lambda _, given, out, name=name: kept.update({name: out, f"{name}.given": given[0]})
        )
    x, allow = torch.tensor(rng.normal(size=(2, 5, 7))), torch.tensor(np.tri(5, dtype=bool))[None, None]
    angles = torch.tensor(np.arange(5)[:, None] * 100.0 ** -np.arange(0, 1, 0.5))
    turns = [torch.cat([f(angles)] * 2, -1)[None] for f in (torch.cos, torch.sin)]
    module(x, turns, allow)
    return {
        "q": kept["q_b_proj"].numpy(),
        "c": kept["kv_a_layernorm"].numpy(),
        "before_norm": kept["kv_a_layernorm.given"].numpy(),
        "k_rot": kept["kv_a_proj_with_mqa"][..., 6:].numpy(),
        "angles": angles.numpy(),
        "kv_b_proj": module.kv_b_proj.weight.numpy(),
        "out": kept["o_proj.given"].numpy(),
    }


@case("entmax", "torch")
def entmax_package():
    """Sparsemax, 1.5-entmax and alpha-entmax by bisection, each with the gradient of sum(g * weights)."""
    import entmax
    import torch

    rng = np.random.default_rng(30)
    s, g, alphas = 2 * rng.normal(size=(6, 9)), rng.normal(size=(6, 9)), np.array([1.1, 1.3, 1.5, 2.0])
    s[1] = 0.5  # a row of equal scores
    arrays = {"s": s, "g": g, "alphas": alphas}

    def both(function):
        scores = torch.tensor(s, requires_grad=True)
        weights = function(scores)
        return weights.detach().numpy(), torch.autograd.grad(weights, scores, torch.tensor(g))[0].numpy()

    arrays["sparsemax"], arrays["sparsemax_vjp"] = both(lambda x: entmax.sparsemax(x, dim=-1))
    arrays["entmax15"], arrays["entmax15_vjp"] = both(lambda x: entmax.entmax15(x, dim=-1))
    pairs = [both(lambda x, a=a: entmax.entmax_bisect(x, a, dim=-1, n_iter=100)) for a in alphas.tolist()]
    arrays["bisect"], arrays["bisect_vjp"] = (np.stack(part) for part in zip(*pairs, strict=True))
    return arrays


@case("transformers", "torch")
def transformers_diffllama():
    """The attention of DiffLlama, with grouped keys, no turning of positions and a causal mask."""
    import torch
    from transformers import DiffLlamaConfig
    from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

    rng = np.random.default_rng(21)
    config = DiffLlamaConfig(hidden_size=16, num_attention_heads=8, num_key_value_heads=4, rms_norm_eps=1e-5)
    config._attn_implementation = "eager"
    layer = DiffLlamaAttention(config, layer_idx=3).double().eval()
    weights = {name: 0.6 * rng.normal(size=tuple(w.shape)) for name, w in layer.state_dict().items()}
    layer.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
    x, blocked = rng.normal(size=(2, 5, 16)), np.where(np.tri(5, dtype=bool), 0.0, -np.inf)
    still = torch.ones(1, 5, 2, dtype=torch.float64), torch.zeros(1, 5, 2, dtype=torch.float64)
    out, _ = layer(torch.tensor(x), still, torch.tensor(blocked)[None, None])
    return {"x": x, "out": out.detach().numpy(), "initial": np.array(layer.lambda_init), **weights}


@case("timm", "torch")
def timm_differential():
    """The layer of timm under a causal mask; the class is taken alone, with the RMS norm of torch."""
    import ast
    import math
    import typing

    import torch

    name = "timm/layers/diff_attention.py"
    file = next(file for file in importlib.metadata.files("timm") if file.as_posix() == name).locate()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", None) == "DiffAttention"]
    names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "math": math, "RmsNorm": torch.nn.RMSNorm}
    names |= {"Optional": typing.Optional, "Type": type, "use_fused_attn": lambda: True}
    exec(compile(tree, str(file), "exec"), names)
    rng = np.random.default_rng(22)
    layer = names["DiffAttention"](12, num_heads=3, depth=2, dtype=torch.float64).eval()
    weights = {name: 0.6 * rng.normal(size=tuple(w.shape)) for name, w in layer.state_dict().items()}
    layer.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
    x = rng.normal(size=(2, 5, 12))
    out = layer(torch.tensor(x), is_causal=True).detach().numpy()
    lam = layer._compute_lambda().detach().numpy()
    return {"x": x, "out": out, "lam": lam, "initial": np.array(layer.lambda_init), **weights}


@case("transformers", "torch")
def transformers_wav2vec2_bert_relative():
    """Attention weights with a clipped table of keys, more distances to the left than to the right."""
    import types

    import torch
    from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as model

    rng = np.random.default_rng(10)
    q, k, table = rng.normal(size=(2, 3, 6, 4)), rng.normal(size=(2, 3, 6, 4)), rng.normal(size=(5, 4))
    module = types.SimpleNamespace(left_max_position_embeddings=3, right_max_position_embeddings=1, scaling=0.5)
    module.distance_embedding = torch.nn.Embedding.from_pretrained(torch.tensor(table))
    module.training = False
    arrays = list(map(torch.tensor, (q, k)))
    _, bias = model._apply_relative_key_position_encoding(module, *arrays)
    _, weights = model.eager_attention_forward(module, *arrays, arrays[1], None, scaling=0.5, position_bias=bias)
    return {"q": q, "k": k, "table": table, "weights": weights.numpy()}


@case("transformers", "torch")
def transformers_xlnet_relative():
    """Attention with three cached items before four queries, and sinusoids of the distance for the relative keys."""
    import torch
    from transformers import XLNetConfig
    from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

    rng = np.random.default_rng(11)
    n, m, heads, d = 4, 7, 2, 6
    config = XLNetConfig(d_model=heads * d, n_head=heads, n_layer=1, d_inner=8, vocab_size=4, dropout=0.0)
    config.attn_type, config.bi_data, config.clamp_len = "bi", False, -1
    module = XLNetRelativeAttention(config).double().requires_grad_(False)
    arrays = {"q": (n, heads, d), "k": (m, heads, d), "v": (m, heads, d), "u": (heads, d), "w": (heads, d)}
    arrays = {name: rng.normal(size=shape) for name, shape in arrays.items()}
    arrays["projection"] = rng.normal(size=(heads * d, heads, d))
    module.r_w_bias.copy_(torch.tensor(arrays["u"]))
    module.r_r_bias.copy_(torch.tensor(arrays["w"]))
    encoded = XLNetModel(config).relative_positional_encoding(n, m, bsz=1).double()
    r = torch.einsum("ibh,hnd->ibnd", encoded, torch.tensor(arrays["projection"]))
    q, k, v = (torch.tensor(arrays[name])[:, None] for name in "qkv")
    out = module.rel_attn_core(q, k, v, r)
    return arrays | {"encoded": encoded[:, 0].numpy(), "out": out[:, 0].numpy()}


@case("transformers", "torch")
def transformers_deberta_disentangled():
    """Attention weights of DeBERTa's second version without buckets and with projections of their own for positions."""
    import torch
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    rng = np.random.default_rng(12)
    n, heads, d, span = 7, 2, 3, 3
    config = DebertaV2Config(hidden_size=heads * d, num_attention_heads=heads, relative_attention=True)
    config.pos_att_type, config.position_buckets, config.max_relative_positions = ["c2p", "p2c"], -1, span
    config.share_att_key, config.hidden_dropout_prob, config.attention_probs_dropout_prob = False, 0.0, 0.0
    module = DisentangledSelfAttention(config).double().eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.copy_(torch.tensor(rng.normal(size=parameter.shape)))
    x, rows = torch.tensor(rng.normal(size=(1, n, heads * d))), torch.tensor(rng.normal(size=(2 * span, heads * d)))
    _, weights = module(x, torch.ones(1, 1, n, n), output_attentions=True, rel_embeddings=rows)
    names = {"q": "query_proj", "k": "key_proj", "keys": "pos_key_proj", "queries": "pos_query_proj"}
    inputs = {"q": x[0], "k": x[0], "keys": rows, "queries": rows}
    arrays = {name: getattr(module, names[name])(inputs[name]).numpy() for name in names}
    arrays = {name: a.reshape(len(a), heads, d).swapaxes(0, 1) for name, a in arrays.items()}
    return arrays | {"weights": weights[0].numpy()}


@case("transformers", "torch")
def transformers_repeat_kv():
    """Key heads written out for the query heads, as the models of transformers do it."""
    import torch
    from transformers.models.llama.modeling_llama import repeat_kv

    k = np.random.default_rng(72).normal(size=(2, 3, 4, 2))
    return {"k": k, "out": repeat_kv(torch.tensor(k), 2).numpy()}


@case("transformers", "torch")
def transformers_t5_buckets():
    """Bucket numbers of T5 for several settings, its bias with a cache, and one whole attention layer."""
    import torch
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    r = torch.arange(-1100, 1101)
    arrays = {"offset": r.numpy().astype(np.int16)}
    for both in (True, False):
        for setting in ((32, 128), (64, 256), (18, 128), (16, 64), (20, 100), (166, 1000), (4, 3)):
            theirs = T5Attention._relative_position_bucket(r, both, *setting).numpy().astype(np.uint8)
            arrays[f"{'both' if both else 'past'}_{setting[0]}_{setting[1]}"] = theirs
    rng = np.random.default_rng(12)
    for decoder in (False, True):
        config = T5Config(d_model=6, d_kv=3, num_heads=2, is_decoder=decoder, dropout_rate=0.0)
        layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double().eval()
        kind = "decoder" if decoder else "encoder"
        with torch.no_grad():
            for name, weight in layer.named_parameters():
                weight[:] = torch.tensor(rng.normal(size=weight.shape))
                arrays[f"{kind}_{name.split('.')[0]}"] = weight.numpy().copy()
            arrays[f"{kind}_bias"] = layer.compute_bias(9, 9).numpy()
            arrays[f"{kind}_cached"] = layer.compute_bias(2, 9, past_seen_tokens=7).numpy()
            x = rng.normal(size=(1, 9, 6))
            arrays[f"{kind}_x"], arrays[f"{kind}_out"] = x, layer(torch.tensor(x))[0].numpy()
    return arrays


@case("transformers", "torch")
def transformers_swin():
    """Index tables of Swin and SwinV2, the coordinates of SwinV2, and its weights where all scores are zero."""
    import torch
    from transformers import SwinConfig, Swinv2Config
    from transformers.models.swin.modeling_swin import SwinModel
    from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention

    arrays, rng = {}, np.random.default_rng(13)
    config = SwinConfig(image_size=24, patch_size=4, embed_dim=4, depths=[1], num_heads=[2], window_size=3)
    index = [b for name, b in SwinModel(config).named_buffers() if name.endswith("relative_position_index")]
    arrays["swin_3"] = index[0].numpy()
    for window, trained in (((4, 3), (0, 0)), ((3, 3), (2, 4)), ((1, 1), (0, 0))):
        layer = Swinv2SelfAttention(Swinv2Config(), 4, 2, window, trained).double().eval()
        with torch.no_grad():
            for weight in layer.parameters():
                weight.zero_()
            for name, weight in layer.continuous_position_bias_mlp.named_parameters():
                values = rng.normal(size=weight.shape).astype(np.float32)
                weight[:] = torch.tensor(values)
                if window == (4, 3):
                    arrays[f"mlp_{name}"] = values
            name = f"{window[0]}_{window[1]}_{trained[0]}_{trained[1]}"
            arrays[f"index_{name}"] = layer.relative_position_index.numpy()
            arrays[f"coordinates_{name}"] = layer.relative_coords_table[0].double().numpy()
            if window == (4, 3):
                arrays["weights"] = layer(torch.zeros(1, 12, 4).double(), output_attentions=True)[1].numpy()
    return arrays


@case("transformers", "torch")
def transformers_qwen3_next_gate():
    """The gated attention of Qwen3-Next, with no turning of positions and a causal mask."""
    import torch
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

    rng = np.random.default_rng(23)
    config = Qwen3NextConfig(hidden_size=8, num_attention_heads=4, num_key_value_heads=2, head_dim=2)
    config._attn_implementation = "eager"
    layer = Qwen3NextAttention(config, layer_idx=0).double().eval()
    weights = {name: 0.6 * rng.normal(size=tuple(w.shape)) for name, w in layer.state_dict().items()}
    layer.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
    x, blocked = rng.normal(size=(2, 5, 8)), np.where(np.tri(5, dtype=bool), 0.0, -np.inf)
    still = torch.ones(1, 5, 2, dtype=torch.float64), torch.zeros(1, 5, 2, dtype=torch.float64)
    out, _ = layer(torch.tensor(x), still, torch.tensor(blocked)[None, None])
    return {"x": x, "out": out.detach().numpy(), "epsilon": np.array(config.rms_norm_eps), **weights}


@case("transformers", "torch")
def transformers_jetmoe():
    """The attention of JetMoE: two of three experts for each token; no turning of positions, a causal mask."""
    import torch
    from transformers import JetMoeConfig
    from transformers.models.jetmoe.modeling_jetmoe import JetMoeAttention

    rng = np.random.default_rng(24)
    config = JetMoeConfig(
        hidden_size=6, num_key_value_heads=2, kv_channels=3, num_local_experts=3, num_experts_per_tok=2
    )
    config._attn_implementation = "eager"
    layer = JetMoeAttention(config, layer_idx=0).double().eval()
    weights = {name: 0.6 * rng.normal(size=tuple(w.shape)) for name, w in layer.state_dict().items()}
    layer.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
    x, blocked = rng.normal(size=(2, 5, 6)), np.where(np.tri(5, dtype=bool), 0.0, -np.inf)
    still = torch.ones(1, 5, 3, dtype=torch.float64), torch.zeros(1, 5, 3, dtype=torch.float64)
    out, _, logits = layer(torch.tensor(x), torch.tensor(blocked)[None, None], still)
    return {"x": x, "out": out.detach().numpy(), "logits": logits.detach().numpy(), **weights}


@case("transformers", "torch")
def transformers_gemma_sharing():
    """Whose keys and values each layer of Gemma 3n reads: the last layer of its kind that stores them for others."""
    from transformers.models.gemma3n.configuration_gemma3n import Gemma3nTextConfig

    names, rng, arrays = ("sliding_attention", "full_attention"), np.random.default_rng(21), {}
    settings = [(np.tile([0, 0, 0, 0, 1], 7), 15), (np.tile([0, 1], 4), 3), (np.array([1, 0, 0, 1, 0, 0, 1]), 2)]
    settings += [(np.concatenate([[0, 1], rng.integers(0, 2, size=7)]), shared) for shared in (0, 1, 4, 7)]
    for i, (kinds, shared) in enumerate(settings):
        types = [names[kind] for kind in kinds]
        modes = Gemma3nTextConfig(
            num_hidden_layers=len(kinds), layer_types=types, num_kv_shared_layers=shared, intermediate_size=8
        ).kv_sharing_modes
        stored = {kind: layer for layer, (kind, mode) in enumerate(zip(types, modes, strict=True)) if mode == "store"}
        arrays[f"kinds {i}"], arrays[f"shared {i}"] = kinds, np.array(shared)
        arrays[f"producers {i}"] = np.array(
            [
                stored[kind] if mode == "reuse" else layer
                for layer, (kind, mode) in enumerate(zip(types, modes, strict=True))
            ]
        )
    return arrays


@case("transformers", "torch")
def transformers_deepseek_v4():
    """Attention of DeepSeek-V4 with a window alone: one array is key and value, and its rotation is turned back."""
    import torch
    from transformers import AttentionInterface
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as model
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

    kept = {}

    def eager(module, q, k, v, mask, **options):
        assert k is v
        kept.update(q=q, k=k, sinks=options["s_aux"])
        return model.eager_attention_forward(module, q, k, v, mask, **options)

    AttentionInterface.register("kept", eager)
    sizes = {"head_dim": 6, "q_lora_rank": 5, "o_groups": 1, "o_lora_rank": 4, "sliding_window": 3}
    config = DeepseekV4Config(
        hidden_size=7, num_attention_heads=2, num_hidden_layers=1, layer_types=["sliding_attention"], **sizes
    )
    config._attn_implementation = "kept"
    rng, width = np.random.default_rng(22), 4
    module = model.DeepseekV4Attention(config, layer_idx=0).double().requires_grad_(False).eval()
    for parameter in module.parameters():
        parameter[:] = torch.tensor(rng.normal(size=parameter.shape))
    module.o_a_proj.register_forward_hook(lambda _, given, out: kept.update(out=given[0]))
    positions = np.arange(5)
    allow = (positions <= positions[:, None]) & (positions > positions[:, None] - 3)
    angles = torch.tensor(positions[:, None] * 100.0 ** -np.arange(0, 1, 2 / width))[None]
    turns = {"main": (torch.cos(angles), torch.sin(angles))}
    blocked = torch.tensor(np.where(allow, 0.0, np.finfo(np.float64).min))[None, None]
    module(torch.tensor(rng.normal(size=(1, 5, 7))), turns, torch.tensor(positions)[None], blocked)
    arrays = {name: kept[name].numpy() for name in ("q", "k", "sinks", "out")}
    return arrays | {"allow": allow, "angles": angles.numpy()}


@case("transformers", "torch")
def transformers_gemma2_softcap():
    """Attention with a cap on the scores and grouped heads under a causal mask, as Gemma 2 computes it."""
    import types

    import torch
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    rng = np.random.default_rng(8)
    q, k, v = (rng.normal(size=(2, heads, 5, 3)) for heads in (4, 2, 2))
    cap, scale, allow = 0.7, 1.5, np.tri(5, dtype=bool)
    module = types.SimpleNamespace(num_key_value_groups=2, training=False)
    blocked = torch.tensor(np.where(allow, 0.0, np.finfo(np.float64).min))[None, None]
    out, _ = eager_attention_forward(module, *map(torch.tensor, (q, k, v)), blocked, scaling=scale, softcap=cap)
    numbers = {"cap": np.array(cap), "scale": np.array(scale), "allow": allow}
    return {"q": q, "k": k, "v": v, "out": out.transpose(1, 2).numpy()} | numbers


@case("transformers", "torch")
def transformers_qk_norms():
    """The norms of queries and keys of Qwen3 and Gemma 3 for each head, and of OLMo2 before heads are split."""
    import torch
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    rng = np.random.default_rng(9)
    arrays = {"epsilon": np.array(0.01)}
    for name, norm, shape in (
        ("qwen3", Qwen3RMSNorm, (2, 5, 4)),
        ("gemma3", Gemma3RMSNorm, (2, 5, 4)),
        ("olmo2", Olmo2RMSNorm, (5, 12)),
    ):
        x, weight = rng.normal(size=shape), rng.normal(size=shape[-1])
        module = norm(shape[-1], eps=0.01).double().requires_grad_(False)
        module.weight[:] = torch.tensor(weight)
        arrays |= {f"{name}_x": x, f"{name}_weight": weight, f"{name}_out": module(torch.tensor(x)).numpy()}
    return arrays


@case("transformers", "torch")
def transformers_masks():
    """Who may read whom among three queries behind two cached ones: causal, windows of three, chunks of three."""
    import torch
    from transformers import masking_utils as masks

    q, k = torch.arange(3)[:, None], torch.arange(6)
    zero = torch.tensor(0)
    mods = {
        "causal": masks.causal_mask_function,
        "window": masks.sliding_window_causal_mask_function(3),
        "both_sides": masks.sliding_window_bidirectional_mask_function(3),
        "chunked": masks.chunked_causal_mask_function(3, torch.zeros(1, dtype=torch.int64)),
    }
    shifted = {name: masks.add_offsets_to_mask_function(mod, 2, 0) for name, mod in mods.items()}
    return {name: mod(zero, zero, q, k).expand(3, 6).numpy() for name, mod in shifted.items()}


@case("x-transformers")
def x_transformers_cope():
    """The second term of CoPE, under a causal mask; the class is taken alone, its package needs others."""
    import ast

    import torch

    name = "x_transformers/x_transformers.py"
    file = next(file for file in importlib.metadata.files("x-transformers") if file.as_posix() == name).locate()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", None) == "CoPE"]
    names = {"torch": torch, "nn": torch.nn, "Module": torch.nn.Module, "einsum": torch.einsum}
    exec(compile(tree, str(file), "exec"), names | {"exists": lambda x: x is not None}, names)
    rng = np.random.default_rng(81)
    q, k, e = rng.normal(size=(2, 3, 7, 4)), rng.normal(size=(2, 3, 7, 4)), rng.normal(size=(3, 4))
    s = np.where(np.tri(7), q @ k.swapaxes(-1, -2) / 2, -np.finfo(np.float64).max)
    layer = names["CoPE"](4, 3, max_pos=3).double().requires_grad_(False)
    layer.pos_emb.copy_(torch.tensor(e))
    return {"q": q, "k": k, "e": e, "out": layer(torch.tensor(q), torch.tensor(s)).numpy()}


@case("fla-core")
def fla_path():
    """PaTH attention of seven items in pieces of four, without and with forgetting, in single precision."""
    import importlib.util

    import torch

    name = "fla/ops/path_attn/naive.py"
    path = next(file for file in importlib.metadata.files("fla-core") if file.as_posix() == name).locate()
    spec = importlib.util.spec_from_file_location("naive", path)
    spec.loader.exec_module(naive := importlib.util.module_from_spec(spec))
    rng = np.random.default_rng(82)
    q, k, v, w = (rng.normal(size=(2, 7, heads, width)) for heads, width in ((4, 6), (2, 6), (2, 3), (2, 6)))
    w /= np.linalg.norm(w, axis=-1, keepdims=True)
    beta, log_f = rng.uniform(0, 2, size=(2, 7, 2)), -rng.uniform(0, 1, size=(2, 7, 4))
    arrays = {"q": q, "k": k, "v": v, "w": w, "beta": beta, "log_f": log_f}
    arrays = {name: a.astype(np.float32).astype(np.float64) for name, a in arrays.items()}
    tensors = {("g" if name == "log_f" else name): torch.tensor(a) for name, a in arrays.items()}
    forgot = naive.naive_path_attn(**tensors, scale=0.4, chunk_size=4).numpy()
    out = naive.naive_path_attn(**tensors | {"g": torch.zeros(2, 7, 4)}, scale=0.4, chunk_size=4).numpy()
    return arrays | {"out": out, "forgot": forgot}


@case("tracr")
def tracr_programs():
    """RASP as the evaluator of Tracr reads it, which comes from github.com/google-deepmind/tracr at 9ce2b8c."""
    from tracr.rasp import causal_eval, rasp

    rng = np.random.default_rng(123)
    texts, words = (
        rng.integers(1, 4, size=(12, 9)),
        rng.choice([-2, -1, 1, 2], size=(900, 8), p=[0.05, 0.45, 0.45, 0.05]),
    )
    depths = np.cumsum(np.sign(words), axis=1)
    words = np.concatenate([words[np.all(depths >= 0, axis=1) & (depths[:, -1] == 0)][:24], words[:8]])
    equal, less, true = rasp.Comparison.EQ, rasp.Comparison.LT, rasp.Comparison.TRUE
    x, i = rasp.tokens, rasp.indices
    same, all_keys = rasp.Select(x, x, equal), rasp.Select(i, i, true)
    smaller = rasp.Select(x, x, less)
    target = rasp.SelectorWidth(smaller | (same & rasp.Select(i, i, less)))
    previous = rasp.Aggregate(rasp.Select(i, i - 1, equal), x, default=-5)
    matches = rasp.Select(previous, x, equal)
    last = rasp.Select(rasp.SelectorWidth(rasp.Select(previous, previous, equal)), rasp.SelectorWidth(matches), equal)
    depth = rasp.SequenceMap(
        lambda a, b: round(a * (b + 1)), rasp.Aggregate(all_keys, rasp.Map(lambda a: (a > 0) - (a < 0), x)), i
    )
    level = rasp.SequenceMap(lambda a, b: a + (b < 0), depth, x)
    rank = rasp.SelectorWidth(rasp.Select(level, level, equal))
    partner = rasp.Select(level, level, equal) & rasp.Select(rank, rank - 1, equal)
    wrong = rasp.SequenceMap(lambda a, b: b < 0 and a != -b, rasp.Aggregate(partner, x, default=0), x)
    failed = rasp.Aggregate(all_keys, rasp.Map(int, wrong))
    programs = {
        "reverse": (rasp.evaluate, texts, rasp.Aggregate(rasp.Select(i, rasp.length - 1 - i, equal), x)),
        "selector": (rasp.evaluate, texts, rasp.Select(x, i, less)),
        "mean": (rasp.evaluate, texts, rasp.Aggregate(smaller, x, default=-1)),
        "causal_mean": (causal_eval.evaluate, texts, rasp.Aggregate(smaller, x, default=-1)),
        "histogram": (rasp.evaluate, texts, rasp.SelectorWidth(same)),
        "sort": (rasp.evaluate, texts, rasp.Aggregate(rasp.Select(target, i, equal), x)),
        "induct": (causal_eval.evaluate, texts, rasp.Aggregate(matches & last, x, default=-1)),
        "depth": (causal_eval.evaluate, words, depth),
        "balanced": (causal_eval.evaluate, words, rasp.SequenceMap(lambda a, b: a == 0 and b == 0, depth, failed)),
    }
    results = {
        name: np.array([run(program, given.tolist()) for given in inputs])
        for name, (run, inputs, program) in programs.items()
    }
    return {"texts": texts, "words": words} | results


@case("transformers", "torch")
def transformers_caches():
    """Four caches fed in pieces of one text: what is read at each piece, by positions, and what is kept at the end."""
    import torch
    from transformers.cache_utils import (
        DynamicLayer,
        DynamicSlidingWindowLayer,
        StaticLayer,
        StaticSlidingWindowLayer,
    )

    rng, sizes, window = np.random.default_rng(83), (3, 1, 1, 4, 1, 2), 4
    q, k, v = (torch.tensor(rng.normal(size=(1, heads, 12, 4))) for heads in (4, 2, 2))
    layers = {
        "dynamic": (DynamicLayer(), None),
        "static": (StaticLayer(max_cache_len=16), None),
        "dynamic_window": (DynamicSlidingWindowLayer(sliding_window=window), window),
        "static_window": (StaticSlidingWindowLayer(max_cache_len=16, sliding_window=window), window),
    }
    arrays = {"q": q, "k": k, "v": v}
    for name, (layer, left) in layers.items():
        start, outs = 0, []
        for size in sizes:
            piece = slice(start, start + size)
            length, first = layer.get_mask_sizes(size)
            keys, values = layer.update(k[:, :, piece], v[:, :, piece])
            distance = (first + torch.arange(length)) - torch.arange(start, start + size)[:, None]
            allow = (distance <= 0) & (distance > -(left or 16))
            outs.append(
                torch.nn.functional.scaled_dot_product_attention(
                    q[:, :, piece], keys, values, attn_mask=allow, enable_gqa=True
                )
            )
            start += size
        arrays |= {f"{name}.out": torch.cat(outs, -2), f"{name}.kept": layer.keys.clone()}
    return {name: a.numpy() for name, a in arrays.items()} | {"sizes": np.array(sizes), "window": np.array(window)}


def source(name):
    """The code of a case as it is kept in its file."""
    return inspect.getsource(CASES[name][0])


@case("transformer-lens", "torch")
def transformer_lens_composition():
    """Composition scores of two earlier and two later heads, from the two modules of the package that compute them."""
    import importlib.util
    import types

    import torch

    for name in ("transformer_lens", "transformer_lens.utilities"):  # the package itself imports all of Hugging Face
        module = types.ModuleType(name)
        folder = pathlib.Path(importlib.util.find_spec("jaxtyping").submodule_search_locations[0]).parent
        module.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = module
    from transformer_lens.FactoredMatrix import FactoredMatrix
    from transformer_lens.utilities.matrix import composition_scores

    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(2, 7, 3)) for _ in range(3))
    output = rng.normal(size=(2, 3, 7))
    q, k, v, o = (torch.tensor(x) for x in (query, key, value, output))
    left, right = FactoredMatrix(v, o), FactoredMatrix(q, k.mT)
    later = FactoredMatrix(v.flip(0), o.flip(0))
    scores = {name: composition_scores(left, x).numpy() for name, x in (("q", right), ("k", right.T), ("v", later))}
    return {"query": query, "key": key, "value": value, "output": output} | scores


@case("transformer-lens", "torch")
def transformer_lens_heads():
    """Where three kinds of heads look, and how much of its weight a head puts there."""
    import importlib.util
    import types

    import torch

    folder = pathlib.Path(importlib.util.find_spec("jaxtyping").submodule_search_locations[0]).parent
    for name in ("", ".utilities", ".ActivationCache", ".model_protocol"):  # the package itself imports too much
        module = types.ModuleType(f"transformer_lens{name}")
        module.__path__ = [str(folder.joinpath("transformer_lens", name[1:]))]
        sys.modules[module.__name__] = module
    sys.modules["transformer_lens.ActivationCache"].ActivationCache = object
    sys.modules["transformer_lens.model_protocol"].TransformerLensModel = object
    from transformer_lens.utilities import tensors

    sys.modules["transformer_lens.utilities"].is_square = tensors.is_square
    sys.modules["transformer_lens.utilities"].is_lower_triangular = tensors.is_lower_triangular
    from transformer_lens import head_detector

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 3, size=(4, 9))
    tokens[3] = np.arange(9) % 4
    scores = torch.tensor(rng.normal(size=(4, 9, 9)))
    weights = torch.softmax(scores.masked_fill(~torch.tril(torch.ones(9, 9)).bool(), -torch.inf), dim=-1)
    arrays = {"tokens": tokens, "weights": weights.numpy()}
    for name in ("previous_token", "duplicate_token", "induction"):
        detect = getattr(head_detector, f"get_{name}_head_detection_pattern")
        patterns = [detect(torch.tensor(row)[None]) for row in tokens]
        arrays[f"{name}_pattern"] = torch.stack(patterns).numpy() == 1
        arrays[f"{name}_score"] = np.array(
            [
                head_detector.compute_head_attention_similarity_score(
                    w, p, exclude_bos=False, exclude_current_token=False, error_measure="mul"
                )
                for w, p in zip(weights, patterns, strict=True)
            ]
        )
    return arrays


def freeze(name):
    """Compute one case and describe where it came from."""
    function, packages = CASES[name]
    meta = {
        "packages": {package: importlib.metadata.version(package) for package in packages},
        "numpy": np.__version__,
        "python": platform.python_version(),
        "code": source(name),
    }
    return function(), meta


def main(names, check):
    """Write or check the files of these cases; the exit code says whether a result moved."""
    moved = 0
    for name in names or CASES:
        arrays, meta = freeze(name)
        if check:
            drift = max(float(np.max(np.abs(1.0 * frozen(name)[key] - value))) for key, value in arrays.items())
            moved += drift > 1e-12
            print(f"{name}: {drift:.1e}")
        else:
            FOLDER.mkdir(exist_ok=True)
            np.savez_compressed(FOLDER / f"{name}.npz", meta=np.array(json.dumps(meta)), **arrays)
    return int(moved > 0)


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    sys.exit(main(arguments, "--check" in sys.argv))
