import itertools
import netrc


def has_key(server):
    """Whether `wandb login` was done, or the key is in the environment."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(urllib.parse.urlsplit(server).hostname) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class WandbTracker:
    def __init__(self, opening):
        import wandb

        params, run = opening["params"], opening["run"]
        mode = os.environ.get("WANDB_MODE")
        if mode is None:
            server = wandb.Settings().base_url
            mode = "online" if has_key(server) and reachable(server) else "offline"
        self.run = wandb.init(
            project=params.get("project"),
            group=params.get("group"),
            entity=params.get("team"),
            mode=mode,
            config=run["facts"],
            # Its lines would run through the progress bar; where the run is, is said by the plugin.
            settings=wandb.Settings(console="off", silent=True),
        )
        with open(os.path.join(self.run.dir, "ds_config.json"), "w", encoding="utf-8") as file:
            file.write(run["config_text"])
        self.mode = mode
        self.texts_of, self.rows = None, []

    def where(self):
        if self.mode == "online":
            return f"run {self.run.url}"
        folder = os.path.dirname(self.run.dir)
        return f"{self.mode} run in {folder}; to upload it: wandb sync {folder}"

    def write(self, rows):
        for x, values in rows:
            self.run.log(values, step=x)

    def text(self, texts):
        import wandb

        columns = ["step", "samples", "tag", "prompt", "text"]
        # Of a key wandb keeps the last value of a step, and the texts of a step may come one by one.
        for x, of_step in itertools.groupby(texts, lambda text: text["samples"]):
            if x != self.texts_of:
                self.texts_of, self.rows = x, []
            self.rows += [[text[name] for name in columns] for text in of_step]
            self.run.log({"samples": wandb.Table(columns=columns, data=self.rows)}, step=x)

    def flush(self):
        pass  # every row is with wandb's own service already

    def close(self):
        self.run.finish()


serve("wandb", "0.16.0", WandbTracker)
