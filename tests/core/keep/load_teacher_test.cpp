#include <gmock/gmock.h>
#include <torch/torch.h>

#include "core/checkpoint/export.hpp"
#include "core/errors.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ProbeRun;
using ::testing::ThrowsMessage;

std::string model_of(int layers, const std::string& more = "") {
  return R"("layers": )" + std::to_string(layers) + R"(, "d": 32, "heads": 2, "seq": 16, "init_seed": )" +
         (more.empty() ? "1" : more);
}

std::string section(const std::string& layers, int count,
                    const std::string& others = R"(["tok_emb", "pos_emb", "head"])",
                    const std::string& prefix = "blocks") {
  return R"("compression_training": {"layer_reduction": {"enabled": true, "keep_number_layer": )" +
         std::to_string(count) + R"(, "module_name_prefix": ")" + prefix + R"(", "teacher_layer": )" + layers +
         R"(, "other_module_name": )" + others + "}}";
}

/// A teacher of four layers that has trained a little, as a checkpoint and as a file.
class LoadTeacher : public ::testing::Test {
 protected:
  LoadTeacher() : teacher_("", "", model_of(4)) {
    teacher_.steps(3);
    checkpoint_ = folder_.path().string() + ":" + teacher_.engine->save_checkpoint(folder_.path().string(), "taught");
    file_ = folder_ / "teacher.safetensors";
    export_checkpoint(folder_.path(), "taught", ExportFormat::kSafetensors, file_);
  }

  void expect_taught(const ProbeRun& student, const std::string& own, const std::string& of_teacher) const {
    EXPECT_TRUE(student.parameter(own).equal(teacher_.parameter(of_teacher))) << own;
  }

  TemporaryFolder folder_;
  ProbeRun teacher_;
  std::string checkpoint_;
  std::filesystem::path file_;
};

TEST_F(LoadTeacher, TakesLayersAndOtherModulesFromACheckpointAFileOrAFolderOfTransformers) {
  export_hf(
      folder_.path(), "taught", [&](const Json&) { return hf_format(teacher_.engine->model().describe(), "gpt"); },
      folder_ / "hf");
  for (const std::string& from : {checkpoint_, folder_.path().string(), file_.string(), (folder_ / "hf").string()}) {
    SCOPED_TRACE(from);
    ProbeRun student("", section("[0, 2]", 2), model_of(2, "9"));
    const at::Tensor norm = student.parameter("ln_f.weight").clone();

    student.engine->load_teacher(from);

    for (const char* name : {".attn.qkv.weight", ".attn.qkv.bias", ".mlp.proj.weight", ".ln1.weight"}) {
      expect_taught(student, std::string("blocks.0") + name, std::string("blocks.0") + name);
      expect_taught(student, std::string("blocks.1") + name, std::string("blocks.2") + name);
    }
    expect_taught(student, "tok_emb.weight", "tok_emb.weight");
    expect_taught(student, "head.weight", "head.weight");
    EXPECT_TRUE(student.parameter("ln_f.weight").equal(norm)) << "was not named";
    student.steps(1);
  }
}

TEST_F(LoadTeacher, BeginsBetterThanAtRandom) {
  teacher_.steps(40);
  export_checkpoint(
      folder_.path(),
      [&] {
        teacher_.engine->save_checkpoint(folder_.path().string(), "better");
        return std::string("better");
      }(),
      ExportFormat::kSafetensors, folder_ / "better.safetensors");
  ProbeRun student("", section("[0, 2]", 2, R"(["tok_emb", "pos_emb", "head", "ln_f"])"), model_of(2, "9"));
  student.engine->load_teacher(folder_ / "better.safetensors");
  ProbeRun random("", "", model_of(2, "9"));

  EXPECT_LT(student.step(), random.step() - 1);
}

TEST_F(LoadTeacher, GivesEachRankOfStage3ItsPart) {
  const std::string file = file_.string();
  const at::Tensor expected = teacher_.parameter("blocks.2.mlp.fc.weight").clone();
  const std::string copy = (folder_ / "expected.pt").string();
  torch::save(expected, copy);
  test::expect_on_ranks(2, [&](Communicator& communicator) {
    // Each process of the test makes the teacher again, and trains it alike.
    const std::shared_ptr<Communicator> all(&communicator, [](Communicator*) {});
    ProbeRun student("", section("[0, 2]", 2) + R"(, "bf16": {"enabled": true},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0})",
                     model_of(2, "9"), all);
    student.engine->load_teacher(file);
    const auto whole = student.engine->gather();
    EXPECT_TRUE(student.parameter("blocks.1.mlp.fc.weight").equal(expected.to(at::kBFloat16)));
  });
}

TEST_F(LoadTeacher, SaysWhatDoesNotFit) {
  const auto refused = [&](const std::string& members, const std::string& model, const std::string& from) {
    ProbeRun student("", members, model);
    student.engine->load_teacher(from);
  };
  EXPECT_THAT(
      [&] { refused(section("[0, 2]", 2), model_of(3), file_); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("keep_number_layer: 2, but of 'blocks' the student has the layers "
                                                 "0 to 2"))));
  EXPECT_THAT([&] { refused(section("[0, 7]", 2), model_of(2), file_); },
              ThrowsMessage<ConfigError>("compression_training.layer_reduction.teacher_layer[1]: 7, and of 'blocks' "
                                         "teacher '" +
                                         file_.string() + "' has the layers 0 to 3."));
  EXPECT_THAT(
      [&] { refused(section("[9, 7]", 2, R"(["embeddings"])"), model_of(2), file_); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("no module 'embeddings'.\n"), HasSubstr("teacher_layer[0]: 9, and"),
                                       HasSubstr("teacher_layer[1]: 7, and"))));
  EXPECT_THAT([&] { refused(section("[0, 2]", 2), R"("layers": 2, "d": 64, "heads": 2, "seq": 16)", file_); },
              ThrowsMessage<RuntimeFault>(AllOf(HasSubstr("'blocks.0."), HasSubstr("of the student"))));
  EXPECT_THAT([&] { refused(section("[0, 2]", 2, R"(["embeddings"])"), model_of(2), file_); },
              ThrowsMessage<ConfigError>(HasSubstr("other_module_name: the student has no module 'embeddings'")));
  EXPECT_THAT(
      [&] { refused(section("[0, 2]", 2, "[]", "layers"), model_of(2), file_); },
      ThrowsMessage<ConfigError>("compression_training.layer_reduction.keep_number_layer: 2, but of 'layers' the "
                                 "student has the layers none. Correct module_name_prefix."));
  EXPECT_THAT([&] { refused(section("[0, 2]", 2), model_of(2), "no/such"); },
              ThrowsMessage<RuntimeFault>(HasSubstr("teacher 'no/such': there is no such checkpoint")));
}

TEST_F(LoadTeacher, SaysWhatAFolderOfTransformersLacks) {
  export_hf(
      folder_.path(), "taught", [&](const Json&) { return hf_format(teacher_.engine->model().describe(), "gpt"); },
      folder_ / "hf");
  ProbeRun deeper("", section("[0, 7]", 2), model_of(2)), wider("", section("[0, 2]", 2), R"("layers": 2, "d": 64)");
  EXPECT_THAT(
      [&] { deeper.engine->load_teacher(folder_ / "hf"); },
      ThrowsMessage<ConfigError>("compression_training.layer_reduction.teacher_layer[1]: 7, and of 'blocks' teacher '" +
                                 (folder_ / "hf").string() + "' has the layers 0 to 3."));
  EXPECT_THAT([&] { wider.engine->load_teacher(folder_ / "hf"); },
              ThrowsMessage<RuntimeFault>(HasSubstr("n_embd is 32, and that of model 'gpt' is 64")));
}

TEST_F(LoadTeacher, IsAskedForBeforeTheFirstForward) {
  ProbeRun student("", section("[0, 2]", 2), model_of(2));
  EXPECT_THAT([&] { student.step(); }, ThrowsMessage<RuntimeFault>(HasSubstr("Call Engine::load_teacher()")));
  student.engine->load_teacher(file_);
  student.steps(1);
  student.engine->save_checkpoint(folder_.path().string(), "student");

  ProbeRun resumed("", section("[0, 2]", 2), model_of(2));
  resumed.engine->load_checkpoint(folder_.path().string(), "student");
  EXPECT_EQ(resumed.step(), student.step());
}

TEST_F(LoadTeacher, IsOfNoUseWithoutTheSection) {
  EXPECT_THAT([&] { teacher_.engine->load_teacher(file_); }, ThrowsMessage<ConfigError>(HasSubstr("is not enabled")));
}

}  // namespace
}  // namespace capstan
