# The part of a tracker's helper process that all trackers share. It is read by Python from the plugin itself, followed by
# the tracker's own part, which defines PACKAGE, OLDEST and class Tracker and then calls serve().
#
# On file descriptor 3, lines: JSON, [request, argument], from the plugin; "ok text" or "error sentence" to it.
import sys

# "python -c" puts the working directory first, where a file such as json.py would be taken for Python's own module.
# Nothing stands before these two statements: sys itself is part of the interpreter.
sys.path[:] = [folder for folder in sys.path if folder]

import importlib.metadata
import json
import os
import signal
import socket
import urllib.parse


def version_tuple(text):
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def check_package(package, oldest):
    """The installed version; an exception whose text is the user's."""
    install = f"Install it with: {sys.executable} -m pip install '{package}>={oldest}'."
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise RuntimeError(f"the Python package '{package}' is not installed for {sys.executable}. {install}") from None
    if version_tuple(found) < version_tuple(oldest):
        raise RuntimeError(f"the Python package '{package}' is {found}, and {oldest} is the oldest that works. {install}")
    return found


def reachable(url):
    """Whether a connection to the server can be made; a few seconds at most."""
    parts = urllib.parse.urlsplit(url)
    try:
        with socket.create_connection((parts.hostname, parts.port or (80 if parts.scheme == "http" else 443)), timeout=4):
            return True
    except OSError:
        return False


def serve(package, oldest, make_tracker):
    # Ctrl-C is the training program's: it finishes the step and closes us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=3)
    reader = channel.makefile("r", encoding="utf-8")

    def answer(kind, value):
        text = "" if value is None else " ".join(str(value).split())
        channel.sendall(f"{kind} {text}\n".encode())

    tracker = None
    try:
        try:
            answer("ok", check_package(package, oldest))
        except Exception as problem:
            answer("error", str(problem))
            return
        for line in reader:
            request, argument = json.loads(line)
            try:
                result = None
                if request == "open":
                    tracker = make_tracker(argument)
                    result = tracker.where()
                elif request == "write":
                    tracker.write(argument)
                elif request == "text":
                    tracker.text(argument)
                elif request == "flush" and tracker:
                    tracker.flush()
                elif request == "close":
                    if tracker:
                        tracker.close()
                    tracker = None
                answer("ok", result)
            except Exception as problem:
                answer("error", f"{type(problem).__name__}: {problem}")
            if request == "close":
                return
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        # The training program ended without a word: what it wrote is kept all the same.
        if tracker:
            tracker.close()
