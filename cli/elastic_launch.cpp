#include "cli/elastic_launch.hpp"

#include "cli/elastic_plan.hpp"
#include "cli/elastic_processes.hpp"

namespace capstan::cli {

int launch_elastic(const LaunchArguments& arguments) {
  return ElasticProcesses(arguments, elastic_plan(arguments)).run();
}

}  // namespace capstan::cli
