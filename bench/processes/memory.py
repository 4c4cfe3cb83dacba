"""Memory of a rank a parameter: the slope of VmHWM between models of N and 2N layers, beside the formula of each stage
and the slope of what the plan says.

    bench/processes/memory.py BUILD_DIR [layers] [width]

fp32 with AdamW, P parameters, W processes: weights 4P; gradients 4P (in one process those of the model), at stage 2 4P/W
and the buckets under way; moments 8P, from stage 1 on 8P/W. At stage 3 everything is 16P/W: the model is built in parts,
and keeps no parameter from one use to the next. Buckets are the same for both models, so no part of the slope. What the C
library's heap keeps of buffers that come and go is: up to 64 MB, more or less from run to run, and for any size of the
model. It is kept out by giving each buffer a mapping of its own (MALLOC_MMAP_THRESHOLD_), which users do not have unless
they set it. Exit code 1 when a slope is more than 5 % off its formula."""
import os
import socket
import subprocess
import sys

BUILD = sys.argv[1]
LAYERS = int(sys.argv[2]) if len(sys.argv) > 2 else 24
WIDTH = int(sys.argv[3]) if len(sys.argv) > 3 else 1024
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536"}
ALLOWED = 0.05


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def peak(ranks, stage, layers):
    port, started = free_port(), []
    for rank in range(ranks):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
                     **ALLOCATOR}
        command = [BUILD + "/bench/rank_step", "mlp", str(stage), "3", "4", str(layers), str(WIDTH), "lean"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}))
    outputs = [process.communicate()[0] for process in started]
    _, kib, elements, _, planned = outputs[0].splitlines()[-1].split()
    return 1024 * int(kib), int(elements), int(planned)


FORMULA = {0: lambda w: 16.0, 1: lambda w: 8.0 + 8.0 / w, 2: lambda w: 4.0 + 12.0 / w,
           3: lambda w: 16.0 / w}
setting = ", ".join(f"{name}={value}" for name, value in ALLOCATOR.items())
missed = False
for ranks in (1, 2, 4):
    for stage in (0, 1, 2, 3) if ranks > 1 else (0,):
        (small, fewer, planned_small), (large, more, planned_large) = [
            peak(ranks, stage, layers) for layers in (LAYERS, 2 * LAYERS)]
        slope, wanted = (large - small) / (more - fewer), FORMULA[stage](ranks)
        met = abs(slope / wanted - 1) <= ALLOWED
        missed |= not met
        with_what = setting + (", no reuse and one matrix ahead" if stage == 3 and ranks > 1 else "")
        print(f"world {ranks}, stage {stage}: {slope:6.2f} bytes a parameter with {with_what}; formula {wanted:6.2f}, "
              f"{100 * (slope / wanted - 1):+.1f} %{'' if met else ': NOT MET'}; "
              f"plan {(planned_large - planned_small) / (more - fewer):6.2f}", flush=True)
sys.exit(missed)
