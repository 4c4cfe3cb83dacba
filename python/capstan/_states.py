"""States of the program's own schedules and optimizers, as texts of a checkpoint's client state."""

import base64
import io
import logging
import pickle

import torch

from capstan._core import ConfigError, RuntimeFault

RESERVED = "capstan.python"  # in a checkpoint's client state: what this package keeps there

DEEPSPEED_SCHEDULE = "deepspeed.lr_scheduler"  # there: the state of a program's schedule that DeepSpeed has saved

_log = logging.getLogger("capstan")
_ALLOWED = "numbers, texts, tuples, lists, dicts and tensors"


def take_reserved(client_state, schedule):
    """Removes from a client state what is not the program's. Returns the state that DeepSpeed has saved of a program's schedule, as
    far as `schedule` has members for it; None where there is none."""
    if not isinstance(client_state, dict):
        return None
    client_state.pop(RESERVED, None)
    theirs = client_state.pop(DEEPSPEED_SCHEDULE, None)
    if not isinstance(theirs, dict):
        return None
    # load_state_dict() makes a member of whatever it is given.
    known = getattr(schedule, "state_dict", dict)()
    return {key: value for key, value in theirs.items() if key in known}


def packed(state, of):
    """A state as a text: what torch.save writes, in base64. Raises RuntimeFault for one that unpacked() would refuse; `of`:
    whose it is."""
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:  # noqa: BLE001 what a program keeps in a state may fail in any way
        raise RuntimeFault(f"{of}: its state_dict() may hold {_ALLOWED}, because a checkpoint must not run code when it is loaded: "
                           f"{_first_line(error)}. Keep other objects out of it.") from None
    return base64.b64encode(file.getvalue()).decode()


def unpacked(text, what):
    """The state of packed(). Raises RuntimeFault for anything that would run code. `what`: its name in the checkpoint."""
    try:
        return torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)
    except (pickle.UnpicklingError, ValueError, RuntimeError, TypeError, EOFError) as error:
        raise RuntimeFault(f"client_state.{what}: is not a state of {_ALLOWED}, and nothing else is read, because it could run "
                           f"code: {_first_line(error)}. Load a checkpoint that you trust more.") from None


def _first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if "Unsupported" in line or "Can only" in line]
    return (lines or str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def schedule_text(schedule):
    return f"lr_scheduler {type(schedule).__name__}"


def check_schedule(schedule, optimizer):
    """Raises ConfigError for a schedule of another optimizer, and warns of one whose state cannot be saved."""
    its = getattr(schedule, "optimizer", None)
    if its is not None and getattr(its, "param_groups", None) is not getattr(optimizer, "param_groups", None):
        raise ConfigError(
            f"lr_scheduler: this {type(schedule).__name__} moves the rates of another optimizer than the engine's. Hand over its "
            "optimizer as well, or a function that makes the schedule of the optimizer it is called with.")
    if hasattr(schedule, "state_dict"):
        try:
            packed(schedule.state_dict(), schedule_text(schedule))
        except RuntimeFault as fault:
            _log.warning("%s Until then save_checkpoint() refuses to save.", fault)


def states_of(client_state, wanted):
    """The states of the program's optimizer and schedule in a client state."""
    ours = client_state.get(RESERVED) if isinstance(client_state, dict) else None
    ours = ours if isinstance(ours, dict) else {}
    return {what: unpacked(ours[what], f"{RESERVED}.{what}") for what in wanted if what in ours}
