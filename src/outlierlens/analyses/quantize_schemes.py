"""Schemes as data, and tensors rounded by them: into which numbers, and which values share a step.

    parse("int8-channel/int8-token")          # weights / inputs of every linear
    parse("int4-group32-asym/none")           # weights alone, in groups of 32 inputs, with a zero point
    parse("e4m3-tensor/e4m3-tensor")          # 8-bit floating point
    parse("nvfp4")                            # "e2m1-group16-e4m3/e2m1-group16-e4m3": 4 bits, steps themselves in 8
    parse("q5_1")                             # blocks of a GGUF file, by gguf's own code
    fake_quantize(weight, scheme, exempt=kept)                         # [out, in]; kept stays, and widens no range
    fake_quantize_inputs(reads, scheme, valid, exempt=None)            # [text, token, in]

Numbers: int8, int4, int3, int2; e4m3, e5m2, e2m1 (floating point); nf4 (QLoRA's quantiles of a normal); GGUF's types. What
shares a step: "tensor", "channel" (weights of one output), "token" (inputs of one token), "groupN" (N neighbours among the
weights of one output, or the inputs of one token). "-asym" gives integers a zero point; "-e8m0" makes steps of floating-point
groups powers of two (MX formats), "-e4m3" 8-bit numbers times one step per tensor (NVFP4; of inputs, per text).

What is rounded stays a floating-point number. Integers: step · (clip(round(x · (1 / step)) + zero) − zero), rounding halves to
even, as `torch.fake_quantize_*` does it. Floating point: step · cast(clip(x / step)), step = largest |x| / largest of the
format. All in float32 (float64 stays). Sources: OCP Microscaling Formats (MX) v1.0 (2023); NVFP4 as compressed-tensors computes
it; Dettmers et al. (2023), QLoRA.
"""

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from outlierlens.errors import USE_FLOAT32, BadInput, near, need

if TYPE_CHECKING:
    from torch import Tensor

Number = Literal[
    "int8",
    "int4",
    "int3",
    "int2",
    "e4m3",
    "e5m2",
    "e2m1",
    "nf4",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "tq1_0",
    "tq2_0",
]
StepKind = Literal["", "e8m0", "e4m3"]
Grain = Literal["tensor", "channel", "token", "group"]
# Levels of symmetric integers on each side of zero: one code is given up so that zero and signs are exact.
LEVELS = {"int8": 127, "int4": 7, "int3": 3, "int2": 1}
# Largest finite value: Micikevicius et al. (2022), "FP8 Formats for Deep Learning", table 1; OCP MX, table 1.
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0, "nf4": 1.0}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # and their negatives
# Dettmers et al. (2023), "QLoRA", appendix E; float32 as bitsandbytes prints them.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
BITS = {"int8": 8, "e4m3": 8, "e5m2": 8, "int4": 4, "e2m1": 4, "nf4": 4, "int3": 3, "int2": 2}
GGUF = {"q4_0": 32, "q4_1": 32, "q5_0": 32, "q5_1": 32, "q8_0": 32, "tq1_0": 256, "tq2_0": 256}  # values of a block
GROUP = 32
# What tools call common recipes: bits of weights and activations, GGUF's types.
NAMES = {
    "int8": "int8-tensor/int8-tensor", "w8a8": "int8-channel/int8-token", "w8a16": "int8-channel/none",
    "int4": f"int4-group{GROUP}/none", "w4a16": "int4-group128/none", "fp8": "e4m3-tensor/e4m3-tensor",
    "mxfp4": "e2m1-group32-e8m0/e2m1-group32-e8m0", "mxfp4a16": "e2m1-group32-e8m0/none",
    "mxfp8": "e4m3-group32-e8m0/e4m3-group32-e8m0", "nvfp4": "e2m1-group16-e4m3/e2m1-group16-e4m3",
    "nvfp4a16": "e2m1-group16-e4m3/none", "nf4": "nf4-group64/none", **{name: f"{name}/none" for name in GGUF},
}  # fmt: skip
_SPELLING = re.compile(
    r"(?P<number>[a-z0-9]+)-(?P<grain>[a-z]+)(?P<group>\d{1,9})?(?:(?P<asym>-asym)|-(?P<steps>e8m0|e4m3))?"
)
SMALLEST = 2.0**-126  # step: the smallest whose reciprocal is finite in float32


@dataclass(frozen=True)
class Scheme:
    """How one tensor is rounded.

    Attributes:
        number: what values become: "int8" to "int2"; floating point "e4m3" (3 bits of mantissa, up to 448), "e5m2" (2, up to
            57,344), "e2m1" (1, up to 6); "nf4"; or a type of GGUF, which has its own groups.
        grain: which values share a step: all of them ("tensor"; of inputs all tokens of one text), "channel" those that one
            output of a linear is made with, "token" those of one token, "group" `group` neighbours of a channel.
        group: size of a group, None for other grains.
        symmetric: steps reach as far below zero as above it; False shifts integers by a zero point, so that the range is from
            the smallest value (or 0) to the largest (or 0).
        steps: of groups of floating-point numbers: "e8m0" powers of two, "e4m3" 8-bit numbers times one step per tensor.
    """

    number: Number
    grain: Grain
    group: int | None = None
    symmetric: bool = True
    steps: StepKind = ""

    def __post_init__(self) -> None:
        if self.number not in get_args(Number):
            raise BadInput(f"unknown number {self.number!r}; numbers are {', '.join(get_args(Number))}")
        if self.grain not in get_args(Grain):
            raise BadInput(f"unknown grain {self.grain!r}; grains are {', '.join(get_args(Grain))}")
        if (self.grain == "group") != (self.group is not None) or (self.group is not None and self.group < 1):
            raise BadInput(f"{self.number}-{self.grain}: a group, and nothing else, has a size of at least 1: group32")
        if not self.symmetric and self.number not in LEVELS:
            raise BadInput(f"{self.number} has no zero point; -asym belongs to {', '.join(LEVELS)}")
        if self.steps and (self.grain != "group" or self.number not in LARGEST or self.number == "nf4"):
            raise BadInput(f"{self.name}: steps of {self.steps} belong to groups of e2m1, e4m3 or e5m2")

    @property
    def name(self) -> str:
        """As `parse` reads it: "int4-group32-asym"."""
        end = "-asym" * (not self.symmetric) + f"-{self.steps}" * bool(self.steps)
        return self.number if self.number in GGUF else f"{self.number}-{self.grain}{self.group or ''}{end}"

    @property
    def bits(self) -> int:
        """Of one number, without its part of steps."""
        return BITS.get(self.number) or int(re.sub(r"\D", "", self.number.partition("_")[0]))

    @property
    def plain(self) -> bool:
        """Whether it is one of int8, int4 and FP8 with steps in full precision, as most tools know them."""
        return self.number in ("int8", "int4", "e4m3", "e5m2") and not self.steps

    @property
    def ends(self) -> tuple[int, int]:
        """Smallest and largest integer: −127 and 127 of symmetric int8, −128 and 127 of asymmetric."""
        levels = LEVELS[self.number]
        return (-levels if self.symmetric else -levels - 1), levels


@dataclass(frozen=True)
class SchemePair:
    """What happens to every linear of the blocks: schemes of its weights and of the inputs that it reads, or None."""

    weights: Scheme | None
    inputs: Scheme | None

    def __post_init__(self) -> None:
        if self.weights is None and self.inputs is None:
            raise BadInput("none/none rounds nothing; give the weights a scheme, or the inputs")
        if self.weights is not None and self.weights.grain == "token":
            raise BadInput(f"{self.weights.name}: weights have no tokens; use tensor, channel or group{GROUP}")
        inputs = self.inputs
        if inputs is not None and (inputs.number in GGUF or inputs.grain not in ("tensor", "token", "group")):
            raise BadInput(f"{inputs.name}: inputs are quantized per tensor, per token or in groups of a token")

    @property
    def name(self) -> str:
        """As `parse` reads it: "int8-channel/int8-token"."""
        return "/".join("none" if part is None else part.name for part in (self.weights, self.inputs))


def parse(text: str) -> SchemePair:
    """The recipe "WEIGHTS/INPUTS", such as "int8-channel/int8-token", or one of `NAMES`, such as "w8a8".

    Raises:
        BadInput: with the part that cannot be read.
    """
    parts = NAMES.get(text.strip().lower(), text.strip()).split("/")
    if len(parts) != 2:
        raise BadInput(
            f"cannot read scheme {text!r}; write WEIGHTS/INPUTS, such as int8-channel/int8-token, or {', '.join(NAMES)}"
            f"{near(text.strip().lower(), NAMES)}"
        )
    return SchemePair(*(None if part == "none" else _scheme(part, text) for part in parts))


def parse_all(text: str) -> tuple[SchemePair, ...]:
    """Recipes by commas, each once."""
    return tuple(dict.fromkeys(parse(part) for part in text.split(",")))


def _scheme(part: str, whole: str) -> Scheme:
    if part in GGUF:
        return Scheme(part, "group", GGUF[part])  # type: ignore[arg-type]
    read = _SPELLING.fullmatch(part)
    if read is None:
        remedy = f"write NUMBER-GRAIN, such as int8-tensor, int4-group{GROUP}-asym, e4m3-token, or none"
        raise BadInput(f"cannot read {part!r} in scheme {whole!r}; {remedy}")
    group = int(read["group"]) if read["group"] else None
    return Scheme(read["number"], read["grain"], group, read["asym"] is None, read["steps"] or "")  # type: ignore[arg-type]


DEFAULTS = parse_all("int8-tensor/int8-tensor,int8-channel/int8-token")
FINE = parse("int8-channel/int8-token")  # what stays in 8 bits


def fake_quantize(values: "Tensor", scheme: Scheme, *, exempt: "Tensor | None" = None) -> "Tensor":
    """Weights [out, in] rounded; what is `exempt` (bool, broadcast to that shape) stays as it is and takes part in no range.

    Raises:
        BadInput: an infinite value or a NaN, or a group size that does not divide the row.
    """
    wide = _widened(values)
    counted = wide if exempt is None else wide.masked_fill(exempt, 0.0)  # 0 is in every range
    blocks = _blocks(wide, scheme)
    if scheme.number in GGUF:
        rounded = _packed(counted, scheme)
    else:
        rounded = _rounded(blocks, *steps(_blocks(counted, scheme), scheme), scheme).reshape(wide.shape)
    return _back(values, rounded, exempt)


def fake_quantize_inputs(
    values: "Tensor", scheme: Scheme, valid: "Tensor | None" = None, *, exempt: "Tensor | None" = None
) -> "Tensor":
    """Inputs [text, token, in] rounded, per token or with one step per text; padding (not `valid`) takes part in no range.

    One step a text is what a model computes that reads texts one by one: no number depends on which texts share a batch.

    Raises:
        BadInput: an infinite value or a NaN.
    """
    wide = _widened(values)
    counted = wide if exempt is None else wide.masked_fill(exempt, 0.0)
    if valid is not None:
        counted = counted.masked_fill(~valid[..., None], 0.0)
    blocks = wide
    if scheme.grain == "tensor":
        blocks, counted = wide.flatten(1), counted.flatten(1)
    elif scheme.grain == "group":
        blocks, counted = _blocks(wide, scheme), _blocks(counted, scheme)
    rounded = _rounded(blocks, *steps(counted, scheme, texts=True), scheme).reshape(wide.shape)
    return _back(values, rounded, exempt)


def steps(blocks: "Tensor", scheme: Scheme, *, texts: bool = False) -> tuple["Tensor", "Tensor"]:
    """(step, zero point) [..., 1] of values that share one along the last axis; ranges always hold 0.

    Symmetric: step = max |x| / 127 (int8), / 7 (int4), / 3 (int3), / 1 (int2, nf4), / 448 (e4m3), / 57,344 (e5m2), / 6 (e2m1),
    zero point 0. Asymmetric: step = (max − min) / (2^bits − 1), zero point = smallest code − round(min / step). With `texts`
    the first axis is that of texts, each of which is a tensor of its own.
    """
    import torch

    low, high = blocks.amin(-1, keepdim=True).clamp(max=0.0), blocks.amax(-1, keepdim=True).clamp(min=0.0)
    if scheme.symmetric:
        step = torch.maximum(-low, high) / (LARGEST.get(scheme.number) or float(scheme.ends[1]))
    else:
        step = (high - low) / float(scheme.ends[1] - scheme.ends[0])
    # A NaN or an infinity among the values is one in the step.
    if not bool(step.isfinite().all()):
        what = "a value to be rounded is infinite or not a number, or the range is beyond float32: no step covers it"
        raise BadInput(f"{what}; {USE_FLOAT32}")
    if (
        scheme.steps == "e8m0"
    ):  # the largest value's exponent, less that of the format's largest: what is above saturates
        exponent = torch.frexp(torch.maximum(-low, high)).exponent - 1 - int(math.log2(LARGEST[scheme.number]))
        step = torch.where(step > 0, torch.ldexp(torch.ones_like(step), exponent.clamp(-127, 127)), step)
    elif scheme.steps == "e4m3":
        largest = step.flatten(int(texts)).amax(-1) * LARGEST[scheme.number]
        whole = LARGEST["e4m3"] * LARGEST[scheme.number] / largest.clamp(min=SMALLEST)
        whole = whole.reshape(*whole.shape, *[1] * (step.ndim - whole.ndim))
        scaled = (step * whole).clamp(max=LARGEST["e4m3"]).to(torch.float32).to(torch.float8_e4m3fn).to(step.dtype)
        step = scaled / whole
    step = step.clamp(min=SMALLEST)
    if scheme.symmetric:
        return step, torch.zeros_like(step)
    first, last = scheme.ends
    return step, (first - torch.round(low / step)).clamp(first, last)


def _rounded(blocks: "Tensor", step: "Tensor", zero: "Tensor", scheme: Scheme) -> "Tensor":
    import torch

    if scheme.number in ("e2m1", "nf4"):
        return _nearest(blocks / step, scheme.number) * step
    if scheme.number in LARGEST:
        largest = LARGEST[scheme.number]
        kind = torch.float8_e4m3fn if scheme.number == "e4m3" else torch.float8_e5m2
        # A cast beyond the largest value gives NaN or infinity.
        scaled: Tensor = (blocks / step).clamp(-largest, largest).to(torch.float32).to(kind).to(blocks.dtype) * step
        return scaled
    first, last = scheme.ends
    codes: Tensor = (torch.round(blocks * (1.0 / step)) + zero).clamp(first, last)
    return (codes - zero) * step


def _nearest(scaled: "Tensor", number: str) -> "Tensor":
    """The code next to each value: of e2m1 the even one between two, of nf4 the lower."""
    import torch

    codes = torch.tensor(E2M1 if number == "e2m1" else NF4, dtype=scaled.dtype, device=scaled.device)
    middles = (codes[1:] + codes[:-1]) / 2
    if number == "nf4":
        return codes[torch.bucketize(scaled, middles)]
    size = scaled.abs()
    lower, upper = torch.bucketize(size, middles), torch.bucketize(size, middles, right=True)
    return codes[torch.where(lower % 2 == 0, lower, upper)].copysign(scaled)


def _packed(values: "Tensor", scheme: Scheme) -> "Tensor":
    """Weights [out, in], whose rows hold whole blocks, as a GGUF file holds them."""
    import torch

    gguf = need("gguf", "models", f"rounding to {scheme.name}")
    kind = gguf.GGMLQuantizationType[scheme.number.upper()]
    if not bool(values.isfinite().all()):
        raise BadInput(f"a value to be rounded is infinite or not a number; {USE_FLOAT32}")
    packed = gguf.quants.quantize(values.to(torch.float32).cpu().numpy(), kind)
    return torch.from_numpy(gguf.quants.dequantize(packed, kind)).reshape(values.shape).to(values)


def _blocks(values: "Tensor", scheme: Scheme) -> "Tensor":
    """Weights [out, in] with the values that share a step along the last axis."""
    if scheme.grain == "tensor":
        return values.reshape(1, -1)
    if scheme.grain == "channel":
        return values
    n_inputs, size = values.shape[-1], scheme.group or 1
    if n_inputs % size:
        fitting = [other for other in (128, 64, 48, 32, 24, 16, 8, 4, 2, 1) if n_inputs % other == 0 and other <= size]
        raise BadInput(f"groups of {size} do not divide a row of {n_inputs:,}; use group{(fitting or [1])[0]}")
    return values.unflatten(-1, (n_inputs // size, size))


def _widened(values: "Tensor") -> "Tensor":
    import torch

    return values.detach() if values.dtype in (torch.float32, torch.float64) else values.detach().to(torch.float32)


def _back(values: "Tensor", rounded: "Tensor", exempt: "Tensor | None") -> "Tensor":
    """In the type that came, with what is exempt put back."""
    import torch

    rounded = rounded.to(values.dtype)
    return rounded if exempt is None else torch.where(exempt, values.detach(), rounded)
