#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

/// The facts of a training that its launcher needs.
struct ElasticPlan {
  std::string launched;             // what the processes are made of: program, folder, command, configuration
  std::vector<std::int64_t> sizes;  // numbers of processes that may train together, ascending
  std::int64_t most = 1;            // of them may train together, as the command line says
  std::int64_t processes = 0;       // that are to train on this host, if nothing happens
  std::int64_t spares = 0;          // that wait on this host to take the place of one that is lost
  bool witness = false;             // no processes here, but a voice where hosts are lost
  std::int64_t train_batch = 0;
  std::chrono::minutes min_time{0};       // between changes that nothing forces
  std::chrono::duration<double> wait{0};  // for enough processes
  bool saves = false;                     // the training is given a folder for checkpoints
};

}  // namespace capstan
