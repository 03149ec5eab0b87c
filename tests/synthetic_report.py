"""Plausible synthetic results for the charts and the report: `report_data()` looks like SmolLM2-135M's."""

from dataclasses import replace

import numpy as np

from outlierlens.ablation.controls import times
from outlierlens.ablation.fill import Blank, FilledPassage
from outlierlens.ablation.study import Control, Measurement
from outlierlens.analyses.ablate import Ablation, Damage, Reply
from outlierlens.analyses.observe import Observation, observed_rows
from outlierlens.analyses.scan import Scan, scan_found
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.analyses.sweep.rows import Cost, Effect, Null
from outlierlens.analyses.track import Track
from outlierlens.detection.observed import Passage, StackObservation, Statistics
from outlierlens.detection.rules import ActivationOutlier, LastOperation, Rule, find
from outlierlens.detection.weights import MAP_CELLS, StackScan
from outlierlens.report import ReportData
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate

NEEDLES = (100, 247, 507)
TOKENS = ("<|im_start|>", "The", " Amazon", " rain", "forest", " covers", " much", " of", " the", " basin", ".", " It")
PROVENANCE = Provenance(
    model="smollm2-135m",
    fingerprint="9f" * 32,
    command="outlierlens report smollm2-135m -o runs/smollm2",
    seed=0,
    libraries={"python": "3.11.9", "numpy": "2.4.6"},
    created="2025-01-01T00:00:00+00:00",
    dtype="bfloat16",
)


def stack_scan(needles=NEEDLES, *, n_layers=30, hidden_size=576, bias=False, height=6.0, columns=None, seed=0):
    """A stack whose needles stand at about `height` sigma in two layers of three."""
    random = np.random.default_rng(seed)

    def values():
        array = random.normal(1.0, 0.1, (n_layers, hidden_size))
        for number, dim in enumerate(needles):
            layers = np.arange(n_layers)[(np.arange(n_layers) + number) % 3 != 0]
            array[layers, dim] = 1 + 0.1 * height * random.uniform(1.0, 2.0, len(layers)) * (-1) ** number
        return array

    measured = LastOperation(values(), values() if bias else None)
    outliers = find(measured, Rule())
    size = np.abs(measured.z_scale).max(axis=0)
    dims = np.arange(hidden_size) if columns is None else np.sort(np.argsort(-size)[:columns])
    return StackScan(
        stack="model",
        site="output.LayerNorm" if bias else "mlp.down_proj",
        measure="scale of the norm" if bias else "L2 norm of the weights that write to the dimension",
        norm_site="stream" if bias else "read",
        n_layers=n_layers,
        n_run=n_layers,
        hidden_size=hidden_size,
        outliers=outliers,
        n_sigma=3.0,
        values_read=n_layers * hidden_size * 1536,
        notes=() if bias else ("mlp.down_proj has no bias here: the rule rests on the scale alone",),
        map_dims=tuple(dims.tolist()),
        z_scale=measured.z_scale[:, dims].astype(np.float32),
        z_bias=np.empty((0, 0)) if measured.z_bias is None else measured.z_bias[:, dims].astype(np.float32),
    )


def scan(*stacks, model="smollm2-135m", rule=None):
    return scan_found(
        Provenance(model, "9f" * 32, "outlierlens scan " + model),
        stacks or (stack_scan(),),
        model_type="llama",
        source="gguf",
        rule=rule or Rule(),
        view="last",
        bytes_read=53_084_160,
        total_bytes=271_000_000,
    )


def statistics(n_layers, dims, *, massive=(507, 22_500.0), seed=1, tokens=TOKENS):
    random = np.random.default_rng(seed)
    rows, columns = n_layers + 1, len(dims)
    growth = np.linspace(0.3, 6, rows)[:, None]  # [layer, 1]
    mean = random.normal(0, 0.25, (rows, columns)) * growth
    std = random.uniform(0.5, 1.0, (rows, columns)) * growth
    largest = np.abs(mean) + std * random.uniform(3.5, 5.5, (rows, columns))
    names = [[tokens[1 + (c + r) % (len(tokens) - 1)] for c in range(columns)] for r in range(rows)]
    argmin, argmax = np.zeros((rows, columns)), random.dirichlet(np.full(columns, 0.2), rows)
    argmin[:] = random.dirichlet(np.full(columns, 0.2), rows)
    position = random.integers(1, 60, (rows, columns))
    if massive[0] in dims:
        c = list(dims).index(massive[0])
        largest[2:-1, c] = np.geomspace(20, massive[1], 6)[np.minimum(np.arange(rows - 3), 5)]
        mean[2:-1, c] = largest[2:-1, c] / 60
        std[2:-1, c] = largest[2:-1, c] / 9
        position[2:-1, c] = 0
        for r in range(2, rows - 1):
            names[r][c] = tokens[0]
        argmax[2:-1, c] = np.linspace(0.1, 0.97, rows - 3)
    return Statistics(
        tokens=np.full(rows, 1234),
        mean=mean,
        std=std,
        skewness=np.zeros_like(mean),
        kurtosis=np.full_like(mean, 3.0),
        min=-largest * 0.9,
        max=largest,
        abs_max=largest,
        abs_max_token=tuple(tuple(row) for row in names),
        abs_max_position=position,
        abs_max_text=random.integers(0, 16, (rows, columns)),
        argmin_share=argmin,
        argmax_share=argmax,
        sigma_token_share=argmax * 0.9,
        sigma_input_share=np.minimum(1.0, argmax * 1.1),
        quantiles=np.zeros((rows, columns, 0)),
        median_abs=(0.6 * growth)[:, 0],
    )


def observation(*, n_layers=30, hidden_size=576, columns=None, massive=(507, 22_500.0), tokens=TOKENS, seed=2):
    random = np.random.default_rng(seed)
    dims = tuple(range(hidden_size)) if columns is None else tuple(sorted({*range(columns), *NEEDLES}))
    layers = ("embeddings", *map(str, range(n_layers)))
    found = ActivationOutlier("massive", massive[0], layers[5:-1], tuple([massive[1]] * (n_layers - 5)))
    views = {name: statistics(n_layers, dims, massive=massive, tokens=tokens) for name in ("all", "without_special")}
    stack = StackObservation("model", layers, hidden_size, dims, views, (found,) if massive[1] > 100 else (), 0.01)
    wide = dims[:1024]
    states = random.normal(0, 2, (len(layers), len(tokens), len(wide)))
    for dim, value in ((massive[0], massive[1]), (100, -60.0), (247, 38.0)):
        if dim in wide:
            states[3:-1, :, wide.index(dim)] += min(30.0, value) * random.uniform(
                0.3, 1.0, (len(layers) - 4, len(tokens))
            )
            states[3:-1, 0, wide.index(dim)] = value
    return Observation(
        provenance=Provenance("smollm2-135m", "9f" * 32),
        about=About(data="excerpt", data_digest="ab" * 32, n_texts=16, n_tokens=1234, max_length=128),
        n_special=16,
        n_sigma=3.0,
        stacks=(stack,),
        passages=(Passage("model", tokens, layers, wide, states.astype(np.float32)),),
        **observed_rows((stack,)),
    )


def condition(label, dims, value, *, family, intact=3.1, loss=True, mode=None):
    change, spread = value - intact, 0.05
    width = 0.0 if label == "intact" else 0.04 * abs(change) + 0.001
    plan = {layer: tuple(dims) for layer in range(30)} if dims else {}
    named = {} if mode is None else {"mode": mode}
    return (Measurement if mode is None else Damage)(
        family=family,
        label=label,
        dims=", ".join(map(str, dims)),
        value=Estimate(value, value - spread, value + spread),
        perplexity=float(np.exp(value)) if loss else None,
        change=Estimate(change, change - width, change + width),
        n_set=138_240 if dims else None,
        plan=plan,
        also={},
        per_text=(value,) * 16,
        **named,
    )


def family(kind, changes, chosen, closeness=None):
    figures = [float(f) for f in (np.median(changes), np.percentile(changes, 95), np.mean(changes))]
    ratios = [times(chosen.value, one) for one in figures]
    p = float((1 + (np.array(changes) >= chosen.value).sum()) / (1 + len(changes))) if kind == "random" else None
    return Control(
        family=kind, n=len(changes), median=figures[0], percentile_95=figures[1], mean=figures[2], times_median=ratios[0],
        times_percentile_95=ratios[1], times_mean=ratios[2], p=p, closeness=closeness, change=chosen, sets=tuple(changes),
    )  # fmt: skip


def damage(*, chosen=6.9, intact=3.1, random=0.004, matched=0.35, task="causal loss", dims=NEEDLES, fills=True):
    generator = np.random.default_rng(4)
    loss = task != "output change"
    random_changes = (random * generator.standard_normal(19) + random / 2).tolist()
    matched_changes = (matched * generator.uniform(0.5, 1.5, 5)).tolist()
    found = condition("chosen", dims, intact + chosen, family="chosen", intact=intact, loss=loss, mode="zeroed_weights")
    sets = [
        condition(
            f"{kind} {i}", tuple(generator.choice(576, 3).tolist()), intact + one, family=kind, intact=intact, loss=loss
        )
        for kind, changes in (("random", random_changes), ("matched", matched_changes))
        for i, one in enumerate(changes)
    ]
    return Ablation(
        provenance=PROVENANCE,
        about=About(
            data="excerpt", data_digest="ab" * 32, task=task, unit="nats per token" if loss else "cosine distance",
            stack="model", layers=tuple(range(30)), dims=tuple(map(str, dims)), n_texts=16, n_tokens=1234,
        ),
        conditions=(condition("intact", (), intact, family="intact", intact=intact, loss=loss, mode=""), found),
        families=(family("random", random_changes, found.change), family("matched", matched_changes, found.change)),
        controls=tuple(sets),
        replies=replies(dims, continued=task == "causal loss") if fills else (),
    )  # fmt: skip


def replies(dims=NEEDLES, *, continued=True):
    pieces = ("The Amazon rainforest covers most of the ", " basin of South ", ", and it is home to many ", ".")
    original = ("Amazon", "America", "species")

    def passage(label, off, words, kinds, text):
        blanks = tuple(
            Blank(position, word, intact, real, kind)
            for position, (word, intact, real, kind) in enumerate(zip(words, original, original, kinds, strict=True))
        )
        fill = FilledPassage(label, off, pieces, blanks)
        begins, text = ("The Amazon rainforest", text) if continued else (None, None)
        return Reply(
            off=label, dims=", ".join(map(str, off)), filled=fill.line, begins=begins, continued=text, fill=fill,
            plan={0: off} if off else {},
        )  # fmt: skip

    return (
        passage("intact", (), original, ("same",) * 3, "covers most of the basin."),
        passage("random", (3, 77, 410), ("Amazon", "America", "animals"), ("same", "same", "other"), "is large."),
        passage("chosen", tuple(dims), ("the", "##ly", ","), ("other", "nonsense", "nonsense"), "A A\n\tA"),
    )


def report_data(*, scan_result=None, observed=True, damages=None, sweeps=(), tracks=(), more=(), **changes):
    seen = observation() if observed is True else observed
    off = (damage(),) if damages is None else damages
    findings = (scan_result or scan(), *((seen,) if seen else ()), *off, *sweeps, *tracks, *more)
    return ReportData(provenance=PROVENANCE, findings=findings, **changes)


def changed(data, *, more=(), provenance=None, notes=None, **kinds):
    """A report with other findings of these kinds, `observation=None` for none, and with `more`."""
    findings = list(data.findings)
    of = {"scan": Scan, "observation": Observation, "damages": Ablation, "sweeps": Sweep, "tracks": Track}
    for name, kind in of.items():
        if name in kinds:
            new = kinds.pop(name)
            several = new if isinstance(new, tuple) else () if new is None else (new,)
            findings = [one for one in findings if not isinstance(one, kind)] + [*several]
    assert not kinds
    notes = data.notes if notes is None else notes
    return ReportData(provenance or data.provenance, (*findings, *more), notes)


def large_report():
    """80 layers × 8,192 dimensions with everything that grows with them, as many columns kept as a scan keeps."""
    shape = {"n_layers": 80, "hidden_size": 8192}
    stack = stack_scan(columns=MAP_CELLS // (2 * 80), bias=True, **shape)
    layers = layer_sweep(tuple(range(9, 8192, 45))[:60] + NEEDLES, n_layers=80, width=8192)
    return report_data(
        scan_result=scan(stack),
        observed=observation(columns=1200, **shape),
        sweeps=(sweep(8192, n_layers=80), layers),
    )


# Sweeps

STRONG = {507: 8.4, 100: 0.29, 247: 0.16, 31: 0.11}


def effect(dim, change, *, window="all layers", layers=tuple(range(30)), half=0.01, n_texts=38, **more):
    """The effect of one dimension, or of a tuple of them."""
    dims = dim if isinstance(dim, tuple) else (dim,)
    where = "" if window == "all layers" else f" in {window}" if window.startswith("layer") else f" {window}"
    half = max(half, 0.05 * abs(change)) if np.isfinite(change) else np.inf
    return Effect(
        label=", ".join(map(str, dims)) + where,
        dims=dims,
        by_layer={},
        window=window,
        layers=layers,
        change=Estimate(change, change - half, change + half),
        found=set(dims) <= set(NEEDLES),
        spread=half * n_texts**0.5 / 2,
        n_texts=n_texts,
        stopped="precise",
        n_parameters=4608,
        **more,
    )


def null(of, changes, kind="random", *, n_texts=16):
    changes = tuple(sorted(float(change) for change in changes))
    mean = float(np.mean(changes))
    change = of.change.value
    p = (1 + sum(one >= change for one in changes)) / (1 + len(changes))
    return Null(
        label=of.label,
        window=of.window,
        kind=kind,
        n=len(changes),
        n_texts=n_texts,
        change=change,
        changes=changes,
        p=p,
        q=p,
        median=float(np.median(changes)),
        percentile_95=float(np.percentile(changes, 95)),
        mean=mean,
        times_mean=change / mean if mean > 0 else None,
        closeness=0.93 if kind == "matched" else None,
    )


def swept(effects, nulls=(), *, windows="all", found=NEEDLES, width=576, n_layers=30, **changes):
    spent = sum(one.n_texts for one in effects)
    made = Sweep(
        provenance=PROVENANCE,
        about=About(
            data="wikitext-2 test", data_digest="cd" * 32, task="causal loss", unit="nats per token", stack="model",
            layers=tuple(range(n_layers)), n_texts=2261, n_tokens=289_408,
        ),
        text="block of 128 tokens",
        mode="zeroed_weights",
        n_layers=n_layers,
        width=width,
        windows=windows,
        method="adaptive",
        tolerance=0.01,
        relative=0.1,
        top_k=5,
        level=0.95,
        widening=(3.0, 30.0),
        look_level=0.991,
        looks=(8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 2261),
        intact=Estimate(3.31, 3.27, 3.35),
        found=found,
        separated=True,
        effects=tuple(effects),
        nulls=tuple(nulls),
        cost=Cost(2261, spent, 3200, 256, 2261 + spent + 3200 + 768, 2261 * len(effects), 3_000_000),
    )  # fmt: skip
    about = {name: changes.pop(name) for name in ("task", "unit", "metric", "n_texts", "kind") if name in changes}
    return replace(made, **{"about": replace(made.about, **about), **changes})


def sweep(width=576, *, seed=6, strong=STRONG, **changes):
    """A whole sweep of one window: few dimensions far above a lognormal rest, p and q by rank, gradients, nulls."""
    random = np.random.default_rng(seed)
    values = random.lognormal(np.log(0.02), 0.5, width) - 0.006 + random.normal(0, 0.004, width)
    for dim, change in strong.items():
        values[dim] = change
    estimates = np.sign(values) * np.abs(values) ** 0.9 * random.lognormal(-0.2, 0.35, width) * 0.7
    estimates[[d for d in strong if strong[d] > 1]] = 0.4
    order = np.sort(values)
    p = np.array([(np.sum(order >= v)) / width for v in values])  # itself counts as the 1 +
    q = np.minimum.accumulate((np.sort(p) * width / np.arange(1, width + 1))[::-1])[::-1]
    found = changes.get("found", NEEDLES)
    rest = values[[d not in found for d in range(width)]].mean()
    by_p = dict(zip(np.sort(p).tolist(), q.tolist(), strict=True))
    effects = [
        effect(
            dim,
            float(values[dim]),
            n_texts=int(random.choice([16, 24, 32, 48])),
            first_order=float(estimates[dim]),
            p=float(p[dim]),
            q=by_p[float(p[dim])],
            q_found=0.005 if dim in found else None,
            times_random=float(values[dim] / rest),
        )
        for dim in range(width)
    ]
    nulls = []
    if len(found) > 1:
        effects.append(effect(tuple(found), 9.1))
        nulls = [
            null(effects[-1], random.lognormal(np.log(0.06), 0.4, 200)),
            null(effects[-1], random.uniform(0.3, 0.9, 19), "matched"),
        ]
    return swept(effects, nulls, width=width, **changes)


def layer_sweep(dims=tuple(range(9, 589, 45))[:13] + NEEDLES, *, n_layers=30, width=576, windows="single", seed=7):
    """Single layers (or layers from, or up to, each) × dimensions, with the found set in every window."""
    random = np.random.default_rng(seed)
    effects, nulls = [], []
    for layer in range(n_layers):
        window = {"single": f"layer {layer}", "from": f"from layer {layer}", "upto": f"up to layer {layer}"}[windows]
        layers = {"single": (layer,), "from": tuple(range(layer, n_layers)), "upto": tuple(range(layer + 1))}[windows]
        share = {
            "single": np.exp(-((layer - 3) ** 2) / 4),
            "from": 1 - layer / n_layers,
            "upto": (layer + 1) / n_layers,
        }
        for dim in sorted(dims):
            change = STRONG.get(dim, 0.0) * share[windows] * 0.6 + random.normal(0.001, 0.003)
            effects.append(effect(dim, float(change), window=window, layers=layers, half=0.004))
        together = effect(NEEDLES, float(6 * share[windows] + 0.02), window=window, layers=layers)
        effects.append(together)
        nulls.append(null(together, random.lognormal(np.log(0.01), 0.4, 19)))
    return swept(effects, nulls, windows=windows, width=width, n_layers=n_layers)
