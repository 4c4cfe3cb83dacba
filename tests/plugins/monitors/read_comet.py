"""Prints what Comet's own explorer of offline archives finds in a folder, as JSON."""

import csv
import glob
import io
import json
import subprocess
import sys
import zipfile

(archive,) = glob.glob(sys.argv[1] + "/.cometml-runs/*.zip")
explorer = subprocess.run(
    [sys.executable, "-m", "comet_ml.scripts.comet_offline", "--csv", "--level", "detail", "--output", "/dev/stdout", archive],
    check=True, capture_output=True, text=True)
read = {}
for row in csv.reader(io.StringIO(explorer.stdout)):
    if len(row) >= 7:
        read.setdefault(row[4], []).append([row[0], row[1], row[5], row[6]])
read["texts"] = []
with zipfile.ZipFile(archive) as held:  # the explorer shows no texts
    for message in map(json.loads, held.read("messages.json").decode().splitlines()):
        payload = message["payload"]
        if message["type"] == "file_upload" and payload["upload_type"] == "text-sample":
            read["texts"].append({
                "text": held.read(payload["file_path"]).decode(), "step": payload["additional_params"]["step"],
                "prompt": payload["metadata"]["prompt"], "tag": payload["metadata"]["tag"]})
print(json.dumps(read))
