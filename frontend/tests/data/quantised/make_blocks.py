#!/usr/bin/env python3
"""Makes blocks.gguf: random blocks of every quantised type, and what the reference implementation decodes them to.

Needs the packages `gguf` and `numpy`. Run it in this folder: `python3 make_blocks.py`. Tensor `Q4_K` holds the blocks, the F32
tensor `Q4_K.expected` their values. Scales are extreme in some blocks: the largest, the smallest, zero, negative.
"""
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize

ROWS, COLS = 3, 512
# Where the f16 scales of a block are.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}
EXTREMES = [65504.0, -65504.0, 2.0**-24, -(2.0**-24), 2.0**-14, 0.0, -0.0, 1.0, -0.0371]

rng = np.random.default_rng(3)
writer = GGUFWriter("blocks.gguf", "blocks")
for name, places in SCALES.items():
    kind = GGMLQuantizationType[name]
    per_block, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS * COLS // per_block, size), dtype=np.uint8)
    for i, block in enumerate(blocks):
        for place in places:
            # The first two blocks have the largest and zero; half of the others an extreme, the rest an ordinary scale.
            value = rng.choice(EXTREMES) if rng.random() < 0.5 else rng.normal(scale=0.01)
            value = [65504.0, 0.0][i] if i < 2 else value
            block[place:place + 2] = np.array([value], np.float16).view(np.uint8)
    values = dequantize(blocks.reshape(ROWS, -1), kind)
    assert values.shape == (ROWS, COLS) and np.isfinite(values).all(), name
    writer.add_tensor(name, blocks.reshape(ROWS, -1), raw_dtype=kind)
    writer.add_tensor(name + ".expected", values.astype(np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
