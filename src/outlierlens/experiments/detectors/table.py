"""What each definition looks at, when a dimension counts and where that is from: `definitions(settings, stack)`.

The taps are in words of this model: a post-norm block ends in a norm, a pre-norm block in the sum.
"""

from typing import Literal

from outlierlens.architectures import BoundStack
from outlierlens.experiments.detectors.options import Settings
from outlierlens.experiments.detectors.result import Definition

BLOCK = "output of every block, before any final norm"
LAST = "the last layer: behind the final norm where there is one"
UNION = "in at least one block"
NAMES = (
    "kovaleva", "puccetti", "luo-rank", "luo-share", "llm.int8", "massive", "systematic", "super-weight", "rudman", "timkey",
    "macocco", "he-kurtosis", "bondarenko-out", "bondarenko-ffn",
)  # fmt: skip
EVERYWHERE = "asks for one position in many layers, and a neuron has its place in one"
NOT_OF_NEURONS = dict.fromkeys(("kovaleva", "puccetti", "luo-rank", "luo-share", "llm.int8"), EVERYWHERE) | {
    "rudman": "is of the vector that stands for a text, whose entries are dimensions",
    "macocco": "is of the stream's last layer, whose entries are dimensions",
    "bondarenko-ffn": "is of what the last linear writes, which are dimensions",
}
ON_WEIGHTS = ("kovaleva", "puccetti", "luo-rank", "super-weight")


def definitions(settings: Settings, stack: BoundStack) -> tuple[Definition, ...]:
    """Every definition with the thresholds of `settings`, in the order of `NAMES`."""
    operations = [stack.stack.last_norm] if stack.ends_in_norm else stack.stack.last_linear
    last, linear = (
        ", ".join(one.removesuffix("()") for one in names) for names in (operations, stack.stack.last_linear)
    )
    values = f"scale and bias of {last}" if stack.ends_in_norm else f"rows of {last} (L2 norm) and its bias"
    block = f"what {linear} reads in every block" if stack.reads else BLOCK
    states = block if stack.reads else f"embeddings and {block}"
    joins = "column" if stack.reads else "row"
    read = "output of the norms that attention and MLP read" if any(stack.reading) else BLOCK
    given = settings.values

    def one(name: str, thresholds: str, *texts: str) -> Definition:
        title, tap, rule, pooled, source, ours = texts
        rests_on: Literal["weights", "activations"] = "weights" if name in ON_WEIGHTS else "activations"
        used = {key: given[key] for key in thresholds.split()}
        return Definition(name, title, rests_on, tap, rule, pooled, source, ours, used)

    return (
        one(
            "kovaleva",
            "n_sigma min_layer_fraction",
            "Kovaleva et al. 2021",
            values,
            "|z| >= n_sigma over the entries of a layer's vector",
            "in min_layer_fraction of the blocks, scale and bias both",
            "BERT Busters, section 3",
            "" if stack.ends_in_norm else "how a linear's weights become one number per dimension",
        ),
        one(
            "puccetti",
            "n_sigma puccetti_top",
            "Puccetti et al. 2022",
            values,
            "|x − mean| > n_sigma × unbiased std",
            "in more than 3 blocks; scale's and bias's lists interleaved, the first puccetti_top of them",
            "released code, parameter_access.py",
            "",
        ),
        one(
            "luo-rank",
            "luo_rank luo_rank_p",
            "Luo et al. 2021, ranks",
            "scale and bias of every norm of the blocks",
            "|z| among the luo_rank largest of its vector",
            "in more blocks than chance allows: Holm's p <= luo_rank_p / norms",
            "Positional Artefacts, section 3",
            "the p-value: the paper lists ranks, without a cut-off",
        ),
        one(
            "luo-share",
            "luo_share luo_layer_fraction",
            "Luo et al. 2021, shares",
            block,
            "smallest, or largest, entry of luo_share of the token vectors",
            "in luo_layer_fraction of the blocks",
            "Positional Artefacts, section 2",
            "both thresholds: the paper gives none",
        ),
        one(
            "llm.int8",
            "int8_size int8_position_share int8_layer_fraction",
            "Dettmers et al. 2022",
            read,
            "|h| >= int8_size in int8_position_share of the tokens",
            "in int8_layer_fraction of the blocks",
            "LLM.int8(), section 4",
            "",
        ),
        one(
            "massive",
            "massive_size massive_ratio",
            "Sun et al. 2024",
            states,
            "max |h| > massive_size and > massive_ratio × median |h| of the layer",
            "in at least one layer",
            "Massive Activations, section 2",
            "",
        ),
        one(
            "systematic",
            "systematic_ratio",
            "An et al. 2025",
            states,
            "max |h| > systematic_ratio × mean |h| of the layer",
            "in at least one layer",
            "Systematic Outliers in Large Language Models",
            "their outliers of weights and of attention name no dimension and are left out",
        ),
        one(
            "super-weight",
            "super_spike super_left super_rounds",
            "Yu et al. 2024",
            f"input and output of {linear} on one prompt",
            f"|input| and |output| spike above super_spike; the {joins} of the weight that joins their places",
            "removed one by one, the first layer first, until nothing spikes",
            "released code, analyze.py",
            "the stopping rule, and super_left: a weight counts where no more of the layer's largest output is left without it",
        ),
        one(
            "rudman",
            "rudman_factor",
            "Rudman et al. 2023",
            f"the vector that stands for a text; {LAST}",
            "variance >= rudman_factor × mean variance over dimensions",
            "in the last layer",
            "Outlier Dimensions Encode Task-Specific Knowledge",
            "",
        ),
        one(
            "timkey",
            "timkey_share timkey_cosine",
            "Timkey and van Schijndel 2021",
            block,
            "adds >= timkey_share of the mean cosine of all pairs of tokens, where that is >= timkey_cosine",
            UNION,
            "All Bark and No Bite, section 3",
            "both thresholds: the paper names the top 1, 3 and 5",
        ),
        one(
            "macocco",
            "macocco_quantile",
            "Macocco et al. 2025",
            LAST,
            "median |h| > the macocco_quantile of all |h| of the layer",
            "in the last layer",
            "released code, evaluate.py",
            "",
        ),
        one(
            "he-kurtosis",
            "he_kurtosis carrier_share",
            "He et al. 2024",
            block,
            "mean(s²) / mean(s)² >= he_kurtosis, s the second moments of dimensions; those that carry carrier_share of it",
            UNION,
            "Understanding and Minimising Outlier Features",
            "both thresholds and the dimensions: the paper has one number per layer",
        ),
        one(
            "bondarenko-out",
            "bondarenko_kurtosis carrier_share",
            "Bondarenko et al. 2023, block output",
            block,
            "mean over texts of the kurtosis of all entries >= bondarenko_kurtosis; dimensions that carry carrier_share of it",
            UNION,
            "Quantizable Transformers; released code, validate_mlm.py",
            "both thresholds and the dimensions: the paper has one number per layer",
        ),
        one(
            "bondarenko-ffn",
            "bondarenko_kurtosis carrier_share",
            "Bondarenko et al. 2023, MLP output",
            f"output of {linear}",
            "as bondarenko-out",
            UNION,
            "Quantizable Transformers; released code, validate_mlm.py",
            "as bondarenko-out",
        ),
    )
