// What tiles do when their store fails: nothing that was lost is taken for values.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <vector>

#include "core/errors.hpp"
#include "core/parameters/tile_staging.hpp"

namespace capstan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Show = TileStaging::Show;

/// A store in memory that fails as it is told.
struct Faulty {
  bool refuse_start = false;  // start fails
  bool fail_writes = false;   // writes are begun, move nothing, and end badly
  bool hang = false;          // nothing ends
  int polls = 0;
  std::map<std::uint64_t, std::vector<std::byte>> buffers;
  std::map<std::uint64_t, bool> bad;  // tickets
  std::uint64_t tickets = 0;

  capstan_status start(const capstan_range* const* ranges, std::size_t count, std::uint64_t* ticket,
                       capstan_error* error) {
    if (refuse_start) {
      set(error, "the queue is gone");
      return CAPSTAN_FAILED;
    }
    *ticket = ++tickets;
    for (std::size_t k = 0; k < count; ++k) {
      std::byte* const at = buffers[ranges[k]->buffer_id].data() + ranges[k]->offset;
      if (ranges[k]->write != 0 && fail_writes) bad[*ticket] = true;
      if (ranges[k]->write != 0 && !fail_writes) std::memcpy(at, ranges[k]->memory, ranges[k]->bytes);
      if (ranges[k]->write == 0) std::memcpy(ranges[k]->memory, at, ranges[k]->bytes);
    }
    return CAPSTAN_OK;
  }

  capstan_status poll(std::uint64_t ticket, int* done, capstan_error* error) {
    ++polls;
    *done = hang ? 0 : 1;
    if (hang || !bad.contains(ticket)) return CAPSTAN_OK;
    set(error, "the disk is gone");
    return CAPSTAN_FAILED;
  }

  static void set(capstan_error* error, const char* text) { error->text = text; }

  static const capstan_offload& table() {
    static const capstan_offload instance = [] {
      capstan_offload table{};
      table.struct_size = sizeof table;
      table.register_buffer = [](void* self, std::uint64_t buffer, std::uint64_t bytes, capstan_error*) {
        static_cast<Faulty*>(self)->buffers[buffer].resize(bytes);
        return CAPSTAN_OK;
      };
      table.start = [](void* self, const capstan_range* const* ranges, std::size_t count, std::uint64_t* ticket,
                       capstan_error* error) {
        return static_cast<Faulty*>(self)->start(ranges, count, ticket, error);
      };
      table.poll = [](void* self, std::uint64_t ticket, int* done, capstan_error* error) {
        return static_cast<Faulty*>(self)->poll(ticket, done, error);
      };
      return table;
    }();
    return instance;
  }

  Component component() {
    static ComponentManifest manifest;
    manifest.type = "faulty";
    static const capstan_component descriptor{sizeof(capstan_component), {}, {}, nullptr, [](void*) {}, &table()};
    return Component(&descriptor, this, ComponentRef{nullptr, &manifest});
  }
};

/// Four tiles of 64 bytes that two slots show in turn; every byte of a tile is its number plus one.
struct Tiles {
  explicit Tiles(Faulty& faulty, bool read_ahead = false)
      : device(faulty.component(), std::chrono::milliseconds(1)),
        staging(std::vector<TileStaging::Tile>(4, {{}, {64, 64, 0, 64}, false}),
                {nullptr, &device, /*slots=*/2, read_ahead, /*write_behind=*/true}) {
    for (std::size_t i = 0; i < 4; ++i) fill(i);
    staging.settle();
  }

  void fill(std::size_t i) {
    staging.acquire(i, Show::kNothing);
    std::memset(staging.states_memory(i), static_cast<int>(i) + 1, 64);
    staging.release(i, true);
  }

  int shown(std::size_t i) {
    staging.acquire(i, Show::kValues);
    const int value = static_cast<int>(*staging.states_memory(i));
    staging.release(i, false);
    return value;
  }

  OffloadDevice device;
  TileStaging staging;
};

TEST(TileFailures, AWriteThatWasLostIsSaidUntilTheTilesAreGivenUp) {
  Faulty faulty;
  Tiles tiles(faulty);
  faulty.fail_writes = true;
  tiles.staging.acquire(1, Show::kValues);
  tiles.staging.release(1, true);
  faulty.fail_writes = false;

  const auto said = ThrowsMessage<RuntimeFault>(HasSubstr("the disk is gone"));
  EXPECT_THAT([&] { tiles.staging.settle(); }, said);
  EXPECT_THAT([&] { tiles.staging.settle(); }, said) << "a checkpoint saved now would hold what the store has";
  EXPECT_THAT([&] { tiles.shown(1); }, said);
  EXPECT_THAT([&] { tiles.shown(2); }, said) << "the tiles are of different updates";
}

TEST(TileFailures, WhatEveryTileLostDoesNotSpoilWhatIsLoaded) {
  Faulty faulty;
  Tiles tiles(faulty);
  faulty.fail_writes = true;
  for (const std::size_t i : {0, 1}) {
    tiles.staging.acquire(i, Show::kValues);
    tiles.staging.release(i, true);
  }
  faulty.fail_writes = false;

  tiles.staging.give_up();
  for (std::size_t i = 0; i < 4; ++i) tiles.fill(i);
  tiles.staging.settle();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(tiles.shown(static_cast<std::size_t>(i)), i + 1);
}

TEST(TileFailures, AReadThatWasRefusedLeavesNoOtherTilesValues) {
  Faulty faulty;
  Tiles tiles(faulty);
  EXPECT_EQ(tiles.shown(0), 1);
  faulty.refuse_start = true;
  EXPECT_THAT([&] { tiles.shown(2); }, ThrowsMessage<RuntimeFault>(HasSubstr("the queue is gone")));
  faulty.refuse_start = false;
  EXPECT_EQ(tiles.shown(2), 3) << "tile 0 is in the same slot";
}

TEST(TileFailures, AWriteThatWasRefusedIsSaidAgain) {
  Faulty faulty;
  Tiles tiles(faulty);
  tiles.staging.acquire(3, Show::kValues);
  faulty.refuse_start = true;
  const auto said = ThrowsMessage<RuntimeFault>(HasSubstr("the queue is gone"));
  EXPECT_THAT([&] { tiles.staging.release(3, true); }, said);
  faulty.refuse_start = false;
  EXPECT_THAT([&] { tiles.staging.settle(); }, said);
}

TEST(TileFailures, AStoreThatIsGivenUpIsNotAskedAgain) {
  Faulty faulty;
  std::vector<std::byte> memory(128);
  OffloadDevice device(faulty.component(), std::chrono::milliseconds(1));
  const std::uint64_t buffer = device.add_buffer(128, "optimizer states of tile 0");
  faulty.hang = true;
  const OffloadDevice::Range first{buffer, 0, 64, memory.data(), true};
  const OffloadDevice::Range second{buffer, 64, 64, memory.data() + 64, true};
  const auto one = device.start({&first, 1}), other = device.start({&second, 1});

  const auto said = ThrowsMessage<RuntimeFault>(HasSubstr("2 transfers of 128 B in flight for 0 s"));
  EXPECT_THAT([&] { device.wait(one); }, said);
  const int polls = faulty.polls;
  EXPECT_THAT([&] { device.wait(one); }, said);
  EXPECT_THAT([&] { device.wait(other); }, said) << "another minute would pass";
  EXPECT_THAT([&] { device.start({&first, 1}); }, said);
  EXPECT_EQ(faulty.polls, polls);
}

}  // namespace
}  // namespace capstan
