#include "cli/plan_text.hpp"

#include <algorithm>

#include "core/text/numbers.hpp"
#include "core/text/table.hpp"

namespace capstan::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string amount(std::int64_t bytes) { return bytes_text(static_cast<std::uint64_t>(bytes)); }

const char* tier_text(MemoryTier tier) {
  return tier == MemoryTier::kMemory ? "memory" : tier == MemoryTier::kHost ? "host" : "disk";
}

const char* device_text(MemoryTier tier) {
  return tier == MemoryTier::kMemory ? "none" : tier == MemoryTier::kHost ? "cpu" : "nvme";
}

std::string head_text(const Plan& plan) {
  const PlannedRun& run = plan.run;
  std::int64_t largest = 0;
  for (const PlannedParameter& parameter : run.parameters) largest = std::max(largest, parameter.numel);
  std::string text = plan.model + ": " + grouped(run.elements()) + " parameters in " +
                     counted(static_cast<std::int64_t>(run.parameters.size()), "tensor") + ", " + grouped(largest) +
                     " in the largest\n";
  text += plan.precision + ", " + plan.optimizer + ", zero_optimization.stage " +
          std::to_string(plan.configured.choice.stage) + ", " + grouped(run.world) +
          (run.world > 1 ? " processes" : " process");
  if (run.world > 1) text += ", " + std::to_string(run.local_world) + " of them on a host";
  if (!plan.on_cpu()) text += ", on " + plan.device;
  if (plan.assumes_batch) {
    text +=
        "\ntrain_micro_batch_size_per_gpu is not given: planned for micro-batches of 1 sample. For more: --set "
        "train_micro_batch_size_per_gpu=8, for instance";
  }
  return text + "\n";
}

/// What a micro-batch's forward and backward keep.
std::string activations_text(const Plan& plan) {
  if (!plan.plain.unknown.empty()) {
    return "what forward keeps for backward, which is not known (" + plan.plain.unknown + "), and ";
  }
  const auto text = [](const PlannedPass& pass) {
    return amount(pass.kept_bytes) + ", at most " + amount(pass.peak_bytes) + " with what operators work on";
  };
  if (!plan.recomputing || !plan.recomputing->unknown.empty()) {
    return "what a micro-batch's forward keeps for backward, " + text(plan.plain) + ";\n  ";
  }
  return "what a micro-batch's forward keeps for backward with activation checkpointing, " + text(*plan.recomputing) +
         ",\n  (without it " + text(plan.plain) + ");\n  ";
}

std::string memory_text(const Plan& plan) {
  Rows rows = {{"memory of a process", "", ""}};
  const MemoryPlan& memory = plan.configured.memory;
  for (const PlannedBytes& item : memory.items) {
    rows.push_back({"  " + item.what, amount(item.bytes), tier_text(item.tier)});
  }
  for (const MemoryTier tier : {MemoryTier::kMemory, MemoryTier::kHost, MemoryTier::kDisk}) {
    const std::int64_t bytes = memory.training(tier);
    if (bytes > 0) rows.push_back({"  together", amount(bytes), tier_text(tier)});
  }
  if (memory.building > memory.training(MemoryTier::kMemory)) {
    rows.push_back({"  while the model is built", amount(memory.building), "memory"});
  }
  rows.push_back({"  the program and its libraries", amount(plan.program), "host"});
  if (plan.snapshots > 0) {
    rows.push_back({"  snapshots of an elastic launch", amount(plan.snapshots), "host, /dev/shm"});
  }
  return table_text(rows) + "  Beside these, " + activations_text(plan) +
         "up to 64 MB of freed memory that the heap keeps.\n";
}

std::string attention_text(const Plan& plan) {
  if (!plan.attention) return "";
  const SparsePart& part = *plan.attention;
  const std::string begin = "\nattention over the blocks of '" + part.layout + "' (" + part.where + ")\n  ";
  if (part.calls == 0) {
    return begin +
           (plan.plain.unknown.empty() ? "the model calls no attention that can be sparse"
                                       : "not counted: " + plan.plain.unknown) +
           "\n";
  }
  const double density = part.scores / part.dense_scores;
  return begin + grouped(part.calls) + (part.calls == 1 ? " call" : " calls") +
         " in a micro-batch's forward: " + grouped(static_cast<std::int64_t>(part.scores)) + " of " +
         grouped(static_cast<std::int64_t>(part.dense_scores)) + " scores, " + fixed(100 * density, 1) + " %\n";
}

const MemoryPlan* memory_of(const Plan& plan, const ZeroChoice& choice) {
  for (const PlannedChoice& one : plan.choices) {
    if (one.choice == choice) return &one.memory;
  }
  return nullptr;
}

/// Why stage 3 needs more memory than stage 2, if it does: by what it holds and stage 2 does not.
std::string stage3_text(const Plan& plan) {
  const MemoryPlan *second = memory_of(plan, {.stage = 2}), *third = memory_of(plan, {.stage = 3});
  if (!second || !third || third->peak(MemoryTier::kMemory) <= second->peak(MemoryTier::kMemory)) return "";
  std::vector<std::string> beside;
  for (const PlannedBytes& item : third->items) {
    const bool shared = std::any_of(second->items.begin(), second->items.end(),
                                    [&](const PlannedBytes& other) { return other.what == item.what; });
    if (!shared) beside.push_back(amount(item.bytes) + " of " + item.what);
  }
  return "  Stage 3 needs more than stage 2: it holds " + joined(beside) +
         " beside its shards.\n  A lower stage3_max_reuse_distance (now " +
         grouped(plan.run.zero.stage3_max_reuse_distance) + ") keeps fewer gathered.\n";
}

std::string choices_text(const Plan& plan) {
  Rows rows = {{"  stage", "offload_optimizer", "offload_param", "memory", "host", "disk", "not in this build"}};
  for (const PlannedChoice& one : plan.choices) {
    const char* mark = one.choice == plan.configured.choice ? "> " : "  ";
    rows.push_back({mark + std::to_string(one.choice.stage), device_text(one.choice.optimizer),
                    device_text(one.choice.parameters), amount(one.memory.peak(MemoryTier::kMemory)),
                    amount(one.memory.training(MemoryTier::kHost)), amount(one.memory.training(MemoryTier::kDisk)),
                    one.lacks});
  }
  const bool all_are_here =
      std::all_of(plan.choices.begin(), plan.choices.end(), [](const PlannedChoice& one) { return one.lacks.empty(); });
  for (auto& row : rows) {
    if (all_are_here) row.pop_back();
  }
  return "memory of a process, by stage and offload\n" + table_text(rows) +
         (plan.on_cpu() ? "  >: as configured. The model computes on the CPU: memory and host are one.\n"
                        : "  >: as configured. Memory is that of a GPU.\n") +
         (plan.on_cpu() ? stage3_text(plan) : "");
}

struct Sum {
  std::int64_t bytes = 0, between_nodes = 0;
};

Sum sum_of(const std::vector<PlannedTraffic>& rows) {
  Sum sum;
  for (const PlannedTraffic& row : rows) sum = {sum.bytes + row.bytes, sum.between_nodes + row.between_nodes};
  return sum;
}

std::string traffic_text(const Plan& plan) {
  if (plan.run.world == 1) return "sent in a step: nothing, with one process\n";
  Rows rows = {{"sent by rank 0 in a step", "collective", "bytes", "to other hosts"}};
  const auto row = [&](const std::string& what, const std::string& collective, const Sum& sum) {
    rows.push_back({"  " + what, collective, grouped(sum.bytes), grouped(sum.between_nodes)});
  };
  const auto stage = static_cast<std::size_t>(plan.configured.choice.stage);
  for (const PlannedTraffic& one : plan.traffic[stage]) {
    row(one.what, one.collective, {one.bytes, one.between_nodes});
  }
  row("together, stage " + std::to_string(stage), "", sum_of(plan.traffic[stage]));
  for (std::size_t other = 0; other < plan.traffic.size(); ++other) {
    if (other != stage) row("stage " + std::to_string(other), "", sum_of(plan.traffic[other]));
  }
  return table_text(rows);
}

std::string limits_text(const Plan& plan) {
  Rows rows = {{"on this host", "there is", "needed", ""}};
  for (const PlannedLimit& one : plan.limits) {
    rows.push_back(
        {"  " + one.limit.what, bytes_text(one.limit.bytes), amount(one.needed), one.fits() ? "fits" : "does not fit"});
  }
  for (const Limit& gpu : plan.on_cpu() ? plan.gpus : std::vector<Limit>()) {
    rows.push_back({"  " + gpu.what, bytes_text(gpu.bytes), "0 B", "not used: the model computes on the CPU"});
  }
  return table_text(rows);
}

Json pass_json(const PlannedPass& pass) {
  Json json = Json::object();
  if (!pass.unknown.empty()) {
    json["unknown"] = pass.unknown;
    return json;
  }
  json["kept_bytes"] = pass.kept_bytes;
  json["peak_bytes"] = pass.peak_bytes;
  return json;
}

Json traffic_json(const std::vector<PlannedTraffic>& rows) {
  Json list = Json::array();
  for (const PlannedTraffic& row : rows) {
    Json entry = Json::object();
    entry["what"] = row.what;
    entry["collective"] = row.collective;
    entry["bytes"] = row.bytes;
    entry["to_other_hosts"] = row.between_nodes;
    list.push_back(std::move(entry));
  }
  return list;
}

Json choice_json(const PlannedChoice& one) {
  Json json = Json::object();
  json["stage"] = one.choice.stage;
  json["offload_optimizer"] = device_text(one.choice.optimizer);
  json["offload_param"] = device_text(one.choice.parameters);
  Json& items = json["items"] = Json::array();
  for (const PlannedBytes& item : one.memory.items) {
    Json entry = Json::object();
    entry["what"] = item.what;
    entry["bytes"] = item.bytes;
    entry["place"] = tier_text(item.tier);
    items.push_back(std::move(entry));
  }
  json["building"] = one.memory.building;
  for (const MemoryTier tier : {MemoryTier::kMemory, MemoryTier::kHost, MemoryTier::kDisk}) {
    json[tier_text(tier)] = one.memory.peak(tier);
  }
  if (!one.lacks.empty()) json["lacks"] = one.lacks;
  return json;
}

}  // namespace

std::int64_t Plan::process_bytes() const {
  const std::int64_t model = on_cpu() ? configured.memory.peak(MemoryTier::kMemory) : 0;
  return program + model + configured.memory.training(MemoryTier::kHost) + snapshots;
}

std::string plan_text(const Plan& plan) {
  return head_text(plan) + attention_text(plan) + "\n" + memory_text(plan) + "\n" + choices_text(plan) + "\n" +
         traffic_text(plan) + "\n" + limits_text(plan);
}

Json plan_json(const Plan& plan) {
  Json json = Json::object();
  json["model"] = plan.model;
  json["parameters"] = plan.run.elements();
  json["tensors"] = static_cast<std::int64_t>(plan.run.parameters.size());
  json["world"] = plan.run.world;
  json["local_world"] = plan.run.local_world;
  json["device"] = plan.device;
  json["micro_batch"] = plan.micro_batch;
  if (plan.assumes_batch) json["micro_batch_assumed"] = true;
  json["program"] = plan.program;
  json["process"] = plan.process_bytes();
  json["checkpoint"] = plan.checkpoint;
  if (plan.snapshots > 0) json["snapshots"] = plan.snapshots;
  json["configured"] = choice_json(plan.configured);
  json["activations"] = pass_json(plan.plain);
  if (plan.recomputing) json["recomputing"] = pass_json(*plan.recomputing);
  if (plan.attention) {
    Json& attention = json["attention"] = Json::object();
    attention["layout"] = plan.attention->layout;
    attention["calls"] = plan.attention->calls;
    attention["scores"] = plan.attention->scores;
    attention["dense_scores"] = plan.attention->dense_scores;
  }
  json["choices"] = Json::array();
  for (const PlannedChoice& one : plan.choices) json["choices"].push_back(choice_json(one));
  json["traffic"] = Json::array();
  for (const auto& stage : plan.traffic) json["traffic"].push_back(traffic_json(stage));
  json["limits"] = Json::array();
  for (const PlannedLimit& one : plan.limits) {
    Json entry = Json::object();
    entry["what"] = one.limit.what;
    entry["bytes"] = static_cast<std::int64_t>(one.limit.bytes);
    entry["needed"] = one.needed;
    entry["fits"] = one.fits();
    json["limits"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace capstan::cli
