#include "core/monitor/monitor_host.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/log.hpp"

namespace capstan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A monitor that remembers what it was told, and fails or waits where a test says so.
struct FakeMonitor {
  std::mutex mutex;
  std::condition_variable released;
  bool blocked = false;
  std::vector<std::string> calls;
  std::vector<std::pair<std::string, double>> metrics;
  std::vector<std::string> texts;
  std::string fail_in;
  std::thread::id thread, destroyed_by;

  capstan_status enter(const std::string& call, capstan_error* error) {
    std::unique_lock lock(mutex);
    released.wait(lock, [&] { return !blocked; });
    if (thread == std::thread::id()) thread = std::this_thread::get_id();
    EXPECT_EQ(thread, std::this_thread::get_id());
    calls.push_back(call);
    released.notify_all();
    if (call != fail_in) return CAPSTAN_OK;
    error->text = "No space left on device";
    return CAPSTAN_FAILED;
  }
  void wait_for(const std::string& call) {
    std::unique_lock lock(mutex);
    released.wait(lock, [&] { return !calls.empty() && calls.back() == call; });
  }
  void block(bool on) {
    const std::lock_guard lock(mutex);
    blocked = on;
    released.notify_all();
  }
};

FakeMonitor& monitor(void* self) { return *static_cast<FakeMonitor*>(self); }

const capstan_monitor kTable = {
    sizeof(capstan_monitor),
    [](void* self, capstan_str, capstan_error* error) { return monitor(self).enter("open", error); },
    [](void* self, const capstan_metric* const* metrics, std::size_t count, capstan_error* error) {
      const capstan_status status = monitor(self).enter("write", error);
      const std::lock_guard lock(monitor(self).mutex);
      for (std::size_t i = 0; i < count; ++i) {
        monitor(self).metrics.emplace_back(std::string(as_view(metrics[i]->tag)), metrics[i]->value);
      }
      return status;
    },
    [](void* self, capstan_error* error) { return monitor(self).enter("flush", error); },
    [](void* self, capstan_error* error) { return monitor(self).enter("close", error); },
    [](void* self, const capstan_text* const* texts, std::size_t count, capstan_error* error) {
      const capstan_status status = monitor(self).enter("text", error);
      const std::lock_guard lock(monitor(self).mutex);
      for (std::size_t i = 0; i < count; ++i) {
        monitor(self).texts.push_back(std::string(as_view(texts[i]->tag)) + "|" +
                                      std::string(as_view(texts[i]->prompt)) + "|" +
                                      std::string(as_view(texts[i]->text)) + "|" + std::to_string(texts[i]->step) +
                                      "|" + std::to_string(texts[i]->x));
      }
      return status;
    }};

/// As it was before monitors took texts.
const capstan_monitor kTableWithoutTexts = [] {
  capstan_monitor table = kTable;
  table.struct_size = offsetof(capstan_monitor, text);
  return table;
}();

const capstan_component kDescriptor = {sizeof(capstan_component),
                                       {"monitor", 7},
                                       {"fake", 4},
                                       nullptr,
                                       [](void* self) { monitor(self).destroyed_by = std::this_thread::get_id(); },
                                       &kTable};
const capstan_component kOlderDescriptor = [] {
  capstan_component older = kDescriptor;
  older.vtable = &kTableWithoutTexts;
  return older;
}();

/// Kept when the host says that it waits.
std::promise<void> waiting;

class MonitorHostTest : public testing::Test {
 protected:
  MonitorHostTest() { manifest_.type = "fake"; }

  std::unique_ptr<MonitorHost> host(const std::vector<FakeMonitor*>& monitors, MonitorPatience patience = {}) {
    std::vector<Component> components;
    for (FakeMonitor* fake : monitors) components.emplace_back(&kDescriptor, fake, ComponentRef{&plugin_, &manifest_});
    return std::make_unique<MonitorHost>(std::move(components), Json::object(), patience);
  }

  IndexedPlugin plugin_;
  ComponentManifest manifest_;
};

TEST_F(MonitorHostTest, OpensWritesFlushesAndClosesOnceInOrder) {
  FakeMonitor fake;
  auto monitors = host({&fake});
  monitors->write({{"loss", 1.5, 8}, {"lr", 0.1, 8}});
  EXPECT_TRUE(monitors->flush());
  monitors.reset();
  EXPECT_THAT(fake.calls, ElementsAre("open", "write", "flush", "flush", "close"));
  EXPECT_THAT(fake.metrics, ElementsAre(std::pair("loss", 1.5), std::pair("lr", 0.1)));
}

TEST_F(MonitorHostTest, HandsTextsOverInOrderWithMetrics) {
  FakeMonitor fake;
  auto monitors = host({&fake});
  monitors->write({{"loss", 1.5, 8}, {"lr", 0.1, 8}});
  monitors->write_texts({{"generated_1", "To be", " or\nnot", 1, 8}, {"generated_2", "", "x", 1, 8}});
  monitors->write({{"loss", 1.25, 16}});
  EXPECT_TRUE(monitors->flush());
  monitors.reset();
  EXPECT_THAT(fake.calls, ElementsAre("open", "write", "text", "write", "flush", "flush", "close"));
  EXPECT_THAT(fake.texts, ElementsAre("generated_1|To be| or\nnot|1|8", "generated_2||x|1|8"));
}

TEST_F(MonitorHostTest, SwitchesAMonitorThatFailsInATextOffWithOneWarning) {
  FakeMonitor failing, healthy;
  failing.fail_in = "text";
  testing::internal::CaptureStderr();
  auto monitors = host({&failing, &healthy});
  for (int i = 0; i < 3; ++i) {
    monitors->write_texts({{"generated_1", "a", "b", i, i}});
    EXPECT_TRUE(monitors->flush());
  }
  monitors.reset();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("monitor 'fake', text: No space left on device. It is switched off for the rest of the "
                              "run; training goes on."));
  EXPECT_EQ(said.find("switched off"), said.rfind("switched off"));
  EXPECT_EQ(failing.texts.size(), 1u);
  EXPECT_EQ(healthy.texts.size(), 3u);
}

TEST_F(MonitorHostTest, SaysOnceOfAnOlderMonitorThatItTakesNoTexts) {
  FakeMonitor older;
  testing::internal::CaptureStderr();
  std::vector<Component> components;
  components.emplace_back(&kOlderDescriptor, &older, ComponentRef{&plugin_, &manifest_});
  auto monitors = std::make_unique<MonitorHost>(std::move(components), Json::object());
  for (int i = 0; i < 3; ++i) {
    monitors->write_texts({{"generated_1", "a", "b", i, i}});
    monitors->write({{"loss", 1.0, i}});
    EXPECT_TRUE(monitors->flush());
  }
  monitors.reset();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("monitor 'fake': takes no texts, so that the samples of capstan.run.sample_every are not "
                              "in it."));
  EXPECT_EQ(said.find("takes no texts"), said.rfind("takes no texts"));
  EXPECT_EQ(older.metrics.size(), 3u);
}

TEST_F(MonitorHostTest, DestroysAMonitorThatHasClosedInItsOwnThreadBeforeItIsGone) {
  for (int i = 0; i < 20; ++i) {
    FakeMonitor fake;
    host({&fake}).reset();
    EXPECT_EQ(fake.destroyed_by, std::this_thread::get_id());
  }
}

TEST_F(MonitorHostTest, WritesEverythingThatWasQueuedBeforeItCloses) {
  FakeMonitor fake;
  auto monitors = host({&fake});
  for (int i = 0; i < 10'000; ++i) monitors->write({{"loss", static_cast<double>(i), i}});
  monitors.reset();
  ASSERT_EQ(fake.metrics.size(), 10'000u);
  EXPECT_EQ(fake.metrics.back().second, 9'999.0);
}

TEST_F(MonitorHostTest, SwitchesAFailingMonitorOffWithOneWarningAndGoesOn) {
  FakeMonitor failing, healthy;
  failing.fail_in = "write";
  testing::internal::CaptureStderr();
  auto monitors = host({&failing, &healthy});
  for (int i = 0; i < 3; ++i) {
    monitors->write({{"loss", 1.0, i}});
    EXPECT_TRUE(monitors->flush());
  }
  monitors.reset();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "capstan: warning: monitor 'fake', write: No space left on device. It is switched off for the rest of the "
            "run; training goes on.\n");
  EXPECT_THAT(failing.calls, ElementsAre("open", "write"));
  EXPECT_EQ(healthy.metrics.size(), 3u);
}

TEST_F(MonitorHostTest, NeverWaitsForAMonitorThatHangs) {
  FakeMonitor hanging;
  hanging.block(true);
  auto monitors = host({&hanging});
  const std::vector<Metric> metrics(1000, {"loss", 1.0, 1});
  for (int i = 0; i < 70; ++i) monitors->write(metrics);  // more than its queue holds
  EXPECT_FALSE(monitors->flush(/*deadline_ms=*/10));
  EXPECT_GT(monitors->dropped(), 0);
  hanging.block(false);
  EXPECT_TRUE(monitors->flush());
  EXPECT_EQ(hanging.metrics.size() + static_cast<std::size_t>(monitors->dropped()), 70'000u);
  testing::internal::CaptureStderr();
  monitors.reset();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("metrics were dropped; it is too slow."));
}

TEST_F(MonitorHostTest, SaysThatItWaitsForAMonitorAtTheEndAndWhenItGivesUp) {
  FakeMonitor hanging;
  hanging.block(true);
  testing::internal::CaptureStderr();
  host({&hanging}, {.say_after = std::chrono::milliseconds(1), .give_up = std::chrono::milliseconds(20)}).reset();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "capstan: monitor 'fake': is still at work; waiting for it, 0.02 s at most.\n"
            "capstan: warning: monitor 'fake': did not close within 0.02 s; its last metrics may be lost.\n");
  hanging.block(false);
  hanging.wait_for("close");
}

TEST_F(MonitorHostTest, SaysWhichFunctionHangsWhileItDoesAndThatItCameBack) {
  static FakeMonitor hanging;
  hanging.block(true);
  plugin_.file = "/opt/libfake.so";
  testing::internal::CaptureStderr();
  log::set_before_line([] { hanging.block(false); });  // so it comes back only once something was said
  auto monitors = host({&hanging}, {.hangs = std::chrono::milliseconds(1)});
  hanging.wait_for("open");
  monitors.reset();
  log::set_before_line(nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said,
              HasSubstr("capstan: warning: monitor 'fake' (/opt/libfake.so), open: has not come back for 0.001 s. "
                        "Training goes on; the monitor's metrics wait.\n"));
  EXPECT_THAT(said, HasSubstr("capstan: monitor 'fake', open: came back after "));
}

TEST_F(MonitorHostTest, LosesNothingOfAMonitorThatIsSlowToOpen) {
  FakeMonitor slow;
  slow.block(true);
  testing::internal::CaptureStderr();
  auto monitors = host({&slow}, {.say_after = std::chrono::milliseconds(1)});
  monitors->write({{"loss", 1.5, 8}});
  log::set_before_line([] { waiting.set_value(); });
  std::thread opens([&] {
    waiting.get_future().wait();
    slow.block(false);
  });
  monitors.reset();
  opens.join();
  log::set_before_line(nullptr);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "capstan: monitor 'fake': is still at work; waiting for it, 60 s at most.\n");
  EXPECT_THAT(slow.calls, ElementsAre("open", "write", "flush", "close"));
}

TEST_F(MonitorHostTest, LetsOtherMonitorsGoOnWhileOneHangs) {
  FakeMonitor hanging, healthy;
  hanging.block(true);
  auto monitors = host({&hanging, &healthy});
  monitors->write({{"loss", 1.0, 1}});
  EXPECT_FALSE(monitors->flush(/*deadline_ms=*/1000));
  {
    const std::lock_guard lock(healthy.mutex);
    EXPECT_EQ(healthy.metrics.size(), 1u);
  }
  hanging.block(false);
}

}  // namespace
}  // namespace capstan
