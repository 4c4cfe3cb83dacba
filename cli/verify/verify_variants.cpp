#include "cli/verify/verify_variants.hpp"

#include <algorithm>

#include "core/registry/plugin_index.hpp"

namespace capstan::cli {
namespace {

constexpr const char *kZero = "zero_optimization", *kPlain = "plain: stage 0, 1 process";
constexpr const char *kResume = "resuming", *kOffload = "offload";
constexpr const char* kNotSaved =
    "Something that training depends on is not in the checkpoint: a state that the optimizer's manifest does not "
    "declare, "
    "a counter, a generator of random numbers.";
constexpr const char* kOfParts =
    "The update depends on which part of a parameter a rank has, or on how often it is called.";

/// A batch of `batch` samples as micro-batches of `rows` on each of the processes.
Settings batch_of(std::int64_t batch, std::int64_t rows, int processes) {
  return {{"train_batch_size", batch},
          {"train_micro_batch_size_per_gpu", rows},
          {"gradient_accumulation_steps", batch / (rows * processes)}};
}

/// The largest number up to `most` that divides `count`.
std::int64_t divisor(std::int64_t count, std::int64_t most) {
  std::int64_t found = std::min(count, most);
  while (count % found != 0) --found;
  return found;
}

Json stage(int number) {
  Json section = Json::object();
  section["stage"] = number;
  // Everything is partitioned, or small models would be whole everywhere.
  if (number == 3) section["stage3_param_persistence_threshold"] = 0;
  return section;
}

Json with(Json section, std::initializer_list<std::pair<const char*, Json>> members) {
  for (const auto& [key, value] : members) section[key] = value;
  return section;
}

Json device(const char* name, const std::filesystem::path& folder = {}) {
  Json section = Json::object();
  section["device"] = name;
  if (!folder.empty()) section["nvme_path"] = folder.string();
  return section;
}

Settings operator+(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

double epsilon_of(const PrecisionConfig& precision) {
  const bool half = precision.compute == Precision::kFp16 || precision.autocast_dtype == "float16";
  const bool bfloat = precision.compute == Precision::kBf16 || precision.autocast_dtype == "bfloat16";
  return bfloat ? 0x1p-7 : half ? 0x1p-10 : 0x1p-23;
}

}  // namespace

std::vector<VerifyVariant> verify_variants(const Config& config, int processes, const std::filesystem::path& scratch,
                                           const std::vector<std::string>& peers) {
  const std::int64_t batch = config.batch.train_batch_size, rows = config.batch.micro_batch_size;
  const double epsilon = epsilon_of(config.precision);
  const Settings alone = batch_of(batch, rows, 1), plain = {{kZero, stage(0)}};

  std::vector<VerifyVariant> variants;
  variants.push_back({.name = kPlain, .reference = "", .settings = alone + plain});
  variants.push_back({.name = "the same once more", .reference = kPlain, .settings = alone + plain});

  for (const std::string& peer : peers) {
    variants.push_back({.name = peer == "plain" ? "PyTorch's own loop" : "DeepSpeed, stage 0, 1 process",
                        .reference = kPlain,
                        .settings = alone + plain,
                        .bound = VerifyBound::within("another order of the optimizer's operations", epsilon),
                        .badge = peer == "plain" ? "as PyTorch" : "as DeepSpeed",
                        .peer = peer});
  }

  const std::int64_t other_rows = rows > 1 ? divisor(rows, rows / 2) : batch;
  variants.push_back(
      {.name = "micro-batches of " + std::to_string(other_rows),
       .reference = kPlain,
       .settings = batch_of(batch, other_rows, 1) + plain,
       .bound = VerifyBound::within("products of other sizes, and sums of other micro-batches", epsilon),
       .hint = "The model depends on how a batch is cut: it mixes rows, or keeps values between its calls.",
       .badge = "accumulation",
       .impossible = batch == 1 ? "train_batch_size is 1, which has no other split" : ""});
  variants.push_back({.name = "each layer computed again",
                      .reference = kPlain,
                      .settings = alone + plain + Settings{{"capstan.recompute.every", 1}},
                      .hint = "A layer computes something else the second time: it keeps values between its calls.",
                      .badge = "recomputation"});
  variants.push_back(
      {.name = "after another engine",
       .reference = kPlain,
       .settings = alone + plain,
       .hint = "Something that training depends on is kept in the process, by a static object for instance.",
       .second = true});
  variants.push_back({.name = "saved and resumed",
                      .reference = kPlain,
                      .settings = alone + plain,
                      .hint = kNotSaved,
                      .badge = kResume,
                      .saved_by = 1,
                      .saved_settings = alone + plain});

  const bool on_cpu = config.device == "cpu";
  const std::filesystem::path emulated = emulated_device_folder();
  variants.push_back({.name = on_cpu ? "on the emulated device" : "on the CPU",
                      .reference = kPlain,
                      .settings = alone + plain + Settings{{"capstan.run.device", on_cpu ? "cuda" : "cpu"}},
                      .plugin_path = on_cpu ? emulated.string() : "",
                      .bound = VerifyBound::within("the optimizer's kernels of another device", epsilon),
                      .hint = "The model names a device, or makes tensors without one.",
                      .badge = "device",
                      .impossible = on_cpu && !std::filesystem::exists(emulated)
                                        ? "the emulated device is not installed, which a whole build has"
                                        : ""});

  const std::string several = std::to_string(processes) + " processes";
  const std::string apart = "stage 0, " + several;
  const std::int64_t share = batch / processes;
  const std::string impossible = batch % processes == 0
                                     ? ""
                                     : "train_batch_size is " + std::to_string(batch) + ", which " + several +
                                           " cannot share. Choose a multiple, or another --world";
  const Settings shared = impossible.empty() ? batch_of(batch, divisor(share, rows), processes) : Settings();
  variants.push_back({.name = apart,
                      .reference = kPlain,
                      .processes = processes,
                      .settings = shared + plain,
                      .bound = VerifyBound::within("sums of " + std::to_string(processes) + " ranks", epsilon),
                      .badge = several,
                      .impossible = impossible});
  if (std::find(peers.begin(), peers.end(), "deepspeed") != peers.end()) {
    variants.push_back(
        {.name = "DeepSpeed, stage 2, " + several,
         .reference = apart,
         .processes = processes,
         .settings = shared + Settings{{kZero, stage(2)}},
         .bound = VerifyBound::within("another order of sums and of the optimizer's operations", epsilon),
         .badge = "as DeepSpeed",
         .peer = "deepspeed",
         .impossible = impossible});
  }
  const auto add = [&](const std::string& name, const std::string& badge, const Settings& settings) {
    variants.push_back({.name = name,
                        .reference = apart,
                        .processes = processes,
                        .settings = shared + settings,
                        .hint = kOfParts,
                        .badge = badge,
                        .impossible = impossible});
  };
  if (config.zero.stage > 0) add("as configured, " + several, "", {});
  for (const int number : {1, 2, 3}) {
    const std::string of = std::to_string(number);
    add("stage " + of + ", " + several, "ZeRO " + of, {{kZero, stage(number)}});
  }
  add("stage 2, overlapped, small buckets", "overlap",
      {{kZero,
        with(stage(2), {{"overlap_comm", true}, {"reduce_bucket_size", 5000}, {"allgather_bucket_size", 5000}})}});
  add("stage 2, optimizer offloaded to cpu", kOffload,
      {{kZero, with(stage(2), {{"offload_optimizer", device("cpu")}})}});
  add("stage 3, all offloaded to nvme", kOffload,
      {{kZero,
        with(stage(3), {{"offload_optimizer", device("nvme", scratch)}, {"offload_param", device("nvme", scratch)}})}});
  variants.push_back({.name = "saved at stage 0, resumed at stage 3",
                      .reference = apart,
                      .processes = processes,
                      .settings = shared + Settings{{kZero, stage(3)}},
                      .hint = kNotSaved,
                      .badge = kResume,
                      .impossible = impossible,
                      .saved_by = processes,
                      .saved_settings = shared + plain});
  variants.push_back({.name = "saved at stage 2, resumed by 1 process",
                      .reference = kPlain,
                      .settings = alone + plain,
                      .bound = VerifyBound::within("sums of " + std::to_string(processes) + " ranks", epsilon),
                      .hint = kNotSaved,
                      .badge = kResume,
                      .impossible = impossible,
                      .saved_by = processes,
                      .saved_settings = shared + Settings{{kZero, stage(2)}}});
  return variants;
}

}  // namespace capstan::cli
