"""The pass: every tensor of a running model, its largest |x| with its place, and how its values lie by exponent.

    found = range_of(load_model("smollm2-135m"), read_texts("excerpt"), RangeOptions(chat_template=True))
    found.top("MLP inner").headroom("fp16")

Maxima rest on every token that is no padding; medians and shares on a fixed sample of them. One batch is held at a time.
"""

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import BoundStack
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.live import LiveCheckpoint
from outlierlens.data.texts import Batch, Data, Texts
from outlierlens.errors import BadFile, BadInput, one_line
from outlierlens.experiments.range.keys import key_biases
from outlierlens.experiments.range.options import RangeOptions
from outlierlens.experiments.range.result import KINDS, Ranges, TensorRange
from outlierlens.experiments.range.weights import weights_range
from outlierlens.models.passes import in_windows

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.experiments.range.cache import CacheErrors
    from outlierlens.experiments.range.places import Place
    from outlierlens.experiments.range.tally import Kept, Key, Tally
    from outlierlens.models.load import LoadedModel
    from outlierlens.models.passes import Reading
    from outlierlens.session import Session

Progress = Callable[[str, int, int], None] | None
HEAD_ROWS = 256  # tokens whose logits are held at once


def range_of(
    loaded: "LoadedModel", texts: Data, options: RangeOptions | None = None, *, progress: Progress = None
) -> Ranges:
    """The largest |x| of every tensor over `texts`, with its place, and its values held against number formats.

    `texts` may be pictures or recordings (`media.Items`); a token is then a patch, or a frame of sound.

    Raises:
        BadInput: the model reads no such data; a template is asked for and there is none, or the data is no text.
    """
    from outlierlens.models.passes import reading_of

    options = options or RangeOptions()
    if options.weights:
        raise BadInput(
            "RangeOptions(weights=True) reads a checkpoint, not a loaded model; call weights_range(checkpoint)"
        )
    as_turns = templated(loaded, texts) if options.chat_template else None
    reading = reading_of(loaded, texts, options.max_length)
    plain = Pass(loaded, reading, options)
    plain.read(texts, progress, "plain texts" if as_turns else f"reading {reading.inputs}")
    other = Pass(loaded, reading, options)
    if as_turns:
        other.read(as_turns, progress, "templated texts")
    return Ranges(
        provenance=loaded.provenance(),
        data=texts.source,
        data_digest=texts.digest,
        inputs=reading.inputs,
        n_texts=len(texts),
        n_tokens=plain.n_tokens,
        max_length=reading.max_length,
        every=options.every,
        rows=plain.rows(),
        templated=other.rows(),
        notes=(*loaded.notes, *reading.notes, *plain.notes()),
        keys=key_biases(LiveCheckpoint(loaded.model, name=loaded.name, config=loaded.config)) if options.cache else (),
        cache=plain.cache.rows() if plain.cache is not None else (),
        never_fed=plain.never_fed(),
    )


def templated(loaded: "LoadedModel", texts: Data) -> Texts:
    """Each text as one user turn of the tokenizer's chat template, ready for the answer.

    Raises:
        BadInput: the data is no text, or the tokenizer has no template. BadFile: the template fails.
    """
    from outlierlens.models.inputs import tokenizer_of

    if not isinstance(texts, Texts):
        raise BadInput("--chat-template is for texts; pictures and recordings have no turns")
    tokenizer: Any = tokenizer_of(loaded)
    if not getattr(tokenizer, "chat_template", None):
        raise BadInput(
            f"{loaded.name}: its tokenizer has no chat template; leave --chat-template out, or name a tokenizer that has "
            "one (--tokenizer)"
        )
    try:
        turns = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
            for text in texts.texts
        ]
    except MemoryError:
        raise
    except Exception as error:  # a template is a program of its own, and may fail in every way
        raise BadFile(
            f"{loaded.name}: its chat template fails ({one_line(f'{type(error).__name__}: {error}')[:300]}); leave "
            f"--chat-template out, or name another --tokenizer"
        ) from error
    # Where the tokenizer puts its first token before every text, the template's own would be a second one.
    begin = tokenizer.bos_token or ""
    twice = begin and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    return replace(texts, texts=tuple(turn.removeprefix(begin) if twice else turn for turn in turns))


@dataclass
class _Running:
    """Where a stream is in a pass: the layer that runs, −1 outside, and the stream as the layer reads it."""

    stack: BoundStack
    layer: int = -1
    states: Any = None

    @property
    def running(self) -> str:
        """The name of the layer that runs, or of the one next to it."""
        return str(min(max(self.layer, 0), self.stack.n_layers - 1))


@dataclass
class Pass:
    """One reading of all texts.

    Attributes:
        watched: (path of a module or of packed experts, "reads" or "gives") whose entries are kept apart.
        peaks: largest |x| of each entry of these [expert, entry]; one row of what is no expert's.
    """

    loaded: "LoadedModel"
    reading: "Reading"
    options: RangeOptions
    watched: Collection[tuple[str, str]] = ()
    n_tokens: int = 0
    peaks: dict[tuple[str, str], "Tensor"] = field(init=False, default_factory=dict)
    tally: "Tally" = field(init=False)
    fed: set[str] = field(init=False, default_factory=set)
    cache: "CacheErrors | None" = field(init=False, default=None)
    places: dict[str, "tuple[Place, ...]"] = field(init=False)

    def __post_init__(self) -> None:
        from outlierlens.experiments.range.places import find_places, packed_kinds
        from outlierlens.experiments.range.tally import Tally

        self.tally = Tally(self.options.every)
        if self.options.cache:
            from outlierlens.experiments.range.cache import CacheErrors

            self.cache = CacheErrors()
        self.places = {stack.name: find_places(self.loaded, stack) for stack in self.reading.stacks}
        self.packed = {stack.name: packed_kinds(self.loaded, stack) for stack in self.reading.stacks}
        self.running = [_Running(stack) for stack in self.reading.stacks]

    def read(self, texts: Data, progress: Progress, label: str) -> None:
        """Run the model on all of `texts`; raises BadInput where no token came of them."""
        for batch in in_windows(self.reading, texts, self.options.batch_size, progress, label):
            self.consume(batch)
        if not self.n_tokens:
            raise BadInput("the tokenizer made no token of these texts, so there is no range to measure")

    def consume(self, batch: Batch) -> None:
        """Run the model on a batch and take all its tensors."""
        import torch

        from outlierlens.experiments.range.tally import BatchRows
        from outlierlens.models.attention_logits import Looks, tapped_logits
        from outlierlens.models.calls import head_read, tapped_calls
        from outlierlens.models.expert_calls import tapped_experts
        from outlierlens.models.hooks import tapped

        sides = self.reading.sides(batch)
        tokens = {name: numbers for name, (numbers, _) in sides.items()}
        self.tally.begin(BatchRows(batch.valid, tokens, batch.texts))
        looks = {}
        experts: dict[str, Callable[[int, Tensor, Tensor], None]] = {}
        for one in self.running:
            one.layer, one.states = -1, None
            for place in self.places[one.stack.name]:
                looks[place.module] = self._look_at(one, place)
            for name, kinds in self.packed[one.stack.name].items():
                experts[name] = self._look_at_expert(one, name, kinds)
        attention = Looks(self._attended, self._sizes("q·k"), self._sizes("attention logits"))
        model = self.loaded.model
        with torch.inference_mode(), ExitStack() as open_:
            open_.enter_context(tapped(model, self.reading.stacks, self._stream))
            open_.enter_context(tapped_calls(model, looks))
            open_.enter_context(tapped_experts(model, experts))
            open_.enter_context(tapped_logits(attention))
            if self._has_head:
                open_.enter_context(head_read(model, self._logits))
                model(**self.reading.arguments(batch))
            else:
                self.reading(batch)
        self.tally.end()
        self.n_tokens += int(batch.valid.sum())

    @property
    def _has_head(self) -> bool:
        """Whether the model reads texts and has a vocabulary head."""
        head: Any = getattr(self.loaded.model, "get_output_embeddings", lambda: None)()
        return head is not None and self.reading.inputs == "texts"

    def _stream(self, stack: BoundStack, layer: int, states: "Tensor") -> None:
        from outlierlens.models.hooks import layer_name

        one = next(one for one in self.running if one.stack is stack)
        one.layer, one.states = layer + 1, states
        self.tally.add((stack.name, "stream", layer_name(layer)), "" if layer < 0 else stack.blocks[layer], states)

    @property
    def _inside(self) -> _Running | None:
        """The stream one of whose blocks runs."""
        return next((one for one in self.running if 0 <= one.layer < one.stack.n_layers), None)

    def _look_at(self, one: _Running, place: "Place") -> Callable[["Tensor", "Tensor"], None]:
        """What takes the input and output of a module, in the layer that runs."""
        from outlierlens.experiments.range.tally import add_peaks

        def look(given: "Tensor", made: "Tensor") -> None:
            layer = place.layer or one.running
            name = one.stack.name
            if given.numel():
                self.fed.add(place.name)
            shown = self._as_rows(one.stack, given)
            for side, states in (("reads", given), ("gives", made)):
                if (place.name, side) in self.watched:
                    add_peaks(self.peaks, (place.name, side), self._valid(self._as_rows(one.stack, states)))
            # Where attention and MLP run side by side, the second norm reads the block's input too.
            beside = one.states is not None and given.data_ptr() == one.states.data_ptr()
            if place.reads and not (place.squares and beside):
                self.tally.add((name, place.reads, layer), place.name, shown)
            if place.gives:
                self.tally.add((name, place.gives, layer), place.name, self._as_rows(one.stack, made))
                if place.squares and place.gives != "norm output":
                    self.tally.add((name, "norm output", layer), place.name, self._as_rows(one.stack, made))
            if place.squares:
                self.tally.add_rows((name, "norm sum of squares", layer), place.name, self._squares(place, given, one))

        return look

    def _look_at_expert(
        self, one: _Running, name: str, kinds: tuple[str, str]
    ) -> Callable[[int, "Tensor", "Tensor"], None]:
        """What takes the input and output of one expert's matrix; nobody knows whose tokens it has."""
        from outlierlens.experiments.range.tally import add_peaks

        n_experts = self.loaded.model.get_parameter(name).shape[0]

        def look(expert: int, given: "Tensor", made: "Tensor") -> None:
            if len(given):
                self.fed.add(f"{name}, expert {expert}")
            for side, kind, states in zip(("reads", "gives"), kinds, (given, made), strict=True):
                self.tally.add((one.stack.name, kind, one.running), name, states)
                if (name, side) in self.watched and len(states):
                    add_peaks(self.peaks, (name, side), states, expert, n_experts)

        return look

    def _valid(self, states: "Tensor") -> "Tensor":
        """The rows of a tensor that are tokens; all of them where rows are none."""
        assert self.tally.rows is not None, "a batch runs"
        valid = self.tally.rows.valid
        return states[valid] if states.shape[:2] == valid.shape else states.flatten(0, -2)

    def _squares(self, place: "Place", given: "Tensor", one: _Running) -> "Tensor":
        """Σx² of what a norm reads, or Σ(x − mean)² [batch, token]; of several heads the largest."""
        import torch

        given = given.float()
        width = given.shape[-1]
        squares = torch.linalg.vector_norm(given, dim=-1).square()
        if place.centred:
            squares = (squares - given.sum(-1).square() / width).clamp_min(0)
        rows = self._as_rows(one.stack, squares[..., None])
        return rows.amax(-1) if rows.ndim == 3 else squares

    def _as_rows(self, stack: BoundStack, states: "Tensor") -> "Tensor":
        """[batch, token, dim] of a tensor that has the batch's tokens in another order of axes; else as it is."""
        assert self.tally.rows is not None, "a batch runs"
        shape = self.tally.rows.valid.shape
        if stack.stack.token_first and states.shape[:2] == shape[::-1] and states.ndim > 2:
            states = states.transpose(0, 1)
        if states.ndim == 4 and states.shape[:2] != shape and states.shape[::2][:2] == shape:
            states = states.transpose(1, 2)  # [batch, head, token, dim]
        if states.shape[:2] == shape and states.ndim > 3:
            return states.flatten(2)
        if states.ndim == 2 and len(states) == shape.numel() and shape.numel() > 0:
            return states.reshape(*shape, -1)
        return states

    def _attended(self, name: str, states: "Tensor") -> None:
        one = self._inside
        if one is not None:
            self.tally.add((one.stack.name, name, str(one.layer)), "", states)
            rows = self.tally.rows
            if self.cache is not None and rows is not None and name != "q" and states.shape[:2] == rows.valid.shape:
                self.cache.add(str(one.layer), name, states, rows.valid)

    def _sizes(self, kind: str) -> Callable[["Tensor"], None]:
        def look(sizes: "Tensor") -> None:
            one = self._inside
            if one is not None:
                self.tally.add_rows((one.stack.name, kind, str(one.layer)), "", sizes)

        return look

    def _logits(self, states: "Tensor", head: Callable[["Tensor"], "Tensor"]) -> None:
        """Logits of the tokens that are no padding, some at a time."""
        assert self.tally.rows is not None, "a batch runs"
        valid = self.tally.rows.valid
        if states.shape[:2] != valid.shape:
            return
        rows = valid.flatten().nonzero().flatten()
        flat = states.reshape(-1, states.shape[-1])
        for some in rows.split(HEAD_ROWS):
            key = (self.running[-1].stack.name, "logits", "head")
            self.tally.add_some(key, "", head(flat.index_select(0, some)), some)

    def rows(self) -> tuple[TensorRange, ...]:
        """What was found, by stream, kind and layer in order; () of nothing."""
        order = {kind: place for place, kind in enumerate(KINDS)}
        streams = [stack.name for stack in self.reading.stacks]
        ends = {"embeddings": -1, "final": 10**6, "head": 10**6}

        def place(key: "Key") -> tuple[int, int, int]:
            return streams.index(key[0]), order[key[1]], ends[key[2]] if key[2] in ends else int(key[2])

        kept = sorted(self.tally.found.items(), key=lambda item: place(item[0]))
        words = self.reading.words([one.word for _, one in kept])
        return tuple(self._row(key, one, word) for (key, one), word in zip(kept, words, strict=True))

    def _row(self, key: "Key", one: "Kept", word: str) -> TensorRange:
        from outlierlens.experiments.range.tally import below, median_of

        row = TensorRange(*key, one.module, max(one.largest, 0.0), one.text, one.token, word, one.dim, nan=one.nan)
        if one.counts is None:
            return row
        counts = one.counts.cpu().numpy()
        return replace(row, n_values=int(counts.sum()), median=median_of(counts), below=below(counts))

    def never_fed(self) -> tuple[str, ...]:
        """Modules, and experts of packed ones, that no token reached."""
        of = self.loaded.model.get_parameter
        names = [place.name for places in self.places.values() for place in places]
        packed = dict.fromkeys(name for kinds in self.packed.values() for name in kinds)
        experts = [f"{name}, expert {expert}" for name in packed for expert in range(of(name).shape[0])]
        return tuple(name for name in dict.fromkeys((*names, *experts)) if name not in self.fed)

    def notes(self) -> tuple[str, ...]:
        """Kinds that this model has no module for."""
        seen = {(stack, kind) for stack, kind, _ in self.tally.found}
        said = []
        for stack in self.reading.stacks:
            missing = [kind for kind in KINDS if (stack.name, kind) not in seen and kind != "logits"]
            if missing:
                said.append(
                    f"stream {stack.name}: not seen, because the model has no such tensor or no module of its own that "
                    f"gives it: {', '.join(missing)}"
                )
        return tuple(said)


def run(session: "Session", options: RangeOptions) -> Ranges:
    """What the command finds."""
    if options.weights:
        one = session.loading
        with open_checkpoint(
            session.subject.model, revision=one.revision, subfolder=one.subfolder, token=one.token, offline=one.offline
        ) as checkpoint:
            return weights_range(checkpoint, progress=session.progress)
    data = session.task_reading.read(offline=session.loading.offline)
    return range_of(session.loaded, data, options, progress=session.progress)
