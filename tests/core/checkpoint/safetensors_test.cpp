#include "core/checkpoint/safetensors.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/errors.hpp"
#include "core/xxh3.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

using test::read_bytes;
using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::vector<SafetensorsEntry> samples() {
  return {{"bytes", at::arange(7, at::kByte)},
          {"half", at::arange(5, at::kHalf)},
          {"weight", at::arange(24, at::kFloat).view({2, 3, 4})},
          {"double", at::arange(3, at::kDouble)},
          {"bf16", at::arange(6, at::kBFloat16).view({3, 2})},
          {"long", at::arange(-2, 2, at::kLong)},
          {"flags", at::arange(3).gt(1)},
          {"scalar", at::full({}, 2.5, at::kFloat)},
          {"empty", at::empty({0, 4}, at::kFloat)},
          {"naïve \"name\"", at::full({1}, 7, at::kInt)}};
}

TEST(Safetensors, WhatIsWrittenIsReadAgain) {
  const TemporaryFolder folder;
  write_safetensors(folder / "x", samples());

  const auto read = read_safetensors(folder / "x");
  ASSERT_EQ(read.size(), samples().size());
  for (const auto& expected : samples()) {
    const auto found =
        std::find_if(read.begin(), read.end(), [&](const auto& entry) { return entry.name == expected.name; });
    ASSERT_NE(found, read.end()) << expected.name;
    EXPECT_EQ(found->values.scalar_type(), expected.values.scalar_type()) << expected.name;
    EXPECT_TRUE(at::equal(found->values, expected.values)) << expected.name;
  }
}

// The bytes of https://github.com/huggingface/safetensors: length, JSON, data; here padded to 64.
TEST(Safetensors, TheBytesAreTheFormats) {
  const TemporaryFolder folder;
  Json metadata = Json::object();
  metadata["format"] = "pt";
  write_safetensors(folder / "x", {{"b", at::full({2}, 3, at::kByte)}, {"a", at::full({1, 1}, 1.0, at::kFloat)}},
                    metadata);

  std::string header = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
                       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})";
  header.resize((header.size() + 8 + 63) / 64 * 64 - 8, ' ');
  EXPECT_EQ(read_bytes(folder / "x"), file_of(header, std::string("\x00\x00\x80\x3f\x03\x03", 6)));
}

TEST(Safetensors, EachTensorsPlaceAndChecksumAreReported) {
  const TemporaryFolder folder;
  const auto written = write_safetensors(folder / "x", samples());

  const std::string bytes = read_bytes(folder / "x");
  EXPECT_EQ(written.bytes, bytes.size());
  EXPECT_EQ(written.header.begin, 0u);
  EXPECT_EQ(written.header.end % 64, 0u);
  EXPECT_EQ(written.header.xxh3, xxh3(bytes.data(), written.header.end));
  std::uint64_t covered = written.header.end;
  for (const auto& entry : samples()) {
    const auto& place = written.tensors.at(entry.name);
    covered += place.end - place.begin;
    EXPECT_EQ(place.begin % entry.values.element_size(), 0u) << entry.name;
    ASSERT_EQ(place.end - place.begin, entry.values.nbytes()) << entry.name;
    const auto* expected = static_cast<const char*>(entry.values.const_data_ptr());
    EXPECT_TRUE(std::equal(bytes.begin() + place.begin, bytes.begin() + place.end, expected)) << entry.name;
    EXPECT_EQ(place.xxh3, xxh3(bytes.data() + place.begin, place.end - place.begin));
  }
  EXPECT_EQ(covered, bytes.size());
}

/// The entry as one that is not in memory; `calls` notes what is asked for.
SafetensorsEntry elsewhere(const SafetensorsEntry& entry, std::vector<std::string>* calls = nullptr) {
  return {entry.name, values_elsewhere(entry.values.sizes(), entry.values.scalar_type()),
          [=, next = std::int64_t{0}](std::int64_t from, std::int64_t count) mutable {
            EXPECT_EQ(from, next) << entry.name;
            EXPECT_LE(count * static_cast<std::int64_t>(entry.values.element_size()), 16 << 20) << entry.name;
            next = from + count;
            if (calls && from == 0) calls->push_back(entry.name);
            return entry.values.reshape({-1}).narrow(0, from, count).clone();
          }};
}

TEST(Safetensors, ValuesThatAreNotInMemoryAreReadInTheFilesOrderAndMakeTheSameBytes) {
  const TemporaryFolder folder;
  auto entries = samples();
  entries.push_back({"large", at::arange(9'000'001, at::kFloat)});  // 36 MB: three pieces
  const SafetensorsWritten written = write_safetensors(folder / "memory", entries);
  std::vector<SafetensorsEntry> away;
  std::vector<std::string> calls, expected;
  for (const SafetensorsEntry& entry : entries) away.push_back(elsewhere(entry, &calls));
  away[1] = entries[1];  // one stays in memory
  const SafetensorsWritten streamed = write_safetensors(folder / "streamed", away);

  EXPECT_TRUE(read_bytes(folder / "streamed") == read_bytes(folder / "memory"));
  EXPECT_EQ(streamed.bytes, written.bytes);
  EXPECT_EQ(streamed.header.xxh3, written.header.xxh3);
  for (const auto& [name, place] : written.tensors) {
    EXPECT_EQ(streamed.tensors.at(name).begin, place.begin) << name;
    EXPECT_EQ(streamed.tensors.at(name).end, place.end) << name;
    EXPECT_EQ(streamed.tensors.at(name).xxh3, place.xxh3) << name;
  }
  for (const SafetensorsEntry& entry : read_safetensors(folder / "memory")) {
    if (entry.values.numel() > 0 && entry.name != entries[1].name) expected.push_back(entry.name);
  }
  EXPECT_EQ(calls, expected);
}

TEST(Safetensors, AReaderThatFailsHalfWayLeavesNoFile) {
  const TemporaryFolder folder;
  const SafetensorsEntry whole{"a", at::zeros({5'000'000}, at::kFloat)};
  SafetensorsEntry broken = elsewhere(whole);
  broken.read = [read = broken.read](std::int64_t from, std::int64_t count) {
    if (from > 0) throw RuntimeFault("'/nvme': reading failed at byte " + std::to_string(4 * from) + ".");
    return read(from, count);
  };
  EXPECT_THAT([&] { write_safetensors(folder / "x", {broken}); },
              ThrowsMessage<RuntimeFault>("'/nvme': reading failed at byte 16777216."));
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
}

TEST(Safetensors, AReaderThatGivesOtherValuesThanWereAskedForIsRefused) {
  const TemporaryFolder folder;
  for (const at::Tensor& wrong : {at::zeros({2}), at::zeros({3}, at::kDouble), at::zeros({6}).slice(0, 0, 6, 2)}) {
    const SafetensorsEntry entry{"a", values_elsewhere({3}, at::kFloat),
                                 [wrong](std::int64_t, std::int64_t) { return wrong; }};
    EXPECT_THAT(
        [&] { write_safetensors(folder / "x", {entry}); },
        ThrowsMessage<std::logic_error>(HasSubstr("where 3 of Float, contiguous and on the CPU, were asked for")));
  }
}

TEST(Safetensors, ViewsAreWrittenAsTheirElements) {
  const TemporaryFolder folder;
  const auto base = at::arange(12, at::kFloat).view({3, 4});
  write_safetensors(folder / "x", {{"t", base.t()}, {"column", base.select(1, 2)}});

  const auto read = read_safetensors(folder / "x");
  EXPECT_TRUE(at::equal(read[0].values, base.t()));
  EXPECT_TRUE(at::equal(read[1].values, base.select(1, 2)));
}

TEST(Safetensors, AReadTensorOutlivesItsFileAndRefusesToBeWritten) {
  const TemporaryFolder folder;
  write_safetensors(folder / "x", {{"a", at::full({1000}, 1.0f)}});
  auto read = read_safetensors(folder / "x");
  std::filesystem::remove(folder / "x");

  EXPECT_THROW(read[0].values.fill_(2), c10::Error);
  EXPECT_THROW(read[0].values.narrow(0, 3, 1).mul_(2), c10::Error);
  EXPECT_EQ(read[0].values.sum().item<float>(), 1000);
  EXPECT_EQ(read[0].values.clone().fill_(2).sum().item<float>(), 2000);
}

// A file whose header was not padded: legal, and its numbers stand at odd addresses.
TEST(Safetensors, UnalignedNumbersAreRead) {
  const TemporaryFolder folder;
  const float values[] = {1.5f, -2.0f};
  const auto path = folder.write("x", file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} )",
                                              {reinterpret_cast<const char*>(values), 8}));

  const auto read = read_safetensors(path);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(read[0].values.const_data_ptr()) % 4, 0u);
  EXPECT_EQ(read[0].values[0].item<float>(), 1.5f);
  EXPECT_EQ(read[0].values[1].item<float>(), -2.0f);
}

TEST(Safetensors, ATypeTheFormatLacksAndARepeatedNameAreRefused) {
  const TemporaryFolder folder;
  const auto path = (folder / "x").string();
  const auto real = at::zeros({1}, at::kDouble);

  EXPECT_THAT(([&] {
                write_safetensors(path, {{"z", at::complex(real, real)}});
              }),
              ThrowsMessage<RuntimeFault>("'" + path +
                                          "': tensor 'z' is of type ComplexDouble, which safetensors files "
                                          "cannot hold."));
  EXPECT_THAT(([&] {
                write_safetensors(path, {{"a", real}, {"a", real}});
              }),
              ThrowsMessage<RuntimeFault>("'" + path + "': there are two tensors named 'a'."));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Safetensors, EachDefectOfAHeaderIsNamed) {
  const TemporaryFolder folder;
  const auto defect_of = [&](const std::string& bytes) -> std::string {
    const auto path = folder.write("x", bytes);
    try {
      read_safetensors(path);
    } catch (const RuntimeFault& fault) {
      const std::string text = fault.what(), front = "'" + path + "': ";
      EXPECT_TRUE(text.starts_with(front)) << text;
      return text.substr(front.size());
    }
    return "";
  };
  const auto defect_of_a = [&](const std::string& facts) {
    return defect_of(file_of("{\"a\":" + facts + "}", "12345678"));
  };

  EXPECT_EQ(defect_of("1234567"), "it has 7 bytes, too few for a safetensors file.");
  EXPECT_EQ(defect_of(std::string(8, '\xff') + "{}"),
            "this is not a safetensors file: the header's length would be 18446744073709551615 bytes.");
  EXPECT_EQ(defect_of(file_of("{}  ", "").substr(0, 10)),
            "it is cut off in its header: 10 bytes, the header alone takes 12.");
  EXPECT_EQ(defect_of(file_of("[]", "")),
            "this is not a safetensors file: the header is not a JSON object of tensors.");
  EXPECT_EQ(defect_of(file_of("{\"a\":" + std::string(1'000'000, '['), "")),
            "this is not a safetensors file: the header is not a JSON object of tensors.");
  EXPECT_THAT(defect_of(file_of("{\"a\":", "")), HasSubstr("the header is damaged: JSON, line 1, column "));
  EXPECT_EQ(defect_of(file_of(R"({"a":{},"a":{}})", "")), "tensor 'a': no dtype.");
  EXPECT_EQ(defect_of(file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                              R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                              "")),
            "two tensors are named 'a'.");
  EXPECT_EQ(defect_of_a("1"), "tensor 'a': no dtype.");
  EXPECT_EQ(defect_of_a(R"({"dtype":"U8"})"), "tensor 'a': no shape, or one that is not a list of sizes.");
  EXPECT_EQ(defect_of_a(R"({"dtype":"U8","shape":[-1]})"), "tensor 'a': no shape, or one that is not a list of sizes.");
  EXPECT_EQ(defect_of_a(R"({"dtype":"U8","shape":[8.0]})"),
            "tensor 'a': no shape, or one that is not a list of sizes.");
  EXPECT_EQ(defect_of_a(R"({"dtype":"U8","shape":[8],"data_offsets":[0]})"),
            "tensor 'a': no data_offsets, or not two of them.");
  EXPECT_EQ(defect_of_a(R"({"dtype":"Q4","shape":[8],"data_offsets":[0,8]})"),
            "tensor 'a': dtype 'Q4' is not known here.");
  EXPECT_EQ(
      defect_of_a(R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})"),
      "tensor 'a': it stands at bytes 0 to 9 of the data, but the file has 8: cut off, or the header is damaged.");
  EXPECT_EQ(
      defect_of_a(R"({"dtype":"U8","shape":[8],"data_offsets":[8,0]})"),
      "tensor 'a': it stands at bytes 8 to 0 of the data, but the file has 8: cut off, or the header is damaged.");
  EXPECT_EQ(defect_of_a(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
            "tensor 'a': its shape and dtype take 12 bytes, the offsets leave 8.");
  EXPECT_EQ(defect_of_a(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
            "tensor 'a': its shape is too large.");
  EXPECT_EQ(defect_of_a(R"({"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})"),
            "tensor 'a': its shape is too large.");
  const std::string seven = R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}})";
  EXPECT_EQ(defect_of(file_of(seven, "12345678")), "the tensors end at byte " + std::to_string(8 + seven.size() + 7) +
                                                       ", the file at " + std::to_string(8 + seven.size() + 8) + ".");
  EXPECT_EQ(defect_of_a(R"({"dtype":"U8","shape":[7],"data_offsets":[1,8]})"), "tensor 'a' leaves a hole before it.");
  EXPECT_EQ(defect_of(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                              R"("b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})",
                              "12345")),
            "tensor 'b' overlaps the one before it.");
}

TEST(Safetensors, AFileCutOffAnywhereIsAnErrorWithItsName) {
  const TemporaryFolder folder;
  const auto path = (folder / "x").string();
  const auto bytes = write_safetensors(path, samples()).bytes;
  for (std::uint64_t size = bytes; size-- > 0;) {
    std::filesystem::resize_file(path, size);
    ASSERT_THAT([&] { read_safetensors(path); }, ThrowsMessage<RuntimeFault>(HasSubstr("'" + path + "': "))) << size;
  }
}

}  // namespace
}  // namespace capstan
