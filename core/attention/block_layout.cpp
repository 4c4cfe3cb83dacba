#include "core/attention/block_layout.hpp"

#include <algorithm>

#include "core/errors.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

/// Bytes of cells that are no layout any more but a mistake: 16 GiB.
constexpr std::int64_t kMostCells = std::int64_t{1} << 34;

/// What a layout fails with is about the configuration, not about the plugin.
template <class Call>
void call_layout(PluginFunction function, const std::string& where, Call&& call) {
  try {
    call_plugin(function, where, std::forward<Call>(call));
  } catch (const PluginError& error) {
    throw ConfigError(error.what());
  }
}

}  // namespace

std::int64_t BlockLayout::set_cells() const { return std::count(cells.begin(), cells.end(), 1); }

bool BlockLayout::drop_later() {
  bool any = false;
  for (std::size_t row = 0; causal && row < std::size_t{heads} * blocks; ++row) {
    const auto later = cells.begin() + static_cast<std::ptrdiff_t>(row * blocks + row % blocks + 1);
    const auto end = cells.begin() + static_cast<std::ptrdiff_t>((row + 1) * blocks);
    any |= std::find(later, end, 1) != end;
    std::fill(later, end, 0);
  }
  return any;
}

std::int64_t BlockLayout::dense_cells() const {
  const std::int64_t n = blocks;
  return heads * (causal ? n * (n + 1) / 2 : n * n);
}

double BlockLayout::scores() const {
  // The last block may have fewer tokens than the others.
  const double short_by = static_cast<double>(std::int64_t{blocks} * block - tokens), whole = block;
  double sum = 0;
  for (std::uint32_t head = 0; head < heads; ++head) {
    for (std::uint32_t row = 0; row < blocks; ++row) {
      double keys = 0;
      for (std::uint32_t column = 0; column < blocks; ++column) {
        if (is_set(head, row, column)) keys += whole - (column + 1 == blocks ? short_by : 0);
      }
      sum += keys * (whole - (row + 1 == blocks ? short_by : 0));
    }
  }
  return sum;
}

BlockLayout make_layout(const Component& component, const std::string& where, std::int64_t heads, std::int64_t tokens,
                        bool causal, std::uint64_t seed) {
  const auto* table = component.vtable<capstan_attention>();
  const std::string name = where + ": attention '" + component.manifest().type + "'";
  if (!CAPSTAN_HAS(table, facts) || !CAPSTAN_HAS(table, layout)) {
    throw ConfigError(name + " has no layouts: it computes those of others. Name it in capstan.attention.kernel.");
  }
  capstan_attention_facts facts{};
  facts.struct_size = sizeof facts;
  call_layout(component.function("facts"), name,
              [&](capstan_error* error) { return table->facts(component.self(), &facts, error); });
  if (facts.block == 0) throw PluginError(name + ": gives blocks of 0 tokens. Ask the plugin's author.");
  BlockLayout layout;
  layout.heads = static_cast<std::uint32_t>(heads);
  layout.block = facts.block;
  layout.tokens = tokens;
  layout.says_so = facts.causal != 0;
  layout.causal = causal || layout.says_so;
  if (tokens < facts.block) {
    throw ConfigError(name + ": a block has " + std::to_string(facts.block) + " tokens, and a sequence " +
                      std::to_string(tokens) + ". Lower 'block', or train on longer sequences.");
  }
  const std::int64_t blocks = (tokens + facts.block - 1) / facts.block;
  if (heads > kMostCells / blocks / blocks) {
    throw ConfigError(name + ": " + std::to_string(heads) + " heads of " + std::to_string(blocks) +
                      " blocks are too many cells. Raise 'block'.");
  }
  layout.blocks = static_cast<std::uint32_t>(blocks);
  layout.cells.assign(static_cast<std::size_t>(heads * blocks * blocks), 0);
  capstan_attention_shape shape{};
  shape.struct_size = sizeof shape;
  shape.heads = layout.heads;
  shape.blocks = layout.blocks;
  shape.seed = seed;
  call_layout(component.function("layout"), name, [&](capstan_error* error) {
    return table->layout(component.self(), &shape, layout.cells.data(), error);
  });
  if (std::any_of(layout.cells.begin(), layout.cells.end(), [](std::uint8_t cell) { return cell > 1; })) {
    throw PluginError(name + ": fills a cell with something else than 0 and 1. Ask the plugin's author.");
  }
  return layout;
}

}  // namespace capstan
