#include "core/keep/mapped_weights.hpp"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <string>

namespace capstan {
namespace {

/// Of a private mapping, in which a page that is written becomes a copy.
bool make_writable(const void* begin, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto from = reinterpret_cast<std::uintptr_t>(begin) / page * page;
  const auto to = reinterpret_cast<std::uintptr_t>(begin) + bytes;
  return mprotect(reinterpret_cast<void*>(from), to - from, PROT_READ | PROT_WRITE) == 0;
}

bool is_alone(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && tensor.storage_offset() == 0 &&
         tensor.storage().nbytes() == tensor.nbytes() && tensor.nbytes() > 0;
}

std::atomic<bool> stay_in_files = false;

}  // namespace

void leave_weights_in_files() { stay_in_files = true; }
bool weights_stay_in_files() { return stay_in_files; }

MappedWeights::MappedWeights() {
  // "7f2a40000000-7f2a60000000 r--p 00000000 fe:00 123 /path"
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::string rights, offset, device, inode;
    words >> std::hex >> begin >> dash >> end >> rights >> offset >> device >> inode;
    if (words && rights == "r--p" && inode != "0") files_.emplace(begin, end);
  }
}

bool MappedWeights::is_mapped(const at::Tensor& values) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(values.const_data_ptr());
  auto run = files_.upper_bound(begin);
  return run != files_.begin() && begin + values.nbytes() <= (--run)->second;
}

bool MappedWeights::take(const ParameterEntry& entry, const SafetensorsEntry& given) {
  const at::Tensor& values = given.values;
  const bool same = !given.read && !entry.separate && is_alone(entry.parameter) && values.is_contiguous() &&
                    values.scalar_type() == entry.parameter.scalar_type();
  if (!same || !is_mapped(values) || !taken_.insert(values.const_data_ptr()).second) return false;
  if (!make_writable(values.const_data_ptr(), values.nbytes())) return false;
  // The storage of the file's tensor keeps the mapping alive.
  auto* owner = new at::Storage(values.storage());
  c10::DataPtr pages(
      const_cast<void*>(values.const_data_ptr()), owner, [](void* kept) { delete static_cast<at::Storage*>(kept); },
      values.device());
  entry.parameter.storage().unsafeGetStorageImpl()->set_data_ptr(std::move(pages));
  return true;
}

MappedWeights::~MappedWeights() {
  if (!taken_.empty()) malloc_trim(0);
}

}  // namespace capstan
