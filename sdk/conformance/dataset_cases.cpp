#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include <fstream>
#include <map>
#include <thread>

#include "core/model/batch.hpp"
#include "sdk/conformance/component_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

namespace capstan::conformance {
namespace {

using Tensors = std::map<std::string, at::Tensor, std::less<>>;

constexpr std::int64_t kLength = 8, kVocabulary = 256;

/// A component that has opened a file of text, which is data for many, or what the parameter 'path' or 'paths' names.
class DatasetUnderTest {
 public:
  DatasetUnderTest(const Context& context, const ComponentManifest& manifest) : component_(context, manifest) {
    std::string text;
    for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 26);
    std::ofstream("data.txt") << text;
    open({"data.txt"});
    Json facts;
    try {
      facts = Json::parse(describe());
    } catch (const Broken&) {
      throw;
    } catch (const std::exception& error) {
      throw Broken(std::string("describe does not give JSON: ") + error.what());
    }
    const Json* samples = facts.find("samples");
    expect(samples && samples->is_integer() && samples->as_integer() > 0,
           "describe must tell \"samples\", a whole number above 0, got " + facts.dump() + ".");
    samples_ = samples->as_integer();
    if (const Json* length = facts.find("sequence_length"); length && length->is_integer())
      length_ = length->as_integer();
    const Json* bytes = facts.find("bytes_per_token");
    expect(!bytes || (bytes->is_number() && bytes->as_number() > 0),
           "describe must tell \"bytes_per_token\", a number above 0, or leave it out, got " + facts.dump() + ".");
    const Json* print = facts.find("fingerprint");
    expect(print && print->is_string() && !print->as_string().empty(),
           "describe must tell a \"fingerprint\", a text, by which a resumed run knows its data.");
    fingerprint_ = print->as_string();
  }

  std::int64_t samples() const { return samples_; }
  std::int64_t length() const { return length_; }
  const std::string& fingerprint() const { return fingerprint_; }

  Tensors read(const std::vector<std::int64_t>& samples) const {
    Batch batch;
    must("read", [&](capstan_error* error) {
      return table()->read(component_.self(), samples.data(), samples.size(), &batch, error);
    });
    return batch.tensors;
  }

  /// Whether it takes the paths; the text of its refusal.
  std::string refusal(const std::vector<std::string>& paths) const {
    capstan_error error;
    return call_open(paths, &error) == CAPSTAN_OK ? "" : error.text.empty() ? "(no text)" : error.text;
  }

 private:
  const capstan_dataset* table() const { return component_.vtable<capstan_dataset>(); }

  capstan_status call_open(const std::vector<std::string>& paths, capstan_error* error) const {
    std::vector<capstan_str> names;
    for (const std::string& path : paths) names.push_back(as_str(path));
    capstan_data_source source{};
    source.struct_size = sizeof source;
    source.paths = names.data();
    source.path_count = names.size();
    source.sequence_length = kLength;
    source.vocabulary = kVocabulary;
    return table()->open(component_.self(), &source, error);
  }

  void open(const std::vector<std::string>& paths) const {
    capstan_error error;
    if (call_open(paths, &error) == CAPSTAN_OK) return;
    throw Skip("it does not open a file of text: " + error.text);
  }

  std::string describe() const {
    capstan_sink sink;
    must("describe", [&](capstan_error* error) { return table()->describe(component_.self(), &sink, error); });
    return sink.text;
  }

  ComponentUnderTest component_;
  std::int64_t samples_ = 0, length_ = 0;
  std::string fingerprint_;
};

void expect_same(const Tensors& a, const Tensors& b, const std::string& text) {
  expect(a.size() == b.size(), text);
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    expect(other != b.end() && at::equal(tensor, other->second), text);
  }
}

void check_describe(const Context& context, const ComponentManifest& component) {
  const DatasetUnderTest first(context, component), second(context, component);
  expect(first.samples() == second.samples() && first.fingerprint() == second.fingerprint(),
         "two instances tell two things of one file.");
}

void check_rows(const Context& context, const ComponentManifest& component) {
  const DatasetUnderTest data(context, component);
  const std::int64_t last = data.samples() - 1;
  const std::vector<std::int64_t> samples = {last, 0, last / 2, 0};
  const Tensors together = data.read(samples);
  expect(!together.empty(), "read puts no tensor into the batch.");
  for (const auto& [name, tensor] : together) {
    expect(tensor.defined() && tensor.dim() >= 1 && tensor.size(0) == 4,
           "read of 4 samples gives '" + name + "' without 4 rows.");
    if (name == "input_ids" || name == "labels") {
      expect(tensor.scalar_type() == at::kLong && tensor.dim() == 2, "'" + name + "' must be int64 [samples, tokens].");
      expect(data.length() == 0 || tensor.size(1) == data.length(),
             "'" + name + "' has " + std::to_string(tensor.size(1)) + " tokens, and describe tells sequence_length " +
                 std::to_string(data.length()) + ".");
    }
  }
  for (std::size_t row = 0; row < samples.size(); ++row) {
    for (const auto& [name, tensor] : data.read({samples[row]})) {
      const auto found = together.find(name);
      expect(found != together.end() && at::equal(tensor[0], found->second[static_cast<std::int64_t>(row)]),
             "row " + std::to_string(row) + " of '" + name + "' is not sample " + std::to_string(samples[row]) + ".");
    }
  }
}

void check_again(const Context& context, const ComponentManifest& component) {
  const DatasetUnderTest first(context, component), second(context, component);
  const std::vector<std::int64_t> samples = {1 % first.samples(), 0};
  const Tensors before = first.read(samples);
  first.read({first.samples() - 1});
  expect_same(before, first.read(samples), "a sample changes when it is read again.");
  expect_same(before, second.read(samples), "another instance reads something else of the same file.");
}

void check_threads(const Context& context, const ComponentManifest& component) {
  const DatasetUnderTest data(context, component);
  const Tensors wanted = data.read({0});
  std::vector<std::string> faults(4);
  std::vector<std::thread> threads;
  for (std::string& fault : faults) {
    threads.emplace_back([&] {
      try {
        for (int i = 0; i < 50; ++i)
          expect_same(wanted, data.read({0}), "a sample differs where threads read at once.");
      } catch (const std::exception& error) {
        fault = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& fault : faults) expect(fault.empty(), fault);
}

void check_missing(const Context& context, const ComponentManifest& component) {
  const DatasetUnderTest data(context, component);
  const std::string text = data.refusal({"no_such_file"});
  expect(!text.empty(), "open takes a file that is not there.");
  expect(text.find("no_such_file") != std::string::npos, "open of a file that is not there does not name it: " + text);
}

void check_leak(const Context& context, const ComponentManifest& component) {
  const DatasetUnderTest data(context, component);
  expect_no_leak("read", [&] { data.read({0}); });
}

}  // namespace

Cases dataset_cases(const ComponentManifest& component) {
  const std::string prefix = "dataset/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "describe", "Two instances tell the same of the same files.", bound(check_describe)},
      {prefix + "rows", "Row i of a batch is sample i of the call, with the shape that describe tells.",
       bound(check_rows)},
      {prefix + "again", "A sample is the same whenever, and by whatever instance, it is read.", bound(check_again)},
      {prefix + "threads", "Several threads may read.", bound(check_threads)},
      {prefix + "missing", "A file that is not there is refused by its name.", bound(check_missing)},
      {prefix + "calls_leak", "Calls keep no memory, however many a run makes.", bound(check_leak)},
  };
}

}  // namespace capstan::conformance
