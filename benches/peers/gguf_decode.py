"""Times greedy decoding of a GGUF file by llama.cpp; prints one JSON line."""
import argparse
import json
import time

import llama_cpp

args = argparse.ArgumentParser()
args.add_argument("model")
args.add_argument("--prompt", required=True)
args.add_argument("--max-tokens", type=int, default=64)
args.add_argument("--threads", type=int, default=2)
a = args.parse_args()
llama = llama_cpp.Llama(a.model, n_ctx=512, n_threads=a.threads, n_threads_batch=a.threads, verbose=False)
tokens = llama.tokenize(a.prompt.encode(), add_bos=False)
best = None
for _ in range(3):
    llama.reset()
    start = time.perf_counter()
    llama.eval(tokens)
    prefill = time.perf_counter() - start
    out = []
    start = time.perf_counter()
    for _ in range(a.max_tokens):
        token = llama.sample(temp=0.0)
        out.append(token)
        llama.eval([token])
    decode = time.perf_counter() - start
    if best is None or decode < best["decode"]:
        best = {"prefill": prefill, "decode": decode, "tokens": len(out), "ids": out, "version": llama_cpp.__version__}
print(json.dumps(best))
