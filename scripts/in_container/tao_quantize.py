#!/usr/bin/env python3
"""Compresses a model inside NVIDIA's TAO container:
tao_quantize.py --model_path M --results_dir DIR ...

The image has the quantizer as a module and no program for it; the arguments are the
module's own. Rendered and mounted by launch_job; it has never been run in the real image.
NVIDIA's own recipe patches compressed_tensors first; where the module fails inside that
package, the patch is what is missing.
"""

import sys

if __name__ == "__main__":
    from cosmos_rl.quantization import quantize  # the image's own package

    sys.exit(quantize.main())
