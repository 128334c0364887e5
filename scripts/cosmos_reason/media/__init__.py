"""Clips and images: finding, probing, decoding, archives, and the sampling arithmetic of
qwen-vl-utils.

Enter at `checks.examine_all` (what many files are), `files.probe` (one file) and
`sampling.frame_indices`.

It is above 1,600 lines because whatever people call a clip is read here: files of every container,
pictures in lists and folders, members of archives, shards of TFRecords.
"""
