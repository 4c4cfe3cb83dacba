#pragma once

// What the commands' help says beside their options.

namespace capstan::cli {

inline constexpr const char* kDescription =
    "Capstan trains models as a DeepSpeed configuration file says; everything that the file names is a plugin.";

inline constexpr const char* kExitCodes =
    "Exit codes:\n"
    "  0    done\n"
    "  1    the run failed: data, disk, checkpoint, a loss that is not a number\n"
    "  2    the command line is wrong\n"
    "  3    the configuration is wrong\n"
    "  4    a plugin is missing, broken or failed\n"
    "  70   a bug in Capstan\n"
    "  130  interrupted by Ctrl-C or SIGTERM: a training finishes the step, and saves where --save is given.\n"
    "       It ends at once before the first step, and where a step, an evaluation or a save takes too long,\n"
    "       and prints which\n"
    "\n"
    "capstan COMMAND --help, or capstan help COMMAND, explains a command and shows examples.";

inline constexpr const char* kTrainExamples =
    "Examples:\n"
    "  capstan train --data notes.txt\n"
    "      the default model and configuration on a text file\n"
    "  capstan train --config ds_config.json --model gpt:tiny --data corpus/ --steps 200 \\\n"
    "      --save ckpt/ --save-every 50 --keep 3\n"
    "  capstan train --config ds_config.json --model gpt:tiny --data corpus/ --steps 400 --save ckpt/ --resume ckpt/\n"
    "      continues bit-identically; --steps counts from the beginning of the run\n"
    "  capstan train --config ds_config.json --model hf:SmolLM2/ --data corpus/ --steps 200 --save ckpt/\n"
    "      starts from a folder of transformers; from new weights with --from-scratch\n"
    "  capstan train --config ds_config.json --set optimizer.params.lr=3e-4 --set train_batch_size=64\n"
    "\n"
    "Ctrl-C or SIGTERM finishes the step, saves where --save is given and exits with code 130; a second one "
    "ends the run at once. Before the first step, even the first one does. A step that does not end is given up after "
    "10 s, or twice the time of the longest step so far (CAPSTAN_INTERRUPT_SECONDS); a save that writes nothing for "
    "half "
    "an hour, or twice the longest save (CAPSTAN_INTERRUPT_SAVE_SECONDS).";

inline constexpr const char* kTuneExamples =
    "Examples:\n"
    "  capstan tune -n 2 --config ds_config.json --model gpt:tiny --data corpus/ --dry-run\n"
    "      what would be tried, and what the plan of its memory excludes\n"
    "  capstan tune -n 2 --config ds_config.json --model gpt:tiny --data corpus/ --steps 1000 --run\n"
    "  capstan tune -n 2 ./my_program --deepspeed_config ds_config.json --micro 4\n"
    "      a program of yours, with a '/' or found in PATH; autotuning.arg_mappings says which of its flags follow\n"
    "  capstan tune -n 2 --config ds_config.json --model gpt:tiny --data corpus/ --record table.json\n"
    "  capstan tune --replay table.json\n"
    "\n"
    "The section autotuning of the configuration says what to search, and without it the defaults of its keys; lists "
    "of values in zero_optimization are "
    "searched. "
    "Results go to autotuning_results/: ds_config_optimal.json, cmd_optimal.txt, summary.txt and a folder for each "
    "trial. A search that was stopped goes on where it was.";

inline constexpr const char* kLaunchExamples =
    "Examples:\n"
    "  capstan launch -n 2 train --config ds_config.json --model gpt:tiny --data corpus/ --steps 200\n"
    "  capstan launch -n 4 ./my_program --its-own-options\n"
    "      a program of yours: a first word that is not a command of capstan, with a '/' or found in PATH\n"
    "  capstan launch -n 2 python3 my_training.py\n"
    "  capstan launch --elastic 1:4 --config ds_config.json python3 my_training.py\n"
    "      trains by capstan.Run, or in C++ by capstan::Run\n"
    "\n"
    "When one process ends badly, the others are ended too, and its exit code is the launcher's. On several hosts, "
    "start "
    "the processes with torchrun --no-python, mpirun or srun instead.";

inline constexpr const char* kEvalExamples =
    "Example:\n"
    "  capstan eval --config ds_config.json --model gpt:tiny --checkpoint ckpt/ --data held_out.txt";

inline constexpr const char* kGenerateExamples =
    "Examples:\n"
    "  capstan generate --config ds_config.json --checkpoint ckpt/ --prompt 'The drum ' --max-new 100\n"
    "  capstan generate --config ds_config.json --init-from FOLDER --ids 1,450,4996 --temperature 0.8 --top-p 0.95\n"
    "  capstan generate --config ds_config.json --checkpoint ckpt/ --prompts prompts.jsonl\n"
    "      a line for each prompt: {\"text\": \"The drum \"} or {\"ids\": [1, 450]}; the answers are such lines, too";

inline constexpr const char* kAnalyzeExamples =
    "Examples:\n"
    "  capstan analyze --model gpt:tiny --data corpus/ --out metrics/ -n 2\n"
    "      vocab_rarity, and total_vocab_freq, whose sums it needs\n"
    "  capstan analyze --data corpus/ --seq 128 --metric seqlen --metric 'total_vocab_freq:{\"vocabulary\": 256}' "
    "--out metrics/\n"
    "An analysis that was stopped goes on where it was.";

inline constexpr const char* kExportExamples =
    "Examples:\n"
    "  capstan export --checkpoint ckpt/ --to safetensors --out model.safetensors\n"
    "  capstan export --checkpoint ckpt/:global_step200 --to pt --out model.pt\n"
    "      torch.load(\"model.pt\", weights_only=True) opens it\n"
    "  capstan export --checkpoint ckpt/ --to hf --out gpt2/\n"
    "  capstan export --checkpoint ckpt/ --compressed --to gguf --out model.gguf\n"
    "      the codes that were trained, which llama.cpp runs";

inline constexpr const char* kPlanExamples =
    "Examples:\n"
    "  capstan plan --config ds_config.json --model gpt:124m --world 64 --local-world 8\n"
    "  capstan plan --config ds_config.json --model gpt:7b --set zero_optimization.stage=2\n"
    "\n"
    "No values are computed, so a model that fits no machine can be planned on any.";

inline constexpr const char* kVerifyExamples =
    "Examples:\n"
    "  capstan verify --config ds_config.json --model gpt:tiny --data corpus/\n"
    "  capstan verify --config ds_config.json --plugin-path build/plugins --world 4 --json\n"
    "  capstan verify --config ds_config.json --only \"stage 3\"\n"
    "\n"
    "Exit code 0 when every variant trains as it must, otherwise 1.";

inline constexpr const char* kCheckpointShowExamples =
    "Examples:\n"
    "  capstan checkpoint show ckpt/\n"
    "  capstan checkpoint show ds_ckpt/:global_step500 --json\n"
    "  capstan checkpoint show ckpt/ --hash\n"
    "      equal values have equal hashes, whatever the number of processes and the ZeRO stage";

inline constexpr const char* kCheckpointListExamples =
    "Examples:\n"
    "  capstan checkpoint list ckpt/\n"
    "  capstan checkpoint list trainer_output/ --json\n"
    "\n"
    "Sizes and structure are checked, values are not: 'capstan checkpoint verify' reads them.";

inline constexpr const char* kCheckpointPruneExamples =
    "Examples:\n"
    "  capstan checkpoint prune ckpt/ --keep 3 --dry-run\n"
    "  capstan checkpoint prune trainer_output/ --keep 1\n"
    "\n"
    "Checkpoints are counted that are whole and called global_step<N> or checkpoint-<N>. Those that 'latest' or "
    "'best'\n"
    "names stay, and so do those with names of your own.";

inline constexpr const char* kCheckpointVerifyExamples =
    "Examples:\n"
    "  capstan checkpoint verify ckpt/\n"
    "  capstan checkpoint verify ds_ckpt/:global_step500\n"
    "  capstan checkpoint verify ckpt/ --all\n"
    "\n"
    "Exit code 0 when all of it is whole, otherwise 1 and the name of the damaged file.";

inline constexpr const char* kCheckpointDiffExamples =
    "Examples:\n"
    "  capstan checkpoint diff ckpt/:global_step500 other/:global_step500\n"
    "  capstan checkpoint diff ds_ckpt/ ckpt/:global_step500 --json\n"
    "\n"
    "Exit code 0 when tensors and counters are equal, 1 when they differ, 2 when one cannot be read.";

inline constexpr const char* kModelShowExamples =
    "Examples:\n"
    "  capstan model show gpt:124m\n"
    "  capstan model show gpt:tiny --set capstan.model.params.layers=2 --json\n"
    "  capstan model show build/lib/capstan/plugins/models/libcapstan_acme_net.so\n"
    "\n"
    "The role is what optimizers see of a parameter: embedding, head, norm, bias, matrix or other.";

inline constexpr const char* kAttentionShowExamples =
    "Examples:\n"
    "  capstan attention show --config ds_config.json --length 512 --heads 4\n"
    "  capstan attention show --config ds_config.json --length 8192 --causal\n"
    "      the density that counts for a language model, whose calls are causal\n"
    "  capstan attention show --config ds_config.json --length 512 --set sparse_attention.mode=bigbird";

inline constexpr const char* kValidateExamples =
    "Examples:\n"
    "  capstan validate ds_config.json\n"
    "  capstan validate ds_config.json --world 8 --json\n"
    "  capstan validate ds_config.json --world 8 --device cuda\n"
    "      what GPUs take and refuse, on any machine\n"
    "  capstan validate --explain zero_optimization.stage3_prefetch_bucket_size\n"
    "\n"
    "Loads neither plugins nor LibTorch. Exit code 0 when the configuration can be run, otherwise 3.";

inline constexpr const char* kSchemaExamples =
    "Example:\n"
    "  capstan schema > capstan.schema.json\n"
    "      an editor that knows the file completes and checks configurations";

inline constexpr const char* kReportExamples =
    "Examples:\n"
    "  capstan report runs/first\n"
    "  capstan report runs/first --out first.html";

inline constexpr const char* kUpgradeExamples =
    "Examples:\n"
    "  capstan upgrade ds_config.json > new.json\n"
    "  capstan upgrade --in-place ds_config.json";

inline constexpr const char* kElasticExamples =
    "Examples:\n"
    "  capstan elastic ds_config.json\n"
    "  capstan elastic ds_config.json --world 64";

inline constexpr const char* kDataConvertExamples =
    "Examples:\n"
    "  capstan data convert corpus/*.txt --to indexed --out corpus\n"
    "      each file is a document of corpus.idx and corpus.bin, as Megatron-LM and DeepSpeed have them\n"
    "  capstan data convert documents.jsonl --to indexed --out documents\n"
    "  capstan data convert train.bin --end-token 50256 --to indexed --out train\n"
    "  capstan data convert megatron_text_document.idx --to uint16 --end-token 50256 --out train.bin";

inline constexpr const char* kDataTokenizeExamples =
    "Examples:\n"
    "  capstan data tokenize corpus --tokenizer models/gpt2 --out corpus.bin\n"
    "      each file of the folder is a document, with eos_token behind it; then: capstan train --data corpus.bin\n"
    "  capstan data tokenize documents.jsonl --tokenizer tokenizer.json --end-token '</s>' --out documents.idx "
    "--verify\n"
    "  capstan data tokenize data/train-*.parquet --key content --tokenizer models/gpt2 --out train.bin\n"
    "      Parquet and arrow files are rows as lines of JSON are";

inline constexpr const char* kDataChatExamples =
    "Examples:\n"
    "  capstan data chat chats.jsonl --tokenizer models/smollm2 --out chats.idx\n"
    "      a line is {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}, and may have \"tools\"\n"
    "  capstan data chat chats.jsonl --tokenizer models/smollm2 --pack 2048 --out chats.idx\n"
    "      puts short conversations together, which do not see one another in training\n"
    "  capstan data chat chats.jsonl --tokenizer models/smollm2 --chat-template training.jinja --out chats.idx";

inline constexpr const char* kDataShowExamples =
    "Examples:\n"
    "  capstan data show corpus.idx\n"
    "  capstan data show chats.idx --rows 2\n"
    "      the text of two rows, by the tokenizer that made them; what the loss counts is green, or between \u27e6 and "
    "\u27e7\n"
    "  capstan data show metrics/vocab_rarity/vocab_rarity_index_to_metric --json";

inline constexpr const char* kDataStatsExamples =
    "Examples:\n"
    "  capstan data stats chats.idx\n"
    "  capstan data stats chats.jsonl --tokenizer models/smollm2 --seq 2048\n"
    "      what conversations take before they are made, by role, and how many rows of 2,048 tokens they fill\n"
    "  capstan data stats train-*.parquet --key text --json";

inline constexpr const char* kCheckExamples =
    "Examples:\n"
    "  capstan plugins check build/libcapstan_optimizer_signum.so\n"
    "  capstan plugins check build/libcapstan_optimizer_signum.so --only zero_gradient --in-process\n"
    "  capstan plugins check build/libcapstan_observer_prune.so --params '{\"names\": [\"attn\"]}' --timeout 10\n"
    "  capstan plugins check build/libcapstan_optimizer_signum.so --verify --html badges.html\n"
    "  capstan plugins check build/lib/capstan/emulated/libcapstan_optimizer_signum_on_cpu.so --device emulated\n"
    "\n"
    "Exit code 0 when every case passed and --verify found nothing, otherwise 4.";

inline constexpr const char* kListExamples =
    "Examples:\n"
    "  capstan plugins list\n"
    "  capstan plugins list --plugin-path ~/my-plugins --json";

inline constexpr const char* kInstallExamples =
    "Examples:\n"
    "  capstan plugins install build/lib/capstan/plugins\n"
    "  capstan plugins install libcapstan_acme_signum.so --force\n"
    "\n"
    "Shows what it may do: the plugin's kinds, types, traits and tier, and the libraries that it loads.";

inline constexpr const char* kRemoveExamples =
    "Example:\n"
    "  capstan plugins remove acme-signum";

inline constexpr const char* kNewExamples =
    "Example:\n"
    "  capstan plugins new acme-signum --kind optimizer\n"
    "      makes the folder acme-signum: an optimizer of type Signum, with a test, that builds as it is\n"
    "  capstan plugins new acme-muon --kind optimizer --template matrix\n"
    "  capstan plugins new acme-cosine --kind scheduler --lang c";

inline constexpr const char* kInspectExamples =
    "Example:\n"
    "  capstan plugins inspect lib/capstan/plugins/optimizers/libcapstan_optimizer_lion.so";

}  // namespace capstan::cli
