#include "cli/launch/elastic_launch.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "cli/launch/elastic_plan.hpp"
#include "cli/program.hpp"
#include "core/elastic/launcher/follower.hpp"
#include "core/elastic/launcher/host.hpp"
#include "core/elastic/launcher/processes.hpp"
#include "core/elastic/launcher/rendezvous.hpp"
#include "core/elastic/launcher/secret.hpp"
#include "core/elastic/launcher/system.hpp"
#include "core/errors.hpp"

namespace capstan::cli {

int launch_elastic(const LaunchArguments& arguments) {
  std::optional<RendezvousSecret> secret;
  if (!arguments.rdzv.empty()) secret = RendezvousSecret::of(arguments.rdzv, arguments.rdzv_secret_file);
  const ElasticPlan plan = elastic_plan(arguments);
  // Before signals are taken: it may wait for processes of a launch before this one.
  WorldFolder folder = launch_folder(plan.launched);
  HostSystem system(words_of(arguments.command), static_cast<int>(std::max<std::int64_t>(plan.processes, 1)));
  ElasticHost host(plan, system, std::move(folder));
  if (!secret) return ElasticProcesses(plan, host, nullptr).run().value();
  ElasticRendezvous rendezvous(arguments.rdzv, std::move(*secret), plan.launched, host, plan.wait.count());
  while (true) {
    std::unique_ptr<ElasticLink> leader = rendezvous.find_leader();
    if (rendezvous.is_interrupted()) return static_cast<int>(ExitCode::kInterrupted);
    const std::optional<int> code = leader ? ElasticFollower(host, rendezvous, std::move(leader)).run()
                                           : ElasticProcesses(plan, host, &rendezvous).run();
    if (code) return *code;
  }
}

}  // namespace capstan::cli
