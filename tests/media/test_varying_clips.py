"""Clips whose stamps step back or keep to no rate, as OpenCV's box.mp4, Megamind.avi and tree.avi:
cut, probed, sampled and shown with the times at which their frames are shown."""

import json
import re
from fractions import Fraction

import av
import numpy as np
import pytest
from clip_files import check, write_clip
from support import called, run_script

from cosmos_reason.data.frames import Sampler
from cosmos_reason.data.samples import Media
from cosmos_reason.media import convert, cut
from cosmos_reason.media import files as media
from cosmos_reason.media.sampling import VisionOptions

GAPS = (0, 11, 17, 24, 31, 37, 43, 49)  # tenths of a second at which frames are shown


def grey(number):
    level = np.full((48, 64, 3), 8 * number, np.uint8)
    return av.VideoFrame.from_ndarray(level, format="rgb24")


def write_stepping(path, frames=30):
    """A clip with B-frames whose packets have their place in the file as their stamp."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx264", rate=10, options={"crf": "1", "bf": "3", "g": "12"}
        )
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.options = {"b-adapt": "0"}
        packets = []
        for number in range(frames):
            frame = grey(number)
            frame.pts = number
            packets += stream.encode(frame)
        packets += stream.encode(None)
        for place, packet in enumerate(packets):
            packet.pts = packet.dts = place
            container.mux(packet)
    stamps = []
    with av.open(str(path)) as container:
        stamps = [frame.pts for frame in container.decode(video=0)]
    assert stamps != sorted(stamps), "the clip is what it is meant to be"
    return path


def write_varying(path, codec="mjpeg"):
    """Frames at GAPS; an AVI declares one for each tenth of a second."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height = 64, 48
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number, shown in enumerate(GAPS):
            frame = grey(number)
            frame.pts = shown
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def levels(path):
    """The number of each frame of a clip, as `grey` wrote it."""
    facts = media.probe(path)
    return [round(frame.mean() / 8) for frame in media.decode_frames(path, range(facts.frames))]


def build(folder, rows, *flags):
    """(exit code, document) of build_dataset.py for a table of parts."""
    table = folder / "parts.csv"
    table.write_text("\n".join(["video,start,end,question,answer", *rows]) + "\n")
    times = ("--column", "start=start", "--column", "end=end")
    done = run_script(
        "build_dataset.py", table, "-o", folder / "out", "--force", *times, *flags, "--json"
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("name", ["back.mp4", "back.avi", "back.mkv"])
def test_a_part_of_a_clip_whose_stamps_step_back_is_cut_by_the_order_of_its_frames(tmp_path, name):
    write_stepping(tmp_path / name)
    code, _ = build(tmp_path, [f"{name},1,2,Bright?,yes"])
    (clip,) = (tmp_path / "out" / "train" / "media").iterdir()
    assert code == 0 and levels(clip) == list(range(10, 20))
    assert media.probe(clip).seconds == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("codec", "name"), [("mjpeg", "gaps.avi"), ("libx264", "gaps.mkv")])
def test_times_of_varying_rate_are_those_of_the_frames(tmp_path, codec, name):
    path = write_varying(tmp_path / name, codec)
    facts = media.probe(path)
    assert facts.frames == len(GAPS) and facts.seconds == pytest.approx(5.5, abs=0.3)
    assert facts.fps == pytest.approx(facts.frames / facts.seconds) == media.frame_rate(path)
    vision = Sampler(str(tmp_path), VisionOptions(fps=2.0), 16).load(Media("video", name))
    numbers = [round(frame.mean() / 8) for frame in vision.frames]
    assert [round(10 * second) for second in vision.seconds] == [GAPS[n] for n in numbers]
    assert len(numbers) == 8  # two a second of five and a half, of the eight that there are


def test_a_build_states_the_rate_that_a_check_finds(tmp_path):
    """An MP4 counts its last frame as long as its writer says, which is most of a short clip: the
    rate in its header was a third too high, and an error of DATA-VIDEO-FPS-OTHER."""
    path = tmp_path / "slides.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, shown in enumerate((0, 5000, 9000, 9500, 20000)):
            frame = grey(number)
            frame.pts, frame.time_base = shown, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    (tmp_path / "labels.csv").write_text("video,question,answer\nslides.mp4,Which?,red\n")
    words = (tmp_path / "labels.csv", "-o", tmp_path / "out")
    assert run_script("build_dataset.py", *words).returncode == 0
    (record,) = json.loads((tmp_path / "out" / "train" / "annotations.json").read_text())
    assert record["video_fps"] == pytest.approx(media.probe(path).fps)


def test_a_page_shows_the_times_of_the_frames(tmp_path):
    write_varying(tmp_path / "gaps.avi")
    turns = [{"from": "human", "value": "<video>\nBright?"}, {"from": "gpt", "value": "yes"}]
    record = {"id": "a", "video": "gaps.avi", "conversations": turns}
    (tmp_path / "annotations.json").write_text(json.dumps([record]))
    _, found = check(tmp_path, "--html", tmp_path / "page.html", "--decode", "none")
    page = (tmp_path / "page.html").read_text()
    shown = re.findall(r"frames at ([\d., ]+) s", page)[0]
    assert {float(second) for second in shown.split(", ")} <= {one / 10 for one in GAPS}
    assert "DATA-MEDIA-FRAMES" in found  # what other readers believe


def test_a_part_of_a_clip_of_varying_rate_begins_with_the_frame_on_display(tmp_path):
    write_varying(tmp_path / "gaps.avi")
    code, _ = build(tmp_path, ["gaps.avi,0.3,2,Bright?,yes", "gaps.avi,4.95,5.3,Bright?,yes"])
    first, second = sorted((tmp_path / "out" / "train" / "media").iterdir())
    assert code == 0 and levels(first) == [0, 1, 2] and levels(second) == [7]


def test_one_bad_clip_is_a_finding_and_can_be_left_out(tmp_path):
    write_clip(tmp_path / "good.mp4", frames=24)
    write_varying(tmp_path / "gaps.avi")
    (tmp_path / "bad.mp4").write_bytes((tmp_path / "good.mp4").read_bytes()[:-400])
    with av.open(str(tmp_path / "tiny.mkv"), "w") as container:  # too small to be encoded again
        stream = container.add_stream("ffv1", rate=8)
        stream.width, stream.height, stream.pix_fmt = 1, 1, "bgr0"
        for number in range(16):
            pixel = np.zeros((1, 1, 3), np.uint8)
            frame = av.VideoFrame.from_ndarray(pixel, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    rows = [f"{name},0,1,Bright?,yes" for name in ("good.mp4", "tiny.mkv", "bad.mp4", "gaps.avi")]
    code, document = build(tmp_path, rows)
    found = {finding["id"]: finding for finding in document["findings"]}
    assert code == 2 and {"BUILD-CUT", "DATA-MEDIA-UNDECODABLE"} <= found.keys()
    assert found["BUILD-CUT"]["fix"] == "--skip-missing"
    code, document = build(tmp_path, rows, "--skip-missing")
    assert code == 0 and document["result"]["written"] == {"train": 2}
    assert document["result"]["skipped"] == 2


def test_a_turned_clip_of_varying_rate_keeps_its_times(tmp_path):
    path = write_varying(tmp_path / "gaps.mkv", "libx264")
    pictures = list(convert._as_shown(path))
    ends = np.cumsum([float(shown) for shown, _ in pictures])
    assert [round(10 * end) for end in ends[:-1]] == list(GAPS[1:])


def test_no_command_encodes_a_container_that_is_not_read_into_itself(tmp_path):
    with av.open(str(tmp_path / "a.wmv"), "w", format="asf") as container:
        stream = container.add_stream("wmv2", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(8):
            container.mux(stream.encode(grey(number)))
        container.mux(stream.encode(None))
    turns = [{"from": "human", "value": "<video>\nBright?"}, {"from": "gpt", "value": "yes"}]
    record = {"id": "a", "video": "a.wmv", "conversations": turns}
    (tmp_path / "annotations.json").write_text(json.dumps([record]))
    _, found = check(tmp_path, expect=1)
    finding = found["DATA-MEDIA-UNDECODABLE"]
    assert not finding.get("fix") and ".mp4" in finding["message"]


@pytest.mark.parametrize("start", [1, 2, 2.5, 3.5, 4])
def test_a_part_of_a_container_without_an_index_begins_where_it_is_asked_for(tmp_path, start):
    """A seek in MPEG-TS lands between key frames, so that all until the next one were lost; behind
    the last one (3.75 s here) it finds nothing."""
    path = write_clip(tmp_path / "stream.ts", frames=40, rate=8)
    with (tmp_path / "part.mp4").open("wb") as file:
        cut.cut(path, Fraction(start), Fraction(start + 1), file, "part")
    assert media.probe(tmp_path / "part.mp4").frames == 8
    shown = [picture.mean() / 6 for picture in media.decode_frames(tmp_path / "part.mp4", range(8))]
    expected = start * 8 + np.arange(8)
    assert np.abs(shown - expected).max() < 0.5


@pytest.mark.parametrize("codec", ["mpeg4", "mpeg2video"])
def test_a_part_of_an_avi_with_b_frames_begins_where_it_is_asked_for(tmp_path, codec):
    """Its first frame has the stamp 1 in a stream that says to start at 0, as ffmpeg has it."""
    path = tmp_path / "old.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options={"bf": "2", "g": "12", "qmax": "2"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(30):
            frame = grey(number)
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with av.open(str(path)) as container:
        first = next(container.decode(video=0))
        assert first.pts == 1 and not container.streams.video[0].start_time
    with (tmp_path / "part.mp4").open("wb") as file:
        cut.cut(path, Fraction(4, 5), Fraction(1), file, "part")
    assert media.probe(tmp_path / "part.mp4").frames == 5
    shown = [picture.mean() / 8 for picture in media.decode_frames(tmp_path / "part.mp4", range(5))]
    assert np.abs(shown - np.arange(20, 25)).max() < 0.5, shown


def write_colored(path, transfer):
    """A second of bars of saturated colors that move, tagged as BT.709 or not at all."""
    columns = np.arange(64)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"crf": "1", "g": "5"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        if transfer:
            context = stream.codec_context
            context.colorspace = context.color_primaries = context.color_trc = transfer
            context.color_range = 1
        for number in range(10):
            pixels = np.zeros((48, 64, 3), np.uint8)
            for color in range(3):
                pixels[:, (columns + 2 * number) // 8 % 3 == color, color] = 255
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def planes(path):
    with av.open(str(path)) as container:
        return [
            (frame.to_ndarray(format="yuv420p").astype(int), frame.colorspace, frame.color_range)
            for frame in container.decode(video=0)
        ]


@pytest.mark.parametrize("transfer", [1, None])
@pytest.mark.parametrize("how", ["cut", "transcoded"])
def test_colors_stay_as_they_are_stored(tmp_path, how, transfer):
    """By way of RGB those of BT.709 came out as BT.601: 9 apart, the brightness 13."""
    path = write_colored(tmp_path / "a.mp4", transfer)
    with open(tmp_path / "b.mp4", "wb") as target:
        if how == "cut":
            cut.cut(path, Fraction(3, 10), Fraction(1), target, "b")
        else:
            convert.write_clip(target, "mp4", convert._as_shown(path))
    before, after = planes(path)[3 if how == "cut" else 0 :], planes(tmp_path / "b.mp4")
    assert len(before) == len(after)
    for (one, *tags), (other, *kept) in zip(before, after, strict=True):
        assert tags == kept
        # The planes of color lie below the 48 rows of the brightness.
        apart = abs(one - other)
        assert max(apart[:48].mean(), apart[48:].mean()) < (3 if how == "cut" else 0.2)


@pytest.mark.parametrize("suffix", [".mkv", ".webm", ".ts", ".flv", ".mp4"])
def test_a_damaged_clip_is_written_again_with_the_frames_that_decode(tmp_path, suffix):
    """One that breaks off, or whose index stands at its end and what lies in its middle is lost."""
    codec = "libvpx-vp9" if suffix == ".webm" else "libx264"
    path = write_clip(tmp_path / f"torn{suffix}", frames=40, codec=codec)
    whole = path.read_bytes()
    third = len(whole) // 3
    is_whole_again = suffix == ".mp4"
    torn = whole[: 2 * third]
    if is_whole_again:
        torn = whole[:third] + bytes(third // 4) + whole[third + third // 4 :]
    path.write_bytes(torn)
    turns = [{"from": "human", "value": "<video>\nBright?"}, {"from": "gpt", "value": "yes"}]
    record = {"id": "a", "video": path.name, "conversations": turns}
    (tmp_path / "annotations.json").write_text(json.dumps([record]))
    fix = check(tmp_path, "--decode", "all", expect=1)[1]["DATA-MEDIA-UNDECODABLE"]["fix"]
    assert called(["sh", "-c", fix]).returncode == 0
    _, found = check(tmp_path, "--decode", "all")
    assert not [id for id in found if id.startswith("DATA-MEDIA")]
    assert path.with_name(f"{path.name}.original").read_bytes() == torn
    kept = media.probe(path)
    assert 10 < kept.frames < 40
    assert (kept.seconds > 4.5) is is_whole_again, "the frames that are left keep their times"


def write_damaged(path, damaged=()):
    """Write 48 frames at 8 a second, with a key frame every 12 and B frames between; the `damaged`
    ones, in the order of the file, are no H.264."""
    options = {"movflags": "faststart"} if path.suffix in (".mp4", ".mov") else {}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("libx264", rate=8, options={"crf": "1", "bf": "3"})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 64, 48, "yuv420p", 12
        for number in range(48):
            container.mux(stream.encode(grey(number / 2)))
        container.mux(stream.encode(None))
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    for number, packet in enumerate(packets):
        if number in damaged:
            content[packet.pos : packet.pos + packet.size] = b"\xff" * packet.size
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("damaged", [range(12), range(24, 33), [*range(6), *range(24, 33)]])
def test_what_stands_behind_damage_keeps_its_time(tmp_path, damaged):
    """A decoder gives frames behind damage out of order, and each jump made the clip longer; a
    damaged beginning was not mended at all, or let all else come earlier."""
    path = write_damaged(tmp_path / "a.mp4", damaged)
    assert convert.main([str(path)]) == 0
    with av.open(str(path)) as container:
        found = [(one.time, one.to_ndarray(format="rgb24").mean()) for one in container.decode()]
        assert container.duration / av.time_base == pytest.approx(6, abs=0.1)
    assert found[0][0] == 0
    behind = [(round(8 * at), round(level / 4)) for at, level in found if at >= 4.5]
    assert behind == [(number, number) for number in range(36, 48)]


@pytest.mark.parametrize("lost", [(0.2, 0.4), (0.4, 0.6)])
def test_what_stands_behind_lost_packets_of_a_stream_keeps_its_time(tmp_path, lost):
    """No decoder fails at them, but it gives the frames around them out of order all the same."""
    path = write_damaged(tmp_path / "a.ts")
    whole = path.read_bytes()
    begin, end = (int(len(whole) * share) // 188 * 188 for share in lost)
    path.write_bytes(whole[:begin] + whole[end:])
    with (tmp_path / "b.mp4").open("wb") as target:
        convert.write_clip(target, "mp4", convert._as_shown(path))
    with av.open(str(tmp_path / "b.mp4")) as container:
        assert container.duration / av.time_base == pytest.approx(6, abs=0.1)


@pytest.mark.parametrize("suffix", ["mp4", "mov", "flv"])
def test_the_last_frames_before_a_cut_are_kept(tmp_path, suffix):
    """Of several threads of a decoder, one that met the cut took the frames of others along."""
    path = write_damaged(tmp_path / f"a.{suffix}")
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    path.write_bytes(path.read_bytes()[: packets[24].pos + packets[24].size // 2])
    assert convert.main([str(path)]) == 0
    assert media.probe(path).frames == 24


def test_what_is_no_medium_leaves_no_copy(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"\xff" * 900)
    assert convert.main([str(path)]) != 0
    assert [one.name for one in tmp_path.iterdir()] == ["a.mp4"]


def test_a_clip_that_shows_no_frame_is_not_written_anew(tmp_path):
    path = write_clip(tmp_path / "hidden.mp4", frames=8, skipped=8)
    assert convert.transcode_all([path], tmp_path / "anew") == {}
