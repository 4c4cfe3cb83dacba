#include "cli/data/data_output.hpp"

#include <csignal>

#include "capstan/sdk/component.hpp"
#include "cli/data/token_record.hpp"
#include "cli/program.hpp"
#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

/// Thrown by check_interrupts().
struct Interrupted {};

}  // namespace

std::vector<std::filesystem::path> result_files(const std::string& out, const std::string& format) {
  if (format != "indexed") return {out};
  return {out + ".bin", out + ".idx"};
}

void refuse_inputs_as_results(const std::vector<std::filesystem::path>& results,
                              const std::vector<std::string>& inputs) {
  for (const std::filesystem::path& result : results) {
    for (const std::string& input : inputs) {
      std::error_code error;
      if (std::filesystem::equivalent(result, input, error)) {
        throw UsageError("--out: '" + result.string() + "' is what is read. Choose another name.");
      }
    }
  }
}

void remove_records(const std::vector<std::filesystem::path>& results) {
  for (const std::filesystem::path& result : results) {
    std::vector<std::filesystem::path> files = {record_file(result)};
    for (const char* beside : {".loss", ".rows"}) {
      if (result.extension() == ".idx") files.push_back(std::filesystem::path(result).replace_extension(beside));
    }
    for (const std::filesystem::path& file : files) {
      std::error_code error;
      std::filesystem::remove(file, error);
      if (error) {
        throw RuntimeFault("'" + file.string() + "' is of older tokens and cannot be removed: " + error.message() +
                           ". Remove it, or choose another name with --out.");
      }
    }
  }
}

void refuse_to_replace(const std::vector<std::filesystem::path>& results) {
  for (const std::filesystem::path& result : results) {
    if (!std::filesystem::is_regular_file(result)) continue;
    throw UsageError("--out: '" + result.string() + "' exists. Choose another name, or replace it with --force.");
  }
}

int run_interruptible(const std::function<void()>& work, const std::string& left) {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { interrupted = 1; });
  try {
    work();
  } catch (const Interrupted&) {
    log::info(left);
    return static_cast<int>(ExitCode::kInterrupted);
  } catch (const sdk::Error& error) {
    throw RuntimeFault(error.what());
  }
  return 0;
}

void check_interrupts() {
  if (interrupted) throw Interrupted{};
}

bool is_interrupted() { return interrupted != 0; }

}  // namespace capstan::cli
