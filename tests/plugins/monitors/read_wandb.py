"""Prints what wandb's own reader finds in the offline runs of a folder, as JSON."""

import glob
import json
import sys

from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal import datastore

read = {"rows": [], "tables": [], "config": {}, "finished": False}
(file,) = glob.glob(sys.argv[1] + "/wandb/offline-run-*/*.wandb")
store = datastore.DataStore()
store.open_for_scan(file)
while True:
    data = store.scan_data()
    if data is None:
        break
    record = wandb_internal_pb2.Record.FromString(data)
    kind = record.WhichOneof("record_type")
    if kind == "run":
        read.update(project=record.run.project, group=record.run.run_group, team=record.run.entity)
        for item in record.run.config.update:
            read["config"][item.key] = json.loads(item.value_json)
    elif kind == "history":
        row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        table = {key: row.pop(key) for key in [key for key in row if key.startswith("samples/")]}
        if table:
            (path,) = glob.glob(sys.argv[1] + "/wandb/offline-run-*/files/" + table["samples/path"])
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
            read["tables"].append({"_step": str(row["_step"]), "columns": content["columns"], "data": content["data"]})
        read["rows"].append({key: str(value) for key, value in row.items() if key == "_step" or not key.startswith("_")})
    elif kind == "exit":
        read["finished"] = record.exit.exit_code == 0
print(json.dumps(read))
