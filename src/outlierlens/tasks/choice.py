"""Pick the task that fits a model and what it is to read."""

from collections.abc import Sequence

from outlierlens.data.labelled import Examples
from outlierlens.data.media import Items, LabelledItems
from outlierlens.data.texts import Data, Texts
from outlierlens.errors import BadInput, near
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import Task, TaskOptions

FITTING = {"causal": "causal loss", "masked": "masked loss", "other": "output change", "none": "output change"}
CHANGES = ("output change", "sentence change")  # of any model that reads text
LABELLED = "labelled"


def make_task(loaded: LoadedModel, texts: Data | Sequence[str], options: TaskOptions | None = None) -> Task:
    """The task `options.name`; "auto" is the one that fits the model's head, or the examples' own where they have labels.

    Raises:
        BadInput: the head cannot do the task, no text is long enough, or the examples' labels are not the model's.
    """
    options = options or TaskOptions()
    name = options.name
    if name == LABELLED or (name == "auto" and isinstance(texts, Examples | LabelledItems)):
        if not isinstance(texts, Examples | LabelledItems):
            raise BadInput("a labelled task needs examples with labels: read_examples(find_task(…), …)")
        from outlierlens.tasks.classify import LabelledScore

        return LabelledScore(loaded, texts, options)
    if isinstance(texts, Items):
        from outlierlens.tasks.output_change import OutputChange

        if name not in ("auto", "output change"):
            raise BadInput(
                f"{name!r} is a task of texts; of {texts.kind} data there are classification and 'output change'"
            )
        return OutputChange(loaded, texts, options)
    plain: Sequence[str] = texts.texts if isinstance(texts, Texts) else texts  # type: ignore[assignment]
    if name == "auto":
        name = FITTING[loaded.head]  # type: ignore[assignment]
    if name in CHANGES:
        from outlierlens.tasks.output_change import OutputChange, SentenceChange

        return (OutputChange if name == "output change" else SentenceChange)(loaded, plain, options)
    if name not in FITTING.values():
        known = dict.fromkeys((*FITTING.values(), *CHANGES))
        raise BadInput(f"unknown task {name!r}; tasks are auto, {', '.join(known)}{near(name, known)}")
    if name != FITTING[loaded.head]:
        lacks = ", or no mask token," * (name == FITTING["masked"])
        raise BadInput(
            f"{loaded.name} has no head{lacks} for {name!r}; the task that fits it is {FITTING[loaded.head]!r}"
        )
    from outlierlens.tasks.language_model import CausalLoss, MaskedLoss

    return CausalLoss(loaded, plain, options) if name == "causal loss" else MaskedLoss(loaded, plain, options)
