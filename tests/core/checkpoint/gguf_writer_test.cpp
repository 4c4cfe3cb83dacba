#include "core/checkpoint/gguf_writer.hpp"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Takes a file apart from its beginning on.
class Bytes {
 public:
  explicit Bytes(std::string bytes) : bytes_(std::move(bytes)) {}
  template <class T>
  T next() {
    T value{};
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text() {
    const auto size = static_cast<std::size_t>(next<std::uint64_t>());
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  void align() { at_ = (at_ + 31) / 32 * 32; }
  std::size_t at() const { return at_; }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

TEST(GgufWriter, WritesWhatTheFormatSays) {
  const TemporaryFolder folder;
  Json metadata = Json::object();
  metadata["a.count"] = 7;
  metadata["a.share"] = 0.5;
  metadata["a.name"] = "x";
  metadata["a.flag"] = true;
  const auto file = folder / "w.gguf";
  const std::uint64_t size = write_gguf(file, metadata,
                                        {{GgufType::kF32, {2, 3}, {"m.weight", at::arange(6, at::kFloat).view({2, 3})}},
                                         {GgufType::kQ8_0, {1, 32}, {"q.weight", at::arange(34, at::kByte)}}});
  Bytes bytes(test::read_bytes(file));
  EXPECT_EQ(bytes.size(), size);
  EXPECT_EQ(bytes.next<std::uint32_t>(), 0x46554747u);  // "GGUF"
  EXPECT_EQ(bytes.next<std::uint32_t>(), 3u);
  EXPECT_EQ(bytes.next<std::uint64_t>(), 2u);
  EXPECT_EQ(bytes.next<std::uint64_t>(), 4u);
  EXPECT_EQ(bytes.text(), "a.count");
  EXPECT_EQ(bytes.next<std::uint32_t>(), 4u);
  EXPECT_EQ(bytes.next<std::uint32_t>(), 7u);
  EXPECT_EQ(bytes.text(), "a.share");
  EXPECT_EQ(bytes.next<std::uint32_t>(), 6u);
  EXPECT_EQ(bytes.next<float>(), 0.5f);
  EXPECT_EQ(bytes.text(), "a.name");
  EXPECT_EQ(bytes.next<std::uint32_t>(), 8u);
  EXPECT_EQ(bytes.text(), "x");
  EXPECT_EQ(bytes.text(), "a.flag");
  EXPECT_EQ(bytes.next<std::uint32_t>(), 7u);
  EXPECT_EQ(bytes.next<std::uint8_t>(), 1);
  EXPECT_EQ(bytes.text(), "m.weight");
  EXPECT_EQ(bytes.next<std::uint32_t>(), 2u);
  EXPECT_EQ(bytes.next<std::uint64_t>(), 3u);  // the contiguous dimension first
  EXPECT_EQ(bytes.next<std::uint64_t>(), 2u);
  EXPECT_EQ(bytes.next<std::uint32_t>(), 0u);
  EXPECT_EQ(bytes.next<std::uint64_t>(), 0u);
  EXPECT_EQ(bytes.text(), "q.weight");
  EXPECT_EQ(bytes.next<std::uint32_t>(), 2u);
  EXPECT_EQ(bytes.next<std::uint64_t>(), 32u);
  EXPECT_EQ(bytes.next<std::uint64_t>(), 1u);
  EXPECT_EQ(bytes.next<std::uint32_t>(), 8u);
  EXPECT_EQ(bytes.next<std::uint64_t>(), 32u);  // 24 bytes, padded
  bytes.align();
  for (int i = 0; i < 6; ++i) EXPECT_EQ(bytes.next<float>(), static_cast<float>(i));
  bytes.align();
  for (int i = 0; i < 34; ++i) EXPECT_EQ(bytes.next<std::uint8_t>(), i);
  bytes.align();
  EXPECT_EQ(bytes.at(), bytes.size());
}

TEST(GgufWriter, RefusesWhatTheFormatLacks) {
  const TemporaryFolder folder;
  Json metadata = Json::object();
  metadata["a.below"] = -1;
  EXPECT_THAT([&] { write_gguf(folder / "w.gguf", metadata, {}); },
              ThrowsMessage<RuntimeFault>(HasSubstr("metadata 'a.below' is -1, and a number from 0 to 2^32 - 1, a text "
                                                    "or a boolean is expected.")));
  EXPECT_FALSE(std::filesystem::exists(folder / "w.gguf"));
  EXPECT_THAT([] { gguf_type(at::kDouble, "m"); },
              ThrowsMessage<RuntimeFault>(
                  "'m' is of type Double, and GGUF files hold float32, float16 and bfloat16. Give --dtype float32."));
}

}  // namespace
}  // namespace capstan
