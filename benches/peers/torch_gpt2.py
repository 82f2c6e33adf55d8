"""Times GPT-2 124M in eager PyTorch on this machine's cores (random weights, all logits); prints one JSON line."""
import argparse
import json
import resource
import time

import torch
import torch.nn.functional as F

args = argparse.ArgumentParser()
args.add_argument("--mode", choices=["prefill", "decode"], default="prefill")
args.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
args.add_argument("--seq", type=int, default=512)
args.add_argument("--steps", type=int, default=7)
args.add_argument("--threads", type=int, default=torch.get_num_threads())
a = args.parse_args()
torch.set_num_threads(a.threads)
torch.manual_seed(0)
torch.set_default_dtype({"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype])

D, L, H, FF, V, S = 768, 12, 12, 3072, 50257, a.seq


def make_layer():
    return {
        "g1": torch.ones(D), "b1": torch.zeros(D), "g2": torch.ones(D), "b2": torch.zeros(D),
        "wqkv": torch.randn(3 * D, D) * 0.02, "bqkv": torch.randn(3 * D) * 0.02, "wo": torch.randn(D, D) * 0.02, "bo": torch.randn(D) * 0.02,
        "w1": torch.randn(FF, D) * 0.02, "c1": torch.randn(FF) * 0.02, "w2": torch.randn(D, FF) * 0.02, "c2": torch.randn(D) * 0.02,
    }


wte, wpe, g, b = torch.randn(V, D) * 0.02, torch.randn(1024, D) * 0.02, torch.ones(D), torch.zeros(D)
layers = [make_layer() for _ in range(L)]


def layer(x, w, cache, position):
    n, s, _ = x.shape
    y = F.linear(F.layer_norm(x, (D,), w["g1"], w["b1"]), w["wqkv"], w["bqkv"])
    q, k, v = (t.view(n, s, H, D // H).transpose(1, 2) for t in y.split(D, -1))
    if cache is not None:
        cache[0][:, :, position : position + s] = k
        cache[1][:, :, position : position + s] = v
        k, v = cache
    y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
    x = x + F.linear(y.transpose(1, 2).reshape(n, s, D), w["wo"], w["bo"])
    y = F.gelu(F.linear(F.layer_norm(x, (D,), w["g2"], w["b2"]), w["w1"], w["c1"]), approximate="tanh")
    return x + F.linear(y, w["w2"], w["c2"])


def forward(tokens, caches, position):
    x = wte[tokens] + wpe[position : position + tokens.shape[1]]
    for w, cache in zip(layers, caches):
        x = layer(x, w, cache, position)
    return F.linear(F.layer_norm(x, (D,), g, b), wte)


if a.mode == "prefill":
    tokens, caches, position = torch.randint(0, V, (1, S)), [None] * L, 0
else:
    tokens, position = torch.zeros(1, 1, dtype=torch.long), S - 1
    caches = [(torch.randn(1, H, S, D // H), torch.randn(1, H, S, D // H)) for _ in range(L)]
times = []
with torch.no_grad():
    for _ in range(a.steps + 2):
        start = time.perf_counter()
        forward(tokens, caches, position)
        times.append(time.perf_counter() - start)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": sorted(times[2:]), "peak_bytes": peak, "version": torch.__version__}))
