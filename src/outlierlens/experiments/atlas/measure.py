"""What the atlas keeps of one model: what `scan` finds in its weights, and the vectors of its norms, without torch.

    with open_checkpoint("mpnet-base") as checkpoint:
        rows = rows_of(checkpoint)                   # one for each residual stream

Outliers are those of the blocks' last operation: of models that end in a norm (BERT) from a few kilobytes, of others (Llama)
from the last linears. The vectors, by which models are compared, are those of that norm, or of the first that reads the stream.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import outlierlens.architectures as arch
from outlierlens.analyses.range import key_biases
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.rules import Measured, Outlier, find
from outlierlens.detection.scan.measure import ScanOptions, Site, check_size, measure, sites_of
from outlierlens.detection.scan.result import strongest
from outlierlens.experiments.atlas.rows import AtlasRow, Outlying


def rows_of(checkpoint: Checkpoint, options: ScanOptions | None = None) -> tuple[AtlasRow, ...]:
    """A row for each residual stream of an open checkpoint, measured as `scan` with these options does.

    Raises:
        UnknownArchitecture, BadFile: see `architectures.bind`. TooMuchToRead: its linears have more than `max_read` bytes.
        RemoteError, TooMuchToRead: it is remote, and cannot be read, or not within the limit.
    """
    options = options or ScanOptions()
    began = time.monotonic()
    bound = arch.bind(arch.stacks_for(checkpoint, None), checkpoint.tensors, checkpoint.config)
    digest = hashlib.sha256(checkpoint.header_digest().encode())
    sites = [site for stack in bound for site in sites_of(stack, options.view)]
    check_size(checkpoint, sites, options, instead="")
    measured = [(site, measure(checkpoint, site, digest)[0]) for site in sites]
    norms = [values if site.is_norm else _reading(checkpoint, site, digest) for site, values in measured]
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
    for number, ((site, values), norm) in enumerate(zip(measured, norms, strict=True)):
        outliers, _ = find(values, options.rule)
        layers, width = values.scale.shape
        scale, bias = (norm.scale, norm.bias) if norm else (None, None)
        rows.append(
            replace(
                whole,
                stack=site.stack.name, site=site.name, width=width, layers=layers, norm_site=site.stack.stack.norm_site,
                norm=norm_kind(checkpoint.config, has_bias=bias is not None),
                dtype=stored_as(checkpoint, site), outliers=tuple(map(_outlying, outliers)),
                scale=_half(scale), bias=_half(bias), k_bias_norms=keys if number == 0 else (),
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


def _reading(checkpoint: Checkpoint, site: Site, digest: Any) -> Measured | None:
    """The vectors of the first norm that reads the stream; None where it has none that every layer has."""
    first = sites_of(site.stack, "reading")[:1]
    return measure(checkpoint, first[0], digest)[0] if first else None


def _outlying(one: Outlier) -> Outlying:
    z = strongest(one.z_scale)
    return Outlying(
        one.dim, z, strongest(one.z_bias) if one.z_bias else None, 1 if z > 0 else -1, one.layers_scale, one.p_holm
    )


def _half(values: np.ndarray | None) -> np.ndarray | None:
    with np.errstate(over="ignore"):
        return None if values is None else values.astype(np.float16)
