// Compiled with a plugin.h in which every struct has two fields more, at its end, than the plugin knows of.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "capstan/plugin.h"

struct capstan_error {
  std::string text;
};

struct capstan_group {
  double lr;
};

namespace {

using ::testing::ElementsAre;

static_assert(CAPSTAN_ABI_MINOR == PLUGIN_ABI_MINOR + 1);
static_assert(sizeof(capstan_slot::appended_text) > 0);

std::vector<std::string>& lines() {
  static std::vector<std::string> lines;
  return lines;
}

capstan_str str(const std::string& text) { return {text.data(), text.size()}; }
capstan_tensor handle(at::Tensor& tensor) { return reinterpret_cast<capstan_tensor>(&tensor); }

capstan_host make_grown_host() {
  capstan_host host{};
  host.struct_size = sizeof host;
  host.abi_major = CAPSTAN_ABI_MAJOR;
  host.abi_minor = CAPSTAN_ABI_MINOR;
  host.set_error = [](capstan_error* error, capstan_str text) { error->text = std::string(text.data, text.size); };
  host.log = [](void*, int, capstan_str text) { lines().emplace_back(text.data, text.size); };
  host.group_numbers = [](const capstan_group* group, capstan_str, double* out, std::size_t, capstan_error*) {
    *out = group->lr;
    return CAPSTAN_OK;
  };
  host.appended_number = 1e300;
  host.appended_text = "grown";
  return host;
}

/// Fills what the plugin does not know of with something that it would stumble over.
template <class Struct>
Struct grown() {
  Struct made{};
  made.struct_size = sizeof made;
  made.appended_number = -1e300;
  made.appended_text = reinterpret_cast<const char*>(0xdead);
  return made;
}

/// A component of the plugin that was built with the header of version 1.1.
template <class Vtable>
class Old {
 public:
  explicit Old(const std::string& kind) {
    lines().clear();
    void* library = dlopen(CAPSTAN_TEST_BUILD_DIR "/tests/sdk_plugins/libcapstan_optimizer_every_kind.so", RTLD_NOW);
    if (!library) throw std::runtime_error(dlerror());
    const auto* plugin = reinterpret_cast<const capstan_plugin* (*)()>(dlsym(library, "capstan_plugin_v1"))();
    EXPECT_LT(plugin->struct_size, sizeof(capstan_plugin));
    EXPECT_EQ(plugin->abi_minor, PLUGIN_ABI_MINOR);
    for (std::size_t i = 0; i < plugin->component_count; ++i) {
      const capstan_component* component = plugin->components[i];
      if (std::string(component->kind.data, component->kind.size) == kind) component_ = component;
    }
    EXPECT_EQ(component_->create(&host_, str("{}"), &self_, &error_), CAPSTAN_OK) << error_.text;
  }
  ~Old() { component_->destroy(self_); }

  const Vtable* operator->() const {
    const auto* table = static_cast<const Vtable*>(component_->vtable);
    EXPECT_LT(table->struct_size, sizeof(Vtable));
    return table;
  }
  void* self() const { return self_; }
  capstan_error* error() { return &error_; }

 private:
  capstan_host host_ = make_grown_host();
  const capstan_component* component_ = nullptr;
  void* self_ = nullptr;
  capstan_error error_;
};

TEST(GrownHost, AnOldOptimizerUpdatesEverySlotOfAGrownStep) {
  Old<capstan_optimizer> optimizer("optimizer");
  const capstan_group first{0.5}, second{0.25};
  const capstan_group* groups[] = {&first, &second};
  auto step = grown<capstan_step>();
  step.groups = groups;
  step.group_count = 2;
  step.grad_scale = 2.0;

  std::vector<at::Tensor> params, grads;
  std::vector<capstan_slot> slots;
  for (int i = 0; i < 3; ++i) {
    params.push_back(at::full({4}, 10.0 * i));
    grads.push_back(at::full({4}, 1.0));
  }
  for (std::uint32_t i = 0; i < 3; ++i) {
    auto slot = grown<capstan_slot>();
    slot.param = handle(params[i]);
    slot.grad = handle(grads[i]);
    slot.numel = slot.full_numel = 4;
    slot.group = i % 2;
    slots.push_back(slot);
  }
  const capstan_slot* pointers[] = {&slots[0], &slots[1], &slots[2]};
  ASSERT_EQ(optimizer->update(optimizer.self(), pointers, 3, &step, nullptr, optimizer.error()), CAPSTAN_OK)
      << optimizer.error()->text;

  EXPECT_EQ(params[0][3].item<float>(), -1.0f);
  EXPECT_EQ(params[1][3].item<float>(), 9.5f);
  EXPECT_EQ(params[2][0].item<float>(), 19.0f);
}

TEST(GrownHost, AnOldSchedulerReadsAGrownStart) {
  Old<capstan_scheduler> scheduler("scheduler");
  const double rates[] = {1.0, 2.0}, betas[] = {0.5, 0.75};
  auto start = grown<capstan_schedule_start>();
  start.group_count = 2;
  start.base_lrs = rates;
  start.optimizer_has_betas = 1;
  start.betas = betas;
  double rate = 0;

  ASSERT_EQ(scheduler->start(scheduler.self(), &start, scheduler.error()), CAPSTAN_OK);
  ASSERT_EQ(scheduler->rate(scheduler.self(), 2, 1, 2.0, &rate, scheduler.error()), CAPSTAN_OK);
  EXPECT_EQ(rate, 2.0 * 3 + 1 + 0.5);
}

TEST(GrownHost, AnOldMonitorReadsEveryMetricOfAGrownArray) {
  Old<capstan_monitor> monitor("monitor");
  std::vector<capstan_metric> metrics;
  const std::string tags[] = {"a", "b", "c"};
  for (int i = 0; i < 3; ++i) {
    metrics.push_back(grown<capstan_metric>());
    metrics.back().tag = str(tags[i]);
    metrics.back().value = i + 0.5;
    metrics.back().x = i;
  }
  const capstan_metric* pointers[] = {&metrics[0], &metrics[1], &metrics[2]};

  ASSERT_EQ(monitor->write(monitor.self(), pointers, 3, monitor.error()), CAPSTAN_OK);
  EXPECT_THAT(lines(), ElementsAre("a=0.500000@0", "b=1.500000@1", "c=2.500000@2"));
}

TEST(GrownHost, AnOldObserverReadsAGrownEvent) {
  Old<capstan_observer> observer("observer");
  auto event = grown<capstan_event>();
  event.kind = CAPSTAN_EVENT_STEP_END;
  event.grad_norm = 1.5;
  event.skipped = 1;

  ASSERT_EQ(observer->event(observer.self(), &event, observer.error()), CAPSTAN_OK);
  EXPECT_THAT(lines(), ElementsAre("event 9 norm 1.500000 skipped 1"));
}

TEST(GrownHost, AnOldBackEndMovesEveryRangeOfAGrownArray) {
  Old<capstan_offload> store("offload");
  char from[] = "0123456789abcdef", back[17] = {};
  std::vector<capstan_range> writes, reads;
  std::vector<const capstan_range*> write_pointers, read_pointers;
  for (std::uint64_t i = 0; i < 4; ++i) {
    writes.push_back(grown<capstan_range>());
    writes.back().write = 1;
    writes.back().offset = 12 - 4 * i;
    writes.back().bytes = 4;
    writes.back().memory = from + 4 * i;
    reads.push_back(grown<capstan_range>());
    reads.back().offset = 4 * i;
    reads.back().bytes = 4;
    reads.back().memory = back + 4 * i;
  }
  for (std::size_t i = 0; i < 4; ++i) {
    write_pointers.push_back(&writes[i]);
    read_pointers.push_back(&reads[i]);
  }
  std::uint64_t ticket = 0;

  ASSERT_EQ(store->start(store.self(), write_pointers.data(), 4, &ticket, store.error()), CAPSTAN_OK);
  EXPECT_EQ(ticket, 4u);
  ASSERT_EQ(store->start(store.self(), read_pointers.data(), 4, &ticket, store.error()), CAPSTAN_OK);
  EXPECT_STREQ(back, "cdef89ab45670123");
}

TEST(GrownHost, AnOldBackEndFillsWhatItKnowsOfGrownFacts) {
  Old<capstan_offload> store("offload");
  auto facts = grown<capstan_offload_facts>();
  auto fault = grown<capstan_offload_fault>();

  ASSERT_EQ(store->facts(store.self(), &facts, store.error()), CAPSTAN_OK);
  ASSERT_EQ(store->fault(store.self(), 1, &fault, store.error()), CAPSTAN_OK);
  EXPECT_EQ(facts.struct_size, sizeof(capstan_offload_facts));
  EXPECT_EQ(facts.alignment, 8u);
  EXPECT_EQ(facts.in_flight_bytes, 64u);
  EXPECT_EQ(facts.free_bytes, 16u);
  EXPECT_EQ(fault.error, 5);
  EXPECT_EQ(fault.buffer_id, 2u);
  EXPECT_EQ(fault.done, 1u);
  EXPECT_EQ(facts.appended_number, -1e300);
  EXPECT_EQ(fault.appended_number, -1e300);
}

TEST(GrownHost, AnOldCompressionReadsAGrownPiece) {
  Old<capstan_compression> multiples("compression");
  at::Tensor input = at::full({6}, 2.0), values = at::full({6}, -1.0);
  at::Tensor codes = at::full({6}, 0, at::kChar), scales = at::full({2}, 0.0), zero_points = at::full({2}, 9, at::kInt);
  input[3] = 4.0;
  input[4] = 9.0;
  const std::int64_t shape[] = {2, 3};
  const std::string name = "fc.weight";
  auto piece = grown<capstan_compressed>();
  piece.name = str(name);
  piece.full_shape = shape;
  piece.full_dims = 2;
  piece.numel = piece.full_numel = 6;
  piece.groups = 2;
  piece.input = handle(input);
  double statistics[] = {0, 0};

  ASSERT_EQ(multiples->measure(multiples.self(), &piece, 0, statistics, multiples.error()), CAPSTAN_OK);
  EXPECT_THAT(statistics, ElementsAre(2.0, 9.0));
  statistics[1] = 4.5;
  piece.statistics = statistics;
  ASSERT_EQ(multiples->transform(multiples.self(), &piece, 1, handle(values), multiples.error()), CAPSTAN_OK);
  EXPECT_EQ(values[2].item<float>(), 2.0f);
  EXPECT_EQ(values[3].item<float>(), 4.5f);
  EXPECT_EQ(values[4].item<float>(), 9.0f);
  EXPECT_EQ(values[5].item<float>(), 0.0f);  // 2 / 4.5 is nearest to 0
  ASSERT_EQ(multiples->encode(multiples.self(), &piece, 0, handle(codes), handle(scales), handle(zero_points),
                              multiples.error()),
            CAPSTAN_OK);
  EXPECT_EQ(codes[4].item<int>(), 2);
  EXPECT_EQ(scales[1].item<float>(), 4.5f);
  EXPECT_EQ(zero_points[1].item<int>(), 0);
}

}  // namespace
