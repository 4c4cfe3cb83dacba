#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace capstan {

/// Which process of a run this is, and where the processes meet.
struct Rendezvous {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this host
  std::vector<int> hosts;              // the number of each rank's host; empty: the launcher does not say
  std::string address;                 // where rank 0 opens the store; empty with one process
  int port = 0;                        // 0: rank 0 takes a free one of `address` and tells it through `port_file`
  std::string port_file;
  int listening_socket = -1;       // handed over by the launcher to rank 0, or -1
  bool store_exists = false;       // the launcher runs the store: rank 0 connects to it too
  bool passing = false;            // the meeting place ends with the communicator; another one takes its place
  std::function<bool()> given_up;  // asked while the processes meet: true ends that; null: nobody is asked
  std::string origin;              // "torchrun", "Open MPI", "Slurm", ...; empty with one process
};

/// Value of an environment variable, if it is set.
using Environment = std::function<std::optional<std::string>(const char*)>;

/// The process's own environment.
Environment process_environment();

/// Reads what torchrun, `capstan launch`, Open MPI, MPICH or Slurm say. One process when none says anything. Throws
/// RuntimeFault naming the variables when they are incomplete or contradict each other.
Rendezvous read_rendezvous(const Environment& environment);

}  // namespace capstan
