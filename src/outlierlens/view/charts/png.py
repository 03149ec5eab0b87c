"""PNG files with a palette: `indexed(pixels, palette)`, and `smaller(png)` of one that a chart was drawn to.

A chart has few colours, yet its renderer writes four bytes a pixel, quickly packed: ten times as large as need be.
"""

import struct
import zlib
from collections.abc import Iterator

import numpy as np

HEAD = b"\x89PNG\r\n\x1a\n"
RGBA, PALETTE = 6, 3
UNSEEN = 0.1  # mean distance of pixels from their palette's colour, of 255, that leaves a picture as it looks


def indexed(pixels: np.ndarray, palette: np.ndarray, density: bytes = b"") -> bytes:
    """The picture whose uint8 `pixels` [row, column] are places in the uint8 `palette` [colour, 3]."""
    height, width = pixels.shape
    rows = np.zeros((height, width + 1), dtype=np.uint8)  # each begins with its filter: none
    rows[:, 1:] = pixels
    parts = [
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, PALETTE, 0, 0, 0)),
        _chunk(b"PLTE", palette.tobytes()),
    ]
    parts += [_chunk(b"pHYs", density)] if density else []
    parts += [_chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)), _chunk(b"IEND", b"")]
    return HEAD + b"".join(parts)


def smaller(png: bytes) -> bytes:
    """The picture with its 256 most frequent colours, each other one as the nearest of them; `png` where that could be seen."""
    chunks: dict[bytes, bytes] = {}
    for kind, content in _chunks(png):
        chunks[kind] = chunks.get(kind, b"") + content
    width, height, *form = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), dtype=np.uint8)
    if form != [8, RGBA, 0, 0, 0]:
        return png
    rows = rows.reshape(height, 1 + 4 * width)
    filters, pixels = rows[:, 0], rows[:, 1:].reshape(height, width, 4).copy()
    if filters.max() > 1:  # the renderer writes none (0) and differences to the pixel on the left (1)
        return png
    differing = filters == 1
    pixels[differing] = pixels[differing].cumsum(axis=1, dtype=np.uint8)
    if pixels[..., 3].min() < 255:  # something shines through
        return png
    found, place, counts = np.unique(pixels.reshape(-1, 4).view("<u4"), return_inverse=True, return_counts=True)
    colours = found.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].astype(np.float32)
    kept = np.argsort(-counts, kind="stable")[:256]
    if counts[kept].sum() < (1 - UNSEEN) * counts.sum():  # every other pixel is at least one step off
        return png
    # |a - b|² = |a|² - 2ab + |b|², exact in float32 at these sizes; [colour, kept]
    squares = np.square(colours).sum(axis=1)
    distances = squares[:, None] - 2 * colours @ colours[kept].T + squares[kept]
    if np.sqrt(distances.min(axis=1)) @ counts > UNSEEN * counts.sum():
        return png
    nearest = distances.argmin(axis=1).astype(np.uint8)
    return indexed(
        nearest[place.reshape(height, width)], colours[kept].astype(np.uint8), density=chunks.get(b"pHYs", b"")
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(HEAD)
    while place < len(png):
        size, kind = struct.unpack(">I4s", png[place : place + 8])
        yield kind, png[place + 8 : place + 8 + size]
        place += size + 12
