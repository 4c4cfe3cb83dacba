#include "core/comm/rendezvous.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "core/errors.hpp"

namespace capstan {
namespace {

/// The variables of one launcher. Null where it has none.
struct Launcher {
  const char *name, *rank, *size, *local_rank, *local_size;
  const char* job;  // identifies the start among those of this host
};

constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr},
    // Only in processes that srun has started; sbatch sets SLURM_NTASKS for its one script as well.
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr, "SLURM_JOB_ID"},
};

std::string shown(const char* name, const std::string& value) { return std::string(name) + " is '" + value + "'"; }

std::optional<int> number(const Environment& environment, const char* name) {
  if (name == nullptr) return std::nullopt;
  const auto text = environment(name);
  if (!text) return std::nullopt;
  int value = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < 0) {
    throw RuntimeFault(shown(name, *text) +
                       ", which is not a count. A launcher sets it; unset it to train in one process.");
  }
  return value;
}

/// A folder that other users cannot write to, or the one for temporary files. XDG_RUNTIME_DIR may name a folder of
/// another host or, after su, of another user.
std::filesystem::path port_file_folder(const Environment& environment) {
  const std::string own = environment("XDG_RUNTIME_DIR").value_or("");
  struct stat status {};
  const bool usable = own.starts_with('/') && ::stat(own.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                      status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  return usable ? std::filesystem::path(own) : std::filesystem::temp_directory_path();
}

/// One file a start, for rank 0 to tell its port to the others on this host: from the launcher's process, which is the
/// parent of all of them, and what it calls the job.
std::string port_file_of(const Launcher& launcher, const Environment& environment) {
  std::string key = launcher.job ? environment(launcher.job).value_or("") : "";
  if (const auto step = environment("SLURM_STEP_ID"); step && !key.empty()) key += "." + *step;
  if (key.empty()) key = std::to_string(getppid());
  for (char& c : key) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-') c = '_';
  }
  return (port_file_folder(environment) / ("capstan-" + std::to_string(geteuid()) + "-" + key + ".port")).string();
}

void fill_address(Rendezvous& out, const Launcher& launcher, const Environment& environment) {
  const auto address = environment("MASTER_ADDR");
  const auto port = number(environment, "MASTER_PORT");
  if (port && (*port == 0 || *port > 65535)) {
    throw RuntimeFault("MASTER_PORT is " + std::to_string(*port) + "; a port is between 1 and 65535.");
  }
  if (address.has_value() != port.has_value()) {
    throw RuntimeFault(std::string(address ? "MASTER_ADDR" : "MASTER_PORT") + " is set, " +
                       (address ? "MASTER_PORT" : "MASTER_ADDR") +
                       " is not. Set both to where rank 0 can be reached, or, on one host, neither.");
  }
  if (address) {
    out.address = *address;
    out.port = *port;
    return;
  }
  const bool one_host =
      out.local_size == out.size || environment("SLURM_STEP_NUM_NODES") == std::optional<std::string>("1");
  if (!one_host || std::string(launcher.name) == "torchrun") {
    throw RuntimeFault(std::string(launcher.size) + " is " + std::to_string(out.size) +
                       ", and nothing says where the processes meet. Set MASTER_ADDR to the host of rank 0 and "
                       "MASTER_PORT to a free port of it, the same in all processes.");
  }
  out.address = "127.0.0.1";
  out.port_file = port_file_of(launcher, environment);
}

Rendezvous filled(const Launcher& launcher, const Environment& environment, int rank, int size) {
  if (size < 1) throw RuntimeFault(std::string(launcher.size) + " is 0; there is at least one process.");
  if (rank >= size) {
    throw RuntimeFault(std::string(launcher.rank) + " is " + std::to_string(rank) + " and " + launcher.size + " is " +
                       std::to_string(size) + ": ranks count from 0 to " + std::to_string(size - 1) + ".");
  }
  Rendezvous out;
  if (size == 1) return out;
  out.rank = rank;
  out.size = size;
  out.local_rank = number(environment, launcher.local_rank).value_or(0);
  out.local_size = number(environment, launcher.local_size).value_or(0);
  out.origin = launcher.name;
  fill_address(out, launcher, environment);
  if (const auto socket = number(environment, "CAPSTAN_LISTENING_SOCKET"); socket && rank == 0) {
    out.listening_socket = *socket;
  }
  if (environment("CAPSTAN_LISTENING_SOCKET")) out.origin = "capstan launch";
  out.store_exists = environment("TORCHELASTIC_USE_AGENT_STORE") == std::optional<std::string>("True");
  return out;
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

Rendezvous read_rendezvous(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = number(environment, launcher.rank), size = number(environment, launcher.size);
    if (rank && size) return filled(launcher, environment, *rank, *size);
    // WORLD_SIZE=1 alone is what many programs set to say "no launcher".
    if (size && *size > 1) {
      throw RuntimeFault(std::string(launcher.size) + " is " + std::to_string(*size) + ", but " + launcher.rank +
                         " is not set, so this process does not know which of them it is. Start it with torchrun, "
                         "mpirun, srun or 'capstan launch', or unset " +
                         launcher.size + ".");
    }
    if (rank && *rank > 0) {
      throw RuntimeFault(std::string(launcher.rank) + " is " + std::to_string(*rank) + ", but " + launcher.size +
                         " is not set, so this process does not know how many there are. Start it with torchrun, "
                         "mpirun, srun or 'capstan launch', or unset " +
                         launcher.rank + ".");
    }
  }
  return {};
}

}  // namespace capstan
