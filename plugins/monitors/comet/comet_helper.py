class CometTracker:
    def __init__(self, opening):
        os.environ.setdefault("COMET_LOGGING_CONSOLE", "ERROR")
        import comet_ml

        params, run = opening["params"], opening["run"]
        online = params.get("online")
        if online is None:
            key = params.get("api_key") or comet_ml.config.get_api_key(None, comet_ml.config.get_config())
            server = os.environ.get("COMET_URL_OVERRIDE", "https://www.comet.com/clientlib/")
            online = bool(key) and reachable(server)
        self.experiment = comet_ml.start(
            api_key=params.get("api_key"),
            workspace=params.get("workspace"),
            project=params.get("project"),
            experiment_key=params.get("experiment_key"),
            mode=params.get("mode"),
            online=online,
            experiment_config=comet_ml.ExperimentConfig(
                name=params.get("experiment_name"),
                # The program that trains is not this one: its lines, arguments and sources would tell nothing.
                auto_output_logging=False,
                parse_args=False,
                log_code=False,
                display_summary_level=0,
            ),
        )
        self.online = online
        self.experiment.log_parameters(run["facts"])
        self.experiment.log_asset_data(run["config_text"], name="ds_config.json")

    def where(self):
        if self.online:
            return f"experiment {self.experiment.get_key()}"
        folder = os.path.abspath(self.experiment.offline_directory)
        return f"offline experiment in {folder}; to upload it: comet upload {folder}/{self.experiment.get_key()}.zip"

    def write(self, rows):
        for x, values in rows:
            for tag, value in values.items():
                self.experiment.log_metric(tag, value, step=x)

    def text(self, texts):
        for text in texts:
            about = {name: text[name] for name in ("step", "samples", "tag", "prompt")}
            self.experiment.log_text(text["prompt"] + text["text"], step=text["samples"], metadata=about)

    def flush(self):
        if self.online:
            self.experiment.flush()

    def close(self):
        self.experiment.end()


serve("comet_ml", "3.41.0", CometTracker)
