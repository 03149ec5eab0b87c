"""From a model to a checked copy that fits another format.

found = repair("smollm2", Path("fits"), RepairOptions(fit="fp16"), texts=read_texts("texts.txt"))
found.exact                       # float32 outputs are equal bit for bit
"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlierlens.checkpoints import open_checkpoint
from outlierlens.data.texts import EXCERPT, Texts, read_texts
from outlierlens.detection.scan.measure import scan_live
from outlierlens.errors import BadFile, BadInput
from outlierlens.experiments.repair.epsilon import get_key
from outlierlens.experiments.repair.extent import (
    N_RANDOM,
    RANDOM_LENGTH,
    Extent,
    add_neurons,
    balanced_exponents,
    check_inputs,
    extent,
    neuron_exponents,
    neuron_pairs,
    outputs,
    stream_exponent,
)  # fmt: skip
from outlierlens.experiments.repair.folder import (
    check_place,
    check_room,
    check_unchanged,
    write_manifest,
    write_model,
)  # fmt: skip
from outlierlens.experiments.repair.formats import FLOAT32, in_format
from outlierlens.experiments.repair.options import RepairCall, RepairOptions
from outlierlens.experiments.repair.plan import Plan, stream_plan
from outlierlens.experiments.repair.result import Behaviour, Repaired
from outlierlens.experiments.repair.rewriting import change, repaired
from outlierlens.experiments.repair.rotation import MATRIX, TOLERANCE, rotate_
from outlierlens.models.folder import model_folder
from outlierlens.models.inputs import tokenizer_of
from outlierlens.models.load import STORED, LoadedModel, LoadOptions, from_objects, load_model
from outlierlens.results.safe_files import new_folder
from outlierlens.session import Session

if TYPE_CHECKING:
    from torch import Tensor

# (how far above the median neuron one may stay, the share in logarithms of what is above that comes down)
BALANCES = tuple((cap, share) for share in (0.5, 1.0) for cap in (1.0, 4.0, 16.0, 64.0, 256.0))
NEAR = 1e-5  # of the largest output: what a rewriting that is not exact may differ by in float32
N_TEXTS = 16
PACKED = ("Q", "IQ", "TQ", "MXFP", "F8", "I8", "U8", "INT8", "UINT8", "I4", "U4")  # how types of packed weights begin


def repair(
    name: str,
    folder: Path,
    options: RepairOptions,
    *,
    texts: Texts | None = None,
    load: LoadOptions | None = None,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Repaired:
    """Write the model `name` to `folder`, rewritten by powers of two so that it fits the format, and check it.

    Nothing is left in `folder` unless the copy, read back, gives the same outputs in float32: bit for bit, or within
    1e-5 of the largest where the family allows no more.

    Raises:
        BadInput: the folder exists or has no room, weights are quantized, the family cannot be rewritten, or nothing has to be.
        BadFile: damaged weights; or what was written reads back as another model.
    """
    import torch

    step = _steps(progress)
    load = replace(load or LoadOptions(), dtype="float32")
    check_place(folder, overwrite=overwrite)
    _refuse_packed(name, load)
    loaded = load_model(name, load)
    tokenizer_of(loaded)
    check_room(folder, loaded.model)
    texts = texts or read_texts(EXCERPT, limit=N_TEXTS)
    inputs = check_inputs(loaded, texts.texts, max_length=options.max_length, seed=options.seed)
    step("measured")
    fit = options.fit or FLOAT32
    seen = extent(loaded, inputs)
    wanted = outputs(loaded.model, inputs)
    before = _measured(loaded, seen, wanted, inputs, fit)
    config: Any = loaded.model.config
    tied = config.tie_word_embeddings
    if options.rotate:
        rotate_(loaded, lambda: torch.cat([one.flatten() for one in outputs(loaded.model, inputs)]), seed=options.seed)
        seen = extent(loaded, inputs)
    plan, exponent, neurons = plan_for(loaded, seen, options, inputs[::2])
    if options.rotate:
        plan.untie |= tied and not config.tie_word_embeddings
        plan.reasons += ("streams are turned, which rounds every weight once",)
    step("written")
    provenance = loaded.provenance(seed=options.seed)
    epsilons = {key: float(get_key(loaded.model.config, key)) for key in plan.epsilons}
    made = Repaired(
        provenance=provenance,
        folder=folder.name,
        fit=fit,
        margin=options.margin,
        rotated=options.rotate,
        exponent=exponent,
        n_neurons=sum(int((one != 0).sum()) for one in neurons.values()),
        epsilons={key: (value, value * 2.0 ** plan.epsilons[key]) for key, value in epsilons.items()},
        untied=plan.untie,
        n_changed=sum(1 for _ in loaded.model.parameters()) if options.rotate else len(plan.exponents),
        n_parameters=sum(1 for _ in loaded.model.parameters()),
        exact=True,
        reasons=plan.reasons,
        difference=0.0,
        n_texts=len(texts),
        n_tokens=sum(row["input_ids"].numel() for row in inputs),
        n_random=N_RANDOM * RANDOM_LENGTH,
        before=before,
        after=before,
        notes=loaded.notes,
    )
    # Turned weights are written as they were turned: rounded to a narrower type they would differ by more than is promised.
    stored = loaded if options.rotate else load_model(name, replace(load, dtype=STORED))
    del loaded
    source = model_folder(name, subfolder=load.subfolder, offline=load.offline, notice=load.notice)
    with new_folder(folder) as part:
        with ExitStack() as undo:
            change(undo, stored, plan)
            about = {"model": name, "fit": fit, "margin": options.margin, "epsilons": made.epsilons}
            about |= {"rotation": {"matrix": MATRIX, "seed": options.seed}} if options.rotate else {}
            write_model(part, stored, source, plan, _card(made, name))
            undo.pop_all()  # the model is thrown away
        if not options.rotate:
            check_unchanged(part, source, set(plan.exponents))
        step("checked")
        made = _checked(made, part, stored, inputs, wanted)
        write_manifest(part, plan, {**about, "exact": made.exact, "largest difference": made.difference})
        check_place(folder, overwrite=overwrite)  # once more: the checks took their time
    return made


def plan_for(
    loaded: LoadedModel, seen: Extent, options: RepairOptions, inputs: "list[dict[str, Any]]"
) -> "tuple[Plan, int, dict[str, Tensor]]":
    """(what changes, the stream's exponent, exponents of neurons) for what was seen of the model.

    Raises:
        BadInput: nothing has to change, or no factor passes through this family.
    """
    fit, margin = options.fit, options.margin
    if fit is None:
        return Plan(), 0, {}
    if fit == "int8" and not neuron_pairs(loaded):
        raise BadInput(
            f"{loaded.name}: no block has a linear whose neurons multiply what its last linear reads (a gated MLP, or a "
            f"ReLU), so no factor passes; smooth it with `outlierlens quant --smooth`"
        )
    exponent = stream_exponent(seen, fit, margin)
    neurons = _best_balance(loaded, seen, inputs) if fit == "int8" else neuron_exponents(seen, fit, margin)
    if not exponent and not neurons and not options.rotate:
        if fit == "int8":
            raise BadInput(
                f"{loaded.name}: no factors of neurons bring its outputs in int8 nearer to float32; see what costs with "
                f"`outlierlens quant`"
            )
        raise BadInput(
            f"{loaded.name} fits {fit} as it is: its largest value, {seen.largest:,.4g}, has room with --margin {margin}; use "
            f"it, or a larger --margin"
        )
    plan = stream_plan(loaded, exponent) if exponent else Plan()
    add_neurons(plan, loaded, neurons)
    return plan, exponent, neurons


def _best_balance(loaded: LoadedModel, seen: Extent, inputs: "list[dict[str, Any]]") -> "dict[str, Tensor]":
    """Of the factors of `BALANCES` those with which outputs in int8 are nearest to float32; {} where none is nearer.

    What leaves the inputs goes into the weights, which are rounded too: how much pays is measured, not assumed.
    """
    wanted = outputs(loaded.model, inputs)
    best, found = _distance(loaded, wanted, inputs), {}
    for cap, share in BALANCES:
        plan, exponents = Plan(), balanced_exponents(seen, cap, share)
        if not exponents:
            continue
        add_neurons(plan, loaded, exponents)
        with repaired(loaded, plan):
            distance = _distance(loaded, wanted, inputs)
        if distance < best:
            best, found = distance, exponents
    return found


def _distance(loaded: LoadedModel, wanted: "list[Tensor]", inputs: "list[dict[str, Any]]") -> float:
    """Mean |difference| of the outputs in int8 from float32."""
    with in_format(loaded, "int8") as model:
        pairs = zip(wanted, outputs(model, inputs), strict=True)
        return sum(float((one - other).abs().mean()) for one, other in pairs) / len(wanted)


def _refuse_packed(name: str, load: LoadOptions) -> None:
    where = {"revision": load.revision, "subfolder": load.subfolder, "token": load.token, "offline": load.offline}
    with open_checkpoint(name, **where) as checkpoint:  # type: ignore[arg-type]
        packed = next((one for one, info in checkpoint.tensors.items() if info.dtype.upper().startswith(PACKED)), "")
        if packed or checkpoint.config.get("quantization_config"):
            what = (
                f"{packed} is {checkpoint.tensors[packed].dtype}" if packed else "its config has a quantization_config"
            )
            raise BadInput(
                f"{name}: its weights are quantized ({what}), and their steps take no factor; repair the model that they were "
                f"made of, then quantize it"
            )


def _measured(
    loaded: LoadedModel, seen: Extent, wanted: "list[Tensor]", inputs: list[dict[str, Any]], fit: str
) -> Behaviour:
    import torch

    if fit == "int8":  # factors for it are chosen by every other row (`plan_for`); the rest judge
        wanted, inputs = wanted[1::2], inputs[1::2]
    with in_format(loaded, fit) as model:
        found = outputs(model, inputs)
    whole = torch.cat([one.flatten() for one in found]).double()
    right = torch.cat([one.flatten() for one in wanted]).double()
    finite = whole.isfinite()
    return Behaviour(
        layers=tuple(seen.layers),
        writes=seen.writes,
        neurons=max((float(one.max()) for one in seen.neurons.values()), default=0.0),
        spikes=seen.spikes,
        finite=float(finite.double().mean()),
        distance=float((whole - right)[finite].abs().mean()) if finite.any() else math.nan,
        named=tuple(sorted({one.dim for stack in scan_live(loaded).stacks for one in stack.outliers})),
    )


def _checked(
    made: Repaired, part: Path, stored: LoadedModel, inputs: list[dict[str, Any]], wanted: "list[Tensor]"
) -> Repaired:
    """`made` with what the folder gives, read back; raises where that is not what it must be."""
    import torch

    kind: Any = type(stored.model)
    model = kind.from_pretrained(part, dtype=torch.float32, local_files_only=True).eval()
    model.config._attn_implementation = stored.model.config._attn_implementation  # type: ignore[union-attr]
    back = from_objects(model, stored.tokenizer, name=stored.name)
    found = outputs(model, inputs)
    exact = all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
    difference = 0.0 if exact else difference_of(wanted, found)
    if not exact and not made.reasons:
        raise BadFile(
            f"{stored.name}: read back, its outputs differ by {difference:.3g} of the largest where they must be equal, so "
            f"nothing is kept; this family computes something that its row does not say"
        )
    most = TOLERANCE if made.rotated else NEAR
    if not difference <= most:
        raise BadInput(
            f"{stored.name}: rewritten, its outputs would differ by {difference:.3g} of the largest (at most {most:g}), so "
            f"nothing is kept: {'; '.join(made.reasons)}"
        )
    after = _measured(back, extent(back, inputs), wanted, inputs, made.fit)
    return replace(made, exact=exact, difference=difference, after=after)


def difference_of(wanted: "list[Tensor]", found: "list[Tensor]") -> float:
    """The largest difference of an output, as a share of the largest output; infinite where some are not finite."""
    top = max(float(one.abs().max()) for one in wanted)
    far = max(float((one - other).abs().max()) for one, other in zip(wanted, found, strict=True))
    return far / top if math.isfinite(far) and top > 0 else math.inf


def _card(made: Repaired, name: str) -> str:
    says = [f"Made from `{name}`; `repair.json` says how."]
    if made.rotated:
        says.append(f"Its residual stream is turned by {MATRIX}, norms are folded, and weights are float32.")
    if made.exponent or made.n_neurons:
        stream = f"its residual stream times 2^{made.exponent}" if made.exponent else "its residual stream as it was"
        says.append(
            f"Rewritten by powers of two to fit {made.fit}: {stream}, {made.n_neurons:,} neurons with a factor of their own."
        )
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
    texts, _ = session.texts()
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
