"""JSON lines that are written as they come: what a kill or a crash leaves of them is left out."""

from cosmos_reason.evaluation import line_log


def test_a_line_after_one_that_was_cut_short_is_whole(tmp_path):
    log = tmp_path / "new" / "log.jsonl"
    assert list(line_log.read(log)) == []
    line_log.append(log, [{"id": "a"}, {"id": "b"}])
    log.write_bytes(log.read_bytes()[:-4])  # killed in the middle of a line
    line_log.append(log, [{"id": "c"}])
    assert [line["id"] for line in line_log.read(log)] == ["a", "c"]


def test_zeros_and_other_values_than_objects_are_left_out(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(bytes(9) + b'\n[1]\n\xff\n{"id": "a"}\n')
    assert list(line_log.read(log)) == [{"id": "a"}]
