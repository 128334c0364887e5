"""How fast and how large the dataset check is, against what anyone could do instead, in one run.

  python benchmarks/bench_check_dataset.py [--records 1000000] [--clips 2000] [--folder /tmp/bench]

Goals: structure and statistics within the time of a bare json.load of the same file at half its
memory; probing at least 15x faster than one ffprobe process per clip; a second run at least 20x
faster than the first. Records are as in published sets: a few hundred question wordings, options
and captions that differ in every record.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/fixtures")]

EVERY = 10  # of so many clips one is given to ffprobe
WORDS = [
    "car",
    "turns",
    "left",
    "junction",
    "red",
    "truck",
    "waits",
    "white",
    "line",
    "person",
    "crosses",
    "road",
    "lane",
]


def write_annotations(path, count):
    dice = random.Random(0)
    wordings = [" ".join(dice.choices(WORDS, k=24)) for _ in range(300)]
    with path.open("w") as handle:
        for number in range(count):
            question = "<video>\n" + dice.choice(wordings)
            kind = number % 4
            if kind < 2:
                question, answer = f"{question}? Answer yes or no.", dice.choice(["Yes", "No"])
            elif kind == 2:
                options = [" ".join(dice.choices(WORDS, k=3)) for _ in range(4)]
                question += "?\n" + "\n".join(
                    f"{letter}. {text}" for letter, text in zip("ABCD", options, strict=True)
                )
                answer = dice.choice("ABCD")
            else:
                question, answer = f"{question}: describe it.", " ".join(dice.choices(WORDS, k=60))
            record = {
                "id": f"sample-{number:08d}",
                "video": f"clips/part-{number // 5000:03d}/{number // 5:08d}.mp4",
                "video_fps": 30.0,
                "conversations": [
                    {"from": "human", "value": question},
                    {"from": "gpt", "value": answer},
                ],
                "metadata": {
                    "source": "synthetic",
                    "annotator": dice.randint(1, 40),
                    "split": "train",
                },
            }
            handle.write(("[\n " if not number else ",\n ") + json.dumps(record))
        handle.write("\n]\n")


def measured(code, *args):
    """Wall seconds and peak memory (MiB, children included) of a
    fresh interpreter running `code`."""
    source = (
        f"import sys, time, resource, json\nsys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
        f"start = time.time()\n{code}\n"
        "own, below = (resource.getrusage(who) for who in "
        "(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))\n"
        "print(json.dumps([time.time() - start, own.ru_maxrss / 1024, below.ru_maxrss / 1024, "
        "own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime]))"
    )
    command = [sys.executable, "-c", source, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def bench_records(folder, count):
    """Return the better of two interleaved runs each, elapsed and processor seconds, in one process
    and in several: other work on the machine slows all of them."""
    path = folder / "annotations.json"
    write_annotations(path, count)
    imports = "from pathlib import Path\nfrom cosmos_reason.data import survey\n"
    codes = {
        "json_load": "json.load(open(sys.argv[1]))",
        "one_process": imports + "survey.by_one(Path(sys.argv[1]), '')",
        "all_cores": imports + "survey.of_records(Path(sys.argv[1]), '')",
    }
    runs = {name: [] for name in codes}
    for _ in range(2):
        for name, code in codes.items():
            runs[name].append(measured(code, path))
    best = {name: list(map(min, zip(*times, strict=True))) for name, times in runs.items()}
    load = best["json_load"]
    result = {"records": count, "megabytes": round(path.stat().st_size / 1e6)}
    for name, (seconds, own, below, processor) in best.items():
        result[name] = {
            "seconds": round(seconds, 1),
            "processor_seconds": round(processor, 1),
            "mib": round(own),
            "mib_of_the_largest_process_below": round(below),
            "ratios": [round(seconds / load[0], 2), round(processor / load[3], 2)],
        }
    return result


def bench_clips(folder, count):
    from clip_files import record, write_clip

    clip = write_clip(folder / "one.mp4", frames=60, width=320, height=240, rate=10)
    records = [record(number) for number in range(count)]
    for number in range(count):  # different files, as the cache and the page cache see them
        (folder / "clips").mkdir(exist_ok=True)
        (folder / "clips" / f"{number}.mp4").write_bytes(clip.read_bytes() + str(number).encode())
    (folder / "annotations.json").write_text(json.dumps(records))
    os.environ["COSMOS_CACHE"] = str(folder / "cache")
    code = (
        "from pathlib import Path\nfrom cosmos_reason.media import checks as clip_checks\n"
        "from cosmos_reason.media.sampling import VisionOptions\n"
        "paths = dict(enumerate(sorted(Path(sys.argv[1]).iterdir()))); start = time.time()\n"
        "found = clip_checks.examine_all(paths, sys.argv[2], "
        "VisionOptions(nframes=8), 30, clip_checks.Cache())\n"
        "assert all(report.facts for _, report in found)"
    )
    runs = {
        mode: [measured(code, folder / "clips", mode) for _ in range(2)]
        for mode in ("none", "sampled")
    }
    (probe, _), (decode, again) = runs.values()
    result = {
        "clips": count,
        "probe_seconds": round(probe[0], 2),
        "decode_seconds": round(decode[0], 2),
        "again_seconds": round(again[0], 3),
        "second_run_ratio": round(decode[0] / again[0], 1),
    }
    if program := shutil.which("ffprobe"):
        before, started = processor_seconds(), time.time()
        for number in range(0, count, EVERY):
            show = [
                program,
                "-v",
                "error",
                "-count_packets",
                "-show_streams",
                str(folder / "clips" / f"{number}.mp4"),
            ]
            subprocess.run(show, capture_output=True, check=True)
        result["ffprobe_seconds"] = round((time.time() - started) * EVERY, 1)
        result["ffprobe_ratio"] = round((time.time() - started) * EVERY / probe[0], 1)
        result["ffprobe_processor_ratio"] = round(
            (processor_seconds() - before) * EVERY / probe[3], 1
        )
    return result


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records", type=int, default=1_000_000, help="records of the annotation file"
    )
    parser.add_argument("--clips", type=int, default=2000, help="clips to probe")
    parser.add_argument(
        "--folder", type=Path, default=Path("/tmp/bench_check_dataset"), help="removed at the end"
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    try:
        print(json.dumps(bench_records(args.folder, args.records), indent=1), flush=True)
        print(json.dumps(bench_clips(args.folder, args.clips), indent=1), flush=True)
        print(
            "peak memory of this process:",
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "MiB",
        )
    finally:
        shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
