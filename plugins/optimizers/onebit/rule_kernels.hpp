#pragma once

#include <utility>
#include <vector>

#include "capstan/sdk/elements/float_rules.hpp"
#include "plugins/optimizers/onebit/compression_rules.hpp"
#include "plugins/optimizers/onebit/step_kernels.hpp"

namespace capstan::optimizers {

/// StepKernels with compression by rules, too:
///
///   each_index(count, body)    body(i)
///   table(items)               a copy on the device, until the next but one
///   each_of(bytes, body)       body(k, i) for i < bytes[k]
///   total_of(bytes, body)      body.put_total(k, sum of what body(k, i, sum) adds)
///   floats(count)              room on the device, until the next
template <class Launch>
class RuleKernels final : public StepKernels<Launch> {
 public:
  using StepKernels<Launch>::StepKernels;

  void mask(const std::uint8_t* keep, std::size_t run, std::size_t count, float* values) override {
    launch_.each_index(count, compression_rules::Mask{keep, run, values});
  }
  void compress(const std::vector<OutgoingShare>& shares) override {
    if (shares.empty()) return;
    const OutgoingShare* table = launch_.table(shares);
    float* scales = launch_.floats(shares.size());
    launch_.each_index(shares.size(), compression_rules::Scales{table, scales});
    std::vector<std::size_t> bytes;
    for (const OutgoingShare& share : shares) bytes.push_back(share.padded / 8);
    launch_.each_of(bytes, compression_rules::Compress{table, scales});
  }
  void serve(const std::vector<ArrivedShare>& shares) override {
    if (shares.empty()) return;
    std::vector<std::size_t> bytes;
    for (const ArrivedShare& share : shares) bytes.push_back((share.count + 7) / 8);
    launch_.total_of(bytes, compression_rules::Serve{launch_.table(shares)});
  }
  void expand(const ArrivedBuffer& buffer, std::size_t begin, std::size_t count, float* out) override {
    if (count == 0) return;
    launch_.each_index((begin + count + 7) / 8 - begin / 8, compression_rules::Expand{buffer, begin, count, out});
  }

 private:
  using StepKernels<Launch>::launch_;
};

}  // namespace capstan::optimizers
