"""Prints what TensorBoard itself reads of a folder of event files, as JSON."""

import json
import sys

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import plugin_data_pb2

folder = sys.argv[1]
reader = event_accumulator.EventAccumulator(folder, size_guidance=dict.fromkeys(event_accumulator.DEFAULT_SIZE_GUIDANCE, 0))
reader.Reload()

read = {"scalars": {}, "text": {}, "histograms": {}, "hparams": {}, "ends": 0}
for tag in reader.Tags()["scalars"]:
    read["scalars"][tag] = [[event.step, str(event.value), event.wall_time] for event in reader.Scalars(tag)]
for tag in reader.Tags()["histograms"]:
    read["histograms"][tag] = [
        [e.step, e.histogram_value.min, e.histogram_value.max, e.histogram_value.num, e.histogram_value.sum,
         e.histogram_value.sum_squares, list(e.histogram_value.bucket_limit), list(e.histogram_value.bucket)]
        for e in reader.Histograms(tag)
    ]
for tag in reader.Tags()["tensors"]:
    if reader.SummaryMetadata(tag).plugin_data.plugin_name == "text":
        read["text"][tag] = [event.tensor_proto.string_val[0].decode() for event in reader.Tensors(tag)]
for content in reader.PluginTagToContent("hparams").values() if "_hparams_/session_start_info" in reader.summary_metadata else []:
    message = plugin_data_pb2.HParamsPluginData.FromString(content)
    read["ends"] += message.HasField("session_end_info")
    for name, value in message.session_start_info.hparams.items():
        read["hparams"][name] = getattr(value, value.WhichOneof("kind"))
    if message.HasField("session_start_info"):
        read["group"] = message.session_start_info.group_name
print(json.dumps(read))
