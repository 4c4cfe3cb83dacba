/* The Capstan plugin ABI, version 1.0: all that crosses between the engine and a plugin.
 *
 * Plain C. A plugin exports one symbol, capstan_plugin_v1. C++ authors include capstan/sdk/<kind>.hpp instead,
 * which wraps what is here in ordinary classes.
 *
 * Rules that hold for every declaration below:
 *  - Structs that either side may extend begin with `struct_size`, set by the side that made them. A field or
 *    function beyond it is absent. Fields are only ever appended.
 *  - Arrays of structs cross as arrays of pointers, so that an older reader keeps the right stride.
 *  - Strings are UTF-8, not null-terminated, and borrowed for the duration of the call.
 *  - Tensors are LibTorch's stable handles (the address of an at::Tensor), borrowed for the duration of the call.
 *    An *out* tensor that a function returns is a new handle that the receiver owns and releases with
 *    aoti_torch_delete_tensor_object.
 *  - A function that fails sets the error text once, with capstan_host.set_error, and returns CAPSTAN_FAILED.
 *    No exception, no allocator and no C++ object crosses.
 *  - Thread classes: [engine] the thread that runs the engine; [worker] one thread that the host owns;
 *    [any] any thread.
 */
/* clang-format off */
#ifndef CAPSTAN_PLUGIN_H
#define CAPSTAN_PLUGIN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSTAN_ABI_MAJOR 1u /* changes only when an existing field changes meaning */
#define CAPSTAN_ABI_MINOR 0u /* grows when a field is appended */

typedef struct AtenTensorOpaque* capstan_tensor;  /* the same type as LibTorch's AtenTensorHandle */
typedef struct capstan_error capstan_error;       /* host-owned */
typedef struct capstan_sink capstan_sink;         /* host-owned; takes text */
typedef struct capstan_group capstan_group;       /* host-owned; the numbers of one parameter group */
typedef struct capstan_batch capstan_batch;       /* host-owned; named tensors and named numbers */
typedef struct capstan_tokenizer capstan_tokenizer; /* host-owned; of a model, for texts */
struct capstan_compressed;                        /* of the kind "compression" */

typedef struct capstan_str {
  const char* data;
  size_t size;
} capstan_str;

/* For authors in C. CAPSTAN_LITERAL("rate") initialises a capstan_str, of static storage too;
 * CAPSTAN_STR(text) is one of any null-terminated text, for a call. */
#define CAPSTAN_LITERAL(text) {"" text, sizeof("" text) - 1}
#ifndef __cplusplus
#define CAPSTAN_STR(text) ((capstan_str){(text), strlen(text)})
#endif

typedef enum capstan_status { CAPSTAN_OK = 0, CAPSTAN_FAILED = 1 } capstan_status;

typedef enum capstan_log_level {
  CAPSTAN_LOG_DEBUG = 0,
  CAPSTAN_LOG_INFO = 1,
  CAPSTAN_LOG_WARNING = 2,
  CAPSTAN_LOG_ERROR = 3
} capstan_log_level;

/* What a visited tensor is. */
typedef enum capstan_role {
  CAPSTAN_ROLE_PARAMETER = 0, /* trained when it requires a gradient */
  CAPSTAN_ROLE_BUFFER = 1,    /* saved with the model, not trained */
  CAPSTAN_ROLE_GRADIENT = 2,  /* host to plugin only: the gradient of the parameter of that name */
  CAPSTAN_ROLE_MASTER = 3     /* host to plugin only: its fp32 master values */
} capstan_role;

/* What a parameter is to its model, from what the model's describe() says under "roles", the classes of its
 * modules and the parameter's shape. */
typedef enum capstan_param_role {
  CAPSTAN_PARAM_OTHER = 0,     /* one dimension or none, in a module that is none of those below */
  CAPSTAN_PARAM_MATRIX = 1,    /* two dimensions or more: linear layers, convolutions */
  CAPSTAN_PARAM_EMBEDDING = 2, /* a table of vectors; tied to the head as well */
  CAPSTAN_PARAM_HEAD = 3,      /* the matrix that gives logits */
  CAPSTAN_PARAM_NORM = 4,      /* scale and shift of a normalisation */
  CAPSTAN_PARAM_BIAS = 5
} capstan_param_role;

/* Receives tensors and modules, one call each, in the model's order. A null function is not called. */
typedef struct capstan_visitor {
  uint32_t struct_size;
  void* ctx;
  void (*tensor)(void* ctx, capstan_str name, capstan_tensor tensor, capstan_role role);
  void (*module)(void* ctx, capstan_str path, capstan_str class_name);
} capstan_visitor;

/* A tensor that a layer takes beside its hidden states: "attention_mask", "position_ids". */
typedef struct capstan_argument {
  uint32_t struct_size;
  capstan_str name;
  capstan_tensor tensor;
} capstan_argument;

/* Computes one layer: `out` = f(hidden, arguments). Runs at most once, and only within the call that it is
 * part of. `arguments` has the names that the call has; each tensor is the call's own or one that takes its place. */
typedef struct capstan_inner {
  uint32_t struct_size;
  void* ctx;
  capstan_status (*run)(void* ctx, capstan_tensor hidden, const capstan_argument* const* arguments,
                        size_t argument_count, capstan_tensor* out, capstan_error*);
} capstan_inner;

/* A model's call of one of its layers. */
typedef struct capstan_layer_call {
  uint32_t struct_size;
  uint32_t index, count; /* its place in the model's list of layers, and that list's length, as capstan_host.layer_names
                          * has it; index = count for a name that the list lacks. The host fills both. */
  capstan_str name;      /* "blocks.3" */
  capstan_batch* batch;
  capstan_tensor hidden;
  const capstan_argument* const* arguments;
  size_t argument_count;
} capstan_layer_call;

/* Where a region's backward has come to. */
typedef enum capstan_recompute_moment {
  CAPSTAN_RECOMPUTE_BEGIN = 0,   /* backward asks for the first activation: it is about to be run again */
  CAPSTAN_RECOMPUTE_END = 1,     /* all that backward asks for is there */
  CAPSTAN_RECOMPUTE_RELEASED = 2 /* backward has used it all; comes without the others where it asked for nothing */
} capstan_recompute_moment;

/* How a layer is run whose activations are computed again in backward (activation checkpointing). The layer's
 * operators are recorded, and those whose results backward asks for are run again: a region is what is run again at once.
 * Its boundary is the hidden states that its first layer is given. Zeroes and null pointers mean: nothing of it. */
typedef struct capstan_recompute {
  uint32_t struct_size;
  uint32_t joins;          /* 1: the layer belongs to the region that a layer before it left open, where there is one */
  uint32_t stays_open;     /* 1: the region goes on, up to the end of the next layer that joins it */
  uint32_t check;          /* when all that is computed again is compared with what forward had, bit by bit: 0 in the
                            * first micro-batch of a run, 1 in every one, 2 never */
  const capstan_str* keep; /* operators that are not run again, "aten::_softmax": their results stay in memory */
  size_t keep_count;
  /* What follows is called until the region's activations are released, and not after the event CLOSING. */
  void* ctx;
  /* Where the boundary tensor waits between forward and backward, all three or none of them; without them it stays in
   * memory. `pack` may keep the handle's tensor only as a new handle or a copy. `unpack` gives a new handle to a tensor of
   * the same shape, dtype and device; a region is run again at most once, so it may let go of what it kept. `drop` comes
   * once for each id, in backward or where a graph is abandoned. [any, one at a time in a region] */
  capstan_status (*pack)(void* ctx, capstan_tensor boundary, uint64_t* id, capstan_error*);
  capstan_status (*unpack)(void* ctx, uint64_t id, capstan_tensor* out, capstan_error*);
  void (*drop)(void* ctx, uint64_t id);
  /* Where the region's backward has come to. `layer`: the first of the region. [any] */
  void (*backward)(void* ctx, capstan_str layer, int what); /* capstan_recompute_moment */
} capstan_recompute;

/* What is known of a tokenizer. */
typedef struct capstan_tokenizer_facts {
  uint32_t struct_size;
  int32_t vocabulary; /* one more than the largest id */
  int32_t end_token;  /* eos_token of tokenizer_config.json or of a GGUF file: what stands behind a document; -1: none */
} capstan_tokenizer_facts;

/* What the engine lends to a component. Keep the pointer in the instance, never in a global: one process may run
 * two engines. It outlives the instance. */
typedef struct capstan_host {
  uint32_t struct_size, abi_major, abi_minor;
  void* ctx;
  void (*set_error)(capstan_error*, capstan_str message);      /* [any] */
  void (*log)(void* ctx, int level, capstan_str message);      /* [any] level: capstan_log_level */
  /* Collectives over the data-parallel group. [engine, every rank] With one process they copy or do nothing. */
  capstan_status (*all_reduce_sum)(void* ctx, capstan_tensor, capstan_error*);
  capstan_status (*all_to_all)(void* ctx, capstan_tensor out, capstan_tensor in, capstan_error*);
  /* The L2 norm over all shards of a parameter: which = 0 its master values, 1 its gradient. Not inside update or
   * measure, where a rank may own no part of it. */
  capstan_status (*param_norm)(void* ctx, capstan_str param, int which, double* out, capstan_error*);
  /* The calling thread's current stream on the device that the host trains on, a cudaStream_t on CUDA; NULL on CPU. */
  void* (*stream)(void* ctx);
  void (*sink_write)(capstan_sink*, capstan_str text);
  uint32_t rank, world_size;                                   /* in the data-parallel group */
  capstan_status (*all_gather)(void* ctx, capstan_tensor out, capstan_tensor in, capstan_error*);
  capstan_status (*broadcast)(void* ctx, capstan_tensor, uint32_t root, capstan_error*);

  /* One value of a JSON document, by JSON pointer (RFC 6901: "/betas/0"). [any] */
  capstan_status (*json_number)(capstan_str json, capstan_str pointer, double* out, capstan_error*); /* bool: 0, 1 */
  /* Hands a string's characters, or any other value as JSON text, to take(ctx, text), once. */
  capstan_status (*json_text)(capstan_str json, capstan_str pointer, void* ctx, void (*take)(void* ctx, capstan_str),
                              capstan_error*);
  /* Members of an array or object, 1 for a scalar, 0 for null and for what is not there. */
  capstan_status (*json_size)(capstan_str json, capstan_str pointer, size_t* out, capstan_error*);

  /* A number, or a list of numbers, of a parameter group: "lr" and every numeric or boolean (0, 1) parameter of the
   * optimizer's schema. Fails unless the group has exactly `count` values of that name. [engine] */
  capstan_status (*group_numbers)(const capstan_group*, capstan_str name, double* out, size_t count, capstan_error*);

  /* The batch that a model or observer was given. [engine] */
  capstan_status (*batch_tensor)(capstan_batch*, capstan_str name, capstan_tensor* borrowed, capstan_error*);
  capstan_status (*batch_set_tensor)(capstan_batch*, capstan_str name, capstan_tensor, capstan_error*);
  capstan_status (*batch_number)(capstan_batch*, capstan_str name, double* out, int* found, capstan_error*);
  capstan_status (*batch_set_number)(capstan_batch*, capstan_str name, double value, capstan_error*);
  capstan_status (*batch_visit)(capstan_batch*, const capstan_visitor*, capstan_error*);

  /* Runs `inner` on call->hidden with call->arguments, through the observers that wrap layers. `call` needs name, hidden
   * and arguments. Only from within the model's forward. [engine] */
  capstan_status (*layer)(capstan_batch*, const capstan_layer_call* call, const capstan_inner* inner, capstan_tensor* out,
                          capstan_error*);

  /* Visits the model's modules, its parameters, their masters and gradients. [engine, not within update] */
  capstan_status (*visit_parameters)(void* ctx, const capstan_visitor*, capstan_error*);

  /* Ranks that give the same color become a group, in the order of their ranks. `group` is a host whose
   * collectives, rank and world_size are the group's; it lives as long as this one. All ranks call it together, and
   * from then on all of them make each call on their groups together, whatever its tensors: a rank alone in its group
   * too. [engine, every rank] */
  capstan_status (*split)(void* ctx, uint32_t color, const struct capstan_host** group, capstan_error*);

  /* Hands the names of an object's members to take(ctx, name), in their order; of anything else none. [any] */
  capstan_status (*json_names)(capstan_str json, capstan_str pointer, void* ctx, void (*take)(void* ctx, capstan_str),
                               capstan_error*);

  /* Hands the names of the model's layers to take(taker, name), in their order: what the model's describe()
   * says under "layer_names", else modules of one class that a path numbers from 0, "blocks.0", "blocks.1". None where
   * neither is there. [engine] */
  capstan_status (*layer_names)(void* ctx, void* taker, void (*take)(void* taker, capstan_str name), capstan_error*);
  /* A number of the step under way, for monitors, under its whole tag: "Train/Samples/kept_tokens". The last one of a step
   * counts, and rank 0's. [engine] */
  capstan_status (*record)(void* ctx, capstan_str tag, double value, capstan_error*);
  /* The difficulty of a curriculum's metric in step `step`, 1 for the first, where the schedule is "custom":
   * from the program's function or the component of kind "pacing". Fails, and says what to do, where there is neither.
   * [engine] */
  capstan_status (*difficulty)(void* ctx, capstan_str metric, int64_t step, int64_t* out, capstan_error*);
  /* Runs `inner` on call->hidden with call->arguments, which an observer of layers may have changed, and forgets
   * its activations until backward. Outside of training, and inside of a region that is open already, it just runs
   * `inner`. Within an observer's `layer`, or within a model's forward. `call` needs name, hidden and arguments.
   * [engine] */
  capstan_status (*recompute)(capstan_batch*, const capstan_layer_call* call, const capstan_inner* inner,
                              const capstan_recompute* how, capstan_tensor* out, capstan_error*);

  /* What follows is for compressions, within their functions `prepare`, `gradient` and `before_update`, on every rank in
   * the same order and about the same pieces. [engine, every rank] */
  /* Adds up what was measured of pieces. group_sizes[i] consecutive elements of piece i's flattened parameter
   * make a group. partials[i]: a number for each segment of the piece, which ends where a group ends and at multiples of
   * 32,768. totals[i]: full_numel / group_sizes[i] sums, of every group of the parameter, the same bits on all ranks and
   * however the parameter is cut. */
  capstan_status (*sum_groups)(void* ctx, const struct capstan_compressed* const* pieces, size_t piece_count,
                               const uint64_t* group_sizes, const double* const* partials, double* const* totals,
                               capstan_error*);
  /* The exact k-th largest of sets of float32 values, without NaN, whose parts lie on the ranks as those of
   * pieces do. parts[i]: this rank's part i, contiguous, of set sets[i]; every rank has as many parts. k[s]: 0 to the
   * number of values of set s. thresholds[s]: its k[s]-th largest; infinity for k[s] = 0. masks: NULL, or for each part a
   * uint8 tensor of as many elements, or NULL: becomes 1 for the k[s] largest of its set, else 0; among equal values the
   * first ones are taken, in the order of parts, of ranks and of elements. */
  capstan_status (*select_largest)(void* ctx, const capstan_tensor* parts, const uint32_t* sets, size_t part_count,
                                   const uint64_t* k, size_t set_count, float* thresholds, const capstan_tensor* masks,
                                   capstan_error*);
  /* Fills `whole`, one dimension, full_numel elements, with what all ranks have in `part`, the piece's elements
   * of the same dtype. */
  capstan_status (*gather_piece)(void* ctx, const struct capstan_compressed* piece, capstan_tensor part,
                                 capstan_tensor whole, capstan_error*);

  /* What components of one engine tell each other: a number under a name, until it is told anew. Checkpoints do
   * not hold it. *found = 0: nobody has told it. [engine] */
  capstan_status (*tell)(void* ctx, capstan_str name, double value, capstan_error*);
  capstan_status (*told)(void* ctx, capstan_str name, double* out, int* found, capstan_error*);
  /* From the next step on the engine keeps what hessian_vector needs: the last micro-batch of each step, and the
   * state that random number generators had before its forward. In the event INITIALIZED or later. [engine] */
  capstan_status (*want_curvature)(void* ctx, capstan_error*);
  /* Products of the Hessian of the last micro-batch's loss, the mean over ranks, with a vector. Both have a
   * tensor for each of the named trainable parameters, of its shape, float32; hv[i] is a new handle. The second derivatives
   * of these parameters alone: a block of the whole Hessian. What float16 cannot hold is 0. The first product of an event,
   * and of other parameters, takes a forward and a backward more. Changes no gradient, buffer or generator. Within the event
   * UPDATE_BEGIN of a step that is not skipped. Fails with the name of an operator that has no second derivative.
   * [engine, every rank] */
  capstan_status (*hessian_vector)(void* ctx, const capstan_str* parameters, const capstan_tensor* v, capstan_tensor* hv,
                                   size_t count, capstan_error*);

  /* Opens the tokenizer of a folder with tokenizer.json, of that file, or of a GGUF file, as `capstan data tokenize` does.
   * The component closes what it has opened. Fails with the file and the place in it. [any] */
  capstan_status (*open_tokenizer)(void* ctx, capstan_str path, capstan_tokenizer** out, capstan_error*);
  void (*close_tokenizer)(capstan_tokenizer*); /* [any] */
  /* Fills the fields that *out has room for, by its struct_size. [any] */
  capstan_status (*tokenizer_facts)(capstan_tokenizer*, capstan_tokenizer_facts* out, capstan_error*);
  /* The id of a token by its text, "<|endoftext|>"; -1: there is none. [any] */
  capstan_status (*find_token)(capstan_tokenizer*, capstan_str token, int32_t* id, capstan_error*);
  /* Hands the tokens of a text to take(taker, ids, count), in their order, in one call. Special tokens that are
   * written in the text are found, and none are added. Fails where the text is not UTF-8. [any, several at once] */
  capstan_status (*encode_text)(capstan_tokenizer*, capstan_str text, void* taker,
                                void (*take)(void* taker, const int32_t* ids, size_t count), capstan_error*);
  /* Hands the text of tokens to take(taker, text), in one call. specials: 1: with the special tokens, 0: without.
   * [any, several at once] */
  capstan_status (*decode_tokens)(capstan_tokenizer*, const int32_t* ids, size_t count, int specials, void* taker,
                                  void (*take)(void* taker, capstan_str text), capstan_error*);
} capstan_host;

/* ---- kind "optimizer" ------------------------------------------------------------------------------------- */

/* One parameter, or this rank's part of it. All tensors are contiguous and hold `numel` elements in flattened order,
 * except states that the manifest declares otherwise; their shape means nothing. A state with like = "block" has
 * ceil(numel / block) values here; `offset` is a multiple of every such block. */
typedef struct capstan_slot {
  uint32_t struct_size;
  uint32_t group;              /* index into capstan_step.groups */
  capstan_str name;
  capstan_tensor param;        /* fp32 master values of elements [offset, offset + numel) of the flattened parameter */
  capstan_tensor grad;         /* the same elements, in the dtype they have (float32, bfloat16 or float16); where
                                  gradient_mode asked for local ones, this rank's gradient of the whole parameter */
  const capstan_tensor* state; /* manifest order; allocated and initialised by the engine as declared, those with
                                  like = "scalar" in host memory on every device; NULL for one that the manifest's
                                  `when`, `when_dims` and the like leave out for this parameter */
  uint64_t offset, numel, full_numel;
  const int64_t* full_shape;
  uint32_t full_dims;
  capstan_tensor compute;      /* where the parameter's compute copy is of another dtype (bfloat16, float16): the same
                                  elements of it, which update() may write with the new values rounded to nearest
                                  even; NULL otherwise. */
  int* compute_written;        /* set *compute_written = 1 after writing `compute`; the engine copies it otherwise */
  size_t state_count;          /* how many entries `state` has, the NULL ones included */
  uint32_t role;               /* capstan_param_role */
  const int64_t* grad_rows;    /* with the trait sparse_rows, where the step's gradient came sparse on every
                                  rank: the rows along the first dimension that it has on any of them, ascending;
                                  `grad` is 0 in all others. NULL where it came dense, and without the trait */
  size_t grad_row_count;       /* how many rows; 0 is possible */
} capstan_slot;

typedef struct capstan_step {
  uint32_t struct_size;
  int64_t update_index;        /* of the run, 0 for the first; skipped steps do not count. One update may come in
                                  several calls with disjoint slots. */
  double grad_scale;           /* multiply every gradient by it: unscaling and clipping */
  const capstan_group* const* groups;
  size_t group_count;
  const capstan_tensor* model_state; /* states declared with extent = "model", in manifest order */
  size_t model_state_count;          /* how many entries `model_state` has */
  const double* model_totals;  /* in update: `measures_model` numbers, each the sum of what measure_model
                                  gave over all parameters and ranks; NULL when measures_model = 0 */
} capstan_step;

/* An optimizer with the trait own_communication gets every slot of an update in one call, on every rank the same
 * parameters in the same order, `numel` 0 where this rank owns no part; all others may get one update in several calls,
 * with disjoint slots, and none for a parameter without a gradient. */
typedef struct capstan_optimizer {
  uint32_t struct_size;
  /* `totals`: measures * slot count numbers, those of slot i from index i * measures; NULL when measures = 0. */
  capstan_status (*update)(void* self, const capstan_slot* const* slots, size_t slot_count, const capstan_step*,
                           const double* totals, capstan_error*); /* [engine] */
  /* Optional, with `measures = k` in the manifest: k partial sums a slot. The engine adds them over the shards of
   * each parameter in one collective. No collective may be called in here. [engine] */
  capstan_status (*measure)(void* self, const capstan_slot* const* slots, size_t slot_count, const capstan_step*,
                            double* partials, capstan_error*);
  /* Optional: whether update `update_index` wants gradients averaged over ranks (0) or local ones (1). [engine] */
  capstan_status (*gradient_mode)(void* self, int64_t update_index, int* mean_or_local, capstan_error*);
  /* Optional: make all ranks' parameters equal, before evaluating and saving. [engine, every rank] */
  capstan_status (*synchronize)(void* self, const capstan_slot* const* slots, size_t slot_count, capstan_error*);
  capstan_status (*save)(void* self, capstan_sink*, capstan_error*);    /* optional: what is not tensors, as JSON */
  capstan_status (*load)(void* self, capstan_str json, capstan_error*); /* optional */
  /* Optional, instead of synchronize, with the states of the model and the groups' numbers: `step` is that of the next
   * update; slots have no gradient. [engine, every rank] */
  capstan_status (*synchronize_step)(void* self, const capstan_slot* const* slots, size_t slot_count,
                                     const capstan_step*, capstan_error*);
  /* With `measures_model = k` in the manifest: k partial sums a slot, as measure. The engine calls it for
   * all slots of an update before the first call of update, and adds everything up to capstan_step.model_totals: the
   * same bits on every rank and at every ZeRO stage. No collective may be called in here. [engine] */
  capstan_status (*measure_model)(void* self, const capstan_slot* const* slots, size_t slot_count, const capstan_step*,
                                  double* partials, capstan_error*);
} capstan_optimizer;

/* ---- kind "scheduler" -------------------------------------------------------------------------------------- */

/* What a schedule may want to check when the engine is built. */
typedef struct capstan_schedule_start {
  uint32_t struct_size;
  uint32_t group_count;
  const double* base_lrs;   /* one a group */
  int optimizer_has_betas;  /* 1 when the optimizer's groups have "betas" */
  const double* betas;      /* of group 0, two numbers; NULL without betas */
} capstan_schedule_start;

typedef struct capstan_scheduler {
  uint32_t struct_size;
  /* The rate that update `update_index` (0 for the first) of group `group` uses. Pure: the same arguments always give
   * the same rate, so resuming is asking for another index. [engine] */
  capstan_status (*rate)(void* self, int64_t update_index, uint32_t group, double base_lr, double* out,
                         capstan_error*);
  /* Optional: the betas of that update. Leave `betas` (the configured ones on entry) as they are to keep them. */
  capstan_status (*momentum)(void* self, int64_t update_index, uint32_t group, double betas[2], capstan_error*);
  capstan_status (*start)(void* self, const capstan_schedule_start*, capstan_error*); /* optional; once, first */
  capstan_status (*save)(void* self, capstan_sink*, capstan_error*);                  /* optional, JSON */
  capstan_status (*load)(void* self, capstan_str json, capstan_error*);               /* optional */
} capstan_scheduler;

/* ---- kind "monitor" ----------------------------------------------------------------------------------------- */

typedef struct capstan_metric {
  uint32_t struct_size;
  capstan_str tag;   /* "Train/Samples/lr" */
  double value;      /* may be NaN or infinite */
  int64_t x;         /* global samples after the step */
  double wall_time;  /* seconds since 1970 */
} capstan_metric;

/* A text that the model of a run has written at some step. */
typedef struct capstan_text {
  uint32_t struct_size;
  capstan_str tag;    /* "Train/Samples/generated_1": of one prompt, from the first step to the last */
  capstan_str prompt; /* that the text continues; empty where it continues nothing that is a text */
  capstan_str text;   /* of any length, lines and NUL characters in it */
  int64_t step;       /* of the run, 0 before the first */
  int64_t x;          /* global samples after the step */
  double wall_time;   /* seconds since 1970 */
} capstan_text;

/* Every function is called from one host-owned worker thread [worker], open first, close last and once. A monitor that
 * fails is switched off with one warning; it never stops training. All but write are optional. */
typedef struct capstan_monitor {
  uint32_t struct_size;
  /* run_info: {"resumed_at": x or null, "config": {...}, "world_size": n, ...} */
  capstan_status (*open)(void* self, capstan_str run_info_json, capstan_error*);
  capstan_status (*write)(void* self, const capstan_metric* const* metrics, size_t count, capstan_error*);
  capstan_status (*flush)(void* self, capstan_error*);
  capstan_status (*close)(void* self, capstan_error*);
  /* Texts, in order with the metrics of `write`. A monitor without the function gets none, which the host logs once. */
  capstan_status (*text)(void* self, const capstan_text* const* texts, size_t count, capstan_error*);
} capstan_monitor;

/* ---- kind "model" ------------------------------------------------------------------------------------------- */

typedef struct capstan_model {
  uint32_t struct_size;
  capstan_status (*visit)(void* self, const capstan_visitor*, capstan_error*); /* parameters, buffers, modules */
  /* The loss of one micro-batch: a scalar, with its autograd graph when gradients are on. [engine] */
  capstan_status (*forward)(void* self, capstan_batch*, capstan_tensor* loss, capstan_error*);
  capstan_status (*training)(void* self, int on, capstan_error*);
  /* Optional: facts as a JSON object: sequence_length, hidden_size, vocab_size, layers ... */
  capstan_status (*describe)(void* self, capstan_sink*, capstan_error*);
  /* Optional: fails with what is wrong with a micro-batch. Called before `forward`, while its tensors are
   * still in host memory: there a look costs no wait for the device, where an index out of range ends the process's
   * use of it. [engine] */
  capstan_status (*check)(void* self, capstan_batch*, capstan_error*);
  /* Optional: hands what the model computes of a micro-batch beside its loss to take(ctx, name, tensor), once a name:
   * "logits" [samples, length, vocabulary] of a language model. `take` holds its own reference. The batch may lack what only
   * the loss needs, labels. `check` comes first, as before `forward`. [engine] */
  capstan_status (*outputs)(void* self, capstan_batch*, void* ctx,
                            void (*take)(void* ctx, capstan_str name, capstan_tensor), capstan_error*);
  /* Optional, all three or none: continues sequences token by token. `begin_decode` makes what the model remembers of
   * `sequences` sequences that grow together to `capacity` tokens each; `end_decode` frees it. [engine] */
  capstan_status (*begin_decode)(void* self, size_t sequences, int64_t capacity, void** cache, capstan_error*);
  /* ids: int64 [sequences, tokens], the tokens behind the tokens of earlier calls with this cache. Gives the logits of
   * the token that follows the last one: floating point [sequences, vocab_size], a new handle. Runs without
   * gradients. [engine] */
  capstan_status (*decode)(void* self, void* cache, capstan_tensor ids, capstan_tensor* logits, capstan_error*);
  void (*end_decode)(void* self, void* cache);
} capstan_model;

/* ---- kind "observer" ---------------------------------------------------------------------------------------- */

typedef enum capstan_event_kind {
  CAPSTAN_EVENT_INITIALIZED = 1,
  CAPSTAN_EVENT_STEP_BEGIN = 2,
  CAPSTAN_EVENT_FORWARD_BEGIN = 3,
  CAPSTAN_EVENT_FORWARD_END = 4,
  CAPSTAN_EVENT_BACKWARD_BEGIN = 5,
  CAPSTAN_EVENT_BACKWARD_END = 6,
  CAPSTAN_EVENT_UPDATE_BEGIN = 7, /* after the norm is known, before the optimizer */
  CAPSTAN_EVENT_UPDATE_END = 8,
  CAPSTAN_EVENT_STEP_END = 9,
  CAPSTAN_EVENT_EVAL_BEGIN = 10,
  CAPSTAN_EVENT_EVAL_END = 11,
  CAPSTAN_EVENT_SAVE_BEGIN = 12,
  CAPSTAN_EVENT_SAVE_END = 13,
  CAPSTAN_EVENT_LOADED = 14,
  CAPSTAN_EVENT_CLOSING = 15
} capstan_event_kind;

typedef struct capstan_event {
  uint32_t struct_size;
  capstan_event_kind kind;
  int64_t global_step;    /* steps done before this one, skipped ones included */
  int64_t update_index;   /* updates applied so far */
  int64_t micro_step;     /* within the step */
  int64_t global_samples; /* samples seen so far */
  double grad_norm;       /* of the unscaled gradients; NaN where not known */
  capstan_tensor loss;    /* of the micro-batch (FORWARD_END) or the step's mean (STEP_END); else NULL */
  int skipped;            /* STEP_END, UPDATE_END, UPDATE_BEGIN: 1 when the update is skipped */
} capstan_event;

/* Components that watch or change training. A null function is not attached; the manifest's `attach` names those that
 * are not: any of "events", "layers", "batch". [engine] */
typedef struct capstan_observer {
  uint32_t struct_size;
  capstan_status (*event)(void* self, const capstan_event*, capstan_error*);
  /* Wraps a layer of the model: call inner->run with call->hidden, or a tensor made from it, and arguments of the call's
   * names, and return what the layer gives to the model. */
  capstan_status (*layer)(void* self, const capstan_layer_call* call, const capstan_inner* inner, capstan_tensor* out,
                          capstan_error*);
  capstan_status (*batch)(void* self, capstan_batch*, capstan_error*); /* before forward: change or add to the batch */
  capstan_status (*save)(void* self, capstan_sink*, capstan_error*);
  capstan_status (*load)(void* self, capstan_str json, capstan_error*);
} capstan_observer;

/* ---- kind "offload" ----------------------------------------------------------------------------------------- */

/* Bytes of a buffer, and the memory that they come from or go to. */
typedef struct capstan_range {
  uint32_t struct_size;
  uint32_t write; /* 1: from memory to the buffer; 0: from the buffer to memory */
  uint64_t buffer_id;
  uint64_t offset; /* in the buffer, in bytes */
  uint64_t bytes;
  void* memory; /* the host's, which leaves it alone until the ticket is done */
} capstan_range;

/* What a back end says of itself. */
typedef struct capstan_offload_facts {
  uint32_t struct_size;
  uint32_t alignment; /* a power of two: memory, offset and bytes that are multiples of it travel without a copy; 1: all
                       * do. Others travel as well. */
  uint64_t in_flight_bytes; /* what keeps the storage busy: the engine starts that much ahead where memory allows */
  uint64_t free_bytes;      /* there is room for so many; UINT64_MAX: not known */
} capstan_offload_facts;

/* Why a ticket failed, beside the text that says it in words. */
typedef struct capstan_offload_fault {
  uint32_t struct_size;
  int32_t error;  /* an errno; 0: none */
  uint32_t write; /* as in the range that failed, as the three that follow */
  uint64_t buffer_id, offset, bytes;
  uint64_t done; /* bytes of that range that were moved */
} capstan_offload_fault;

/* Keeps bytes outside memory: on a disk, compressed, on another host.
 *
 * Threads: the host calls one function at a time, from any of its threads. A component may have threads of its own.
 * Ownership: memory is the host's, buffers and tickets are the component's. Each ticket is ended once, by a
 * `poll` that says done or fails. `destroy` returns when nothing touches the host's memory any more, and leaves nothing
 * behind.
 * Order: ranges of one buffer that overlap keep the order of their calls; nothing else keeps any.
 * Short transfers are the component's to finish; no progress before a range's end is an error.
 * What was never written has no value: reading it may fail, or give anything. */
typedef struct capstan_offload {
  uint32_t struct_size;
  /* Once a buffer, before its first transfer: reserves the room, so that what does not fit is refused here. */
  capstan_status (*register_buffer)(void* self, uint64_t buffer_id, uint64_t bytes, capstan_error*);
  /* One submission of all ranges, one ticket. When it fails, nothing was begun. */
  capstan_status (*start)(void* self, const capstan_range* const* ranges, size_t count, uint64_t* ticket,
                          capstan_error*);
  /* Never blocks; moves things on. Done: the memory is free again, or full. */
  capstan_status (*poll)(void* self, uint64_t ticket, int* done, capstan_error*);
  /* All that follow are optional. */
  capstan_status (*stats)(void* self, capstan_sink*, capstan_error*);  /* JSON */
  capstan_status (*facts)(void* self, capstan_offload_facts*, capstan_error*); /* before register_buffer */
  /* Memory that transfers will use again and again: pin it, register it. A failure is said once and costs speed only.
   * take_back: nothing of it is in flight, and no transfer will use it. */
  capstan_status (*lend)(void* self, void* memory, uint64_t bytes, capstan_error*);
  void (*take_back)(void* self, void* memory);
  capstan_status (*fault)(void* self, uint64_t ticket, capstan_offload_fault*, capstan_error*); /* of one that failed,
                                                                                  * right after it was ended */
  capstan_status (*release_buffer)(void* self, uint64_t buffer_id, capstan_error*); /* its bytes are not needed any
                                                                                     * more; nothing of it is in flight */
} capstan_offload;

/* ---- kind "compression" ------------------------------------------------------------------------------------- */

/* Elements of a parameter whose values a compression changes. full_numel / groups consecutive elements of the
 * flattened parameter make a group, which has statistics of its own. A segment is what lies between two cuts, of the
 * elements [offset, offset + numel), at the ends of groups and at multiples of 32,768. */
typedef struct capstan_compressed {
  uint32_t struct_size;
  uint32_t full_dims;
  capstan_str name;
  const int64_t* full_shape;
  uint64_t offset, numel, full_numel; /* the flattened parameter's; offset is a multiple of 32,768 */
  uint64_t groups;                    /* as the plan says */
  capstan_tensor input;     /* these elements, float32, one dimension, contiguous: the master values, or what the
                             * compression before this one makes of them. Read only. */
  const double* statistics; /* of every group that has one of these elements, in order: the numbers of round 0, of
                             * round 1 and so on, joined over the whole parameter and all ranks. In measure() those of
                             * earlier rounds are there. NULL where the plan has no measures. */

  /* The states that the plan declares for the parameter, or for that of its `states_of`, in the plan's order:
   * contiguous, one dimension. One with a value an element has these elements, and is NULL by way of `states_of`; others
   * are whole, the same on all ranks. A trained one is read only. */
  const capstan_tensor* states;
  uint64_t state_count;
  capstan_tensor master;    /* prepare(): these elements of the master values, float32, which may be written. Else NULL */
  capstan_tensor grad;      /* gradient(), which may write it, and before_update(): these elements' gradient, float32, one
                             * dimension. Else NULL */
  double grad_scale;        /* grad * grad_scale is the mean gradient over micro-batches and ranks: 1 / the loss scale */
  const capstan_tensor* state_grads; /* gradient(): for each trained state, float32, to be filled with its gradient, scaled as
                                      * `grad` is; NULL for the others and by way of `states_of`. Else NULL */
} capstan_compressed;

/* Changes the values of parameters on their way to the compute copies, and the inputs of operators. The
 * gradient of what it makes is applied to what it was made of: the straight-through estimator. The engine may cut a
 * parameter at any multiples of 32,768 elements, and results must not depend on the cut. [engine] */
typedef struct capstan_compression {
  uint32_t struct_size;
  /* Once, before anything else. `model`: {"modules": [{"path": "blocks.0.fc", "class": "torch.nn.Linear", "parameters":
   * [{"name": "weight", "shape": [64, 16]}]}], "seed": 42}; a tensor that several modules share is told of at the first
   * of them. Answers {"parameters": [{"name": "blocks.0.fc.weight", "groups": 64, "measures": [["max"], ["sum", "sum"]],
   * "bits": 8, "zero_points": false}], "operands": ["blocks.0.fc"], "report": ["..."], "warnings": ["..."]}, of which all
   * may be absent. "named_by": {"blocks.0.fc": "acme.modules"} tells which key of the configuration asked for an operand,
   * for messages. `measures`: for each round, how each number is joined: max, min or sum; sums are added in the order of
   * segments. `bits`: encode() gives codes of so many bits, 1 to 8; absent: the parameter has no codes. What is not named
   * costs nothing.
   * A parameter may have "states": [{"name": "mask", "dtype": "uint8", "numel": 64}], "uint8" or "float32", 0 at
   * first, kept in checkpoints; without "numel" there is one value an element, which lies where the element is updated.
   * {"name": "row_mask_scores", "trained": true, "shape": [64, 1], "bound": 1.0} is a float32 state that the optimizer trains
   * in the parameter's group, under the name "blocks.0.fc.row_mask_scores"; it begins uniform in [-bound, bound); of the
   * parameter's own shape it has one value an element. "states_of": "blocks.0.fc.weight" lends another parameter's states.
   * "gradient": true has gradient() called for it. */
  capstan_status (*plan)(void* self, capstan_str model, capstan_sink*, capstan_error*);
  /* Optional: whether it acts once `updates` updates are done; pure. Absent: always. */
  int (*active)(void* self, int64_t updates);
  /* With measures: the numbers of a round, segment by segment. No collective may be called in here. */
  capstan_status (*measure)(void* self, const capstan_compressed*, uint32_t round, double* partials, capstan_error*);
  /* With parameters: fills `values`, float32, one dimension, numel, which may be `input` itself. */
  capstan_status (*transform)(void* self, const capstan_compressed*, int64_t updates, capstan_tensor values,
                              capstan_error*);
  /* With bits: what transform makes of the input once `updates` updates are done, as int8 codes [numel], and for each group
   * that has one of these elements a float32 scale and an int32 zero point: value = (code - zero point) * scale, rounded
   * once. Codes lie in [-2^(bits - 1), 2^(bits - 1)); of 1 bit they are -1 and 1, and 0 for a value of exactly 0. A group
   * with a value that is not finite gets a scale of NaN. */
  capstan_status (*encode)(void* self, const capstan_compressed*, int64_t updates, capstan_tensor codes,
                           capstan_tensor scales, capstan_tensor zero_points, capstan_error*);
  /* With operands: fills `out` with what the operator that uses a planned module's weight gets in place of `input`; both
   * are contiguous, of one shape and dtype. Called outside autograd, in training (1) and evaluation (0). */
  capstan_status (*operand)(void* self, capstan_str module, capstan_tensor input, int64_t updates, int training,
                            capstan_tensor out, capstan_error*);
  /* Optional: the micro-batches of a step are done. May call collectives. What operand() keeps must be the same on all
   * ranks afterwards. [engine, every rank] */
  capstan_status (*settle)(void* self, int64_t updates, capstan_error*);
  /* Optional, JSON, with what was seen of the step under way; rank 0's is kept. The engine asks before a step and after
   * each micro-batch as well, and takes a micro-batch that failed back with load(). */
  capstan_status (*save)(void* self, capstan_sink*, capstan_error*);
  capstan_status (*load)(void* self, capstan_str json, capstan_error*); /* optional */

  /* All that follow are optional. `pieces`: of all parameters of the plan, in the plan's order, those without an
   * element here too. */
  /* Before the first forward, after each update and after values were loaded, before transform(), whether it acts or not.
   * May write states that are not trained, and masters. `fresh`, not 0: the states are not those of a run that goes on, and
   * what is made of initial values must be made anew. May call collectives. [engine, every rank] */
  capstan_status (*prepare)(void* self, const capstan_compressed* const* pieces, size_t piece_count, int64_t updates,
                            int fresh, capstan_error*);
  /* While it acts, for the parameters with "gradient" that have one in this step, before the norm is taken: `input` is what
   * transform() had for this forward, so that a mask's gradient is known. May call collectives. [engine, every rank] */
  capstan_status (*gradient)(void* self, const capstan_compressed* const* pieces, size_t piece_count, int64_t updates,
                             capstan_error*);
  /* Right before an update that will be made, for the parameters that have a gradient in this step, not clipped yet. May
   * write states that are not trained. `input` are the masters. May call collectives. [engine, every rank] */
  capstan_status (*before_update)(void* self, const capstan_compressed* const* pieces, size_t piece_count, int64_t updates,
                                  capstan_error*);
  /* What is left of a model once training is over. The pieces have no elements, and whole states; others are NULL. Answers
   * {"tensors": [{"name": "blocks.0.fc.weight", "axis": 0, "of": 64, "kept": [0, 3]}]}, names of parameters and buffers, an
   * entry an axis; indices rise. What is not named stays as transform() makes it. [engine] */
  capstan_status (*keep)(void* self, const capstan_compressed* const* pieces, size_t piece_count, int64_t updates,
                         capstan_sink*, capstan_error*);
  /* Where the number of bits changes as training goes on: how many bits a parameter's codes have once `updates` updates are
   * done, at most as many as the plan says; 0: it has none now. Absent: as many as the plan says. [engine] */
  int (*code_bits)(void* self, capstan_str parameter, int64_t updates);
} capstan_compression;

/* ---- kind "dataset" ----------------------------------------------------------------------------------------- */

/* What a run's configuration says of data, and what the model says of itself. */
typedef struct capstan_data_source {
  uint32_t struct_size;
  const capstan_str* paths; /* capstan.data.path, or capstan.data.eval_path: files and folders */
  size_t path_count;
  int64_t sequence_length;  /* of the model; 0: it does not say */
  int64_t vocabulary;       /* of the model; 0: it does not say. A token that is not below it is an error of `read` */
} capstan_data_source;

/* Samples by number, of which all have tensors of the same names. */
typedef struct capstan_dataset {
  uint32_t struct_size;
  /* Once, before all others. [engine] */
  capstan_status (*open)(void* self, const capstan_data_source*, capstan_error*);
  /* A JSON object: {"samples": 1000, "fingerprint": "...", "sequence_length": 128, "bytes_per_token": 1}. The fingerprint
   * is a text that other data would not have; sequence_length is absent where samples have none, and bytes_per_token, the
   * mean bytes of text that a token stands for, where it is not known. [engine] */
  capstan_status (*describe)(void* self, capstan_sink*, capstan_error*);
  /* Puts the tensors of these samples into the batch, row i that of samples[i]: a language model's are "input_ids" and
   * "labels", int64 [count, sequence_length]. [any] */
  capstan_status (*read)(void* self, const int64_t* samples, size_t count, capstan_batch* out, capstan_error*);
} capstan_dataset;

/* ---- kind "sampler" ----------------------------------------------------------------------------------------- */

/* What a sampler orders. */
typedef struct capstan_sampling {
  uint32_t struct_size;
  int64_t samples;         /* of the data set */
  int64_t batch;           /* samples of a step over all ranks: train_batch_size */
  uint64_t seed;
  capstan_str fingerprint; /* of the data set */
} capstan_sampling;

/* The order of samples in training: the same on every rank, without communication, clock or shared random
 * numbers. [engine] */
typedef struct capstan_sampler {
  uint32_t struct_size;
  capstan_status (*start)(void* self, const capstan_sampling*, capstan_error*); /* once, first */
  /* The samples of step `step`, 0 for the first, of all ranks: fills `samples`, capstan_sampling.batch numbers. Steps
   * come in order; after load() the first is the one after those that the saved sampler gave. */
  capstan_status (*next)(void* self, int64_t step, int64_t* samples, capstan_error*);
  /* Optional: changes the batch of the step that `next` gave last, before forward, as an observer's `batch`. */
  capstan_status (*batch)(void* self, capstan_batch*, capstan_error*);
  capstan_status (*save)(void* self, capstan_sink*, capstan_error*);    /* optional, JSON */
  capstan_status (*load)(void* self, capstan_str json, capstan_error*); /* optional */
} capstan_sampler;

/* ---- kind "metric" ------------------------------------------------------------------------------------------ */

/* What `capstan analyze` measures of each sample, for curricula. */
typedef struct capstan_sample_metric {
  uint32_t struct_size;
  /* Answers {"width": 0, "needs": ["total_vocab_freq"]}: width 0 for one number a sample; else so many, which are summed
   * over all samples. `needs`: metrics with a width that must be measured before. `source`: what the data set says of
   * itself, with "vocabulary" where the model says it. [engine] */
  capstan_status (*start)(void* self, capstan_str source, capstan_sink*, capstan_error*);
  /* Optional: the sums of a metric that it needs, before the first measure(). [engine] */
  capstan_status (*totals)(void* self, capstan_str metric, const int64_t* values, size_t count, capstan_error*);
  /* `count` samples as rows of the batch. width 0: out[i] is sample i's number. Else the `width` numbers at `out` are
   * increased by what these samples have. [any] */
  capstan_status (*measure)(void* self, capstan_batch* samples, size_t count, int64_t* out, capstan_error*);
} capstan_sample_metric;

/* ---- kind "pacing" ------------------------------------------------------------------------------------------ */

/* How difficult the samples of a step may be, for curricula whose schedule_type is "custom". */
typedef struct capstan_pacing {
  uint32_t struct_size;
  /* Pure: the same arguments always give the same difficulty. `step`: 1 for the first. [engine] */
  capstan_status (*difficulty)(void* self, capstan_str metric, int64_t step, int64_t* out, capstan_error*);
} capstan_pacing;

/* ---- kind "attention" --------------------------------------------------------------------------------------- */

/* What all layouts of a component have in common. */
typedef struct capstan_attention_facts {
  uint32_t struct_size;
  uint32_t block;  /* tokens of a block, 1 or more */
  uint32_t causal; /* 1: no token attends to a later one, inside of blocks too */
} capstan_attention_facts;

/* For what a layout is wanted. */
typedef struct capstan_attention_shape {
  uint32_t struct_size;
  uint32_t heads;
  uint32_t blocks; /* of a sequence; the last may have fewer tokens */
  uint64_t seed;   /* of the run: randomness must be a function of it, a head and a row */
} capstan_attention_shape;

/* A layout as kernels get it. */
typedef struct capstan_attention_layout {
  uint32_t struct_size;
  uint32_t heads, block, blocks;
  uint32_t causal;      /* 1: no token attends to a later one; no cell above the diagonal is set then */
  const uint8_t* cells; /* [heads][blocks of queries][blocks of keys]: 1 where there are scores, else 0 */
} capstan_attention_layout;

/* What joins the scores. */
typedef struct capstan_attention_term {
  uint32_t struct_size;
  uint32_t mask;         /* 1: bool, and a score whose element is false is left out; 0: float32, and added */
  capstan_tensor values; /* [batch, heads, tokens, tokens], of any strides, 0 too */
  capstan_tensor grad;   /* backward of one that is added: NULL, or float32, [batch, heads, tokens, tokens], contiguous and
                          * 0: gets the gradient of the scores */
} capstan_attention_term;

/* Out = softmax(scale * q k^T + terms) v over the blocks that the layout sets. A query without a key has zeros
 * in `out`, and gives no gradient. */
typedef struct capstan_attention_call {
  uint32_t struct_size;
  double scale;
  capstan_tensor q, k, v; /* [batch, heads, tokens, d], the d of `v` its own; float32, bfloat16 or float16, all of one dtype; of
                           * any strides but 1 along d. tokens: more than (blocks - 1) * block, at most blocks * block */
  const capstan_attention_term* const* terms;
  size_t term_count;
} capstan_attention_call;

/* A component has `facts` and `layout`, and says which blocks attend to which; or the other four, and computes
 * with any layout, on the device of its manifest. */
typedef struct capstan_attention {
  uint32_t struct_size;
  capstan_status (*facts)(void* self, capstan_attention_facts*, capstan_error*); /* the same at each call [engine] */
  /* Fills `cells`, [heads][blocks][blocks], zeros before, with 1 where a block of queries (row) attends to a block of keys
   * (column). Pure. Fails where its parameters do not fit so many heads or blocks. [engine] */
  capstan_status (*layout)(void* self, const capstan_attention_shape*, uint8_t* cells, capstan_error*);

  /* Whatever a kernel makes of a layout for the calls that follow. [any] */
  capstan_status (*prepare)(void* self, const capstan_attention_layout*, void** plan, capstan_error*);
  void (*release)(void* self, void* plan); /* [any] */
  /* Fills `out`, [batch, heads, tokens, d of v] with stride 1 along d, and `log_sum_exp`, [batch, heads, tokens], float32,
   * contiguous: of each query's scores, which backward gets again; -infinity without a key. [any] */
  capstan_status (*forward)(void* self, void* plan, const capstan_attention_call*, capstan_tensor out,
                            capstan_tensor log_sum_exp, capstan_error*);
  /* Fills the gradients of q, k and v, of their shapes and dtype, with stride 1 along d, from `grad`, that of `out`. [any] */
  capstan_status (*backward)(void* self, void* plan, const capstan_attention_call*, capstan_tensor out,
                             capstan_tensor log_sum_exp, capstan_tensor grad, capstan_tensor grad_q, capstan_tensor grad_k,
                             capstan_tensor grad_v, capstan_error*);
} capstan_attention;

/* ---- kind "tuner" ------------------------------------------------------------------------------------------- */

/* The points among which a tuner chooses: configurations of one run. Valid during `start`. */
typedef struct capstan_tuning_space {
  uint32_t struct_size;
  size_t point_count, feature_count;
  const capstan_str* points;   /* names, "z2_gas1_tmbspg3" */
  const capstan_str* features; /* key paths, "zero_optimization.stage" */
  const double* values;        /* [points][features]: numbers as they are, booleans as 0 and 1, choices by their place */
  size_t budget;               /* the most points that will be measured; at least 1 */
  uint64_t seed;               /* randomness must be a function of it and of what was told */
} capstan_tuning_space;

/* What became of a point. */
typedef struct capstan_tuning_result {
  uint32_t struct_size;
  uint32_t measured; /* 0: the trial ran out of memory, failed or did not end; `cost` means nothing then */
  size_t point;
  double cost; /* above 0, to be made small: seconds a sample, or what the metric makes of them */
} capstan_tuning_result;

/* The order in which `capstan tune` tries points. [engine] */
typedef struct capstan_tuner {
  uint32_t struct_size;
  capstan_status (*start)(void* self, const capstan_tuning_space*, capstan_error*); /* once, first */
  /* Chooses `most` points at most that it has not chosen before: fills `points` and *count; 0: it wants no more.
   * predictions: [points], the costs that the host's model expects by what was told so far, NaN without any. */
  capstan_status (*ask)(void* self, const double* predictions, size_t most, size_t* points, size_t* count,
                        capstan_error*);
  /* About each point that it chose, in that order, before the next `ask`. */
  capstan_status (*tell)(void* self, const capstan_tuning_result*, capstan_error*);
  capstan_status (*save)(void* self, capstan_sink*, capstan_error*);    /* optional, JSON */
  capstan_status (*load)(void* self, capstan_str json, capstan_error*); /* optional; after `start` on the same space */
} capstan_tuner;

/* ---- kind "accelerator" ------------------------------------------------------------------------------------- */

/* A tensor that goes to, or comes from, another process: contiguous, in the device's memory. */
typedef struct capstan_message {
  uint32_t struct_size;
  uint32_t peer; /* rank */
  capstan_tensor values;
} capstan_message;

typedef struct capstan_device_memory {
  uint32_t struct_size;
  uint64_t in_use, peak; /* bytes of this process's tensors: now, and the most so far */
  uint64_t total;        /* bytes of the device */
} capstan_device_memory;

/* One kind of device; `type` is its name in LibTorch ("cuda"). Loading the plugin brings LibTorch's own operators for it,
 * which allocate, copy and compute there; here is what they do not have. Every call is made on the device that `open`
 * chose, and work is ordered with what the calling thread queued before on its current stream. The host takes pinned
 * memory, streams of its own and waits between streams from LibTorch, whose hooks and guard for the device bring them. */
typedef struct capstan_accelerator {
  uint32_t struct_size;
  /* How many devices this process sees. Fails with the reason where there is none. [engine] */
  capstan_status (*count)(void* self, uint32_t* devices, capstan_error*);
  /* Chooses the device, once, before all that follows. `facts`: a JSON object, {"name": "...", "memory_bytes": n}.
   * [engine] */
  capstan_status (*open)(void* self, uint32_t index, capstan_sink* facts, capstan_error*);
  void* (*stream)(void* self); /* the calling thread's current one, a cudaStream_t on CUDA [any] */
  capstan_status (*memory)(void* self, capstan_device_memory*, capstan_error*); /* [any] */

  /* An event marks the end of the work queued so far. `elapsed` waits for both events. [any] */
  capstan_status (*record)(void* self, void** event, capstan_error*);
  capstan_status (*elapsed)(void* self, void* from, void* to, double* milliseconds, capstan_error*);
  void (*forget)(void* self, void* event);

  /* Links between the devices of `size` processes. One of them asks for an id, a text, and all hand it to `connect`.
   * [engine] Optional, all of them or none: without them tensors go through host memory and gloo. */
  capstan_status (*link_id)(void* self, capstan_sink*, capstan_error*);
  capstan_status (*connect)(void* self, capstan_str id, uint32_t rank, uint32_t size, void** link, capstan_error*);
  void (*disconnect)(void* self, void* link);
  /* Starts all messages at once; between two ranks they meet in their order. One exchange at a time on a link. [any] */
  capstan_status (*exchange)(void* self, void* link, const capstan_message* const* send, size_t send_count,
                             const capstan_message* const* receive, size_t receive_count, void** exchange,
                             capstan_error*);
  /* Blocks until all have arrived and all may be overwritten; *done = 0 when aborted. Fails when a link broke. [any] */
  capstan_status (*wait)(void* self, void* exchange, int* done, capstan_error*);
  void (*abort)(void* self, void* exchange); /* ends `wait`; the link is of no use afterwards [any] */
  void (*end)(void* self, void* exchange);   /* after wait */

  /* Optional: makes the device that `open` chose the calling thread's current one. Called once on each thread
   * of the host that will use the device, except the thread of `open` itself and those that only call `abort`. [any] */
  capstan_status (*bind_thread)(void* self, capstan_error*);
  /* Optional: a copy on the device of a tensor in host memory, with the values that it has now. The calling
   * thread's stream waits for the copy, the thread need not. Without it LibTorch's blocking copy is used. [any] */
  capstan_status (*upload)(void* self, capstan_tensor host, capstan_tensor* out, capstan_error*);
  /* Optional: the host calls it in place of `connect`. It asks `given_up` now and then while it waits for the other
   * processes, and fails soon where that returns 1: one of them is gone, or does not come in time. [engine] */
  capstan_status (*connect_unless)(void* self, capstan_str id, uint32_t rank, uint32_t size,
                                   int (*given_up)(void* ctx), void* ctx, void** link, capstan_error*);
  /* Optional: after `wait`, how long the exchange took on the device, from the moment at which the work that the caller
   * had queued before was done. Without it comms_logger takes the host's time around the exchange. [any] */
  capstan_status (*exchange_milliseconds)(void* self, void* exchange, double* milliseconds, capstan_error*);
} capstan_accelerator;

/* ---- the plugin ---------------------------------------------------------------------------------------------- */

typedef struct capstan_component {
  uint32_t struct_size;
  capstan_str kind, type; /* "optimizer", "Lion": as in the manifest */
  /* `params_json`: validated against the manifest's schema, defaults filled in. */
  capstan_status (*create)(const capstan_host*, capstan_str params_json, void** self, capstan_error*);
  void (*destroy)(void* self);
  const void* vtable; /* capstan_<kind> */
} capstan_component;

typedef struct capstan_plugin {
  uint32_t struct_size, abi_major, abi_minor;
  const char* manifest; /* the same bytes as section .capstan.manifest, null-terminated */
  const capstan_component* const* components;
  size_t component_count;
} capstan_plugin;

/* The only exported symbol. Must not allocate, log, start a thread or touch a GPU. */
const capstan_plugin* capstan_plugin_v1(void);

#ifdef __cplusplus
}
#endif

#endif
