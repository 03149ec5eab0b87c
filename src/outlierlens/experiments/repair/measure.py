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
from outlierlens.errors import BadFile, BadInput
from outlierlens.experiments.repair.epsilon import get_key
from outlierlens.experiments.repair.extent import (
    N_RANDOM,
    RANDOM_LENGTH,
    Extent,
    add_neurons,
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
from outlierlens.experiments.repair.formats import in_format
from outlierlens.experiments.repair.options import RepairCall, RepairOptions
from outlierlens.experiments.repair.plan import Plan, stream_plan
from outlierlens.experiments.repair.result import Behaviour, Repaired
from outlierlens.experiments.repair.rewriting import change
from outlierlens.models.folder import model_folder
from outlierlens.models.inputs import tokenizer_of
from outlierlens.models.load import STORED, LoadedModel, LoadOptions, from_objects, load_model
from outlierlens.results.safe_files import new_folder
from outlierlens.session import Session

if TYPE_CHECKING:
    from torch import Tensor

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
    seen = extent(loaded, inputs)
    wanted = outputs(loaded.model, inputs)
    plan, exponent, neurons = plan_for(loaded, seen, options)
    before = _measured(loaded, seen, wanted, inputs, options.fit)
    step("written")
    provenance = loaded.provenance(seed=options.seed)
    epsilons = {key: float(get_key(loaded.model.config, key)) for key in plan.epsilons}
    made = Repaired(
        provenance=provenance,
        folder=folder.name,
        fit=options.fit,
        margin=options.margin,
        exponent=exponent,
        n_neurons=sum(int((one != 0).sum()) for one in neurons.values()),
        epsilons={key: (value, value * 2.0 ** plan.epsilons[key]) for key, value in epsilons.items()},
        untied=plan.untie,
        n_changed=len(plan.exponents),
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
    del loaded
    stored = load_model(name, replace(load, dtype=STORED))
    source = model_folder(name, subfolder=load.subfolder, offline=load.offline, notice=load.notice)
    with new_folder(folder) as part:
        with ExitStack() as undo:
            change(undo, stored, plan)
            about = {"model": name, "fit": options.fit, "margin": options.margin, "epsilons": made.epsilons}
            write_model(part, stored, source, plan, _card(made, name))
            undo.pop_all()  # the model is thrown away
        check_unchanged(part, source, set(plan.exponents))
        step("checked")
        made = _checked(made, part, stored, inputs, wanted)
        write_manifest(part, plan, {**about, "exact": made.exact, "largest difference": made.difference})
        check_place(folder, overwrite=overwrite)  # once more: the checks took their time
    return made


def plan_for(loaded: LoadedModel, seen: Extent, options: RepairOptions) -> "tuple[Plan, int, dict[str, Tensor]]":
    """(what changes, the stream's exponent, exponents of neurons) for what was seen of the model.

    Raises:
        BadInput: nothing has to change, or no factor passes through this family.
    """
    fit, margin = options.fit, options.margin
    exponent, neurons = stream_exponent(seen, fit, margin), neuron_exponents(seen, fit, margin)
    if fit == "int8" and not neuron_pairs(loaded):
        raise BadInput(
            f"{loaded.name}: no block has a linear whose neurons multiply what its last linear reads (a gated MLP, or a "
            f"ReLU), so no factor passes; smooth it with `outlierlens quant --smooth`"
        )
    if not exponent and not neurons:
        room = "no neuron stands out" if fit == "int8" else f"its largest value, {seen.largest:,.4g}, has room"
        raise BadInput(
            f"{loaded.name} fits {fit} as it is: {room} with --margin {margin}; use it, or a larger --margin"
        )
    plan = stream_plan(loaded, exponent) if exponent else Plan()
    add_neurons(plan, loaded, neurons)
    return plan, exponent, neurons


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

    found = outputs(in_format(loaded, fit), inputs)
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
    if not difference <= NEAR:
        raise BadInput(
            f"{stored.name}: rewritten, its outputs would differ by {difference:.3g} of the largest (at most {NEAR:g}), so "
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
    stream = f"its residual stream times 2^{made.exponent}" if made.exponent else "its residual stream as it was"
    return (
        f"`{name}`, rewritten by powers of two to fit {made.fit}: {stream}, {made.n_neurons:,} neurons with a factor of their "
        f"own. `repair.json` holds every factor. Outputs in float32 stay the same; hidden states do not."
    )


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
