#pragma once

#include "cli/arguments.hpp"

/// One function a command; each gives the exit code, or throws one of core/errors.hpp.
namespace capstan::cli {

// In bin/capstan: without LibTorch.
int validate(const ValidateArguments& arguments);
int schema(const SchemaArguments& arguments);
int report(const ReportArguments& arguments);
int upgrade(const UpgradeArguments& arguments);
int elastic(const ElasticArguments& arguments);
int launch(const LaunchArguments& arguments);
int data_convert(const DataConvertArguments& arguments);
int data_tokenize(const DataTokenizeArguments& arguments);
int data_chat(const DataChatArguments& arguments);
int data_show(const DataShowArguments& arguments);
int data_stats(const DataStatsArguments& arguments);
int plugins_list(const PluginsListArguments& arguments);
int plugins_inspect(const PluginsInspectArguments& arguments);
int plugins_install(const PluginsInstallArguments& arguments);
int plugins_remove(const PluginsRemoveArguments& arguments);
int plugins_new(const PluginsNewArguments& arguments);

// In libexec/capstan-engine.
int train(const TrainArguments& arguments);
int tune(const TuneArguments& arguments);
int evaluate(const EvalArguments& arguments);
int generate(const GenerateArguments& arguments);
int analyze(const AnalyzeArguments& arguments);
int export_weights(const ExportArguments& arguments);
int doctor(const DoctorArguments& arguments);
int plan(const PlanArguments& arguments);
int verify(const VerifyArguments& arguments);
int checkpoint_show(const CheckpointShowArguments& arguments);
int checkpoint_list(const CheckpointListArguments& arguments);
int checkpoint_prune(const CheckpointPruneArguments& arguments);
int checkpoint_verify(const CheckpointVerifyArguments& arguments);
int checkpoint_diff(const CheckpointDiffArguments& arguments);
int model_show(const ModelShowArguments& arguments);
int attention_show(const AttentionShowArguments& arguments);

// In libexec/capstan-conformance.
int plugins_check(const PluginsCheckArguments& arguments);

}  // namespace capstan::cli
