// The commands that look at data: `capstan data show` and `capstan data stats`.

#include "cli/command_definition.hpp"
#include "cli/data/token_formats.hpp"
#include "cli/help_texts.hpp"

namespace capstan::cli {
namespace {

/// An option with a whole number that is at least `least`.
void number_option(CLI::App& app, const std::string& name, std::int64_t& to, std::int64_t least, const char* type,
                   const std::string& description) {
  app.add_option_function<std::string>(
         name,
         [&to, name, least](const std::string& given) {
           to = whole_number(name, given);
           if (to >= least) return;
           throw UsageError(name + ": must be " + std::to_string(least) + " or more, got " + given + ".");
         },
         description)
      ->type_name(type)
      ->take_last();
}

}  // namespace

void Definition::define_data_show(CLI::App& data) {
  CLI::App& app = begin(data, "show", "Show what a file of tokens, or an index of a metric, holds, or its text",
                        kDataShowExamples, data_show_);
  DataShowArguments& shown = data_show_->arguments;
  text_option(app, "file", shown.file, "FILE", "The file; NAME of NAME.idx and NAME.bin will do")->required();
  choice_option(app, "--from", shown.from, token_formats(), "What it is; by its name without it", false);
  text_option(app, "--key", shown.key, "NAME", "jsonl, parquet, arrow: the member that holds a text; text without it");
  number_option(app, "--rows", shown.rows, 1, "N", "Print the text of so many rows, in place of the facts");
  number_option(app, "--first", shown.first, 0, "ROW", "The first of these rows, numbered from 0; 0 without it");
  number_option(app, "--tokens", shown.most_tokens, 0, "N",
                "Of a document so many tokens at most; 1,024 without it, 0 for all");
  text_option(app, "--tokenizer", shown.tokenizer, "FOLDER|FILE",
              "The tokenizer of the tokens; the one that their record names without it");
  number_option(app, "--end-token", shown.end_token, 0, "ID",
                "uint16, uint32: the token that ends a document; the one of the record without it");
  flag(app, "--json", shown.json, "Print the facts as JSON");
}

void Definition::define_data_stats(CLI::App& data) {
  CLI::App& app = begin(data, "stats", "Count documents, tokens, lengths, and what packing them saves",
                        kDataStatsExamples, data_stats_);
  DataStatsArguments& stats = data_stats_->arguments;
  app.add_option("inputs", stats.inputs, "Files of tokens, text or rows, counted together; of a folder all files")
      ->type_name("FILE")
      ->required();
  choice_option(app, "--from", stats.from, token_formats(), "What they are; by their names without it", false);
  text_option(app, "--tokenizer", stats.tokenizer, "FOLDER|FILE",
              "Text and conversations: count its tokens; bytes are counted without it");
  text_option(app, "--chat-template", stats.chat_template, "FILE",
              "The template of conversations; that of the tokenizer's folder without it");
  text_option(app, "--key", stats.key, "NAME",
              "jsonl, parquet, arrow: the member that holds a conversation or a text; by the members without it");
  number_option(app, "--seq", stats.row_length, 2, "LENGTH",
                "Tokens that a row has room for, for which padding and packing are counted");
  number_option(app, "--end-token", stats.end_token, 0, "ID",
                "uint16, uint32: the token that ends a document; the one of the record without it");
  flag(app, "--json", stats.json, "Print the counts as JSON");
}

}  // namespace capstan::cli
