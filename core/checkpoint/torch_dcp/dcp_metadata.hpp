#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/checkpoint/torch_file/torch_value.hpp"

namespace capstan::torch_dcp {

/// Where one item of a checkpoint of torch.distributed.checkpoint stands: a file of torch.save within a file.
struct Item {
  std::string file;                   // its name in the checkpoint's folder
  std::uint64_t begin = 0, size = 0;  // bytes in the file
};

/// A part of a tensor: a box of its elements.
struct Chunk {
  std::vector<std::int64_t> offsets, sizes;
  Item item;
};

/// An entry of a state dict, by the keys that lead to it: {"optimizer", "state", "fc.weight", "exp_avg"}.
struct Entry {
  std::vector<std::string> path;  // 1 to 100 keys
  bool is_tensor = false;
  std::vector<std::int64_t> shape;  // of a tensor
  std::vector<Chunk> chunks;        // of a tensor, in the order of the file
  Item item;                        // of another value
};

/// The entries of <folder>/.metadata, a pickle of torch's class Metadata, in its order. Chunks lie within their tensor,
/// and each has an item. Throws RuntimeFault naming the file, the entry and what is wrong.
std::vector<Entry> read_metadata(const TorchFile& file);

}  // namespace capstan::torch_dcp
