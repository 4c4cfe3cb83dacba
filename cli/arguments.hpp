#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/elastic/launcher/address.hpp"
#include "core/text/json.hpp"

namespace capstan::cli {

/// What the commands that read a configuration share.
struct ConfigArguments {
  std::string file;                                     // empty: the default configuration
  std::vector<std::pair<std::string, Json>> overrides;  // dotted key path and value; a later one wins
  std::vector<std::string> plugin_paths;
  bool lenient = false, strict = false;  // unknown keys; at most one of them
};

struct TrainArguments {
  ConfigArguments config;
  std::string resume;                                    // DIR or DIR:TAG; empty: from the start
  bool fresh_optimizer = false, fresh_schedule = false;  // of what is resumed
  std::string init_from;                                 // a safetensors file; empty: the model's own initial values
  bool progress = true;                                  // a progress bar, where there is a terminal
  std::string report;  // at the end: "comms", "stragglers"; empty: what comms_logger asks for
};

struct TuneArguments {
  ConfigArguments config;            // of our own 'train'; file empty where a program is tuned
  std::vector<std::string> program;  // a program and its arguments; empty: 'train'
  int processes = 1;                 // of a trial
  bool run = false;                  // train with what was found
  bool dry_run = false;              // show the space, start no trial
  std::int64_t limit = 0;            // bytes that a process may take; 0: what there is
  std::int64_t time_out = 0;         // seconds of a trial; 0: by the longest so far
  std::string record, replay;        // files of tables; empty: neither
  int repeats = 3;                   // runs of each point in a table
  int seeds = 100;                   // searches of a replay
  bool progress = true;
  std::string init_from;
};

struct EvalArguments {
  ConfigArguments config;
  std::string checkpoint;  // DIR or DIR:TAG; empty when init_from is given
  std::string init_from;
};

struct GenerateArguments {
  ConfigArguments config;
  std::string checkpoint, init_from;  // as of EvalArguments
  std::string prompt;                 // a text; one of these three is given, or chat
  std::string ids;                    // "1,2,3"
  std::string prompts;                // a file of JSON lines
  bool chat = false;                  // the prompt is a user's message; without one they are read from standard input
  std::string tokenizer;              // a folder or file; empty: what came with the weights
  int max_new = 64;                   // tokens
  int batch = 8;                      // prompts of a file that are continued together
  double temperature = 0, top_p = 1;
  std::int64_t top_k = 0;
  std::string stop;  // "1,2": ids that end a sequence; empty: those that the model tells
};

struct AnalyzeArguments {
  ConfigArguments config;
  std::vector<std::string> metrics;  // TYPE or TYPE:{"parameter": value}; empty: vocab_rarity
  std::string out;
  int processes = 1;
};

struct ExportArguments {
  std::string checkpoint, format, out;
  std::string dtype;        // empty: as saved
  bool compressed = false;  // weights as the codes that were trained
  std::vector<std::string> plugin_paths;
};

struct DoctorArguments {
  std::vector<std::string> plugin_paths;
  bool json = false;
};

struct PlanArguments {
  ConfigArguments config;
  int world = 0, local_world = 0;  // 0: not given
  bool with_values = false;        // build the model whole
  bool json = false;
};

struct VerifyArguments {
  ConfigArguments config;
  int world = 2;     // processes of the variants with several
  int steps = 4;     // of each run
  std::string only;  // a part of the names of variants; empty: all
  bool json = false;
  std::string html, json_file;  // files that take the result; empty: none
  // Of capstan.verify in Python: a program that trains as a file says, its last word, and loops to compare with.
  std::vector<std::string> program, peers;
  // Of one process of a run that the command starts:
  std::string record;        // the folder that takes what it did; empty: the command itself
  std::string save, resume;  // a checkpoint at the end, and at the beginning; empty: none
  int until = 0;             // the last step; 0: `steps`
  bool second = false;       // another engine of the process has trained a step before
};

struct CheckpointShowArguments {
  std::string checkpoint;  // DIR or DIR:TAG
  bool hash = false;       // of the values of each tensor
  bool json = false;
};

struct CheckpointListArguments {
  std::string dir;
  bool json = false;
};

struct CheckpointPruneArguments {
  std::string dir;
  std::int64_t keep = 0;  // at least 1
  bool dry_run = false;
};

struct CheckpointVerifyArguments {
  std::string checkpoint;  // DIR or DIR:TAG
  bool all = false;        // checkpoints of DIR
  bool json = false;
};

struct CheckpointDiffArguments {
  std::string a, b;  // DIR or DIR:TAG
  bool json = false;
};

struct ModelShowArguments {
  ConfigArguments config;
  std::string model;         // TYPE, TYPE:SIZE or a plugin's file
  bool with_values = false;  // build the model whole
  bool json = false;
};

struct AttentionShowArguments {
  ConfigArguments config;
  int length = 0;  // tokens; 0: the configuration's
  int heads = 1;
  bool causal = false;  // the model's calls are
  bool full = false;    // draw layouts that fit no terminal
  bool json = false;
};

struct ValidateArguments {
  ConfigArguments config;
  std::string explain;  // a key path; then no file is checked
  int world = 1;
  bool world_given = false;
  bool json = false;
};

struct SchemaArguments {
  std::vector<std::string> plugin_paths;
  bool reference = false;
};

struct ReportArguments {
  std::string run;  // the folder of a csv_monitor
  std::string out;  // empty: report.html in it
};

struct UpgradeArguments {
  std::string file;
  bool in_place = false;
};

struct ElasticArguments {
  ConfigArguments config;
  std::int64_t world = 0;  // 0: not given
  bool json = false;
};

struct LaunchArguments {
  int processes = 0;
  bool witness = false;  // -n 0: no processes here, but a voice where hosts are lost
  struct Elastic {
    int least = 1, most = 1;  // processes that may train together
  };
  std::optional<Elastic> elastic;
  std::vector<LauncherAddress> rdzv;  // where the launchers of several hosts find together; empty: there is one host
  std::string rdzv_secret_file;       // holds the secret that they share
  ConfigArguments config;             // with elastic, of a program that trains
  bool status = false;                // show elastic launches, start nothing
  int spares = 0;                     // processes that wait to take the place of one that is lost
  std::vector<std::string> command;   // a command of capstan, or a program as a path with a '/'
};

struct DataConvertArguments {
  std::vector<std::string> inputs;
  std::string from, to;  // token_formats(); an empty from: by the files' names
  std::string out;       // a file, or NAME of NAME.idx and NAME.bin
  std::string key = "text";
  std::string numbering = "megatron";
  std::int64_t end_token = -1;  // -1: none
  bool force = false;
  int processes = 0;  // at a time; 0: as many as there are cores for this process, 16 at most
};

struct DataTokenizeArguments {
  std::string tokenizer;  // a folder with tokenizer.json, or that file
  std::vector<std::string> inputs;
  std::string from;  // "text", "jsonl"; empty: by the files' names
  std::string out;   // FILE.bin, or NAME.idx of NAME.idx and NAME.bin
  std::string key = "text";
  std::string end_token;  // a token's text or id, "none"; empty: eos_token of tokenizer_config.json
  bool special_tokens = false, replace_invalid = false, verify = false, force = false;
  int processes = 0;  // at a time; 0: as many as there are cores for this process, 16 at most
};

struct DataChatArguments {
  std::string tokenizer;  // a folder with tokenizer.json, or that file
  std::vector<std::string> inputs;
  std::string out;                 // NAME.idx of NAME.idx and NAME.bin; FILE.bin with loss "all"
  std::string key;                 // the member that holds messages; empty: by the members of a row
  std::string chat_template;       // a file; empty: the tokenizer's folder has it
  std::string loss = "assistant";  // "assistant", "completion", "all"
  std::int64_t pack = 0;           // tokens of the rows that documents share; 0: each is by itself
  std::string too_long;            // of what is longer than a row: "cut", "drop"; empty: "cut"
  bool skip_bad = false;           // leave out rows that cannot be used
  std::string end_token;           // a token's text or id; empty: none, as templates write their own
  bool force = false;
};

struct DataShowArguments {
  std::string file, from;
  std::string key = "text";
  std::int64_t rows = 0, first = 0;  // which rows are shown as text; none: the facts of the file
  std::int64_t most_tokens = 1024;   // of a document that is shown; 0: all
  std::string tokenizer;             // a folder with tokenizer.json, or that file; empty: what the record names
  std::int64_t end_token = -1;       // that ends documents of tokens alone; -1: what the record names
  bool json = false;
};

struct DataStatsArguments {
  std::vector<std::string> inputs;
  std::string from;       // token_formats(); empty: by the files' names
  std::string key;        // rows: the member that holds a conversation or a text; empty: as the rows are
  std::string tokenizer;  // of rows: a folder with tokenizer.json, or that file; empty: bytes are counted
  std::string chat_template;
  std::int64_t row_length = 0;  // that packing is computed for; 0: of rows that are packed
  std::int64_t end_token = -1;  // that ends documents of tokens alone; -1: what the record names
  bool json = false;
};

struct PluginsListArguments {
  std::vector<std::string> plugin_paths;
  bool json = false;
};

struct PluginsInspectArguments {
  std::string file;
  bool json = false;
  bool manifest_only = false;
};

struct PluginsNewArguments {
  std::string name, kind;
  std::string folder;   // empty: ./<name>
  std::string variant;  // of the kind's template; empty: the plain one
  std::string lang;     // "c", or empty: C++
};

struct PluginsInstallArguments {
  std::string source;  // a plugin's file, or a folder of them
  std::string folder;  // empty: the user's own
  bool force = false;  // replace what is there
};

struct PluginsRemoveArguments {
  std::string name;    // of the package, or of the file
  std::string folder;  // empty: the user's own
};

struct PluginsCheckArguments {
  std::string file;
  std::string only;  // cases whose name contains it
  std::optional<std::int64_t> seed;
  std::optional<std::int64_t> timeout;  // seconds a case
  std::string params;                   // JSON; empty: the defaults
  std::string device;                   // type of an accelerator, or "emulated"; empty: the CPU
  std::string beside;                   // file of the build for the CPU
  bool in_process = false;
  bool json = false;
  bool verify = false;  // train with it in every way as well
  std::string html;     // a page with badges of that
};

using Arguments =
    std::variant<TrainArguments, TuneArguments, EvalArguments, GenerateArguments, AnalyzeArguments, ExportArguments,
                 DoctorArguments, PlanArguments, VerifyArguments, ModelShowArguments, CheckpointShowArguments,
                 CheckpointListArguments, CheckpointPruneArguments, CheckpointVerifyArguments, CheckpointDiffArguments,
                 AttentionShowArguments, ValidateArguments, SchemaArguments, ReportArguments, UpgradeArguments,
                 ElasticArguments, LaunchArguments, DataConvertArguments, DataTokenizeArguments, DataChatArguments,
                 DataShowArguments, DataStatsArguments, PluginsListArguments, PluginsInspectArguments,
                 PluginsNewArguments, PluginsInstallArguments, PluginsRemoveArguments, PluginsCheckArguments>;

}  // namespace capstan::cli
