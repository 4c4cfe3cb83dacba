// Copies of values for which the memory does not suffice. A program of its own, because it replaces operator new.

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "core/text/json.hpp"

namespace {

/// Allocations that succeed before one fails; negative: all do.
int allocations_left = -1;

}  // namespace

void* operator new(std::size_t size) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace capstan {
namespace {

/// Copies with one allocation more at a time, until the copy succeeds. Returns how many copies failed.
template <class Copy>
int failures(const Json& original, const Copy& copy) {
  for (int enough = 0;; ++enough) {
    allocations_left = enough;
    try {
      const Json copied = copy(original);
      allocations_left = -1;
      EXPECT_EQ(copied, original);
      return enough;
    } catch (const std::bad_alloc&) {
      allocations_left = -1;
    }
  }
}

TEST(JsonMemory, ACopyThatFindsNoneThrowsAndNothingElse) {
  const Json original = Json::parse(
      R"({"optimizer": {"type": "a name that no string holds in itself", "params": {"betas": [0.9, 0.999, [], {}]}},
          "a list of names, each of its own": ["this one needs memory of its own", "and this one does as well"]})");
  const auto constructed = [](const Json& from) { return Json(from); };
  const auto assigned = [](const Json& from) {
    Json to = 7;
    to = from;
    return to;
  };
  EXPECT_GE(failures(original, constructed), 9);  // five lists and objects, four strings
  EXPECT_GE(failures(original, assigned), 9);
}

}  // namespace
}  // namespace capstan
