#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <thread>

#include "sdk/conformance/component_under_test.hpp"
#include "sdk/conformance/footprint.hpp"

namespace capstan::conformance {
namespace {

constexpr int kRounds = 100;
constexpr const char* kLeavesThread =
    "starts a thread each time it is created, which is still there when it has been destroyed.";

/// create() with these parameters either works or says why not; the instance is destroyed again.
void try_params(const Context& context, const ComponentManifest& component, const Json& params) {
  const capstan_host host = make_test_host();
  const capstan_component* descriptor = descriptor_of(context, component);
  const std::string text = params.dump();
  const Creation made = create(descriptor, &host, text);
  if (made.status != CAPSTAN_OK) {
    expect(!made.error.empty(), "create with " + text + " failed without a text.");
  } else if (descriptor->destroy) {
    descriptor->destroy(made.self);
  }
}

void check_defaults(const Context& context, const ComponentManifest& component) {
  ComponentUnderTest(context, component);
}

/// While it lives the process gets no more than that much memory beyond what it has: the largest size of a model is
/// refused for want of memory, as a user's would be, and does not take the machine's.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::uint64_t more) {
    getrlimit(RLIMIT_DATA, &before_);
    std::uint64_t pages = 0;
    std::ifstream statm("/proc/self/statm");  // the sixth number: data and stack
    for (int field = 0; field < 6; ++field) statm >> pages;
    rlimit limit = before_;
    limit.rlim_cur =
        std::min<rlim_t>(before_.rlim_cur, pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) + more);
    setrlimit(RLIMIT_DATA, &limit);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_DATA, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

void check_bounds(const Context& context, const ComponentManifest& component) {
  const MemoryLimit limit(std::uint64_t{1} << 30);
  bool any = false;
  for (const KeySpec& spec : component.params) {
    for (const auto& bound : {spec.minimum, spec.maximum}) {
      if (!bound || (spec.type != KeySpec::Type::kNumber && spec.type != KeySpec::Type::kInteger)) continue;
      Json params = default_params(component);
      params[spec.name] = spec.type == KeySpec::Type::kInteger ? Json(static_cast<std::int64_t>(*bound)) : Json(*bound);
      try_params(context, component, params);
      any = true;
    }
    for (const Json& choice : spec.choices) {
      Json params = default_params(component);
      params[spec.name] = choice;
      try_params(context, component, params);
      any = true;
    }
  }
  if (!any) throw Skip("no parameter has bounds or choices.");
}

/// The host refuses these before a plugin sees them; a plugin that is handed them all the same must not fall over.
void check_wrong_params(const Context& context, const ComponentManifest& component) {
  const std::vector<Json> odd = {Json(), Json("text"), Json(-1.5), Json(true), Json::array(), Json::object()};
  for (const KeySpec& spec : component.params) {
    for (const Json& value : odd) {
      Json params = default_params(component);
      params[spec.name] = value;
      try_params(context, component, params);
    }
    Json params = default_params(component);
    params.erase(spec.name);
    try_params(context, component, params);
  }
  Json params = default_params(component);
  params["no_such_parameter"] = 1;
  try_params(context, component, params);
  try_params(context, component, Json::object());
}

void check_unterminated(const Context& context, const ComponentManifest& component) {
  const capstan_host host = make_test_host();
  const capstan_component* descriptor = descriptor_of(context, component);
  const std::string exact = default_params(component).dump();
  const std::string longer = exact + "}]garbage\xff that belongs to somebody else";
  const Creation wanted = create(descriptor, &host, exact);
  const Creation found = create(descriptor, &host, std::string_view(longer).substr(0, exact.size()));
  expect(wanted.status == found.status,
         "create reads beyond the end of its parameters, which are not null-terminated: " + found.error);
  for (const Creation* made : {&wanted, &found}) {
    if (made->status == CAPSTAN_OK && descriptor->destroy) descriptor->destroy(made->self);
  }
}

void create_and_destroy(const capstan_component* descriptor, const capstan_host* host, const std::string& params,
                        int times) {
  for (int i = 0; i < times; ++i) {
    const Creation made = create(descriptor, host, params);
    expect(made.status == CAPSTAN_OK, "create failed: " + made.error);
    if (descriptor->destroy) descriptor->destroy(made.self);
  }
}

void check_leaks(const Context& context, const ComponentManifest& component) {
  const capstan_host host = make_test_host();
  const capstan_component* descriptor = descriptor_of(context, component);
  const std::string params = default_params(component).dump();
  create_and_destroy(descriptor, &host, params, 1);  // starts the threads that LibTorch keeps
  const std::size_t threads = Footprint().threads;
  create_and_destroy(descriptor, &host, params, 1);
  expect(threads_end(threads), kLeavesThread);  // which would be told as the memory of its stack
  const std::size_t kept = bytes_kept(kRounds, [&] { create_and_destroy(descriptor, &host, params, 1); });
  expect(kept == 0, "loses " + std::to_string(kept) + " bytes each time it is created and destroyed.");
}

void check_footprint(const Context& context, const ComponentManifest& component) {
  const capstan_host host = make_test_host();
  const capstan_component* descriptor = descriptor_of(context, component);
  const std::string params = default_params(component).dump();
  const Footprint before;
  create_and_destroy(descriptor, &host, params, 1);
  // What is made once and kept, LibTorch's threads for instance, is no leak; the process itself is changed by once.
  const Footprint once;
  const std::string changed = changed_process(before, once);
  expect(changed.empty(), changed + " when it is created.");
  create_and_destroy(descriptor, &host, params, 3);
  expect(threads_end(once.threads), kLeavesThread);
  expect(Footprint().files <= once.files, "leaves a file open each time it is created and destroyed.");
}

void check_threads(const Context& context, const ComponentManifest& component) {
  const capstan_host host = make_test_host();
  const capstan_component* descriptor = descriptor_of(context, component);
  const std::string params = default_params(component).dump();
  std::string failures[2];
  const auto work = [&](int who) {
    try {
      create_and_destroy(descriptor, &host, params, kRounds / 4);
    } catch (const Broken& broken) {
      failures[who] = broken.what();
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  expect(failures[0].empty() && failures[1].empty(), failures[0] + failures[1]);
}

}  // namespace

Cases creation_cases(const ComponentManifest& component) {
  const std::string prefix = component.kind + "/" + component.type + "/";
  const auto bound = [component](auto check) {
    return [component, check](const Context& context) { check(context, component); };
  };
  return {
      {prefix + "create_defaults", "It can be created with the defaults of its parameters.", bound(check_defaults)},
      {prefix + "create_bounds", "Parameters at their bounds work or are refused with a text.", bound(check_bounds)},
      {prefix + "create_wrong_params", "Wrong, missing and unknown parameters are refused with a text or ignored.",
       bound(check_wrong_params)},
      {prefix + "create_unterminated", "Strings end with their size, not with a zero.", bound(check_unterminated)},
      {prefix + "create_leaks", "Creating and destroying it a hundred times keeps no memory.", bound(check_leaks)},
      {prefix + "create_footprint",
       "Creating and destroying it leaves no thread, no open file, the working directory and the environment as "
       "before.",
       bound(check_footprint)},
      {prefix + "create_threads", "It can be created on two threads at once.", bound(check_threads)},
  };
}

}  // namespace capstan::conformance
