// What a checkpoint that is written in the background costs the training: the step that asks for it, beside copies of
// as many bytes by hand, and the steps while it is written, beside steps without. All in turn; medians, in
// milliseconds.
//
//   background_save FOLDER [LAYERS] [WIDTH] [ROWS] [ROUNDS]
//
// fp32 and AdamW: 12 bytes a parameter are saved. A copy by hand is one memcpy a tensor, into memory that the process
// has not touched yet, as any snapshot's is that gives its memory back, and into memory that it has.

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/layers.hpp"
#include "core/engine/engine.hpp"

namespace {

using namespace capstan;
using bench::Layers;

double milliseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Memory of the size of `count` tensors, each a mapping of its own.
class Pages {
 public:
  Pages(std::size_t count, std::size_t bytes) : bytes_(bytes) {
    for (std::size_t i = 0; i < count; ++i) {
      pages_.push_back(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    }
  }
  ~Pages() {
    for (void* pages : pages_) munmap(pages, bytes_);
  }
  Pages(const Pages&) = delete;
  void copy_from(const Pages& other) const {
    for (std::size_t i = 0; i < pages_.size(); ++i) std::memcpy(pages_[i], other.pages_[i], bytes_);
  }
  void touch() const {
    for (void* pages : pages_) std::memset(pages, 1, bytes_);
  }

 private:
  std::size_t bytes_;
  std::vector<void*> pages_;
};

}  // namespace

int main(int count, char** words) {
  if (count < 2) {
    std::fprintf(stderr, "background_save FOLDER [LAYERS] [WIDTH] [ROWS] [ROUNDS]\n");
    return 2;
  }
  const auto number = [&](int at, std::int64_t otherwise) { return count > at ? std::atoll(words[at]) : otherwise; };
  const std::string folder = words[1];
  const std::int64_t layers = number(2, 24), width = number(3, 1024), rows = number(4, 64), rounds = number(5, 7);
  at::set_num_threads(1);
  PluginIndex plugins;
  const Config config =
      load_config({R"({"train_micro_batch_size_per_gpu": 1, "steps_per_print": null, "gradient_clipping": 0,
           "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "checkpoint": {"writer": {"decoupled": true}}})",
                   "bench", false},
                  {}, plugins);
  Layers model(layers, width);
  Engine engine(model.shown(), config, plugins);
  const at::Tensor input = at::randn({rows, width});
  const auto step = [&] {
    engine.train_batch([&] {
      Batch batch;
      batch.tensors.emplace("x", input);
      return batch;
    });
  };
  for (int i = 0; i < 3; ++i) step();

  const auto tensors = static_cast<std::size_t>(3 * layers);
  const auto bytes = static_cast<std::size_t>(4 * width * width);
  const Pages source(tensors, bytes), touched(tensors, bytes);
  source.touch();
  touched.touch();
  std::vector<double> plain, saving, asks, fresh_copy, touched_copy;
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < 5; ++i) plain.push_back(milliseconds(step));
    touched_copy.push_back(milliseconds([&] { touched.copy_from(source); }));
    {
      const Pages fresh(tensors, bytes);
      fresh_copy.push_back(milliseconds([&] { fresh.copy_from(source); }));
    }
    asks.push_back(milliseconds([&] { engine.save_checkpoint(folder, "bench" + std::to_string(round % 2)); }));
    while (engine.saving()) saving.push_back(milliseconds(step));
    engine.finish_saving();
  }
  std::printf("%.1f MB in %zu tensors, %lld rounds\n", 1e-6 * static_cast<double>(tensors * bytes), tensors,
              static_cast<long long>(rounds));
  std::printf("a save adds to its step %8.1f ms; a copy by hand %8.1f ms, into touched memory %8.1f ms: ratio %.2f\n",
              median(asks), median(fresh_copy), median(touched_copy), median(asks) / median(fresh_copy));
  std::printf("a step without a writer %8.1f ms; while it writes %8.1f ms (%zu steps): ratio %.2f\n", median(plain),
              median(saving), saving.size(), median(saving) / median(plain));
  return 0;
}
