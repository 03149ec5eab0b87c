"""Pictures and recordings as data: read, decoded within limits, and made into what a model takes.

    items = read_items("image", "photos/")                       # a folder with one sub-folder per class, or a table
    sounds = read_items("audio", "clips.parquet")             # for `observe` and output change
    ablate(loaded, items, [187, 759])                           # wherever `Texts` or `Examples` can stand

`kind_of(data)` says whether a path holds pictures or recordings at all. Nothing here imports torch.
"""

from outlierlens.data.media.items import Items, Kind, LabelledItems
from outlierlens.data.media.read import kind_of, read_items

__all__ = ["Items", "Kind", "LabelledItems", "kind_of", "read_items"]
