#include "core/memory/page_pool.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>

namespace capstan {
namespace {

TEST(PagePool, GivesTheSamePagesToTheNextOfTheSameSize) {
  PagePool pool(1 << 20);
  at::DataPtr first = pool.allocate(100'000);
  std::memset(first.get(), 7, 100'000);
  const void* const where = first.get();
  at::DataPtr second = pool.allocate(100'000);
  EXPECT_NE(second.get(), where);
  first.clear();
  EXPECT_NE(pool.allocate(200'000).get(), where);
  EXPECT_EQ(pool.allocate(99'000).get(), where);  // as many pages
}

TEST(PagePool, KeepsNoMoreThanItMay) {
  PagePool pool(81920);
  at::DataPtr kept = pool.allocate(81920), returned = pool.allocate(81920);
  std::memset(kept.get(), 7, 81920);
  std::memset(returned.get(), 7, 81920);
  kept.clear();
  returned.clear();
  const at::DataPtr one = pool.allocate(81920), fresh = pool.allocate(81920);
  EXPECT_EQ(*static_cast<const char*>(one.get()), 7);
  EXPECT_EQ(*static_cast<const char*>(fresh.get()), 0);  // from the kernel
}

TEST(PagePool, IsOutlivedByItsMemory) {
  std::optional<PagePool> pool(1 << 20);
  at::DataPtr memory = pool->allocate(500'000);
  pool.reset();
  std::memset(memory.get(), 7, 500'000);
}

}  // namespace
}  // namespace capstan
