#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "core/memory/offload_device.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// A back end in memory that ends a transfer as late as it may: when its ticket is polled, after all transfers before
/// it that touch the same bytes.
class FakeStore {
 public:
  struct Move {
    std::uint64_t buffer, offset, bytes;
    bool write;
    bool operator==(const Move&) const = default;
  };

  std::map<std::uint64_t, std::vector<std::byte>> buffers;
  std::vector<Move> moves;                 // in the order in which they were started
  std::set<std::uint64_t> failing;         // tickets that will fail
  bool stuck = false;                      // no transfer ends any more
  int lent = 0, destroyed = 0, calls = 0;  // of any function
  std::uint32_t alignment = 512;

  /// A device over this store, which must outlive it.
  std::unique_ptr<OffloadDevice> device(std::chrono::milliseconds patience = std::chrono::minutes(1)) {
    static ComponentManifest manifest;
    manifest.type = "fake";
    static const capstan_component component{sizeof(capstan_component), {}, {}, nullptr, &destroy, &table()};
    return std::make_unique<OffloadDevice>(Component(&component, this, ComponentRef{nullptr, &manifest}), patience);
  }
  std::size_t under_way() const { return pending_.size(); }
  std::uint64_t last_ticket() const { return tickets_; }

 private:
  struct Pending {
    std::vector<capstan_range> ranges;
    bool failed = false;
  };

  static FakeStore& of(void* self) {
    auto& store = *static_cast<FakeStore*>(self);
    ++store.calls;
    return store;
  }
  static void destroy(void* self) { ++of(self).destroyed; }

  static bool overlap(const capstan_range& a, const capstan_range& b) {
    return a.buffer_id == b.buffer_id && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  }

  std::uint64_t start(std::vector<capstan_range> ranges) {
    for (const capstan_range& range : ranges) {
      moves.push_back({range.buffer_id, range.offset, range.bytes, range.write != 0});
    }
    pending_[++tickets_] = {std::move(ranges)};
    return tickets_;
  }

  /// Moves what stands in the way of a ticket first, and then the ticket's own bytes.
  bool end(std::uint64_t ticket) {
    const Pending transfer = pending_.extract(ticket).mapped();
    for (auto earlier = pending_.begin(); earlier != pending_.end() && earlier->first < ticket;) {
      bool before = false;
      for (const capstan_range& a : earlier->second.ranges) {
        for (const capstan_range& b : transfer.ranges) before |= overlap(a, b);
      }
      const std::uint64_t number = (earlier++)->first;
      if (before) ended_[number] = end(number);
    }
    if (failing.contains(ticket)) {
      failed_ = transfer.ranges.front();
      return false;
    }
    for (const capstan_range& range : transfer.ranges) {
      std::byte* const place = buffers.at(range.buffer_id).data() + range.offset;
      if (range.offset + range.bytes > buffers.at(range.buffer_id).size()) return false;
      std::memcpy(range.write ? place : static_cast<std::byte*>(range.memory),
                  range.write ? static_cast<std::byte*>(range.memory) : place, range.bytes);
    }
    return true;
  }
  bool ended_well(std::uint64_t ticket) {
    if (const auto known = ended_.extract(ticket)) return known.mapped();
    return end(ticket);
  }

  static capstan_status add_buffer(void* self, std::uint64_t id, std::uint64_t bytes, capstan_error*) {
    of(self).buffers[id].assign(bytes, std::byte{0xEE});
    return CAPSTAN_OK;
  }
  static capstan_status refuse(capstan_error* error) {
    error->text = "the fake disk is broken";
    return CAPSTAN_FAILED;
  }

  static const capstan_offload& table() {
    static const capstan_offload instance = [] {
      capstan_offload table{};
      table.struct_size = sizeof table;
      table.register_buffer = &add_buffer;
      table.facts = [](void* self, capstan_offload_facts* facts, capstan_error*) {
        facts->alignment = of(self).alignment;
        return CAPSTAN_OK;
      };
      table.lend = [](void* self, void*, std::uint64_t, capstan_error*) { return ++of(self).lent, CAPSTAN_OK; };
      table.take_back = [](void* self, void*) { --of(self).lent; };
      table.start = [](void* self, const capstan_range* const* ranges, std::size_t count, std::uint64_t* ticket,
                       capstan_error*) {
        std::vector<capstan_range> list;
        for (std::size_t i = 0; i < count; ++i) list.push_back(*ranges[i]);
        *ticket = of(self).start(std::move(list));
        return CAPSTAN_OK;
      };
      table.poll = [](void* self, std::uint64_t ticket, int* done, capstan_error* error) {
        FakeStore& store = of(self);
        *done = !store.stuck;
        return store.stuck || store.ended_well(ticket) ? CAPSTAN_OK : refuse(error);
      };
      table.fault = [](void* self, std::uint64_t, capstan_offload_fault* fault, capstan_error*) {
        const capstan_range& range = of(self).failed_;
        fault->buffer_id = range.buffer_id;
        fault->offset = range.offset;
        fault->bytes = range.bytes;
        return CAPSTAN_OK;
      };
      return table;
    }();
    return instance;
  }

  std::map<std::uint64_t, Pending> pending_;
  std::map<std::uint64_t, bool> ended_;  // before their own turn
  std::uint64_t tickets_ = 0;
  capstan_range failed_{};
};

}  // namespace capstan
