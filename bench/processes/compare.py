"""Step times of two processes on one machine beside PyTorch's DistributedDataParallel, FSDP2 and DeepSpeed, in turn.

    bench/processes/compare.py BUILD_DIR PYTHON [rounds [case ...]]

case: a word of its title.

PYTHON: that of an environment with torch and deepspeed (pip install torch==2.11.0 numpy ninja deepspeed), which compiles its
own Adam when it is first used. One thread a process; fp32, AdamW. Each round starts every program once; what is printed is
the median over rounds of the median steps. Capstan runs with overlap_comm. A peer runs in each of its VARIANTS, and the
better of them counts. Exit code 1 when a ratio that is wanted is not reached.

On one host Capstan's processes copy from each other's memory, while the peers' talk TCP over the loopback: a difference that
there is not between hosts. CAPSTAN_HOST_MEMORY=off in the environment has Capstan talk TCP, too."""
import os
import re
import socket
import statistics
import subprocess
import sys

BUILD, PYTHON = sys.argv[1], sys.argv[2]
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 3
WORDS = sys.argv[4:]
HERE = os.path.dirname(os.path.abspath(__file__))
VARIANTS = {"ddp": ("ddp", "ddp_view"),
            "deepspeed": ("deepspeed", "deepspeed_overlap", "deepspeed_cpu_adam", "deepspeed_cpu_adam_overlap")}
# name, processes, model, rows, layers, width, steps, {measure: (program, stage)}, {measure: (peer, least ratio)}
CASES = [
    ("MLP, 8 layers of 1024 squared, 2 processes", 2, "mlp", 64, 8, 1024, 15,
     {"stage 0": ("capstan", 0), "stage 1": ("capstan", 1), "stage 2": ("capstan", 2), "DDP": ("ddp", 0),
      "DeepSpeed 1": ("deepspeed", 1), "DeepSpeed 2": ("deepspeed", 2)},
     [("stage 1", "DeepSpeed 1", 2.0), ("stage 2", "DeepSpeed 2", 2.0), ("stage 0", "DDP", 1.0),
      ("stage 1", "DDP", 1.0), ("stage 2", "DDP", 1.0)]),
    ("gpt of 25 million parameters, 2 processes", 2, "gpt", 1, 8, 512, 7,
     {"stage 1": ("capstan", 1), "stage 2": ("capstan", 2), "DDP": ("ddp", 0), "DeepSpeed 1": ("deepspeed", 1),
      "DeepSpeed 2": ("deepspeed", 2)},
     [("stage 1", "DeepSpeed 1", 1.4), ("stage 2", "DeepSpeed 2", 1.4), ("stage 1", "DDP", 1.0)]),
    ("100 small tensors, 1 process", 1, "small", 8, 50, 16, 100,
     {"stage 2": ("capstan", 2), "DeepSpeed 2": ("deepspeed", 2)}, [("stage 2", "DeepSpeed 2", 5.0)]),
    ("parameters partitioned, gpt of 25 million, 2 processes", 2, "gpt", 1, 8, 512, 7,
     {"stage 3": ("capstan", 3), "FSDP2": ("fsdp2", 0), "DeepSpeed 3": ("deepspeed", 3)},
     [("stage 3", "DeepSpeed 3", 1.4), ("stage 3", "FSDP2", 1.0)]),
    ("parameters partitioned, 100 small tensors, 1 process", 1, "small", 8, 50, 16, 100,
     {"stage 3": ("capstan", 3), "DeepSpeed 3": ("deepspeed", 3)}, [("stage 3", "DeepSpeed 3", 15.0)]),
]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def run(ranks, program, stage, model, rows, layers, width, steps):
    words = [model, str(stage), str(steps), str(rows), str(layers), str(width)]
    command = [BUILD + "/bench/rank_step", *words] if program == "capstan" else [
        PYTHON, "-W", "ignore", HERE + "/peer_step.py", program, *words]
    port, started = free_port(), []
    for rank in range(ranks):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
                     "PATH": os.path.dirname(PYTHON) + os.pathsep + os.environ["PATH"]}
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **variables}))
    outputs = [process.communicate() for process in started]
    # A peer that fails when it ends has measured all the same.
    found = re.search(r"^MEDIAN ([0-9.]+)$" if program != "capstan" else r"^([0-9.]+)( \d+){4}$", outputs[0][0], re.M)
    if not found or (program == "capstan" and any(process.returncode for process in started)):
        raise RuntimeError(f"{' '.join(command)} failed:\n" + "".join(out + err for out, err in outputs))
    return float(found.group(1))


def measure(case):
    """The times of each variant of each measure: {measure: {variant: [ms]}}. A variant that does not run is left out."""
    _, ranks, model, rows, layers, width, steps, measures, _ = case
    times = {name: {variant: [] for variant in VARIANTS.get(program, (program,))}
             for name, (program, _) in measures.items()}
    for _ in range(ROUNDS):
        for name, variants in times.items():
            for variant in list(variants):
                try:
                    variants[variant].append(run(ranks, variant, measures[name][1], model, rows, layers, width, steps))
                except RuntimeError as error:
                    if len(variants) == 1:
                        sys.exit(str(error))
                    del variants[variant]
                    print(f"  {name}: {variant} does not run: {str(error).strip().splitlines()[-1]}", flush=True)
    return times


def report(case):
    """Prints what was measured; whether all ratios are reached."""
    print(case[0], flush=True)
    best = {}
    for name, variants in measure(case).items():
        for variant, values in variants.items():
            median = statistics.median(values)
            best[name] = min(best.get(name, median), median)
            print(f"  {name:12} {median:9.3f} ms a step, {variant:26} ({', '.join(f'{value:.2f}' for value in values)})")
    met = True
    for ours, theirs, least in case[-1]:
        ratio = best[theirs] / best[ours]
        met &= ratio >= least
        print(f"  {theirs} / {ours}: {ratio:.2f}, at least {least:g} is wanted{'' if ratio >= least else ': NOT MET'}")
    return met


over_tcp = os.environ.get("CAPSTAN_HOST_MEMORY") == "off"
print("Capstan's processes exchange " + ("over TCP, as the peers' do." if over_tcp else
      "through each other's memory, the peers' over TCP: CAPSTAN_HOST_MEMORY=off measures both over TCP."), flush=True)
chosen = [case for case in CASES if not WORDS or any(word in case[0] for word in WORDS)]
sys.exit(not all([report(case) for case in chosen]))
