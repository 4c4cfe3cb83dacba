#pragma once

#include <cstdint>

#include "core/attention/block_layout.hpp"
#include "core/config/config.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/registry/registry.hpp"

namespace capstan::cli {

/// Makes layouts of a configuration that has attention's.
class LayoutMaker {
 public:
  LayoutMaker(const Config& config, const PluginIndex& plugins);
  /// As make_layout() of core/attention.
  BlockLayout layout(std::int64_t heads, std::int64_t tokens, bool causal) const;

 private:
  const Config& config_;
  Registry registry_;
  capstan_host host_;
  Component component_;
};

}  // namespace capstan::cli
