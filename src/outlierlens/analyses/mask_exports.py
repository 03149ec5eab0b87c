"""The table of tools that take hidden states, and a mask in the words of one of them.

    export("saelens", found)                     # the text of a file for a tool
    TOOLS["nnsight"].texts                       # whether that tool reads texts alone

Each row is a template: `$sinks` says where the mask comes from; positions, types, the threshold on the norm and the outlier
dimensions stand in their places. What a tool does not take is said in a comment.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING

from outlierlens.errors import BadInput, comment, literal

if TYPE_CHECKING:
    from outlierlens.analyses.mask import Mask


@dataclass(frozen=True)
class MaskTool:
    """A tool that takes hidden states.

    Attributes:
        text: template of its file. texts: it reads texts alone.
        remark: a comment on what the tool does not take of a mask, "" for nothing.
    """

    text: str
    texts: bool = True
    remark: Callable[["Mask"], str] = lambda _: ""


NORMS = '''\
NORM = $norm  # $factor times the median token's


def kept(states):
    """Whether each of `states` [..., dim] is short enough to be kept, bool [...]."""
    return states.float().norm(dim=-1) <= NORM
'''
DIMENSIONS = '''\
DIMS = $dims


def without_outliers(states):
    """A copy of `states` [..., dim] with 0 in the outlier dimensions."""
    states = states.clone()
    states[..., DIMS] = 0
    return states
'''

# https://decoderesearch.github.io/SAELens (6.54): LanguageModelSAERunnerConfig, ActivationsStore.get_filtered_llm_batch
SAELENS = f'''\
$sinks
# LanguageModelSAERunnerConfig(..., **SINKS)
SINKS = {{
    "exclude_special_tokens": $types,$words
    "seqpos_slice": ($first, None),
}}
{NORMS}

def leave_out_sinks(store):
    """Have an ActivationsStore leave out sinks by their norm too, whatever their position and type."""
    batch = store.get_filtered_llm_batch

    def get_filtered_llm_batch(raise_on_epoch_end=False):
        states = batch(raise_on_epoch_end=raise_on_epoch_end)
        return states[kept(states)]

    store.get_filtered_llm_batch = get_filtered_llm_batch
    return store


# runner = LanguageModelSAETrainingRunner(cfg)      # hook_name "blocks.$layer.hook_resid_post"
# leave_out_sinks(runner.activations_store)
# runner.run()
'''

# https://github.com/saprmarks/dictionary_learning (0.1.0): ActivationBuffer
DICTIONARY_LEARNING = f'''\
$sinks
from dictionary_learning import ActivationBuffer

# The repository's ActivationBuffer (August 2025) takes the first line, release 0.1.0 `remove_bos` alone.
SINKS = {{"max_activation_norm_multiple": $factor, "remove_bos": $bos}}
{NORMS}

class ShortStates(ActivationBuffer):
    """A buffer that gives out no sink: what is too long counts as read."""

    def refresh(self):
        super().refresh()
        self.read = ~kept(self.activations)


# buffer = ShortStates(texts, model, model.$module, d_submodule=$width, remove_bos=$bos)
'''

# https://transformerlensorg.github.io/TransformerLens (3.9): HookPoint, run_with_hooks, run_with_cache
TRANSFORMER_LENS = f'''\
$sinks
HOOK = "blocks.$layer.hook_resid_post"
{NORMS}

{DIMENSIONS}

def ablate_outliers(states, hook):
    """A hook that ablates the outlier dimensions."""
    return without_outliers(states)


def ablate_sinks(states, hook):
    """A hook that sets the states of sinks to 0."""
    return states * kept(states)[..., None]


# Weights that were folded or centred give other norms: HookedTransformer.from_pretrained_no_processing(...)
# _, cache = model.run_with_cache(tokens, names_filter=HOOK)
# states = cache[HOOK][kept(cache[HOOK])]
# model.run_with_hooks(tokens, fwd_hooks=[(HOOK, ablate_outliers)])
'''

# https://nnsight.net (0.8): LanguageModel.trace, Envoy.get
NNSIGHT = f'''\
$sinks
BLOCK = $path
DIMS = $dims
{NORMS}

def short_states(model, prompt):
    """States of one prompt behind the block [token, dim], sinks left out."""
    with model.trace(prompt):
        states = model.get(BLOCK).output.save()
    states = states[0] if isinstance(states, tuple) else states
    return states[kept(states)]


def ablated_logits(model, prompt):
    """Logits [batch, token, word] with the outlier dimensions ablated behind the block."""
    with model.trace(prompt):
        states = model.get(BLOCK).output
        (states[0] if isinstance(states, tuple) else states)[..., DIMS] = 0
        logits = model.output.logits.save()
    return logits


# model = LanguageModel($model, dispatch=True)
'''

# For means and directions of one's own.
STEERING = f"""\
$sinks
{NORMS}

{DIMENSIONS}"""

# https://github.com/p-e-w/heretic (1.4): winsorization_quantile of config.toml
HERETIC = """\
$sinks
# $clipped
winsorization_quantile = $quantile
"""


def _left(found: "Mask") -> str:
    """Positions that one slice cannot leave out."""
    left = [one for one in found.positions if one >= _first(found)]
    return f"Positions that it cannot leave out: {', '.join(map(str, left))}." if left else ""


TOOLS = {
    "saelens": MaskTool(SAELENS, remark=_left),
    "dictionary-learning": MaskTool(DICTIONARY_LEARNING),
    "transformer-lens": MaskTool(TRANSFORMER_LENS),
    "nnsight": MaskTool(NNSIGHT),
    "heretic": MaskTool(HERETIC),
    "steering": MaskTool(STEERING, texts=False),
}


def export(tool: str, found: "Mask") -> str:
    """The text of a file for `tool`, a name in `TOOLS`; raises BadInput for an unknown one."""
    if tool not in TOOLS:
        raise BadInput(f"unknown tool {tool!r}; masks are written for {', '.join(TOOLS)}")
    held, width, n = found.judged, len(found.centre), len(found.dims)
    does = f"this leaves out {held.recall:.1%} of the sinks and {held.false_share:.2%} of the other tokens"
    clipped = (
        f"The {n} largest of {width} entries of a hidden state are clipped to the next one: dimensions "
        f"{', '.join(found.about.dims)} are outliers."
    )
    sinks = (
        comment(f"Sinks of {found.provenance.subject}, block {found.layer}, found in {found.about.n_texts} texts of "
                f"{found.about.data}."),
        comment(f"On {held.n_texts} other texts {does if held.n_sinks else 'there is no sink'}."),
        *([comment(remark)] if (remark := TOOLS[tool].remark(found)) else []),
    )  # fmt: skip
    return Template(TOOLS[tool].text).substitute(
        sinks="\n".join(sinks), layer=found.layer, path=literal(found.path),
        module=re.sub(r"\.(\d+)", r"[\1]", literal(found.path)[1:-1]), model=literal(found.provenance.subject),
        norm=f"{found.threshold:.6g}", factor=f"{found.factor:g}", dims=list(found.dims), width=width,
        types=list(found.token_ids) or False, words=f"  {comment(literal(list(found.words))[1:-1])}" * bool(found.words),
        first=_first(found), bos=0 in found.positions, quantile=f"{(width - 1 - n) / (width - 1):.6f}",
        clipped=clipped if n else "No dimension is an outlier on tokens that are not sinks: nothing to clip.",
    )  # fmt: skip


def _first(found: "Mask") -> int:
    """The first position that is not left out."""
    return next(place for place in range(len(found.positions) + 1) if place not in found.positions)
