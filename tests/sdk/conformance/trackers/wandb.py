"""As much of wandb as the monitor asks of it, so that its side of the boundary is tried without the package."""


class Settings:
    base_url = "http://127.0.0.1:1"

    def __init__(self, **_):
        pass


class Run:
    dir = "."

    def log(self, values, step):
        if not isinstance(step, int) or not all(isinstance(value, float) for value in values.values()):
            raise TypeError(f"log({values}, step={step})")

    def finish(self):
        pass


def init(**_):
    return Run()
