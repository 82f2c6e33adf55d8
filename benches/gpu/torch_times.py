# Seconds that PyTorch takes for the product and the attention of measure.rs, as JSON.
import json
import time

import torch

if not torch.cuda.is_available():
    raise SystemExit("PyTorch sees no GPU")


def seconds(run, repeats=20):
    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def noise(*shape):
    return torch.rand(*shape, device="cuda", dtype=torch.float32).mul_(2).sub_(1).to(torch.bfloat16)


a, b = noise(4096, 4096), noise(4096, 4096)
q, k, v = noise(4, 32, 2048, 128), noise(4, 8, 2048, 128), noise(4, 8, 2048, 128)
attend = torch.nn.functional.scaled_dot_product_attention
print(json.dumps({
    "product": seconds(lambda: a @ b.T),
    "attention": seconds(lambda: attend(q, k, v, is_causal=True, enable_gqa=True)),
}))
