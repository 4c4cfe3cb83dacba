#include "core/monitor/monitor_host.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "core/log.hpp"
#include "core/registry/guilty_plugin.hpp"

namespace capstan {
namespace {

constexpr std::size_t kQueueLimit = 1 << 16;  // metrics; 100 steps a second fill it in some minutes
/// Waking a thread costs the one that does it several microseconds, so nobody is woken for a metric.
constexpr auto kHandOutEvery = std::chrono::milliseconds(100);

/// The metrics or texts of one call.
struct Written {
  std::vector<Metric> metrics;
  std::vector<MonitorText> texts;
  double wall_time = 0;  // seconds since 1970
  std::size_t size() const { return metrics.size() + texts.size(); }
};
using Queue = std::vector<std::shared_ptr<const Written>>;  // which all monitors share
using Queued = std::span<const Queue::value_type>;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// "60 s", "0.5 s".
std::string seconds_text(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", static_cast<double>(time.count()) / 1e3);
  return text;
}

using Clock = std::chrono::steady_clock;

std::string seconds_since(Clock::time_point begun) {
  return seconds_text(std::chrono::round<std::chrono::seconds>(Clock::now() - begun));
}

/// One monitor and whether it still takes part.
struct Seat {
  explicit Seat(Component c) : component(std::move(c)), where("monitor '" + component.manifest().type + "'") {}
  Component component;
  std::string where;
  bool on = true;

  const capstan_monitor* vtable() const { return component.vtable<capstan_monitor>(); }

  /// Calls one function; a failure switches the monitor off for the rest of the run.
  template <class Call>
  void call(const char* what, Call&& body) {
    if (!on) return;
    const Visit visit(*this, what);
    try {
      call_plugin(component.function(what), where + ", " + what, body);
    } catch (const std::exception& error) {
      on = false;
      std::string text = error.what();
      if (!text.ends_with('.')) text += '.';
      log::warning(text + " It is switched off for the rest of the run; training goes on.");
    }
  }

  /// Says once of a call that it does not come back. [any thread]
  void say_if_it_hangs(std::chrono::milliseconds patience) {
    const std::lock_guard lock(calling_mutex);
    if (calling == nullptr || said || Clock::now() - since < patience) return;
    said = true;
    log::warning(where + " (" + component.plugin().file.string() + "), " + calling + ": has not come back for " +
                 seconds_text(patience) + ". Training goes on; the monitor's metrics wait.");
  }

 private:
  /// While it lives, the monitor is in a call.
  class Visit {
   public:
    Visit(Seat& seat, const char* function) : seat_(seat), function_(function) { note(function); }
    ~Visit() {
      const auto begun = seat_.since;
      if (note(nullptr)) log::info(seat_.where + ", " + function_ + ": came back after " + seconds_since(begun) + ".");
    }

   private:
    /// Whether the call before was said to hang.
    bool note(const char* function) {
      const std::lock_guard lock(seat_.calling_mutex);
      seat_.calling = function;
      seat_.since = Clock::now();
      return std::exchange(seat_.said, false);
    }
    Seat& seat_;
    const char* function_;
  };

  std::mutex calling_mutex;  // guards what follows
  const char* calling = nullptr;
  Clock::time_point since;
  bool said = false;
};

}  // namespace

/// One monitor's queue and thread: a monitor that hangs holds up no other.
struct MonitorHost::Worker {
  Worker(Component monitor, std::string info) : seat(std::move(monitor)), run_info(std::move(info)) {}

  std::mutex mutex;
  std::condition_variable wake, done;
  Queue queue;
  std::size_t queued = 0;  // metrics in it
  std::int64_t dropped = 0;
  std::uint64_t flush_asked = 0, flush_done = 0;
  bool closing = false, closed = false;
  Seat seat;  // the worker thread's, but for say_if_it_hangs()
  const std::string run_info;
  std::thread thread;

  bool said_no_texts = false;  // the worker thread's

  void run();
  void hand_over(const Queue& batch);
  void write(Queued batch);
  void write_texts(Queued batch);
};

/// In their order: trackers refuse a text of a step that is behind that of their newest metric.
void MonitorHost::Worker::hand_over(const Queue& batch) {
  const auto holds_texts = [](const Queue::value_type& written) { return !written->texts.empty(); };
  for (auto from = batch.begin(); from != batch.end();) {
    const bool texts = holds_texts(*from);
    const auto end = std::find_if(from, batch.end(), [&](const auto& one) { return holds_texts(one) != texts; });
    texts ? write_texts({from, end}) : write({from, end});
    from = end;
  }
}

void MonitorHost::Worker::write(Queued batch) {
  std::vector<capstan_metric> metrics;
  for (const auto& written : batch) {
    for (const Metric& metric : written->metrics) {
      metrics.push_back({sizeof(capstan_metric), as_str(metric.tag), metric.value, metric.x, written->wall_time});
    }
  }
  std::vector<const capstan_metric*> pointers;
  for (const capstan_metric& metric : metrics) pointers.push_back(&metric);
  seat.call("write", [&](capstan_error* error) {
    return seat.vtable()->write(seat.component.self(), pointers.data(), pointers.size(), error);
  });
}

void MonitorHost::Worker::write_texts(Queued batch) {
  std::vector<capstan_text> texts;
  for (const auto& written : batch) {
    for (const MonitorText& one : written->texts) {
      texts.push_back({sizeof(capstan_text), as_str(one.tag), as_str(one.prompt), as_str(one.text), one.step, one.x,
                       written->wall_time});
    }
  }
  if (!CAPSTAN_HAS(seat.vtable(), text)) {
    if (seat.on && !std::exchange(said_no_texts, true)) {
      log::info(seat.where + ": takes no texts, so that the samples of capstan.run.sample_every are not in it.");
    }
    return;
  }
  std::vector<const capstan_text*> pointers;
  for (const capstan_text& text : texts) pointers.push_back(&text);
  seat.call("text", [&](capstan_error* error) {
    return seat.vtable()->text(seat.component.self(), pointers.data(), pointers.size(), error);
  });
}

void MonitorHost::Worker::run() {
  const SignalStack stack;
  const auto* table = seat.vtable();
  void* self = seat.component.self();
  if (CAPSTAN_HAS(table, open)) {
    seat.call("open", [&](capstan_error* error) { return table->open(self, as_str(run_info), error); });
  }
  std::unique_lock lock(mutex);
  for (;;) {
    wake.wait(lock, [&] { return closing || !queue.empty() || flush_asked != flush_done; });
    Queue batch;
    batch.swap(queue);
    queued = 0;
    const std::uint64_t flush_until = flush_asked;
    const bool flush = flush_until != flush_done || closing;
    const bool last = closing;
    lock.unlock();
    hand_over(batch);
    if (flush && CAPSTAN_HAS(table, flush)) {
      seat.call("flush", [&](capstan_error* error) { return table->flush(self, error); });
    }
    if (last && CAPSTAN_HAS(table, close)) {
      seat.call("close", [&](capstan_error* error) { return table->close(self, error); });
    }
    lock.lock();
    flush_done = flush_until;
    closed = last;
    done.notify_all();
    if (last) return;
  }
}

/// What was written and not yet handed out.
struct MonitorHost::Inbox {
  std::mutex mutex;
  std::condition_variable closes;
  std::vector<Written> written;
  bool closing = false;
  std::mutex handing_out;  // before `mutex`: keeps the order
  std::thread thread;
};

MonitorHost::MonitorHost(std::vector<Component> monitors, const Json& run_info, MonitorPatience patience)
    : patience_(patience), inbox_(std::make_unique<Inbox>()) {
  for (Component& monitor : monitors) {
    workers_.push_back(std::make_shared<Worker>(std::move(monitor), run_info.dump()));
    workers_.back()->thread = std::thread([worker = workers_.back()] { worker->run(); });
  }
  inbox_->thread = std::thread([this] {
    std::unique_lock lock(inbox_->mutex);
    while (!inbox_->closing) {
      lock.unlock();
      hand_out();
      for (const auto& worker : workers_) worker->seat.say_if_it_hangs(patience_.hangs);
      lock.lock();
      inbox_->closes.wait_for(lock, kHandOutEvery, [&] { return inbox_->closing; });
    }
  });
}

MonitorHost::~MonitorHost() {
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->closing = true;
  }
  inbox_->closes.notify_all();
  inbox_->thread.join();
  hand_out();
  for (const auto& worker : workers_) {
    const std::lock_guard lock(worker->mutex);
    worker->closing = true;
    worker->wake.notify_all();
  }
  const auto asked = std::chrono::steady_clock::now();
  for (const auto& worker : workers_) await_close(worker, asked);
}

void MonitorHost::await_close(const std::shared_ptr<Worker>& worker,
                              std::chrono::steady_clock::time_point asked) const {
  std::unique_lock lock(worker->mutex);
  const auto closed = [&] { return worker->closed; };
  if (!worker->done.wait_until(lock, asked + patience_.say_after, closed)) {
    log::info(worker->seat.where + ": is still at work; waiting for it, " + seconds_text(patience_.give_up) +
              " at most.");
    worker->done.wait_until(lock, asked + patience_.give_up, closed);
  }
  if (worker->dropped > 0) {
    log::warning(worker->seat.where + ": " + std::to_string(worker->dropped) +
                 " metrics were dropped; it is too slow.");
  }
  const bool has_closed = worker->closed;
  lock.unlock();
  if (has_closed) {
    worker->thread.join();
    return;
  }
  log::warning(worker->seat.where + ": did not close within " + seconds_text(patience_.give_up) +
               "; its last metrics may be lost.");
  worker->thread.detach();
  // Never destroyed: its thread, which may come back while the process ends, must not call the plugin's destroy then.
  new std::shared_ptr<Worker>(worker);
}

void MonitorHost::write(std::vector<Metric> metrics) {
  const std::lock_guard lock(inbox_->mutex);
  inbox_->written.push_back({std::move(metrics), {}, seconds_since_1970()});
}

void MonitorHost::write_texts(std::vector<MonitorText> texts) {
  const std::lock_guard lock(inbox_->mutex);
  inbox_->written.push_back({{}, std::move(texts), seconds_since_1970()});
}

/// Never waits for a monitor, so what is written does not pile up before its queue.
void MonitorHost::hand_out() {
  const std::lock_guard one_at_a_time(inbox_->handing_out);
  std::vector<Written> taken;
  {
    const std::lock_guard lock(inbox_->mutex);
    taken.swap(inbox_->written);
  }
  Queue batch;
  for (Written& written : taken) batch.push_back(std::make_shared<const Written>(std::move(written)));
  for (const auto& worker : workers_) {
    {
      const std::lock_guard lock(worker->mutex);
      for (const auto& written : batch) {
        if (worker->queued + written->size() > kQueueLimit) {
          worker->dropped += static_cast<std::int64_t>(written->size());
          continue;
        }
        worker->queue.push_back(written);
        worker->queued += written->size();
      }
    }
    if (!batch.empty()) worker->wake.notify_one();
  }
}

bool MonitorHost::flush(std::int64_t deadline_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline_ms);
  hand_out();
  std::vector<std::uint64_t> tickets;
  for (const auto& worker : workers_) {
    const std::lock_guard lock(worker->mutex);
    tickets.push_back(++worker->flush_asked);
    worker->wake.notify_all();
  }
  bool all = true;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    std::unique_lock lock(workers_[i]->mutex);
    all = workers_[i]->done.wait_until(lock, deadline, [&] { return workers_[i]->flush_done >= tickets[i]; }) && all;
  }
  return all;
}

std::int64_t MonitorHost::dropped() const {
  std::int64_t total = 0;
  for (const auto& worker : workers_) {
    const std::lock_guard lock(worker->mutex);
    total += worker->dropped;
  }
  return total;
}

}  // namespace capstan
