#include "core/zero/memory_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace capstan {
namespace {

/// Mixed precision Adam, as ZeRO's paper counts: 16-bit weights and gradients, fp32 masters and two moments.
PlannedRun mixed_adam(std::int64_t numel, int tensors, int world) {
  PlannedRun run;
  for (int i = 0; i < tensors; ++i) {
    PlannedParameter parameter;
    parameter.numel = numel / tensors;
    parameter.shape = {numel / tensors / 1000, 1000};
    parameter.state_bytes = 8;
    parameter.built_bytes = 4 * parameter.numel;
    run.parameters.push_back(parameter);
  }
  run.compute_bytes = run.accumulation_bytes = run.communication_bytes = 2;
  run.world = world;
  run.local_world = world;
  return run;
}

std::int64_t bytes_of(const MemoryPlan& plan, const std::string& what) {
  std::int64_t bytes = 0;
  for (const PlannedBytes& item : plan.items) bytes += item.what == what ? item.bytes : 0;
  return bytes;
}

std::int64_t bytes_in(const MemoryPlan& plan, const std::string& what, MemoryTier tier) {
  std::int64_t bytes = 0;
  for (const PlannedBytes& item : plan.items) bytes += item.what == what && item.tier == tier ? item.bytes : 0;
  return bytes;
}

std::int64_t model_states(const MemoryPlan& plan) {
  return bytes_of(plan, "parameters") + bytes_of(plan, "fp32 masters") + bytes_of(plan, "optimizer state") +
         bytes_of(plan, "gradients");
}

TEST(MemoryPlan, GivesThePapersFiguresForABillionParametersOnEightRanks) {
  const PlannedRun run = mixed_adam(1'000'000'000, 100, 8);
  const double expected[] = {16e9, 5.5e9, 3.75e9, 2e9};
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_NEAR(static_cast<double>(model_states(plan_memory(run, {stage}))), expected[stage], 2e-3 * expected[stage])
        << "stage " << stage;
  }
}

/// Weights are their own masters; with moments of 16 bits too, 4 bytes an element are left of 12. Beside that there is
/// a tile of 32 MiB for the fp32 values of one run of elements.
TEST(MemoryPlan, LeavesOutMastersThatAreTheWeights) {
  PlannedRun run = mixed_adam(1'000'000'000, 100, 8);
  run.master_bytes = 2;
  run.wide_bytes = 4;
  const double with_fp32_moments[] = {12e9, 4e9 + 8e9 / 8, 2e9 + 10e9 / 8, 12e9 / 8};
  const double with_16_bits[] = {8e9, 4e9 + 4e9 / 8, 2e9 + 6e9 / 8, 8e9 / 8};
  for (int stage = 0; stage <= 3; ++stage) {
    const MemoryPlan plan = plan_memory(run, {stage});
    EXPECT_NEAR(static_cast<double>(model_states(plan)), with_fp32_moments[stage], 2e-3 * with_fp32_moments[stage]);
    EXPECT_EQ(bytes_of(plan, "fp32 tile of what is kept in 16 bits"), 32 << 20);
    EXPECT_EQ(bytes_of(plan, "16-bit masters"), 0);
  }
  run.wide_bytes = 12;
  for (PlannedParameter& parameter : run.parameters) parameter.state_bytes = 4;
  for (int stage = 0; stage <= 3; ++stage) {
    const MemoryPlan plan = plan_memory(run, {stage});
    EXPECT_NEAR(static_cast<double>(model_states(plan)), with_16_bits[stage], 2e-3 * with_16_bits[stage]);
    EXPECT_LE(bytes_of(plan, "fp32 tile of what is kept in 16 bits"), 32 << 20);
  }
  // On a device whose optimizer is in host memory, masters of 16 bits are there.
  run.on_device = true;
  const MemoryPlan host = plan_memory(run, {2, MemoryTier::kHost});
  EXPECT_NEAR(static_cast<double>(bytes_of(host, "16-bit masters")), 2e9 / 8, 1e6);
  EXPECT_EQ(bytes_of(host, "16-bit copies for the device"), 0);
  EXPECT_EQ(bytes_in(host, "fp32 tile of what is kept in 16 bits", MemoryTier::kMemory), 0);
}

/// Two codes and two scales of a block of 2048, where Adam has two floats.
TEST(MemoryPlan, CountsAValueForEveryBegunBlock) {
  PlannedRun run = mixed_adam(1'000'000'000, 100, 8);
  for (PlannedParameter& parameter : run.parameters) {
    parameter.state_bytes = 2;
    parameter.block_states = {{2048, 4}, {2048, 4}};
  }
  EXPECT_EQ(run.parameters[0].bytes_of_states(10'000'000), 20'000'000 + 2 * 4 * 4883);
  EXPECT_EQ(run.parameters[0].bytes_of_states(1), 2 + 2 * 4);
  EXPECT_EQ(run.parameters[0].bytes_of_states(0), 0);
  EXPECT_EQ(bytes_of(plan_memory(run, {0}), "optimizer state"), 100 * (20'000'000 + 2 * 4 * 4883));
  EXPECT_NEAR(static_cast<double>(bytes_of(plan_memory(run, {2}), "optimizer state")), 2.004e9 / 8, 1e6);
}

TEST(MemoryPlan, KeepsWhatIsOffloadedElsewhere) {
  const PlannedRun run = mixed_adam(1'000'000'000, 100, 8);
  const MemoryPlan cpu = plan_memory(run, {2, MemoryTier::kHost});
  EXPECT_NEAR(static_cast<double>(model_states(cpu)), 3.75e9, 1e7);  // the same in all
  // Masters, moments and the gradients' part: (4 + 8 + 2) P / W.
  EXPECT_NEAR(static_cast<double>(cpu.training(MemoryTier::kHost)), 14e9 / 8, 1e7);

  const MemoryPlan nvme = plan_memory(run, {3, MemoryTier::kDisk, MemoryTier::kDisk});
  // Weights, masters, moments and gradients.
  EXPECT_NEAR(static_cast<double>(nvme.training(MemoryTier::kDisk)), 16e9 / 8, 1e7);
  EXPECT_EQ(bytes_of(nvme, "staging of offload"), 3 * 64 * 32768 * 16);  // three tiles of 32 MiB
}

/// 10 tensors of a million, stage 3 in one process.
PlannedRun one_process_in_fp32() {
  PlannedRun run = mixed_adam(10'000'000, 10, 1);
  run.compute_bytes = run.accumulation_bytes = run.communication_bytes = 4;
  run.zero.stage3_max_reuse_distance = run.zero.stage3_max_live_parameters = 0;
  run.zero.stage3_prefetch_bucket_size = 0;
  return run;
}

TEST(MemoryPlan, OneProcessHasNothingButTilesAndLiveParametersWhereBothAreAway) {
  const PlannedRun run = one_process_in_fp32();
  const MemoryPlan plan = plan_memory(run, {3, MemoryTier::kDisk, MemoryTier::kDisk});
  EXPECT_EQ(plan.training(MemoryTier::kDisk), 160'000'000);  // parameters, two moments, gradients
  EXPECT_EQ(bytes_in(plan, "parameters", MemoryTier::kMemory), 0);
  // A tensor of a million elements of 4 bytes, of which at most two are in use or in the making.
  EXPECT_LE(bytes_of(plan, "live parameters"), 2 * 4'000'000);
  EXPECT_EQ(bytes_in(plan, "gradients", MemoryTier::kMemory), 4'000'000);
  EXPECT_EQ(plan.building, 0);
  // Three tiles of 32 MiB are less than 4 buffers of 10 million elements of 4 bytes.
  EXPECT_EQ(bytes_of(plan, "staging of offload"), 3 * 32 * 1024 * 1024);
  EXPECT_EQ(bytes_of(plan, "staging of gradients"), 3 * 4 * 1024 * 1024);
}

TEST(MemoryPlan, MaxInCpuAndPersistentParametersStay) {
  PlannedRun run = one_process_in_fp32();
  run.zero.offload_param.emplace().device = "nvme";
  run.zero.offload_param->max_in_cpu = 3'500'000;  // three tensors
  MemoryPlan plan = plan_memory(run, {3, MemoryTier::kMemory, MemoryTier::kDisk});
  EXPECT_EQ(bytes_in(plan, "parameters", MemoryTier::kDisk), 7 * 4'000'000);
  EXPECT_EQ(bytes_in(plan, "parameters", MemoryTier::kMemory), 3 * 4'000'000);
  EXPECT_EQ(bytes_in(plan, "optimizer state", MemoryTier::kMemory), 80'000'000);
  EXPECT_EQ(bytes_in(plan, "gradients", MemoryTier::kMemory), 40'000'000);
  run.zero.stage3_param_persistence_threshold = 1'000'000;
  plan = plan_memory(run, {3, MemoryTier::kMemory, MemoryTier::kDisk});
  EXPECT_EQ(plan.training(MemoryTier::kDisk), 0);
}

TEST(MemoryPlan, RatioIsTheShareOfSubGroupsThatIsAway) {
  PlannedRun run = mixed_adam(10'000'000, 10, 1);
  run.zero.sub_group_size = 2'000'000;  // five groups
  run.zero.offload_optimizer.emplace().device = "nvme";
  run.zero.offload_optimizer->ratio = 0.5;  // int(0.5 * 5) = 2 stay
  const MemoryPlan plan = plan_memory(run, {3, MemoryTier::kDisk});
  EXPECT_EQ(bytes_in(plan, "fp32 masters", MemoryTier::kDisk), 3 * 2'000'000 * 4);
  EXPECT_EQ(bytes_in(plan, "fp32 masters", MemoryTier::kMemory), 2 * 2'000'000 * 4);
  EXPECT_EQ(bytes_in(plan, "optimizer state", MemoryTier::kDisk), 3 * 2'000'000 * 8);
  // Never above buffer_count times the largest sub-group in fp32.
  EXPECT_LE(bytes_of(plan, "staging of offload"), 4 * 2'000'000 * 4);
}

TEST(MemoryPlan, AStoreInHostMemoryIsHostMemory) {
  PlannedRun run = mixed_adam(10'000'000, 10, 1);
  run.optimizer_in_memory = true;
  const MemoryPlan plan = plan_memory(run, {0, MemoryTier::kDisk});
  EXPECT_EQ(plan.training(MemoryTier::kDisk), 0);
  EXPECT_EQ(bytes_in(plan, "optimizer state", MemoryTier::kHost), 80'000'000);
}

TEST(MemoryPlan, OneProcessHoldsEverythingAtEveryStage) {
  const PlannedRun run = mixed_adam(10'000'000, 10, 1);
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_EQ(plan_memory(run, {stage}).training(MemoryTier::kMemory), 160'000'000) << stage;
  }
  PlannedRun fp32 = run;
  fp32.compute_bytes = fp32.accumulation_bytes = fp32.communication_bytes = 4;  // the weights are the masters
  EXPECT_EQ(plan_memory(fp32, {0}).training(MemoryTier::kMemory), 160'000'000);
}

TEST(MemoryPlan, LiveParametersOfStage3AreLimited) {
  PlannedRun run = mixed_adam(1'000'000'000, 100, 8);
  run.zero.stage3_max_reuse_distance = 2'000'000'000;  // from the first use in forward to the last in backward
  EXPECT_EQ(bytes_of(plan_memory(run, {3}), "live parameters"), 2'000'000'000);
  // What is kept is: of 10 million each, those whose next use is less than 500 million away, there and back.
  run.zero.stage3_max_reuse_distance = 500'000'000;
  run.zero.stage3_max_live_parameters = 50'000'000;
  EXPECT_EQ(bytes_of(plan_memory(run, {3}), "live parameters"), 500'000'000);
  run.zero.stage3_max_reuse_distance = 0;
  EXPECT_EQ(bytes_of(plan_memory(run, {3}), "live parameters"), 100'000'000);
  run.zero.stage3_param_persistence_threshold = 10'000'000;
  EXPECT_EQ(bytes_of(plan_memory(run, {3}), "persistent parameters"), 2'000'000'000);
  run.zero.stage3_model_persistence_threshold = 35'000'000;
  EXPECT_EQ(bytes_of(plan_memory(run, {3}), "persistent parameters"), 60'000'000);
}

TEST(MemoryPlan, FrozenParametersArePartitionedAtStage3AndComeAndGo) {
  PlannedRun run = mixed_adam(1'000'000'000, 100, 8);
  for (std::size_t i = 0; i < 80; ++i) run.parameters[i].trainable = false;
  run.zero.stage3_max_reuse_distance = 2'000'000'000;
  EXPECT_NEAR(static_cast<double>(bytes_of(plan_memory(run, {3}), "parameters")), 2e9 / 8, 1e6);
  EXPECT_EQ(bytes_of(plan_memory(run, {3}), "live parameters"), 2'000'000'000);
  run.zero.zero_quantized_nontrainable_weights = true;  // a byte each, and a scale for 8,000 of them
  EXPECT_NEAR(static_cast<double>(bytes_of(plan_memory(run, {3}), "parameters")), (0.4e9 + 0.8e9) / 8, 2e6);
  // Before stage 3 they are whole on every rank, without masters, states and gradients.
  EXPECT_NEAR(static_cast<double>(model_states(plan_memory(run, {2}))), 2e9 + (4 + 8 + 2) * 0.2e9 / 8, 1e7);
}

TEST(MemoryPlan, CountsBuildingTheModelWhereThatTakesMost) {
  PlannedRun run = mixed_adam(1'000'000'000, 100, 64);
  const MemoryPlan plan = plan_memory(run, {2});
  // The first parameter is being cast, and has its part of a master, at most a block more than a share.
  EXPECT_NEAR(static_cast<double>(plan.peak(MemoryTier::kMemory)), 4e9 + 2e7 + 4e7 / 64, 4 * 32768);
  EXPECT_LT(plan.training(MemoryTier::kMemory), 3'000'000'000);
  EXPECT_EQ(plan_memory(run, {3}).building, 0);  // where parameters get their values one by one
}

TEST(MemoryPlan, KnowsEveryPairThatTheLanguageAllows) { EXPECT_EQ(zero_choices().size(), 1u + 2u + 2u + 9u); }

std::int64_t sent(const PlannedRun& run, int stage, bool between_nodes = false) {
  std::int64_t bytes = 0;
  for (const PlannedTraffic& row : plan_traffic(run, stage)) bytes += between_nodes ? row.between_nodes : row.bytes;
  return bytes;
}

TEST(TrafficPlan, IsTwoOrThreeTimesTheModel) {
  PlannedRun run = mixed_adam(1'000'000'000, 100, 8);
  run.norm = false;
  const double model = 2e9 * 7 / 8;  // bytes that one rank sends in one pass over all parameters
  for (int stage = 0; stage <= 2; ++stage) EXPECT_NEAR(static_cast<double>(sent(run, stage)), 2 * model, 1e-2 * model);
  run.zero.stage3_max_reuse_distance = 2'000'000'000;
  EXPECT_NEAR(static_cast<double>(sent(run, 3)), 2 * model, 1e-2 * model);  // one gather: all may stay
  run.zero.stage3_max_reuse_distance = 0;
  // The first of 100 is not brought for backward.
  EXPECT_NEAR(static_cast<double>(sent(run, 3)), 3 * model, 2e-2 * model);
  run.micro_steps = 4;
  EXPECT_NEAR(static_cast<double>(sent(run, 1)), 2 * model, 1e-2 * model);
  EXPECT_NEAR(static_cast<double>(sent(run, 2)), 5 * model, 1e-2 * model);
  EXPECT_NEAR(static_cast<double>(sent(run, 3)), 12 * model, 5e-2 * model);
}

TEST(TrafficPlan, ZeroPlusPlusSendsAQuarterBetweenHosts) {
  PlannedRun run = mixed_adam(1'000'000'000, 100, 8);
  run.norm = false;
  run.local_world = 2;
  run.zero.stage3_max_reuse_distance = 0;
  const double model = 2e9 / 8 * 6;  // to the six ranks elsewhere
  EXPECT_NEAR(static_cast<double>(sent(run, 3, true)), 3 * model, 2e-2 * model);
  run.zero.zero_quantized_weights = true;
  EXPECT_NEAR(static_cast<double>(sent(run, 3, true)), 2 * model, 2e-2 * model);
  run.zero.zero_hpz_partition_size = 2;
  EXPECT_NEAR(static_cast<double>(sent(run, 3, true)), 1.5 * model, 2e-2 * model);
  // Four bits, and of what a host has added up only: half of what a quarter would be.
  run.zero.zero_quantized_gradients = true;
  EXPECT_NEAR(static_cast<double>(sent(run, 3, true)), (0.5 + 0.125) * model, 2e-2 * model);
}

}  // namespace
}  // namespace capstan
