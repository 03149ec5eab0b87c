"""The table of experiments: from a row come its command with help and limits, its kind of result and its place in the list.

`outlierlens.options.experiment` says what a row holds.
"""

from outlierlens.options import REQUIRED, Override
from outlierlens.options.experiment import Experiment

MODELS = ("options", "output", "source")
CONDITIONS = ("subject", "task", "options", "output", "loading")
TOKENS = ("subject", "reading", "options", "vectors", "output", "loading")
REPAIRED = ("subject", "data", "options", "vectors", "fitting", "output", "loading")
DATA = ("subject", "data", "options", "output", "loading")
WEIGHTS = ("subject", "options", "output", "source")
SPLITS = ("subject", "splits", "options", "output", "loading")
VECTORS = ("subject", "options", "vectors", "fitting", "output", "loading")
LIMIT = Override(16)
TEXT = Override(REQUIRED, help="Text to run the model on: a file or a hub id.")
# Of commands that read texts, pictures or recordings, whatever their labels.
UNLABELLED: dict[str, Override | None] = dict.fromkeys(
    ("task", "measure", "metric", "labels", "split", "pair_column", "label_column")
)
# Of commands that keep what they measure in a run directory.
RUN_DIRECTORY: dict[str, Override | None] = {
    "chart": None,
    "overwrite": Override(help="Start again: drop finished measurements."),
}
GLUE_MODEL: dict[str, Override | None] = {
    "model": Override(help="Pre-trained model: sample, directory or hub id."), "verbose": None, "adapter": None,
    "output": Override(help="Run directory. Default: runs/MODEL-PAPER."),
}  # fmt: skip
GLUE = (
    "fine-tune, ablate them without training again, compare with random sets.\n\n"
    "Everything is kept in the run directory as it is made: the same command continues a stopped run."
)
WHOLE: dict[str, Override | None] = dict.fromkeys(
    ("limit", "measure", "labels", "split", "max_seconds")
)  # none of SPLITS


def _glue(paper: str, authors: str, folder: str) -> Experiment:
    """The row of a paper's GLUE table, whose options are those of its protocol."""
    call = (
        f"replicate {paper}-glue mini-planted --tasks sst2:labels=negative,positive "
        f"--tuned sst2=tuned/seed-42/model --data paper/glue --random 1 --matched 0 -o {folder}"
    )
    return Experiment(
        f"replicate {paper}-glue", "compare with papers", f"GLUE with outliers ablated as in {authors}: {GLUE}",
        home="replicate.glue", measure="replicate.command:glue", odd=True, writes="folder", options=paper.upper(),
        takes=("subject", "options", "output", "loading"), shared=RUN_DIRECTORY | GLUE_MODEL, result="Replication",
        examples=(call, f"{call} --json  # the same run again: nothing is measured twice"),
    )  # fmt: skip


# --- the table -------------------------------------------------------------------------------------------------------

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "scan", "find",
        "Find outlier dimensions in weights; no model is loaded.\n\n"
        "One or more models; of their files only the tensors that the rule rests on are read.",
        home="analyses.scan", python="scan", options="ScanCall", takes=MODELS,
        shared={"chart": None}, result="Scan", also=("analyses.definitions:Definitions",),
        examples=(
            "scan mini-planted  # the dimensions that the weights name",
            "scan mini-planted mini-bert --rule puccetti  # two models by another rule",
            "scan mini-planted --rule all  # by every published definition that rests on weights alone",
        ),
    ),
    Experiment(
        "atlas lookup", "find",
        "Look a model up in an atlas, offline: its outlier dimensions, its likely parent, and what they cost."
        "\n\nMODEL is a name in the atlas, or any model: of that the weights are read that `scan` reads, and its norms.",
        home="analyses.atlas_lookup", python="lookup", options="LookupOptions", takes=WEIGHTS,
        shared={"chart": None, "arch": None, "family": None}, result="Lookup",
        examples=("atlas lookup smollm2-135m  # by name", "atlas lookup mini-planted  # whose norms are read"),
    ),
    Experiment(
        "compare", "find",
        "Compare checkpoints: outliers that stayed, came and went.\n\n"
        "Reads the weights alone: the shared outlier dimensions of each stream, and how far all weights moved. "
        "With --values whether sensitive values differ, as `verify` would; with --updates whether the updates of a "
        "federated round fall on outlier entries: exit code 3 if so, 2 where nothing could be compared. Run directories "
        "of `lab pretrain` are compared by loss, outlier dimensions, damage and INT8, seeds of one recipe together. "
        "A quantized copy is recognized by its codes: the error of each linear and block, and with --data of outputs and loss.",
        home="analyses.compare", python="compare", options="CompareCall", takes=MODELS,
        shared={
            "subfolder": None,
            "adapter": Override(help="Folder of a LoRA adapter (PEFT): look at the models after with it on."),
        },
        result="Comparison", also=("analyses.compare_updates:UpdateCheck", "analyses.compare_copy:QuantizedCopy"),
        gate="flagged",
        examples=(
            "compare mini-bert mini-planted  # what stayed, came and went",
            "compare mini-bert mini-planted --dims 8,24",
            "compare mini-planted mini-planted --values  # whether sensitive values differ",
            "compare mini-planted mini-planted --updates  # a client's update",
            "compare mini-planted mini-planted --copy --data reviews --limit 4  # a rounded copy",
        ),
    ),
    Experiment(
        "atlas build", "find",
        "Find the outlier dimensions of thousands of models on a hub, as `scan` does; stopped builds go on.\n\n"
        "A model that cannot be read gets a row with the reason. The same command looks only at what has no row yet.",
        home="analyses.atlas", odd=True, writes="folder", options="BuildCall", takes=MODELS,
        shared=dict.fromkeys(("chart", "overwrite", "verbose", "arch", "family", "revision", "subfolder", "offline", "adapter"))
        | {"output": Override(REQUIRED, help="Folder of the atlas.")},
        examples=(
            "atlas build names.txt -o atlas  # a name per line",
            "atlas build names.txt -o atlas  # once more: only what has no row yet",
        ),
    ),
    Experiment(
        "atlas page", "find",
        "Write a searchable site of an atlas: by model, family and dimension; it loads nothing from elsewhere.",
        home="analyses.atlas", measure=":page", options="PageCall", takes=("options", "output"), odd=True,
        writes="folder",
        shared=dict.fromkeys(("chart", "json", "verbose"))
        | {"output": Override(help="Folder of the site. Default: site, in the atlas's folder.")},
        examples=("atlas page atlas", "atlas page atlas -o site"),
    ),
    Experiment(
        "fingerprint", "guard",
        "Record the sensitive values of a model, for `verify`.",
        home="analyses.fingerprint", python="fingerprint", options="FingerprintOptions", takes=WEIGHTS,
        shared={"chart": None}, result="Fingerprint",
        examples=(
            "fingerprint mini-planted -o print.json",
            "fingerprint mini-planted --dims 8,24 --deep -o deep.json  # two dimensions, every value of theirs",
        ),
    ),
    Experiment(
        "verify", "guard",
        "Check a copy of a model against a fingerprint.\n\n"
        "Sensitive values that moved since, and whether they are the dangerous ones. Exit code 0: it matches; 3: it "
        "does not; 2: there is nothing to verify (an unusable baseline or model).",
        home="analyses.fingerprint_verify", python="verify", options="VerifyOptions", takes=WEIGHTS,
        shared={"chart": None}, result="Verification", gate="failed",
        examples=(
            "verify mini-planted --baseline print.json",
            "verify mini-planted --baseline deep.json --deep",
        ),
    ),
    Experiment(
        "observe", "find",
        "Measure every layer and dimension in one pass over texts.\n\n"
        "Reads texts, images or recordings. Counts are kept in runs/MODEL-observe: the same command continues a stopped run.",
        home="analyses.observe", python="observe", options="ObserveCall", takes=CONDITIONS,
        shared=UNLABELLED | {"verbose": Override(help="Also list dimensions far from the mean.")},
        result="Observation", also=("analyses.definitions:Definitions",),
        examples=(
            "observe mini-planted --data reviews --limit 8",
            "observe mini-planted --data reviews --limit 8 --rule all --nulls shuffled  # by every published definition",
            "observe mini-planted --data reviews --limit 8 --stack mlp  # neurons of the MLPs",
        ),
    ),
    Experiment(
        "ablate", "ablate",
        "Ablate dimensions; measure what breaks, against controls.\n\n"
        "Controls are random sets and matched ones of the same size. Several modes (--modes all) tell a fixed bias from "
        "information: zero, means, shuffled, scaled, against random dimensions. With --predictions COUNTS, what the "
        "model predicts: frequent tokens, or rare ones? Measurements are kept in runs/MODEL-ablate: the same command "
        "continues a stopped run.",
        home="analyses.ablate", places=("save",), python="ablate", options="Command", takes=CONDITIONS,
        shared={
            "limit": Override(
                help="Use the first N texts. Default: 16 (several modes: 32; --predictions: 200); "
                "labelled tasks: all.",
            ),
            "verbose": Override(help="Show every control set too."),
        },
        result="Ablation", also=("analyses.predictions:Predictions",),
        examples=(
            "ablate mini-planted --dims 8,24 --data reviews --limit 4 --random 3 --matched 0",
            "ablate mini-planted --dims 8 --modes zero --data reviews --limit 4 --random 3 --matched 0  # the running state",
            "ablate mini-planted --dims 8 --modes all --data reviews --limit 4 --random 1 -o modes.json  # bias or information",
            "ablate mini-planted --dims 8 --predictions counts.parquet --data texts.txt --limit 4 --random 1",
        ),
    ),
    Experiment(
        "sweep", "ablate",
        "Ablate every dimension in turn; rank what breaks.\n\n"
        "Or sets of dimensions, or layer by layer; with intervals. Every measurement is kept as it is made: the same "
        "command continues a stopped run.",
        home="analyses.sweep.measure", python="sweep", options="analyses.sweep.options:SweepCall", takes=CONDITIONS,
        result="analyses.sweep.finding:Sweep",
        examples=(
            "sweep mini-planted --dims 8,24 --data reviews --limit 4 --random 2 --matched 0 -o sweep.json",
            "sweep mini-planted --dims 8 --windows single --data reviews --limit 4 --random 2 --matched 0"
            "  # ablated in one layer at a time",
        ),
    ),
    Experiment(
        "prune check", "compress",
        "Find the positions that pruning removed in half of the layers, and the outliers among them; needs no torch for "
        "safetensors.\n\n"
        "Exit code 0: the constraint holds; 3: it is broken; 2: it could not be checked.",
        home="analyses.prune", python="prune_check", measure=":run_check", options="PruneCheckCall", takes=MODELS,
        shared={
            "adapter": Override(help="Folder of a LoRA adapter (PEFT): look at AFTER with it on."),
        },
        result="PruneCheck", gate="failed",
        examples=(
            "prune check mini-bert mini-planted  # did a position lose all its values?",
            "prune check mini-planted mini-planted --dims 8 --only-outliers",
        ),
    ),
    Experiment(
        "prune protect", "compress",
        "Write what a pruner should leave alone, in the form it reads: Python or YAML, ready to paste.",
        home="analyses.prune_lists", python="protect", odd=True, options="ProtectCall", takes=WEIGHTS,
        shared=dict.fromkeys(("chart", "json", "verbose"))
        | {"output": Override(help="Write the list to exactly this file.")},
        examples=(
            "prune protect mini-planted --export torch-pruning",
            "prune protect mini-planted --export sparsegpt --dims 8,24 -o ignore.yaml",
        ),
    ),
    Experiment(
        "prune test", "compress",
        "Measure the loss when the same number of weights is pruned by magnitude, at one position, and at controls.",
        home="analyses.prune", python="prune_test", measure=":run_test", options="PruneTestOptions",
        takes=("subject", "reading", "options", "output", "loading"), shared={"limit": Override(24)}, result="PruneTest",
        examples=(
            "prune test mini-planted --data reviews --limit 4 --random 1 --scattered 0 --matched 0",
            "prune test mini-planted --dims 8 --data reviews --limit 4 --random 2 --scattered 1 --matched 0",
        ),
    ),
    Experiment(
        "track", "train",
        "Find when dimensions became outliers over a training run.\n\n"
        "And where the loss was then. Only the norm vectors of each checkpoint are read. `report MODEL --result FILE` "
        "puts what -o writes into a report.",
        home="analyses.track", python="track", options="TrackCall", takes=MODELS, shared={"revision": None, "adapter": None},
        result="Track",
        examples=(
            "track mini-bert  # its training is recorded in the package",
            "track mini-bert --rule sigma=2.5 -o track.json",
        ),
    ),
    Experiment(
        "lab pretrain", "train",
        "Pre-train a masked language model by recipe, with its outlier dimensions watched; stopped runs continue.\n\n"
        "Several processes: `accelerate launch -m outlierlens lab pretrain …`.",
        home="analyses.pretrain", python="training.pretrain.loop:pretrain", options="PretrainOptions", takes=("options",
        "output", "loading"), writes="folder",
        shared=dict.fromkeys(("chart", "verbose", "arch", "family", "revision", "subfolder", "tokenizer", "dtype",
                              "trust_remote_code", "adapter", "device_map")) | {
            "output": Override(help="Run directory. Default: runs/RECIPE-seed-N."),
            "overwrite": Override(help="Remove the run of another recipe from it."),
        },
        result="training.pretrain.result:Outcomes",
        examples=(
            "lab pretrain  # the shipped recipes",
            "lab pretrain mini-short --set tokenizer.source='mini-planted' --set model.layers=2 --set model.width=16 "
            "--set data.length=16 --set data.source=\"['texts.txt']\" --set data.validation=0.3 --set training.batch=4 "
            "--set training.steps=2 -o run",
        ),
    ),
    Experiment(
        "lab finetune", "train",
        "Fine-tune a model on a labelled task, the best epoch of each seed kept; stopped runs continue.\n\n"
        "With --recover, ablate dimensions of a fine-tuned model and fine-tune it again, free and held at zero, against "
        "random ones.",
        home="analyses.finetune", measure="analyses.recover:run", python="finetune", options="Finetuning",
        takes=SPLITS, writes="folder",
        shared=WHOLE | {
            "task": Override(REQUIRED, help="sst2, cola, rte, hans, superglue:wic, …; or classify, regress, tokens."),
            "text_column": Override(help="classify, regress: the text. tokens: the words."),
            "label_column": Override(help="classify, regress, tokens: the label."),
            "metric": Override(help="What the best epoch is chosen by. Default: the task's first."),
            "output": Override(help="Run directory. Default: runs/MODEL-TASK."), "chart": None, "dtype": None, "adapter": None,
            "device_map": None,
            "overwrite": Override(help="Remove runs with other settings from the directory."),
        },
        result="FineTunedModel", also=("analyses.recover:Recovery",),
        examples=(
            "lab finetune mini-planted --task classify --data labelled --epochs 1 --batch-size 8 --max-length 16 -o tuned",
            "lab finetune mini-planted --task classify --data labelled --epochs 1 --batch-size 8 --max-length 16 --dims "
            "8,24 --hold -o tuned-off  # two dimensions ablated, and held at zero",
            "lab finetune tuned/seed-42/model --task classify --data labelled --recover --dims 8 --epochs 1 --batch-size 8 "
            "--max-length 16 --random 0 -o recovered  # does it recover from losing dimension 8?",
        ),
    ),
    _glue("kovaleva", "Kovaleva et al. (2021)", "kovaleva"),
    _glue("puccetti", "Puccetti et al. (2022)", "puccetti-glue"),
    Experiment(
        "replicate luo", "compare with papers",
        "Positions, geometry, clipping and what vectors are good for: all tables and figures of Luo et al. (2021).\n\n"
        "Each part is kept in the run directory when it is measured: the same command continues a stopped run.",
        home="replicate.luo", python="replicate_luo", measure="replicate.command:luo", odd=True, writes="folder",
        options="LuoOptions",
        shared=RUN_DIRECTORY | {
            "data": Override(None, help="Folder with sst2, sts, wic, sst5 and imdb in it. Default: the hub's copies."),
            "text_column": None, "limit": None, "verbose": None,
            "output": Override(help="Run directory. Default: runs/MODEL-luo."),
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
        home="replicate.puccetti", python="replicate_puccetti", measure="replicate.command:puccetti", odd=True,
        writes="folder", options="PuccettiOptions",
        shared=RUN_DIRECTORY | {
            "data": TEXT,
            "output": Override(help="Run directory. Default: runs/MODEL-puccetti."),
        },
        result="PuccettiReplication", also=("replicate.puccetti:LayerStory",),
        examples=(
            "replicate puccetti mini-planted --data texts.txt --limit 4 --parts attention -o puccetti",
            "replicate puccetti mini-planted --data texts.txt --limit 4 --parts attention --dims 8 -o puccetti-8",
        ),
    ),
    Experiment(
        "embed", "embed",
        "Score, repair and export sentence vectors of every layer.\n\n"
        "By whether cosines say how alike sentences are, or that a word means the same. With --export FOLDER, write a "
        "sentence-transformers model of one layer with a fix in it, loadable without this package, and check it. "
        "Scores are kept in runs/MODEL-embed: the same command continues a stopped run.",
        home="analyses.embed", python="embed", options="EmbedCall", takes=VECTORS, places=("export",),
        shared={"verbose": Override(help="Show every way to choose a layer, and every layer too.")},
        result="Similarity", also=("analyses.embed_export:EmbedderExport",),
        examples=(
            "embed mini-planted --data paper/sts --sets sickr --fixes raw,clip --clip 8",
            "embed mini-planted --data paper/sts --sets sickr,stsb --fixes raw,clip --clip 8,24 --layers 2,3",
            "embed mini-planted --task wic --data paper/wic --fixes clip --clip 8  # words in context",
            "embed mini-planted --export embedder --fix centre  # a folder for sentence-transformers",
            "embed mini-planted --export embedder-clipped --fix clip --clip 8 --layer 2",
        ),
    ),
    Experiment(
        "origin", "explain",
        "Trace dimensions to embedding tables and norms, by weights.\n\n"
        "Embedding tables row by row, and every norm by layer.",
        home="analyses.origin", python="origin", options="OriginOptions", takes=WEIGHTS,
        result="Origin",
        examples=("origin mini-planted", "origin mini-planted --dims 8,24 --chart origin.html"),
    ),
    Experiment(
        "geometry", "explain",
        "Measure anisotropy and isotropy of vectors, by layer and fix.\n\n"
        "Anisotropy, self-similarity and isotropy, before and after fixes. With --bands COUNTS, how vectors of frequent "
        "and rare tokens differ, intact and with outlier dimensions ablated. "
        "Measurements are kept in runs/MODEL-geometry: the same command continues a stopped run.",
        home="analyses.geometry", python="geometry", options="GeometryCall", takes=REPAIRED,
        shared={
            "data": Override(REQUIRED, help="Sentences, one per row: .txt, .jsonl, .csv, .tsv, .parquet, hub id; or images."),
            "limit": Override(least=4, help="Draw from the first N sentences."),
        },
        result="Geometry", also=("FrequencyBands",),
        examples=(
            "geometry mini-planted --data texts.txt --limit 8 --words 0 --fixes raw,clip --clip 8",
            "geometry mini-planted --data texts.txt --limit 8 --words 0 --fixes raw --skip-first 1  # "
            "without each text's first token",
            "geometry mini-planted --bands counts.parquet --data texts.txt --random 1"
            "  # frequent and rare tokens",
        ),
    ),
    Experiment(
        "frequency", "explain",
        "Measure how closely dimensions follow token frequency.\n\n"
        "Outliers against all other dimensions. Measurements are kept in runs/MODEL-frequency: the same command continues "
        "a stopped run.",
        home="analyses.frequency", python="frequency", options="FrequencyCall", takes=TOKENS,
        shared={"data": TEXT}, result="Frequency", places=("write_counts",),
        examples=(
            "frequency mini-planted --counts texts.txt --write-counts own.parquet --data texts.txt  # "
            "counts a corpus",
            "frequency mini-planted --counts counts.parquet --data texts.txt",
            "frequency mini-planted --counts counts.parquet --data texts.txt --dims 8 -o frequency.json",
        ),
    ),
    Experiment(
        "attention", "explain",
        "Measure where attention goes, intact and with dimensions ablated.\n\n"
        "Reads texts, images or recordings. Attention received by each token, its correlation with every dimension, and "
        "attention sinks. Passes are kept in runs/MODEL-attention: the same command continues a stopped run.",
        home="analyses.attention", python="attention", options="AttentionOptions", takes=DATA, result="Attention",
        examples=(
            "attention mini-planted --data texts.txt --limit 4 --random 1",
            "attention mini-planted --data texts.txt --limit 4 --dims 8,24 --sink-threshold 0.2 --random 1",
        ),
    ),
    Experiment(
        "probe", "embed",
        "Train linear probes: positions, single dimensions, a task.\n\n"
        "Train one linear probe per layer that predicts each token's position, and name the dimensions it reads (Luo et "
        "al. 2021). With --one-dimension, how much of a labelled task each single dimension of a fine-tuned model "
        "carries (Rudman et al. 2023). With --frozen, linear classifiers of a labelled task on frozen mean vectors of "
        "every layer, raw and repaired (Luo et al. 2021). Finished layers are kept in runs/MODEL-probe: the same "
        "command continues a stopped run.",
        home="analyses.probe", python="probe", options="ProbeCall",
        takes=("subject", "splits", "options", "vectors", "fitting", "output", "loading"),
        shared={
            "data": Override(help="Texts to train on: .txt, .jsonl, .csv, .tsv, .parquet or a hub id; of a --task a folder "
                               "with a file per split, or hub id (default: the hub's own copy)."),
            "dev_data": Override(help="Texts to evaluate. Default: a fifth of --data, drawn by --seed. --one-dimension: dev "
                                   "examples."),
            "text_column": Override(help="Column that holds the text."),
            "task": Override(help="--one-dimension, --frozen: sst2, sst5, imdb, cola, …; or classify."),
            "metric": Override(help="Metric of --task: f1, mcc, … Default: the task's first."),
            "labels": Override(help="--one-dimension: the model's labels in the order of its outputs, if its config has none."),
            "pair_column": Override(help="--one-dimension, classify: the second text."),
            "label_column": Override(help="classify: the label."),
            "max_length": Override(None, help="Maximum number of tokens per text. Default: 128; --task: 256, --full: all."),
            "fixes": Override(help="--frozen: raw, clip, centre, standardize, abtt:3, whiten:256, by commas."),
            **dict.fromkeys(("limit", "measure", "split", "max_seconds")),
        },
        result="PositionProbe",
        also=("analyses.probe_one_dimension:OneDimension", "analyses.probe_frozen:FrozenScores"),
        examples=(
            "probe mini-planted --data texts.txt --limit 8 --max-length 16",
            "probe mini-planted --data texts.txt --limit 8 --max-length 16 --layers 3 --clip 8 --epochs 1",
            "probe tuned/seed-42/model --one-dimension --task classify --data labelled --dims 8 --layers last --limit 8",
            "probe mini-planted --frozen --task classify --data labelled --limit 8 --epochs 1 --fixes raw,clip --clip 8",
        ),
    ),
    Experiment(
        "quantize", "compress",
        "Quantize weights and inputs; measure the cost, and outliers' part of it.\n\n"
        "Where the error lies, and what keeping outliers gives back.",
        home="analyses.quantize", python="quantize", options="QuantizeOptions", shared={"limit": LIMIT},
        result="Quantization",
        examples=(
            "quantize mini-planted --data reviews --limit 4 --schemes int8-tensor/none --random 1 --smooth none",
            "quantize mini-planted --data reviews --limit 4 --schemes int4-group64-asym/none --dims 8,24 --random 1 "
            "--smooth none",
        ),
    ),
    Experiment(
        "plan", "compress",
        "Find the weights to keep in high precision, with error bounds.\n\n"
        "Reads texts; compares with random choices.",
        home="analyses.plan", places=("to",), python="plan", options="PlanCall", shared={"limit": Override(64)},
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
        "Find the largest |x| of every tensor, and formats that hold it.\n\n"
        "Layer by layer.",
        home="analyses.range", python="range_of", options="RangeCall", takes=CONDITIONS,
        shared=UNLABELLED | {"limit": Override(64), "verbose": Override(help="Show every layer of every kind too.")},
        result="Ranges",
        examples=(
            "range mini-planted --data reviews --limit 4",
            "range mini-planted --weights  # the checkpoint alone, without torch",
            "range mini-planted --data reviews --limit 4 --export autocast:keep.py  # what fp16 does not hold, in float32",
        ),
    ),
    Experiment(
        "repair", "compress",
        "Write a copy that fits fp16, fp8 or int8, with the same outputs.\n\n"
        "Or a copy that has no outlier dimension.",
        home="analyses.repair", places=("folder",), python="repair", options="RepairCall",
        takes=CONDITIONS,
        shared=UNLABELLED | {"limit": Override(16), "chart": None, "output": None, "dtype": None}, result="Repair",
        examples=(
            "repair decoder --fit fp8 --data texts.txt --limit 4 -o decoder-fp8",
            "repair decoder --rotate --data texts.txt --limit 4 -o decoder-turned",
        ),
    ),
    Experiment(
        "mask", "explain",
        "Find tokens and dimensions to leave out of SAE training.\n\n"
        "Also for steering vectors. Reads texts, images or recordings.",
        home="analyses.mask", places=("to",), python="mask", options="MaskCall", takes=DATA,
        shared={"limit": Override(64, least=4), "verbose": Override(help="Show every block too.")},
        result="Mask",
        examples=(
            "mask mini-planted --data texts.txt --limit 4",
            "mask mini-planted --layer 3 --data texts.txt --limit 4 --export steering:steering.py",
        ),
    ),
    Experiment(
        "trace", "explain",
        "Follow one dimension: what writes it, reads it and ends it.\n\n"
        "Which parts write it, which heads read it.",
        home="analyses.trace", python="trace", options="TraceOptions",
        takes=CONDITIONS,
        shared=UNLABELLED
        | {"limit": Override(32, least=1), "verbose": Override(help="Show every block and every head too.")},
        result="Trace",
        examples=(
            "trace mini-planted --data texts.txt --limit 4",
            "trace mini-planted --dims 45 --data texts.txt --limit 4 -o life.json",
        ),
    ),
    Experiment(
        "lab attack", "train",
        "Measure how much damage few edits of sensitive values do, and how many of them verify finds; all in memory.\n\n"
        "Measurements are kept in runs/MODEL-attack: the same command continues a stopped run.",
        home="analyses.attack", python="attack", options="AttackOptions",
        shared={"data": Override(REQUIRED, help="Text to measure damage on: a file or a hub id."), "limit": Override(28)},
        result="Attack",
        examples=(
            "lab attack mini-planted --data reviews --limit 6 --budget 1 --kinds zero --tries 2 --sets 1 --random 1",
            "lab attack mini-planted --dims 8 --data reviews --limit 6 --budget 1 --kinds sign-flip --tries 2 --sets 1 "
            "--random 1",
        ),
    ),
    Experiment(
        "report", "show",
        "Run the main analyses and write one self-contained page.\n\n"
        "A model in place of the command is reported, too. "
        "Outliers, statistics of states, and what ablation breaks, against controls. MODEL may also be the "
        "results.json of an earlier report: the page is then made again, without torch. With --compare A B each model "
        "that has no finished report is measured, in a folder of its own, and one page shows both.",
        home="report", odd=True, writes="folder", options="ReportOptions", takes=("options", "reading", "output", "loading"),
        shared={
            "data": Override("", help="Text: a file or a hub id. Default: shipped reviews for packaged samples, else excerpt."),
            "limit": LIMIT, "output": Override(help="Run directory. Default: runs/MODEL."),
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
        "Open a live page: dimensions ablated, against random ones.",
        home="explore", measure=".command:run", options=".state:ExploreOptions",
        takes=("subject", "options", "output", "loading"),
        shared={
            "model": Override("mini-planted", help="Sample, directory or hub id; mini-* need no download."),
            "chart": None, "verbose": None,
        },
        result=".look:Exploration",
        examples=(
            "explore mini-planted --show loss --text 'A film worth seeing.'  # no page: one comparison, printed",
            "explore mini-planted --show attention --dims 8 --text 'A film worth seeing.' -o seen.json",
        ),
    ),
    Experiment(
        "doctor", "show",
        "Print versions, devices, caches and missing packages.\n\n"
        "For which command something is missing; changes nothing. Exit code 0; 1 where something that is installed is "
        "broken.",
        home="cli", measure=".doctor", odd=True, options=".doctor:DoctorOptions", takes=("options", "output"),
        shared=dict.fromkeys(("chart", "output", "overwrite", "quiet", "verbose")),
        examples=(
            "doctor",
            "doctor --devices",
        ),
    ),
    Experiment(
        "fetch", "show",
        "List the sample models, or fetch some.\n\n"
        "Into the user's cache, verified by hash; existing files are kept.",
        home="cli", measure=".doctor:fetch", odd=True, options=".doctor:FetchOptions",
        takes=("options", "output"),
        shared=dict.fromkeys(("chart", "output", "overwrite", "verbose")),
        examples=(
            "fetch",
            "fetch mini-planted mini-bert",
        ),
    ),
)  # fmt: skip
BY_NAME = {row.name: row for row in EXPERIMENTS}
BY_RESULT = {kind: row for row in EXPERIMENTS for kind in row.kinds}
