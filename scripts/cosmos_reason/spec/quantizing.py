"""Keys of a quantize spec that several packages read, and what goes without calibration."""

SCHEME = "quantize.quantization_scheme"
SAMPLES = "quantize.num_calibration_samples"
LENGTH = "quantize.max_sequence_length"
CACHE = "quantize.kv_precision"
DATA_FREE = "FP8_DYNAMIC"  # the scheme that needs no records, with a cache that is not compressed
