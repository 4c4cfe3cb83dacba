#include "template_plugin.hpp"

#include <cstdio>
#include <cstdlib>
#include <set>

namespace {

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("%s\n", what);
  std::exit(1);
}

}  // namespace

int main() {
  constexpr std::int64_t kSamples = 25, kBlock = 10;
  for (std::int64_t pass = 0; pass < 3; ++pass) {
    std::set<std::int64_t> seen;
    for (std::int64_t place = 0; place < kSamples; ++place) {
      const std::int64_t sample = template_plugin_sample(pass * kSamples + place, kSamples, kBlock, 7);
      expect(sample / kBlock == place / kBlock, "a sample left its block");
      seen.insert(sample);
    }
    expect(seen.size() == kSamples, "a pass does not have every sample once");
  }
}
