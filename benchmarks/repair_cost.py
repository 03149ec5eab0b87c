"""What rounding costs before and after a repair: as it is, `--fit int8`, the same factors elsewhere, `--rotate`, both, and
`--rotate` with the factors elsewhere.

    python benchmarks/repair_cost.py                                            # a random Llama of one layer, 2 texts
    OMP_NUM_THREADS=1 python benchmarks/repair_cost.py smollm2-135m --limit 32 --checked 16 --controls 3 -o cost.jsonl
    python benchmarks/repair_cost.py small-llama --train DATA/imdb/train.parquet --steps 6000   # on a GPU

A control has factors of the same sizes in each linear, on random neurons of which none is spiky (16 times the median neuron or
more). All copies give the outputs of the model in float32, so that their cost is held against one intact
loss. A line is appended for each copy and scheme, and a rerun goes on.

Weights read from a 4-bit file lie on its grid, which flatters what is not turned where they are rounded to 4 bits. `--off-grid`
moves each weight of the linears by up to half a step of its group of 32: the same outliers, on no grid. Factors rest on
`--checked` texts behind the measured ones. `--only "as it is,rotate"` makes these copies alone.

Weights of a Llama that `--train` pre-trains lie on no grid either: float32, 8 x 320, a byte-level BPE of 8,192 made of the same
texts, blocks of 256 tokens in batches of 64, 1e-3 after a warm-up of 200 steps, falling linearly. It is saved under the name
given, and then measured.
"""

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timing import asked, random_llama
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)  # fmt: skip

import outlierlens as ol
from outlierlens.analyses.quantize_places import find_places
from outlierlens.analyses.quantize_schemes import parse_all
from outlierlens.analyses.repair import plan_for
from outlierlens.analyses.repair_factors import CheckData, check_of, outputs, sizes_of
from outlierlens.analyses.repair_rewriting import RewritingPlan, repaired, rotated
from outlierlens.errors import BadInput
from outlierlens.models.load import from_objects
from outlierlens.options import QuantizeOptions
from outlierlens.tasks.base import TaskOptions

SCHEMES = "int8-tensor/int8-tensor,int8-channel/int8-token,none/int4-token,int4-channel/int4-token"


SPIKY = 16.0  # times the median neuron of its linear


def elsewhere(exponents: torch.Tensor, top: torch.Tensor, seed: int) -> torch.Tensor:
    """The exponents of a linear's neurons, the largest first, on random neurons that are not spiky."""
    calm = (top < SPIKY * top.median()).nonzero().flatten()
    order = torch.randperm(len(calm), generator=torch.Generator().manual_seed(seed))
    made = torch.zeros_like(exponents)
    made[calm[order]] = exponents.sort().values[: len(calm)]  # all are 0 or below
    return made


def move_off_grid(loaded: Any, group: int = 32) -> None:
    """Add to each weight of the blocks' linears what is uniform in ± half the least difference of its group."""
    random = torch.Generator().manual_seed(0)
    for place in find_places(loaded):
        with torch.no_grad():
            groups = place.module.weight.view(-1, group)
            gaps = groups.sort(dim=1).values.diff(dim=1)
            step = gaps.where(gaps > 1e-6 * groups.abs().amax(dim=1, keepdim=True), torch.inf).amin(dim=1, keepdim=True)
            noise = torch.rand(groups.shape, generator=random).to(groups.device) - 0.5
            groups += noise * step.where(step.isfinite(), 0)


@dataclass(frozen=True)
class Fitted:
    """The factors that `--fit int8` chooses, with the largest inputs of each linear's neurons; none where no factor helps."""

    factors: list[Any]
    tops: dict[str, torch.Tensor]

    def plan(self, seed: int | None = None) -> RewritingPlan:
        """Its plan, or with a seed that of a control."""
        return RewritingPlan().pairs(
            [
                (pair, exponents if seed is None else elsewhere(exponents, self.tops[pair.seen[0][0]], seed))
                for pair, exponents in self.factors
            ]
        )


def fitted(loaded: Any, check: CheckData) -> Fitted:
    """What `--fit int8` does to the model as it is."""
    sizes = sizes_of(loaded, check)
    try:
        _, _, factors = plan_for(loaded, sizes, check.arguments, "int8", margin=1)
    except BadInput as error:
        print(error)
        factors = []
    return Fitted(factors, {pair.seen[0][0]: top for pair, top in sizes.inputs})


def copies(loaded: Any, texts: Any, how: Any) -> Iterator[tuple[str, Callable[[ExitStack], bool]]]:
    """(name, what makes the model that copy until a stack is closed, and says whether it can)."""
    check = check_of(loaded, texts, max_length=how.max_length, seed=0)
    intact = functools.cache(lambda: fitted(loaded, check))

    def fit(open_: ExitStack, found: Fitted, seed: int | None = None) -> bool:
        open_.enter_context(repaired(loaded, found.plan(seed)))
        return bool(found.factors)

    def turn(open_: ExitStack) -> bool:
        try:
            run = functools.partial(outputs, loaded.model, check.arguments)
            open_.enter_context(rotated(loaded, lambda: torch.cat([one.flatten() for one in run()]), seed=0))
        except BadInput as error:
            print(error)
            return False
        return True

    yield "as it is", lambda open_: True
    yield "--fit int8", lambda open_: fit(open_, intact())
    for seed in range(how.controls):
        yield f"control {seed}", lambda open_, seed=seed: fit(open_, intact(), seed)
    yield "--rotate", turn
    turned = functools.cache(lambda: fitted(loaded, check))  # called while the model is turned
    yield "--rotate --fit int8", lambda open_: turn(open_) and fit(open_, turned())
    for seed in range(how.controls):
        yield f"--rotate control {seed}", lambda open_, seed=seed: turn(open_) and fit(open_, turned(), seed)


LENGTH = 256  # tokens of a block


def pretrained(texts: tuple[str, ...], steps: int, folder: Path) -> None:
    """Write a small Llama that read the texts, each begun by <bos>, and its tokenizer."""
    byte_level = ByteLevelBPETokenizer()
    byte_level.train_from_iterator(texts, vocab_size=8192, special_tokens=["<bos>"], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level._tokenizer, bos_token="<bos>", pad_token="<bos>")
    ids = [one for text in byte_level.encode_batch(list(texts)) for one in (0, *text.ids)]
    blocks = [{"input_ids": ids[at : at + LENGTH]} for at in range(0, len(ids) - LENGTH + 1, LENGTH)]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192, hidden_size=320, intermediate_size=864, num_hidden_layers=8, num_attention_heads=5,
        num_key_value_heads=1, max_position_embeddings=LENGTH, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    how = TrainingArguments(
        str(folder / "trained"), max_steps=steps, per_device_train_batch_size=64, learning_rate=1e-3, warmup_steps=200,
        weight_decay=0.1, adam_beta2=0.95, bf16=torch.cuda.is_available(), save_strategy="no", report_to="none",
    )  # fmt: skip
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = Trainer(LlamaForCausalLM(config), how, data_collator=collator, train_dataset=blocks)
    trainer.train()
    for one in (trainer.model, tokenizer):
        one.save_pretrained(folder)


def main() -> None:
    """Measure every copy that is not in the file yet."""
    how = asked(
        __doc__, {"model": ""}, data="excerpt", limit=2, max_length=64, checked=2, controls=0, schemes=SCHEMES,
        off_grid=False, only="", train=str, steps=6000, output=Path("repair-cost.jsonl"),
    )  # fmt: skip
    if how.train:
        pretrained(ol.read_texts(how.train).texts, how.steps, Path(how.model))
    before = how.output.read_text().splitlines() if how.model and how.output.exists() else []
    done = {(row["copy"], row["scheme"]) for row in map(json.loads, before)}
    loaded = ol.load_model(how.model or "mini-planted")
    if not how.model:
        loaded = from_objects(random_llama(1, len(loaded.tokenizer)), loaded.tokenizer, name="random")
    if how.off_grid:
        move_off_grid(loaded)
    read = ol.read_texts(how.data, limit=how.limit + how.checked)
    texts, others = read.first(how.limit), read.some(range(how.limit, len(read)))
    plain: dict[str, float] = {}
    for name, copy in copies(loaded, others, how):
        recipes = tuple(one for one in parse_all(how.schemes) if (name, str(one)) not in done)
        if not recipes or (how.only and name.lstrip("-") not in how.only.split(",")):
            continue
        with ExitStack() as open_:
            if not copy(open_):
                continue
            options = QuantizeOptions(
                recipes=recipes, dims=(0,), n_random=0, threshold=None, alpha=None, n_error_texts=1, noise_draws=0,
                task=TaskOptions(max_length=how.max_length),
            )  # fmt: skip
            found = ol.quantize(loaded, texts, options)
        intact, about = found.settings[0].value.value, found.about
        for scheme in found.says:
            cost = found.setting(scheme).change
            row = {"copy": name, "scheme": scheme, "intact": intact, "change": cost.value, "low": cost.low}
            row |= {"high": cost.high, "texts": about.n_texts, "tokens": about.n_tokens}
            if how.model:
                with how.output.open("a") as out:
                    out.write(json.dumps(row) + "\n")
            plain.setdefault(scheme, cost.value)  # of the copy that comes first
            print(json.dumps(row), f"{cost.value / plain[scheme]:.2f} of the first copy's", flush=True)


if __name__ == "__main__":
    main()
