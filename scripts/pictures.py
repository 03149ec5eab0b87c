"""Make the two pictures of the README from real runs.

outlierlens sweep smollm2-135m --max-texts 8 --max-length 64 --random 0 --matched 0 --top 0 --gradients 0 -o swept
outlierlens report mini-planted
python scripts/pictures.py swept/sweep.json                          # docs/every-dimension.svg: a dot per dimension
python scripts/pictures.py runs/mini-planted/report.html             # docs/report.png: the first screen (needs chromium)
"""

import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from statistics import median

DOCS = Path(__file__).resolve().parent.parent / "docs"
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 330, 62, 46, 16
INK, SOFT, DOT, MARK = "#1c2430", "#5b6673", "#5b6b7c", "#b3261e"


def dots(changes: dict[int, float], model: str) -> str:
    """The picture of every dimension's change of the loss, on a plain linear scale, as SVG."""
    dims, top = max(changes) + 1, max(changes.values())
    step = next(one for one in (0.5, 1, 2, 5) if top / one <= 6)
    scale = (HEIGHT - BOTTOM - TOP) / (step * -(-top // step))

    def place(dim: float, change: float) -> tuple[float, float]:
        return round(LEFT + (WIDTH - LEFT - 60) * dim / dims, 1), round(HEIGHT - BOTTOM - change * scale, 1)

    def words(x: float, y: float, text: str, rest: str = "") -> str:
        return f'<text x="{x}" y="{y}" {rest}>{escape(text)}</text>'

    strongest = max(changes, key=changes.__getitem__)
    typical = median(changes.values())
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(model)}: change of the loss with each of {len(changes)} dimensions off; {strongest} costs "
        f"{changes[strongest]:.2f} nats per token, the median dimension {typical:.3f}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for n in range(int(-(-top // step)) + 1):
        x, y = place(0, n * step)
        made.append(f'<path d="M{x} {y}H{WIDTH - 60}" stroke="#e3e7eb"/>')
        made.append(words(x - 8, y + 4, f"{n * step:g}", f'text-anchor="end" fill="{SOFT}"'))
    for dim in range(0, dims, 100):
        made.append(words(*place(dim, 0), str(dim), f'dy="20" text-anchor="middle" fill="{SOFT}"'))
    for dim, change in sorted(changes.items()):
        x, y = place(dim, change)
        mine = dim == strongest
        made.append(f'<circle cx="{x}" cy="{y}" r="{5 if mine else 2.4}" fill="{MARK if mine else DOT}"/>')
    x, y = place(strongest, changes[strongest])
    label = f"dimension {strongest}: +{changes[strongest]:.2f}"
    made.append(words(x - 12, y + 5, label, f'text-anchor="end" font-weight="bold" font-size="15" fill="{MARK}"'))
    made.append(
        words(
            (WIDTH + LEFT) / 2,
            HEIGHT - 8,
            f"dimension of {model}, switched off alone",
            f'text-anchor="middle" fill="{INK}"',
        )
    )
    made.append(
        words(
            0,
            0,
            "loss, nats per token, against intact",
            f'text-anchor="middle" fill="{INK}" transform="translate(16 {HEIGHT / 2 - 12}) rotate(-90)"',
        )
    )
    return "\n".join([*made, "</svg>", ""])


def swept(path: Path) -> None:
    """Write docs/every-dimension.svg from the result of a sweep."""
    import outlierlens as ol

    found = ol.load(path)
    changes = {one.dims[0]: one.change for one in found.effects if len(one.dims) == 1 and one.window == "all layers"}
    model = str(found.provenance.model).replace("smollm2-135m", "SmolLM2-135M")
    (DOCS / "every-dimension.svg").write_text(dots(changes, model), "utf-8")
    strongest = max(changes, key=changes.__getitem__)
    print(f"{len(changes)} dimensions; {strongest}: {changes[strongest]:+.2f}, median {median(changes.values()):+.4f}")


def first_screen(page: Path) -> None:
    """Write docs/report.png, 1,280 × 720 pixels, from a report."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        raise SystemExit("error: no chromium is installed")
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1280,720",
        ]
        command += [f"--user-data-dir={profile}", "--virtual-time-budget=8000", f"--screenshot={DOCS / 'report.png'}"]
        subprocess.run([*command, page.resolve().as_uri()], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        (first_screen if name.endswith(".html") else swept)(Path(name))
