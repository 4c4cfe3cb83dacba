// The numbers of parameter groups in a checkpoint.

#include "core/errors.hpp"
#include "core/keep/keep.hpp"
#include "core/log.hpp"

namespace capstan {

void Keep::check_group_numbers(const SavedRun& saved, const std::string& where) const {
  if (!parts_.optimizer || !saved.options.optimizer_states || !saved.group_numbers ||
      saved.group_numbers->size() != parts_.groups.size())
    return;
  for (std::size_t i = 0; i < parts_.groups.size(); ++i) {
    for (const auto& [name, values] : (*saved.group_numbers)[i]) {
      try {
        parts_.check_group_number(i, name, values);
      } catch (const RuntimeFault& fault) {
        throw RuntimeFault(where + ", numbers that the program had set: " + fault.what());
      }
    }
  }
}

void Keep::restore_groups(const SavedRun& saved, const std::string& where) {
  if (!parts_.optimizer || !saved.options.optimizer_states) return;
  if (!saved.writer.empty() && saved.base_lrs.empty()) return;  // the writer kept no numbers
  if (saved.base_lrs.size() != parts_.groups.size()) {
    if (parts_.communicator->rank() > 0) return;
    log::warning(where + ": was saved with " + std::to_string(saved.base_lrs.size()) +
                 (saved.base_lrs.size() == 1 ? " parameter group" : " parameter groups") + ", and this run has " +
                 std::to_string(parts_.groups.size()) + ", which " + (parts_.groups.size() == 1 ? "starts" : "start") +
                 " from the numbers of the configuration.");
    return;
  }
  for (std::size_t i = 0; i < parts_.groups.size(); ++i) {
    if (saved.group_numbers) {
      ParameterGroups::Written written = (*saved.group_numbers)[i];
      std::erase_if(written, [&](const auto& number) { return parts_.schedule.sets(number.first); });
      parts_.groups.restore(i, written);
    }
    // Another program's file has the rate of its last update, not the one that its schedule began with.
    if (parts_.schedule.present() && saved.writer.empty()) parts_.groups.set_base_lr(i, saved.base_lrs[i]);
  }
}

}  // namespace capstan
