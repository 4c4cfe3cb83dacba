#include "core/components/schedule.hpp"

#include <c10/util/StringUtil.h>

#include <cmath>

namespace capstan {

Schedule::Schedule(std::optional<Component> scheduler, ParameterGroups& groups)
    : scheduler_(std::move(scheduler)), groups_(groups) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const auto* betas = groups_[i].find("betas");
    base_betas_.push_back(betas && betas->size() == 2 ? *betas : std::vector<double>{});
  }
  if (!scheduler_) return;
  where_ = "scheduler '" + scheduler_->manifest().type + "'";
  if (!CAPSTAN_HAS(vtable(), start)) return;
  capstan_schedule_start start{};
  start.struct_size = sizeof start;
  start.group_count = static_cast<std::uint32_t>(groups_.size());
  start.base_lrs = groups_.base_lrs().data();
  start.optimizer_has_betas = !base_betas_.empty() && !base_betas_.front().empty();
  start.betas = start.optimizer_has_betas ? base_betas_.front().data() : nullptr;
  call_plugin(scheduler_->function("start"), where_,
              [&](capstan_error* error) { return vtable()->start(scheduler_->self(), &start, error); });
}

double Schedule::rate(std::int64_t update_index, std::uint32_t group) const {
  double rate = groups_.base_lr(group);
  if (scheduler_) {
    call_plugin(scheduler_->function("rate"), where_, [&](capstan_error* error) {
      return vtable()->rate(scheduler_->self(), update_index - begins_at_, group, groups_.base_lr(group), &rate, error);
    });
  }
  return rate;
}

void Schedule::apply(std::int64_t update_index) {
  if (!scheduler_) return;
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    groups_[i].find("lr")->front() = rate(update_index, i);
    if (base_betas_[i].empty() || !CAPSTAN_HAS(vtable(), momentum)) continue;
    std::vector<double> betas = base_betas_[i];
    call_plugin(scheduler_->function("momentum"), where_, [&](capstan_error* error) {
      return vtable()->momentum(scheduler_->self(), update_index - begins_at_, i, betas.data(), error);
    });
    *groups_[i].find("betas") = betas;
  }
}

bool Schedule::sets(std::string_view number) const {
  return scheduler_ && (number == "lr" || (number == "betas" && CAPSTAN_HAS(vtable(), momentum)));
}

void Schedule::check(std::int64_t update_index) const {
  if (!scheduler_) return;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const double rate = groups_[i].find("lr")->front();
    if (!std::isfinite(rate) || rate < 0) refuse(update_index, i, "learning rate", rate, "finite and not below 0");
    if (base_betas_[i].empty() || !CAPSTAN_HAS(vtable(), momentum)) continue;
    const std::vector<double>& betas = *groups_[i].find("betas");
    for (std::size_t k = 0; k < betas.size(); ++k) {
      if (betas[k] >= 0 && betas[k] < 1) continue;
      refuse(update_index, i, "betas[" + std::to_string(k) + "]", betas[k], "from 0 to below 1");
    }
  }
}

void Schedule::refuse(std::int64_t update_index, std::size_t group, const std::string& what, double value,
                      const char* range) const {
  throw PluginError(where_ + " (" + scheduler_->plugin().file.string() + "): gives update " +
                    std::to_string(update_index) + " the " + what + " " + c10::str(value) + " in parameter group " +
                    std::to_string(group) + "; it must be " + range +
                    ". Correct scheduler.params, or tell the plugin's author. The update was not made.");
}

std::string Schedule::save() const {
  if (!scheduler_ || !CAPSTAN_HAS(vtable(), save)) return "";
  return plugin_text(scheduler_->function("save"), where_ + ", save", [&](capstan_sink* sink, capstan_error* error) {
    return vtable()->save(scheduler_->self(), sink, error);
  });
}

void Schedule::load(std::string_view state) {
  if (!scheduler_ || !CAPSTAN_HAS(vtable(), load) || state.empty()) return;
  call_plugin(scheduler_->function("load"), where_ + ", load",
              [&](capstan_error* error) { return vtable()->load(scheduler_->self(), as_str(state), error); });
}

}  // namespace capstan
