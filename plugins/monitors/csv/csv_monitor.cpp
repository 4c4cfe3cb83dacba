#include <filesystem>
#include <map>
#include <optional>

#include "../common/append_file.hpp"
#include "../common/json_text.hpp"
#include "../common/run_folder.hpp"
#include "capstan/sdk/monitor.hpp"
#include "csv_file.hpp"

namespace capstan::monitors {
namespace {

constexpr const char* kTexts = "samples.jsonl";

/// One CSV file for each tag, in the layout of DeepSpeed's CSV monitor, and one of JSON lines for texts. Files stay
/// open; one write a batch and file.
class CsvMonitor {
 public:
  CsvMonitor(sdk::Host host, const sdk::Params& params)
      : host_(host), folder_(std::filesystem::path(params.text("output_path")) / params.text("job_name")) {}

  void open(const sdk::Document& run_info) {
    const RunFolder own = run_folder(folder_, run_info);
    tell_folder(host_, folder_, own);
    folder_ = own.path;
    std::optional<std::int64_t> resumed_at;
    if (run_info.has("resumed_at")) resumed_at = run_info.integer("resumed_at");
    if (own.begins_anew) resumed_at = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().extension() == ".csv" && entry.is_regular_file()) cut_rows_beyond(entry.path(), resumed_at);
    }
    const std::filesystem::path texts = folder_ / kTexts;
    if (std::filesystem::is_regular_file(texts)) cut_texts_beyond(texts, resumed_at);
  }

  void write(std::span<const sdk::Metric> metrics) {
    std::map<AppendFile*, std::string> rows;
    for (const sdk::Metric& metric : metrics) rows[&file(metric.tag)] += csv_row(metric.x, metric.value);
    for (const auto& [file, text] : rows) file->append(text);
  }

  void text(std::span<const sdk::Text> texts) {
    std::string lines;
    for (const sdk::Text& text : texts) lines += json_text(text) + "\n";
    if (!texts_) {
      check_texts(folder_ / kTexts);
      texts_.emplace(folder_ / kTexts, "");
    }
    texts_->append(lines);
  }

  void close() {
    files_.clear();
    texts_.reset();
  }

 private:
  AppendFile& file(std::string_view tag) {
    const std::string name = csv_file_name(tag);
    const auto found = files_.find(name);
    if (found != files_.end()) return found->second;
    return files_.emplace(name, AppendFile(folder_ / name, csv_header(tag))).first->second;
  }

  sdk::Host host_;
  std::filesystem::path folder_;
  std::map<std::string, AppendFile> files_;
  std::optional<AppendFile> texts_;
};

}  // namespace
}  // namespace capstan::monitors

CAPSTAN_PLUGIN(&capstan::sdk::monitor<capstan::monitors::CsvMonitor, "csv_monitor">)
