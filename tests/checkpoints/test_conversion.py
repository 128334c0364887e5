"""A conversion's output: when it is reused, replaced or refused, and what runs that end early
leave."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from omni_layouts import as_export, contents, convert, edit_json, finding_ids
from support import ROOT, run_script

from cosmos_reason.base.families import cosmos3_omni
from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import conversion, omni, safetensors_files
from cosmos_reason.demo import tiny_omni

SCRIPT = "prepare_cosmos3_vlm_checkpoint.py"


def test_a_valid_output_is_reused_and_another_one_is_not_touched(published, tmp_path):
    out = tmp_path / "out"
    convert(published, out)
    stamps = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    again = convert(published, out)
    assert again.stdout.endswith("status=skipped_existing\n")
    _, script, *args = shlex.split(again.stderr.splitlines()[-1])
    assert run_script(Path(script).name, *args, cwd=tmp_path).returncode == 0
    assert (tmp_path / "spec.toml").is_file()
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == stamps
    other = tmp_path / "other"
    tiny_omni.build(other, seed=2, text="left right")
    refused = convert(other, out, flags=["--json"])
    assert refused.returncode == 1
    assert finding_ids(refused) == ["CKPT-OUTPUT-EXISTS", "CKPT-OUTPUT-OTHER"]
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == stamps
    assert convert(other, out, flags=["--force"]).stdout.endswith("status=converted\n")
    assert conversion.check_output(out, omni.open_source(other).fingerprint) == []


def set_provenance(**values):
    return lambda out: edit_json(out / conversion.PROVENANCE, lambda told: told.update(values))


def cut_a_byte(path):
    os.truncate(path, path.stat().st_size - 1)


def empty(out):
    set_provenance(files={})(out)
    (out / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    "damage",
    [
        lambda out: cut_a_byte(next(out.glob("*.safetensors"))),
        lambda out: next(out.glob("*.safetensors")).unlink(),
        lambda out: edit_json(out / "tokenizer_config.json", lambda told: told.update(pad="x")),
        lambda out: (out / conversion.PROVENANCE).unlink(),
        lambda out: edit_json(out / conversion.PROVENANCE, lambda told: told.pop("tensors")),
        lambda out: (out / "model.safetensors").write_text("{}"),
        lambda out: (out / "adapter_config.json").write_text("{}"),
        set_provenance(source=5),
        empty,
    ],
)
def test_a_damaged_output_is_not_reused(published, tmp_path, damage):
    out = tmp_path / "out"
    convert(published, out)
    damage(out)
    done = convert(published, out)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert convert(published, out, flags=["--force"]).returncode == 0
    assert convert(published, out).stdout.endswith("skipped_existing\n")


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_only_model_folders_are_ever_replaced(published, tmp_path, force):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.md").write_text("years of work")
    (tmp_path / "loop").symlink_to("loop")
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "src" / "thesis.txt").write_text("years of work")
    (project / "config.json").write_text('{"model_type": "x", "architectures": []}')
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "config.json").write_text('{"port": 1}')
    others = (project, tmp_path / "server", tmp_path / "loop")
    for output in (tmp_path / "thesis", tmp_path / "thesis" / "chapter.md", *others):
        done = convert(published, output, flags=["--json", *force])
        assert (done.returncode, finding_ids(done)) == (2, ["CKPT-OUTPUT-FOREIGN"]), done.stderr
        flag, other = json.loads(done.stdout)["findings"][0]["fix"].split()
        assert flag == "--output-path" and not os.path.lexists(other)
    assert (tmp_path / "thesis" / "chapter.md").read_text() == "years of work"
    assert (project / "src").is_dir()
    assert convert(published, other).returncode == 0


def test_an_output_that_is_a_link_to_another_disk_stays_one(published, tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "out").symlink_to("large")
    done = convert(published, tmp_path / "out")
    assert done.stdout == f"converted_checkpoint={tmp_path / 'out'}\nstatus=converted\n"
    assert convert(published, tmp_path / "out", flags=["--force"]).returncode == 0
    assert (tmp_path / "out").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large", "out"]


def test_a_hashed_conversion_notices_one_changed_bit(published, tmp_path):
    out = tmp_path / "out"
    assert convert(published, out, flags=["--hash"]).returncode == 0
    assert convert(published, out, flags=["--hash"]).stdout.endswith("skipped_existing\n")
    shard = next(out.glob("*.safetensors"))
    with open(shard, "r+b") as handle:
        handle.seek(-1, os.SEEK_END)
        last = handle.read(1)[0]
        handle.seek(-1, os.SEEK_END)
        handle.write(bytes([last ^ 1]))
    reused = convert(published, out)  # headers only, as promised
    assert reused.stdout.endswith("skipped_existing\n")
    noticed = convert(published, out, flags=["--hash", "--json"])
    assert noticed.returncode == 1
    assert finding_ids(noticed) == ["CKPT-OUTPUT-EXISTS", "CKPT-FILE-CHANGED"]
    told = json.loads(noticed.stdout)["findings"][0]
    assert "--force replaces it" in told["message"] and not told["fix"], "nobody pastes that"
    assert convert(published, out, flags=["--hash", "--force"]).stdout.endswith("converted\n")
    schema = json.loads((ROOT / "schemas" / "provenance.schema.json").read_text())
    provenance = json.loads((out / conversion.PROVENANCE).read_text())
    jsonschema.Draft202012Validator(schema).validate(provenance)


@pytest.mark.parametrize("kib", [1, random.Random(5).randrange(2, 1500), 1900])
def test_a_disk_that_refuses_in_the_middle(published, tmp_path, kib):
    """The kernel refuses bytes beyond a file size limit, as it does on a full disk."""
    words = [sys.executable, ROOT / "scripts" / SCRIPT, "--checkpoint-path", published]
    words += ["--output-path", tmp_path / "out"]
    command = f"ulimit -f {kib}; exec {shlex.join(map(str, words))}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "OS-ERROR" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert convert(published, tmp_path / "out").returncode == 0


KILLED = """
import os, sys
sys.argv = ["prepare", "--checkpoint-path", {source!r}, "--output-path", {output!r}]
sys.argv += ["--max-shard-size", "200KB"]
sys.path.insert(0, {scripts!r})
from cosmos_reason import cli
import prepare_cosmos3_vlm_checkpoint as script
copy, calls = os.copy_file_range, iter(range(1000))
def copied(*args):
    if next(calls) == {at}:
        print("now", flush=True)
        sys.stdin.read()
    return copy(*args)
os.copy_file_range = copied
sys.exit(cli.run(script.parser(), script.main))
"""


@pytest.mark.parametrize("at", [0, 20, 40])  # of the tensors that are copied
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_nothing_that_looks_complete_and_the_next_one_ends_right(
    published, tmp_path, end, at
):
    out = tmp_path / "out"
    words = {"source": str(published), "output": str(out), "scripts": str(ROOT / "scripts")}
    program = KILLED.format(**words, at=at)
    quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-c", program], **quiet)
    assert process.stdout.readline() == b"now\n"
    process.send_signal(end)
    process.communicate()
    if out.exists():  # SIGTERM is heard between two steps of the interpreter: all may be done
        assert end == signal.SIGTERM and conversion.check_output(out) == []
    assert convert(published, out).returncode == 0
    assert conversion.check_output(out, omni.open_source(published).fingerprint) == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert contents(out) == converted(published)


def converted(source):
    """The tensors of a source under their new names."""
    names = {name: cosmos3_omni.target_name(name) for name in contents(source)}
    return {names[name]: value for name, value in contents(source).items() if names[name]}


def test_an_interrupted_run_is_resumed_not_repeated(published, tmp_path):
    source, out = omni.open_source(published), tmp_path / "out"

    def stop(count, seen=[0]):  # noqa: B006
        seen[0] += count
        if seen[0] > source.total_size // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="keeps what is done"):
        conversion.convert(source, out, 300_000, force=False, jobs=2, copied=stop)
    work = next(tmp_path.glob(".out.incomplete-*"))
    finished = {path.name: path.stat().st_ino for path in work.glob("*.safetensors")}
    assert finished and not out.exists()
    assert conversion.convert(source, out, 300_000, force=False, jobs=1) == conversion.CONVERTED
    assert {name: (out / name).stat().st_ino for name in finished} == finished


def test_a_second_run_says_that_one_is_writing(published, tmp_path):
    source, out = omni.open_source(published), tmp_path / "out"
    seen = []

    def second(count):
        if not seen:
            seen.append(convert(published, out, flags=["--json"]))

    done = conversion.convert(source, out, 10**9, force=False, jobs=2, copied=second)
    assert done == conversion.CONVERTED
    assert seen[0].returncode == 3 and finding_ids(seen[0]) == ["CKPT-OUTPUT-BUSY"]


def test_too_little_space_is_said_before_the_first_byte(published, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    source = omni.open_source(published)
    with pytest.raises(Failure) as caught:
        conversion.convert(source, tmp_path / "out", 10**9, force=False, jobs=1)
    assert caught.value.exit_code == 3 and caught.value.findings[0].id == "CKPT-DISK-FULL"
    assert list(tmp_path.iterdir()) == []


def overwrite(shard):
    """Other bytes, the same size."""
    with open(shard, "r+b") as handle:
        handle.seek(-5000, os.SEEK_END)
        handle.write(b"<" * 64)


@pytest.mark.parametrize("flags", [[], ["--hash"], ["--check-only"]])
def test_one_number_that_is_not_finite_ends_a_conversion(published, tmp_path, flags):
    source, out = shutil.copytree(published, tmp_path / "omni"), tmp_path / "out"
    shard = source / "vision_encoder" / "model.safetensors"
    tensor = max(safetensors_files.read_header(shard).values(), key=lambda one: one.nbytes)
    with open(shard, "r+b") as handle:
        handle.seek(tensor.begin)  # where no sample is read
        handle.write(b"\xc0\x7f")
    said = convert(source, out, [*flags, "--json"])
    assert (said.returncode, finding_ids(said)) == (1, ["CKPT-NOT-FINITE"])
    assert str(shard) in said.stdout and [path.name for path in tmp_path.iterdir()] == ["omni"]


def test_a_source_that_was_changed_since_is_not_taken_for_converted(published, tmp_path):
    source, out = shutil.copytree(published, tmp_path / "omni"), tmp_path / "out"
    assert convert(source, out, ["--hash"]).returncode == 0
    shard = source / "vision_encoder" / "model.safetensors"
    stamp = shard.stat().st_mtime_ns
    overwrite(shard)
    os.utime(shard, ns=(stamp, stamp))
    reused = convert(source, out)  # nothing that can be seen has changed
    assert reused.stdout.endswith("skipped_existing\n")
    for flags, found in (("--hash --json", "CKPT-FILE-CHANGED"), ("--json", "CKPT-OUTPUT-OTHER")):
        said = convert(source, out, flags.split())
        assert finding_ids(said) == ["CKPT-OUTPUT-EXISTS", found]
        os.utime(shard)
    assert convert(source, out, ["--force"]).returncode == 0


def test_shards_of_a_changed_source_are_not_mixed_with_new_ones(published, tmp_path):
    folder, out = shutil.copytree(published, tmp_path / "omni"), tmp_path / "out"

    def stop(count, seen=[0]):  # noqa: B006
        seen[0] += count
        if seen[0] > 1_500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conversion.convert(omni.open_source(folder), out, 300_000, force=False, jobs=1, copied=stop)
    for shard in folder.glob("*/*.safetensors"):
        overwrite(shard)
    assert convert(folder, out, ["--max-shard-size", "300KB"]).returncode == 0
    assert contents(out) == converted(folder)


def test_what_was_converted_is_told_though_its_validation_fails(published, tmp_path):
    command = f"{SCRIPT} --output-path out --validate-with-image foo:1 --checkpoint-path"
    nowhere = {"cwd": tmp_path, "env": {"PATH": "/nowhere"}}
    done = run_script(command, published, **nowhere)
    assert done.returncode == 3 and "CKPT-NO-DOCKER" in done.stderr
    assert done.stdout == f"converted_checkpoint={tmp_path / 'out'}\nstatus=converted\n"
    done = run_script(command, published, "--json", **nowhere)
    assert done.returncode == 3
    assert json.loads(done.stdout)["result"]["status"] == "skipped_existing"


def test_flags_that_count_for_nothing_are_told(published, tmp_path):
    command = f"{SCRIPT} --check-only --force --validate-with-image foo:1 --json --output-path x"
    done = run_script(command, "--checkpoint-path", published, cwd=tmp_path)
    assert done.returncode == 0 and finding_ids(done) == ["CKPT-CONVERTIBLE", "CKPT-NO-EFFECT"]
    assert convert(published, tmp_path / "out").returncode == 0
    missing = convert(published, tmp_path / "out", ["--donor", "./nosuch", "--json"])
    assert (missing.returncode, finding_ids(missing)) == (2, ["CKPT-DONOR-MISSING"])
    done = convert(published, tmp_path / "out", ["--donor", tmp_path / "out", "--json"])
    assert (done.returncode, finding_ids(done)) == (0, ["CKPT-DONOR-UNUSED"])
    bare = as_export(published, tmp_path / "bare", bare=True)
    donor = shutil.copytree(tmp_path / "out", tmp_path / "donor")
    done = convert(bare, donor, ["--donor", donor, "--force", "--json"])
    assert (done.returncode, finding_ids(done)) == (2, ["CKPT-OUTPUT-OVERLAPS"])
    missing = convert(bare, tmp_path / "out2", ["--donor", "./nosuch", "--json"])
    assert (missing.returncode, finding_ids(missing)) == (2, ["CKPT-DONOR-MISSING"])
    done = run_script(SCRIPT, "--checkpoint-path", published, "--output-path", "", cwd=tmp_path)
    assert done.returncode == 2
