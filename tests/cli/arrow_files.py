"""Writes the rows of the tests of `capstan data` into a folder: as JSON lines, and by pyarrow as Parquet and arrow files.

    arrow_files.py FOLDER
"""
import json
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq

folder = sys.argv[1]


def place(name):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def write_lines(name, rows):
    with open(place(name), "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_stream(name, table, rows=2):
    with pa.OSFile(place(name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


def write_file(name, table, **options):
    with pa.OSFile(place(name), "wb") as file:
        with pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table, max_chunksize=2)


# Texts: escapes, several bytes a character, none, and no value.
texts = ["plain", 'b\u00e4\n"\\/\t', "", None, "\x01 \u20ac \U0001f600", "plain", "last " * 300]
write_lines("texts.jsonl", [{"id": i, "text": text} for i, text in enumerate(texts)])
plain = pa.table({"id": list(range(len(texts))), "text": texts, "raw": [b"\xff"] * len(texts)})


def with_text(column):
    return plain.set_column(1, "text", column)


pq.write_table(plain, place("texts/groups.parquet"), row_group_size=2, compression="snappy")
pq.write_table(with_text(plain["text"].cast(pa.large_string())), place("texts/large.parquet"), compression="zstd")
pq.write_table(with_text(plain["text"].dictionary_encode()), place("texts/dictionary.parquet"), compression="gzip")
pq.write_table(plain, place("texts/pages.parquet"), data_page_version="2.0", use_dictionary=False,
               column_encoding={"id": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY", "raw": "PLAIN"})
write_stream("texts/stream.arrow", plain)
write_stream("texts/dictionary.arrow", with_text(plain["text"].dictionary_encode()))
write_stream("texts/view.arrow", with_text(plain["text"].cast(pa.string_view())))
write_file("texts/file.feather", plain, compression="zstd")
write_file("texts/large.arrow", with_text(plain["text"].cast(pa.large_string())), compression="lz4")

# Conversations. A message of a table has every member, so that most are null there.
chats = [
    {"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]},
    {"messages": [{"role": "user", "content": "e"},
                  {"role": "assistant", "calls": [{"name": "f", "x": 1.0, "n": 3, "yes": True}]},
                  {"role": "assistant", "content": "g", "calls": []}]},
]
write_lines("chats.jsonl", chats)
call = pa.struct([("name", pa.string()), ("x", pa.float64()), ("n", pa.int32()), ("yes", pa.bool_())])
message = pa.struct([("role", pa.dictionary(pa.int8(), pa.string())), ("content", pa.large_string()),
                     ("calls", pa.list_(call))])
# An offset in all arrays, as a slice of a larger table has it.
conversations = pa.table({"messages": pa.array([None] + [c["messages"] for c in chats], pa.list_(message))})
write_stream("chats/sliced.arrow", conversations.slice(1))
pq.write_table(conversations.slice(1), place("chats/rows.parquet"), row_group_size=1)
pq.write_table(conversations, place("null_chat.parquet"))
pq.write_table(pa.table({"m": pa.array([[("k", 1)], [("a", 2), ("b", None)]], pa.map_(pa.string(), pa.int64()))}),
               place("map.parquet"))

# What save_to_disk() of the datasets library writes.
for split, shards in (("train", ["one", "two"]), ("test", ["three"])):
    names = [f"data-{i:05}-of-{len(shards):05}.arrow" for i in range(len(shards))]
    for name, text in zip(names, shards):
        write_stream(f"saved/{split}/{name}", pa.table({"text": [text]}))
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "5a", "_format_columns": None,
             "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": split}
    with open(place(f"saved/{split}/state.json"), "w") as file:
        json.dump(state, file)
    with open(place(f"saved/{split}/dataset_info.json"), "w") as file:
        json.dump({"features": {"text": {"dtype": "string", "_type": "Value"}}}, file)
with open(place("saved/dataset_dict.json"), "w") as file:
    json.dump({"splits": ["train", "test"]}, file)

# Damage.
whole = open(place("texts/groups.parquet"), "rb").read()
open(place("cut.parquet"), "wb").write(whole[:-20])
open(place("head.parquet"), "wb").write(whole[:100])
stream = open(place("texts/stream.arrow"), "rb").read()
open(place("cut.arrow"), "wb").write(stream[: len(stream) // 2])
invalid = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")])
write_stream("invalid.arrow", pa.table({"text": invalid}))
