"""Times GPT-2 124M in JAX on this machine's cores (random weights, all logits); prints one JSON line."""
import argparse
import json
import os
import resource
import time

args = argparse.ArgumentParser()
args.add_argument("--mode", choices=["prefill", "decode"], default="prefill")
args.add_argument("--seq", type=int, default=512)
args.add_argument("--steps", type=int, default=7)
a = args.parse_args()
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

D, L, H, F, V, S = 768, 12, 12, 3072, 50257, a.seq
HD = D // H
rng = np.random.default_rng(0)


def weight(*shape):
    return jnp.asarray(rng.standard_normal(shape, dtype=np.float32) * 0.02)


def make_layer():
    return {
        "g1": jnp.ones(D), "b1": jnp.zeros(D), "g2": jnp.ones(D), "b2": jnp.zeros(D),
        "wqkv": weight(D, 3 * D), "bqkv": weight(3 * D), "wo": weight(D, D), "bo": weight(D),
        "w1": weight(D, F), "c1": weight(F), "w2": weight(F, D), "c2": weight(D),
    }


params = {
    "wte": weight(V, D), "wpe": weight(1024, D), "g": jnp.ones(D), "b": jnp.zeros(D),
    "layers": [make_layer() for _ in range(L)],
}


def norm(x, g, b):
    mean = jnp.mean(x, -1, keepdims=True)
    var = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * g + b


def layer(x, w, cache, position):
    b, s, _ = x.shape
    q, k, v = jnp.split(norm(x, w["g1"], w["b1"]) @ w["wqkv"] + w["bqkv"], 3, -1)
    q, k, v = (t.reshape(b, s, H, HD) for t in (q, k, v))
    if cache is None:
        mask = jnp.tril(jnp.ones((s, s), bool))
    else:
        k = lax.dynamic_update_slice(cache[0], k, (0, position, 0, 0))
        v = lax.dynamic_update_slice(cache[1], v, (0, position, 0, 0))
        mask = jnp.arange(k.shape[1]) <= position
    scores = jnp.einsum("bshe,bthe->bhst", q, k) * HD**-0.5
    p = jax.nn.softmax(jnp.where(mask, scores, -1e30), -1)
    x = x + jnp.einsum("bhst,bthe->bshe", p, v).reshape(b, s, D) @ w["wo"] + w["bo"]
    y = jax.nn.gelu(norm(x, w["g2"], w["b2"]) @ w["w1"] + w["c1"], approximate=True)
    return x + y @ w["w2"] + w["c2"], (k, v)


def prefill(params, tokens):
    x = params["wte"][tokens] + params["wpe"][: tokens.shape[1]]
    for w in params["layers"]:
        x, _ = layer(x, w, None, 0)
    return norm(x, params["g"], params["b"]) @ params["wte"].T


def decode(params, token, caches, position):
    x = params["wte"][token] + params["wpe"][position]
    out = []
    for w, cache in zip(params["layers"], caches):
        x, cache = layer(x, w, cache, position)
        out.append(cache)
    return norm(x, params["g"], params["b"]) @ params["wte"].T, out


times = []
if a.mode == "prefill":
    tokens = jnp.asarray(rng.integers(0, V, (1, S)))
    run = jax.jit(prefill)
    for _ in range(a.steps + 2):
        start = time.perf_counter()
        run(params, tokens).block_until_ready()
        times.append(time.perf_counter() - start)
else:
    token = jnp.zeros((1, 1), jnp.int32)
    caches = [(jnp.zeros((1, S, H, HD)), jnp.zeros((1, S, H, HD))) for _ in range(L)]
    run = jax.jit(decode, donate_argnums=2)
    for _ in range(a.steps + 2):
        start = time.perf_counter()
        logits, caches = run(params, token, caches, S - 1)
        logits.block_until_ready()
        times.append(time.perf_counter() - start)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": sorted(times[2:]), "peak_bytes": peak, "version": jax.__version__}))
