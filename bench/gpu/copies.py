"""Prints the limits of one GPU: bytes/s of copies, FLOP/s of gpt:124m's products, and PyTorch's AdamW over 125 M weights."""
import torch


def milliseconds(work, repeats=20):
    for _ in range(3):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


device = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
other = torch.empty_like(device)
print(f"device to device, read and written: {2 * device.nbytes / milliseconds(lambda: other.copy_(device)) / 1e9:.2f} TB/s")
host = torch.empty(1 << 28, dtype=torch.bfloat16, pin_memory=True)
part = device[: 1 << 28]
down = milliseconds(lambda: host.copy_(part, non_blocking=True))
up = milliseconds(lambda: part.copy_(host, non_blocking=True))
print(f"pinned memory: {host.nbytes / up / 1e6:.1f} GB/s to the device, {host.nbytes / down / 1e6:.1f} GB/s from it")
for m, n, k in ((32768, 3072, 768), (32768, 768, 3072), (32768, 50304, 768)):
    left = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    right = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    taken = milliseconds(lambda: left @ right.t(), 5)
    print(f"product {m} x {n} x {k} in bf16: {2 * m * n * k / taken / 1e9:.0f} TFLOP/s")
weights = [torch.nn.Parameter(torch.randn(768 * 1100, device="cuda")) for _ in range(148)]
for weight in weights:
    weight.grad = torch.randn_like(weight)
count = sum(weight.numel() for weight in weights)
for kind in ("fused", "foreach"):
    optimizer = torch.optim.AdamW(weights, **{kind: True})
    taken = milliseconds(optimizer.step)
    # Read weight, gradient and two moments, write all but the gradient, in float32.
    print(f"torch.optim.AdamW, {kind}: {taken:.3f} ms, {28 * count / taken / 1e9:.2f} TB/s")
