#!/usr/bin/env python3
"""Make the pictures of README.md, docs/terminal.png and docs/report.png, from a finished demo.
Needs chromium.

examples:
  make demo && tools/make_pictures.py demo
"""

import argparse
import html
import io
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
WIDTH, LINE, MARGIN = 1000, 20, 24  # pixels
COLOURS = 48  # enough for text, and a tenth of the size
STYLE = f"""
body {{ margin: 0; background: #10151c; color: #d6dde6; }}
pre {{
  margin: {MARGIN}px; font: 14px/{LINE}px "DejaVu Sans Mono", monospace; white-space: pre-wrap;
}}
.typed {{ color: #8fd3ff; }} .error {{ color: #ff8a80; }} .fix {{ color: #a5e887; }}
"""
KINDS = {"typed": r"^\$ |^    --", "error": r"^(error|warning): ", "fix": r"^  fix: "}


def terminal_commands(demo: Path) -> list[str]:
    """Return what the terminal picture shows: data checked, a typo caught, before and after
    compared."""
    jobs = sorted((demo / "jobs").glob("evaluate-*/results"))
    return [
        f"scripts/check_dataset.py {demo}/data/train --eval {demo}/data/eval "
        f"--spec {demo}/train.toml",
        "scripts/build_spec.py train --model Cosmos3-Nano --tuning lora "
        f"--train-root {demo}/data/train --gpus-per-node 8 --set learing_rate=1e-4 -o spec.toml",
        f"scripts/score_predictions.py {jobs[-1]} --compare {jobs[0]}",
    ]


def transcript(commands: list[str]) -> list[str]:
    """Return the commands and what they print, as a person would see it who runs them in the folder
    above `demo`."""
    lines = []
    for command in commands:
        words = shlex.split(command)
        done = subprocess.run(
            [sys.executable, ROOT / words[0], *words[1:]],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        lines += [f"$ {command}", *done.stdout.splitlines(), ""]
    return lines[:-1]


def page(lines: list[str]) -> str:
    def coloured(line: str) -> str:
        kind = next((name for name, pattern in KINDS.items() if re.search(pattern, line)), "")
        return f'<span class="{kind}">{html.escape(line)}</span>'

    return (
        f"<meta charset=utf-8><style>{STYLE}</style><pre>"
        + "\n".join(map(coloured, lines))
        + "</pre>"
    )


def screenshot(address: str, height: int) -> Image.Image:
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--virtual-time-budget=3000",
        ]
        place = [
            f"--window-size={WIDTH},{height}",
            f"--screenshot={folder}/shot.png",
            f"--user-data-dir={folder}/p",
        ]
        subprocess.run(["chromium", *flags, *place, address], stderr=subprocess.DEVNULL, check=True)
        return Image.open(io.BytesIO(Path(folder, "shot.png").read_bytes())).convert("RGB")


def trimmed(picture: Image.Image) -> Image.Image:
    """Without the empty rows below the last line."""
    pixels = picture.convert("L")
    background = pixels.getpixel((0, 0))
    bottom = pixels.point(lambda value: 255 * (abs(value - background) > 8)).getbbox()[3]
    return picture.crop((0, 0, WIDTH, min(bottom + MARGIN, picture.height)))


def save(picture: Image.Image, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path} {picture.width}x{picture.height} {path.stat().st_size / 1000:.0f} KB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", type=Path, help="folder that run_demo.py filled, relative to here")
    parser.add_argument("--output", type=Path, default=ROOT / "docs", help="default: docs")
    args = parser.parse_args()
    lines = transcript(terminal_commands(args.demo))
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file:
        file.write(page(lines))
        file.flush()
        save(
            trimmed(screenshot(f"file://{file.name}", 3 * LINE * len(lines))),
            args.output / "terminal.png",
        )
    save(
        screenshot((args.demo / "report.html").resolve().as_uri(), 900), args.output / "report.png"
    )


if __name__ == "__main__":
    main()
