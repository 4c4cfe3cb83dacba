#include "cli/launch/elastic_launch.hpp"

#include <memory>
#include <optional>
#include <utility>

#include "cli/launch/elastic_follower.hpp"
#include "cli/launch/elastic_host.hpp"
#include "cli/launch/elastic_plan.hpp"
#include "cli/launch/elastic_processes.hpp"
#include "cli/launch/elastic_rendezvous.hpp"
#include "cli/launch/elastic_secret.hpp"
#include "core/errors.hpp"

namespace capstan::cli {

int launch_elastic(const LaunchArguments& arguments) {
  std::optional<RendezvousSecret> secret;
  if (!arguments.rdzv.empty()) secret = RendezvousSecret::of(arguments);
  const ElasticPlan plan = elastic_plan(arguments);
  ElasticHost host(arguments, plan);
  if (!secret) return ElasticProcesses(arguments, plan, host, nullptr).run().value();
  ElasticRendezvous rendezvous(arguments.rdzv, std::move(*secret), plan.launched, host, plan.wait.count());
  while (true) {
    std::unique_ptr<ElasticLink> leader = rendezvous.find_leader();
    if (rendezvous.is_interrupted()) return static_cast<int>(ExitCode::kInterrupted);
    const std::optional<int> code = leader ? ElasticFollower(host, rendezvous, std::move(leader)).run()
                                           : ElasticProcesses(arguments, plan, host, &rendezvous).run();
    if (code) return *code;
  }
}

}  // namespace capstan::cli
