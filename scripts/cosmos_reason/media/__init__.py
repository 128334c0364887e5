"""Clips and images: finding, probing, decoding, archives, and the sampling arithmetic of
qwen-vl-utils.

Enter at `checks.examine_all` (what many files are), `files.probe` (one file) and
`sampling.frame_indices`.
"""
