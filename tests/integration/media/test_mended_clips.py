"""The fix of damaged clips, run."""

import subprocess

import pytest
from clip_files import check, record, write_clip, write_dataset

from cosmos_reason.media import files as media

pytestmark = pytest.mark.integration


@pytest.mark.promise
def test_damaged_videos_are_mended_by_the_fix(tmp_path):
    """What decodes is whole afterwards and the damaged file is kept, what does not stays; pasting
    twice does nothing more."""
    root = write_dataset(tmp_path / "my data", [record(number) for number in range(3)])
    write_clip(root / "clips" / "0.mp4", frames=40, skipped=20)
    write_clip(root / "clips" / "1.mp4", frames=40, skipped=20)
    (root / "clips" / "2.mp4").write_bytes(b"broken")
    files = {path.name: path.read_bytes() for path in (root / "clips").iterdir()}
    _, findings = check(root, expect=1)
    assert "remove its records" in findings["DATA-MEDIA-UNDECODABLE"]["fix"]
    for check_id in ("DATA-MEDIA-FRAMES", "DATA-MEDIA-UNDECODABLE"):
        subprocess.run(["sh", "-c", findings[check_id]["fix"]], cwd="/", capture_output=True)
    once = {path.name: path.read_bytes() for path in (root / "clips").iterdir()}
    assert once == files | {name: once[name] for name in ("0.mp4", "1.mp4")} | {
        f"{name}.original": files[name] for name in ("0.mp4", "1.mp4")
    }
    for check_id in ("DATA-MEDIA-FRAMES", "DATA-MEDIA-UNDECODABLE"):
        subprocess.run(["sh", "-c", findings[check_id]["fix"]], cwd="/", capture_output=True)
    assert once == {path.name: path.read_bytes() for path in (root / "clips").iterdir()}
    _, findings = check(root, expect=1)
    assert "DATA-MEDIA-FRAMES" not in findings
    assert media.probe(root / "clips" / "1.mp4").frames == 20
