"""From a model to a checked copy that fits another format.

found = repair("smollm2", Path("fits"), RepairOptions(fit="fp16"), texts=read_texts("texts.txt"))
found.exact                       # float32 outputs are equal bit for bit
"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlierlens.data.texts import EXCERPT, Data, Texts, read_texts
from outlierlens.detection.scan.measure import scan_live
from outlierlens.errors import BadFile, BadInput, markdown
from outlierlens.experiments.repair.check import Check, Seen, check_of, outputs, seen_of
from outlierlens.experiments.repair.epsilon import get_key
from outlierlens.experiments.repair.factors import balanced_exponents, pair_exponents, stream_exponent
from outlierlens.experiments.repair.folder import (
    check_place,
    check_room,
    check_unchanged,
    save_model,
    settings_of,
    write_manifest,
    write_rest,
)  # fmt: skip
from outlierlens.experiments.repair.formats import FLOAT32, in_format
from outlierlens.experiments.repair.options import RepairCall, RepairOptions
from outlierlens.experiments.repair.pairs import Pair
from outlierlens.experiments.repair.plan import Plan, stream_plan
from outlierlens.experiments.repair.result import Behaviour, Repaired
from outlierlens.experiments.repair.rewriting import change, repaired
from outlierlens.experiments.repair.rotation import MATRIX, TOLERANCE, rotate_
from outlierlens.experiments.repair.shards import find_shards, write_shards
from outlierlens.models.folder import model_folder
from outlierlens.models.inputs import tokenizer_of
from outlierlens.models.load import STORED, LoadedModel, LoadOptions, from_objects, load_model
from outlierlens.results.safe_files import new_folder
from outlierlens.session import Session

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# (how far above the median neuron one may stay, the share in logarithms of what is above that comes down)
BALANCES = tuple((cap, share) for share in (0.5, 1.0) for cap in (1.0, 4.0, 16.0, 64.0, 256.0))
NEAR = 1e-5  # of the largest output: what a rewriting that is not exact may differ by in float32
N_TEXTS = 16


def repair(
    name: str,
    folder: Path,
    options: RepairOptions,
    *,
    texts: Data | None = None,
    load: LoadOptions | None = None,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Repaired:
    """Write the model `name` to `folder`, rewritten by powers of two so that it fits the format, and check it.

    Where nothing has to change, or no factor helps, nothing is written, and the result's `folder` is "". Nothing is left in
    `folder` unless the copy, read back, gives the same outputs in float32: bit for bit, or within
    1e-5 of the largest where the family allows no more.

    Raises:
        BadInput: the folder exists or has no room, weights are quantized, or the family cannot be rewritten.
        BadFile: damaged weights; or what was written reads back as another model.
    """
    import torch

    step = _steps(progress)
    load = replace(load or LoadOptions(), dtype="float32")
    check_place(folder, overwrite=overwrite)
    loaded = load_model(name, load)
    _refuse_codes(loaded)
    texts = texts or read_texts(EXCERPT, limit=N_TEXTS)
    if isinstance(texts, Texts):
        tokenizer_of(loaded)
    check_room(folder, loaded.model)
    check = check_of(loaded, texts, max_length=options.max_length, seed=options.seed)
    step("measured")
    seen = seen_of(loaded, check)
    wanted = outputs(loaded.model, check)
    before = _measured(loaded, seen, wanted, check, options.fit or FLOAT32)
    config: Any = loaded.model.config
    tied = getattr(config, "tie_word_embeddings", False)
    if options.rotate:
        rotate_(loaded, lambda: torch.cat([one.flatten() for one in outputs(loaded.model, check)]), seed=options.seed)
        seen = seen_of(loaded, check)
    plan, exponent, factors = plan_for(loaded, seen, options, check.every(0))
    if options.rotate:
        plan.untie |= tied and not config.tie_word_embeddings
        plan.reasons += ("streams are turned, which rounds every weight once",)
    made = Repaired(
        provenance=loaded.provenance(seed=options.seed),
        folder=folder.name if plan.exponents or options.rotate else "",
        fit=options.fit or FLOAT32,
        margin=options.margin,
        rotated=options.rotate,
        exponent=exponent,
        channels=_counts(factors),
        epsilons={key: (old := float(get_key(config, key)), old * 2.0**power) for key, power in plan.epsilons.items()},
        untied=plan.untie,
        n_changed=sum(1 for _ in loaded.model.parameters()) if options.rotate else len(plan.exponents),
        n_parameters=sum(1 for _ in loaded.model.parameters()),
        exact=True,
        reasons=plan.reasons,
        difference=0.0,
        n_texts=len(texts),
        n_tokens=check.n_tokens,
        n_random=check.n_random,
        inputs=check.inputs,
        before=before,
        after=before,
        notes=(*loaded.notes, *stays_wide(loaded, options.fit)),
    )
    if not made.folder:
        return made
    source = model_folder(name, subfolder=load.subfolder, offline=load.offline, notice=load.notice)
    # Turned weights are written as they were turned: rounded to a narrower type they would differ by more than is promised.
    shards = None if options.rotate else find_shards(source, loaded.model, plan)
    same = shards.same if shards else plan.same(loaded.model)
    stored = loaded if shards or options.rotate else load_model(name, replace(load, dtype=STORED))
    again = _Again(
        type(loaded.model), loaded.tokenizer, loaded.processor, loaded.name, config._attn_implementation, loaded.device
    )
    del loaded
    step("written")
    with new_folder(folder) as part:
        if shards:
            write_shards(shards, part, plan)
        else:
            with ExitStack() as undo:
                change(undo, stored, plan)
                save_model(part, stored, source)
                undo.pop_all()  # the model is thrown away
        del stored
        write_rest(part, source, settings_of(plan, made.epsilons, "float32" * options.rotate), _card(made, name))
        step("checked")
        if not options.rotate:
            check_unchanged(part, source, same)
        made = _checked(made, part, again, check, wanted)
        write_manifest(part, plan, _about(made, name))
        check_place(folder, overwrite=overwrite)  # once more: the checks took their time
    return made


def plan_for(
    loaded: LoadedModel, seen: Seen, options: RepairOptions, check: Check
) -> "tuple[Plan, int, list[tuple[Pair, Tensor]]]":
    """(what changes, the stream's exponent, pairs with their exponents) for what was seen of the model.

    Raises:
        BadInput: no factor passes through this family.
    """
    fit, margin = options.fit, options.margin
    if fit is None:
        return Plan(), 0, []
    if fit == "int8" and not seen.inputs:
        raise BadInput(
            f"{loaded.name}: no block has a linear whose neurons multiply what its last linear reads (a gated MLP, or a "
            f"ReLU), so no factor passes; smooth it with `outlierlens quantize --smooth`"
        )
    exponent = stream_exponent(seen, fit, margin)
    factors = _best_balance(loaded, seen, check) if fit == "int8" else pair_exponents(seen, fit, margin)
    plan = stream_plan(loaded, exponent) if exponent else Plan()
    for pair, exponents in factors:
        plan.pair(pair, exponents)
    return plan, exponent, factors


def _counts(factors: "list[tuple[Pair, Tensor]]") -> dict[str, int]:
    """Channels with a factor of their own, by kind of pair."""
    found: dict[str, int] = {}
    for pair, exponents in factors:
        found[pair.kind] = found.get(pair.kind, 0) + int((exponents != 0).sum())
    return found


def _best_balance(loaded: LoadedModel, seen: Seen, check: Check) -> "list[tuple[Pair, Tensor]]":
    """Of the factors of `BALANCES` those with which outputs in int8 are nearest to float32; [] where none is nearer.

    What leaves the inputs goes into the weights, which are rounded too: how much pays is measured, not assumed.
    """
    wanted = outputs(loaded.model, check)
    best, found = _distance(loaded, wanted, check), []
    for cap, share in BALANCES:
        plan, factors = Plan(), balanced_exponents(seen, cap, share)
        if not factors:
            continue
        for pair, exponents in factors:
            plan.pair(pair, exponents)
        with repaired(loaded, plan):
            distance = _distance(loaded, wanted, check)
        if distance < best:
            best, found = distance, factors
    return found


def stays_wide(loaded: LoadedModel, fit: str | None) -> tuple[str, ...]:
    """What transformers keeps in float32 where it loads the model in float16, while here all of it is cast."""
    wide = getattr(loaded.model, "_keep_in_fp32_modules", None)
    if fit != "fp16" or not wide:
        return ()
    names = ", ".join(wide)
    return (
        "the share of finite logits is that of model.half(), every weight in float16; from_pretrained(dtype=torch.float16) "
        f"keeps {names} in float32, where less overflows",
    )


def _distance(loaded: LoadedModel, wanted: "list[Tensor]", check: Check) -> float:
    """Mean |difference| of the outputs in int8 from float32."""
    with in_format(loaded, "int8") as model:
        pairs = zip(wanted, outputs(model, check), strict=True)
        return sum(float((one - other).abs().mean()) for one, other in pairs) / len(wanted)


def _refuse_codes(loaded: LoadedModel) -> None:
    whole = all(one.is_floating_point() for one in loaded.model.parameters())
    if getattr(loaded.model.config, "quantization_config", None) or not whole:
        raise BadInput(
            f"{loaded.name}: its weights run quantized, and codes take no factor; repair the model that was quantized, in "
            "full precision, then quantize it"
        )


def _measured(loaded: LoadedModel, seen: Seen, wanted: "list[Tensor]", check: Check, fit: str) -> Behaviour:
    import torch

    if fit == "int8":  # factors for it are chosen by every other row (`plan_for`); the rest judge
        wanted, check = wanted[1::2], check.every(1)
    with in_format(loaded, fit) as model:
        found = outputs(model, check)
    whole = torch.cat([one.flatten() for one in found]).double()
    right = torch.cat([one.flatten() for one in wanted]).double()
    finite = whole.isfinite()
    return Behaviour(
        layers=seen.layers,
        kinds=seen.kinds,
        spikes=seen.spikes,
        finite=float(finite.double().mean()),
        distance=float((whole - right)[finite].abs().mean()) if finite.any() else math.nan,
        named=tuple(sorted({one.dim for stack in scan_live(loaded).stacks for one in stack.outliers})),
    )


def _checked(made: Repaired, part: Path, again: "_Again", check: Check, wanted: "list[Tensor]") -> Repaired:
    """`made` with what the folder gives, read back; raises where that is not what it must be."""
    import torch

    back = again.read(part)
    found = outputs(back.model, check)
    exact = all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
    difference = 0.0 if exact else difference_of(wanted, found)
    if not exact and not made.reasons:
        raise BadFile(
            f"{again.name}: read back, its outputs differ by {difference:.3g} of the largest where they must be equal, so "
            f"nothing is kept; this family computes something that its row does not say"
        )
    most = TOLERANCE if made.rotated else NEAR
    if not difference <= most:
        raise BadInput(
            f"{again.name}: rewritten, its outputs would differ by {difference:.3g} of the largest (at most {most:g}), so "
            f"nothing is kept: {'; '.join(made.reasons)}"
        )
    after = _measured(back, seen_of(back, check), wanted, check, made.fit)
    return replace(made, exact=exact, difference=difference, after=after)


@dataclass(frozen=True)
class _Again:
    """How a copy of a model is read back."""

    kind: Any
    tokenizer: Any
    processor: Any
    name: str
    attention: str
    device: "torch.device"

    def read(self, folder: Path) -> LoadedModel:
        """The copy, in float32, where the model itself was."""
        import torch

        model = self.kind.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval().to(self.device)
        model.config._attn_implementation = self.attention
        return from_objects(model, self.tokenizer, processor=self.processor, name=self.name)


def difference_of(wanted: "list[Tensor]", found: "list[Tensor]") -> float:
    """The largest difference of an output, as a share of the largest output; infinite where some are not finite."""
    top = max(float(one.abs().max()) for one in wanted)
    far = max(float((one - other).abs().max()) for one, other in zip(wanted, found, strict=True))
    return far / top if math.isfinite(far) and top > 0 else math.inf


def _about(made: Repaired, name: str) -> dict[str, Any]:
    """What the manifest says beside factors."""
    about: dict[str, Any] = {"model": name, "fit": made.fit, "margin": made.margin, "epsilons": made.epsilons}
    about |= {"rotation": {"matrix": MATRIX, "seed": made.provenance.seed}} if made.rotated else {}
    return about | {"exact": made.exact, "largest difference": made.difference}


def _card(made: Repaired, name: str) -> str:
    says = [f"Made from {markdown(name)}; `repair.json` says how."]
    if made.rotated:
        says.append(f"Its residual stream is turned by {MATRIX}, norms are folded, and weights are float32.")
    if made.exponent or made.channels:
        stream = f"its residual stream times 2^{made.exponent}" if made.exponent else "its residual stream as it was"
        parts = "".join(
            f", {count:,} channels of {kind} with a factor of their own" for kind, count in made.channels.items()
        )
        says.append(f"Rewritten by powers of two to fit {made.fit}: {stream}{parts}.")
    return " ".join([*says, "Outputs in float32 stay the same; hidden states do not."])


def _steps(progress: Callable[[str, int, int], None] | None) -> Callable[[str], None]:
    done = iter(range(3))

    def step(label: str) -> None:
        if progress is not None:
            progress(label, next(done), 3)

    return step


def run(session: Session, options: RepairCall) -> Repaired:
    """The repair that the command line asks for."""
    if session.load.dtype != "float32":
        raise BadInput(f"--dtype {session.load.dtype}: a copy keeps the type of its source; leave --dtype out")
    check_place(options.folder, overwrite=session.output.overwrite)
    texts = session.task_reading.read(offline=session.loading.offline)
    session.show = {"folder": options.folder}
    return repair(
        session.subject.model,
        options.folder,
        options,
        texts=texts,
        load=session.load,
        overwrite=session.output.overwrite,
        progress=session.progress,
    )
