#include "sdk/conformance/piece_functions.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/errors.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan::conformance {
namespace {

constexpr std::uint64_t kBlock = 32768;

at::Tensor& piece_tensor(capstan_tensor handle) { return *reinterpret_cast<at::Tensor*>(handle); }

capstan_status sum_groups(void*, const capstan_compressed* const* pieces, std::size_t count, const std::uint64_t* sizes,
                          const double* const* partials, double* const* totals, capstan_error* error) {
  return guarded(error, [&] {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t numel = pieces[i]->full_numel;
      if (sizes[i] == 0 || numel % sizes[i] != 0) throw PluginError("sum_groups: groups that do not fill a parameter.");
      std::fill_n(totals[i], numel / sizes[i], 0.0);
      std::size_t segment = 0;
      for (std::uint64_t at = 0; at < pieces[i]->numel;) {
        totals[i][at / sizes[i]] += partials[i][segment++];
        at = std::min({(at / sizes[i] + 1) * sizes[i], (at / kBlock + 1) * kBlock, numel});
      }
    }
  });
}

/// Of one set: sorted whole.
float select(const std::vector<std::size_t>& parts, const capstan_tensor* values, std::uint64_t k,
             const capstan_tensor* masks) {
  struct Place {
    float value;
    std::size_t part;
    std::int64_t element;
  };
  std::vector<Place> all;
  for (const std::size_t p : parts) {
    const at::Tensor& of = piece_tensor(values[p]);
    for (std::int64_t i = 0; i < of.numel(); ++i) all.push_back({of.const_data_ptr<float>()[i], p, i});
    if (masks != nullptr && masks[p] != nullptr) piece_tensor(masks[p]).zero_();
  }
  if (k > all.size()) throw PluginError("select_largest: more than there are.");
  std::stable_sort(all.begin(), all.end(), [](const Place& a, const Place& b) { return a.value > b.value; });
  for (std::uint64_t i = 0; i < k; ++i) {
    if (masks == nullptr || masks[all[i].part] == nullptr) continue;
    piece_tensor(masks[all[i].part]).mutable_data_ptr<std::uint8_t>()[all[i].element] = 1;
  }
  return k == 0 ? std::numeric_limits<float>::infinity() : all[k - 1].value;
}

capstan_status select_largest(void*, const capstan_tensor* parts, const std::uint32_t* sets, std::size_t part_count,
                              const std::uint64_t* k, std::size_t set_count, float* thresholds,
                              const capstan_tensor* masks, capstan_error* error) {
  return guarded(error, [&] {
    for (std::size_t s = 0; s < set_count; ++s) {
      std::vector<std::size_t> of_set;
      for (std::size_t p = 0; p < part_count; ++p) {
        if (sets[p] == s) of_set.push_back(p);
      }
      thresholds[s] = select(of_set, parts, k[s], masks);
    }
  });
}

capstan_status gather_piece(void*, const capstan_compressed*, capstan_tensor part, capstan_tensor whole,
                            capstan_error* error) {
  return guarded(error, [&] { piece_tensor(whole).copy_(piece_tensor(part)); });
}

}  // namespace

void lend_piece_functions(capstan_host& host) {
  host.sum_groups = sum_groups;
  host.select_largest = select_largest;
  host.gather_piece = gather_piece;
}

}  // namespace capstan::conformance
