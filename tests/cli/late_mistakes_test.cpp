// Mistakes of a configuration that show only once the model is built: they end with the exit code of a configuration's
// mistake, and a run names all that one look at the model finds.

#include <gmock/gmock.h>

#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kModel = R"("capstan": {"model": {"type": "gpt", "params": {"layers": 4, "d": 16, "heads": 2,
  "seq": 16}}})";

class LateMistakes : public ::testing::Test {
 protected:
  LateMistakes() { write_bytes(folder_ / "text.txt", some_text()); }

  ProcessResult train(const std::string& members, const std::vector<std::string>& more = {},
                      const std::string& model = kModel) const {
    write_bytes(folder_ / "config.json",
                R"({"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, )" +
                    members + ", " + model + "}");
    std::vector<std::string> words = {"train", "--config", "config.json", "--data", "text.txt", "--steps", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return run_capstan(folder_, words);
  }

  /// Expects exit code 3 and each line of `lines`, one after the other.
  void refuses(const std::string& members, const std::string& lines, const std::vector<std::string>& more = {},
               const std::string& model = kModel) const {
    const ProcessResult result = train(members, more, model);
    EXPECT_EQ(result.exit_code, 3) << members << result.err;
    EXPECT_THAT(result.err, HasSubstr("capstan: error: " + lines));
  }

  TemporaryFolder folder_;
};

std::string compression(const std::string& method, const std::string& shared, const std::string& group) {
  return R"("compression_training": {")" + method + R"(": {"shared_parameters": {"enabled": true)" + shared +
         R"(}, "different_groups": {"g": {)" + group + "}}}}";
}

std::string weights_of(const std::string& modules, const std::string& groups = "1") {
  return compression("weight_quantization", R"(, "quantize_weight_in_forward": true, "quantize_groups": )" + groups,
                     R"("params": {"start_bits": 8, "target_bits": 8}, "modules": [)" + modules + "]");
}

TEST_F(LateMistakes, OfCompressionsEndWithTheCodeOfAConfiguration) {
  refuses(weights_of(R"("mlp.fc")", "7"),
          "compression_training.weight_quantization.shared_parameters.quantize_groups: 7 does not divide the weight of "
          "'blocks.0.mlp.fc', which has 1024 elements; 4 and 8 do.\n"
          "compression_training.weight_quantization.shared_parameters.quantize_groups: 7 does not divide the weight of "
          "'blocks.1.mlp.fc'");
  refuses(
      compression("row_pruning", R"(, "method": "l1")",
                  R"("params": {"dense_ratio": 0.5}, "modules": ["mlp.fc"], "related_modules": [["attn.proj"]])"),
      "compression_training.row_pruning.different_groups.g.related_modules[0]: 'blocks.0.attn.proj', whose weight is "
      "[16, 16], has 16 inputs, and 'blocks.0.mlp.fc', whose weight is [64, 16], needs 64.");
}

/// As in DeepSpeed's file of 4-bit and 8-bit BERT: none of its names is the model's.
TEST_F(LateMistakes, AreCompressionsThatActOnNothing) {
  const std::string words = R"("attention.self", "intermediate")";
  const std::string both = R"("compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true,
    "quantize_weight_in_forward": true}, "different_groups": {"wq1": {"params": {"start_bits": 8, "target_bits": 4},
    "modules": [)" + words +
                           R"(]}}}, "activation_quantization": {"shared_parameters": {"enabled": true},
    "different_groups": {"aq1": {"params": {"bits": 8}, "modules": [)" +
                           words + "]}}}}";
  const std::string acts =
      ": acts on no trained module of this model, so the run would train without it. Correct the "
      "modules of its groups ('capstan model show' prints the paths), switch it off, or set "
      "capstan.run.on_mismatch to \"continue\".";
  refuses(both,
          "compression_training.weight_quantization" + acts + "\ncompression_training.activation_quantization" + acts);

  const ProcessResult goes_on = train(both, {"--set", "capstan.run.on_mismatch=continue"});
  EXPECT_EQ(goes_on.exit_code, 0) << goes_on.err;
  EXPECT_THAT(goes_on.err, HasSubstr("capstan: warning: compression_training.weight_quantization: acts on no trained "
                                     "module of this model: the run trains without it (capstan.run.on_mismatch is "
                                     "\"continue\")."));
  const ProcessResult in_part = train(weights_of(R"("mlp.fc", "attention.self")"));
  EXPECT_EQ(in_part.exit_code, 0) << in_part.err;
  EXPECT_THAT(in_part.err, AllOf(HasSubstr("modules[1]: 'attention.self' is found in the path of no module"),
                                 Not(HasSubstr("acts on no"))));
  EXPECT_EQ(run_capstan(folder_, {"plan", "--config", "config.json", "--set",
                                  R"(compression_training.weight_quantization.different_groups.g.modules=["none"])"})
                .exit_code,
            3);
}

TEST_F(LateMistakes, OfComponentsThatLookAtLayersAreNamedTogether) {
  const std::string ltd = R"("data_efficiency": {"enabled": true, "data_routing": {"enabled": true, "random_ltd": {
    "enabled": true, "total_layer_num": 24, "random_ltd_layer_num": 2, "random_ltd_layer_id": [1, 12],
    "model_mask_name": null, "model_type": "decoder", "hidden_state_order": "batch_seq_dim", "random_ltd_schedule": {
    "min_value": 8, "max_value": 16, "schedule_type": "fixed_linear", "schedule_config": {"require_steps": 4,
    "seq_per_step": 4}}}}})";
  refuses(ltd,
          "data_efficiency.data_routing.random_ltd.total_layer_num: 24, but the model has 4 layers, 'blocks.0' to "
          "'blocks.3'.\ndata_efficiency.data_routing.random_ltd.random_ltd_layer_id: the model has no layer 12");
  refuses(R"("fp16": {"enabled": true}, "compression_training": {"weight_quantization": {"shared_parameters": {
            "enabled": true, "quantize_weight_in_forward": false}, "different_groups": {"g": {"params": {"start_bits": 8,
            "target_bits": 6, "quantization_period": 2}, "modules": ["mlp"]}}}}, "quantize_training": {"eigenvalue": {
            "enabled": true, "layer_name": "bert.encoder.layer", "layer_num": 2}})",
          "quantize_training.eigenvalue.layer_name: the model has no trained parameter under 'bert.encoder.layer.0'");
}

TEST_F(LateMistakes, OfLayoutsAreFoundByTheModelsFirstAttention) {
  refuses(R"("sparse_attention": {"mode": "fixed", "block": 48})",
          "sparse_attention.mode: attention 'fixed': a block has 48 tokens, and a sequence 16.");
  refuses(R"("sparse_attention": {"mode": "bigbird", "block": 8, "num_random_blocks": 3})",
          "sparse_attention.mode: attention 'bigbird': num_random_blocks: 3 is above the 2 blocks of a sequence.");
}

TEST_F(LateMistakes, OfOptimizersThatKnowTheGroups) {
  const std::vector<std::string> one_bit = {
      "--set", "optimizer.type=OneBitAdam",
      "--set", R"(optimizer.params={"lr": 0.001, "freeze_step": 10})",
      "--set", R"(capstan.parameter_groups=[{"dims_below": 2, "params": {"freeze_step": 20}}])"};
  refuses(R"("steps_per_print": null)",
          "optimizer.params.freeze_step: is one for all parameter groups; group 1 has another one. Set it in "
          "optimizer.params alone.",
          one_bit);
}

TEST_F(LateMistakes, OfDataAndTeachersAreThoseOfTheConfigurationToo) {
  refuses(R"("curriculum_learning": {"enabled": true, "curriculum_type": "seqlen", "min_difficulty": 4,
            "max_difficulty": 16, "schedule_type": "custom"})",
          "the schedule of 'seqlen' is \"custom\", and nothing says its difficulty.");
  const std::string metric = R"({"index_to_sample_path": "none_index_to_sample", "index_to_metric_path":
    "none_index_to_metric", "difficulty_type": "value", "clustering_type": "schedule_based", "min_difficulty": 1,
    "max_difficulty": 9, "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 4,
    "difficulty_step": 1}})";
  const std::string key = "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.";
  refuses(R"("data_efficiency": {"enabled": true, "data_sampling": {"enabled": true, "num_epochs": 9,
            "curriculum_learning": {"enabled": true, "data_cluster_path": "clusters", "curriculum_metrics": {"len": )" +
              metric + R"(, "voc": )" + metric + "}}}}",
          key +
              "len.index_to_sample_path: 'none_index_to_sample.idx': there is no such file. Make the index with "
              "'capstan analyze', and name it without its ending.\n" +
              key +
              "len.index_to_metric_path: 'none_index_to_metric.idx': there is no such file. Make the index with "
              "'capstan analyze', and name it without its ending.\n" +
              key + "voc.index_to_sample_path: 'none_index_to_sample.idx'");

  ASSERT_EQ(train(R"("steps_per_print": null)", {"--save", "teacher"}).exit_code, 0);
  const std::string student = R"("capstan": {"model": {"type": "gpt", "params": {"layers": 2, "d": 16, "heads": 2,
    "seq": 16}}})";
  const auto reduction = [](const char* prefix, const char* layers) {
    return std::string(R"("compression_training": {"layer_reduction": {"enabled": true, "keep_number_layer": 2,
      "module_name_prefix": ")") +
           prefix + R"(", "teacher_layer": )" + layers + R"(, "other_module_name": ["ln_f"]}})";
  };
  refuses(reduction("bert.layer", "[1, 3]"),
          "compression_training.layer_reduction.keep_number_layer: 2, but of 'bert.layer' the student has the layers "
          "none. Correct module_name_prefix.",
          {"--teacher", "teacher"}, student);
  refuses(
      reduction("blocks", "[9, 3]"),
      "compression_training.layer_reduction.teacher_layer[0]: 9, and of 'blocks' teacher 'teacher' has the layers 0 "
      "to 3.",
      {"--teacher", "teacher"}, student);
}

}  // namespace
}  // namespace capstan::cli
