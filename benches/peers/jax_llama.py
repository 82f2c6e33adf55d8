"""Traces, partitions and compiles a llama forward pass with JAX from abstract shapes; prints one JSON line.

Weights are laid out for Megatron tensor parallelism over one mesh axis of virtual CPU devices. With --scan the layers are one
`lax.scan` over stacked weights, else they are unrolled.
"""
import argparse
import json
import os
import resource
import time

args = argparse.ArgumentParser()
for name, default in dict(hidden=8192, layers=80, heads=64, kv_heads=8, ffn=28672, vocab=32000, seq=2048, tp=8).items():
    args.add_argument("--" + name.replace("_", "-"), type=int, default=default)
args.add_argument("--scan", action="store_true")
a = args.parse_args()
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={a.tp}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

D, H, KV, F, V, S = a.hidden, a.heads, a.kv_heads, a.ffn, a.vocab, a.seq
HD = D // H
LAYER = {
    "n1": ((D,), P()), "n2": ((D,), P()),
    "wq": ((D, H, HD), P(None, "tp", None)), "wk": ((D, KV, HD), P(None, "tp", None)),
    "wv": ((D, KV, HD), P(None, "tp", None)), "wo": ((H, HD, D), P("tp", None, None)),
    "wg": ((D, F), P(None, "tp")), "wu": ((D, F), P(None, "tp")), "wd": ((F, D), P("tp", None)),
}
TOP = {"wte": ((V, D), P("tp", None)), "nf": ((D,), P()), "head": ((D, V), P(None, "tp"))}


def rms(x, g):
    return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-5) * g


def rope(x):
    half = x.shape[-1] // 2
    freq = 1.0 / (10000.0 ** (np.arange(half, dtype=np.float32) / half))
    angle = jnp.arange(S, dtype=jnp.float32)[:, None] * freq[None]
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    x1, x2 = x[..., :half], x[..., half:]
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)


def layer(x, w):
    b, s, _ = x.shape
    y = rms(x, w["n1"])
    q = rope(jnp.einsum("bsd,dhe->bshe", y, w["wq"])).reshape(b, s, KV, H // KV, HD)
    k, v = rope(jnp.einsum("bsd,dhe->bshe", y, w["wk"])), jnp.einsum("bsd,dhe->bshe", y, w["wv"])
    scores = jnp.einsum("bsgre,btge->bgrst", q, k) * HD**-0.5
    scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e30)
    o = jnp.einsum("bgrst,btge->bsgre", jax.nn.softmax(scores, -1), v).reshape(b, s, H, HD)
    x = x + jnp.einsum("bshe,hed->bsd", o, w["wo"])
    y = rms(x, w["n2"])
    return x + (jax.nn.silu(y @ w["wg"]) * (y @ w["wu"])) @ w["wd"]


def forward(params, tokens):
    x = params["top"]["wte"][tokens]
    if a.scan:
        x, _ = lax.scan(lambda x, w: (layer(x, w), None), x, params["layers"])
    else:
        for w in params["layers"]:
            x = layer(x, w)
    return rms(x, params["top"]["nf"]) @ params["top"]["head"]


start = time.perf_counter()
mesh = Mesh(np.array(jax.devices()[: a.tp]), ("tp",))


def shapes(table, stack=None):
    def one(shape, spec):
        if stack:
            shape, spec = (stack, *shape), P(None, *spec)
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    return {name: one(*entry) for name, entry in table.items()}


layers = shapes(LAYER, a.layers) if a.scan else [shapes(LAYER) for _ in range(a.layers)]
params = {"top": shapes(TOP), "layers": layers}
tokens = jax.ShapeDtypeStruct((1, S), jnp.int32, sharding=NamedSharding(mesh, P()))
jax.jit(forward).lower(params, tokens).compile()
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "peak_bytes": peak, "version": jax.__version__}))
