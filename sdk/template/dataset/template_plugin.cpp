#include "template_plugin.hpp"

#include <ATen/ops/empty.h>

#include <capstan/sdk/aten.hpp>
#include <capstan/sdk/dataset.hpp>
#include <capstan/sdk/mapped_file.hpp>
#include <memory>

namespace {

namespace sdk = capstan::sdk;

class TemplatePlugin {
 public:
  TemplatePlugin(const sdk::Host&, const sdk::Params& params) : padding_(params.integer("padding")) {}

  void open(const sdk::DataSource& source) {
    if (source.paths().size() != 1) throw sdk::Error("name one file of lines.");
    length_ = source.sequence_length();
    if (length_ < 1) throw sdk::Error("the tokens a sample are not known. Set capstan.data.sequence_length.");
    file_ = std::make_unique<sdk::MappedFile>(source.paths().front());
    lines_ = template_plugin_lines({reinterpret_cast<const char*>(file_->data()), file_->size()});
    if (lines_.empty()) throw sdk::Error("'" + file_->path() + "' has no line.");
  }

  std::string describe() const {
    // By the fingerprint a resumed run knows its data: name what would differ.
    return "{\"samples\": " + std::to_string(lines_.size()) + ", \"sequence_length\": " + std::to_string(length_) +
           ", \"fingerprint\": \"" + std::to_string(file_->size()) + " bytes, first line " +
           std::to_string(lines_.front().size()) + ", last " + std::to_string(lines_.back().size()) + "\"}";
  }

  void read(std::span<const std::int64_t> samples, sdk::Batch& out) const {
    file_->check_size();
    const auto rows = static_cast<std::int64_t>(samples.size());
    const at::Tensor inputs = at::empty({rows, length_}, at::kLong), labels = at::empty({rows, length_}, at::kLong);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto sample = static_cast<std::size_t>(samples[static_cast<std::size_t>(row)]);
      template_plugin_sample(lines_.at(sample), length_, padding_, inputs.data_ptr<std::int64_t>() + row * length_,
                             labels.data_ptr<std::int64_t>() + row * length_);
    }
    out.set_tensor("input_ids", sdk::lend(inputs));
    out.set_tensor("labels", sdk::lend(labels));
  }

 private:
  std::int64_t padding_, length_ = 0;
  std::unique_ptr<sdk::MappedFile> file_;
  std::vector<std::string_view> lines_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::dataset<TemplatePlugin, "TemplatePlugin">)
