#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/arguments.hpp"

namespace capstan::cli {

/// What the launcher of an elastic run knows of the training.
struct ElasticPlan {
  std::string launched;             // what the processes are made of: program, folder, command, configuration
  std::vector<std::int64_t> sizes;  // numbers of processes that may train together, ascending
  std::int64_t processes = 0;       // that are to train on this host, if nothing happens
  std::int64_t train_batch = 0;
  std::chrono::minutes min_time{0};       // between changes that nothing forces
  std::chrono::duration<double> wait{0};  // for enough processes
  bool saves = false;                     // the training is given a folder for checkpoints
};

/// Reads the configuration of the training that is to be launched. Throws ConfigError, also where as many processes as
/// are to start may not train together.
ElasticPlan elastic_plan(const LaunchArguments& arguments);

}  // namespace capstan::cli
