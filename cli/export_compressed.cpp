#include "cli/export_compressed.hpp"

#include <string>
#include <vector>

#include "cli/numbers.hpp"
#include "cli/program.hpp"
#include "cli/saved_setup.hpp"
#include "cli/table.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/state_reader.hpp"
#include "core/compression/export_compressed.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

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
  if (arguments.compressed && weights.coded() == 0) {
    throw RuntimeFault("checkpoint '" + run.name + "': after " + std::to_string(updates) +
                       " updates no compression of weights acts yet (schedule_offset). Train on, or export without "
                       "--compressed.");
  }
  if (arguments.format == "safetensors") return print_report(export_packed(weights, arguments.out));
  const SavedModel model = saved_model(run);
  const bool gguf = arguments.format == "gguf";
  const NamesElsewhere names =
      names_elsewhere(model.facts, gguf ? "gguf" : "hf_linear", gguf ? "metadata" : "config", model.name);
  print_report(gguf ? export_gguf(weights, names, arguments.out) : export_packed_hf(weights, names, arguments.out));
}

}  // namespace capstan::cli
