#pragma once

#include <span>
#include <type_traits>
#include <vector>

#include "capstan/sdk/component.hpp"

/// Monitors: where a run's numbers go. Needs nothing of LibTorch.
///
///   class LogFile {
///    public:
///     LogFile(capstan::sdk::Host host, const capstan::sdk::Params& params);
///     void open(const capstan::sdk::Document& run_info);               // optional; before the first write
///     void write(std::span<const capstan::sdk::Metric> metrics);
///     void text(std::span<const capstan::sdk::Text> texts);            // optional; texts that the model writes
///     void flush();                                                    // optional; what was written should be seen
///     void close();                                                    // optional; last
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::monitor<LogFile, "log_file">)
///
/// The engine calls open, write, text, flush and close from one thread of its own, never from the one that trains; the
/// constructor and destructor may run on another. Whatever they throw switches the monitor off with one warning and
/// never stops training, so throw as soon as something cannot be written. A slow monitor gets larger batches; when its
/// queue is full, metrics are dropped and counted.
namespace capstan::sdk {

/// One number of a run. `tag` is valid during write() only.
struct Metric {
  std::string_view tag;  // "Train/Samples/lr"
  double value = 0;      // may be NaN or infinite
  std::int64_t x = 0;    // global samples after the step
  double wall_time = 0;  // seconds since 1970
};

/// A text that the model has written. Its texts are valid during text() only.
struct Text {
  std::string_view tag;     // "Train/Samples/generated_1": of one prompt, in every step that has samples
  std::string_view prompt;  // that the text continues; empty where it continues nothing that is a text
  std::string_view text;    // UTF-8 of any length, with any characters
  std::int64_t step = 0;    // of the run; 0 before the first
  std::int64_t x = 0;       // global samples after the step
  double wall_time = 0;     // seconds since 1970
};

template <class T>
struct MonitorThunks {
  using Self = Instance<T>;

  static capstan_status open(void* self, capstan_str run_info, capstan_error* error) {
    auto& monitor = *static_cast<Self*>(self);
    return guarded(monitor.host, error, [&] {
      if constexpr (kOpens) monitor.object.open(Document(monitor.host, run_info, error));
    });
  }

  static capstan_status write(void* self, const capstan_metric* const* metrics, std::size_t count,
                              capstan_error* error) {
    auto& monitor = *static_cast<Self*>(self);
    return guarded(monitor.host, error, [&] {
      std::vector<Metric> views;
      views.reserve(count);
      for (std::size_t i = 0; i < count; ++i) {
        views.push_back({to_view(metrics[i]->tag), metrics[i]->value, metrics[i]->x, metrics[i]->wall_time});
      }
      monitor.object.write(std::span<const Metric>(views));
    });
  }

  static capstan_status flush(void* self, capstan_error* error) {
    auto& monitor = *static_cast<Self*>(self);
    return guarded(monitor.host, error, [&] {
      if constexpr (kFlushes) monitor.object.flush();
    });
  }

  static capstan_status close(void* self, capstan_error* error) {
    auto& monitor = *static_cast<Self*>(self);
    return guarded(monitor.host, error, [&] {
      if constexpr (kCloses) monitor.object.close();
    });
  }

  static capstan_status text(void* self, const capstan_text* const* texts, std::size_t count, capstan_error* error) {
    auto& monitor = *static_cast<Self*>(self);
    return guarded(monitor.host, error, [&] {
      std::vector<Text> views;
      views.reserve(count);
      for (std::size_t i = 0; i < count; ++i) {
        const capstan_text& one = *texts[i];
        views.push_back({to_view(one.tag), to_view(one.prompt), to_view(one.text), one.step, one.x, one.wall_time});
      }
      if constexpr (kTakesTexts) monitor.object.text(std::span<const Text>(views));
    });
  }

  static constexpr bool kOpens = requires(T & t, const Document& info) { t.open(info); };
  static constexpr bool kFlushes = requires(T & t) { t.flush(); };
  static constexpr bool kCloses = requires(T & t) { t.close(); };
  static constexpr bool kTakesTexts = requires(T & t, std::span<const Text> texts) { t.text(texts); };

  static constexpr capstan_monitor kVtable = {
      sizeof(capstan_monitor),     kOpens ? &open : nullptr,   &write,
      kFlushes ? &flush : nullptr, kCloses ? &close : nullptr, kTakesTexts ? &text : nullptr};
};

/// The descriptor of monitor class T.
template <class T, Literal Type>
inline constexpr capstan_component monitor = describe<T, "monitor", Type>(&MonitorThunks<T>::kVtable);

}  // namespace capstan::sdk
