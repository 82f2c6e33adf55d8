"""Writes a random GGUF of llama-2-7b's shapes, quantised as Q4_K_M is, without NumPy: write_gguf.py FILE [LAYERS].

Types by tensor are those of llama.cpp's Q4_K_M: Q4_K, and Q6_K for the head and for half of the values and down projections. Scales
are such that activations stay near one.
"""
import random
import struct
import sys

HIDDEN, FFN, VOCAB, HEADS = 4096, 11008, 32000, 32
LAYERS = int(sys.argv[2]) if len(sys.argv) > 2 else 32
F32, Q4_K, Q6_K = 0, 12, 14
# Bytes of a block of 256 elements.
BLOCK = {Q4_K: 144, Q6_K: 210}
UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5
ALIGNMENT = 32


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, data):
    if kind == STRING:
        return string(data)
    return struct.pack({UINT32: "<I", FLOAT32: "<f", INT32: "<i"}[kind], data)


def entry(key, kind, data):
    return string(key) + struct.pack("<I", kind) + value(kind, data)


def array(key, kind, items):
    return string(key) + struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(value(kind, i) for i in items)


def vocabulary():
    letters = [chr(ord("a") + i) for i in range(26)]
    pieces = ["\u2581"] + letters + ["\u2581" + a for a in letters] + [a + b for a in letters for b in letters]
    pieces += [f"x{i}" for i in range(VOCAB)]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    return (tokens + pieces)[:VOCAB]


def more_bits(layer):
    return layer < LAYERS / 8 or layer >= 7 * LAYERS / 8 or (layer - LAYERS // 8) % 3 == 2


def tensors():
    """(name, rows, columns or None, type)"""
    yield "token_embd.weight", VOCAB, HIDDEN, Q4_K
    for layer in range(LAYERS):
        name, high = f"blk.{layer}.", Q6_K if more_bits(layer) else Q4_K
        for part, kind in [("attn_q", Q4_K), ("attn_k", Q4_K), ("attn_v", high), ("attn_output", Q4_K)]:
            yield f"{name}{part}.weight", HIDDEN, HIDDEN, kind
        yield f"{name}ffn_gate.weight", FFN, HIDDEN, Q4_K
        yield f"{name}ffn_up.weight", FFN, HIDDEN, Q4_K
        yield f"{name}ffn_down.weight", HIDDEN, FFN, high
        yield f"{name}attn_norm.weight", HIDDEN, None, F32
        yield f"{name}ffn_norm.weight", HIDDEN, None, F32
    yield "output_norm.weight", HIDDEN, None, F32
    yield "output.weight", VOCAB, HIDDEN, Q6_K


def size(rows, columns, kind):
    return rows * 4 if kind == F32 else rows * columns // 256 * BLOCK[kind]


def blocks(kind, columns, draw):
    """4096 random blocks."""
    out = bytearray()
    for _ in range(4096):
        block = bytearray(draw.randbytes(BLOCK[kind]))
        if kind == Q4_K:
            scale = 1 / columns**0.5 / 256
            block[0:4] = struct.pack("<ee", scale, 7.5 * scale)
        else:
            block[208:210] = struct.pack("<e", 1 / columns**0.5 / 1024)
        out += block
    return bytes(out)


def main():
    tokens = vocabulary()
    metadata = [
        entry("general.architecture", STRING, "llama"),
        entry("llama.block_count", UINT32, LAYERS),
        entry("llama.context_length", UINT32, 4096),
        entry("llama.embedding_length", UINT32, HIDDEN),
        entry("llama.feed_forward_length", UINT32, FFN),
        entry("llama.attention.head_count", UINT32, HEADS),
        entry("llama.attention.head_count_kv", UINT32, HEADS),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        entry("llama.rope.dimension_count", UINT32, HIDDEN // HEADS),
        entry("tokenizer.ggml.model", STRING, "llama"),
        array("tokenizer.ggml.tokens", STRING, tokens),
        array("tokenizer.ggml.scores", FLOAT32, [-float(i) for i in range(VOCAB)]),
        array("tokenizer.ggml.token_type", INT32, [2, 3, 3] + [6] * 256 + [1] * (VOCAB - 259)),
        entry("tokenizer.ggml.bos_token_id", UINT32, 1),
        entry("tokenizer.ggml.eos_token_id", UINT32, 2),
        entry("tokenizer.ggml.unknown_token_id", UINT32, 0),
    ]
    all_tensors, infos, at = list(tensors()), [], 0
    for name, rows, columns, kind in all_tensors:
        dims = [rows] if columns is None else [columns, rows]
        shape = b"".join(struct.pack("<Q", d) for d in dims)
        infos.append(string(name) + struct.pack("<I", len(dims)) + shape + struct.pack("<IQ", kind, at))
        at += -(-size(rows, columns, kind) // ALIGNMENT) * ALIGNMENT
    draw, made = random.Random(0), {}
    with open(sys.argv[1], "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), len(metadata)))
        file.write(b"".join(metadata) + b"".join(infos))
        file.write(bytes(-file.tell() % ALIGNMENT))
        for _, rows, columns, kind in all_tensors:
            left = size(rows, columns, kind)
            tile = struct.pack("<f", 1.0) * rows
            if kind != F32:
                if (kind, columns) not in made:
                    made[kind, columns] = blocks(kind, columns, draw)
                tile = made[kind, columns]
            while left > 0:
                left -= file.write(tile[:left])
            file.write(bytes(-file.tell() % ALIGNMENT))


main()
