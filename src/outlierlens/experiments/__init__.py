"""The table of experiments: from a row come its command with help and limits, its kind of result and its place in the list.

`outlierlens.experiment` says what a row holds.
"""

from outlierlens.experiment import GROUP_NAMES, Experiment
from outlierlens.options import REQUIRED, Other

__all__ = [
    "BY_NAME",
    "BY_RESULT",
    "EXPERIMENTS",
    "GROUP_NAMES",
    "Experiment",
]

MODELS = ("options", "output", "source")
CONDITIONS = ("subject", "task", "options", "output", "loading")
TOKENS = ("subject", "reading", "options", "vectors", "output", "loading")
REPAIRED = ("subject", "reading", "options", "vectors", "fitting", "output", "loading")
WEIGHTS = ("subject", "options", "output", "source")
SPLITS = ("subject", "splits", "options", "output", "loading")
VECTORS = ("subject", "options", "vectors", "fitting", "output", "loading")
LIMIT = Other(help="Use the first N texts. Default: 16; --thorough: 64.")
TEXT = Other(REQUIRED, help="Text to run the model on: a file or a hub id.")
# Of commands that read texts, pictures or recordings, whatever their labels.
UNLABELLED: dict[str, Other | None] = dict.fromkeys(
    ("task", "measure", "metric", "labels", "split", "pair_column", "label_column")
)
# Of commands that keep what they measure in a run directory.
RUN_DIRECTORY: dict[str, Other | None] = {
    "chart": None,
    "overwrite": Other(help="Start again: drop what was measured."),
}
GLUE_MODEL: dict[str, Other | None] = {
    "model": Other(help="Pre-trained model: sample, directory or hub id."), "verbose": None,
    "output": Other(help="Run directory. Default: runs/MODEL-PAPER."),
}  # fmt: skip
GLUE = (
    "fine-tune, switch them off without training again, beside random sets.\n\n"
    "Everything is kept in the run directory as it is made: the same command continues a stopped run."
)
WHOLE: dict[str, Other | None] = dict.fromkeys(("limit", "measure", "labels", "split", "max_seconds"))  # none of SPLITS

# --- the table -------------------------------------------------------------------------------------------------------

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "scan", "find",
        "Find outlier dimensions in the weights of one or more models, without loading them.",
        home="detection.scan", odd=True, python="scan", options="Scanning", takes=MODELS,
        shared={"chart": None, "no_progress": None}, result="Scan", also=("Scans",),
        examples=(
            "scan mini-planted  # the dimensions that the weights name",
            "scan mini-planted mini-bert --rule puccetti  # two models by another rule",
        ),
    ),
    Experiment(
        "lookup", "find",
        "Look a model up in an atlas, offline: its outlier dimensions, its likely parent, and what they cost."
        "\n\nMODEL is a name in the atlas, or any model: of that the weights are read that `scan` reads, and its norms.",
        home="experiments.lookup", python="lookup", needs=("atlas",), options="LookupOptions", takes=WEIGHTS,
        shared={"chart": None, "no_progress": None, "arch": None, "family": None}, result="Lookup",
        examples=("lookup smollm2-135m  # by name", "lookup mini-planted  # whose norms are read"),
    ),
    Experiment(
        "compare", "find",
        "Compare the outliers of a model and its fine-tuned (or later) version: which stayed, moved, came and went.\n\n"
        "With --values, also which sensitive values differ, as `verify` would: exit code 3 if any moved. Exit code 2: "
        "nothing could be compared.",
        home="experiments.compare", needs=("integrity",), python="compare",
        options="CompareOptions", takes=MODELS,
        shared={"subfolder": None, "chart": None, "no_progress": None, "verbose": Other(help="With --values: all that moved.")},
        result="Comparison", gate="values_moved",
        examples=(
            "compare mini-bert mini-planted  # what stayed, came and went",
            "compare mini-planted mini-planted --values  # and whether sensitive values differ",
        ),
    ),
    Experiment(
        "atlas build", "find",
        "Find the outlier dimensions of thousands of models on a hub, as `scan` does; stopped builds go on.\n\n"
        "A model that cannot be read gets a row with the reason. The same command looks only at what has no row yet.",
        home="experiments.atlas", odd=True, writes="folder", options="BuildCall", takes=MODELS, needs=("range", "sweep"),
        shared=dict.fromkeys(("chart", "overwrite", "verbose", "arch", "family", "revision", "subfolder", "offline"))
        | {"output": Other(REQUIRED, help="Folder of the atlas.")},
        examples=(
            "atlas build names.txt -o atlas  # a name per line",
            "atlas build names.txt -o atlas  # once more: only what has no row yet",
        ),
    ),
    Experiment(
        "atlas page", "find",
        "Write a searchable site of an atlas: by model, family and dimension; it loads nothing from elsewhere.",
        home="experiments.atlas", measure=".command:page", options="PageCall", takes=("options", "output"), odd=True,
        needs=("range", "sweep"), writes="folder",
        shared=dict.fromkeys(("chart", "json", "verbose", "no_progress"))
        | {"output": Other(help="Folder of the site. Default: site, in the atlas's folder.")},
        examples=("atlas page atlas", "atlas page atlas -o site"),
    ),
    Experiment(
        "fingerprint", "guard",
        "Record the sensitive values of a model, so that `verify` can check copies.",
        home="experiments.integrity", measure=".fingerprint", python=".fingerprint:fingerprint",
        options="FingerprintOptions", takes=WEIGHTS, shared=dict.fromkeys(("chart", "no_progress")),
        result="Fingerprint",
        examples=(
            "fingerprint mini-planted -o print.json",
            "fingerprint mini-planted --dims 8,24 --deep -o deep.json  # two dimensions, every value of theirs",
        ),
    ),
    Experiment(
        "verify", "guard",
        "Find the sensitive values that moved since the fingerprint, and whether they are the dangerous ones.\n\n"
        "Exit code 0: it matches; 3: it does not; 2: there is nothing to verify (an unusable baseline or model).",
        home="experiments.integrity", measure=".verify", python=".verify:verify", options="VerifyOptions",
        takes=WEIGHTS, shared=dict.fromkeys(("chart", "no_progress")), result="Verification",
        gate="failed",
        examples=(
            "verify mini-planted --baseline print.json",
            "verify mini-planted --baseline deep.json --deep",
        ),
    ),
    Experiment(
        "observe", "find",
        "Stream texts (or images, or recordings) through the model once; report statistics of every layer and dimension.",
        home="detection.observe", python="observe", options="Asked",
        takes=CONDITIONS,
        shared=UNLABELLED | {
            "chart": None, "verbose": Other(help="Also list dimensions far from the mean, and the data's SHA-256."),
        },
        result="Observation",
        examples=(
            "observe mini-planted --data reviews --limit 8",
            "observe mini-planted --data reviews --limit 8 --stack mlp  # neurons of the MLPs",
        ),
    ),
    Experiment(
        "ablate", "switch off",
        "Switch dimensions off and measure what breaks, against random and matched controls.\n\n"
        "Several modes (--modes all) tell a fixed bias from information: zero, means, shuffled, scaled, beside random "
        "dimensions. With --predictions COUNTS, what the model predicts: frequent tokens, or rare ones? What is measured is "
        "kept in runs/MODEL-ablate: the same command goes on.",
        home="analyses.ablate", places=("save",), python="ablate", options="Command", takes=CONDITIONS,
        shared={
            "limit": Other(
                help="Use the first N texts. Default: 16 (several modes: 32; --thorough: 64; --predictions: 200); "
                "of a labelled task all.",
            ),
            "verbose": Other(help="Show every control set too."),
        },
        result="Ablation", also=("analyses.predictions:Predictions",),
        examples=(
            "ablate mini-planted --dims 8,24 --data reviews --limit 4 --random 3 --matched 0",
            "ablate mini-planted --dims 8 --modes zero --data reviews --limit 4 --random 3 --matched 0  # the running state",
            "ablate mini-planted --dims 8 --modes all --data reviews --limit 4 --random 1 -o modes.json  # bias or information",
            "ablate mini-planted --dims 8 --predictions counts.parquet --data texts.txt --limit 4 --random 1 --bootstrap 20",
        ),
    ),
    Experiment(
        "sweep", "switch off",
        "Switch off every dimension in turn (or sets, or layer by layer) and rank what breaks, with intervals.\n\n"
        "Every measurement is kept in the run directory as it is made: the same command continues a stopped run.",
        home="experiments.sweep", odd=True, writes="folder", python="sweep", options="SweepCall", takes=CONDITIONS,
        shared={
            "output": Other(help="Run directory. Default: runs/MODEL-sweep."),
            "overwrite": Other(help="Start again: drop what was measured."),
            "verbose": Other(help="More rows in the tables."),
        },
        result="Sweep",
        examples=(
            "sweep mini-planted --dims 8,24 --data reviews --limit 4 --random 2 --matched 0 --gradients 0 -o swept",
            "sweep mini-planted --dims 8 --windows single --data reviews --limit 4 --random 2 --matched 0 --gradients"
            " 0 -o by-layer  # off in one layer at a time",
        ),
    ),
    Experiment(
        "prune check", "compress",
        "Find the positions that pruning removed in half of the layers, and the outliers among them; needs no torch for "
        "safetensors and .npz.\n\n"
        "Exit code 0: the constraint holds; 3: it is broken; 2: it could not be checked.",
        home="analyses.prune", python="prune_check", measure=":run_check", options="PruneCheckCall", takes=MODELS,
        shared={"no_progress": None}, result="PruneCheck", gate="failed",
        examples=(
            "prune check mini-bert mini-planted  # did a position lose all its values?",
            "prune check mini-planted mini-planted --dims 8 --only-outliers",
        ),
    ),
    Experiment(
        "prune protect", "compress",
        "Write what another tool should leave alone, in the form it reads: Python or YAML, ready to paste.",
        home="analyses.prune_lists", python="protect", odd=True, options="ProtectCall", takes=WEIGHTS,
        shared=dict.fromkeys(("chart", "json", "verbose", "no_progress"))
        | {"output": Other(help="Write the list to exactly this file.")},
        examples=(
            "prune protect mini-planted --for torch-pruning",
            "prune protect mini-planted --for llm-compressor --dims 8,24 -o ignore.yaml",
        ),
    ),
    Experiment(
        "prune test", "compress",
        "Measure the loss when the same number of weights is pruned by magnitude, at one position, and at controls.",
        home="analyses.prune", python="prune_test", measure=":run_test", options="PruneTestOptions",
        takes=("subject", "reading", "options", "output", "loading"), shared={"limit": Other(24)}, result="PruneTest",
        examples=(
            "prune test mini-planted --data reviews --limit 4 --random 1 --scattered 0 --matched 0",
            "prune test mini-planted --dims 8 --data reviews --limit 4 --random 2 --scattered 1 --matched 0",
        ),
    ),
    Experiment(
        "track", "train",
        "Find when dimensions became outliers over a training run, and where the loss was then.\n\n"
        "Of each checkpoint only the norm vectors are read.",
        home="experiments.track", odd=True, writes="folder", python="track", options="TrackCall", takes=MODELS,
        shared={
            "chart": Other(help="Draw all panels to this file: .png, .svg, .html or .json."), "revision": None,
            "output": Other(help="Write track.json and a report into this folder."), "verbose": None,
        },
        result="Track", picture="emergence",
        examples=(
            "track mini-bert  # its training is recorded in the package",
            "track mini-bert --n-sigma 2.5 -o tracked",
        ),
    ),
    Experiment(
        "pretrain", "train",
        "Pre-train a masked language model by recipe, with its outlier dimensions watched; stopped runs continue.\n\n"
        "Several processes: `accelerate launch -m outlierlens pretrain …`.",
        home="training.pretrain", python=".loop:pretrain", odd=True, options="PretrainOptions", takes=("options",
        "output", "loading"), writes="folder",
        shared=dict.fromkeys(("chart", "verbose", "arch", "family", "revision", "subfolder", "token", "tokenizer", "dtype",
                              "trust_remote_code")) | {
            "output": Other(help="Run directory. Default: runs/RECIPE-seed-N."),
            "overwrite": Other(help="Remove the run of another recipe from it."),
        },
        result="Outcome",
        examples=(
            "pretrain --list",
            "pretrain mini-short --set tokenizer.source='mini-planted' --set model.layers=2 --set model.width=16 "
            "--set data.length=16 --set data.source=\"['texts.txt']\" --set data.validation=0.3 --set training.batch=4 "
            "--steps 2 -o run",
        ),
    ),
    Experiment(
        "outcomes", "train",
        "Compare pre-training runs, seeds of one recipe together: loss, outlier dimensions, damage, INT8.",
        home="experiments.outcomes", options="training.pretrain.options:OutcomesOptions", takes=("options", "output"),
        shared=dict.fromkeys(("chart", "verbose", "no_progress")), result="training.pretrain.result:Outcomes",
        needs=("sweep",),
        examples=(
            "outcomes run",
            "outcomes run --json",
        ),
    ),
    Experiment(
        "finetune", "train",
        "Fine-tune a model on a labelled task, the best epoch of each seed kept; stopped runs continue.\n\n"
        "With --recover dimensions of a fine-tuned model go off, and it is fine-tuned again, free and held at zero, against "
        "random ones.",
        home="training.finetune", python=".loop:finetune", odd=True, writes="folder", options="Finetuning", takes=SPLITS,
        shared=WHOLE | {
            "task": Other(REQUIRED, help="sst2, cola, rte, hans, superglue:wic, …; or classify, regress, tokens."),
            "text_column": Other(help="classify, regress: the text. tokens: the words."),
            "label_column": Other(help="classify, regress, tokens: the label."),
            "metric": Other(help="What the best epoch is chosen by. Default: the task's first."),
            "output": Other(help="Run directory. Default: runs/MODEL-TASK."), "chart": None, "dtype": None,
            "overwrite": Other(help="Remove runs with other settings from the directory."),
        },
        result="FineTuned", also=("analyses.recover:Recovery",),
        examples=(
            "finetune mini-planted --task classify --data labelled --epochs 1 --batch-size 8 --max-length 16 -o tuned",
            "finetune mini-planted --task classify --data labelled --epochs 1 --batch-size 8 --max-length 16 --off "
            "8,24 --hold -o tuned-off  # two dimensions off, and held at zero",
            "finetune tuned/seed-42/model --task classify --data labelled --recover --off 8 --epochs 1 --batch-size 8 "
            "--max-length 16 --random 0 -o recovered  # does it recover from losing dimension 8?",
        ),
    ),
    Experiment(
        "replicate kovaleva-glue", "compare with papers",
        f"GLUE with outliers off as in Kovaleva et al. (2021): {GLUE}",
        home="replicate.glue", odd=True, writes="folder", options="KOVALEVA", takes=("subject", "options", "output",
        "loading"),
        shared=RUN_DIRECTORY | GLUE_MODEL, result="Replication",
        examples=(
            "replicate kovaleva-glue mini-planted --tasks sst2 --tuned sst2=tuned/seed-42/model --data paper/glue "
            "--labels negative,positive --random 1 --matched 0 --windows-task none -o kovaleva",
            "replicate kovaleva-glue mini-planted --tasks sst2 --tuned sst2=tuned/seed-42/model --data paper/glue "
            "--labels negative,positive --random 1 --matched 0 --windows-task none -o kovaleva --json  # the same run"
            " again: nothing is measured twice",
        ),
    ),
    Experiment(
        "replicate puccetti-glue", "compare with papers",
        f"GLUE with outliers off as in Puccetti et al. (2022): {GLUE}",
        home="replicate.glue", odd=True, writes="folder", options="PUCCETTI", takes=("subject", "options", "output",
        "loading"),
        shared=RUN_DIRECTORY | GLUE_MODEL, result="Replication",
        examples=(
            "replicate puccetti-glue mini-planted --tasks sst2 --tuned sst2=tuned/seed-42/model --data paper/glue "
            "--labels negative,positive --random 1 --matched 0 --windows-task none -o puccetti-glue",
            "replicate puccetti-glue mini-planted --tasks sst2 --tuned sst2=tuned/seed-42/model --data paper/glue "
            "--labels negative,positive --random 1 --matched 0 --windows-task none -o puccetti-glue --json  # the "
            "same run again: nothing is measured twice",
        ),
    ),
    Experiment(
        "replicate luo", "compare with papers",
        "Positions, geometry, clipping and what vectors are good for: all tables and figures of Luo et al. (2021).\n\n"
        "Each part is kept in the run directory when it is measured: the same command continues a stopped run.",
        home="replicate.luo", python="replicate_luo", odd=True, writes="folder", options="LuoOptions",
        shared=RUN_DIRECTORY | {
            "data": Other(None, help="Folder with sst2, sts, wic, sst5 and imdb in it. Default: the hub's copies."),
            "text_column": None, "limit": None, "verbose": None,
            "output": Other(help="Run directory. Default: runs/MODEL-luo."),
        },
        result="LuoReplication",
        examples=(
            "replicate luo mini-planted --data paper --parts origin -o luo",
            "replicate luo mini-planted --data paper --parts origin --clip 8 -o luo-clipped",
        ),
    ),
    Experiment(
        "replicate puccetti", "compare with papers",
        "Frequency, vertical attention, damage by layer and what ablated models say: Puccetti et al. (2022).\n\n"
        "Each part is kept in the run directory when it is measured: the same command continues a stopped run.",
        home="replicate.puccetti", python="replicate_puccetti", odd=True, writes="folder", options="PuccettiOptions",
        shared=RUN_DIRECTORY | {
            "data": TEXT,
            "output": Other(help="Run directory. Default: runs/MODEL-puccetti."),
        },
        result="PuccettiReplication",
        examples=(
            "replicate puccetti mini-planted --data texts.txt --limit 4 --parts attention -o puccetti",
            "replicate puccetti mini-planted --data texts.txt --limit 4 --parts attention --dims 8 -o puccetti-8",
        ),
    ),
    Experiment(
        "survival", "train",
        "Find the outlier dimensions that survive fine-tuning, and how far they moved, from the weights alone.",
        home="experiments.survival", python="survival", needs=("compare",), options="Followed", takes=MODELS,
        shared={"subfolder": None, "verbose": None, "no_progress": None}, result="Survival",
        picture=".charts:survival",
        examples=(
            "survival mini-bert mini-planted",
            "survival mini-planted tuned/seed-42/model --dims 8,24 --norms-only",
        ),
    ),
    Experiment(
        "one-dimension", "explain",
        "Measure how much of a task each single dimension carries: the best classifier that sees one number (Rudman et "
        "al. 2023).",
        home="experiments.one_dimension", python="one_dimension", options="OneDimOptions", takes=SPLITS,
        shared=WHOLE | {"model": Other(help="Fine-tuned: directory or hub id."), "task": Other(REQUIRED)},
        result="OneDimension", picture="one_dimension",
        examples=(
            "one-dimension tuned/seed-42/model --task classify --data labelled --dims 8 --limit 8",
            "one-dimension tuned/seed-42/model --task classify --data labelled --dims 8 --layers all --limit 8",
        ),
    ),
    Experiment(
        "sts", "embed",
        "Score semantic textual similarity at every layer with every fix, in one pass over the sentences.",
        home="experiments.similarity", python=".sts:sts", measure=".sts", options="StsCall", takes=VECTORS,
        shared={"verbose": Other(help="Show the scores of every layer too.")}, result="Similarity",
        picture="sts_layers",
        examples=(
            "sts mini-planted --data paper/sts --tasks sickr --fixes raw,clip --clip 8",
            "sts mini-planted --data paper/sts --tasks sickr,stsb --fixes raw,clip --clip 8,24 --layers 2,3",
        ),
    ),
    Experiment(
        "wic", "embed",
        "Judge by the cosine of its vectors whether a word means the same in two sentences: all layers, thresholds, fixes.",
        home="experiments.similarity", python=".wic:wic", measure=".wic", options="WicCall", takes=VECTORS,
        shared={"verbose": Other(help="Show the accuracy of every layer too.")}, result="WordInContext",
        picture="wic_layers",
        examples=(
            "wic mini-planted --data paper/wic --fixes clip --clip 8",
            "wic mini-planted --data paper/wic --fixes raw --layers 3",
        ),
    ),
    Experiment(
        "origin", "explain",
        "Trace outlier dimensions to their origin: embedding tables row by row, and every norm by layer.",
        home="experiments.origin", python="origin", options="Traced", takes=WEIGHTS,
        shared={"no_progress": None}, result="Origin", picture=".view:picture",
        examples=(
            "origin mini-planted",
            "origin mini-planted --dims 8,24 --picture ranks --chart origin.html",
        ),
    ),
    Experiment(
        "detectors", "find",
        "Apply every published definition of an outlier dimension: where they agree, and what they find in nulls.",
        home="experiments.detectors", python="detectors", options="Asked",
        result="Detectors", picture="detectors",
        pictures={"super_chart": ".charts:super_weights"},
        examples=(
            "detectors mini-planted --data reviews --limit 4 --nulls none",
            "detectors mini-planted --data reviews --limit 4 --nulls shuffled --no-special",
        ),
    ),
    Experiment(
        "geometry", "explain",
        "Measure how vectors lie in space: anisotropy, self-similarity, isotropy, by layer, before and after fixes.",
        home="experiments.geometry", python="geometry", options="GeometryOptions", takes=REPAIRED,
        shared={
            "data": Other(REQUIRED, help="Sentences, one per row: .txt, .jsonl, .csv, .tsv, .parquet, or a hub id."),
            "limit": Other(least=4, help="Draw from the first N sentences."),
        },
        result="Geometry", picture="geometry",
        examples=(
            "geometry mini-planted --data texts.txt --limit 8 --words 0 --fixes raw,clip --clip 8 --bootstrap 20",
            "geometry mini-planted --data texts.txt --limit 8 --words 0 --fixes raw --skip-first 1 --bootstrap 20  # "
            "without each text's first token",
        ),
    ),
    Experiment(
        "frequency", "explain",
        "Measure how closely each dimension follows how frequent a token is: outliers against all other dimensions.",
        home="experiments.frequency", python="frequency", options="FrequencyCall", takes=TOKENS,
        shared={"data": TEXT},
        result="Frequency", picture="frequency",
        examples=(
            "frequency mini-planted --counts counts.parquet --data texts.txt --bootstrap 50",
            "frequency mini-planted --counts counts.parquet --data texts.txt --dims 8 --bootstrap 50 -o "
            "frequency.json  # `layer-story` reads it",
        ),
    ),
    Experiment(
        "frequency-geometry", "explain",
        "Measure how vectors of frequent and rare tokens differ: norms and cosines, with outlier dimensions on and off.",
        home="experiments.frequency_geometry", python="frequency_geometry", needs=("frequency", "geometry"),
        options="FrequencyGeometryCall",
        takes=TOKENS,
        shared={"data": TEXT, "limit": Other(least=4)},
        result="FrequencyBands", picture="frequency_geometry",
        examples=(
            "frequency-geometry mini-planted --counts counts.parquet --data texts.txt --bands 2 --tokens-per-band 8 "
            "--random 1 --bootstrap 20",
            "frequency-geometry mini-planted --counts counts.parquet --data texts.txt --bands 2 --tokens-per-band 8 "
            "--no-off --bootstrap 20  # the intact model alone",
        ),
    ),
    Experiment(
        "attention", "explain",
        "Measure attention received by each token, its correlation with every dimension, and attention sinks.",
        home="experiments.attention", python="attention", options="AttentionOptions", result="Attention",
        picture="attention",
        examples=(
            "attention mini-planted --data texts.txt --limit 4 --random 1 --bootstrap 20",
            "attention mini-planted --data texts.txt --limit 4 --dims 8,24 --sink-threshold 0.2 --random 1 --bootstrap 20",
        ),
    ),
    Experiment(
        "probe", "embed",
        "Train one linear probe per layer that predicts each token's position, and name the dimensions it reads (Luo et "
        "al. 2021).",
        home="experiments.probe", python="probe_positions", options="ProbeCall", takes=REPAIRED,
        shared={
            "data": Other(REQUIRED, help="Texts to train on: .txt, .jsonl, .csv, .tsv, .parquet or a hub id."),
            "limit": None, "fixes": None, "verbose": Other(help="Show every dimension that is clipped somewhere."),
        },
        result="PositionProbe", picture="probe",
        examples=(
            "probe mini-planted --data texts.txt --limit 8 --max-length 16 --no-retrain",
            "probe mini-planted --data texts.txt --limit 8 --max-length 16 --layers 3 --clip 8 --epochs 1",
        ),
    ),
    Experiment(
        "quantize", "compress",
        "Round weights and inputs to few bits: what it costs, where the error lies, and what keeping outliers gives back.",
        home="analyses.quantize", python="quantize", options="QuantizeOptions", shared={"limit": LIMIT},
        result="Quantized",
        examples=(
            "quantize mini-planted --data reviews --limit 4 --schemes int8-tensor/none --random 1 --smooth none "
            "--calibrate 0",
            "quantize mini-planted --data reviews --limit 4 --schemes int4-group64-asym/none --dims 8,24 --random 1 "
            "--smooth none --calibrate 0",
        ),
    ),
    Experiment(
        "plan", "compress",
        "Find what must stay in high precision when a model is rounded, and how surely, against random choices.",
        home="analyses.plan", places=("to",), python="plan", options="PlanCall", shared={"limit": Other(64)},
        result="PrecisionPlan",
        examples=(
            "plan mini-planted --data texts.txt --limit 4 --max-length 16 --scheme int4-tensor/none --keep 20% "
            "--candidates 1 --random 1",
            "plan mini-planted --data texts.txt --limit 4 --max-length 16 --scheme int4-tensor/none --keep 20% "
            "--grain linear --bits 8 --candidates 1 --random 1 -o plan.json",
        ),
    ),
    Experiment(
        "range", "compress",
        "Find the largest |x| of every tensor, layer by layer, and the number formats that hold it.",
        home="analyses.range", python="range_of", options="RangeOptions", takes=CONDITIONS,
        shared=UNLABELLED | {"limit": Other(64), "verbose": Other(help="Show every layer of every kind too.")},
        result="Ranges",
        examples=(
            "range mini-planted --data reviews --limit 4",
            "range mini-planted --weights  # the checkpoint alone, without torch",
        ),
    ),
    Experiment(
        "repair", "compress",
        "Write a copy of a model that fits fp16, bf16, fp8 or int8, or has no outlier dimension, and gives the same outputs.",
        home="experiments.repair", places=("folder",), python="repair", options="RepairCall",
        takes=CONDITIONS,
        shared=UNLABELLED | {"limit": Other(16), "chart": None, "output": None}, result="Repaired",
        examples=(
            "repair decoder --fit fp8 --data texts.txt --limit 4 -o decoder-fp8",
            "repair decoder --rotate --data texts.txt --limit 4 -o decoder-turned",
        ),
    ),
    Experiment(
        "mask", "explain",
        "Find tokens and dimensions to leave out of hidden states before an autoencoder or a steering vector is made of them.",
        home="analyses.mask", places=("to",), python="mask", options="MaskCall",
        shared={"limit": Other(64, least=4), "verbose": Other(help="Show every block too.")},
        result="Mask",
        examples=(
            "mask mini-planted --data texts.txt --limit 4",
            "mask mini-planted --layer 3 --data texts.txt --limit 4 --for steering --to steering.py",
        ),
    ),
    Experiment(
        "trace", "explain",
        "Follow one dimension through the model: which parts write it, which heads read it, what ends it.",
        home="analyses.trace", python="trace", options="TraceOptions",
        takes=CONDITIONS,
        shared=UNLABELLED
        | {"limit": Other(32, least=1), "verbose": Other(help="Show every block and every head too.")},
        result="Trace",
        examples=(
            "trace mini-planted --data texts.txt --limit 4",
            "trace mini-planted --dim 45 --data texts.txt --limit 4 -o life.json",
        ),
    ),
    Experiment(
        "count", "explain",
        "Count how often every token id occurs in a corpus, on all cores; a stopped count continues with the same command.",
        home="experiments.count", python="count_tokens", odd=True, options="CountCall", takes=("reading", "options",
        "output", "loading"),
        shared={
            "data": None, "chart": None, "output": Other(REQUIRED, help="Write the counts to this file (parquet)."),
            "tokenizer": Other(help="Model whose tokenizer counts: sample, directory or hub id."),
            "arch": None, "family": None, "device": None, "dtype": None,
        },
        examples=(
            "count --tokenizer mini-planted --data texts.txt -o counts.parquet",
            "count --tokenizer mini-planted --data texts.txt --limit 8 --workers 1 -o few.parquet",
        ),
    ),
    Experiment(
        "frozen", "embed",
        "Train linear classifiers on frozen mean vectors of every layer, raw, clipped and otherwise repaired (Luo et al. "
        "2021).",
        home="experiments.frozen", python="frozen", needs=("similarity",), options="FrozenCall",
        takes=("subject", "task", "options", "vectors", "fitting", "output", "loading"),
        shared={
            "task": Other(REQUIRED, help="sst2, sst5, imdb, cola, …; or classify."),
            "data": Other(None, help="Folder with a file per split, or hub id. Default: the hub's own copy."),
            "text_column": Other(help="classify: the text."), "label_column": Other(help="classify: the label."),
            "metric": Other(help="macro f1, … Default: the task's first."),
            "verbose": Other(help="Show the dev and training splits by layer too."),
            **dict.fromkeys(("limit", "measure", "labels", "split", "pair_column", "max_seconds")),
            **dict.fromkeys(("max_length", "fit_data", "fit_column")),
        },
        result="FrozenScores", picture="frozen",
        examples=(
            "frozen mini-planted --task classify --data labelled --limit 8 --epochs 1 --fixes raw --clip none",
            "frozen mini-planted --task classify --data labelled --limit 8 --epochs 1 --fixes raw,clip --clip 8 "
            "--layers 3",
        ),
    ),
    Experiment(
        "export-embedder", "embed",
        "Write a sentence-transformers model of one layer with a fix in it, loadable without this package, and check it.",
        home="experiments.embedder", python="export_embedder", needs=("similarity",), options="EmbedderCall",
        takes=("subject", "options", "fitting", "output", "loading"), places=("folder",),
        shared=dict.fromkeys(("fixes", "chart", "output", "verbose")), result="Exported",
        examples=(
            "export-embedder mini-planted --fix centre -o embedder",
            "export-embedder mini-planted --fix clip --clip 8 --layer 2 -o embedder-clipped",
        ),
    ),
    Experiment(
        "layer-story", "explain",
        "Compare the damage of each layer with its correlation with frequency and attention (Puccetti et al. 2022).",
        home="experiments.layer_story", python=".result:layer_story", needs=("attention", "frequency", "sweep"),
        options="LayerStoryOptions",
        takes=("options", "output"), shared={"no_progress": None}, result="LayerStory",
        picture="layer_story",
        examples=(
            "layer-story by-layer/sweep.json --frequency frequency.json",
            "layer-story by-layer/sweep.json --frequency frequency.json --special -o story.json",
        ),
    ),
    Experiment(
        "attack", "guard",
        "Measure how much damage few edits of sensitive values do, and how many of them verify finds; all in memory.\n\n"
        "What is measured is kept in runs/MODEL-attack: the same command goes on.",
        home="analyses.attack", needs=("integrity",), python="attack", options="AttackOptions",
        shared={"data": Other(REQUIRED, help="Text to measure damage on: a file or a hub id."), "limit": Other(28)},
        result="Attack",
        examples=(
            "attack mini-planted --data reviews --limit 6 --budget 1 --kinds zero --tries 2 --sets 1 --random 1 "
            "--search-texts 2",
            "attack mini-planted --dims 8 --data reviews --limit 6 --budget 1 --kinds sign-flip --tries 2 --sets 1 "
            "--random 1 --search-texts 2",
        ),
    ),
    Experiment(
        "update-check", "guard",
        "Flag updates of a federated round that fall on outlier entries beyond their share; exit code 3 if any does.",
        home="analyses.update_check", needs=("integrity",), python="update_check", options="Updates",
        takes=MODELS, shared=dict.fromkeys(("chart", "verbose", "no_progress", "revision", "subfolder")),
        result="UpdateCheck", gate="flagged",
        examples=(
            "update-check mini-planted mini-planted --draws 19",
            "update-check mini-planted tuned/seed-42/model --dims 8,24 --draws 99",
        ),
    ),
    Experiment(
        "report", "show",
        "Find outliers, observe, switch off against controls, and write one self-contained HTML report.\n\n"
        "MODEL may also be the results.json of an earlier report: the page is then made again, without torch. With "
        "--compare A B each model that has no finished report is measured, in a folder of its own, and one page shows both.",
        home="report", odd=True, writes="folder", options="ReportOptions", takes=("options", "reading", "output", "loading"),
        shared={
            "data": Other("", help="Text, as elsewhere. Default: shipped text, reviews for packaged samples, else excerpt."),
            "limit": LIMIT, "output": Other(help="Run directory. Default: runs/MODEL."),
            "chart": None, "json": None, "verbose": None,
        },
        result=".result:ReportData",
        examples=(
            "report mini-planted --limit 4 --random 1 --matched 0",
            "report runs/mini-planted/results.json -o again  # the page again, without torch",
        ),
    ),
    Experiment(
        "explore", "show",
        "Open a live page on this machine: switch dimensions off and compare with random ones off.",
        home="explore", odd=True, options="ExploreOptions", takes=("subject", "options", "output", "loading"),
        shared={
            "model": Other("mini-planted", help="Sample, directory or hub id; mini-* need no download."),
            "chart": None, "verbose": None, "no_progress": None,
        },
        result="Explored", places=("space",),
        examples=(
            "explore mini-planted --show loss --text 'A film worth seeing.'  # no page: one comparison, printed",
            "explore mini-planted --show attention --dims 8 --text 'A film worth seeing.' -o seen.json",
        ),
    ),
    Experiment(
        "doctor", "show",
        "Print versions, devices, caches and offline state, and what is missing for which command; changes nothing.\n\n"
        "Exit code 0; 1 where something that is installed is broken.",
        home="cli", measure=".doctor", odd=True, options=".doctor:DoctorOptions", takes=("options", "output"),
        shared=dict.fromkeys(("chart", "output", "overwrite", "quiet", "verbose", "no_progress")),
        examples=(
            "doctor",
            "doctor --devices",
        ),
    ),
    Experiment(
        "samples", "show",
        "List the sample models: what they are, their licence, and whether they are there.",
        home="cli", measure=".samples:samples", odd=True, takes=("output",),
        shared=dict.fromkeys(("chart", "output", "overwrite", "quiet", "verbose", "no_progress")),
        examples=(
            "samples",
            "samples --json",
        ),
    ),
    Experiment(
        "fetch", "show",
        "Fetch sample models into the user's cache, verified by hash; existing files are kept.",
        home="cli", measure=".samples:fetch", odd=True, options=".samples:FetchOptions",
        takes=("options", "output"),
        shared=dict.fromkeys(("chart", "output", "overwrite", "json", "verbose", "no_progress")),
        examples=(
            "fetch mini-planted",
            "fetch mini-planted mini-bert",
        ),
    ),
)  # fmt: skip
BY_NAME = {row.name: row for row in EXPERIMENTS}
BY_RESULT = {kind: row for row in EXPERIMENTS for kind in row.kinds}
