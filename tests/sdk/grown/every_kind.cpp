// Components that show what reached them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "capstan/sdk/compression.hpp"
#include "capstan/sdk/monitor.hpp"
#include "capstan/sdk/observer.hpp"
#include "capstan/sdk/offload.hpp"
#include "capstan/sdk/optimizer.hpp"
#include "capstan/sdk/scheduler.hpp"

namespace {

namespace sdk = capstan::sdk;

/// w -= lr * scale * g
class Descent {
 public:
  Descent(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    for (const sdk::Slot slot : slots) {
      const double rate = step.group(slot.group()).number("lr") * step.grad_scale();
      const auto* gradient = static_cast<const float*>(slot.grad().data);
      for (std::size_t i = 0; i < slot.numel(); ++i) slot.param()[i] -= static_cast<float>(rate) * gradient[i];
    }
  }
};

class Ramp {
 public:
  Ramp(const sdk::Host&, const sdk::Params&) {}
  void start(const sdk::ScheduleStart& start) { beta1_ = start.betas().beta1; }
  double rate(std::int64_t update_index, std::uint32_t group, double base_lr) const {
    return base_lr * static_cast<double>(update_index + 1) + group + beta1_;
  }

 private:
  double beta1_ = 0;
};

class Log {
 public:
  Log(const sdk::Host& host, const sdk::Params&) : host_(host) {}
  void write(std::span<const sdk::Metric> metrics) {
    for (const auto& metric : metrics) {
      host_.info(std::string(metric.tag) + "=" + std::to_string(metric.value) + "@" + std::to_string(metric.x));
    }
  }

 private:
  sdk::Host host_;
};

class Watch {
 public:
  Watch(const sdk::Host& host, const sdk::Params&) : host_(host) {}
  void event(const capstan_event& event) {
    host_.info("event " + std::to_string(event.kind) + " norm " + std::to_string(event.grad_norm) + " skipped " +
               std::to_string(event.skipped));
  }

 private:
  sdk::Host host_;
};

/// One buffer of 16 bytes.
class Store {
 public:
  Store(const sdk::Host&, const sdk::Params&) {}
  void register_buffer(std::uint64_t, std::uint64_t) {}
  std::uint64_t start(std::span<const sdk::Range> ranges) {
    for (const sdk::Range& range : ranges) {
      char* const inside = bytes_ + range.offset;
      std::memcpy(range.write != 0 ? inside : range.memory, range.write != 0 ? range.memory : inside, range.bytes);
    }
    return ranges.size();
  }
  bool poll(std::uint64_t) { return true; }
  sdk::OffloadFacts facts() const { return {sizeof(sdk::OffloadFacts), 8, 64, 16}; }
  sdk::OffloadFault fault(std::uint64_t) const { return {sizeof(sdk::OffloadFault), 5, 1, 2, 3, 4, 1}; }

 private:
  char bytes_[16] = {};
};

/// Whole multiples of a group's largest value.
class Multiples {
 public:
  Multiples(const sdk::Host&, const sdk::Params&) {}
  sdk::CompressionPlan plan(const sdk::ModelTable& model) const {
    return {{{model.modules.at(0).full_name("weight"), 2, {{sdk::Join::kMax}}, 8, false}}, {}, {}, {}};
  }
  void measure(const sdk::CompressedPiece& piece, unsigned, double* partials) const {
    piece.for_each_segment([&](std::size_t segment, std::size_t, std::size_t begin, std::size_t end) {
      partials[segment] = *std::max_element(piece.input().begin() + begin, piece.input().begin() + end);
    });
  }
  void transform(const sdk::CompressedPiece& piece, std::int64_t, std::span<float> values) const {
    for_each(piece, [&](std::size_t i, std::size_t, float scale, float code) { values[i] = code * scale; });
  }
  void encode(const sdk::CompressedPiece& piece, std::int64_t, const sdk::Codes& to) const {
    for_each(piece, [&](std::size_t i, std::size_t group, float scale, float code) {
      to.scales[group] = scale;
      to.codes[i] = static_cast<std::int8_t>(code);
    });
  }

 private:
  template <class Use>
  void for_each(const sdk::CompressedPiece& piece, Use&& use) const {
    piece.for_each_group([&](std::size_t group, std::size_t begin, std::size_t end) {
      const auto scale = static_cast<float>(piece.statistics(group, 1)[0]);
      for (std::size_t i = begin; i < end; ++i) use(i, group, scale, std::nearbyint(piece.input()[i] / scale));
    });
  }
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<Descent, "Descent">, &capstan::sdk::scheduler<Ramp, "Ramp">,
               &capstan::sdk::monitor<Log, "Log">, &capstan::sdk::observer<Watch, "Watch">,
               &capstan::sdk::offload<Store, "Store">, &capstan::sdk::compression<Multiples, "Multiples">)
