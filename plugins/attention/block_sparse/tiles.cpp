#include "plugins/attention/block_sparse/tiles.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "capstan/sdk/parallel.hpp"
#include "plugins/attention/block_sparse/row_kernels.hpp"

extern "C" {
// What libtorch_cpu has of BLAS. MKL's switch is not in every build of LibTorch.
void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb, const float* beta,
            float* c, const int* ldc);
int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));
}

namespace capstan::attention {
namespace {

using sdk::AttentionCall;
using sdk::Rows;
using std::int64_t;

constexpr float kNone = -std::numeric_limits<float>::infinity();

/// Products run on the thread that asks for them: how MKL would share them out shows in the last bits.
class OwnThread {
 public:
  OwnThread() : before_(MKL_Set_Num_Threads_Local != nullptr ? MKL_Set_Num_Threads_Local(1) : 0) {}
  ~OwnThread() {
    if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(before_);
  }
  OwnThread(const OwnThread&) = delete;

 private:
  int before_;
};

/// Uninitialised floats, aligned so that products of the same numbers have the same bits in every buffer.
class Floats {
 public:
  explicit Floats(int64_t count) : data_(static_cast<float*>(std::aligned_alloc(64, bytes(count)))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  float* data() { return data_.get(); }

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  static std::size_t bytes(int64_t count) {
    return (static_cast<std::size_t>(std::max<int64_t>(count, 1)) * sizeof(float) + 63) / 64 * 64;
  }
  std::unique_ptr<float, Free> data_;
};

/// Rows of a matrix, `stride` floats apart.
struct Matrix {
  float* data = nullptr;
  int64_t stride = 0;
};

/// c = a * b + beta * c for c of rows * columns, and sums of `depth` products. BLAS has columns where we have rows.
enum class Form { kPlain, kSecondTransposed, kFirstTransposed };
void multiply(Form form, int64_t rows, int64_t columns, int64_t depth, Matrix a, Matrix b, float beta, Matrix c) {
  const int m = static_cast<int>(columns), n = static_cast<int>(rows), k = static_cast<int>(depth);
  const int lda = static_cast<int>(b.stride), ldb = static_cast<int>(a.stride), ldc = static_cast<int>(c.stride);
  const float one = 1;
  sgemm_(form == Form::kSecondTransposed ? "T" : "N", form == Form::kFirstTransposed ? "T" : "N", &m, &n, &k, &one,
         b.data, &lda, a.data, &ldb, &beta, c.data, &ldc);
}

/// One head of one sample.
struct Head {
  int64_t batch = 0, head = 0;

  template <class Element>
  static const void* moved(const void* data, int64_t elements) {
    return static_cast<const Element*>(data) + elements;
  }
  const void* row(const Rows& rows, int64_t token) const {
    const int64_t element = batch * rows.batch_stride + head * rows.head_stride + token * rows.token_stride;
    return rows.dtype == sdk::Dtype::kFloat32 ? moved<float>(rows.data, element)
                                              : moved<std::uint16_t>(rows.data, element);
  }
  void load(const Rows& rows, const Run& run, float scale, float* to) const {
    load_rows(row(rows, run.begin), rows.dtype, rows.token_stride, int64_t{run.end} - run.begin, rows.width, scale, to);
  }
  void store(const float* from, const Run& run, const float* factors, const Rows& rows) const {
    store_rows(from, int64_t{run.end} - run.begin, rows.width, factors, const_cast<void*>(row(rows, run.begin)),
               rows.dtype, rows.token_stride);
  }
  /// Where float32 rows lie.
  Matrix at(const Rows& rows, int64_t token) const {
    return {static_cast<float*>(const_cast<void*>(row(rows, token))), rows.token_stride};
  }
};

/// Runs as far as the sequence has tokens, with where each begins among the rows that they make.
struct Part {
  Run run;
  int64_t at = 0;
};

class Parts {
 public:
  void clear() {
    parts_.clear();
    size_ = 0;
  }
  void add(Run run, int64_t tokens) {
    run.end = static_cast<std::uint32_t>(std::min<int64_t>(run.end, tokens));
    if (run.begin >= run.end) return;
    parts_.push_back({run, size_});
    size_ += int64_t{run.end} - run.begin;
  }
  int64_t size() const { return size_; }
  auto begin() const { return parts_.begin(); }
  auto end() const { return parts_.end(); }
  const Part& front() const { return parts_.front(); }
  std::size_t count() const { return parts_.size(); }

 private:
  std::vector<Part> parts_;
  int64_t size_ = 0;
};

/// A group's queries in a sequence, and their tile with one of its panels.
class TileOf {
 public:
  TileOf(const Plan& plan, const AttentionCall& call)
      : plan_(plan),
        call_(call),
        tokens_(call.q.tokens),
        q_(kTileQueries * call.q.width),
        k_(kPanelKeys * call.k.width),
        v_(kPanelKeys * call.v.width),
        scores_(kTileQueries * kPanelKeys),
        limits_(kTileQueries) {}

  /// False where the sequence has none of its queries.
  bool begin(const Head& head, const Group& group) {
    head_ = head;
    group_ = &group;
    queries_.clear();
    slices_.clear();
    for (std::size_t i = 0; i < group.slices.size(); ++i) {
      const std::size_t before = queries_.count();
      queries_.add({group.slices[i].begin, group.slices[i].end}, tokens_);
      if (queries_.count() > before) slices_.push_back(i);
    }
    load(call_.q, static_cast<float>(call_.scale), q_.data());
    return queries_.size() > 0;
  }
  /// The rows of the queries.
  void load(const Rows& from, float scale, float* to) const {
    for (const Part& part : queries_) head_.load(from, part.run, scale, to + part.at * from.width);
  }
  void store(const float* from, const float* factors, const Rows& to) const {
    for (const Part& part : queries_) head_.store(from + part.at * to.width, part.run, factors + part.at, to);
  }
  /// False where the sequence has none of the panel's keys, or of the queries that attend to them.
  bool take(std::size_t number) {
    panel_ = number;
    const Panel& panel = group_->panels[number];
    keys_.clear();
    for (const Run& run : panel.runs) keys_.add(run, tokens_);
    first_ = rows_ = 0;
    std::size_t slice = 0;
    for (const Part& part : queries_) {
      const std::size_t of_group = slices_[slice++];
      if (of_group < panel.first_slice) first_ = part.at + part.run.end - part.run.begin;
      if (of_group <= panel.last_slice) rows_ = part.at + part.run.end - part.run.begin - first_;
    }
    if (keys_.size() == 0 || rows_ <= 0) return false;
    k = gathered(call_.k, k_);
    v = gathered(call_.v, v_);
    return true;
  }
  /// Keys that lie side by side, so that what belongs to them need not be gathered.
  bool one_run() const { return keys_.count() == 1; }

  /// The scores of the panel's queries, where they are left out -infinity or beyond their row's limit.
  Tile compute_scores() {
    Tile tile{scores_.data(), stride(), rows_, keys(), limits_.data()};
    multiply(Form::kSecondTransposed, rows_, keys(), call_.q.width, q(), k, 0, {tile.values, tile.stride});
    find_limits();
    for (const sdk::AttentionTerm& term : call_.terms) join(term, tile);
    leave_out(tile);
    return tile;
  }
  /// The gradient of what was added to the scores.
  void keep_gradient(const float* gradients) const {
    for (const sdk::AttentionTerm& term : call_.terms) {
      if (term.grad == nullptr) continue;
      float* of_head = term.grad + (head_.batch * call_.q.heads + head_.head) * tokens_ * tokens_;
      for_each_row([&](int64_t row, int64_t query) {
        for (const Part& part : keys_) {
          std::copy_n(gradients + row * stride() + part.at, part.run.end - part.run.begin,
                      of_head + query * tokens_ + part.run.begin);
        }
      });
    }
  }
  /// Calls use(row, token) for each query.
  template <class Use>
  void for_each_query(const Use& use) const {
    for (const Part& part : queries_) {
      for (std::uint32_t token = part.run.begin; token < part.run.end; ++token) {
        use(part.at + (token - part.run.begin), int64_t{token});
      }
    }
  }

  /// The panel's queries.
  Matrix q() { return {q_.data() + first_ * call_.q.width, call_.q.width}; }
  Matrix k, v;                              // of the panel
  int64_t first() const { return first_; }  // of the panel's queries among the group's
  const Parts& key_parts() const { return keys_; }
  int64_t queries() const { return queries_.size(); }
  int64_t keys() const { return keys_.size(); }
  int64_t stride() const { return (keys() + 15) / 16 * 16; }

 private:
  /// Calls use(row of the tile, token) for each of the panel's queries.
  template <class Use>
  void for_each_row(const Use& use) const {
    for_each_query([&](int64_t row, int64_t query) {
      if (row >= first_ && row < first_ + rows_) use(row - first_, query);
    });
  }
  Matrix gathered(const Rows& from, Floats& into) const {
    if (one_run() && from.dtype == sdk::Dtype::kFloat32) return head_.at(from, keys_.front().run.begin);
    for (const Part& part : keys_) head_.load(from, part.run, 1, into.data() + part.at * from.width);
    return {into.data(), from.width};
  }
  /// How many of the panel's keys each query may look at.
  void find_limits() {
    std::fill(limits_.begin(), limits_.end(), keys());
    if (!plan_.causal) return;
    for_each_row([&](int64_t row, int64_t query) {
      int64_t limit = 0;
      for (const Part& part : keys_) {
        limit += std::clamp<int64_t>(query + 1 - part.run.begin, 0, int64_t{part.run.end} - part.run.begin);
      }
      limits_[static_cast<std::size_t>(row)] = limit;
    });
  }
  void join(const sdk::AttentionTerm& term, const Tile& tile) const {
    const int64_t of_head = head_.batch * term.batch_stride + head_.head * term.head_stride;
    for_each_row([&](int64_t row, int64_t query) {
      for (const Part& part : keys_) {
        float* scores = tile.values + row * tile.stride + part.at;
        const int64_t first = of_head + query * term.query_stride + part.run.begin * term.key_stride;
        const int64_t count = int64_t{part.run.end} - part.run.begin;
        if (term.mask) {
          const bool* keep = static_cast<const bool*>(term.values) + first;
          for (int64_t i = 0; i < count; ++i) scores[i] = keep[i * term.key_stride] ? scores[i] : kNone;
        } else {
          const float* added = static_cast<const float*>(term.values) + first;
          for (int64_t i = 0; i < count; ++i) scores[i] += added[i * term.key_stride];
        }
      }
    });
  }
  /// What the layout does not set for some of the queries.
  void leave_out(const Tile& tile) const {
    std::size_t number = 0;
    for (const Part& queries : queries_) {
      for (const Run& run : group_->unset[slices_[number++]][panel_]) {
        for (const Part& part : keys_) {
          const std::uint32_t begin = std::max(run.begin, part.run.begin), end = std::min(run.end, part.run.end);
          if (begin >= end) continue;
          const int64_t from = std::max<int64_t>(queries.at - first_, 0);
          const int64_t to = std::min<int64_t>(queries.at + (queries.run.end - queries.run.begin) - first_, rows_);
          for (int64_t row = from; row < to; ++row) {
            std::fill_n(tile.values + row * tile.stride + part.at + (begin - part.run.begin), end - begin, kNone);
          }
        }
      }
    }
  }

  const Plan& plan_;
  const AttentionCall& call_;
  const int64_t tokens_;
  Head head_;
  const Group* group_ = nullptr;
  std::size_t panel_ = 0;
  int64_t first_ = 0, rows_ = 0;  // of the panel's queries
  Parts queries_, keys_;
  std::vector<std::size_t> slices_;  // of each part of the queries
  Floats q_, k_, v_, scores_;
  std::vector<int64_t> limits_;  // of each row
};

class Forward {
 public:
  Forward(const Plan& plan, const AttentionCall& call, const Rows& out, float* log_sum_exp)
      : tile_(plan, call),
        out_(out),
        log_sum_exp_(log_sum_exp),
        sums_of_values_(kTileQueries * out.width),
        per_row_(3 * kTileQueries) {}

  void run(const Head& head, const Group& group) {
    if (!tile_.begin(head, group)) return;
    float *maxima = per_row_.data(), *sums = maxima + kTileQueries, *factors = sums + kTileQueries;
    std::fill_n(maxima, tile_.queries(), kNone);
    std::fill_n(sums, tile_.queries(), 0.0F);
    std::fill_n(sums_of_values_.data(), tile_.queries() * out_.width, 0.0F);
    for (std::size_t panel = 0; panel < group.panels.size(); ++panel) {
      if (!tile_.take(panel)) continue;
      const Tile p = tile_.compute_scores();
      take_into_softmax(p, maxima + tile_.first(), sums + tile_.first(), factors);
      float* values = sums_of_values_.data() + tile_.first() * out_.width;
      scale_rows(values, p.rows, out_.width, factors);
      multiply(Form::kPlain, p.rows, out_.width, p.keys, {p.values, p.stride}, tile_.v, 1, {values, out_.width});
    }
    float* of_head = log_sum_exp_ + (head.batch * out_.heads + head.head) * out_.tokens;
    tile_.for_each_query([&](int64_t row, int64_t query) {
      of_head[query] = sums[row] > 0 ? maxima[row] + std::log(sums[row]) : maxima[row] + sums[row];
      factors[row] = sums[row] == 0 ? 1 : 1 / sums[row];
    });
    tile_.store(sums_of_values_.data(), factors, out_);
  }

 private:
  TileOf tile_;
  const Rows& out_;
  float* log_sum_exp_;
  Floats sums_of_values_, per_row_;
};

class Backward {
 public:
  Backward(const Plan& plan, const AttentionCall& call, const sdk::AttentionGradients& gradients)
      : plan_(plan),
        call_(call),
        gradients_(gradients),
        tile_(plan, call),
        grad_(kTileQueries * call.v.width),
        out_(kTileQueries * call.v.width),
        grad_q_(kTileQueries * call.q.width),
        grad_scores_(kTileQueries * kPanelKeys),
        per_row_(3 * kTileQueries),
        panel_k_(kPanelKeys * call.k.width),
        panel_v_(kPanelKeys * call.v.width),
        all_k_(direct(gradients.k) ? 0 : call.k.tokens * call.k.width),
        all_v_(direct(gradients.v) ? 0 : call.v.tokens * call.v.width) {}

  void run(const Head& head) {
    grad_k_ = begin(head, gradients_.k, all_k_);
    grad_v_ = begin(head, gradients_.v, all_v_);
    for (const Group& group : plan_.of(head.head).groups) run(head, group);
    end(head, gradients_.k, all_k_);
    end(head, gradients_.v, all_v_);
  }

 private:
  /// Whether gradients are added up where they belong.
  static bool direct(const Rows& to) { return to.dtype == sdk::Dtype::kFloat32; }
  /// Zeros, to which the gradients of one head's keys or values are added.
  static Matrix begin(const Head& head, const Rows& to, Floats& all) {
    const Matrix sums = direct(to) ? head.at(to, 0) : Matrix{all.data(), to.width};
    for (int64_t token = 0; token < to.tokens; ++token) std::fill_n(sums.data + token * sums.stride, to.width, 0.0F);
    return sums;
  }
  static void end(const Head& head, const Rows& to, Floats& all) {
    if (direct(to)) return;
    const std::vector<float> ones(static_cast<std::size_t>(to.tokens), 1.0F);
    head.store(all.data(), {0, static_cast<std::uint32_t>(to.tokens)}, ones.data(), to);
  }
  void run(const Head& head, const Group& group) {
    if (!tile_.begin(head, group)) return;
    float *deltas = per_row_.data(), *log_sum_exp = deltas + kTileQueries, *scales = log_sum_exp + kTileQueries;
    tile_.load(gradients_.grad, 1, grad_.data());
    tile_.load(gradients_.out, 1, out_.data());
    dot_rows(grad_.data(), out_.data(), tile_.queries(), call_.v.width, deltas);
    const float* of_head = gradients_.log_sum_exp + (head.batch * call_.q.heads + head.head) * call_.q.tokens;
    tile_.for_each_query([&](int64_t row, int64_t query) { log_sum_exp[row] = of_head[query]; });
    std::fill_n(grad_q_.data(), tile_.queries() * call_.q.width, 0.0F);
    for (std::size_t panel = 0; panel < group.panels.size(); ++panel) {
      if (tile_.take(panel)) add_panel(deltas, log_sum_exp);
    }
    std::fill_n(scales, tile_.queries(), static_cast<float>(call_.scale));
    tile_.store(grad_q_.data(), scales, gradients_.q);
  }
  void add_panel(const float* deltas, const float* log_sum_exp) {
    const Tile p = tile_.compute_scores();
    const int64_t first = tile_.first();
    probabilities(p, log_sum_exp + first);
    const Matrix grad{grad_.data() + first * call_.v.width, call_.v.width}, grad_scores{grad_scores_.data(), p.stride};
    add_to_keys(p, {p.values, p.stride}, grad, call_.v.width, grad_v_, panel_v_);
    multiply(Form::kSecondTransposed, p.rows, p.keys, call_.v.width, grad, tile_.v, 0, grad_scores);
    score_gradients(p, grad_scores.data, deltas + first);
    tile_.keep_gradient(grad_scores.data);
    multiply(Form::kPlain, p.rows, call_.q.width, p.keys, grad_scores, tile_.k, 1,
             {grad_q_.data() + first * call_.q.width, call_.q.width});
    add_to_keys(p, grad_scores, tile_.q(), call_.k.width, grad_k_, panel_k_);
  }
  /// Adds weights^T * rows, weights of the tile's shape, to the rows of its keys.
  void add_to_keys(const Tile& p, Matrix weights, Matrix rows, int64_t width, Matrix all, Floats& panel) {
    const auto at = [&](const Part& part) { return all.data + part.run.begin * all.stride; };
    if (tile_.one_run()) {
      multiply(Form::kFirstTransposed, p.keys, width, p.rows, weights, rows, 1,
               {at(tile_.key_parts().front()), all.stride});
      return;
    }
    multiply(Form::kFirstTransposed, p.keys, width, p.rows, weights, rows, 0, {panel.data(), width});
    for (const Part& part : tile_.key_parts()) {
      add_rows(at(part), all.stride, panel.data() + part.at * width, int64_t{part.run.end} - part.run.begin, width);
    }
  }

  const Plan& plan_;
  const AttentionCall& call_;
  const sdk::AttentionGradients& gradients_;
  TileOf tile_;
  Floats grad_, out_, grad_q_, grad_scores_, per_row_, panel_k_, panel_v_;
  Floats all_k_, all_v_;  // of one head, where they cannot be added up where they belong
  Matrix grad_k_, grad_v_;
};

/// parallel_for whose body may throw.
template <class Body>
void on_threads(int64_t count, const Body& body) {
  std::exception_ptr failed;
  std::once_flag once;
  sdk::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    try {
      const OwnThread products;
      body(begin, end);
    } catch (...) {
      std::call_once(once, [&] { failed = std::current_exception(); });
    }
  });
  if (failed) std::rethrow_exception(failed);
}

}  // namespace

void attend(const Plan& plan, const AttentionCall& call, const Rows& out, float* log_sum_exp) {
  struct Task {
    Head head;
    const Group* group;
  };
  std::vector<Task> tasks;
  for (int64_t batch = 0; batch < call.q.batch; ++batch) {
    for (int64_t head = 0; head < call.q.heads; ++head) {
      for (const Group& group : plan.of(head).groups) tasks.push_back({{batch, head}, &group});
    }
  }
  on_threads(static_cast<int64_t>(tasks.size()), [&](int64_t begin, int64_t end) {
    Forward forward(plan, call, out, log_sum_exp);
    for (int64_t i = begin; i < end; ++i) {
      forward.run(tasks[static_cast<std::size_t>(i)].head, *tasks[static_cast<std::size_t>(i)].group);
    }
  });
}

void attend_backward(const Plan& plan, const AttentionCall& call, const sdk::AttentionGradients& gradients) {
  on_threads(call.q.batch * call.q.heads, [&](int64_t begin, int64_t end) {
    Backward backward(plan, call, gradients);
    for (int64_t i = begin; i < end; ++i) backward.run({i / call.q.heads, i % call.q.heads});
  });
}

}  // namespace capstan::attention
