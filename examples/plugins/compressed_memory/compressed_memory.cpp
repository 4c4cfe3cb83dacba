// Memory that zlib has made smaller. A buffer is a list of chunks, each compressed by itself; a write that covers a
// chunk in part unpacks it, changes it and compresses it again. A chunk that was never written takes no memory.
#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "capstan/sdk/offload.hpp"

namespace {

namespace sdk = capstan::sdk;

using Bytes = std::vector<unsigned char>;

class CompressedMemory {
 public:
  CompressedMemory(const sdk::Host&, const sdk::Params& params)
      : level_(static_cast<int>(params.integer("level"))), chunk_(static_cast<std::size_t>(params.integer("chunk"))) {}

  sdk::OffloadFacts facts() const { return {sizeof(sdk::OffloadFacts), 1, 16 * chunk_, UINT64_MAX}; }

  void register_buffer(std::uint64_t id, std::uint64_t bytes) {
    buffers_[id] = {bytes, std::vector<Bytes>((bytes + chunk_ - 1) / chunk_)};
  }
  void release_buffer(std::uint64_t id) { buffers_.erase(id); }

  /// A thread a ticket, each behind the one before it: so ranges that overlap keep the order of their calls.
  std::uint64_t start(std::span<const sdk::Range> ranges) {
    std::vector<std::pair<sdk::Range, std::vector<Bytes>*>> moves;
    for (const sdk::Range& range : ranges) moves.emplace_back(range, &chunks_of(range));
    last_ = std::async(std::launch::async, [this, before = std::move(last_), moves = std::move(moves)]() mutable {
              if (before.valid()) before.wait();
              before = {};  // it would keep the one before it, and so on
              for (const auto& [range, chunks] : moves) move(range, *chunks);
            }).share();
    tickets_[++count_] = last_;
    return count_;
  }
  bool poll(std::uint64_t ticket) {
    if (tickets_.at(ticket).wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
    tickets_.extract(ticket).mapped().get();
    return true;
  }

  std::string stats() const {
    return "{\"about\": \"memory compressed by zlib, level " + std::to_string(level_) + "\"}";
  }

 private:
  struct Buffer {
    std::uint64_t bytes = 0;
    std::vector<Bytes> chunks;
  };

  static std::string text(const sdk::Range& range) {
    return "buffer " + std::to_string(range.buffer_id) + ", " + std::to_string(range.bytes) + " bytes at " +
           std::to_string(range.offset) + ": ";
  }

  std::vector<Bytes>& chunks_of(const sdk::Range& range) {
    const auto buffer = buffers_.find(range.buffer_id);
    const std::uint64_t bytes = buffer == buffers_.end() ? 0 : buffer->second.bytes;
    if (range.offset > bytes || range.bytes > bytes - range.offset) {
      throw sdk::Error(text(range) + "the buffer has " + std::to_string(bytes) + ".");
    }
    return buffer->second.chunks;
  }

  Bytes unpacked(const Bytes& chunk) const {
    Bytes plain(chunk_);
    uLongf size = chunk_;
    if (!chunk.empty() && uncompress(plain.data(), &size, chunk.data(), chunk.size()) != Z_OK) throw std::bad_alloc();
    return plain;
  }

  Bytes packed(const Bytes& plain) const {
    Bytes chunk(compressBound(chunk_));
    uLongf size = chunk.size();
    if (compress2(chunk.data(), &size, plain.data(), chunk_, level_) != Z_OK) throw std::bad_alloc();
    return {chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(size)};  // of exactly that size
  }

  void move(const sdk::Range& range, std::vector<Bytes>& chunks) const try {
    auto* memory = static_cast<unsigned char*>(range.memory);
    for (std::uint64_t at = range.offset, end = at + range.bytes, part = 0; at < end; at += part, memory += part) {
      part = std::min(chunk_ - at % chunk_, end - at);
      Bytes& chunk = chunks[at / chunk_];
      Bytes plain = range.write != 0 && part == chunk_ ? Bytes(chunk_) : unpacked(chunk);
      unsigned char* const inside = plain.data() + at % chunk_;
      std::memcpy(range.write != 0 ? inside : memory, range.write != 0 ? memory : inside, part);
      if (range.write != 0) chunk = packed(plain);
    }
  } catch (const std::bad_alloc&) {
    throw sdk::Error(text(range) + "there is no memory for what it is compressed to.");
  }

  int level_;
  std::size_t chunk_;
  std::map<std::uint64_t, Buffer> buffers_;
  std::shared_future<void> last_;
  std::uint64_t count_ = 0;
  std::map<std::uint64_t, std::shared_future<void>> tickets_;  // destroyed first, which waits for them
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::offload<CompressedMemory, "compressed_memory">)
