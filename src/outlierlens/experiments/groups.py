"""What several rows of the table say alike: the groups of options that they take, and what is other about them."""

from outlierlens.options import REQUIRED, Other

MODELS = ("options", "output", "source")
CONDITIONS = ("subject", "task", "options", "output", "loading")
TOKENS = ("subject", "reading", "options", "vectors", "output", "loading")
REPAIRED = ("subject", "reading", "options", "vectors", "fitting", "output", "loading")
WEIGHTS = ("subject", "options", "output", "source")
SPLITS = ("subject", "splits", "options", "output", "loading")
VECTORS = ("subject", "options", "vectors", "fitting", "output", "loading")
EXAMPLES = ("subject", "task", "options", "output", "loading")
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
