"""What the atlas keeps of one model, from a few kilobytes of its weights, without torch.

    with open_checkpoint("mpnet-base") as checkpoint:
        rows = rows_of(checkpoint)                   # one for each residual stream

Of post-norm models (BERT) the norm that is the block's last operation is measured, of others the norm through which attention
reads the stream: only norm vectors and key biases are read, never a weight matrix.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from outlierlens import architectures as arch
from outlierlens.architectures import BoundStack
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.rules import Outlier, Rule, find
from outlierlens.detection.scan.measure import Site, measure, sites_of
from outlierlens.detection.scan.result import strongest
from outlierlens.errors import BadInput
from outlierlens.experiments.atlas.rows import AtlasRow, Outlying
from outlierlens.experiments.range.keys import key_biases

RULE = Rule()


def rows_of(checkpoint: Checkpoint, rule: Rule = RULE) -> tuple[AtlasRow, ...]:
    """A row for each residual stream of an open checkpoint.

    Raises:
        UnknownArchitecture, BadFile: see `architectures.bind`. BadInput: its blocks have no norm that every layer has.
        RemoteError, TooMuchToRead: it is remote, and cannot be read, or not within the limit.
    """
    began = time.monotonic()
    bound = arch.bind(arch.stacks_for(checkpoint, None), checkpoint.tensors, checkpoint.config)
    digest = hashlib.sha256(checkpoint.header_digest().encode())
    measured = [(stack, site, measure(checkpoint, site, digest)[0]) for stack in bound for site in measured_site(stack)]
    if not measured:
        raise BadInput(f"{checkpoint.name}: its blocks have no norm on the stream that every layer has")
    keys = tuple(float(one.norm) for one in key_biases(checkpoint))
    told = checkpoint.config.get("model_type")
    whole = AtlasRow(
        checkpoint.name,
        revision=getattr(checkpoint, "commit", "") or digest.hexdigest(),
        family=str(told or arch.families(checkpoint.tensors, checkpoint.config, checkpoint.name)[0]),
        format="safetensors" if checkpoint.kind == "hub" else checkpoint.kind,
        bytes_read=checkpoint.bytes_read,
        bytes_total=checkpoint.total_bytes,
        requests=getattr(checkpoint, "requests", 0),
        seconds=time.monotonic() - began,
    )
    rows = []
    for number, (stack, site, values) in enumerate(measured):
        outliers, _ = find(values, rule)
        layers, width = values.scale.shape
        rows.append(
            replace(
                whole,
                stack=stack.name, site=site.name, width=width, layers=layers, norm_site=stack.stack.norm_site,
                norm=norm_kind(checkpoint.config, has_bias=values.bias is not None),
                dtype=stored_as(checkpoint, site), outliers=tuple(map(_outlying, outliers)),
                scale=_half(values.scale), bias=_half(values.bias), k_bias_norms=keys if number == 0 else (),
            )
        )  # fmt: skip
    return tuple(rows)


def norm_kind(config: Mapping[str, Any], *, has_bias: bool) -> str:
    """ "layernorm" or "rmsnorm": a bias is LayerNorm's; without one the config's words tell."""
    if has_bias:
        return "layernorm"
    inner = [value for value in config.values() if isinstance(value, Mapping)]
    keys = {key for one in (config, *inner) for key in one}
    if str(config.get("norm_kind", "")) in ("layernorm", "rmsnorm"):
        return str(config["norm_kind"])
    names_rms = any("rms" in key for key in keys)
    return "layernorm" if not names_rms and keys & {"norm_bias", "layer_norm_eps"} else "rmsnorm"


def stored_as(checkpoint: Checkpoint, site: Site) -> str:
    """The format's word for the type of most of the weights; of a model in shards, of which few are opened, of the norms."""
    if getattr(checkpoint, "in_shards", False):
        return checkpoint.tensors[site.scale[0][0].name].dtype
    sizes = Counter[str]()
    for info in checkpoint.tensors.values():
        sizes[info.dtype] += info.nbytes
    return sizes.most_common(1)[0][0]


def measured_site(stack: BoundStack) -> list[Site]:
    """What is measured of a stream: its last norm, or the first that reads it; [] where it has none."""
    return sites_of(stack, "last" if stack.ends_in_norm else "reading")[:1]


def _outlying(one: Outlier) -> Outlying:
    z = strongest(one.z_scale)
    return Outlying(
        one.dim, z, strongest(one.z_bias) if one.z_bias else None, 1 if z > 0 else -1, one.layers_scale, one.p_holm
    )


def _half(values: np.ndarray | None) -> np.ndarray | None:
    with np.errstate(over="ignore"):
        return None if values is None else values.astype(np.float16)
