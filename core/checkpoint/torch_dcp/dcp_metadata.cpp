#include "core/checkpoint/torch_dcp/dcp_metadata.hpp"

#include <map>
#include <utility>

#include "core/checkpoint/checkpoint_index.hpp"

namespace capstan::torch_dcp {
namespace {

using Kind = Pickle::Kind;

constexpr std::size_t kMostKeys = 100;  // that lead to an entry

/// An entry's name, and where a chunk begins; no offsets: a value that is not a tensor.
using ItemKey = std::pair<std::string, std::vector<std::int64_t>>;

Item item_of(const TorchValue& info, const std::string& name) {
  if (const auto transforms = info.find("transform_descriptors"); transforms && !transforms->items().empty()) {
    transforms->fail("'" + name +
                     "' is compressed or transformed by an extension of torch.distributed.checkpoint, and such files "
                     "are not read. Save without _extensions.");
  }
  Item item;
  const TorchValue path = info.at("relative_path");
  item.file = path.text();
  if (item.file.empty() || item.file.find('/') != std::string::npos || item.file == "." || item.file == "..") {
    path.refuse("the name of a file in the folder");
  }
  item.begin = static_cast<std::uint64_t>(info.at("offset").integer(0, INT64_MAX));
  item.size = static_cast<std::uint64_t>(info.at("length").integer(1, INT64_MAX));
  return item;
}

std::map<ItemKey, Item> items_of(const TorchValue& storage) {
  std::map<ItemKey, Item> items;
  for (const auto& [index, info] : storage.pairs()) {
    const std::string name = index.at("fqn").text();
    const auto offset = index.find("offset");
    const ItemKey key(name, offset ? offset->shape() : std::vector<std::int64_t>());
    if (!items.emplace(key, item_of(info, name)).second) index.fail("'" + name + "' is there twice.");
  }
  return items;
}

using Mappings = std::map<std::string, TorchValue>;

Mappings mappings_of(const TorchValue& root) {
  Mappings mappings;
  const auto planned = root.find("planner_data");
  if (!planned || !planned->is(Kind::kDict)) return mappings;
  for (const auto& [name, value] : planned->members()) mappings.insert_or_assign(name, value);
  return mappings;
}

/// The keys that led to an entry before the state dict was made flat; the name itself where they are not known.
std::vector<std::string> path_of(const Mappings& mappings, const std::string& name) {
  const auto found = mappings.find(name);
  if (found == mappings.end() || !found->second.is_list()) return {name};
  std::vector<std::string> path;
  for (const TorchValue& key : found->second.items()) {
    path.push_back(key.is(Kind::kText) ? key.text() : key.described());
  }
  if (path.empty() || path.size() > kMostKeys) found->second.fail("is not the path of an entry. The file is damaged.");
  return path;
}

void check_chunk(const Chunk& chunk, const std::vector<std::int64_t>& shape, const TorchValue& value) {
  bool fits = chunk.offsets.size() == shape.size() && chunk.sizes.size() == shape.size();
  for (std::size_t i = 0; fits && i < shape.size(); ++i) {
    fits = chunk.offsets[i] <= shape[i] && chunk.sizes[i] <= shape[i] - chunk.offsets[i];
  }
  if (!fits) value.fail("is a chunk that lies outside of its tensor. The file is damaged.");
}

}  // namespace

std::vector<Entry> read_metadata(const TorchFile& file) {
  const TorchValue root = TorchValue::root_of(file);
  const TorchValue values = root.at("state_dict_metadata");
  std::map<ItemKey, Item> items = items_of(root.at("storage_data"));
  const Mappings mappings = mappings_of(root);
  std::vector<Entry> entries;
  for (const auto& [name, value] : values.members()) {
    Entry entry{.path = path_of(mappings, name)};
    const auto take_item = [&, name = name, value = value](const std::vector<std::int64_t>& offsets) {
      const auto found = items.find({name, offsets});
      if (found == items.end()) value.fail("storage_data does not tell where its values stand. The file is damaged.");
      return found->second;
    };
    const auto chunks = value.find("chunks");
    entry.is_tensor = chunks.has_value();
    if (!chunks) {
      entry.item = take_item({});
    } else {
      entry.shape = value.at("size").shape();
      for (const TorchValue& one : chunks->items()) {
        Chunk chunk{.offsets = one.at("offsets").shape(), .sizes = one.at("sizes").shape()};
        check_chunk(chunk, entry.shape, one);
        // The item of a scalar has no offsets.
        chunk.item = take_item(chunk.offsets);
        entry.chunks.push_back(std::move(chunk));
      }
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace capstan::torch_dcp
