"""Which edits `verify` finds: each made alone in memory and held against the fingerprint of the intact model.

watch = Watch(loaded, dims)                      # takes the fingerprint
watch.caught(changes), watch.caught_deep(changes)
"""

from collections.abc import Sequence

from outlierlens.architectures import RowChoice
from outlierlens.detection.scan.measure import ScanOptions
from outlierlens.experiments.attack.edits import Change, edited_values
from outlierlens.experiments.attack.places import live_source
from outlierlens.experiments.integrity.fingerprint import fingerprint_checkpoint, hash_tensor, relation
from outlierlens.experiments.integrity.options import FingerprintOptions
from outlierlens.experiments.integrity.result import TensorHash
from outlierlens.experiments.integrity.verify import verify_checkpoint
from outlierlens.models.load import LoadedModel


class Watch:
    """The fingerprint of an intact model in memory, to hold edited ones against."""

    def __init__(self, loaded: LoadedModel, dims: Sequence[int] | None = None, row: RowChoice = None):
        self.source = live_source(loaded)
        # The model is in memory, so that no limit on reading applies.
        self.scan = ScanOptions(row=row, max_read=self.source.total_bytes)
        options = FingerprintOptions(scan=self.scan, dims=None if dims is None else tuple(dims))
        self.baseline = fingerprint_checkpoint(self.source, options)
        self.parameters = dict(loaded.model.named_parameters(remove_duplicate=False))
        self._intact: dict[str, TensorHash] = {}

    def caught(self, changes: Sequence[Change]) -> bool:
        """Whether `verify` says that the model with these changes does not match."""
        with edited_values(self.parameters, changes):
            return not verify_checkpoint(self.source, self.baseline, self.scan).matches

    def caught_deep(self, changes: Sequence[Change]) -> bool:
        """Whether `verify --deep` does, which also compares hashes of whole tensors.

        Only the tensors that change are hashed: the others' hashes are those of the intact model.
        """
        names = list(dict.fromkeys(change.tensor for change in changes))
        for name in names:
            if name not in self._intact:
                self._intact[name] = hash_tensor(self.source, name, name)
        with edited_values(self.parameters, changes):
            return any(relation(self._intact[name], hash_tensor(self.source, name, name)) == "moved" for name in names)
