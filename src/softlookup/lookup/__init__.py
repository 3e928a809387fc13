"""What attention is: a weighted average, and the ways to choose its weights."""

from softlookup.lookup.attention import (
    attention,
    attention_scores,
    attention_vjp,
    attention_weights,
    scaled_dot,
)
from softlookup.lookup.hard_lookup import (
    hard_lookup,
    hardmax,
    hardmax_average,
    nearest_neighbors,
    soft_nearest_neighbors,
)
from softlookup.lookup.kernel_regression import (
    boxcar,
    constant,
    epanechnikov,
    gaussian,
    gaussian_score,
    kernel_regression,
    kernel_weights,
    laplace,
    leave_one_out_error,
    leave_one_out_error_vjp,
    student_t,
    triangular,
    tricube,
)
from softlookup.lookup.softmax import effective_items, entropy, log_sum_exp, softmax, softmax_vjp
from softlookup.lookup.weighted_average import budget, is_distribution, weighted_average

__all__ = [
    "attention",
    "attention_scores",
    "attention_vjp",
    "attention_weights",
    "boxcar",
    "budget",
    "constant",
    "effective_items",
    "entropy",
    "epanechnikov",
    "gaussian",
    "gaussian_score",
    "hard_lookup",
    "hardmax",
    "hardmax_average",
    "is_distribution",
    "kernel_regression",
    "kernel_weights",
    "laplace",
    "leave_one_out_error",
    "leave_one_out_error_vjp",
    "log_sum_exp",
    "nearest_neighbors",
    "scaled_dot",
    "soft_nearest_neighbors",
    "softmax",
    "softmax_vjp",
    "student_t",
    "triangular",
    "tricube",
    "weighted_average",
]
