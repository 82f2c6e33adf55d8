#!/usr/bin/env python3
"""Makes the tiny models in this folder and what they compute, with numpy alone, in float64.

Every model is written down a second time here, in the flat [tokens, heads * head_dim] form of the published code and
sharing nothing with the Rust sources: config.json and model.safetensors (F16, so that the values are exact), and
expected.json with tokens and outputs. Run it in this folder: `python3 make_reference.py`.
"""
import json
import math
import os
import struct
import numpy as np

ROWS, SEQ = 2, 7


def save(path, tensors):
    """Writes safetensors: all F16."""
    header, blobs, at = {}, [], 0
    for name, t in tensors.items():
        blob = t.astype(np.float16).tobytes()
        header[name] = {"dtype": "F16", "shape": list(t.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


class Weights:
    """Random values that F16 holds exactly, made when first asked for."""

    def __init__(self, seed):
        self.rng, self.tensors = np.random.default_rng(seed), {}

    def get(self, name, *shape, around=0.0, scale=None):
        if name not in self.tensors:
            scale = scale or 1.0 / math.sqrt(shape[-1])
            values = around + scale * self.rng.standard_normal(shape)
            self.tensors[name] = values.astype(np.float16).astype(np.float64)
        return self.tensors[name]

    def linear(self, x, name, n_in, n_out, bias):
        y = x @ self.get(name + ".weight", n_out, n_in).T
        return y + self.get(name + ".bias", n_out, scale=0.2) if bias else y

    def conv1d(self, x, name, n_in, n_out):
        return x @ self.get(name + ".weight", n_in, n_out) + self.get(name + ".bias", n_out, scale=0.2)

    def rms(self, x, name, eps):
        w = self.get(name + ".weight", x.shape[-1], around=1.0, scale=0.1)
        return w * x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)

    def layer_norm(self, x, name, eps):
        w = self.get(name + ".weight", x.shape[-1], around=1.0, scale=0.1)
        b = self.get(name + ".bias", x.shape[-1], scale=0.1)
        mean = x.mean(-1, keepdims=True)
        var = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + eps) * w + b


def erf(x):
    return np.vectorize(math.erf)(x)


ACT = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attend(q, k, v, allowed):
    """q, k, v [b, heads, s, d]; allowed [b, s, s]."""
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
    return softmax(np.where(allowed[:, None], scores, -1e30)) @ v


def heads(x, n):
    return x.reshape(*x.shape[:2], n, -1).transpose(0, 2, 1, 3)


def rotate_half(x):
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], -1)


def inverse_frequencies(c, d):
    inv = 1.0 / c["rope_theta"] ** (np.arange(0, d, 2) / d)
    s = c.get("rope_scaling")
    if not s:
        return inv
    if s["rope_type"] == "linear":
        return inv / s["factor"]
    low, high, old = s["low_freq_factor"], s["high_freq_factor"], s["original_max_position_embeddings"]
    wave = 2 * math.pi / inv
    scaled = np.where(wave > old / low, inv / s["factor"], inv)
    smooth = (old / wave - low) / (high - low)
    mixed = (1 - smooth) * scaled / s["factor"] + smooth * scaled
    medium = ~(wave < old / high) & ~(wave > old / low)
    return np.where(medium, mixed, scaled)


def llama(c, w, tokens, qkv_bias=False, out_bias=False, qk_norm=False, window=lambda i: None):
    h, n, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    d, f, eps = c.get("head_dim") or h // n, c["intermediate_size"], c["rms_norm_eps"]
    b, s = tokens.shape
    table = w.get("model.embed_tokens.weight", c["vocab_size"], h, scale=1.0)
    x = table[tokens]
    angle = np.arange(s)[:, None] * inverse_frequencies(c, d)
    cos, sin = (np.concatenate([t, t], -1) for t in (np.cos(angle), np.sin(angle)))
    distance = np.arange(s)[:, None] - np.arange(s)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        y = w.rms(x, p + "input_layernorm", eps)
        q = heads(w.linear(y, p + "self_attn.q_proj", h, n * d, qkv_bias), n)
        k = heads(w.linear(y, p + "self_attn.k_proj", h, kv * d, qkv_bias), kv)
        v = heads(w.linear(y, p + "self_attn.v_proj", h, kv * d, qkv_bias), kv)
        if qk_norm:
            q = w.rms(q, p + "self_attn.q_norm", eps)
            k = w.rms(k, p + "self_attn.k_norm", eps)
        q, k = (t * cos + rotate_half(t) * sin for t in (q, k))
        k, v = (np.repeat(t, n // kv, axis=1) for t in (k, v))
        allowed = (distance >= 0) & (distance < (window(i) or s))
        o = attend(q, k, v, np.broadcast_to(allowed, (b, s, s)))
        o = o.transpose(0, 2, 1, 3).reshape(b, s, n * d)
        x = x + w.linear(o, p + "self_attn.o_proj", n * d, h, out_bias)
        y = w.rms(x, p + "post_attention_layernorm", eps)
        gate = ACT[c["hidden_act"]](w.linear(y, p + "mlp.gate_proj", h, f, c.get("mlp_bias", False)))
        up = w.linear(y, p + "mlp.up_proj", h, f, c.get("mlp_bias", False))
        x = x + w.linear(gate * up, p + "mlp.down_proj", f, h, c.get("mlp_bias", False))
    x = w.rms(x, "model.norm", eps)
    head = table if c["tie_word_embeddings"] else w.get("lm_head.weight", c["vocab_size"], h)
    return x @ head.T


def gpt2(c, w, tokens):
    h, n, eps = c["n_embd"], c["n_head"], c["layer_norm_epsilon"]
    b, s = tokens.shape
    table = w.get("wte.weight", c["vocab_size"], h, scale=1.0)
    x = table[tokens] + w.get("wpe.weight", c["n_positions"], h, scale=0.5)[:s]
    causal = np.broadcast_to(np.tril(np.ones((s, s), bool)), (b, s, s))
    for i in range(c["n_layer"]):
        p = f"h.{i}."
        y = w.layer_norm(x, p + "ln_1", eps)
        q, k, v = (heads(t, n) for t in np.split(w.conv1d(y, p + "attn.c_attn", h, 3 * h), 3, axis=-1))
        o = attend(q, k, v, causal).transpose(0, 2, 1, 3).reshape(b, s, h)
        x = x + w.conv1d(o, p + "attn.c_proj", h, h)
        y = w.layer_norm(x, p + "ln_2", eps)
        y = ACT[c["activation_function"]](w.conv1d(y, p + "mlp.c_fc", h, 4 * h))
        x = x + w.conv1d(y, p + "mlp.c_proj", 4 * h, h)
    # A causal mask kept as a buffer, as old files have it.
    w.get("h.0.attn.bias", 1, 1, c["n_positions"], c["n_positions"])
    return w.layer_norm(x, "ln_f", eps) @ table.T


def bert(c, w, tokens, mask, types):
    h, n, eps, f = c["hidden_size"], c["num_attention_heads"], c["layer_norm_eps"], c["intermediate_size"]
    b, s = tokens.shape
    e = "bert.embeddings."
    x = w.get(e + "word_embeddings.weight", c["vocab_size"], h, scale=1.0)[tokens]
    x = x + w.get(e + "position_embeddings.weight", c["max_position_embeddings"], h, scale=0.5)[:s]
    x = x + w.get(e + "token_type_embeddings.weight", c["type_vocab_size"], h, scale=0.5)[types]
    x = w.layer_norm(x, e + "LayerNorm", eps)
    allowed = np.broadcast_to(mask[:, None, :] != 0, (b, s, s))
    for i in range(c["num_hidden_layers"]):
        p = f"bert.encoder.layer.{i}."
        q, k, v = (heads(w.linear(x, p + f"attention.self.{r}", h, h, True), n) for r in ("query", "key", "value"))
        o = attend(q, k, v, allowed).transpose(0, 2, 1, 3).reshape(b, s, h)
        o = w.linear(o, p + "attention.output.dense", h, h, True)
        x = w.layer_norm(x + o, p + "attention.output.LayerNorm", eps)
        y = ACT[c["hidden_act"]](w.linear(x, p + "intermediate.dense", h, f, True))
        x = w.layer_norm(x + w.linear(y, p + "output.dense", f, h, True), p + "output.LayerNorm", eps)
    # The rest of the class, and what a published file holds beyond it.
    w.get("cls.predictions.bias", c["vocab_size"])
    w.linear(x, "cls.predictions.transform.dense", h, h, True)
    w.layer_norm(x, "cls.predictions.transform.LayerNorm", eps)
    w.linear(x, "cls.seq_relationship", h, 2, True)
    # The oldest files call a norm's weight and bias gamma and beta.
    old = {k: k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta") for k in w.tensors}
    w.tensors = {old[k]: t for k, t in w.tensors.items()}
    return x


LLAMA = {
    "vocab_size": 19, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
    "rope_theta": 100.0, "hidden_act": "silu", "tie_word_embeddings": False, "head_dim": 4,
}

MODELS = {
    # Grouped queries, Llama 3.1 frequencies whose wavelengths fall on all three sides, biases everywhere.
    "llama": ({**LLAMA, "model_type": "llama", "head_dim": 8, "attention_bias": True, "mlp_bias": True,
               "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                                "high_freq_factor": 4.0, "original_max_position_embeddings": 48}},
              lambda c, w, t: llama(c, w, t, qkv_bias=True, out_bias=True)),
    "mistral": ({**LLAMA, "model_type": "mistral", "sliding_window": 3},
                lambda c, w, t: llama(c, w, t, window=lambda i: 3)),
    # The second layer has a window, the first has none; tied.
    "qwen2": ({**LLAMA, "model_type": "qwen2", "head_dim": None, "num_attention_heads": 6, "hidden_size": 24,
               "tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1,
               "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
              lambda c, w, t: llama(c, w, t, qkv_bias=True, window=lambda i: 4 if i >= 1 else None)),
    "qwen3": ({**LLAMA, "model_type": "qwen3"}, lambda c, w, t: llama(c, w, t, qk_norm=True)),
    "gpt2": ({"model_type": "gpt2", "vocab_size": 19, "n_positions": 16, "n_ctx": 16, "n_embd": 12, "n_layer": 2,
              "n_head": 3, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}, gpt2),
    "bert": ({"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 19, "hidden_size": 12,
              "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20, "hidden_act": "gelu",
              "max_position_embeddings": 16, "type_vocab_size": 2, "layer_norm_eps": 1e-12}, bert),
}


def main():
    for seed, (name, (config, run)) in enumerate(MODELS.items()):
        rng, w = np.random.default_rng(100 + seed), Weights(seed)
        tokens = rng.integers(0, config["vocab_size"], (ROWS, SEQ))
        expected = {"tokens": tokens.tolist()}
        if name == "bert":
            mask = np.array([[1] * SEQ, [1] * 4 + [0] * (SEQ - 4)])
            types = rng.integers(0, 2, (ROWS, SEQ))
            expected |= {"attention_mask": mask.tolist(), "token_types": types.tolist()}
            out, key = run(config, w, tokens, mask, types), "last_hidden_state"
        else:
            out, key = run(config, w, tokens), "logits"
        expected[key] = np.round(out, 9).tolist()
        folder = f"tiny-{name}"
        os.makedirs(folder, exist_ok=True)
        save(f"{folder}/model.safetensors", w.tensors)
        with open(f"{folder}/config.json", "w") as f:
            json.dump({k: v for k, v in config.items() if v is not None}, f, indent=1)
            f.write("\n")
        with open(f"{folder}/expected.json", "w") as f:
            json.dump(expected, f)
            f.write("\n")


if __name__ == "__main__":
    main()
