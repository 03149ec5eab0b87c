"""Charts of results: each function takes a result dataclass and returns a `Chart`, a Vega-Lite specification with words.

    from outlierlens import charts
    charts.weight_maps(scan.stacks[0])[0]        # shows itself in a notebook
    charts.picture(chart, "svg")                 # bytes of a file; needs the extra `charts`

weight_maps      layers × dimensions of the weights, outliers named
token_vectors    hidden values of one input's tokens
average_vectors  mean of each layer
largest_values   largest |h| by layer, with its token
extreme_shares   share of tokens whose smallest / largest entry a dimension is
losses           what switching off does, beside controls
attack           damage against the number of edited values, by kind of edit, beside random ones
sweep_effects    every dimension switched off in turn: change by dimension, with intervals
sweep_ranked     the same from the largest down; sweep_first_order beside the gradient's estimate
sweep_map        layers × dimensions damage map; sweep_windows its named dimensions and sets as lines
sweep_nulls      sets of a sweep among their control sets
figure2          tasks with one dimension off at a time, a panel a task
outliers_against_random   several models and tasks, their outliers off, beside random sets
survival         z before against z after fine-tuning
one_dimension    a task's metric from each dimension alone
detectors        every published definition side by side; super_weights where single weights spike, and what they are for
frozen           a task's metric from linear classifiers on frozen vectors, by layer, raw and repaired
geometry         anisotropy, self-similarity and what carries the cosine; each alone: anisotropy, self_similarity, cosine_shares
frequency        how closely dimensions follow token frequency; each alone: frequency_layers, frequency_types
frequency_geometry   norms and cosines of frequent and rare tokens, raw, clipped and with dimensions off
attention        attention received and outliers: attention_correlation, attention_sinks, heads and an example's maps
probe            a token's position: its panels probe_accuracy, probe_contributions and probe_heat in one picture
predictions      what a model says with dimensions off: prediction_shifts, prediction_curves and parts_of_speech in one picture
beyond_zero      dimensions zeroed, set to means, shuffled, scaled and restored
prune_check      layers in which pruning removed each position; prune_experiment what one position costs
quantization     rounding to few bits: quantization_losses by scheme above quantization_errors by layer
recovery         a model with dimensions off, and fine-tuned again
vector_panels    mean of each layer over all dimensions, a panel a layer
origin           where dimensions come from: origin_rows, origin_histograms and origin_ranks in one picture
sts_layers       sentence similarity by layer, a panel a task, a line a fix; wic_layers words in context
emergence        outliers over training: loss_panel, sigma_panel, norm_panel, token_panel and state_panel in one picture
"""

from outlierlens.charts.activations import average_vectors, extreme_shares, largest_values
from outlierlens.charts.attack import attack
from outlierlens.charts.attention import attention, attention_correlation, attention_sinks
from outlierlens.charts.base import Chart
from outlierlens.charts.beyond_zero import beyond_zero
from outlierlens.charts.detectors import detectors
from outlierlens.charts.downstream import one_dimension, survival
from outlierlens.charts.emergence import emergence, loss_panel, norm_panel, sigma_panel, state_panel
from outlierlens.charts.export import can_export, picture
from outlierlens.charts.frequency import frequency, frequency_layers, frequency_types
from outlierlens.charts.frequency_geometry import frequency_geometry
from outlierlens.charts.frozen import frozen
from outlierlens.charts.geometry import anisotropy, cosine_shares, geometry, self_similarity
from outlierlens.charts.layer_story import layer_story
from outlierlens.charts.losses import losses
from outlierlens.charts.origin import origin, origin_histograms, origin_ranks, origin_rows
from outlierlens.charts.prediction_panels import parts_of_speech, prediction_curves
from outlierlens.charts.predictions import prediction_shifts, predictions
from outlierlens.charts.probe import probe, probe_accuracy, probe_contributions, probe_heat
from outlierlens.charts.pruning import prune_check, prune_experiment, pruned_positions
from outlierlens.charts.quantization import quantization, quantization_errors, quantization_losses
from outlierlens.charts.recovery import recovery
from outlierlens.charts.similarity import sts_layers, wic_layers
from outlierlens.charts.super_weights import super_weights
from outlierlens.charts.sweep import sweep_effects, sweep_first_order, sweep_ranked
from outlierlens.charts.sweep_nulls import sweep_nulls
from outlierlens.charts.sweep_windows import sweep_map, sweep_windows
from outlierlens.charts.tasks import figure2
from outlierlens.charts.tasks_random import outliers_against_random
from outlierlens.charts.tokens import token_panel, token_vectors
from outlierlens.charts.vector_panels import vector_panels
from outlierlens.charts.weights import weight_maps

__all__ = [
    "Chart",
    "anisotropy",
    "attack",
    "attention",
    "attention_correlation",
    "attention_sinks",
    "average_vectors",
    "beyond_zero",
    "can_export",
    "cosine_shares",
    "detectors",
    "emergence",
    "extreme_shares",
    "figure2",
    "frequency",
    "frequency_geometry",
    "frequency_layers",
    "frequency_types",
    "frozen",
    "geometry",
    "largest_values",
    "layer_story",
    "loss_panel",
    "losses",
    "norm_panel",
    "one_dimension",
    "origin",
    "origin_histograms",
    "origin_ranks",
    "origin_rows",
    "outliers_against_random",
    "parts_of_speech",
    "picture",
    "prediction_curves",
    "prediction_shifts",
    "predictions",
    "probe",
    "probe_accuracy",
    "probe_contributions",
    "probe_heat",
    "prune_check",
    "prune_experiment",
    "pruned_positions",
    "quantization",
    "quantization_errors",
    "quantization_losses",
    "recovery",
    "self_similarity",
    "sigma_panel",
    "state_panel",
    "sts_layers",
    "super_weights",
    "survival",
    "sweep_effects",
    "sweep_first_order",
    "sweep_map",
    "sweep_nulls",
    "sweep_ranked",
    "sweep_windows",
    "token_panel",
    "token_vectors",
    "vector_panels",
    "weight_maps",
    "wic_layers",
]
