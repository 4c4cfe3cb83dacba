// `capstan attention show`: the layout of block-sparse attention, drawn, and what it saves.

#include <algorithm>
#include <map>
#include <vector>

#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/layout_maker.hpp"
#include "cli/program.hpp"
#include "core/errors.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

/// Blocks of a sequence whose layout still fits a terminal.
constexpr std::uint32_t kMostDrawn = 128;
/// What kernels reach of the gain that the layout allows: bench/sparse_attention.
constexpr double kReached = 0.8;

Config read(const ConfigArguments& arguments, PluginIndex& plugins) {
  ConfigContext context = config_context(arguments);
  context.world_size = 1;
  context.check_only = true;
  context.takes_steps = false;
  return load_config(config_text(arguments), context, plugins);
}

BlockLayout layout_of(const AttentionShowArguments& arguments) {
  PluginIndex plugins;
  const Config config = read(arguments.config, plugins);
  if (!config.attention) {
    throw ConfigError(config.source + ": attention is dense. Give the section sparse_attention, or capstan.attention.");
  }
  const std::int64_t length = arguments.length > 0 ? arguments.length : config.run.sequence_length.value_or(0);
  if (length <= 0) throw ConfigError("how long a sequence is is not known. Give --length.");
  return LayoutMaker(config, plugins).layout(arguments.heads, length, arguments.causal);
}

/// One text a row of blocks: `set`, `unset`, and `later` for what is set, and left out for causality.
std::vector<std::string> rows_of(const BlockLayout& layout, std::uint32_t head, char set, char unset, char later) {
  std::vector<std::string> rows(layout.blocks);
  for (std::uint32_t row = 0; row < layout.blocks; ++row) {
    for (std::uint32_t column = 0; column < layout.blocks; ++column) {
      const char of_set = layout.causal && column > row ? later : set;
      rows[row] += layout.is_set(head, row, column) ? of_set : unset;
    }
  }
  return rows;
}

/// Heads with one layout are drawn once.
std::string pictures(const BlockLayout& layout) {
  std::vector<std::pair<std::vector<std::string>, std::string>> drawn;  // rows, heads
  for (std::uint32_t head = 0; head < layout.heads; ++head) {
    auto rows = rows_of(layout, head, '#', '.', '-');
    const auto same = std::find_if(drawn.begin(), drawn.end(), [&](const auto& one) { return one.first == rows; });
    if (same == drawn.end()) {
      drawn.emplace_back(std::move(rows), std::to_string(head));
    } else {
      same->second += ", " + std::to_string(head);
    }
  }
  std::string text;
  for (const auto& [rows, heads] : drawn) {
    text += drawn.size() == 1 ? "all heads\n" : "heads " + heads + "\n";
    for (const std::string& row : rows) text += "  " + row + "\n";
  }
  return text;
}

std::string text_of(const BlockLayout& layout, bool full) {
  std::string text = grouped(layout.tokens) + " tokens: " + grouped(layout.blocks) + " blocks of " +
                     grouped(layout.block) + (layout.causal ? ", causal" : "") + "\n";
  if (layout.blocks <= kMostDrawn || full) {
    text += pictures(layout);
  } else {
    text += "not drawn: more than " + std::to_string(kMostDrawn) + " blocks; --full draws them\n";
  }
  BlockLayout computed = layout;
  if (computed.drop_later() && layout.blocks <= kMostDrawn) text += "'-' is set, and above the diagonal: left out\n";
  const double density = computed.density();
  text += "density " + fixed(100 * density, 1) + " %: " + grouped(computed.set_cells()) + " of the " +
          grouped(computed.dense_cells()) + " cells that dense " + (layout.causal ? "causal " : "") +
          "attention computes\n";
  if (density == 0) return text;
  return text + "expected gain: attention " + fixed(kReached / density, 1) + " to " + fixed(1 / density, 1) +
         " times as fast as dense\n";
}

Json json_of(const BlockLayout& layout) {
  Json json = Json::object();
  json["tokens"] = layout.tokens;
  json["block"] = static_cast<std::int64_t>(layout.block);
  json["blocks"] = static_cast<std::int64_t>(layout.blocks);
  json["causal"] = layout.causal;
  BlockLayout computed = layout;
  computed.drop_later();
  json["set_cells"] = computed.set_cells();
  json["dense_cells"] = computed.dense_cells();
  json["density"] = computed.density();
  json["layout"] = Json::array();
  for (std::uint32_t head = 0; head < layout.heads; ++head) {
    Json rows = Json::array();
    for (const std::string& row : rows_of(layout, head, '1', '0', '1')) rows.push_back(row);
    json["layout"].push_back(rows);
  }
  return json;
}

}  // namespace

int attention_show(const AttentionShowArguments& arguments) {
  const BlockLayout layout = layout_of(arguments);
  print(arguments.json ? json_of(layout).dump() + "\n" : text_of(layout, arguments.full));
  return 0;
}

}  // namespace capstan::cli
