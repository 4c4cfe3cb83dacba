"""As much of comet_ml as the monitor asks of it, so that its side of the boundary is tried without the package."""


class config:
    get_config = staticmethod(lambda: None)
    get_api_key = staticmethod(lambda key, config: key)


class ExperimentConfig:
    def __init__(self, **_):
        pass


class Experiment:
    offline_directory = "."

    def get_key(self):
        return "key"

    def log_parameters(self, parameters):
        pass

    def log_asset_data(self, data, name):
        pass

    def log_metric(self, tag, value, step):
        if not isinstance(step, int) or not isinstance(value, float):
            raise TypeError(f"log_metric({tag}, {value}, step={step})")

    def flush(self):
        pass

    def end(self):
        pass


def start(**_):
    return Experiment()
