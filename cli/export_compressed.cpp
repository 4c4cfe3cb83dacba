#include "cli/export_compressed.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/exported_tokenizer.hpp"
#include "cli/program.hpp"
#include "cli/saved_setup.hpp"
#include "core/checkpoint/carried_files.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/hf_folder.hpp"
#include "core/checkpoint/output_file.hpp"
#include "core/checkpoint/state_reader.hpp"
#include "core/compression/export_compressed.hpp"
#include "core/compression/removal_record.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/output_path.hpp"
#include "core/pretrained/gguf_model.hpp"
#include "core/text/numbers.hpp"
#include "core/text/table.hpp"

namespace capstan::cli {
namespace {

std::string ratio(std::int64_t before, std::int64_t after) {
  return after == 0 ? "" : fixed(static_cast<double>(before) / static_cast<double>(after), 2) + "x";
}

void print_report(const ExportReport& report) {
  std::vector<std::vector<std::string>> rows{{"weights", "tensors", "elements", "bytes before", "after", "ratio"}};
  ExportReport::Row all{"all"};
  for (const ExportReport::Row& row : report.rows) {
    rows.push_back({row.what, grouped(row.tensors), grouped(row.elements), grouped(row.before), grouped(row.after),
                    ratio(row.before, row.after)});
    all.tensors += row.tensors;
    all.elements += row.elements;
    all.before += row.before;
  }
  const auto bytes = static_cast<std::int64_t>(report.file_bytes);
  rows.push_back({"the file", grouped(all.tensors), grouped(all.elements), grouped(all.before), grouped(bytes),
                  ratio(all.before, bytes)});
  print(table_text(rows));
  for (const std::string& note : report.notes) print(note + "\n");
}

void warn_of_inputs(const Compressions& compressions) {
  if (compressions.operands().empty()) return;
  log::warning("the inputs of " + std::to_string(compressions.operands().size()) +
               " modules were rounded in training, which the file does not say: who runs it gets them exact.");
}

/// A model with the shapes that pruning leaves, and what compression.json says of it.
struct PrunedModel {
  SavedModel facts;
  Json record;
};

PrunedModel pruned_model(const SavedRunFacts& run, const CompressedWeights& weights) {
  const SavedModel whole = saved_model(run);
  const Json params = pruned_params(weights, whole.facts, whole.name);
  const Model model = saved_model_with(run, params);
  check_pruned_shapes(weights, model);
  PrunedModel pruned{{model.describe(), model.description()}, Json::object()};
  pruned.record["type"] = model.description();
  pruned.record["params"] = params;
  return pruned;
}

/// "capstan.model.params of what is left: ff [64, 64], kept_heads [2, 2]"
std::string params_note(const Json& params) {
  std::string text;
  for (const auto& [name, value] : params.as_object()) text += (text.empty() ? "" : ", ") + name + " " + value.dump();
  return "capstan.model.params of what is left: " + text;
}

/// A GGUF file of a model that was built from a config.json, with the tokenizer of the folder or file it came from.
ExportReport write_pretrained_gguf(const ExportArguments& arguments, CompressedWeights& weights,
                                   const SavedModel& model, const Json& config, const CheckpointContents& contents) {
  NamesElsewhere names = gguf_names(hf_format(model.facts, model.name), config);
  ExportedTokenizer tokenizer = exported_tokenizer(carried_files_of(contents), config, names.facts);
  for (const auto& [key, value] : tokenizer.facts.as_object()) names.facts[key] = value;
  ExportReport report =
      export_gguf(weights, names, arguments.out, {arguments.dtype == "q8_0", tokenizer.entries, rope_divisors(config)});
  for (std::string& note : gguf_differences(config)) report.notes.push_back(std::move(note));
  for (std::string& note : tokenizer.notes) report.notes.push_back(std::move(note));
  return report;
}

ExportReport write_weights(const ExportArguments& arguments, CompressedWeights& weights, const SavedModel* model,
                           const SavedRunFacts& run, const CheckpointContents& contents) {
  if (arguments.format == "safetensors") return export_packed(weights, arguments.out);
  if (arguments.format == "hf") {
    return export_packed_hf(weights, names_elsewhere(model->facts, "hf_linear", "config", model->name), arguments.out);
  }
  const Json* config = saved_model_config(run);
  if (model->facts.find("gguf") == nullptr && config != nullptr) {
    return write_pretrained_gguf(arguments, weights, *model, *config, contents);
  }
  const GgufExtras extras{arguments.dtype == "q8_0", {}, {}};
  return export_gguf(weights, names_elsewhere(model->facts, "gguf", "metadata", model->name), arguments.out, extras);
}

void note_masks(const CompressedWeights& weights, ExportReport& report) {
  const auto masked = std::count_if(weights.all().begin(), weights.all().end(), [](const auto& weight) {
    return weight.masked && weight.numel() == weight.saved.values.numel();
  });
  if (masked == 0) return;
  report.notes.push_back(
      std::to_string(masked) +
      " tensors keep their size, with zeros in place of what was pruned: neither the file nor its "
      "evaluation gets smaller by those. Rows, heads and channels with related_modules are removed.");
}

}  // namespace

void export_compressed(const ExportArguments& arguments, const std::filesystem::path& dir, const std::string& tag,
                       std::optional<at::ScalarType> dtype) {
  const std::string where = (dir / tag).string();
  const CheckpointContents contents = read_checkpoint(dir, tag);
  const SavedRunFacts run{contents.state, dir.string() + ", " + tag, arguments.plugin_paths};
  const std::int64_t updates =
      StateReader(contents.state, where + "/state.json").integer("updates", 0, 1'000'000'000'000);
  const Compressions compressions = arguments.compressed ? saved_compressions(run) : Compressions();
  warn_of_inputs(compressions);
  CompressedWeights weights(contents, where, compressions, updates, dtype);
  if (arguments.compressed && weights.coded() + weights.pruned() == 0) {
    throw RuntimeFault("checkpoint '" + run.name + "': after " + std::to_string(updates) +
                       " updates no compression of weights acts yet (schedule_offset). Train on, or export without "
                       "--compressed.");
  }
  const bool removes = !weights.removed().empty();
  std::optional<PrunedModel> pruned;
  std::optional<SavedModel> model;
  if (removes && (has_saved_model(run) || arguments.format != "safetensors")) {
    pruned = pruned_model(run, weights);
    model = pruned->facts;
  } else if (arguments.format != "safetensors") {
    model = saved_model(run);
  }
  if (removes && arguments.format != "hf" && output_path(arguments.out).is_stream) {
    throw RuntimeFault("--out " + arguments.out +
                       ": of these weights rows or columns were removed, and a file beside them tells which. Name a "
                       "file, not a device or a pipe.");
  }
  ExportReport report = write_weights(arguments, weights, model ? &*model : nullptr, run, contents);
  note_masks(weights, report);
  if (removes) {
    const Json record = removal_record(weights.removed(), pruned ? pruned->record : Json());
    const std::filesystem::path path = removal_record_of(arguments.out);
    write_aside(path, [&](const std::filesystem::path& aside) { write_file(aside, record.dump() + "\n"); });
    report.notes.push_back("What was removed stands in " + path.string() + ".");
    if (pruned) report.notes.push_back(params_note(pruned->record.at("params")));
  } else {
    forget_removals(arguments.out);
  }
  print_report(report);
}

}  // namespace capstan::cli
