#!/usr/bin/env python3
"""Makes transformers/*.json: tiny models of every family, and what Hugging Face transformers computes with them.

    python3 -m venv /tmp/hf && /tmp/hf/bin/pip install torch==2.9.1 transformers==5.24.0
    cd frontend/tests/data && /tmp/hf/bin/python make_transformers.py

A file has the config, as published files have it and as this version of transformers saves it, the names and shapes of
the checkpoint's tensors, tokens, the logits of the last 9 positions, and what greedy decoding says. Weights are not stored: element i of tensor t is `around + scale * u(t, i)`, with u a
hash to [-1, 1) that takes four lines here and four in the tests (`frontend/tests/transformers.rs`, `tests/cli/families.rs`).
"""
import json
import math
import os
import sys
import tempfile

import numpy as np
import torch
import transformers

transformers.logging.set_verbosity_error()

ROWS, KEPT, VOCAB, NEW = 2, 9, 19, 3
# Positions of a case, if they are not KEPT.
SEQ = {"falcon-alibi": 300}


def values(t, shape, around, scale):
    i = np.arange(1, math.prod(shape) + 1, dtype=np.uint64)
    h = (i + np.uint64(t * 65537)) * np.uint64(0x9E3779B1) & np.uint64(0xFFFFFFFF)
    h = (h ^ h >> np.uint64(15)) * np.uint64(0x85EBCA77) & np.uint64(0xFFFFFFFF)
    u = ((h ^ h >> np.uint64(13)) >> np.uint64(8)).astype(np.float64) / 2**23 - 1
    return torch.tensor((around + scale * u).reshape(shape), dtype=torch.float32)


LLAMA = {
    "vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
    "rope_theta": 100.0, "hidden_act": "silu", "tie_word_embeddings": False,
}
NEOX = {
    "model_type": "gpt_neox", "vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3,
    "num_attention_heads": 3, "max_position_embeddings": 16, "rotary_emb_base": 100, "hidden_act": "gelu",
}
OPT = {
    "model_type": "opt", "vocab_size": VOCAB, "hidden_size": 24, "ffn_dim": 20, "num_hidden_layers": 3,
    "num_attention_heads": 6, "max_position_embeddings": 9, "pad_token_id": 1, "dropout": 0.1,
}
FALCON = {
    "model_type": "falcon", "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6,
    "max_position_embeddings": 16, "rope_theta": 100.0,
}
LONG = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [1.25, 4.0]}

MODELS = {
    "llama": {**LLAMA, "model_type": "llama", "head_dim": 8, "attention_bias": True, "mlp_bias": True,
              "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                               "high_freq_factor": 4.0, "original_max_position_embeddings": 48}},
    "mistral": {**LLAMA, "model_type": "mistral", "sliding_window": 4},
    "qwen2": {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True, "use_sliding_window": True,
              "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 8},
    "gpt2": {"model_type": "gpt2", "vocab_size": VOCAB, "n_positions": 16, "n_embd": 24, "n_layer": 3, "n_head": 3},
    "bert": {"model_type": "bert", "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 3,
             "num_attention_heads": 3, "intermediate_size": 20, "max_position_embeddings": 16},
    # q|k|v with fewer kv heads, a window, rotary positions in half of each head, tied.
    "phi3": {**LLAMA, "model_type": "phi3", "pad_token_id": 0, "hidden_size": 48, "partial_rotary_factor": 0.5, "sliding_window": 4,
             "tie_word_embeddings": True},
    # LongRoPE on both sides of the length before extension.
    "phi3-short": {**LLAMA, "model_type": "phi3", "pad_token_id": 0, "rope_scaling": LONG, "original_max_position_embeddings": 12},
    "phi3-long": {**LLAMA, "model_type": "phi3", "pad_token_id": 0, "rope_scaling": LONG, "original_max_position_embeddings": 4},
    # Prompts longer than the window; caps that bite.
    "gemma2": {**LLAMA, "model_type": "gemma2", "head_dim": 8, "hidden_activation": "gelu_pytorch_tanh",
               "query_pre_attn_scalar": 12, "sliding_window": 4, "attn_logit_softcapping": 2.0,
               "final_logit_softcapping": 3.0, "tie_word_embeddings": True},
    "gpt_neox": {**NEOX, "rotary_pct": 0.5},
    "gpt_neox-sequential": {**NEOX, "rotary_pct": 0.25, "use_parallel_residual": False, "attention_bias": False},
    "opt": OPT,
    # As opt-350m: norms after the blocks, narrow embeddings.
    "opt-post_norm": {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 10},
    "opt-untied": {**OPT, "enable_bias": False, "tie_word_embeddings": False, "activation_function": "gelu",
                   "_remove_final_layer_norm": True},
    # 6 heads: the last two slopes are not of the series of the first four.
    "bloom": {"model_type": "bloom", "vocab_size": VOCAB, "hidden_size": 24, "n_layer": 3, "n_head": 6},
    "falcon": {**FALCON, "multi_query": True},
    "falcon-new": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True,
                   "tie_word_embeddings": False},
    "falcon-one_norm": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1},
    # As falcon-rw: separate heads, ALiBi, one block after the other. The class rounds slopes, positions and their products
    # to bf16: it takes slopes of no power of two (12 heads) and more than 256 positions to see all of that.
    "falcon-alibi": {**FALCON, "hidden_size": 36, "num_attention_heads": 12, "alibi": True, "multi_query": False,
                     "parallel_attn": False, "bias": True, "ffn_hidden_size": 20, "max_position_embeddings": 512},
    "falcon-alibi_parallel": {**FALCON, "num_attention_heads": 4, "alibi": True},
    "falcon-two_norms": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 2},
    "gemma2-untied": {**LLAMA, "model_type": "gemma2", "head_dim": 8, "hidden_activation": "gelu_pytorch_tanh",
                      "query_pre_attn_scalar": 12, "sliding_window": 4},
    "gpt_neox-tied": {**NEOX, "rotary_pct": 0.5, "tie_word_embeddings": True},
    "llama-linear": {**LLAMA, "model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
}


def build(config):
    config = transformers.AutoConfig.for_model(**config)
    # The eager form of falcon adds its linear biases twice; sdpa, which is what the class runs by default, once.
    config._attn_implementation = "sdpa" if config.model_type == "falcon" else "eager"
    auto = transformers.AutoModel if config.model_type == "bert" else transformers.AutoModelForCausalLM
    return auto.from_config(config).eval()


def fill(model, family):
    """Gives every parameter its values; how they are made, by the names that checkpoints have."""
    tensors = []
    for t, (name, p) in enumerate(model.named_parameters()):
        shape = list(p.shape)
        norm = len(shape) == 1 and name.endswith(".weight")
        around = 1.0 if norm and family != "gemma2" else 0.0
        # Products of unit variance, nearly; heads attend unevenly.
        fan_in = shape[0] if family == "gpt2" and "h." in name else shape[-1]
        scale = 0.5 if len(shape) == 1 else 2.0 ** round(math.log2(math.sqrt(4 / fan_in)))
        if "embed" in name and len(shape) == 2 or ".wte" in name:
            scale = 1.0
        p.data = values(t, shape, around, scale)
        # Every published file of this family calls its head so.
        published = "embed_out.weight" if family == "gpt_neox" and name == "lm_head.weight" else name
        tensors.append([published, shape, around, scale])
    return tensors


def saved(model):
    """The config as transformers writes it today."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with open(f"{folder}/config.json") as f:
            return json.load(f)


def greedy(model, prompt):
    """With the class's own caches; every choice must be clear."""
    tokens = list(prompt)
    cache, new = None, torch.tensor([tokens])
    while len(tokens) < len(prompt) + NEW:
        out = model(input_ids=new, cache=cache, use_cache=True)
        cache = out.cache
        best = out.logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < 3e-3:
            raise SystemExit("a choice is too close: change the prompt")
        tokens.append(int(best.indices[0]))
        new = torch.tensor([tokens[-1:]])
    return tokens[len(prompt):]


def main(names):
    for n, (name, config) in enumerate(MODELS.items()):
        if names and name not in names:
            continue
        rng = np.random.default_rng(n)
        model = build(dict(config))
        tensors = fill(model, config["model_type"])
        seq = SEQ.get(name, KEPT)
        inputs = {"tokens": torch.tensor(rng.integers(2, VOCAB, (ROWS, seq)))}
        case = {"config": config, "saved": saved(model), "tensors": tensors}
        with torch.no_grad():
            if config["model_type"] == "bert":
                inputs["attention_mask"] = torch.tensor([[1] * seq, [1] * 5 + [0] * (seq - 5)])
                inputs["token_types"] = torch.tensor(rng.integers(0, 2, (ROWS, seq)))
                out = model(input_ids=inputs["tokens"], attention_mask=inputs["attention_mask"],
                            token_type_ids=inputs["token_types"])
                key, result = "last_hidden_state", out.last_hidden_state
            else:
                key, result = "logits", model(input_ids=inputs["tokens"], use_cache=False).logits
                case["greedy"] = greedy(model, inputs["tokens"][0, :-NEW].tolist())
        case |= {"inputs": {k: v.tolist() for k, v in inputs.items()}, "output": key}
        case["values"] = [round(x, 6) for x in result[:, -KEPT:].flatten().tolist()]
        print(f"{name}: {sum(math.prod(t[1]) for t in tensors)} parameters, outputs {result.min():.2f} to {result.max():.2f}", case.get("greedy"))
        with open(f"transformers/{name}.json", "w") as f:
            parts = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in case.items()]
            f.write("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    os.makedirs("transformers", exist_ok=True)
    main(sys.argv[1:])
