#include <signal.h>
#include <sys/resource.h>

#include <cmath>
#include <limits>

#include "sdk/conformance/component_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

namespace capstan::conformance {
namespace {

/// A monitor, opened.
class MonitorUnderTest {
 public:
  MonitorUnderTest(const Context& context, const ComponentManifest& manifest)
      : component_(context, manifest), table_(component_.vtable<capstan_monitor>()) {}

  bool open(const std::string& run_info = R"({"resumed_at": null, "world_size": 1, "config": {}})") {
    if (!CAPSTAN_HAS(table_, open)) return true;
    return may_refuse("open",
                      [&](capstan_error* error) { return table_->open(component_.self(), as_str(run_info), error); });
  }

  struct Entry {
    std::string tag;
    double value;
    std::int64_t x;
  };

  bool write(const std::vector<Entry>& entries) {
    std::vector<capstan_metric> metrics;
    for (const Entry& entry : entries) {
      metrics.push_back({sizeof(capstan_metric), as_str(entry.tag), entry.value, entry.x, 1.7e9});
    }
    std::vector<const capstan_metric*> pointers;
    for (const auto& metric : metrics) pointers.push_back(&metric);
    return may_refuse("write", [&](capstan_error* error) {
      return table_->write(component_.self(), pointers.data(), pointers.size(), error);
    });
  }

  bool takes_texts() const { return CAPSTAN_HAS(table_, text); }
  bool text(const std::string& text, std::int64_t x) {
    const std::string tag = "Train/Samples/generated_1", prompt = "To be";
    const capstan_text one{sizeof one, as_str(tag), as_str(prompt), as_str(text), x / 8, x, 1.7e9};
    const capstan_text* const pointers[] = {&one, &one};
    return may_refuse("text",
                      [&](capstan_error* error) { return table_->text(component_.self(), pointers, 2, error); });
  }

  bool flush() {
    if (!CAPSTAN_HAS(table_, flush)) return true;
    return may_refuse("flush", [&](capstan_error* error) { return table_->flush(component_.self(), error); });
  }
  bool close() {
    if (!CAPSTAN_HAS(table_, close)) return true;
    return may_refuse("close", [&](capstan_error* error) { return table_->close(component_.self(), error); });
  }

 private:
  ComponentUnderTest component_;
  const capstan_monitor* table_;
};

void check_many(const Context& context, const ComponentManifest& component) {
  MonitorUnderTest monitor(context, component);
  expect(monitor.open(), "cannot be opened in an empty folder.");
  for (int batch = 0; batch < 100; ++batch) {
    std::vector<MonitorUnderTest::Entry> entries;
    for (int i = 0; i < 1000; ++i) {
      entries.push_back({"Train/Samples/metric_" + std::to_string(i % 10), 0.5 * i, batch * 1000 + i});
    }
    expect(monitor.write(entries), "refuses plain metrics.");
  }
  expect(monitor.flush() && monitor.close(), "cannot be flushed and closed.");
}

void check_odd(const Context& context, const ComponentManifest& component) {
  MonitorUnderTest monitor(context, component);
  expect(monitor.open(), "cannot be opened in an empty folder.");
  const double infinity = std::numeric_limits<double>::infinity();
  expect(monitor.write({{"Größe/損失/🚀", 1.0, 1},
                        {"nan", std::nan(""), 1},
                        {"inf", infinity, 2},
                        {"inf", -infinity, 3},
                        {"tiny", std::numeric_limits<double>::denorm_min(), 4},
                        {"with \"quotes\", commas", 1.0, std::numeric_limits<std::int64_t>::max()}}),
         "refuses odd names or numbers.");
  expect(monitor.write({}), "refuses an empty batch.");
  expect(monitor.flush() && monitor.close(), "cannot be flushed and closed.");
}

void check_texts(const Context& context, const ComponentManifest& component) {
  MonitorUnderTest monitor(context, component);
  if (!monitor.takes_texts()) return;
  expect(monitor.open(), "cannot be opened in an empty folder.");
  std::int64_t x = 0;
  for (const std::string& text : {std::string(), std::string("lines\r\nand \"quotes\""),
                                  std::string("größe 損失 🚀 \x01\t"), std::string(1 << 20, 'a')}) {
    expect(monitor.text(text, x), "refuses a text.");
    expect(monitor.write({{"Train/Samples/lr", 0.5, x += 8}}), "refuses plain metrics beside texts.");
  }
  expect(monitor.flush() && monitor.close(), "cannot be flushed and closed.");
}

void check_full_disk(const Context& context, const ComponentManifest& component) {
  MonitorUnderTest monitor(context, component);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{64, 64};  // bytes a file
  ::setrlimit(RLIMIT_FSIZE, &none);
  if (!monitor.open()) return;
  for (int i = 0; i < 100; ++i) monitor.write({{"Train/Samples/lr", 0.5, i}, {"Train/Samples/loss", 1.5, i}});
  monitor.flush();
  monitor.close();
}

void check_close_twice(const Context& context, const ComponentManifest& component) {
  MonitorUnderTest monitor(context, component);
  expect(monitor.open(), "cannot be opened in an empty folder.");
  monitor.write({{"a", 1.0, 1}});
  monitor.close();
  monitor.close();
}

void check_never_opened(const Context& context, const ComponentManifest& component) {
  MonitorUnderTest monitor(context, component);
  monitor.close();
}

void check_resumed(const Context& context, const ComponentManifest& component) {
  for (const char* resumed_at : {"null", "64", "0"}) {
    MonitorUnderTest monitor(context, component);
    expect(monitor.open(std::string(R"({"resumed_at": )") + resumed_at + R"(, "world_size": 4, "config": {}})"),
           "cannot be opened where an earlier run left its files.");
    expect(monitor.write({{"a/b", 1.0, 96}}) && monitor.flush() && monitor.close(), "refuses plain metrics.");
  }
}

void check_write_leak(const Context& context, const ComponentManifest& component) {
  MonitorUnderTest monitor(context, component);
  expect(monitor.open(), "cannot be opened in an empty folder.");
  std::int64_t step = 0;
  expect_no_leak("write", [&] {
    monitor.write({{"Train/Samples/lr", 0.5, ++step}, {"Train/Samples/train_loss", 1.5, step}});
    monitor.flush();
  });
  monitor.close();
}

}  // namespace

Cases monitor_cases(const ComponentManifest& component) {
  const std::string prefix = "monitor/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "many", "It takes a hundred thousand metrics.", bound(check_many)},
      {prefix + "odd_metrics", "It takes names in any script, NaN, infinities and empty batches.", bound(check_odd)},
      {prefix + "texts", "It takes texts with any characters, empty ones and long ones, or none at all.",
       bound(check_texts)},
      {prefix + "full_disk", "A full disk is an error with a text.", bound(check_full_disk)},
      {prefix + "close_twice", "It may be closed twice.", bound(check_close_twice)},
      {prefix + "never_opened", "It may be closed without having been opened.", bound(check_never_opened)},
      {prefix + "resumed", "It opens again where an earlier run left off.", bound(check_resumed)},
      {prefix + "calls_leak", "Calls keep no memory, however many a run makes.", bound(check_write_leak)},
  };
}

}  // namespace capstan::conformance
