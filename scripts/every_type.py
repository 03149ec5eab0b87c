"""Every model type of the installed transformers: its row derived, and a small copy with a planted dimension analysed.

    python scripts/every_type.py                        # all types, one child process each; continues where it stopped
    python scripts/every_type.py --seed 1 --some 30     # thirty types drawn at random: what CI holds against the package's rows
    python scripts/every_type.py llama bamba            # these alone
    python scripts/every_type.py --by-block             # whether a small copy read block by block gives what it gives whole
    python scripts/every_type.py --write                # rows of a whole run become the package's data file

For each type: the config that transformers has as its default (with what `FILLED` adds where the default is no model) is
derived; a small random copy gets one dimension planted in the last operation of every block, is saved, and is scanned from its
files; where it reads text, `observe`, `ablate` and `range` run on it. Says for each type why something could not be done.

`--by-block`: a small random copy, saved, under four conditions (`tests/block_equality.py`) on three lengths with padding: all
tensors must be equal bit for bit, with states that wait in memory, and in a file. Then a weight of the model is off by 1e-4,
which must be seen. Where it reads text, what `attention` and `trace` say is compared, too.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from block_equality import CONDITIONS, content, equal, under

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "src" / "outlierlens" / "data_files" / "derived.json"
TASKS = (
    "CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SPEECH_SEQ_2_SEQ", "TEXT_ENCODING", "IMAGE",
    "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION", "CTC",
)  # fmt: skip
DIM, TIMES, SECONDS, MEMORY = 11, 30.0, 120, 6 << 30
TEXTS = ["the cat sat on the mat .", "a dog saw a cat .", "the mat was red , the dog was not ."] * 2

STARTS = (
    "encoder-decoder",
    "florence2",
    "longt5",
    "marian",
    "mbart",
    "plbart",
    "pop2piano",
    "pp_formulanet",
    "switch_transformers",
    "t5",
    "t5gemma2",
)
ATTENTION = ("full_attention", "sliding_attention")
# Values without which the default config of a type is no model that can be built or run.
FILLED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy", "n_routed_experts": 4},
    "bamba": {"attn_layer_indices": [1, 3]},
    "cohere_compass_text": {
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ATTENTION}
    },
    "dbrx": {"attn_config": {"kv_n_heads": 8, "rope_theta": 1e4}},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "n_shared_experts": 1},
    "emu3": {"vocabulary_map": {"<image>": 1, "<|extra_200|>": 2}},
    "esm": {"vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1},
    "granite": {"residual_multiplier": 0.22},
    "granitemoehybrid": {"residual_multiplier": 0.22, "layer_types": ["linear_attention", "full_attention"] * 16},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 4, "moe_topk": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    **{name: {"decoder_start_token_id": 2} for name in STARTS},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "reformer": {"is_decoder": True},
    "xmod": {"default_language": "en_XX"},
}


# Configs of a type that are built in another way than its default and are common, of which the package has rows, too.
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "bert": ({"is_decoder": True, "add_cross_attention": True},),
    "deberta": ({"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": -1},),
    "deberta-v2": ({"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256,
                    "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False,
                    "max_relative_positions": -1},
                   {"conv_kernel_size": 3, "conv_act": "gelu"}, {"embedding_size": 512}),
    "dinov2": ({"use_swiglu_ffn": True},),
    "electra": ({"embedding_size": 256},),
    "falcon": ({"new_decoder_architecture": True, "num_kv_heads": 8}, {"new_decoder_architecture": True, "num_kv_heads": 8,
               "num_ln_in_parallel_attn": 1}, {"parallel_attn": False, "alibi": True, "bias": True, "multi_query": False}),
    "gpt2": ({"add_cross_attention": True},),
    "gpt_neox": ({"use_parallel_residual": False},),
    "llama": ({"attention_bias": True, "mlp_bias": True},),
    "opt": ({"do_layer_norm_before": False, "word_embed_proj_dim": 512},),
    "phi": ({"qk_layernorm": True},),
    "qwen3_moe": ({"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}),
    "t5": ({"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},),
    "mt5": ({"feed_forward_proj": "relu"},),
    "wav2vec2": ({"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True},
                 {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True, "adapter_attn_dim": 16}),
}  # fmt: skip


def types() -> dict[str, str]:
    """{model type: the first task that transformers has a class for}, and types of which facts are declared."""
    from transformers.models.auto import modeling_auto

    from outlierlens.architectures import ARCHITECTURES

    found: dict[str, str] = {}
    for task in TASKS:
        for model_type in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES"):
            found.setdefault(model_type, task)
    return found | {name: "" for name, row in ARCHITECTURES.items() if name not in found and row.stacks is None}


def config_of(model_type: str) -> dict[str, Any]:
    """The default config of a type, with what it needs beside."""
    from transformers import CONFIG_MAPPING

    kind: Any = CONFIG_MAPPING[model_type]
    return {**kind(**FILLED.get(model_type, {})).to_dict(), "model_type": model_type}


# --- one type, in a process of its own -------------------------------------------------------------------------------


def one_type(model_type: str, task: str, *, rows_alone: bool = False) -> dict[str, Any]:
    """What was seen of a type; of `rows_alone` nothing is planted."""
    from outlierlens.architectures import family_of
    from outlierlens.architectures.experiment.derive import derive
    from outlierlens.errors import OutlierlensError, takes_a_line, told

    said: dict[str, Any] = {"type": model_type, "task": task}
    begun = time.process_time()
    try:
        config = config_of(model_type)
    except Exception as error:  # of the family's own code
        return said | {"config": f"{type(error).__name__}: {error}"[:300]}
    by_hand = family_of(config).stacks
    try:
        if by_hand:
            stacks = by_hand(config)
        else:
            found = derive(config)
            stacks = found.stacks
            said["rows"] = [found.row, *(derive(config | variant).row for variant in VARIANTS.get(model_type, ()))]
        said["seconds"] = round(time.process_time() - begun, 1)
        said["gigabytes"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), 1)
    except OutlierlensError as error:
        return said | {"refused": str(error)}
    if rows_alone:
        return said
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OUTLIERLENS_CACHE"] = str(Path(folder) / "cache")
        try:
            small = planted(config, stacks, Path(folder) / "model")
        except Exception as error:
            return said | {"planted": f"{type(error).__name__}: {error}"[:300]}
        looks: list[tuple[str, Callable[[str], str]]] = [("scan", partial(scanned, wanted=by_numpy(small, stacks)))]
        if "input_ids" in small.inputs:
            looks += [("observe", observed), ("ablate", ablated), ("range", ranged)]
        if task == "CAUSAL_LM":
            looks += [("trace", traced)]
        looks += [("repair", partial(rewritten, inputs=small.inputs))]
        for name, look in looks:
            try:
                said[name] = look(str(Path(folder) / "model"))
            except Exception as error:
                if not takes_a_line(error):
                    raise
                said[name] = f"refused: {told(error)}"[:400]
    return said


def planted(config: dict[str, Any], stacks: tuple[Any, ...], folder: Path) -> Any:
    """A small copy with the dimension planted, saved in `folder`."""
    import torch

    from outlierlens.architectures import bind, live_parameters
    from outlierlens.architectures.experiment.small import quiet, small_model

    with quiet():
        small = small_model(config)
        named = live_parameters(small.model)
        with torch.no_grad():
            for stack in bind(stacks, named, small.config):
                for layer in stack.scale:
                    for param in layer:
                        values = named[param.name]
                        values.select(param.axis, DIM).mul_(TIMES).add_(0.5)
                for layer in stack.bias:
                    for param in layer:
                        named[param.name].select(param.axis, DIM).add_(TIMES)
        save(small.model, folder)
    return small


def save(model: Any, folder: Path) -> None:
    """Save a model and a tokenizer of the words of `TEXTS`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    words = sorted({word for text in TEXTS for word in text.split()})
    inner = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(("<pad>", "<unk>", *words))}, "<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>").save_pretrained(folder)


def by_numpy(small: Any, stacks: tuple[Any, ...]) -> dict[str, Any]:
    """{stream: z-scores [layer, dim] of what its last operation holds}, in the words of the definition."""
    import numpy as np

    from outlierlens.architectures import bind, live_parameters

    live, found = live_parameters(small.model), {}
    for stack in bind(stacks, live, small.config):
        rows = []
        for layer in stack.weight_layers:
            squares, vectors = 0.0, 0.0
            for param in stack.scale[layer]:
                values = live[param.name].detach().double().numpy()
                times = np.abs(live[param.times].detach().double().numpy()) if param.times else 1.0
                if values.ndim == 1:
                    vectors = vectors + (values - param.off) * times
                else:
                    wide = np.moveaxis(values, param.axis, 0).reshape(values.shape[param.axis], -1)
                    squares = squares + (wide**2).sum(1) * times**2
            rows.append(np.sqrt(squares + vectors**2) if np.ndim(squares) else vectors)
        scale = np.stack(rows)
        found[stack.name] = (scale - scale.mean(1, keepdims=True)) / scale.std(1, keepdims=True)
    return found


def scanned(folder: str, wanted: dict[str, Any]) -> str:
    """ "named", or what stands in its place; z-scores must be those of `by_numpy`."""
    import numpy as np

    from outlierlens import scan

    found = scan(folder)
    for stack in found.stacks:
        off = np.abs(stack.z_scale - wanted[stack.stack][:, list(stack.map_dims)]).max()
        if not off <= 1e-3:
            return f"z of {stack.stack} differs from NumPy's by {off:.2g}"
    dims = sorted({one.dim for one in found.outliers})
    return "named" if DIM in dims else f"not named; found {dims[:8]}"


def observed(folder: str) -> str:
    """ "ran"."""
    from outlierlens import load_model, observe

    observe(load_model(folder), TEXTS)
    return "ran"


def ablated(folder: str) -> str:
    """ "ran"."""
    from outlierlens import ablate, load_model
    from outlierlens.options import AblateOptions

    loaded = load_model(folder)
    ablate(loaded, TEXTS, (DIM,), AblateOptions(stack=of_words(loaded)))
    return "ran"


def of_words(loaded: Any) -> str:
    """The last stream that texts reach."""
    return [stack.name for stack in loaded.stacks if not stack.name.startswith(("vision", "audio"))][-1]


def ranged(folder: str) -> str:
    """ "ran"."""
    from outlierlens import load_model
    from outlierlens.analyses.range import range_of
    from outlierlens.data.texts import Texts

    range_of(load_model(folder), Texts("made up", tuple(TEXTS)))
    return "ran"


def traced(folder: str) -> str:
    """ "exact", where the account of a dimension misses no state by 1e-5 of what is summed."""
    from outlierlens import load_model, trace
    from outlierlens.options import TraceOptions

    loaded = load_model(folder)
    error = trace(loaded, TEXTS, TraceOptions(dim=DIM, stack=of_words(loaded), n_random=1)).error
    return "exact" if error <= 1e-5 else f"misses by {error:.1g}"


def rewritten(folder: str, inputs: dict[str, Any]) -> str:
    """ "stream exact; pairs: neurons, values": what factors do to its streams and pairs; "far" is a wrong promise."""
    import torch

    from outlierlens import load_model
    from outlierlens.analyses.repair import NEAR, difference_of
    from outlierlens.analyses.repair_factors import outputs, pairs_of
    from outlierlens.analyses.repair_rewriting import RewritingPlan, repaired, stream_plan
    from outlierlens.architectures.pairs import KINDS
    from outlierlens.errors import BadInput

    loaded, random = load_model(folder), torch.Generator().manual_seed(0)
    wanted = outputs(loaded.model, [inputs])

    def verdict(plan: RewritingPlan) -> str:
        with repaired(loaded, plan):
            off = difference_of(wanted, outputs(loaded.model, [inputs]))
        if off == 0:
            return "exact"
        if not plan.reasons:
            return f"far ({off:.1g})"
        return "near" if off <= NEAR else f"no (outputs would differ by {off:.1g}: {plan.reasons[0]})"

    try:
        said = f"stream {verdict(stream_plan(loaded, -4))}"
    except BadInput as error:
        said = f"stream no ({str(error).partition('rescaled: ')[2]})"
    kinds = []
    for kind in KINDS:
        if pairs := pairs_of(loaded, (kind,)):
            drawn = [(pair, torch.randint(-3, 4, (len(pair.shared),), generator=random)[pair.shared]) for pair in pairs]
            kinds.append(f"{kind} {verdict(RewritingPlan().pairs(drawn))}")
    return f"{said}; pairs: {', '.join(kinds) or 'none'}"


# --- block by block --------------------------------------------------------------------------------------------------


def by_block(model_type: str, task: str) -> dict[str, Any]:
    """What a small copy of a type gives block by block against what it gives whole."""
    from outlierlens import attention, load_model, trace
    from outlierlens.analyses.trace import TraceOptions
    from outlierlens.architectures.experiment.small import quiet, small_model
    from outlierlens.errors import OutlierlensError, takes_a_line, told
    from outlierlens.models.load import LoadOptions

    said: dict[str, Any] = {"type": model_type, "task": task}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OUTLIERLENS_CACHE"] = str(Path(folder) / "cache")
        try:
            with quiet():
                small = small_model(config_of(model_type))
                save(small.model, Path(folder) / "model")
        except Exception as error:  # of the family's own code
            return said | {"unbuilt": f"{type(error).__name__}: {error}"[:300]}

        def load(*, blocks: bool) -> Any:
            options = LoadOptions(by_block=blocks, attention="eager", notice=lambda _: None)
            return load_model(str(Path(folder) / "model"), options)

        try:
            whole = load(blocks=False)
        except OutlierlensError as error:
            return said | {"unloaded": str(error)[:300]}
        try:
            split = load(blocks=True)
            stack = of_words(whole) if "input_ids" in small.inputs else whole.stacks[0].name
            said |= compared(whole, split, small.inputs, stack)
        except OutlierlensError as error:
            return said | {"refused": str(error)[:400]}
        analyses: dict[str, Callable[[Any], Any]] = {
            "attention": lambda one: attention(one, TEXTS, dims=(DIM,)),
            "trace": lambda one: trace(one, TEXTS, TraceOptions(dim=DIM, stack=of_words(one), n_random=1)),
        }
        for name, run in analyses.items() if "input_ids" in small.inputs else ():
            answers = []
            for one in (whole, split):
                try:
                    answers.append(content(run(one)))
                except Exception as error:
                    answers.append(f"{told(error) if takes_a_line(error) else repr(error)}"[:200])
            fails = [one if isinstance(one, str) else "" for one in answers]
            said[name] = (
                f"refused of the whole: {fails[0]}" if fails[0] else f"refused: {fails[1]}" if fails[1]
                else "equal" if answers[0] == answers[1] else "differs"
            )  # fmt: skip
    return said


def compared(whole: Any, split: Any, inputs: dict[str, Any], stack: str) -> dict[str, Any]:
    """ "equal" or "differs" by condition, how often a door was read at most, and whether a weight off by 1e-4 was seen."""
    for given in (cut(inputs), [inputs] * 3):
        with contextlib.suppress(RuntimeError, ValueError, IndexError, TypeError, AssertionError):
            theirs = under(whole, "intact", given)
            break
    if not equal(theirs, under(whole, "intact", given)):
        return {"random": "the whole model gives other numbers each time"}
    said: dict[str, Any] = {
        "lengths": len({str([(key, getattr(one, "shape", 0)) for key, one in each.items()]) for each in given})
    }
    wanted: dict[str, Any] = {}
    for name in CONDITIONS:
        try:
            wanted[name] = under(whole, name, given, stack)
        except Exception as error:  # of the family's own code, too
            said[name] = f"refused of the whole: {error!r}"[:200]
    split.blocks.weights.reads.clear()
    ours = split.run([partial(under, split, name, given, stack) for name in wanted])
    reads = split.blocks.weights.reads
    said["reads"] = max(map(reads.count, reads), default=0)
    for name, found in zip(wanted, ours, strict=True):
        said[name] = "equal" if equal(found, wanted[name]) else "differs"
    split.blocks.memory = split.blocks.bytes_for(0, 0)  # every state that waits goes to a file
    filed = split.run([partial(under, split, name, given, stack) for name in wanted])
    said["on disk"] = "equal" if equal(filed, ours) else "differs"
    split.blocks.memory = None
    said["seen"] = off_by_a_little(whole, split, given, ours[0])
    return said


def cut(inputs: dict[str, Any]) -> list[dict[str, Any]]:
    """Three batches: of texts of three lengths, the last token of the last row padding; of other inputs of three sizes."""
    import torch

    ids, found = inputs.get("input_ids"), []
    for number in range(3):
        each = dict(inputs)
        for name, one in inputs.items():
            if isinstance(one, torch.Tensor) and ids is not None and one.shape[:2] == ids.shape:
                each[name] = one[:, : ids.shape[1] - number].clone()
            elif isinstance(one, torch.Tensor) and one.is_floating_point():
                each[name] = one * (1 - 0.1 * number)
        if ids is not None and "attention_mask" in each and each["attention_mask"].shape == each["input_ids"].shape:
            each["attention_mask"][-1, -1] = 0
        found.append(each)
    return found


def off_by_a_little(whole: Any, split: Any, given: list[dict[str, Any]], ours: Any) -> str:
    """The name of a weight of a block that, 1e-4 larger in the whole model, makes its outputs others than `ours`; else ""."""
    import torch

    doors = split.blocks.weights.doors
    names = [name for name, one in whole.model.named_parameters() if one.is_floating_point() and one.ndim > 1]
    inside = [name for name in names if any(name.startswith(f"{door}.") for door in doors)]
    for name in inside[::-1][:40]:
        parameter = whole.model.get_parameter(name)
        flat = parameter.data.view(-1)
        before = flat[0].clone()
        with torch.no_grad():
            flat[0] += 1e-4
        seen = not equal(ours, under(whole, "intact", given))
        with torch.no_grad():
            flat[0] = before
        if seen:
            return name
    return ""


def summary_by_block(all_said: list[dict[str, Any]]) -> str:
    """How many types are equal block by block, and what of the others."""
    built = [one for one in all_said if not {*one} & {"unbuilt", "unloaded"}]
    lost = [one for one in built if {*one} & {"refused", "random", "bug", "ended"}]
    kept = [one for one in built if one not in lost]
    parts = (*CONDITIONS, "on disk", "attention", "trace")
    out = [f"{len(all_said)} types, {len(built)} built small and loaded; {len(kept)} read block by block"]
    out.append("equal: " + ", ".join(f"{part} {sum(one.get(part) == 'equal' for one in kept)}" for part in parts))
    out.append(f"a weight off by 1e-4 is seen in {sum(bool(one.get('seen')) for one in kept)}")
    out.append(f"each door once in {sum(one.get('reads') == 1 for one in kept)}")
    for one in all_said:
        wrong = {key: one[key] for key in ("unbuilt", "unloaded", "refused", "random", "bug", "ended") if key in one}
        wrong |= {part: one[part] for part in parts if one.get(part, "equal") != "equal"}
        if one in kept and not one.get("seen"):
            wrong["seen"] = "nothing"
        if wrong:
            out.append(
                f"{one['type']}: "
                + "; ".join(f"{key}: {' '.join(str(why).split())[:160]}" for key, why in wrong.items())
            )
    return "\n".join(out)


def in_child(model_type: str, task: str, look: Callable[[str, str], dict[str, Any]]) -> dict[str, Any]:
    """What `look` says, from a process that may run out of time or memory."""
    read, write = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        try:
            said = look(model_type, task)
        except BaseException as error:  # what a user would see as a traceback
            said = {"type": model_type, "task": task, "bug": f"{type(error).__name__}: {error}"[:300]}
            said["at"] = traceback.format_exc()[-900:]
        with os.fdopen(write, "w") as pipe:
            pipe.write(json.dumps(said))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    said = (
        json.loads(text)
        if text
        else {"type": model_type, "task": task, "ended": f"after {SECONDS} s, or out of memory"}
    )
    return said | {"wall": round(time.monotonic() - begun, 1)}


# --- all of them -----------------------------------------------------------------------------------------------------


def lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text("utf-8").splitlines())


def summary(all_said: list[dict[str, Any]]) -> str:
    """How many types are named and analysed, and why the others are not."""
    looks = ("scan", "observe", "ablate", "range", "trace", "repair")
    good = ("named", "ran", "exact")
    unbuilt = ("cannot be built", "no small version", "takes no such")
    built = [
        one for one in all_said if "config" not in one and not any(why in one.get("refused", "") for why in unbuilt)
    ]

    def is_good(look: str, answer: str) -> bool:
        return answer in good or (look == "repair" and answer.startswith("stream") and "far" not in answer)

    done = {look: sum(is_good(look, said.get(look, "")) for said in built) for look in looks}
    share = done["scan"] / max(1, len(built))
    out = [f"{len(all_said)} types, {len(built)} built small; scan names the plant of {done['scan']} ({share:.0%})"]
    reads = sum("observe" in said for said in built)
    out.append(f"of {reads} that read text: " + ", ".join(f"{look} {done[look]}" for look in looks[1:4]))
    out.append(f"of {sum('trace' in said for said in built)} causal ones trace's account is exact for {done['trace']}")
    out.append(f"repair says for {done['repair']} what it can do, and keeps the outputs")
    for said in all_said:
        wrong = {key: said[key] for key in ("config", "refused", "planted", "bug", "ended") if key in said}
        wrong |= {look: said[look] for look in looks if not is_good(look, said.get(look, "ran"))}
        reasons = "; ".join(f"{key}: {' '.join(str(value).split())[:200]}" for key, value in wrong.items())
        if wrong:
            out.append(f"{said['type']}: {reasons}")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--in", dest="file", type=Path, default=Path("types.jsonl"), help="where what was seen is kept")
    parser.add_argument("--some", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--by-block", action="store_true", help="block by block against whole")
    parser.add_argument("--rows", action="store_true", help="derive, and plant nothing")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    import torch

    look = by_block if options.by_block else partial(one_type, rows_alone=options.rows)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wanted = types()
    if options.types:
        wanted = {name: wanted.get(name, "") for name in options.types}
    if options.some:
        drawn = random.Random(options.seed).sample(sorted(wanted), options.some)
        wanted = {name: wanted[name] for name in drawn}
    done = {said["type"] for said in lines(options.file)}
    with options.file.open("a") as file, contextlib.redirect_stdout(sys.stderr):
        for model_type, task in wanted.items():
            if model_type not in done:
                file.write(json.dumps(in_child(model_type, task, look)) + "\n")
                file.flush()
    said = [one for one in lines(options.file) if one["type"] in wanted]
    print((summary_by_block if options.by_block else summary)(said))
    if options.write:
        import transformers

        rows = {one["type"]: one["rows"] for one in sorted(said, key=lambda one: one["type"]) if "rows" in one}
        each = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        ROWS.write_text(
            f'{{"transformers": {json.dumps(transformers.__version__)}, "rows": {{\n{each}\n}}}}\n', "utf-8"
        )


if __name__ == "__main__":
    main()
