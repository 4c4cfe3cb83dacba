// `capstan data chat`: tokens of conversations and other rows to learn answers from, which tokens the loss counts, and
// which rows of training they share.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/data/chat_encoder.hpp"
#include "cli/data/chat_rows.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/data_output.hpp"
#include "cli/data/json_rows.hpp"
#include "cli/data/packing.hpp"
#include "cli/data/reading_progress.hpp"
#include "cli/data/token_output.hpp"
#include "cli/program.hpp"
#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

/// Bad rows that are logged one by one.
constexpr std::int64_t kShownBad = 5;

ChatLoss loss_named(const std::string& name) {
  return name == "all" ? ChatLoss::kAll : name == "completion" ? ChatLoss::kCompletion : ChatLoss::kAssistant;
}

/// Writes the tokens of rows.
class Chats {
 public:
  Chats(ChatEncoder& encoder, const DataChatArguments& arguments, TokenOutput& to)
      : encoder_(encoder), arguments_(arguments), to_(to) {
    if (arguments.pack == 0) return;
    const bool drops = arguments.too_long == "drop";
    packer_.emplace(to, arguments.pack, drops ? RowPacker::Long::kDrop : RowPacker::Long::kCut);
  }

  void take(const Json& row) {
    EncodedRow document = encoder_.encode(chat_row(row, arguments_.key));
    const std::vector<bool>& counts = document.counts;
    if (document.ids.empty()) {
      ++empty_;
    } else if (!counts.empty() && std::find(counts.begin(), counts.end(), true) == counts.end()) {
      ++without_answer_;
    } else if (packer_) {
      packer_->take(std::move(document));
    } else {
      to_.append(document.ids, counts);
      to_.end_document();
    }
  }

  void leave_out(const std::string& why) {
    if (++bad_ <= kShownBad) log::warning(why + (why.ends_with('.') ? " " : ". ") + "The row is left out.");
    if (bad_ == kShownBad + 1) log::warning("more rows are left out; the summary counts them.");
  }

  void finish() {
    if (packer_) packer_->finish();
  }

  std::string summary() const {
    std::string text = to_.summary();
    if (loss_named(arguments_.loss) != ChatLoss::kAll) {
      text += ", " + grouped(to_.counted_by_loss()) + " of them " +
              (arguments_.loss == "completion" ? "of completions" : "the assistant's");
    }
    if (packer_) text += rows_text();
    const auto add = [&](std::int64_t count, const char* what, const std::string& why) {
      if (count > 0) text += "; " + counted(count, what) + why;
    };
    add(without_answer_, arguments_.loss == "completion" ? "row" : "conversation",
        std::string(" without a ") + (arguments_.loss == "completion" ? "completion" : "turn of the assistant") +
            " left out");
    add(empty_, "row", " without text left out");
    if (packer_) {
      const bool drops = arguments_.too_long == "drop";
      const std::string longer = " of more than " + grouped(arguments_.pack) + " tokens ";
      add(packer_->long_documents, "document",
          longer + (drops ? "dropped, with " : "cut, which lost ") + counted(packer_->long_tokens, "token"));
      add(packer_->without_label, "document",
          " without a token that the loss counts left out, with " + counted(packer_->tokens_without_label, "token"));
    }
    add(bad_, "bad row", " left out");
    return text + "\n";
  }

 private:
  /// ", in 12 rows of 2,048, 97.1 % full"
  std::string rows_text() const {
    const double room = static_cast<double>(to_.rows()) * static_cast<double>(arguments_.pack);
    return ", in " + counted(to_.rows(), "row") + " of " + grouped(arguments_.pack) + ", " +
           fixed(100 * static_cast<double>(to_.tokens()) / room, 1) + " % full";
  }

  ChatEncoder& encoder_;
  const DataChatArguments& arguments_;
  TokenOutput& to_;
  std::optional<RowPacker> packer_;
  std::int64_t without_answer_ = 0, empty_ = 0, bad_ = 0;  // rows
};

/// The format of a file of conversations: JSON lines, whatever its name, but for tables.
std::string format_of_chats(const std::string& path) {
  const std::string format = row_format_of(path);
  return format.empty() ? "jsonl" : format;
}

void read_chats(const std::string& path, const DataChatArguments& arguments, Chats& chats, ReadingProgress& progress) {
  RowOptions options{.columns = chat_columns(arguments.key), .on_progress = [&](std::uint64_t bytes) {
                       check_interrupts();
                       progress.add(bytes);
                     }};
  if (arguments.skip_bad) options.on_bad = [&](const std::string& why) { chats.leave_out(why); };
  read_json_rows(path, format_of_chats(path), options, [&](const Json& row) { chats.take(row); });
}

}  // namespace

int data_chat(const DataChatArguments& arguments) {
  if (!arguments.too_long.empty() && arguments.pack == 0) {
    throw UsageError("--long: says what becomes of rows that are longer than --pack LENGTH, which is not given.");
  }
  const std::vector<std::string> paths = with_files_of_folders(arguments.inputs);
  const ModelText text(arguments.tokenizer);
  const ChatLoss loss = loss_named(arguments.loss);
  ChatEncoder encoder(text, {.chat_template = arguments.chat_template, .end_token = arguments.end_token, .loss = loss});
  return run_interruptible([&] {
    TokenOutput output(text.tokenizer(), {.out = arguments.out,
                                          .inputs = paths,
                                          .end_token = encoder.end_token(),
                                          .force = arguments.force,
                                          .has_loss_mask = loss != ChatLoss::kAll,
                                          .row_length = arguments.pack});
    Chats chats(encoder, arguments, output);
    ReadingProgress progress(paths);
    try {
      for (const std::string& path : paths) read_chats(path, arguments, chats, progress);
    } catch (const UnusableModel& error) {
      throw RuntimeFault(error.what());
    }
    chats.finish();
    output.finish();
    print(chats.summary());
  });
}

}  // namespace capstan::cli
