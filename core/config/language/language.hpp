#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/schema/schema.hpp"

namespace capstan {

/// Flags of a table row.
enum KeyFlag : unsigned {
  kNullMeans = 1,   // null has a meaning of its own, the one that the summary gives
  kAnyCase = 2,     // choices match in any letter case
  kExactType = 4,   // no conversion: neither booleans nor strings are numbers here, nor the reverse
  kOneOrMany = 8,   // a list that may be written as its single element
  kRequired = 16,   // must be given when its section is
  kOptional = 32,   // an object that is absent unless given: its members have no values then
  kOrAuto = 64,     // "auto" is an ordinary value
  kPlugin = 128,    // an object whose members the manifest of a plugin defines
  kNoEffect = 256,  // accepted without effect; the reader says why
  kSeveral = 512,   // acts with several processes only
  kStage3 = 1024,   // acts at ZeRO stage 3 only; with one process, where parameters are offloaded and without kSeveral
};

/// One row of the tables in core/config/language/tables: the only place where a key's type, default and range are
/// written.
struct Key {
  const char* path;  // "fp16.loss_scale"; <name> stands for any name, [] for the elements of a list
  const char*
      type;  // "boolean", "integer", "number", "string", "path", "object", "any", "string[]", "number[2]"; also "a|b"
  const char* fallback;  // the default as JSON; "" when the key then stays absent
  const char* allowed;  // "> 0", ">= 0", "0..1", ">0..<1", or choices: "mean|sum", ending in '|' when there is only one
  unsigned flags;
  const char* pages;    // generations of documentation that have it; DS: DeepSpeed's code; ours: Capstan alone
  const char* summary;  // one sentence
  /// The part of the core that acts on the key; "" when none does, though a plugin that owns the section may. With
  /// kNoEffect: why nothing needs to.
  const char* reader = "";
};

/// The tables, in the order of the reference page. One title per table.
struct KeyTable {
  const char* title;
  std::span<const Key> keys;
};
std::span<const KeyTable> key_tables();

/// A key in the tree that the tables make.
struct SchemaNode {
  KeySpec spec;
  const Key* key = nullptr;  // null for objects that only hold other keys
  std::string path;          // as in the table
  std::vector<std::unique_ptr<SchemaNode>> members;
  std::unique_ptr<SchemaNode> any_member;  // <name>
  std::unique_ptr<SchemaNode> element;     // []

  const SchemaNode* member(std::string_view name) const;
  bool has(KeyFlag flag) const { return key != nullptr && (key->flags & flag) != 0; }
  /// An object whose members the tables list.
  bool is_section() const { return !members.empty() || any_member != nullptr; }
};

/// The root of the language: the whole document. Built once.
const SchemaNode& language();

/// The node of a path as it stands in documents ("a.b.c", names and indices filled in), or null.
const SchemaNode* find_key(std::string_view path);

}  // namespace capstan
