#include "capstan/sdk/compression.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "core/registry/host.hpp"
#include "core/registry/plugin_call.hpp"
#include "core/text/json.hpp"

namespace capstan::sdk {
namespace {

using ::testing::ElementsAre;

/// A piece of zeros of a parameter with so many elements and groups.
class Piece {
 public:
  Piece(std::uint64_t offset, std::uint64_t numel, std::uint64_t full, std::uint64_t groups)
      : input_(at::zeros({static_cast<std::int64_t>(numel)}, at::kFloat)) {
    raw_.struct_size = sizeof raw_;
    raw_.name = to_str("w");
    raw_.offset = offset;
    raw_.numel = numel;
    raw_.full_numel = full;
    raw_.groups = groups;
    raw_.input = reinterpret_cast<capstan_tensor>(&input_);
  }
  Piece(const Piece&) = delete;
  CompressedPiece sdk() const { return CompressedPiece(&raw_); }

 private:
  at::Tensor input_;
  capstan_compressed raw_{};
};

using Segment = std::tuple<std::size_t, std::size_t, std::size_t>;  // group, begin, end

/// Element by element: a cut is where the group or the run of 32,768 elements changes.
std::vector<Segment> brute_force(const CompressedPiece& piece) {
  std::vector<Segment> segments;
  const auto group_of = [&](std::uint64_t i) { return (piece.offset() + i) / piece.group_size(); };
  const auto run_of = [&](std::uint64_t i) { return (piece.offset() + i) / 32768; };
  for (std::uint64_t i = 0; i < piece.input().size(); ++i) {
    if (i == 0 || group_of(i) != group_of(i - 1) || run_of(i) != run_of(i - 1)) {
      segments.emplace_back(group_of(i) - group_of(0), i, i);
    }
    std::get<2>(segments.back()) = i + 1;
  }
  return segments;
}

TEST(CompressedPiece, IsCutAtTheEndsOfGroupsAndAtMultiplesOf32768) {
  constexpr std::uint64_t kBlock = 32768, kFull = 3 * kBlock + 5 * 384;
  for (const std::uint64_t groups : {1, 2, 3, 7, 48, 1056, 25056}) {
    if (kFull % groups != 0) continue;
    for (const std::uint64_t offset : {std::uint64_t{0}, kBlock, 2 * kBlock, 3 * kBlock}) {
      for (const std::uint64_t numel : {kBlock, 2 * kBlock, kFull - offset}) {
        if (offset + numel > kFull) continue;
        const Piece made(offset, numel, kFull, groups);
        const CompressedPiece piece = made.sdk();
        const std::vector<Segment> wanted = brute_force(piece);
        std::vector<Segment> found, in_parallel(wanted.size());
        piece.for_each_segment([&](std::size_t segment, std::size_t group, std::size_t begin, std::size_t end) {
          EXPECT_EQ(segment, found.size());
          found.emplace_back(group, begin, end);
        });
        piece.parallel_segments([&](std::size_t segment, std::size_t group, std::size_t begin, std::size_t end) {
          in_parallel.at(segment) = {group, begin, end};
        });
        ASSERT_EQ(found, wanted) << groups << " groups, from " << offset << ", " << numel;
        ASSERT_EQ(in_parallel, wanted) << groups << " groups, from " << offset << ", " << numel;
        EXPECT_EQ(piece.segment_count(), wanted.size());
        EXPECT_EQ(piece.group_count(), std::get<0>(wanted.back()) + 1);
      }
    }
  }
}

TEST(CompressedPiece, WithoutElementsHasNoGroupsAndNoSegments) {
  const Piece made(0, 0, 100, 4);
  const CompressedPiece piece = made.sdk();
  EXPECT_EQ(piece.group_count(), 0u);
  EXPECT_EQ(piece.segment_count(), 0u);
  piece.for_each_segment([](auto...) { FAIL(); });
}

TEST(CompressedPiece, NamesItsParameterWhenItFails) {
  const Piece made(0, 4, 4, 1);
  EXPECT_THAT([&] { made.sdk().fail("has no code."); }, ::testing::ThrowsMessage<Error>("parameter 'w': has no code."));
}

TEST(CompressionPlan, IsWrittenAsJsonWhateverTheNamesHold) {
  CompressionPlan plan;
  plan.parameters.push_back({"a.\"b\"\\c", 64, {{Join::kMax}, {Join::kSum, Join::kMin}}, 4, true});
  plan.parameters.push_back({"d", 1, {}, 0, false});
  plan.operands = {"fc"};
  plan.named_by = {{"a\"b", "section.modules"}, {"fc", "list[0]"}};
  plan.report = {"two\nlines\t1"};
  const Json json = Json::parse(plan.json());

  const Json& first = json.at("parameters").as_array().at(0);
  EXPECT_EQ(first.at("name").as_string(), "a.\"b\"\\c");
  EXPECT_EQ(first.at("groups"), Json(64));
  EXPECT_EQ(first.at("measures").dump(), R"([["max"],["sum","min"]])");
  EXPECT_EQ(first.at("bits"), Json(4));
  EXPECT_EQ(first.at("zero_points"), Json(true));
  EXPECT_EQ(json.at("parameters").as_array().at(1).dump(), R"({"name":"d","groups":1})");
  EXPECT_EQ(json.at("operands").dump(), R"(["fc"])");
  EXPECT_EQ(json.at("named_by").at("a\"b").as_string(), "section.modules");
  EXPECT_EQ(json.at("named_by").at("fc").as_string(), "list[0]");
  EXPECT_EQ(json.at("report").as_array().at(0).as_string(), "two\nlines\t1");
  EXPECT_EQ(json.at("warnings").size(), 0u);
}

TEST(ModelTable, IsReadFromWhatTheEngineTells) {
  const std::string text = R"({"modules": [{"path": "", "class": "Net", "parameters": [
        {"name": "scale", "shape": [], "trained": true}]},
      {"path": "blocks.0.fc", "class": "torch.nn.Linear", "parameters": [
        {"name": "weight", "shape": [64, 16], "trained": false}]}], "seed": 42})";
  const capstan_host host = make_host();
  capstan_error error;
  const ModelTable table = ModelTable::read(Document(&host, to_str(text), &error));

  ASSERT_EQ(table.modules.size(), 2u);
  EXPECT_EQ(table.seed, 42u);
  EXPECT_EQ(table.modules[0].full_name("scale"), "scale");
  EXPECT_EQ(table.modules[1].class_name, "torch.nn.Linear");
  EXPECT_EQ(table.modules[1].full_name("weight"), "blocks.0.fc.weight");
  const ModelModule::Parameter* weight = table.modules[1].find("weight");
  ASSERT_NE(weight, nullptr);
  EXPECT_THAT(weight->shape, ElementsAre(64, 16));
  EXPECT_FALSE(weight->trained);
  EXPECT_EQ(table.modules[1].find("bias"), nullptr);
}

}  // namespace
}  // namespace capstan::sdk
