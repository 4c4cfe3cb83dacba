#include "core/comm/rendezvous.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

using Variables = std::map<std::string, std::string>;

Rendezvous read(const Variables& variables) {
  return read_rendezvous([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const RuntimeFault& fault) {
    return fault.what();
  }
  return "no error";
}

Variables torchrun() {
  return {{"RANK", "2"},         {"WORLD_SIZE", "4"},     {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "h1"}, {"MASTER_PORT", "29500"}};
}

TEST(Rendezvous, IsOneProcessWhereNoLauncherSpeaks) {
  EXPECT_EQ(read({}).size, 1);
  EXPECT_EQ(read({{"WORLD_SIZE", "1"}}).size, 1);
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).size, 1);
  // sbatch sets it for the one script that it runs.
  EXPECT_EQ(read({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}).size, 1);
}

TEST(Rendezvous, ReadsTorchrunsVariables) {
  auto variables = torchrun();
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables["TORCHELASTIC_RESTART_COUNT"] = "3";
  const Rendezvous found = read(variables);
  EXPECT_EQ(found.rank, 2);
  EXPECT_EQ(found.size, 4);
  EXPECT_EQ(found.local_rank, 0);
  EXPECT_EQ(found.local_size, 2);
  EXPECT_EQ(found.address, "h1");
  EXPECT_EQ(found.port, 29500);
  EXPECT_TRUE(found.store_exists);
  EXPECT_EQ(found.origin, "torchrun");
}

TEST(Rendezvous, ReadsOpenMpisVariablesAndMeetsThroughAFileOnOneHost) {
  const Rendezvous found = read({{"OMPI_COMM_WORLD_RANK", "1"},
                                 {"OMPI_COMM_WORLD_SIZE", "2"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                 {"PMIX_NAMESPACE", "prterun-h1-77@1"}});
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.size, 2);
  EXPECT_EQ(found.origin, "Open MPI");
  EXPECT_EQ(found.address, "127.0.0.1");
  EXPECT_EQ(found.port, 0);
  EXPECT_THAT(found.port_file, EndsWith("-prterun-h1-77_1.port"));
}

TEST(Rendezvous, ReadsSlurmsVariables) {
  const Variables step = {{"SLURM_PROCID", "1"},         {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", "1"},
                          {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_JOB_ID", "812"},       {"SLURM_STEP_ID", "0"}};
  const Rendezvous found = read(step);
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.size, 2);
  EXPECT_EQ(found.origin, "Slurm");
  EXPECT_THAT(found.port_file, EndsWith("-812.0.port"));
}

TEST(Rendezvous, MeetsInTheUsersOwnFolderWhereThereIsOne) {
  TemporaryFolder own;
  Variables start = {{"OMPI_COMM_WORLD_RANK", "1"},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                     {"PMIX_NAMESPACE", "job"},
                     {"XDG_RUNTIME_DIR", own.path().string()}};
  const std::string name = "capstan-" + std::to_string(::geteuid()) + "-job.port";
  EXPECT_EQ(read(start).port_file, (own / name).string());

  const std::string otherwise = (std::filesystem::temp_directory_path() / name).string();
  std::filesystem::permissions(own.path(), std::filesystem::perms::all);  // everybody's
  EXPECT_EQ(read(start).port_file, otherwise);
  for (const char* unusable : {"", "relative", "/nowhere"}) {
    start["XDG_RUNTIME_DIR"] = unusable;
    EXPECT_EQ(read(start).port_file, otherwise) << unusable;
  }
}

TEST(Rendezvous, PrefersTorchrunInsideAnotherLauncher) {
  auto variables = torchrun();
  variables["OMPI_COMM_WORLD_RANK"] = "0";
  variables["OMPI_COMM_WORLD_SIZE"] = "2";
  EXPECT_EQ(read(variables).origin, "torchrun");
}

TEST(Rendezvous, NamesWhatIsMissing) {
  EXPECT_EQ(error_of({{"WORLD_SIZE", "2"}}),
            "WORLD_SIZE is 2, but RANK is not set, so this process does not know which of them it is. Start it with "
            "torchrun, mpirun, srun or 'capstan launch', or unset WORLD_SIZE.");
  EXPECT_EQ(error_of({{"RANK", "1"}}),
            "RANK is 1, but WORLD_SIZE is not set, so this process does not know how many there are. Start it with "
            "torchrun, mpirun, srun or 'capstan launch', or unset RANK.");
  EXPECT_EQ(error_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}}),
            "WORLD_SIZE is 2, and nothing says where the processes meet. Set MASTER_ADDR to the host of rank 0 and "
            "MASTER_PORT to a free port of it, the same in all processes.");
  auto variables = torchrun();
  variables.erase("MASTER_PORT");
  EXPECT_EQ(error_of(variables),
            "MASTER_ADDR is set, MASTER_PORT is not. Set both to where rank 0 can be reached, or, on one host, "
            "neither.");
  // Several hosts cannot meet through a file.
  EXPECT_THAT(
      error_of({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
      StartsWith("OMPI_COMM_WORLD_SIZE is 4, and nothing says where the processes meet."));
}

TEST(Rendezvous, NamesWhatContradictsItself) {
  auto variables = torchrun();
  variables["RANK"] = "4";
  EXPECT_EQ(error_of(variables), "RANK is 4 and WORLD_SIZE is 4: ranks count from 0 to 3.");
  variables["WORLD_SIZE"] = "many";
  EXPECT_EQ(error_of(variables),
            "WORLD_SIZE is 'many', which is not a count. A launcher sets it; unset it to train in one process.");
  variables = torchrun();
  variables["MASTER_PORT"] = "70000";
  EXPECT_EQ(error_of(variables), "MASTER_PORT is 70000; a port is between 1 and 65535.");
}

}  // namespace
}  // namespace capstan
