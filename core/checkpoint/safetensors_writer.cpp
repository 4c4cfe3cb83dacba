#include <algorithm>
#include <set>
#include <stdexcept>

#include "core/checkpoint/dtypes.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::size_t kHashedAtOnce = 4 << 20;  // hashed while the cache still holds it, then written
constexpr std::int64_t kReadAtOnce = 16 << 20;  // bytes of a tensor that is not in memory

/// An entry with its place in the data.
struct Placed {
  const SafetensorsEntry* entry;
  std::uint64_t begin, end;
};

std::vector<Placed> place(const std::vector<SafetensorsEntry>& entries) {
  std::vector<Placed> placed;
  for (const auto& entry : entries) placed.push_back({&entry, 0, 0});
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return a.entry->values.element_size() > b.entry->values.element_size();
  });
  std::uint64_t position = 0;
  for (auto& one : placed) {
    one.begin = position;
    position += static_cast<std::uint64_t>(one.entry->values.numel()) * one.entry->values.element_size();
    one.end = position;
  }
  return placed;
}

std::string header_text(const std::vector<Placed>& placed, const Json& metadata, const std::string& path) {
  // Put together by hand: a Json object of many members is slow, and members' names must not repeat here.
  std::set<std::string> names{"__metadata__"};
  std::string text = "{";
  if (metadata.size() > 0) text += "\"__metadata__\":" + metadata.dump() + ",";
  for (const auto& [entry, begin, end] : placed) {
    const char* dtype = safetensors_dtype(entry->values.scalar_type());
    if (!dtype) {
      throw RuntimeFault("'" + path + "': tensor '" + entry->name + "' is of type " +
                         c10::toString(entry->values.scalar_type()) + ", which safetensors files cannot hold.");
    }
    if (!names.insert(entry->name).second) {
      throw RuntimeFault("'" + path + "': there are two tensors named '" + entry->name + "'.");
    }
    Json facts = Json::object();
    facts["dtype"] = dtype;
    facts["shape"] = Json(Json::Array(entry->values.sizes().begin(), entry->values.sizes().end()));
    facts["data_offsets"] = Json(Json::Array{begin, end});
    text += Json(entry->name).dump() + ":" + facts.dump() + ",";
  }
  if (text.size() > 1) text.pop_back();
  text += "}";
  text.append((kAlignment - (8 + text.size()) % kAlignment) % kAlignment, ' ');
  return text;
}

void write_hashed(OutputFile& out, Xxh3& digest, const void* bytes, std::uint64_t count) {
  const auto* from = static_cast<const std::byte*>(bytes);
  while (count > 0) {
    const auto now = static_cast<std::size_t>(std::min<std::uint64_t>(count, kHashedAtOnce));
    digest.update(from, now);
    out.write(from, now);
    from += now;
    count -= now;
  }
}

/// The next elements of an entry that is not in memory.
at::Tensor read_piece(const SafetensorsEntry& entry, std::int64_t from, std::int64_t count) {
  at::Tensor piece = entry.read(from, count);
  if (piece.numel() == count && piece.scalar_type() == entry.values.scalar_type() && piece.is_cpu() &&
      piece.is_contiguous()) {
    return piece;
  }
  throw std::logic_error("'" + entry.name + "': its reader gave " + std::to_string(piece.numel()) + " elements of " +
                         c10::toString(piece.scalar_type()) + " where " + std::to_string(count) + " of " +
                         c10::toString(entry.values.scalar_type()) + ", contiguous and on the CPU, were asked for");
}

/// Writes an entry's values. Returns their checksum.
std::uint64_t write_values(OutputFile& out, const SafetensorsEntry& entry) {
  Xxh3 digest;
  if (!entry.read) {
    const at::Tensor values = entry.values.cpu().contiguous();
    write_hashed(out, digest, values.const_data_ptr(), values.nbytes());
    return digest.digest();
  }
  const std::int64_t numel = entry.values.numel();
  const std::int64_t at_once = kReadAtOnce / static_cast<std::int64_t>(entry.values.element_size());
  for (std::int64_t from = 0; from < numel; from += at_once) {
    const at::Tensor piece = read_piece(entry, from, std::min(at_once, numel - from));
    write_hashed(out, digest, piece.const_data_ptr(), piece.nbytes());
  }
  return digest.digest();
}

}  // namespace

SafetensorsWritten write_safetensors(const std::filesystem::path& file, const std::vector<SafetensorsEntry>& entries,
                                     const Json& metadata) {
  const auto placed = place(entries);
  std::string header = header_text(placed, metadata, file.string());
  const std::uint64_t length = header.size();
  header.insert(0, reinterpret_cast<const char*>(&length), sizeof length);

  SafetensorsWritten written;
  OutputFile out(file);
  Xxh3 digest;
  write_hashed(out, digest, header.data(), header.size());
  written.header = {0, header.size(), digest.digest()};
  for (const auto& [entry, begin, end] : placed) {
    written.tensors[entry->name] = {header.size() + begin, header.size() + end, write_values(out, *entry)};
  }
  out.finish();
  written.bytes = out.position();
  return written;
}

}  // namespace capstan
