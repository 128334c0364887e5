"""What the demo is made of: a small model in the published layout, and clips to teach it.

Enter at `tiny_omni.build`, `tiny_qwen2_5_vl.build` and `clips.write_split`.
"""
