"""How much processor and memory a build of many rows takes, against a bare reading of the same
table, in one run; and how fast parts of clips are cut, against one ffmpeg process for each.

  python benchmarks/bench_build_dataset.py rows [--rows 1000000] [--forms csv json parquet xlsx]
  python benchmarks/bench_build_dataset.py cut [--parts 200] [--cores 1]

Rows are a clip (of 1,000 that all are there), a question of a few hundred wordings, and an answer.
The reference of a form is what reads it into dictionaries: csv.DictReader, json.load, pyarrow and
openpyxl.
"""

import argparse
import csv
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/fixtures")]

CLIPS = 1000
WORDS = ("car turns", "left", "junction", "red truck", "waits", "white line", "person", "crosses")
READ = {
    "csv": "import csv; rows = list(csv.DictReader(open(path, encoding='utf-8')))",
    "json": "import json; rows = json.load(open(path, encoding='utf-8'))",
    "parquet": "import pyarrow.parquet as p; rows = p.read_table(path).to_pylist()",
    "xlsx": "import openpyxl; book = openpyxl.load_workbook(path, read_only=True); "
    "rows = list(book.active.iter_rows(values_only=True))",
}


def measured(*commands):
    """Run commands one after another; print their processor seconds, wall seconds, MiB at most."""
    pid = os.fork()
    if not pid:
        begin = time.monotonic()
        for words in commands:
            done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
            if done.returncode:
                sys.stderr.write(done.stdout[-2000:] + done.stderr[-2000:])
                os._exit(1)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = time.monotonic() - begin
        told = f"{used.ru_utime + used.ru_stime:8.1f} s of processor, {wall:6.1f} s of wall"
        print(f"{told}, {used.ru_maxrss / 1024:6.0f} MiB", flush=True)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f"{commands[0]} failed")


def rows_of(count):
    dice = random.Random(0)
    wordings = [" ".join(dice.choices(WORDS, k=12)) + "?" for _ in range(300)]
    for number in range(count):
        answer = dice.choice(["yes", "no"])
        yield {
            "video": f"{number % CLIPS}.mp4",
            "question": f"{dice.choice(wordings)[:-1]} {number // CLIPS}?",
            "answer": answer,
        }


def write(path, count):
    names = ["video", "question", "answer"]
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as handle:
            table = csv.DictWriter(handle, names)
            table.writeheader()
            table.writerows(rows_of(count))
    elif path.suffix == ".json":
        with path.open("w", encoding="utf-8") as handle:
            json.dump(list(rows_of(count)), handle)
    elif path.suffix == ".parquet":
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        parquet.write_table(arrow.Table.from_pylist(list(rows_of(count))), path)
    else:
        import openpyxl

        book = openpyxl.Workbook(write_only=True)
        sheet = book.create_sheet()
        sheet.append(names)
        for row in rows_of(count):
            sheet.append(list(row.values()))
        book.save(path)


def clip(path, seconds, *flags):
    scene = f"testsrc2=size=320x240:rate=25:duration={seconds}"
    words = ["ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", scene, *flags, path]
    subprocess.run(list(map(str, words)), check=True)


def bench_rows(folder, count, forms):
    from clip_files import write_clip

    for number in range(CLIPS):
        target = folder / f"{number}.mp4"
        if not target.exists():
            write_clip(target, frames=4, tint=number)
    for form in forms:
        table = folder / f"rows.{form}"
        if not table.exists():
            write(table, count)
        print(f"{form}, {count:,} rows, {table.stat().st_size / 1e6:.0f} MB", flush=True)
        measured([sys.executable, "-c", f"path = {str(table)!r}; {READ[form]}; print(len(rows))"])
        out = folder / f"out-{form}"
        build = [ROOT / "scripts/build_dataset.py", table, "-o", out, "--force"]
        measured([sys.executable, *build, "--media", "reference", "--json"])
        if form == "csv":
            annotations = out / "train/annotations.json"
            print(f"the {annotations.stat().st_size / 1e6:.0f} MB that it wrote: json.load, check")
            measured([sys.executable, "-c", f"import json; json.load(open({str(annotations)!r}))"])
            check = [ROOT / "scripts/check_dataset.py", annotations, "--decode", "none", "--json"]
            measured([sys.executable, *check])


def bench_cut(folder, parts, cores):
    long = folder / "long.mp4"
    if not long.exists():
        clip(long, 600, "-g", "50")
    dice = random.Random(0)
    begins = [round(dice.uniform(0, 590), 2) for _ in range(parts)]
    lines = ["video,start,end,question,answer"]
    lines += [
        f"long.mp4,{at},{at + 4},What is it at {at}?,{['yes', 'no'][n % 2]}"
        for n, at in enumerate(begins)
    ]
    (folder / "parts.csv").write_text("\n".join(lines))
    roles = ["--column", "start=start", "--column", "end=end"]
    build = [ROOT / "scripts/build_dataset.py", folder / "parts.csv", "-o", folder / "cut"]
    pinned = ["taskset", "-c", ",".join(map(str, range(cores)))]
    print(f"{parts} parts of 4 s on {cores} cores: build_dataset.py, ffmpeg for each", flush=True)
    measured([*pinned, sys.executable, *build, *roles, "--force", "--json"])
    done = folder / "ffmpeg"
    done.mkdir(exist_ok=True)
    for place in ("before", "after"):
        commands = []
        for at in begins:
            sought = ["-ss", at, "-i", long] if place == "before" else ["-i", long, "-ss", at]
            words = ["ffmpeg", "-nostdin", "-v", "error", "-y", *sought, "-t", 4, "-an"]
            words += ["-c:v", "libx264", "-preset", "fast", done / f"{at}.mp4"]
            commands.append([*pinned, *words])
        print(f"ffmpeg, -ss {place} -i", flush=True)
        measured(*commands)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=["rows", "cut"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--forms", nargs="+", choices=list(READ), default=list(READ))
    parser.add_argument("--parts", type=int, default=200)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bench-build"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.what == "rows":
        bench_rows(args.folder, args.rows, args.forms)
    else:
        bench_cut(args.folder, args.parts, args.cores)


if __name__ == "__main__":
    main()
