#include "core/checkpoint/node_storage.hpp"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/comm/as_one.hpp"
#include "core/data/mapped_file.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/text/json.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kChunk = 64 << 20;  // bytes that travel at once

std::string own_latest(const fs::path& dir) {
  try {
    return latest_tag(dir);
  } catch (const std::exception&) {
    return "";  // this node may be new
  }
}

std::string agreed_tag(const fs::path& dir, const std::string& tag, Communicator& communicator) {
  const auto tags = communicator.all_gather_text("load_checkpoint, tags", tag.empty() ? own_latest(dir) : tag);
  // `latest` moves after the checkpoint stands on all nodes, so the newest is whole.
  const auto newest = std::max_element(tags.begin(), tags.end(), [](const auto& a, const auto& b) {
    return std::pair(step_of(a), a) < std::pair(step_of(b), b);
  });
  if (newest->empty()) {
    throw RuntimeFault("checkpoints in '" + dir.string() + "': no node has a file 'latest' there to tell which.");
  }
  return *newest;
}

/// The files of a checkpoint's folder: sizes, and the checksum of the index.
struct NodeFiles {
  std::map<std::string, std::int64_t> bytes;
  std::string index;

  static NodeFiles of(const fs::path& folder) {
    NodeFiles files;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      if (at->is_regular_file())
        files.bytes[at->path().filename().string()] = static_cast<std::int64_t>(at->file_size());
    }
    if (files.bytes.contains(kIndexName)) {
      const MappedFile index(folder / kIndexName);
      files.index = hex(xxh3(index.data(), index.size()));
    }
    return files;
  }
  std::string text() const {
    Json json = Json::object();
    for (const auto& [name, size] : bytes) json["files"][name] = size;
    json["index"] = index;
    return json.dump();
  }
  static NodeFiles parse(const std::string& text) {
    const Json json = Json::parse(text);
    NodeFiles files;
    if (const Json* list = json.find("files")) {
      for (const auto& [name, size] : list->as_object()) files.bytes[name] = size.as_integer();
    }
    files.index = json.at("index").as_string();
    return files;
  }
};

/// Sends a file from one rank to all; those that want it write it.
void pass_on(const std::string& name, std::int64_t bytes, int owner, const fs::path& folder, bool wanted,
             Communicator& communicator) {
  const std::string what = "load_checkpoint, " + name;
  std::optional<MappedFile> source;
  as_one(communicator, what + ", open", [&] {
    if (communicator.rank() == owner) source.emplace(folder / name);
  });
  // A rank that cannot write goes on receiving, as the others go on sending to it.
  std::exception_ptr failure;
  const auto attempt = [&](const std::function<void()>& write) {
    try {
      if (!failure) write();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  const fs::path place = folder / name, aside = path_aside(folder, name);
  const auto clean_up = c10::make_scope_exit([&] {
    std::error_code error;
    if (wanted) fs::remove(aside, error);  // which is there no more once it has its name
  });
  std::optional<OutputFile> out;
  if (wanted) attempt([&] { out.emplace(aside); });
  for (std::int64_t first = 0; first < bytes; first += kChunk) {
    const at::Tensor chunk = host_empty({std::min(kChunk, bytes - first)}, at::kByte);
    const auto size = static_cast<std::size_t>(chunk.numel());
    if (source) std::memcpy(chunk.mutable_data_ptr(), source->data() + first, size);
    communicator.broadcast(what, {chunk}, owner);
    if (out) attempt([&] { out->write(chunk.const_data_ptr(), size); });
  }
  as_one(communicator, what + ", write", [&] {
    if (out) attempt([&] { out->finish(); });
    if (failure) std::rethrow_exception(failure);
    if (out) rename_synced(aside, place);
  });
}

}  // namespace

std::string complete_checkpoint(const fs::path& dir, const std::string& given, Communicator& communicator) {
  const std::string tag = agreed_tag(dir, given, communicator);
  check_tag(tag);
  const fs::path folder = dir / tag;
  std::string files;
  as_one(communicator, "load_checkpoint, look", [&] { files = NodeFiles::of(folder).text(); });
  std::vector<NodeFiles> nodes;
  for (const auto& text : communicator.all_gather_text("load_checkpoint, files", files)) {
    nodes.push_back(NodeFiles::parse(text));
  }

  int first = -1;  // that has an index
  std::map<std::string, int> owners;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const NodeFiles& node = nodes[static_cast<std::size_t>(rank)];
    if (node.index.empty()) continue;
    if (first < 0) first = rank;
    if (node.index != nodes[static_cast<std::size_t>(first)].index) {
      throw RuntimeFault("checkpoint '" + folder.string() + "': ranks " + std::to_string(first) + " and " +
                         std::to_string(rank) +
                         " have different checkpoints of that name on their nodes. Remove the one that is not of this "
                         "run, or name another tag.");
    }
    for (const auto& [name, bytes] : node.bytes) owners.try_emplace(name, rank);
  }
  if (first < 0) throw RuntimeFault("checkpoint '" + folder.string() + "': it is on no node.");

  const NodeFiles& mine = nodes[static_cast<std::size_t>(communicator.rank())];
  const bool writes = communicator.local_rank() == 0;
  as_one(communicator, "load_checkpoint, folder", [&] {
    if (writes) create_folders(folder);
  });
  // The index last: without it, what is there is not a checkpoint.
  std::vector<std::pair<std::string, int>> order(owners.begin(), owners.end());
  std::stable_partition(order.begin(), order.end(), [](const auto& one) { return one.first != kIndexName; });
  for (const auto& [name, owner] : order) {
    const bool everywhere = std::all_of(nodes.begin(), nodes.end(),
                                        [&, file = name](const NodeFiles& node) { return node.bytes.contains(file); });
    if (everywhere) continue;
    pass_on(name, nodes[static_cast<std::size_t>(owner)].bytes.at(name), owner, folder,
            writes && !mine.bytes.contains(name), communicator);
  }
  as_one(communicator, "load_checkpoint, latest", [&] {
    if (writes && own_latest(dir).empty()) write_latest(dir, tag, dir);
  });
  return tag;
}

}  // namespace capstan
