"""The processes of a run, beside torch.distributed."""

import logging
import os
import socket

from capstan._core import RuntimeFault


def _count(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else 0


def _of_launcher():
    """This process's rank and how many there are, as torchrun, Open MPI, MPICH or Slurm say."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
                       ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        if _count(size) > 1 and os.environ.get(rank):
            return _count(rank), _count(size)
    return 0, 1


def processes():
    """How many processes the launcher has started."""
    return _of_launcher()[1]


def log_on_rank_0(name):
    """What all ranks find alike is logged once: on other ranks the logger of this name drops all below errors."""
    logging.getLogger(name).addFilter(lambda record: record.levelno >= logging.ERROR or _of_launcher()[0] == 0)


def init_distributed(dist_backend=None, auto_mpi_discovery=True, distributed_port=29500, verbose=True, timeout=None,
                     init_method=None, dist_init_required=None, config=None, rank=-1, world_size=-1, **_ignored):
    """Starts torch.distributed where several processes run, for programs that use it beside the engine, whose own
    connections need no call. Arguments as in DeepSpeed; nothing happens where torch.distributed is initialised.

    Raises RuntimeFault where WORLD_SIZE is above 1 and MASTER_ADDR is not set.
    """
    import torch.distributed as dist

    if dist_init_required is False or dist.is_initialized():
        return
    own, size = (rank, world_size) if rank >= 0 and world_size > 0 else _of_launcher()
    if size > 1 and _engine_met:
        raise RuntimeFault("init_distributed: an engine's processes have met at MASTER_PORT already. Call it before "
                           "capstan.initialize().")
    if size <= 1 and _count("WORLD_SIZE") > 1:
        size = _count("WORLD_SIZE")  # and no RANK, which torch.distributed says
    if size > 1 and init_method is None:
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if not os.environ.get(name):
                raise RuntimeFault(
                    f"there are {size} processes, and {name} is not set: nothing says where they meet. Start them with "
                    "torchrun, or set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port of it."
                )
    if size <= 1 and not (os.environ.get("MASTER_ADDR") and os.environ.get("RANK")):
        # A process alone: a group of one, that nobody else can meet.
        store = dist.HashStore()
        dist.init_process_group(backend=_backend(dist_backend), store=store, rank=0, world_size=1)
        return
    options = {} if timeout is None else {"timeout": timeout}
    socket_of_launch = os.environ.get("CAPSTAN_LISTENING_SOCKET")
    if init_method is None and socket_of_launch is not None:
        # 'capstan launch' has opened the port of rank 0 already.
        options["store"] = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, own == 0,
                                         master_listen_fd=int(socket_of_launch) if own == 0 else None)
    elif init_method is not None:
        options["init_method"] = init_method
    if size > 1 and (os.environ.get("RANK") is None or rank >= 0 or "store" in options):
        options.update(rank=own, world_size=size)
    dist.init_process_group(backend=_backend(dist_backend), **options)


def _backend(asked):
    import torch

    if asked in (None, "ccl") or (asked == "nccl" and not torch.cuda.is_available()):
        return "nccl" if torch.cuda.is_available() else "gloo"
    return asked


def meeting():
    """Where the engine's processes meet, as (address, port) and rank 0's listening socket; (None, None): where the
    environment says.

    A launcher's store serves both; without one torch.distributed has taken MASTER_PORT, and another port is agreed on.
    """
    if processes() <= 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None, None
    import torch.distributed as dist

    global _engine_met, _listening, _place
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        _engine_met = True
        return None, None
    if _place is None:
        found = [None]
        if dist.get_rank() == 0:
            _listening = socket.socket(socket.AF_INET6 if ":" in os.environ["MASTER_ADDR"] else socket.AF_INET)
            _listening.bind(("", 0))
            _listening.listen(128)
            found = [(os.environ["MASTER_ADDR"], _listening.getsockname()[1])]
        dist.broadcast_object_list(found, src=0)
        _place = tuple(found[0])
        return _place, _listening.detach() if _listening else None
    return _place, None


_listening = None
_engine_met = False  # at MASTER_PORT, where torch.distributed then cannot
_place = None  # the same for all engines of this process
