#include "core/comm/as_one.hpp"

#include <c10/util/Exception.h>

#include <exception>

#include "core/errors.hpp"

namespace capstan {
namespace {

/// What an exception says. Never empty.
std::string words_of(const std::exception_ptr& failure) {
  std::string words;
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& error) {
    words = error.what_without_backtrace();
  } catch (const std::exception& error) {
    words = error.what();
  } catch (...) {
  }
  return words.empty() ? "it failed, and does not say why." : words;
}

}  // namespace

void as_one(Communicator& communicator, const std::string& name, const std::function<void()>& work,
            Communicator::Caller caller) {
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  const auto failures = communicator.all_gather_text(name, failure ? words_of(failure) : "", caller);
  if (failure) std::rethrow_exception(failure);
  for (std::size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank].empty()) throw RuntimeFault("rank " + std::to_string(rank) + ": " + failures[rank]);
  }
}

}  // namespace capstan
