// Every key of the tables, in every stage, with one process and with two, and beside each other key of its section:
// something takes its value, or a problem names it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/config/language/language.hpp"
#include "core/schema/value.hpp"
#include "tests/core/config/config_cases.hpp"
#include "tests/core/config/key_rows.hpp"

namespace capstan::testing {
namespace {

namespace fs = std::filesystem;

/// The plugins that come with Capstan, by their manifests, to which the build adds the lines before.
const PluginIndex& bundled_plugins() {
  static const PluginIndex index = [] {
    std::vector<IndexedPlugin> plugins;
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(CAPSTAN_TEST_SOURCE_DIR) / "plugins")) {
      if (entry.path().filename() != "plugin.toml") continue;
      const std::string text = "abi.plugin = \"1.0\"\nabi.torch.tier = \"none\"\n" + read_text(entry.path());
      plugins.push_back({entry.path(), PluginManifest::parse(text, entry.path().string())});
    }
    std::sort(plugins.begin(), plugins.end(), [](const auto& a, const auto& b) { return a.file < b.file; });
    return PluginIndex::of(std::move(plugins));
  }();
  return index;
}

void merge(Json& into, const Json& from) {
  for (const auto& [key, value] : from.as_object()) {
    Json* present = into.find(key);
    const bool lists = present && present->is_array() && value.is_array() && present->size() == 1 && value.size() == 1;
    if (present && present->is_object() && value.is_object()) {
      merge(*present, value);
    } else if (lists && value.as_array()[0].is_object()) {
      merge(present->as_array()[0], value.as_array()[0]);
    } else {
      into[key] = value;
    }
  }
}

/// What a section needs before any of its keys can act. What lies outside of the section may be there too.
const std::vector<std::pair<std::string, const char*>>& frames() {
  static const std::vector<std::pair<std::string, const char*>> kFrames = {
      {"fp16", R"({"fp16": {"enabled": true}})"},
      {"bf16", R"({"bf16": {"enabled": true}})"},
      {"amp", R"({"amp": {"enabled": true}})"},
      {"torch_autocast", R"({"bf16": {"enabled": true}, "torch_autocast": {"enabled": true}})"},
      {"data_types", R"({"bf16": {"enabled": true}})"},
      {"zero_optimization.offload_optimizer",
       R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}})"},
      {"zero_optimization.offload_param",
       R"({"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/tmp"}}})"},
      {"zero_optimization.zeropp_loco_param", R"({"zero_optimization": {"zero_quantized_gradients": true}})"},
      {"aio", R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}})"},
      {"activation_checkpointing", R"({"activation_checkpointing": {"profile": true}})"},
      {"sparse_attention", R"({"sparse_attention": {"mode": "fixed"}})"},
      {"flops_profiler", R"({"flops_profiler": {"enabled": true}})"},
      {"comms_logger", R"({"comms_logger": {"enabled": true}})"},
      {"autotuning", R"({"autotuning": {"enabled": true}})"},
      {"tensorboard", R"({"tensorboard": {"enabled": true}})"},
      {"wandb", R"({"wandb": {"enabled": true}})"},
      {"csv_monitor", R"({"csv_monitor": {"enabled": true}})"},
      {"comet", R"({"comet": {"enabled": true}})"},
      {"progressive_layer_drop", R"({"progressive_layer_drop": {"enabled": true}})"},
      {"elasticity", R"({"train_batch_size": null, "elasticity": {"enabled": true, "max_train_batch_size": 256,
                         "micro_batch_sizes": [2, 4]}})"},
      {"quantize_training.eigenvalue",
       R"({"fp16": {"enabled": true}, "quantize_training": {"eigenvalue": {"enabled": true, "layer_name": "blocks",
           "layer_num": 2}}, "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true},
           "different_groups": {"x": {"params": {"start_bits": 8, "target_bits": 4}}}}}})"},
      {"curriculum_learning",
       R"({"curriculum_learning": {"enabled": true, "curriculum_type": "seqlen", "min_difficulty": 8,
           "max_difficulty": 64, "schedule_type": "fixed_linear",
           "schedule_config": {"total_curriculum_step": 10, "difficulty_step": 8}}})"},
      {"data_efficiency.data_sampling",
       R"({"data_efficiency": {"enabled": true, "data_sampling": {"enabled": true, "curriculum_learning":
           {"enabled": true, "data_cluster_path": "c", "curriculum_metrics": {"x": {"index_to_sample_path": "s",
           "index_to_metric_path": "m", "difficulty_type": "value", "clustering_type": "schedule_based",
           "min_difficulty": 8, "max_difficulty": 64, "schedule_type": "fixed_linear",
           "schedule_config": {"total_curriculum_step": 10, "difficulty_step": 8}}}}}}})"},
      {"data_efficiency.data_routing",
       R"({"data_efficiency": {"enabled": true, "data_routing": {"enabled": true, "random_ltd": {"enabled": true,
           "total_layer_num": 4, "random_ltd_layer_num": 2, "random_ltd_layer_id": [1, 2], "model_mask_name": null,
           "model_type": "decoder", "hidden_state_order": "batch_seq_dim", "random_ltd_schedule": {"min_value": 8,
           "max_value": 64, "schedule_type": "fixed_linear", "schedule_config": {"require_steps": 10,
           "seq_per_step": 8}}}}}})"},
      {"compression_training.layer_reduction",
       R"({"compression_training": {"layer_reduction": {"enabled": true, "keep_number_layer": 1,
           "module_name_prefix": "blocks", "teacher_layer": [0]}}})"},
      {"compression_training.weight_quantization",
       R"({"fp16": {"enabled": true}, "compression_training": {"weight_quantization": {"shared_parameters":
           {"enabled": true}, "different_groups": {"x": {"params": {"start_bits": 8, "target_bits": 4},
           "modules": ["mlp"]}}}}})"},
      {"compression_training.activation_quantization",
       R"({"compression_training": {"activation_quantization": {"shared_parameters": {"enabled": true},
           "different_groups": {"x": {"params": {"bits": 8}, "modules": ["mlp"]}}}}})"},
      {"compression_training.sparse_pruning",
       R"({"compression_training": {"sparse_pruning": {"shared_parameters": {"enabled": true, "method": "l1"},
           "different_groups": {"x": {"params": {"dense_ratio": 0.5}, "modules": ["mlp"]}}}}})"},
      {"compression_training.row_pruning",
       R"({"compression_training": {"row_pruning": {"shared_parameters": {"enabled": true, "method": "l1"},
           "different_groups": {"x": {"params": {"dense_ratio": 0.5}, "modules": ["mlp"],
           "related_modules": [["proj"]]}}}}})"},
      {"compression_training.head_pruning",
       R"({"compression_training": {"head_pruning": {"shared_parameters": {"enabled": true, "num_heads": 4},
           "different_groups": {"x": {"params": {"dense_ratio": 0.5}, "modules": ["attn"],
           "related_modules": [["q"]]}}}}})"},
      {"compression_training.channel_pruning",
       R"({"compression_training": {"channel_pruning": {"shared_parameters": {"enabled": true, "method": "l1"},
           "different_groups": {"x": {"params": {"dense_ratio": 0.5}, "modules": ["conv"],
           "related_modules": [["next"]]}}}}})"},
      {"optimizer", R"({"optimizer": {"type": "SGD"}})"},
      {"scheduler", R"({"optimizer": {"type": "SGD"}, "scheduler": {"type": "WarmupLR"}})"},
      {"capstan.parameter_groups",
       R"({"optimizer": {"type": "SGD"}, "capstan": {"parameter_groups": [{"match": ["bias"], "params": {}}]}})"},
      {"capstan.recompute", R"({"capstan": {"recompute": {}}})"},
      {"capstan.data.dataset", R"({"capstan": {"data": {"dataset": {"type": "tokens"}}}})"},
      {"capstan.data", R"({"capstan": {"data": {"path": ["a.txt"], "eval_path": ["b.txt"]}}})"},
      {"capstan.attention", R"({"sparse_attention": {"mode": "fixed"}})"},
  };
  return kFrames;
}

/// A run in which a key stands: a document, and how many processes there are.
struct Setting {
  int stage, world;
  Json document;
};

bool lies_in(std::string_view path, std::string_view section) {
  if (!path.starts_with(section)) return false;
  return path.size() == section.size() || path[section.size()] == '.' || path[section.size()] == '[';
}

Setting setting_for(const std::string& path, int stage, int world) {
  Setting made{stage, world, Json::parse(R"({"train_batch_size": 8, "gradient_clipping": 1})")};
  merge(made.document, document_with("zero_optimization.stage", Json(stage)));
  for (const auto& [section, frame] : frames()) {
    if (lies_in(path, section)) merge(made.document, Json::parse(frame));
  }
  return made;
}

bool has_word(std::string_view text, std::string_view word) {
  const auto is_letter = [&](std::size_t at) {
    return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
  };
  for (auto at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    if (!(at > 0 && is_letter(at - 1)) && !is_letter(at + word.size())) return true;
  }
  return false;
}

/// Whether a problem stands at the key or below it, or at a section around it of which it speaks as a whole, or lists
/// the key, or the object that it lies in, among others.
bool is_named(const Problems& problems, const std::string& path) {
  const std::string top = path.substr(0, path.find('.'));
  std::vector<std::string> names = {path.substr(path.rfind('.') + 1)};
  if (const auto dot = path.rfind('.'); dot != std::string::npos && dot > top.size()) {
    names.push_back(path.substr(top.size() + 1, dot - top.size() - 1));
  }
  return std::any_of(problems.all().begin(), problems.all().end(), [&](const Problem& problem) {
    if (lies_in(problem.path, path)) return true;
    for (const char* whole : {"has no effect", "is checked, but", "is off, for want", "is not used"}) {
      if (!problem.path.empty() && lies_in(path, problem.path) && problem.message.starts_with(whole)) return true;
    }
    // An error about a section that nothing carries out stands at the section's switch.
    if (constexpr std::string_view kSection = "the section '"; problem.message.starts_with(kSection)) {
      const std::string section = problem.message.substr(kSection.size());
      if (lies_in(path, section.substr(0, section.find('\'')))) return true;
    }
    if (!lies_in(problem.path, top)) return false;
    const bool tells =
        problem.message.find("effect") != std::string::npos || problem.severity == Problem::Severity::kError;
    return tells && std::any_of(names.begin(), names.end(),
                                [&](const std::string& name) { return has_word(problem.message, name); });
  });
}

/// Whether the part of the core that the key's row names takes it in such a run. KeyTables' test looks for the part in
/// the sources.
bool acts_by_row(const SchemaNode& node, const Setting& setting) {
  const std::string_view reader = node.key->reader;
  if (node.has(kNoEffect) || reader.empty() || reader == "the checks of other keys") return false;
  const bool away = setting.document.find("zero_optimization")->find("offload_param") != nullptr;
  if (node.has(kSeveral) && setting.world == 1) return false;
  if (node.has(kStage3)) return setting.stage == 3 && (setting.world > 1 || away);
  return true;
}

/// A key of the tables that is not a section, as documents have it.
struct Row {
  std::string path, section;  // "x" and [0] for names and elements
  const SchemaNode* node;
  std::vector<Json> values;  // two that differ from the default and switch nothing off
};

std::vector<Json> other_values(const SchemaNode& node, Json::Array tried) {
  std::vector<Json> out;
  for (const Json& value : tried) {
    const bool off = node.path.ends_with("enabled") && value == Json(false);
    const bool none = value.is_null() || value == Json("none") || value == Json("auto");
    const Converted converted = convert(value, node.spec);
    if (off || none || !converted.value || !converted.remark.empty()) continue;
    if (node.spec.fallback && *node.spec.fallback == *converted.value) continue;
    if (out.size() < 2 && std::find(out.begin(), out.end(), *converted.value) == out.end()) {
      out.push_back(*converted.value);
    }
  }
  return out;
}

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = [] {
    const Json any = Json::parse(R"([true, false, 3, 0.5, ["x"], "x"])");
    std::map<std::string, Json::Array> good;
    for (const KeyRow& row : key_rows()) good[row.path] = row.good.as_array();
    std::vector<Row> out;
    for (const KeyTable& table : key_tables()) {
      for (const Key& key : table.keys) {
        const std::string path = concrete_path(key.path);
        const SchemaNode* node = find_key(path);
        if (node->is_section() || node->has(kPlugin) || node->element) continue;
        Json::Array tried = good[key.path];
        for (const Json& choice : node->spec.choices) tried.push_back(choice);
        for (const Json& value : any.as_array()) tried.push_back(value);
        out.push_back({path, path.substr(0, path.rfind('.') + 1), node, other_values(*node, std::move(tried))});
        if (path.find('.') == std::string::npos) out.back().section.clear();
      }
    }
    return out;
  }();
  return kRows;
}

/// Reads each setting and keeps what nobody recorded as taken, or named.
class Walk {
 public:
  /// False when the setting is refused for another reason than the key.
  bool judge(const Row& row, const Setting& setting) {
    ConsumedKeys consumed;
    ConfigContext context;
    context.world_size = setting.world;
    context.check_only = true;
    context.consumed = &consumed;
    const ConfigReading reading =
        read_config({setting.document.dump(), "acting", false, false}, context, bundled_plugins());
    ++read_;
    const bool named = is_named(reading.problems, row.path);
    if (!named && !reading.config) return false;
    judged_.insert(row.path);
    if (consumed.contains(row.path)) {
      recorded_.insert(row.path);
    } else if (!named) {
      left_.push_back({row.path, acts_by_row(*row.node, setting), setting.world, setting.document});
    }
    return true;
  }

  /// Where a key that is recorded as taken in some setting is not in this one, its row says nothing of this one.
  std::string silent() const {
    std::string text;
    for (const Left& one : left_) {
      if (one.by_row && !recorded_.contains(one.path)) continue;
      text += one.path + ", world " + std::to_string(one.world) + ": " + one.document.dump() + "\n";
    }
    return text;
  }
  /// Keys of which every setting was refused for another reason.
  std::string unjudged() const {
    std::string text;
    for (const Row& row : rows()) {
      if (!row.values.empty() && !judged_.contains(row.path)) text += row.path + "\n";
    }
    return text;
  }
  int read() const { return read_; }

 private:
  struct Left {
    std::string path;
    bool by_row;
    int world;
    Json document;
  };
  std::set<std::string> recorded_, judged_;
  std::vector<Left> left_;
  int read_ = 0;
};

constexpr int kStages = 4, kWorlds = 2;

TEST(ActingKeys, ActOrAreNamedInEveryStageWithOneProcessAndTwo) {
  Walk walk;
  for (const Row& row : rows()) {
    for (int i = 0; i < kStages * kWorlds; ++i) {
      for (const Json& value : row.values) {
        Setting setting = setting_for(row.path, i / kWorlds, 1 + i % kWorlds);
        merge(setting.document, document_with(row.node->path, value));
        walk.judge(row, setting);
      }
    }
  }
  EXPECT_EQ(walk.silent(), "");
  EXPECT_EQ(walk.unjudged(), "");
}

/// Every pair is judged in one of the stages with one process or two, in all of them with CAPSTAN_TEST_ALL.
TEST(ActingKeys, ActOrAreNamedBesideEachOtherKeyOfTheirSection) {
  const bool all = std::getenv("CAPSTAN_TEST_ALL") != nullptr;
  Walk walk;
  int pair = 0;
  for (const Row& row : rows()) {
    for (const Row& other : rows()) {
      if (other.section != row.section || other.path == row.path || row.values.empty()) continue;
      for (const Json& value : other.values) {
        ++pair;
        for (int i = 0; i < kStages * kWorlds; ++i) {
          const int at = (pair + i) % (kStages * kWorlds);
          Setting setting = setting_for(row.path, at / kWorlds, 1 + at % kWorlds);
          merge(setting.document, document_with(other.node->path, value));
          merge(setting.document, document_with(row.node->path, row.values.front()));
          if (walk.judge(row, setting) && !all) break;
        }
      }
    }
  }
  EXPECT_EQ(walk.silent(), "");
  EXPECT_GT(walk.read(), 5000);
}

}  // namespace
}  // namespace capstan::testing
