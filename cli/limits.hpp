#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace capstan::cli {

/// Something that this machine has so many bytes of.
struct Limit {
  std::string what;  // "host memory, free", "cgroup /jobs/7"
  std::uint64_t bytes = 0;
};

/// What limits all processes of this host together: its free memory, control groups of either version.
std::vector<Limit> host_memory_limits();
/// What limits one process: ulimit -v and -d.
std::vector<Limit> process_memory_limits();
/// Memory of each GPU, as NVIDIA's driver says; none without it.
std::vector<Limit> gpu_memory();
/// Free space where `path` is, or will be made; none when that cannot be told.
std::optional<Limit> free_disk(const std::filesystem::path& path);

}  // namespace capstan::cli
