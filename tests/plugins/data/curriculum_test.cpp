#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "capstan/sdk/indexed_file.hpp"
#include "core/data/sampler.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "tests/support/hash_uniform.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using sdk::IndexedRows;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAreArray;
using Numbers = std::vector<std::int64_t>;

/// The index files of metrics, as an analysis writes them, and samplers over them.
class Curriculum : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  void write_rows(const std::string& name, const std::vector<Numbers>& rows, sdk::IndexedType type) const {
    sdk::IndexedWriter writer(path(name), type);
    for (const Numbers& row : rows) {
      writer.append(row);
      writer.end_row();
    }
    writer.end_document();
    writer.finish();
  }

  /// Sample i has values[i].
  void write_metric(const std::string& name, const Numbers& values) {
    std::map<std::int64_t, Numbers> by_value;
    for (std::size_t i = 0; i < values.size(); ++i) by_value[values[i]].push_back(static_cast<std::int64_t>(i));
    std::vector<Numbers> samples, metrics;
    for (const auto& [value, members] : by_value) {
      samples.push_back(members);
      metrics.push_back({value});
    }
    write_rows(name + "_index_to_sample", samples, sdk::IndexedType::kU32);
    write_rows(name + "_index_to_metric", metrics, sdk::IndexedType::kI64);
    values_[name] = values;
  }

  std::string files(const std::string& name) const {
    return R"("index_to_sample_path": ")" + path(name + "_index_to_sample") + R"(", "index_to_metric_path": ")" +
           path(name + "_index_to_metric") + R"(", )";
  }

  /// A metric whose difficulty is `from` in step 1 and rises by `by` a step.
  std::string metric(const std::string& name, std::int64_t from, std::int64_t to, std::int64_t by,
                     const std::string& type = "value", const std::string& clustering = "schedule_based") const {
    Numbers levels, ends;
    for (std::int64_t level = from; level < to; level += by) {
      levels.push_back(level);
      ends.push_back(static_cast<std::int64_t>(levels.size()));
    }
    levels.push_back(to);
    if (ends.empty()) {
      levels.push_back(to);
      ends.push_back(1);
    }
    const auto list = [](const Numbers& numbers) {
      std::string text;
      for (const std::int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
      return "[" + text + "]";
    };
    return "\"" + name + "\": {" + files(name) + R"("difficulty_type": ")" + type + R"(", "clustering_type": ")" +
           clustering + R"(", "min_difficulty": )" + std::to_string(from) + R"(, "max_difficulty": )" +
           std::to_string(to) + R"(, "schedule_type": "fixed_discrete", "schedule_config": {"difficulty": )" +
           list(levels) + R"(, "max_step": )" + list(ends) + "}}";
  }

  Sampler sampler(const std::string& metrics, std::int64_t samples, std::int64_t batch = 8, std::uint64_t seed = 1234,
                  const std::string& fingerprint = "") const {
    static const PluginIndex plugins = PluginIndex::scan();
    static Registry registry(plugins);
    Sampler made(registry.create(
        "test", "sampler", "curriculum",
        Json::parse(R"({"data_cluster_path": ")" + path("clusters") + R"(", "curriculum_metrics": {)" + metrics + "}}"),
        model_host()));
    made.start({.samples = samples, .fingerprint = fingerprint, .batch = batch, .seed = seed, .passes = 0});
    return made;
  }

  static Numbers next(Sampler& sampler, std::int64_t step) {
    const auto samples = sampler.of_step(step);
    return {samples.begin(), samples.end()};
  }

  /// Samples whose value lies in (above, up_to].
  std::set<std::int64_t> within(const std::string& name, std::int64_t above, std::int64_t up_to) const {
    std::set<std::int64_t> out;
    const Numbers& values = values_.at(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] > above && values[i] <= up_to) out.insert(static_cast<std::int64_t>(i));
    }
    return out;
  }

  TemporaryFolder folder_;
  std::map<std::string, Numbers> values_;
};

Numbers hashed(const std::string& name, std::int64_t count, std::int64_t low, std::int64_t high) {
  Numbers out;
  for (const float u : testing::hash_uniform("metric." + name, static_cast<std::size_t>(count), 1)) {
    out.push_back(low + static_cast<std::int64_t>(
                            std::floor((static_cast<double>(u) + 1) / 2 * static_cast<double>(high - low + 1))));
  }
  return out;
}

TEST_F(Curriculum, DrawsNothingThatIsHarderThanTheStepAllows) {
  const Numbers lengths = hashed("len", 500, 1, 60);
  write_metric("len", lengths);
  Sampler sampler = this->sampler(metric("len", 5, 60, 5), 500, 16);
  std::set<std::int64_t> seen;
  for (std::int64_t step = 0; step < 40; ++step) {
    const std::int64_t limit = std::min<std::int64_t>(5 + 5 * step, 60);
    for (const std::int64_t sample : next(sampler, step)) {
      ASSERT_LE(lengths[static_cast<std::size_t>(sample)], limit) << step;
      seen.insert(sample);
    }
  }
  EXPECT_GT(seen.size(), 250u);  // of 640 draws from 500
}

TEST_F(Curriculum, TakesEachMemberOfAClusterOnceAPass) {
  write_metric("len", hashed("len", 50, 1, 10));
  const std::set<std::int64_t> members = within("len", 0, 6);
  Sampler sampler = this->sampler(metric("len", 6, 6, 1), 50);
  std::map<std::int64_t, int> counts;
  std::vector<Numbers> passes;
  for (std::int64_t step = 0; step < 100; ++step) {
    for (const std::int64_t sample : next(sampler, step)) ++counts[sample];
    int least = 1 << 30, most = 0;
    for (const std::int64_t member : members) {
      least = std::min(least, counts[member]);
      most = std::max(most, counts[member]);
    }
    ASSERT_LE(most - least, 1) << step;
  }
  EXPECT_EQ(counts.size(), members.size());
}

TEST_F(Curriculum, FillsABatchFromAClusterThatIsSmaller) {
  write_metric("len", {1, 9, 1, 9, 9});
  Sampler sampler = this->sampler(metric("len", 1, 1, 1), 5, 8);
  Numbers found = next(sampler, 0);
  std::sort(found.begin(), found.end());
  EXPECT_THAT(found, ElementsAre(0, 0, 0, 0, 2, 2, 2, 2));
}

TEST_F(Curriculum, DrawsFromClustersInProportionToTheirSizes) {
  // 100, 300 and 600 samples of the difficulties 1, 2 and 3.
  Numbers values;
  for (std::int64_t i = 0; i < 1000; ++i) values.push_back(i % 10 == 0 ? 1 : i % 10 < 4 ? 2 : 3);
  write_metric("len", values);
  Sampler sampler = this->sampler(metric("len", 1, 3, 1), 1000, 10);
  for (std::int64_t step = 0; step < 2; ++step) next(sampler, step);
  std::map<std::int64_t, double> counts;
  for (std::int64_t step = 2; step < 1002; ++step) {
    for (const std::int64_t sample : next(sampler, step)) ++counts[values[static_cast<std::size_t>(sample)]];
  }
  for (const auto& [value, share] : std::map<std::int64_t, double>{{1, 0.1}, {2, 0.3}, {3, 0.6}}) {
    EXPECT_NEAR(counts[value], 10'000 * share, 4 * std::sqrt(10'000 * share * (1 - share))) << value;
  }
}

TEST_F(Curriculum, OrdersEachPassAndEachSeedAnew) {
  // A pass is four steps. What a step has is the question, not in which order: that is shuffled, too.
  write_metric("len", Numbers(64, 1));
  const auto steps = [&](std::uint64_t seed) {
    Sampler sampler = this->sampler(metric("len", 1, 1, 1), 64, 16, seed);
    std::vector<Numbers> all;
    for (std::int64_t step = 0; step < 8; ++step) all.push_back(next(sampler, step));
    return all;
  };
  const auto sorted = [](Numbers numbers) {
    std::sort(numbers.begin(), numbers.end());
    return numbers;
  };
  const auto first = steps(1), second = steps(2);
  EXPECT_EQ(first, steps(1));
  EXPECT_NE(sorted(first[0]), sorted(second[0]));
  EXPECT_NE(sorted(first[0]), sorted(first[4]));
  EXPECT_NE(first[0], sorted(first[0]));
  Numbers all(64);
  std::iota(all.begin(), all.end(), 0);
  for (const std::size_t pass : {0u, 4u}) {
    Numbers found;
    for (std::size_t step = pass; step < pass + 4; ++step) {
      found.insert(found.end(), first[step].begin(), first[step].end());
    }
    EXPECT_EQ(sorted(found), all);
  }
}

TEST_F(Curriculum, TakesOfSeveralMetricsWhatLiesWithinAllLimits) {
  const Numbers lengths = hashed("len", 300, 1, 8), words = hashed("voc", 300, 10, 300);
  write_metric("len", lengths);
  write_metric("voc", words);
  Sampler sampler = this->sampler(metric("len", 3, 8, 1) + ", " + metric("voc", 80, 300, 20), 300, 32);
  std::set<std::int64_t> seen;
  for (std::int64_t step = 0; step < 30; ++step) {
    const std::int64_t length = std::min<std::int64_t>(3 + step, 8), word = std::min<std::int64_t>(80 + 20 * step, 300);
    for (const std::int64_t sample : next(sampler, step)) {
      ASSERT_LE(lengths[static_cast<std::size_t>(sample)], length) << step;
      ASSERT_LE(words[static_cast<std::size_t>(sample)], word) << step;
      seen.insert(sample);
    }
  }
  EXPECT_GT(seen.size(), 200u);
}

TEST_F(Curriculum, GivesAllSamplesWhereNoMetricIsClustered) {
  Sampler sampler = this->sampler(metric("anything", 3, 8, 1, "value", "single_cluster"), 40, 20);
  std::set<std::int64_t> seen;
  for (std::int64_t step = 0; step < 2; ++step) {
    for (const std::int64_t sample : next(sampler, step)) seen.insert(sample);
  }
  EXPECT_EQ(seen.size(), 40u);  // a pass
}

TEST_F(Curriculum, CountsPercentilesOfTheSamples) {
  // 48 samples and 12 percentiles of 4; the index has merged rows.
  const Numbers values = hashed("len", 48, 1, 8);
  write_metric("len", values);
  Sampler sampler = this->sampler(metric("len", 3, 12, 1, "percentile"), 48, 12);
  Numbers sorted = values;
  std::sort(sorted.begin(), sorted.end());
  for (std::int64_t step = 0; step < 12; ++step) {
    const std::int64_t percentile = std::min<std::int64_t>(3 + step, 12);
    for (const std::int64_t sample : next(sampler, step)) {
      EXPECT_LE(values[static_cast<std::size_t>(sample)], sorted[static_cast<std::size_t>(percentile * 4 - 1)]);
    }
  }
}

/// Recorded draws: everything that does not hang on the generator of the peer.
TEST_F(Curriculum, FormsTheRecordedClusters) {
  const Json recorded = Json::parse(read_bytes(CAPSTAN_TEST_SOURCE_DIR "/tests/plugins/data/sampler_recording.json"));
  for (const Json& one : recorded.at("cases").as_array()) {
    SCOPED_TRACE(one.at("name").as_string());
    const std::int64_t samples = one.at("samples").as_integer(), batch = one.at("batch").as_integer();
    write_metric("len", hashed("len", 48, 1, 8));
    write_metric("voc", hashed("voc", 48, 10, 300));
    write_metric("wide", hashed("wide", 400, 0, 70000));
    std::string metrics;
    for (const auto& [name, config] : one.at("metrics").as_object()) {
      std::string text = config.dump();
      metrics += (metrics.empty() ? "" : ", ") + ("\"" + name + "\": {" + files(name) + text.substr(1));
    }
    std::filesystem::remove_all(folder_ / "clusters");
    {
      Sampler sampler = this->sampler(metrics, samples, batch);
      std::size_t step = 0;
      for (const Json& draw : one.at("draws").as_array()) {
        next(sampler, static_cast<std::int64_t>(step++));
        const Json state = Json::parse(*sampler.save(0).text);
        Numbers sizes, difficulties;
        std::int64_t drawn = 0;
        for (const Json& cluster : state.at("clusters").as_array()) {
          sizes.push_back(cluster.at("size").as_integer());
          drawn += cluster.at("drawn").as_integer();
        }
        for (const Json& value : state.at("difficulties").as_array()) difficulties.push_back(value.as_integer());
        const auto numbers = [](const Json& list) {
          Numbers out;
          for (const Json& value : list.as_array()) out.push_back(value.as_integer());
          return out;
        };
        EXPECT_EQ(sizes, numbers(draw.at("sizes"))) << step;
        EXPECT_EQ(difficulties, numbers(draw.at("difficulties"))) << step;
        EXPECT_EQ(drawn, static_cast<std::int64_t>(step) * batch);
      }
    }
    std::size_t compared = 0;
    for (const auto& [name, members] : one.at("clusters").as_object()) {
      const Numbers found = IndexedRows(path("clusters/" + name)).row(0);
      Numbers wanted;
      for (const Json& sample : members.as_array()) wanted.push_back(sample.as_integer());
      EXPECT_THAT(found, UnorderedElementsAreArray(wanted)) << name;
      ++compared;
    }
    EXPECT_GT(compared, 0u);
  }
}

TEST_F(Curriculum, GoesOnWhereItWasSaved) {
  write_metric("len", hashed("len", 300, 1, 8));
  write_metric("voc", hashed("voc", 300, 10, 300));
  for (const std::string& metrics : {metric("len", 2, 8, 1), metric("len", 5, 30, 1, "percentile"),
                                     metric("len", 3, 8, 1, "value", "single_cluster"),
                                     metric("len", 3, 8, 1) + ", " + metric("voc", 80, 300, 20)}) {
    Sampler straight = sampler(metrics, 300), stopped = sampler(metrics, 300);
    for (std::int64_t step = 0; step < 30; ++step) {
      const Numbers wanted = next(straight, step);
      // Each step by a sampler of its own.
      Sampler resumed = sampler(metrics, 300);
      resumed.load(stopped.save(step), step);
      ASSERT_EQ(next(resumed, step), wanted) << step;
      ASSERT_EQ(next(stopped, step), wanted) << step;
    }
  }
}

TEST_F(Curriculum, RefusesAStateThatItsFilesDoNotFit) {
  write_metric("len", {1, 1, 2, 3});
  Sampler before = sampler(metric("len", 1, 3, 1), 4);
  next(before, 0);
  const Sampler::Saved saved = before.save(1);
  write_metric("len", {1, 2, 2, 3});
  Sampler after = sampler(metric("len", 1, 3, 1), 4);
  const Numbers wanted = next(after, 0);
  EXPECT_THAT([&] { after.load(saved, 1); }, ThrowsMessage<RuntimeFault>(HasSubstr(
                                                 "cluster 0 had 2 samples when it was saved, and has 1 now: the index "
                                                 "files or curriculum_metrics have changed. Resume with those of "
                                                 "before.")));
  EXPECT_EQ(next(after, 0), wanted);  // as it was
  Sampler two = sampler(metric("len", 1, 3, 1) + ", " + metric("voc", 1, 3, 1, "value", "single_cluster"), 4);
  EXPECT_THAT([&] { two.load(saved, 1); },
              ThrowsMessage<RuntimeFault>(HasSubstr("was saved with 1 curriculum_metrics, and has 2 now.")));
}

TEST_F(Curriculum, TellsWhatIsWrongWithIndexFiles) {
  const auto says = [&](const std::string& text, const std::string& metrics, std::int64_t samples = 4) {
    EXPECT_THAT([&] { sampler(metrics, samples); }, ThrowsMessage<RuntimeFault>(HasSubstr(text)));
  };
  const std::string value = metric("len", 1, 3, 1), bin = path("len_index_to_sample.bin");
  says("'" + path("len_index_to_sample.idx") + "': there is no such file. Make the index with 'capstan analyze'",
       value);

  write_metric("len", {1, 1, 2, 3});
  says(bin +
           ": has 4 samples, and the data has 5: the metric was measured on other data, or at another sequence length.",
       value, 5);
  const auto u8 = sdk::IndexedType::kU8;
  write_rows("len_index_to_sample", {{0, 1}, {2}, {2}}, u8);
  says(bin + ": value 3 is sample 2, which stands before it already: each sample must be there once.", value);
  write_rows("len_index_to_sample", {{0, 1}, {2}, {4}}, u8);
  says(bin + ": value 3 is sample 4, and the data has 4 samples.", value);
  write_rows("len_index_to_sample", {{0, 1}, {2}, {3}}, u8);
  write_rows("len_index_to_metric", {{1}, {3}, {2}}, u8);
  says(path("len_index_to_metric.bin") + ": the value of row 2 is 2, behind 3: values must ascend.", value);
  write_rows("len_index_to_metric", {{1}, {2}}, u8);
  says(path("len_index_to_sample.idx") + ": has 3 rows, and " + path("len_index_to_metric.idx") +
           " has 2 values: the two do not belong together. With difficulty_type \"value\" index_to_sample_path is the "
           "plain index",
       value);

  write_metric("len", {1, 1, 2, 3});
  std::filesystem::resize_file(bin, 8);
  says(bin + ": has 8 bytes, and", value);
  write_metric("len", {5, 6, 7, 8});
  Sampler empty = sampler(value, 4);
  EXPECT_THAT([&] { next(empty, 0); },
              ThrowsMessage<RuntimeFault>(HasSubstr("curriculum_metrics: no sample is as easy as the first step "
                                                    "demands: 'len' up to 1 (the least is 5). Raise min_difficulty.")));
  says("curriculum_metrics.len.max_difficulty: 100 percentiles cannot be made of 4 samples. Lower it.",
       metric("len", 1, 100, 1, "percentile"));
}

TEST_F(Curriculum, TellsThatAMetricWasMeasuredOnOtherData) {
  write_metric("len", {1, 1, 2, 3});
  write_bytes(folder_ / "len_analysis.json", R"({"fingerprint": "abc", "samples": 4})");
  EXPECT_NO_THROW(sampler(metric("len", 1, 3, 1), 4, 8, 1, "abc"));
  EXPECT_THAT([&] { sampler(metric("len", 1, 3, 1), 4, 8, 1, "xyz"); },
              ThrowsMessage<RuntimeFault>(HasSubstr(
                  path("len_index_to_sample") + ": the metric was measured on other data (fingerprint abc, and that "
                                                "of this data is xyz). Run capstan analyze on this data")));
}

TEST_F(Curriculum, TellsThatItsFolderCannotBeWritten) {
  write_metric("len", {1, 1, 2, 3});
  write_bytes(folder_ / "clusters", "a file");
  EXPECT_THAT(
      [&] { sampler(metric("len", 1, 3, 1), 4); },
      ThrowsMessage<RuntimeFault>(HasSubstr("data_cluster_path '" + path("clusters") + "': cannot be written: ")));
}

TEST_F(Curriculum, LooksAgainAtFilesThatHaveChangedAfterTheyWereChecked) {
  write_metric("len", {1, 1, 2, 3});
  { sampler(metric("len", 1, 3, 1), 4); }
  ASSERT_TRUE(std::filesystem::exists(folder_ / "clusters/len.checked"));
  EXPECT_NO_THROW(sampler(metric("len", 1, 3, 1), 4));
  write_rows("len_index_to_sample", {{0, 1}, {2}, {2}}, sdk::IndexedType::kU32);
  EXPECT_THAT([&] { sampler(metric("len", 1, 3, 1), 4); },
              ThrowsMessage<RuntimeFault>(HasSubstr("each sample must be")));
}

}  // namespace
}  // namespace capstan
