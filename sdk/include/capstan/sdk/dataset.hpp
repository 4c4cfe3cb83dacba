#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/sdk/batch.hpp"
#include "capstan/sdk/component.hpp"

/// Data sets: samples by number.
///
///   class Pairs {
///    public:
///     Pairs(capstan::sdk::Host host, const capstan::sdk::Params& params);
///     // Once, first: where the data lies, and what the model says of itself.
///     void open(const capstan::sdk::DataSource& source);
///     // A JSON object: {"samples": 1000, "fingerprint": "...", "sequence_length": 128, "bytes_per_token": 1}
///     std::string describe() const;
///     // Puts the tensors of these samples into the batch, row i that of samples[i]. [any thread]
///     void read(std::span<const std::int64_t> samples, capstan::sdk::Batch& out) const;
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::dataset<Pairs, "Pairs">)
///
/// What is thrown ends the run with its text: name the file and the place in it.
namespace capstan::sdk {

/// What a run says of its data. Valid during open().
class DataSource {
 public:
  explicit DataSource(const capstan_data_source* raw) : raw_(raw) {}

  /// Files and folders, as the configuration has them.
  std::vector<std::string> paths() const {
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < raw_->path_count; ++i) paths.emplace_back(to_view(raw_->paths[i]));
    return paths;
  }
  std::int64_t sequence_length() const { return raw_->sequence_length; }  // tokens a sample; 0: not known
  std::int64_t vocabulary() const { return raw_->vocabulary; }            // of the model; 0: not known

 private:
  const capstan_data_source* raw_;
};

template <class T>
struct DatasetCalls {
  static capstan_status open(void* self, const capstan_data_source* source, capstan_error* error) {
    auto& dataset = *static_cast<Instance<T>*>(self);
    return guarded(dataset.host, error, [&] { dataset.object.open(DataSource(source)); });
  }
  static capstan_status describe(void* self, capstan_sink* sink, capstan_error* error) {
    const auto& dataset = *static_cast<Instance<T>*>(self);
    return guarded(dataset.host, error, [&] { Sink(dataset.host, sink).write(dataset.object.describe()); });
  }
  static capstan_status read(void* self, const std::int64_t* samples, std::size_t count, capstan_batch* out,
                             capstan_error* error) {
    const auto& dataset = *static_cast<Instance<T>*>(self);
    return guarded(dataset.host, error, [&] {
      Batch batch(dataset.host, out, error);
      dataset.object.read(std::span<const std::int64_t>(samples, count), batch);
    });
  }
  static constexpr capstan_dataset kTable = {sizeof(capstan_dataset), &open, &describe, &read};
};

/// The descriptor of data set class T.
template <class T, Literal Type>
inline constexpr capstan_component dataset = describe<T, "dataset", Type>(&DatasetCalls<T>::kTable);

}  // namespace capstan::sdk
